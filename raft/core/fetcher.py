"""Following: a replica fetches from its leader, and its next Fetch is its acknowledgement.

A Fetch says "I hold everything below this offset, on disk"; so none is sent while appended bytes
are unflushed. The leader answers with records, the place where the logs part (the follower cuts
its log there and fetches again), a snapshot to begin from, or, after a wait, with nothing.

The trap: a leader that restarted within its epoch, or that resigned, answers that it does not lead;
that is as good as a timeout. A leader's answers are checked like any input: none can make a
follower drop committed records.

Source: KIP-595, Fetch.
"""

from __future__ import annotations

from dataclasses import dataclass

from raft.core.context import Context
from raft.core.discovery import Discovery
from raft.core.effects import AbandonSnapshot, Append, Committed, Truncate
from raft.core.failure_detector import FailureDetector
from raft.core.forks import Forks
from raft.core.messages import (
    Batch,
    DescribeQuorumRequest,
    EpochEnd,
    FetchRequest,
    FetchResponse,
)
from raft.core.progress import FollowerState, LeaderWatermark
from raft.core.recovery import Recovery
from raft.core.roles import Follower, Prospective
from raft.core.snapshot_installation import SnapshotInstallation
from raft.core.timers import Timer
from records.kafka_errors import ErrorCode
from records.types import NodeId, Offset


