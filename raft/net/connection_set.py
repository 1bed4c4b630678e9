"""The connections of one listener: the memory they share, their flushes, their count and their end.

It owns all that a listener and its connections keep about each other, so that neither reaches into
the other: connections report to it, the listener reads it.

Source: KIP-72 (memory bound).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from raft.net.errors import QUIET, Reason
from raft.net.frames import Arena, Payload
from raft.net.identity import address_of
from raft.net.limits import Limits

log = logging.getLogger("raft.net")

LOG_LINES_PER_SWEEP: Final = 10


class Member(Protocol):
    """The part of a connection that its set uses."""

    id: int
    peer: str

    def abort(self, reason: Reason, detail: str = "") -> None: ...

    def flush_turn(self) -> None: ...

    def pause_reading(self) -> None: ...

    def resume(self) -> None: ...


C = TypeVar("C", bound=Member)


class ConnectionSet(Generic[C]):
    """Shared state of one listener's connections. Made on a running loop or before it."""

    def __init__(
        self,
        name: str,
        limits: Limits,
        on_close: Callable[[C], None] | None = None,
        hold_ms: Callable[[str], int] | None = None,
    ) -> None:
        """Create the empty set of a listener's connections.

        Args:  hold_ms: see `Listener`; None where connections are held before they are added.
        """
        self.name = name
        self.limits = limits
        self.arena = Arena()
        self.connections: set[C] = set()
        self.memory_used = 0  # bytes of requests unanswered or being received
        self.received_at = 0.0  # when a part of a large frame last arrived, on the loop's clock
        self.accepted = 0
        self.ended: Counter[Reason] = Counter()  # closed connections by reason
        self.draining = False  # closing: answers are sent, requests are no longer read
        self.all_closed = asyncio.Event()
        self._on_close = on_close
        self._hold_ms = hold_ms
        self._by_address: Counter[str] | None = None  # None: addresses are not limited
        if limits.limits_addresses():
            self._by_address = Counter()
        self._to_flush: list[C] = []
        self._memory_waiters: dict[C, None] = {}  # in order of arrival
        self._wake_due = False
        self._tasks: set[asyncio.Future[Payload | None]] = set()
        self._lines_left = LOG_LINES_PER_SWEEP
        self._suppressed = 0

    # --- beginning and end of a connection

    def add(self, connection: C) -> None:
        """Count an accepted connection, or abort it if there are too many connections."""
        self.accepted += 1
        self.connections.add(connection)
        is_allowed = self._by_address is None or self._count_address(connection.peer)
        if len(self.connections) > self.limits.max_connections:
            connection.abort(Reason.TOO_MANY_CONNECTIONS)
        elif not is_allowed:
            connection.abort(Reason.TOO_MANY_CONNECTIONS, "too many of this address")
        elif self.draining:
            connection.abort(Reason.SHUTDOWN)
        elif self._hold_ms is not None and (hold_ms := self._hold_ms(connection.peer)):
            connection.pause_reading()
            asyncio.get_running_loop().call_later(
                hold_ms / 1_000, connection.abort, Reason.THROTTLED
            )

    def _count_address(self, peer: str) -> bool:
        """Count a connection of an address; return False for one too many."""
        assert self._by_address is not None, "addresses are not limited"
        address, limits = address_of(peer), self.limits
        self._by_address[address] += 1
        most = limits.max_connections_per_ip_overrides.get(address, limits.max_connections_per_ip)
        return self._by_address[address] <= most

    def report_end(self, connection: C, reason: Reason, detail: str) -> None:
        """Count and log the end of a connection, and call `on_close`.

        The transport may still send earlier answers.
        """
        self._memory_waiters.pop(connection, None)
        self.count_end(connection, reason, detail)
        if self._on_close is not None:
            self._on_close(connection)

    def count_end(self, connection: C, reason: Reason, detail: str) -> None:
        """Count and log the end of a connection, which may have ended before it was added."""
        self.ended[reason] += 1
        if reason not in QUIET:
            if self._lines_left:
                self._lines_left -= 1
                log.warning(
                    "listener=%s peer=%s connection=%d closed=%s detail=%r",
                    self.name, connection.peer, connection.id, reason, detail,
                )  # fmt: skip
            else:
                self._suppressed += 1

    def remove(self, connection: C) -> None:
        """Remove a connection whose transport is closed from the set."""
        if self._by_address is not None and connection in self.connections:
            address = address_of(connection.peer)
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]
        self.connections.discard(connection)
        if not self.connections:
            self.all_closed.set()

    def reset_log_limit(self) -> None:
        """Allow `LOG_LINES_PER_SWEEP` further log lines, and log how many were suppressed."""
        if self._suppressed:
            log.warning("listener=%s suppressed_lines=%d", self.name, self._suppressed)
        self._lines_left, self._suppressed = LOG_LINES_PER_SWEEP, 0

    def report_broken_invariant(self, error: AssertionError) -> None:
        """Pass a failed assertion to the loop's exception handler, which stops the process."""
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"broken invariant at {self.name}", "exception": error}
        )

    # --- flushes and tasks

    def flush_soon(self, connection: C) -> None:
        """Flush a connection at the end of this turn of the event loop."""
        self._to_flush.append(connection)
        if len(self._to_flush) == 1:
            asyncio.get_running_loop().call_soon(self._flush_all)

    def _flush_all(self) -> None:
        connections, self._to_flush = self._to_flush, []
        for connection in connections:
            connection.flush_turn()

    def keep_until_done(self, future: asyncio.Future[Payload | None]) -> None:
        """Keep a reference to a handler's task until it ends, even if its connection ends first."""
        self._tasks.add(future)
        future.add_done_callback(self._tasks.discard)

    # --- shared memory

    @property
    def has_memory(self) -> bool:
        """Return whether requests may use more of the shared memory."""
        return self.memory_used < self.limits.memory_bytes

    def reserve(self, size: int) -> None:
        """Reserve `size` bytes of the shared memory, even beyond the limit."""
        self.memory_used += size

    def release(self, size: int) -> None:
        """Release shared memory; in the next turn, resume connections that wait for memory."""
        self.memory_used -= size
        assert self.memory_used >= 0, f"{self.name}: {self.memory_used} bytes in use"
        if self._memory_waiters and not self._wake_due:
            self._wake_due = True
            asyncio.get_running_loop().call_soon(self._wake)

    def wait_for_memory(self, connection: C) -> None:
        """Resume this connection when memory is free; connections wait in order of arrival."""
        self._memory_waiters[connection] = None

    def _wake(self) -> None:
        self._wake_due = False
        while self._memory_waiters and self.has_memory:
            connection = next(iter(self._memory_waiters))
            del self._memory_waiters[connection]
            connection.resume()
