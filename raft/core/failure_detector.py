"""How a follower notices that its leader is gone, or not gone after all.

A leader is taken for dead after a fetch timeout; at once when it resigns, answers that it does not
lead, or refuses a connection; and after 100 ms without an answer once a connection to it has ended.
Then the follower waits a random moment before it asks for pre-votes, so that two do not collide.

The trap: our own slow disk is no dead leader. The timeouts stand still while we flush, and while a
complete snapshot is being verified.

Source: KIP-595, BeginQuorumEpoch, EndQuorumEpoch; docs/design/quorum.md#fast-failover.
"""

from __future__ import annotations

from dataclasses import dataclass

from raft.core.context import Context
from raft.core.discovery import Discovery
from raft.core.effects import Reconnect
from raft.core.elections import Elections
from raft.core.errors import ErrorCode
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
from records.types import NodeId


@dataclass(slots=True, eq=False)
class FailureDetector:
    """Watches a follower's leader: its signs of life, and their absence."""

    _context: Context
    _discovery: Discovery
    _elections: Elections

    # -- signs of life -------------------------------------------------------------------------

    def note_leader_alive(self) -> None:
        """The leader we follow gave a sign: stop taking it for lost."""
        context = self._context
        context.follower.leader_lost = False
        context.timers.clear(Timer.SILENCE, Timer.FAILOVER)
        self.restart_fetch_timeout()
        context.requests.send_due = True

    def restart_fetch_timeout(self) -> None:
        """Give the leader a whole fetch timeout from now."""
        self._context.timers.set_in(Timer.FETCH, self._context.config.fetch_timeout_ms)

    def on_begin_epoch(self, request: BeginQuorumEpochRequest) -> BeginQuorumEpochResponse:
        """A leader introduces itself: follow it. The surest sign that it lives."""
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
        """Send Fetches that never arrived again.

        A leader asks after voters that have not fetched for half a fetch timeout; a Fetch of ours
        that has been out for that long is lost.
        """
        context = self._context
        sent_before_ms = context.timers.now_ms - context.config.fetch_timeout_ms // 2
        for request_id, outstanding in tuple(context.requests.outstanding.items()):
            overdue = outstanding.sent_ms <= sent_before_ms
            if overdue and isinstance(outstanding.request, FetchRequest):
                context.requests.abandon(request_id)

    # -- signs of death ------------------------------------------------------------------------

    def note_leader_gone(self) -> None:
        """Nobody leads there any more; wait a random moment, since others noticed it too.

        Two followers that asked at the same time would grant each other's pre-votes and split the
        votes. (Upstream waits for no moment after a fetch timeout.)
        """
        context = self._context
        context.follower.hears_leader = False
        context.timers.clear(Timer.SILENCE, Timer.FETCH)
        if Timer.FAILOVER not in context.timers.deadlines:
            context.timers.set_in(Timer.FAILOVER, self._failover_jitter_ms())

    def on_end_epoch(self, request: EndQuorumEpochRequest) -> EndQuorumEpochResponse:
        """A leader resigns: campaign, each in its turn, the most complete log first."""
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
        """How long to let better candidates go first: nothing for the first, then doubling.

        With three candidates behind the first and 1000 ms: 0, 125, 250, 500. Who is not named
        waits longest. A leader that restarted knows no order and names nobody: then whoever draws
        the shortest lot. Source: KIP-595, EndQuorumEpoch (strict exponential back-off by position).
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
        elif isinstance(role, Unattached) and context.may_campaign:
            context.timers.set_in(Timer.ELECTION, turn_ms)

    def _failover_jitter_ms(self) -> int:
        return self._context.random.randrange(self._context.config.failover_jitter_ms + 1)

    def on_peer_lost(self, peer: NodeId) -> None:
        """A connection ended. If it led to the leader, that is news: look at once.

        Whichever connection it was: the Fetch goes by a new one now. What was lost with it is told
        by `RequestFailed`. If this happens again before the leader has answered, the ordinary
        back-off decides when to dial.
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
        """A connection was refused: if it was to the leader, the leader's process is gone."""
        role = self._context.role
        if isinstance(role, Follower) and role.leader_id == peer:
            self.note_leader_gone()

    # -- time ----------------------------------------------------------------------------------

    def on_fetch_timeout(self) -> None:
        """Take the leader for gone, unless the delay is our own disk's."""
        if self._context.follower.snapshot_complete:  # we are busy; let others decide who leads
            self._context.follower.hears_leader = False
            self.restart_fetch_timeout()
        elif not self._discovery.may_fetch():  # our disk is slow, not the leader
            self.restart_fetch_timeout()
        elif isinstance(self._context.role, Follower):
            self.note_leader_gone()

    def on_silence(self) -> None:
        """Take the leader for gone, unless we have not been able to ask."""
        context = self._context
        if not self._discovery.may_fetch():
            context.timers.set_in(Timer.SILENCE, context.config.failover_silence_ms)
        elif isinstance(context.role, Follower):
            self.note_leader_gone()

    def on_failover(self) -> None:
        """Replace the lost leader: ask for pre-votes, or, if we may not campaign, who leads now."""
        context = self._context
        if not isinstance(context.role, Follower):
            return
        if context.may_campaign:
            self._elections.start_pre_vote("leader lost")
        else:
            context.follower.leader_lost = True
            self.restart_fetch_timeout()
            context.requests.send_due = True
