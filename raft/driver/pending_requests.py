"""Keeps one group's unanswered requests until the core answers them.

The core knows a request by its connection and a correlation number. This module finds the request
again, encodes its answer at the request's version and sends it, with log bytes where the core says.

An answer without records may be held for a moment: see `PendingRequests.respond_fetch`.

Source: `raft.core.effects` (Respond, RespondFetch, ServeSnapshot); KIP-1166 (high watermark).
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
from raft.driver.inbound_request import InboundRequest
from raft.driver.storage import Storage
from raft.interfaces import Snapshots
from raft.segments.errors import OffsetOutOfRangeError
from raft.wire.fetch import FetchForm, write_fetch_response
from raft.wire.responses import Answering, Group, write_response
from raft.wire.snapshots import Leader
from records.types import NodeId, Offset

HOLD_S: Final = 0.001
"""The longest that an observer's answer with only a new high watermark is held for records."""

VOTER_HOLD_S: Final = 0.004
"""The same for a voter, whose clients do not wait for its high watermark. A client that commits one
record at a time sends its next within this time, and then a commit costs one exchange with each
voter instead of two."""

_TICK_S: Final = 0.001  # the loop's clock may count whole milliseconds


class _Held(NamedTuple):
    """An answer that waits for records, at most until `due_at` (loop time)."""

    due_at: float
    effect: RespondFetch
    inbound: InboundRequest