@dataclass(slots=True, eq=False)
class Fetcher:
    """Fetches from the leader, appends and truncates, as a follower: voter or observer."""

    _context: Context
    _discovery: Discovery
    _detector: FailureDetector
    _forks: Forks
    _recovery: Recovery
    _installation: SnapshotInstallation

    # -- entering and leaving ------------------------------------------------------------------

    def enter(self) -> None:
        """Start to follow the epoch's leader with a new follower state, and send a Fetch."""
        context, role = self._context, self._context.role
        context.follower = FollowerState()
        self._detector.restart_fetch_timeout()
        if isinstance(role, Follower):  # its back-off, if any, was of the time before it led
            context.requests.reset(role.leader_id, FetchRequest)
            context.requests.reset(role.leader_id, DescribeQuorumRequest)

    def leave(self) -> None:
        """Abandon a download of a snapshot that is in progress."""
        snapshot_id = self._context.follower.fetching_snapshot
        if snapshot_id is not None:
            self._context.gate.emit(AbandonSnapshot(snapshot_id))
        self._context.follower = FollowerState()

    # -- asking --------------------------------------------------------------------------------

    def send_requests(self, leader_id: NodeId) -> None:
        """Send a Fetch to the leader, and also to other voters if the leader does not respond."""
        context, follower = self._context, self._context.follower
        if (
            context.requests.can_send(leader_id, FetchRequest)
            and self._discovery.can_fetch()
            and follower.fetching_snapshot is None
        ):
            # The first Fetch does not wait: its answer proves that the leader leads.
            wait_ms = context.config.fetch_max_wait_ms if follower.hears_leader else 0
            context.requests.send(leader_id, self._discovery.fetch_request(wait_ms))
        self._recovery.ask_log_end(leader_id)
        if follower.leader_lost:
            self._discovery.ask_voters(besides=leader_id)

    # -- hearing -------------------------------------------------------------------------------

    def on_response(
        self, peer: NodeId, sent: FetchRequest, sent_ms: int, response: FetchResponse
    ) -> None:
        """Apply the leader's Fetch response; learn epoch and leader from other nodes' responses."""
        context, requests = self._context, self._context.requests
        if response.error is ErrorCode.INCONSISTENT_CLUSTER_ID:
            context.on_other_cluster(peer, FetchRequest)
            return
        self._discovery.learn(peer, response.epoch, response.leader_id)
        role = context.role
        leader_id = role.leader_id if isinstance(role, Follower | Prospective) else None
        if leader_id != peer:  # `Discovery.ask_voters` sent it
            requests.retry_later(peer, FetchRequest, context.config.pre_vote_repeat_ms)
            return
        if sent.epoch != role.epoch:
            return  # so it did, to the node that leads now
        if response.error is not ErrorCode.NONE:
            requests.retry_later(peer, FetchRequest)
            not_leading = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.BROKER_NOT_AVAILABLE)
            if response.error in not_leading and isinstance(role, Follower):
                self._detector.note_leader_gone()
            return
        if response.epoch != role.epoch:
            context.fault(peer, f"accepts a Fetch of epoch {role.epoch} in {response.epoch}")
            requests.retry_later(peer, FetchRequest)
            return
        if isinstance(role, Prospective):  # the leader lives after all
            self._discovery.join(role.epoch, peer, "leader answered")
        context.follower.hears_leader = True
        self._detector.note_leader_alive()
        if response.high_watermark is not None:
            context.leader_watermark = LeaderWatermark(response.high_watermark, sent_ms)
        if sent.fetch_offset == context.log.end_offset and self._discovery.can_fetch():
            self._apply(peer, response)

    def _apply(self, peer: NodeId, response: FetchResponse) -> None:
        if response.diverging is not None:
            self._truncate(peer, response.diverging)
        elif response.snapshot_id is not None:
            self._installation.begin(peer, response.snapshot_id)
        else:
            if response.batches:
                self._append(peer, response.batches)
            self._advance_high_watermark(response.high_watermark)

    def _truncate(self, peer: NodeId, diverging: EpochEnd) -> None:
        """Remove the records that the leader does not have, then fetch from the new log end.

        A cut below the floor would drop committed records: that is a fork.
        """
        context, log = self._context, self._context.log
        point = self._truncation_point(diverging)
        sensible = min(diverging) >= 0 and point < log.end_offset
        if sensible and point < self._forks.least_end_offset():
            self._forks.enter_doubt(self._forks.of_leader(peer, point, diverging))
            return
        if not sensible:
            reason = f"wants a truncation to {point} of {log}: {diverging}"
            context.fault(peer, reason, FetchRequest)
            return
        log.truncate(point)
        context.voter_history.truncate(point)
        context.note_voters()
        context.gate.emit(Truncate(point, log.generation))

    def _truncation_point(self, diverging: EpochEnd) -> Offset:
        return self._context.log.truncation_point(diverging)

    def _append(self, peer: NodeId, batches: tuple[Batch, ...]) -> None:
        """Append a peer's batches in order, up to the first that does not continue this log."""
        log, epoch = self._context.log, self._context.epoch
        count = 0
        for batch in batches:
            if not (
                batch.base_offset == log.end_offset < batch.end_offset
                and log.last_epoch <= batch.epoch <= epoch
            ):
                reason = f"batch {batch[:3]} does not continue {log}"
                self._context.fault(peer, reason, FetchRequest)
                break
            log.append(batch.base_offset, batch.end_offset, batch.epoch)
            count += 1
        if count:
            self._context.gate.emit(Append(batches[:count], log.generation))

    def _advance_high_watermark(self, offset: Offset | None) -> None:
        """Raise the high watermark to the lower of the leader's high watermark and log end."""
        if offset is None:
            return
        log = self._context.log
        high_watermark, known = min(offset, log.end_offset), log.high_watermark
        if high_watermark >= log.start_offset and (known is None or high_watermark > known):
            log.high_watermark = high_watermark
            self._context.gate.emit(Committed(high_watermark))

    # -- the disk ------------------------------------------------------------------------------

    def on_flushed(self) -> None:
        """Send the next Fetch once the whole log is flushed, as a Fetch acknowledges records."""
        if self._discovery.can_fetch():
            if Timer.FETCH in self._context.timers.deadlines:  # it stood still while we flushed
                self._detector.restart_fetch_timeout()
            self._context.requests.send_due = True
            self._recovery.finish_if_caught_up()
