"""How one group answers what it was asked: each request is kept until the core says what to say.

Requests are known to the core by connection and a number of ours; here they are found again, their
answers encoded at the version asked and sent, with log bytes where the core says so.

An answer without records may be held for a moment: see `Answers.respond_fetch`.

Source: `raft.core.effects` (Respond, RespondFetch, ServeSnapshot); KIP-1166 (watermarks as news).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import count
from typing import Final, NamedTuple

from raft.core.effects import Respond, RespondFetch, ServeSnapshot
from raft.core.messages import FetchResponse, FetchSnapshotResponse
from raft.core.quorum import Quorum
from raft.core.voters import Endpoint
from raft.driver.inbound_request import Asked
from raft.driver.storage import Storage
from raft.interfaces import Snapshots
from raft.segments.errors import OffsetOutOfRangeError
from raft.wire.fetch import FetchForm, write_fetch_response
from raft.wire.responses import Answering, Group, write_response
from raft.wire.snapshots import Leader
from records.types import NodeId, Offset

HOLD_S: Final = 0.001
"""The longest that news of the high watermark waits for records to go with it, to an observer."""

VOTER_HOLD_S: Final = 0.004
"""The same to a voter, whom nobody asks: who commits one thing at a time comes back within it, and
then a commit costs one exchange with each voter instead of two."""

_TICK_S: Final = 0.001  # the loop's clock may count whole milliseconds


class _Held(NamedTuple):
    """An answer that waits for records, at most until `due_at` (loop time)."""

    due_at: float
    effect: RespondFetch
    asked: Asked


class Answers:
    """The unanswered requests of one group."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        group: Group,
        quorum: Quorum,
        storage: Storage,
        snapshots: Snapshots,
        endpoints: Callable[[NodeId], Endpoint | None],
    ) -> None:
        """Nothing asked yet.

        Args:    endpoints: where a voter listens, for answers that name the leader.
        """
        self.reads_waiting = 0  # linearizable reads: as long as there are any, nothing is held
        self.held: list[_Held] = []
        self._node_id = node_id
        self._group = group
        self._quorum = quorum
        self._storage = storage
        self._snapshots = snapshots
        self._endpoints = endpoints
        self._loop = asyncio.get_running_loop()
        self._asked: dict[int, dict[int, Asked]] = {}  # by connection, then correlation
        self._correlations = count(1)
        self._hold_timer: asyncio.TimerHandle | None = None
        self._hold_timer_at = 0.0

    def take_in(self, connection: int, asked: Asked) -> int:
        """Keep a request; the correlation by which the core will answer it."""
        correlation = next(self._correlations)
        self._asked.setdefault(connection, {})[correlation] = asked
        return correlation

    def forget(self, connection: int) -> bool:
        """A connection is gone. Had anything been asked on it?"""
        return self._asked.pop(connection, None) is not None

    def close(self) -> None:
        """Hold nothing any more."""
        if self._hold_timer is not None:
            self._hold_timer.cancel()

    def _take(self, connection: int, correlation: int) -> Asked | None:
        """The request to be answered; None if its connection is gone."""
        asked = self._asked.get(connection)
        return asked.pop(correlation, None) if asked is not None else None

    def _answering(self, asked: Asked, leader_id: NodeId | None) -> Answering:
        endpoint = None
        if leader_id is not None and asked.names_nodes:
            endpoint = self._endpoints(leader_id)
        return Answering(self._group, endpoint, names_disks=asked.names_nodes)

    def respond(self, effect: Respond) -> None:
        """Answer without log bytes."""
        asked = self._take(effect.connection, effect.correlation)
        if asked is None:
            return
        response = effect.response
        to = self._answering(asked, response.leader_id)
        if isinstance(response, FetchResponse):
            form = asked.form or FetchForm(self._group.topic, self._group.topic_id)
            asked.answer(write_fetch_response(response, to, form))
        elif isinstance(response, FetchSnapshotResponse):
            self._refuse_snapshot(asked, response)
        else:
            wall_ms = time.time_ns() // 1_000_000
            to = to._replace(clock_offset_ms=wall_ms - time.monotonic_ns() // 1_000_000)
            if asked.names_nodes:
                voters = self._quorum.voters
                to = to._replace(voter_endpoints=[(v, voters.voter(v).endpoints) for v in voters])
            asked.answer(write_response(response, to))

    def respond_fetch(self, effect: RespondFetch) -> None:
        """Answer with log bytes.

        An answer without records is usually of a new high watermark: nobody waits for it. Under
        load records follow at once, and one answer can carry both: half as many exchanges, and the
        records need not wait for the next Fetch. So it leaves with the next append, or a moment
        later, sooner to an observer, whose clients wait for it, than to a voter; at once if a read
        waits for a round, for such an answer is what confirms it.
        """
        asked = self._take(effect.connection, effect.correlation)
        if asked is None:
            return
        if effect.from_offset == effect.end_offset and not self.reads_waiting:
            self._hold(effect, asked)
        else:
            self._send_log(effect, asked, effect.end_offset)

    def _send_log(self, effect: RespondFetch, asked: Asked, end_offset: Offset) -> None:
        try:
            data = self._storage.read_bytes(effect.from_offset, end_offset, effect.max_bytes)
        except OffsetOutOfRangeError:  # the log was cut meanwhile: its next Fetch is told where to
            data = b""
        form = asked.form or FetchForm(self._group.topic, self._group.topic_id)
        to = self._answering(asked, self._node_id)
        asked.answer(write_fetch_response(effect.response, to, form, memoryview(data)))

    def _hold(self, effect: RespondFetch, asked: Asked) -> None:
        due_at = self._loop.time() + (VOTER_HOLD_S if asked.from_voter else HOLD_S)
        self.held.append(_Held(due_at, effect, asked))
        if self._hold_timer is None or due_at < self._hold_timer_at:
            self._hold_until(due_at)

    def _hold_until(self, due_at: float) -> None:
        if self._hold_timer is not None:
            self._hold_timer.cancel()
        self._hold_timer, self._hold_timer_at = self._loop.call_at(due_at, self._on_due), due_at

    def _on_due(self) -> None:
        """Nothing was appended that what has been held the longest could have left with."""
        self._hold_timer = None
        until = self._loop.time() + _TICK_S
        due = [one for one in self.held if one.due_at <= until]
        self.held = [one for one in self.held if one.due_at > until]
        self._release(due)
        if self.held:
            self._hold_until(min(one.due_at for one in self.held))

    def release_held(self) -> None:
        """Answer what is held, with what the log has by now. Still in the epoch of the answer."""
        if not self.held:
            return
        if self._hold_timer is not None:
            self._hold_timer.cancel()
            self._hold_timer = None
        held, self.held = self.held, []
        self._release(held)

    def _release(self, held: list[_Held]) -> None:
        end_offset = self._storage.log.log_end_offset
        for _, effect, asked in held:
            self._send_log(effect, asked, end_offset)

    def serve_snapshot(self, effect: ServeSnapshot) -> None:
        """The quorum has nothing against it: let the bytes be read."""
        asked = self._take(effect.connection, effect.correlation)
        if asked is None:
            return
        slot = asked.slot
        assert slot is not None, f"no FetchSnapshot: {asked}"
        leader = Leader(self._node_id, self._quorum.epoch, self._endpoints(self._node_id))
        slot.question.grant(slot.at, self._snapshots, leader)

    def _refuse_snapshot(self, asked: Asked, response: FetchSnapshotResponse) -> None:
        slot, leader_id = asked.slot, response.leader_id
        assert slot is not None, f"no FetchSnapshot: {asked}"
        endpoint = None if leader_id is None else self._endpoints(leader_id)
        leader = Leader(leader_id, response.epoch, endpoint)
        slot.question.refuse(slot.at, response.error, leader)
