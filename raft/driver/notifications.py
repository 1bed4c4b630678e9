"""Announces a group's events: to watchers, to proposers and readers, and in the log.

Recipients are called on the loop, in the order of the core's effects, and may propose or read from
within the call: such events wait until the current effects are carried out.

Source: `raft.interfaces` (Watcher, Ticket); `raft.core.effects`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from typing import Final, Protocol

from raft.core.effects import (
    Accepted,
    Committed,
    ForkReported,
    Lead,
    PeerFault,
    ReadReady,
    ReadRefused,
    Refused,
    StepDown,
    Transition,
)
from raft.core.quorum import Quorum
from raft.driver.counters import Counters
from raft.driver.forks import describe_report
from raft.driver.pending_requests import PendingRequests
from raft.interfaces import NotLeaderError, Ticket, Watcher
from records.kafka_errors import ErrorCode
from records.types import Epoch, NodeId, Offset, OffsetAndEpoch

log = logging.getLogger("raft.driver")

FAULT_LINES_PER_SECOND: Final = 5


class ReadTicket(Protocol):
    """Receives the outcome of a linearizable read."""

    def __hash__(self) -> int: ...

    def ready(self, offset: Offset) -> None:
        """Let a linearizable read go on once all records below `offset` are applied."""

    def refused(self, error: ErrorCode) -> None:
        """Fail a read that this node cannot confirm to be linearizable."""


class BarrierTicket:
    """A read ticket whose outcome is a future."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[Offset]) -> None:
        self.future = future

    def ready(self, offset: Offset) -> None:
        """Set the confirmed offset as the future's result."""
        if not self.future.done():
            self.future.set_result(offset)

    def refused(self, error: ErrorCode) -> None:
        """Set a `NotLeaderError` as the future's exception."""
        if not self.future.done():
            self.future.set_exception(NotLeaderError(error))


class Notifications:
    """Announces one group's events to its watchers and tickets."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        name: str,
        quorum: Quorum,
        pending_requests: PendingRequests,
        counters: Counters,
    ) -> None:
        """Create the notifications of a group, without any watcher."""
        self.leading_epoch: Epoch | None = None  # between `Lead` and `StepDown`
        self.watchers: list[Watcher] = []
        self._node_id = node_id
        self._name = name
        self._quorum = quorum
        self._pending_requests = pending_requests
        self._counters = counters
        self._uncommitted: deque[tuple[Offset, float]] = deque()
        self._campaign_began: float | None = None
        self._fault_second = 0
        self._fault_lines = 0

    def watch(self, watcher: Watcher, snapshot_id: OffsetAndEpoch | None) -> None:
        """Notify `watcher` of the log's current state, and of each change from now on."""
        self.watchers.append(watcher)
        if snapshot_id is not None:
            watcher.snapshot(snapshot_id)
        high_watermark = self._quorum.log.high_watermark
        if high_watermark is not None:
            watcher.committed(high_watermark)
        if self.leading_epoch is not None:
            watcher.lead(self.leading_epoch)

    # --- watchers -------------------------------------------------------------------------------

    def committed(self, effect: Committed) -> None:
        """Notify the watchers of the log's new high watermark."""
        high_watermark = effect.high_watermark
        latencies, now = self._counters.commit_latencies_ms, time.monotonic()
        while self._uncommitted and self._uncommitted[0][0] <= high_watermark:
            _, began = self._uncommitted.popleft()
            latencies.append((now - began) * 1_000)
        for watcher in self.watchers:
            watcher.committed(high_watermark)

    def snapshot(self, snapshot_id: OffsetAndEpoch) -> None:
        """Notify the watchers that the log now begins where this snapshot ends."""
        for watcher in self.watchers:
            watcher.snapshot(snapshot_id)

    def lead(self, effect: Lead) -> None:
        """Notify the watchers that this node leads and accepts proposals."""
        self.leading_epoch = effect.epoch
        for watcher in self.watchers:
            watcher.lead(effect.epoch)

    def step_down(self, effect: StepDown) -> None:
        """Notify the watchers that this node no longer leads."""
        self.leading_epoch = None
        self._uncommitted.clear()
        for watcher in self.watchers:
            watcher.step_down(effect.epoch)

    # --- proposers and readers ------------------------------------------------------------------

    def accepted(self, effect: Accepted) -> None:
        """Notify a proposer that its batches were appended to the log."""
        self._uncommitted.append((effect.end_offset, time.monotonic()))
        ticket: Ticket = effect.token  # type: ignore[assignment]
        ticket.accepted(effect.epoch, effect.base_offset, effect.end_offset)

    def refused(self, effect: Refused) -> None:
        """Notify a proposer that its batches were not appended."""
        ticket: Ticket = effect.token  # type: ignore[assignment]
        ticket.refused(effect.error)

    def read_ready(self, effect: ReadReady) -> None:
        """Notify a reader that its read is confirmed."""
        self._pending_requests.reads_waiting -= 1
        ticket: ReadTicket = effect.token  # type: ignore[assignment]
        ticket.ready(effect.offset)

    def read_refused(self, effect: ReadRefused) -> None:
        """Notify a reader that this node cannot confirm its read."""
        self._pending_requests.reads_waiting -= 1
        ticket: ReadTicket = effect.token  # type: ignore[assignment]
        ticket.refused(effect.error)

    # --- state changes and faults, logged -------------------------------------------------------

    def transition(self, effect: Transition) -> None:
        """Log a change of role, and measure the duration of an election."""
        # Before the new epoch has records: held answers belong to the epoch the log ends in.
        self._pending_requests.release_held()
        role = type(effect.new).__name__.lower()
        leader_id = self._quorum.leader_id
        leader = "" if leader_id is None else f" leader={leader_id}"
        log.info(
            "node=%d group=%s role=%s epoch=%d%s reason=%s",
            self._node_id, self._name, role, effect.new.epoch, leader,
            effect.reason.replace(" ", "_"),
        )  # fmt: skip
        if role in ("prospective", "candidate"):
            self._campaign_began = self._campaign_began or time.monotonic()
        elif role in ("leader", "follower") and self._campaign_began is not None:
            self._counters.elected((time.monotonic() - self._campaign_began) * 1_000)
            self._campaign_began = None

    def peer_fault(self, effect: PeerFault) -> None:
        """Count and log a peer that violated the protocol."""
        peer = "unknown" if effect.peer is None else str(effect.peer)
        self.fault(peer, effect.reason)

    def fork_reported(self, effect: ForkReported) -> None:
        """Log that a replica holds committed records which this leader's log does not have."""
        log.critical(
            "node=%d group=%s fork=%s",
            self._node_id, self._name, describe_report(effect, self._quorum),
        )  # fmt: skip

    def fault(self, peer: NodeId | str, reason: str) -> None:
        """Count a peer's fault, and log the fault within the limit of log lines per second."""
        self._counters.peer_faults += 1
        second = int(time.monotonic())
        if second != self._fault_second:
            self._fault_second, self._fault_lines = second, 0
        self._fault_lines += 1
        if self._fault_lines <= FAULT_LINES_PER_SECOND:
            log.warning(
                "node=%d group=%s peer=%s fault=%r",
                self._node_id, self._name, peer, reason[:500],
            )  # fmt: skip
