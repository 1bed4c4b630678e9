"""Failure detection: how a follower notices that its leader is gone.

A leader is taken for dead after a fetch timeout; at once when it resigns, answers that it does not
lead, or refuses a connection; after 100 ms without an answer once a connection to it has ended.
Then the follower waits a random moment before it asks for pre-votes, so that two do not collide.

The trap: a follower's own slow disk is no dead leader. The timeouts stand still while it flushes or
verifies a complete snapshot.

Source: KIP-595, BeginQuorumEpoch, EndQuorumEpoch; docs/design/quorum.md#fast-failover.
"""

from __future__ import annotations

from dataclasses import dataclass

from raft.core.context import Context
from raft.core.discovery import Discovery
from raft.core.effects import Reconnect
from raft.core.elections import Elections
from raft.core.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchRequest,
)
from raft.core.roles import Follower, Unattached
from raft.core.timers import Timer
from raft.core.voters import ReplicaKey
from records.kafka_errors import ErrorCode
from records.types import NodeId


@dataclass(slots=True, eq=False)
class FailureDetector:
    """Watches the leader of a follower; other nodes answer Begin- and EndQuorumEpoch here too."""

    _context: Context
    _discovery: Discovery
    _elections: Elections

    # -- signs of life -------------------------------------------------------------------------

    def note_leader_alive(self) -> None:
        """Restart the fetch timeout and cancel the failover, because the leader is alive."""
        context = self._context
        context.follower.leader_lost = False
        context.timers.clear(Timer.SILENCE, Timer.FAILOVER)
        self.restart_fetch_timeout()
        context.requests.send_due = True

    def restart_fetch_timeout(self) -> None:
        """Set the fetch timer to expire one full fetch timeout from now."""
        self._context.timers.set_in(Timer.FETCH, self._context.config.fetch_timeout_ms)

    def on_begin_epoch(self, request: BeginQuorumEpochRequest) -> BeginQuorumEpochResponse:
        """Follow the sender of a BeginQuorumEpoch; treat a sender already followed as alive."""
        context = self._context
        error = self._discovery.check_leadership_claim(request, request.voter)
        if error is ErrorCode.NONE:
            if isinstance(context.role, Follower) and context.epoch == request.epoch:
                self.note_leader_alive()
                self._abandon_overdue_fetches()
            else:
                self._discovery.join(request.epoch, request.leader_id, "BeginQuorumEpoch")
        leader_id, epoch = context.leader_id, context.epoch
        return BeginQuorumEpochResponse(error=error, leader_id=leader_id, epoch=epoch)

    def _abandon_overdue_fetches(self) -> None:
        """Abandon Fetches older than half a fetch timeout, so that new Fetches are sent.

        A leader sends BeginQuorumEpoch to voters that have not fetched for half a fetch timeout; a
        Fetch that has been out for that long is lost.
        """
        context = self._context
        sent_before_ms = context.timers.now_ms - context.config.fetch_timeout_ms // 2
        for request_id, outstanding in tuple(context.requests.outstanding.items()):
            overdue = outstanding.sent_ms <= sent_before_ms
            if overdue and isinstance(outstanding.request, FetchRequest):
                context.requests.abandon(request_id)

    # -- signs of death ------------------------------------------------------------------------

    def note_leader_gone(self) -> None:
        """Treat the leader as failed, and campaign after a random delay.

        Without the wait two followers that noticed at the same time would grant each other's
        pre-votes and split the votes. (Kafka does not wait after a fetch timeout.)
        """
        context = self._context
        context.follower.hears_leader = False
        context.timers.clear(Timer.SILENCE, Timer.FETCH)
        if Timer.FAILOVER not in context.timers.deadlines:
            context.timers.set_in(Timer.FAILOVER, self._failover_jitter_ms())

    def on_end_epoch(self, request: EndQuorumEpochRequest) -> EndQuorumEpochResponse:
        """Campaign after a delay that grows with this node's position in the candidate list."""
        context = self._context
        error = self._discovery.check_leadership_claim(request, None)
        if error is ErrorCode.NONE:
            if request.epoch > context.epoch:
                reason = "EndQuorumEpoch of a newer epoch"
                self._discovery.join(request.epoch, request.leader_id, reason)
            self._campaign_in(self.turn_ms(request.preferred_candidates))
        leader_id, epoch = context.leader_id, context.epoch
        return EndQuorumEpochResponse(error=error, leader_id=leader_id, epoch=epoch)

    def turn_ms(self, candidates: tuple[ReplicaKey, ...]) -> int:
        """Return the delay in ms before this node campaigns, by its place among the candidates.

        With three candidates behind the first and 1000 ms: 0, 125, 250, 500. A voter that is not
        named waits longest. A leader that restarted names none: then each waits at random.

        Source: KIP-595, EndQuorumEpoch (strict exponential back-off by position).
        """
        if not candidates:
            return self._failover_jitter_ms()
        longest_ms = self._context.config.election_backoff_max_ms
        ids = [key.id for key in candidates]
        if self._context.node_id not in ids:
            return longest_ms
        position = ids.index(self._context.node_id)
        if position == 0:
            return 0
        return min((longest_ms >> (len(ids) - 1)) << (position - 1), longest_ms)

    def _campaign_in(self, turn_ms: int) -> None:
        context, role = self._context, self._context.role
        if isinstance(role, Follower):
            context.follower.hears_leader = False
            context.timers.clear(Timer.SILENCE)
            context.timers.set_in(Timer.FAILOVER, turn_ms)
        elif isinstance(role, Unattached) and context.can_campaign:
            context.timers.set_in(Timer.ELECTION, turn_ms)

    def _failover_jitter_ms(self) -> int:
        return self._context.random.randrange(self._context.config.failover_jitter_ms + 1)

    def on_peer_lost(self, peer: NodeId) -> None:
        """Send a new Fetch on a new connection immediately if a connection to the leader ended.

        `RequestFailed` reports the requests lost with it. If another connection ends before the
        leader has answered, the ordinary back-off decides when to dial.
        """
        context, timers = self._context, self._context.timers
        if not isinstance(context.role, Follower) or context.role.leader_id != peer:
            return
        context.follower.hears_leader = False
        if Timer.SILENCE in timers.deadlines or Timer.FAILOVER in timers.deadlines:
            return
        context.requests.reset(peer, FetchRequest)
        context.requests.forget_fetch(peer)
        context.gate.send(Reconnect(peer))
        if context.follower.fetching_snapshot is None:  # else no Fetch is out to be answered
            timers.set_in(Timer.SILENCE, context.config.failover_silence_ms)
        context.requests.send_due = True

    def on_peer_refused(self, peer: NodeId) -> None:
        """Treat the leader as failed if it refused a connection."""
        role = self._context.role
        if isinstance(role, Follower) and role.leader_id == peer:
            self.note_leader_gone()

    # -- time ----------------------------------------------------------------------------------

    def on_fetch_timeout(self) -> None:
        """Treat the leader as failed, unless this node's own disk causes the delay."""
        if (
            self._context.follower.snapshot_complete
        ):  # this node is busy; it keeps no other from being elected
            self._context.follower.hears_leader = False
            self.restart_fetch_timeout()
        elif not self._discovery.can_fetch():  # this node's disk is slow, not the leader
            self.restart_fetch_timeout()
        elif isinstance(self._context.role, Follower):
            self.note_leader_gone()

    def on_silence(self) -> None:
        """Treat a silent leader as failed, unless this node itself was unable to send a Fetch."""
        context = self._context
        if not self._discovery.can_fetch():
            context.timers.set_in(Timer.SILENCE, context.config.failover_silence_ms)
        elif isinstance(context.role, Follower):
            self.note_leader_gone()

    def on_failover(self) -> None:
        """Start pre-votes, or, if this node cannot campaign, ask the voters for their leader."""
        context = self._context
        if not isinstance(context.role, Follower):
            return
        if context.can_campaign:
            self._elections.start_pre_vote("leader lost")
        else:
            context.follower.leader_lost = True
            self.restart_fetch_timeout()
            context.requests.send_due = True
