"""Leadership: announcing it, giving it up.

A leader sends BeginQuorumEpoch to voters that do not fetch. If a majority has not fetched for 1.5
fetch timeouts it resigns, since another leader may be elected by now and it can commit nothing
anyway (check-quorum). A resigning leader names its successors, the
most complete log first.

Source: KIP-595, BeginQuorumEpoch, EndQuorumEpoch; KAFKA-15489 (check-quorum); KAFKA-16926.
"""

from __future__ import annotations

from dataclasses import dataclass

from raft.core import messages
from raft.core.context import Context
from raft.core.discovery import Discovery
from raft.core.effects import ShutdownReady
from raft.core.progress import LeaderState, LeaderWatermark, ReplicaProgress
from raft.core.roles import Leader, Resigned
from raft.core.timers import Timer
from records.kafka_errors import ErrorCode
from records.types import NodeId


@dataclass(slots=True, eq=False)
class Leadership:
    """Announces the leader to the voters, and its resignation."""

    _context: Context
    _discovery: Discovery
    _shutdown_ready: bool = False
    _ended_at: frozenset[NodeId] = frozenset()  # as Resigned: voters that answered EndQuorumEpoch

    # -- telling the voters --------------------------------------------------------------------

    def send_begin_epochs(self) -> None:
        """Send BeginQuorumEpoch to voters without a recent Fetch, once the election is durable."""
        context, leader = self._context, self._context.leader
        if leader is None or not leader.is_open:
            return
        for peer, replica in leader.voters.items():
            if self._is_silent(replica):
                request = messages.BeginQuorumEpochRequest(
                    cluster_id=context.cluster_id,
                    voter=context.voters.voter(peer).key,
                    leader_id=context.node_id,
                    epoch=leader.epoch,
                )
                context.requests.offer(peer, request)

    def _is_silent(self, replica: ReplicaProgress) -> bool:
        """Return whether a voter has been silent for half a fetch timeout.

        A Fetch and an acknowledgement of BeginQuorumEpoch end the silence.
        """
        heard_ms, patience_ms = replica.last_heard_ms, self._context.config.fetch_timeout_ms // 2
        return heard_ms is None or heard_ms + patience_ms <= self._context.timers.now_ms

    def on_begin_timer(self) -> None:
        """Send BeginQuorumEpoch to voters that do not fetch, and set the next check's timer."""
        context, timers = self._context, self._context.timers
        if context.leader is not None:
            patience_ms = context.config.fetch_timeout_ms // 2
            heard = (replica.last_heard_ms for replica in context.leader.voters.values())
            silent_ms = [at_ms + patience_ms for at_ms in heard if at_ms is not None]
            later = [at_ms for at_ms in silent_ms if at_ms > timers.now_ms]
            timers.set(Timer.BEGIN, min(later, default=timers.now_ms + patience_ms))
            context.requests.send_due = True

    def on_begin_response(self, peer: NodeId, response: messages.BeginQuorumEpochResponse) -> None:
        """Record a voter's acknowledgement of this leader, or retry later after an error."""
        context = self._context
        self._discovery.learn(peer, response.epoch, response.leader_id)
        if context.leader is None or peer not in context.leader.voters:
            return
        if response.error is ErrorCode.NONE:
            context.leader.voters[peer].begin_acked_ms = context.timers.now_ms
        else:
            longest_ms = context.config.retry_backoff_max_ms
            context.requests.retry_later(peer, messages.BeginQuorumEpochRequest, longest_ms)

    # -- check-quorum --------------------------------------------------------------------------

    def check_quorum(self) -> None:
        """Resign if no majority has fetched lately; otherwise set the timer for the next check."""
        context, leader = self._context, self._context.leader
        if leader is None:
            return
        heard_ms = self._majority_heard_ms(leader)
        deadline_ms = heard_ms + context.config.check_quorum_timeout_ms
        if deadline_ms <= context.timers.now_ms:
            self._resign("no majority fetches")
        else:
            context.timers.set(Timer.CHECK_QUORUM, deadline_ms)

    def _majority_heard_ms(self, leader: LeaderState) -> int:
        """Return the newest time in ms since which a majority, counting this node, has fetched."""
        if not leader.voters:
            return self._context.timers.now_ms
        heard_ms = sorted(
            (
                leader.since_ms if replica.last_fetch_ms is None else replica.last_fetch_ms
                for replica in leader.voters.values()
            ),
            reverse=True,
        )
        return heard_ms[self._context.voters.majority - 2]

    def watermark(self) -> LeaderWatermark | None:
        """Return the newest known high watermark, and the last time it was known to be current."""
        leader, high_watermark = self._context.leader, self._context.log.high_watermark
        if leader is None or not leader.is_announced or high_watermark is None:
            return self._context.leader_watermark
        return LeaderWatermark(high_watermark, self._majority_heard_ms(leader))

    # -- stopping ------------------------------------------------------------------------------

    def _resign(self, reason: str) -> None:
        """Resign leadership, and name the other voters as successors, the longest log first."""
        context, leader = self._context, self._context.leader
        assert leader is not None, f"{context.role} resigns"
        by_log = sorted((-(voter.end_offset or 0), voter.key) for voter in leader.voters.values())
        candidates = tuple(key for _, key in by_log)
        context.become(Resigned(epoch=context.epoch, preferred_candidates=candidates), reason)

    def on_resign(self) -> None:
        """Resign the leadership if this node is the leader."""
        if isinstance(self._context.role, Leader):
            self._resign("asked to resign")

    def on_shutdown(self) -> None:
        """Resign if this node leads; report readiness to shut down if no voter must be informed."""
        context = self._context
        context.shutting_down = True
        if isinstance(context.role, Leader):
            self._resign("shutdown")
        if not (isinstance(context.role, Resigned) and len(context.voters) > 1):
            self._report_ready()

    def _report_ready(self) -> None:
        if self._context.shutting_down and not self._shutdown_ready:
            self._shutdown_ready = True
            self._context.gate.emit(ShutdownReady())

    def leave_resigned(self) -> None:
        """Stop announcing this node's resignation, because a newer epoch has begun."""
        self._ended_at = frozenset()
        self._report_ready()

    def send_end_epochs(self, role: Resigned) -> None:
        """Send EndQuorumEpoch, with the successors, to the voters that have not acknowledged it."""
        context = self._context
        request = messages.EndQuorumEpochRequest(
            cluster_id=context.cluster_id,
            leader_id=context.node_id,
            epoch=role.epoch,
            preferred_candidates=role.preferred_candidates,
        )
        for peer in context.voters:
            if peer != context.node_id and peer not in self._ended_at:
                context.requests.offer(peer, request)

    def on_end_response(self, peer: NodeId, response: messages.EndQuorumEpochResponse) -> None:
        """Record a voter's acknowledgement of the resignation; after the last, allow shutdown."""
        context = self._context
        self._discovery.learn(peer, response.epoch, response.leader_id)
        if isinstance(context.role, Resigned):
            self._ended_at |= {peer}  # with an error too: it knows of another epoch
            if self._ended_at >= set(context.voters) - {context.node_id}:
                self._report_ready()
