"""A coordinator that commands drive: the same commands in the same order give every node one state.

A command is a request, as it would travel over a socket, with its caller's time. It is decided and
applied at once, on every node, so a decision may rest on nothing but the state and the command. The
clocks are state too, therefore. The wall clock is the greatest time that any command has carried.
The steady one, on which delays and leases run, moves by what the leader's monotonic clock has
counted between two of its maintenance commands, and a new leader's delays begin anew, as in the
quorum.

The trap: a command that cannot be read is answered like any other. It stands in the log, and every
node has to get past it in the same way.

Source: docs/design/batch-coordinator.md#one-interface-three-implementations.
"""

from __future__ import annotations

import threading
from collections.abc import Coroutine
from typing import Any, Final, cast
from uuid import UUID

import msgpack

from coordinator.batch.calls import CALLS
from coordinator.batch.cluster_view import ClusterView
from coordinator.batch.memory import InMemoryCoordinator, InMemoryState
from coordinator.batch.settings import CoordinatorSettings
from coordinator.errors import CoordinatorError
from records.codec import decode_message
from records.errors import RecordError
from records.kafka_errors import ErrorCode
from records.rpc.base import Response

MAINTENANCE: Final = -1
"""Stands in place of an api key for the maintenance command, which expires, trims, marks and
forgets state."""

LATEST_MS: Final = 2**62
"""The greatest time of any clock, in ms: far from the end of a 64-bit number."""

_REQUESTS: Final = {call.api_key: call.request for call in CALLS}


class _ReplicatedCoordinator(InMemoryCoordinator):
    """The in-memory coordinator whose steady time is part of the replicated state."""

    def shared_ms(self) -> int:
        """Return the time of the replicated steady clock, which is the same on every node."""
        return self._steady_ms()


class Replica:
    """The deterministic machine that every node runs, from commands to answers.

    The in-memory coordinator with clocks that only commands move.
    """

    def __init__(self, settings: CoordinatorSettings, view: ClusterView) -> None:
        self._settings = settings
        self._view = view
        self.lock = threading.Lock()  # the library applies in a thread of its own
        self.clock_ms = 0  # the wall clock
        self.steady_ms = 0
        self._leader: str | None = None  # whose sweeps move the steady clock
        self._leader_at_ms = 0  # on its monotonic clock
        self.coordinator = self._with(InMemoryState())

    def _with(self, state: InMemoryState) -> InMemoryCoordinator:
        return _ReplicatedCoordinator(
            self._settings,
            self._view,
            now_ms=lambda: self.clock_ms,
            steady_ms=lambda: self.steady_ms,
            state=state,
        )

    def execute(self, command: bytes) -> Response | CoordinatorError | None:
        """Decide one replicated command, apply its records, and return the response or an error.

        It must not raise: that would end the library's thread.
        """
        with self.lock:
            try:
                key, body, timestamp_ms = msgpack.unpackb(command)
                kind = _REQUESTS.get(key)
                if key != MAINTENANCE and kind is None:
                    raise ValueError(f"no call has api key {key}")
                request = decode_message(kind, body, 0) if kind else None
                leader, at_ms = (None, 0) if kind else msgpack.unpackb(body)
                if not (leader is None or isinstance(leader, str)):
                    raise TypeError(f"a leadership is called {leader!r}")
                timestamp_ms, at_ms = _time(timestamp_ms), _time(at_ms)
            except (ValueError, TypeError, RecordError) as error:
                return CoordinatorError(ErrorCode.INVALID_REQUEST, f"no command: {error}")
            self.clock_ms = max(self.clock_ms, timestamp_ms)
            self.steady_ms = self.steady_ms or self.clock_ms  # both begin together
            try:
                if request is None:
                    self._pass_time(leader, at_ms)
                    self.coordinator.run_maintenance()
                    return None
                return _result(self.coordinator.call(request))
            except CoordinatorError as error:
                return error
            finally:
                self.coordinator.log.clear()  # the library has the log

    def _pass_time(self, leader: str | None, at_ms: int) -> None:
        """Advance the steady clock by the time since the previous maintenance of the same leader.

        `at_ms` is on the leader's monotonic clock.
        """
        if leader == self._leader:
            self.steady_ms += max(0, at_ms - self._leader_at_ms)
        else:
            self.coordinator.leader_since_ms = self.steady_ms
        self._leader, self._leader_at_ms = leader, at_ms

    def snapshot(self) -> bytes:
        """Encode the whole state as bytes: the clocks, and the records of a checkpoint."""
        state = self.coordinator.state
        place = self.coordinator.retention_at
        packed: bytes = msgpack.packb(
            (
                (self.clock_ms, self.steady_ms, self._leader, self._leader_at_ms),
                self.coordinator.leader_since_ms,
                state.applied_offset,
                None if place is None else (place[0].bytes, place[1]),
                state.checkpoint(),
            )
        )
        return packed

    def load(self, snapshot: bytes) -> None:
        """Replace the whole state, clocks included, by the state in a snapshot."""
        clocks, leader_since_ms, applied_offset, place, values = msgpack.unpackb(snapshot)
        with self.lock:
            self.clock_ms, self.steady_ms, self._leader, self._leader_at_ms = clocks
            self.coordinator = self._with(InMemoryState.load(values, applied_offset))
            self.coordinator.leader_since_ms = leader_since_ms
            self.coordinator.retention_at = place and (UUID(bytes=place[0]), place[1])


def _time(said: object) -> int:
    """Return a command's time in ms, or raise ValueError if the time is invalid.

    A wild clock would break all nodes at once.
    """
    if type(said) is not int or not 0 <= said < LATEST_MS:
        raise ValueError(f"no time: {said!r}")
    return said


def _result(call: Coroutine[Any, Any, Response]) -> Response:
    """Run a coroutine that never waits, and return its result."""
    try:
        call.send(None)
    except StopIteration as done:
        return cast(Response, done.value)
    raise AssertionError("a decision waited for something")