class PendingRequests:
    """Holds and answers the requests of one group."""

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
        """Create an empty collection of requests that wait for the Raft core.

        Args:    endpoints: where a voter listens, for answers that name the leader.
        """
        self.reads_waiting = 0  # linearizable reads; while there are any, no answer is held
        self.held: list[_Held] = []
        self._node_id = node_id
        self._group = group
        self._quorum = quorum
        self._storage = storage
        self._snapshots = snapshots
        self._endpoints = endpoints
        self._loop = asyncio.get_running_loop()
        self._pending: dict[int, dict[int, InboundRequest]] = {}  # by connection, then correlation
        self._correlations = count(1)
        self._hold_timer: asyncio.TimerHandle | None = None
        self._hold_timer_at = 0.0

    def add(self, connection: int, inbound: InboundRequest) -> int:
        """Keep a request, and return the number by which the Raft core's response refers to it."""
        correlation = next(self._correlations)
        self._pending.setdefault(connection, {})[correlation] = inbound
        return correlation

    def forget(self, connection: int) -> bool:
        """Drop the requests of a closed connection, and return whether it had any requests."""
        return self._pending.pop(connection, None) is not None

    def close(self) -> None:
        """Cancel the timer of delayed responses."""
        if self._hold_timer is not None:
            self._hold_timer.cancel()

    def _take(self, connection: int, correlation: int) -> InboundRequest | None:
        """Remove and return a pending request, or None if its connection is closed."""
        by_correlation = self._pending.get(connection)
        return by_correlation.pop(correlation, None) if by_correlation is not None else None

    def _answer_fields(self, inbound: InboundRequest, leader_id: NodeId | None) -> Answering:
        endpoint = None
        if leader_id is not None and inbound.names_nodes:
            endpoint = self._endpoints(leader_id)
        return Answering(self._group, endpoint, names_disks=inbound.names_nodes)

    def respond(self, effect: Respond) -> None:
        """Send the Raft core's response to a pending request, without records of the log."""
        inbound = self._take(effect.connection, effect.correlation)
        if inbound is None:
            return
        response = effect.response
        to = self._answer_fields(inbound, response.leader_id)
        if isinstance(response, FetchResponse):
            form = inbound.form or FetchForm(self._group.topic, self._group.topic_id)
            inbound.answer(write_fetch_response(response, to, form))
        elif isinstance(response, FetchSnapshotResponse):
            self._refuse_snapshot(inbound, response)
        else:
            wall_ms = time.time_ns() // 1_000_000
            to = to._replace(clock_offset_ms=wall_ms - time.monotonic_ns() // 1_000_000)
            if inbound.names_nodes:
                voters = self._quorum.voters
                to = to._replace(voter_endpoints=[(v, voters.voter(v).endpoints) for v in voters])
            inbound.answer(write_response(response, to))

    def respond_fetch(self, effect: RespondFetch) -> None:
        """Answer a pending Fetch with records; delay an answer without records unless a read waits.

        An answer without records usually carries just a new high watermark, which is not urgent.
        Under load records follow at once, and one answer can carry both: half as many exchanges,
        and the records need not wait for the next Fetch. So it leaves with the next append, or
        after `HOLD_S` to an observer, whose clients wait for it, and `VOTER_HOLD_S` to a voter. It
        leaves at once if a linearizable read waits, for such an answer confirms the read.
        """
        inbound = self._take(effect.connection, effect.correlation)
        if inbound is None:
            return
        if effect.from_offset == effect.end_offset and not self.reads_waiting:
            self._hold(effect, inbound)
        else:
            self._send_log(effect, inbound, effect.end_offset)

    def _send_log(self, effect: RespondFetch, inbound: InboundRequest, end_offset: Offset) -> None:
        try:
            data = self._storage.read_bytes(effect.from_offset, end_offset, effect.max_bytes)
        except OffsetOutOfRangeError:  # the log was cut meanwhile: the next Fetch finds out
            data = b""
        form = inbound.form or FetchForm(self._group.topic, self._group.topic_id)
        to = self._answer_fields(inbound, self._node_id)
        inbound.answer(write_fetch_response(effect.response, to, form, memoryview(data)))

    def _hold(self, effect: RespondFetch, inbound: InboundRequest) -> None:
        due_at = self._loop.time() + (VOTER_HOLD_S if inbound.from_voter else HOLD_S)
        self.held.append(_Held(due_at, effect, inbound))
        if self._hold_timer is None or due_at < self._hold_timer_at:
            self._hold_until(due_at)

    def _hold_until(self, due_at: float) -> None:
        if self._hold_timer is not None:
            self._hold_timer.cancel()
        self._hold_timer, self._hold_timer_at = self._loop.call_at(due_at, self._on_due), due_at

    def _on_due(self) -> None:
        """Send the delayed responses whose delay is over."""
        self._hold_timer = None
        until = self._loop.time() + _TICK_S
        due = [held for held in self.held if held.due_at <= until]
        self.held = [held for held in self.held if held.due_at > until]
        self._release(due)
        if self.held:
            self._hold_until(min(held.due_at for held in self.held))

    def release_held(self) -> None:
        """Send all delayed Fetch responses now, with the records appended in the meantime."""
        if not self.held:
            return
        if self._hold_timer is not None:
            self._hold_timer.cancel()
            self._hold_timer = None
        held, self.held = self.held, []
        self._release(held)

    def _release(self, held: list[_Held]) -> None:
        """Send delayed responses with the records that are there now; to an observer, committed."""
        end_offset = self._storage.log.log_end_offset
        committed = self._quorum.log.high_watermark or Offset(0)
        for _, effect, inbound in held:
            end = end_offset if inbound.from_voter else max(effect.from_offset, committed)
            self._send_log(effect, inbound, min(end, end_offset))

    def serve_snapshot(self, effect: ServeSnapshot) -> None:
        """Start to read a snapshot for a FetchSnapshot that the Raft core has accepted."""
        inbound = self._take(effect.connection, effect.correlation)
        if inbound is None:
            return
        slot = inbound.slot
        assert slot is not None, f"no FetchSnapshot: {inbound}"
        leader = Leader(self._node_id, self._quorum.epoch, self._endpoints(self._node_id))
        slot.query.grant(slot.position, self._snapshots, leader)

    def _refuse_snapshot(self, inbound: InboundRequest, response: FetchSnapshotResponse) -> None:
        slot, leader_id = inbound.slot, response.leader_id
        assert slot is not None, f"no FetchSnapshot: {inbound}"
        endpoint = None if leader_id is None else self._endpoints(leader_id)
        leader = Leader(leader_id, response.epoch, endpoint)
        slot.query.refuse(slot.position, response.error, leader)
