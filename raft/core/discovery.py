"""Finding the leader: from answers, from announcements, and by asking the voters.

Every answer names the epoch its sender is in and the leader it knows; a node follows what is newer
than its own. A node without a leader asks the voters, one at a time, by a Fetch.

The trap: an answer comes from the configured address of the node that was asked, a request from
anywhere. So a newer epoch in a request counts within a budget only; beyond it the node that the
request names is asked.

Source: KIP-595, Vote, BeginQuorumEpoch, EndQuorumEpoch; docs/design/epochs.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from raft.core.context import Context
from raft.core.epoch_budget import EpochBudget
from raft.core.messages import BeginQuorumEpochRequest, EndQuorumEpochRequest, FetchRequest
from raft.core.roles import Candidate, Follower, Leader, Prospective, Resigned, Unattached
from raft.core.voters import ReplicaKey
from records.kafka_errors import ErrorCode
from records.types import Epoch, NodeId


@dataclass(slots=True, eq=False)
class Discovery:
    """Follows newer epochs and leaders named by other nodes, in every role."""

    _context: Context
    _epochs: EpochBudget = field(default_factory=EpochBudget)

    def learn(self, peer: NodeId, epoch: Epoch, leader_id: NodeId | None) -> None:
        """Adopt from a peer's response a newer epoch, or this epoch's leader if yet unknown."""
        context = self._context
        self._epochs.settle(peer)
        role = context.role
        if epoch < role.epoch:
            return
        if leader_id == context.node_id:
            if epoch > role.epoch or not isinstance(role, Leader | Resigned):
                context.fault(peer, f"names us leader of epoch {epoch}; we are in {role}")
            leader_id = None
        elif leader_id is not None and leader_id not in context.voters:
            context.fault(peer, f"names non-voter {leader_id} leader of epoch {epoch}")
            leader_id = None
        if epoch > role.epoch:
            self.join(epoch, leader_id, f"epoch {epoch} at {peer}")
        elif leader_id is not None:
            match role:
                case Unattached() | Candidate() | Prospective(leader_id=None):
                    self.join(epoch, leader_id, f"leader {leader_id} named by {peer}")
                case Follower(leader_id=known) | Prospective(leader_id=known):
                    if known != leader_id:
                        named = f"names {leader_id} leader of epoch {epoch}, not {known}"
                        context.fault(peer, named)
                case Leader() | Resigned():
                    context.fault(peer, f"names {leader_id} leader of our epoch {epoch}")

    def join(self, epoch: Epoch, leader_id: NodeId | None, reason: str) -> None:
        """Enter `epoch` and follow its leader if known; keep a vote already cast in that epoch."""
        context = self._context
        voted = context.election_state.voted if epoch == context.epoch else None
        if leader_id is None:
            context.become(Unattached(epoch=epoch, voted=voted), reason)
        else:
            context.become(Follower(epoch=epoch, leader_id=leader_id, voted=voted), reason)

    def check_leadership_claim(
        self, claim: BeginQuorumEpochRequest | EndQuorumEpochRequest, voter: ReplicaKey | None
    ) -> ErrorCode:
        """Return an error if a request's sender cannot lead the request's epoch, or else NONE."""
        context, leader_id, epoch = self._context, claim.leader_id, claim.epoch
        error = context.check_addressee(claim.cluster_id, voter)
        if error is not ErrorCode.NONE:
            return error
        if epoch < context.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if leader_id not in context.voters:
            context.fault(leader_id, f"leads epoch {epoch} but is no voter")
            return ErrorCode.INCONSISTENT_VOTER_SET
        ours = isinstance(context.role, Leader | Resigned)
        known = context.node_id if ours else context.leader_id
        contradicts = epoch == context.epoch and known not in (None, leader_id)
        if leader_id == context.node_id or contradicts:
            context.fault(leader_id, f"claims to lead epoch {epoch}; its leader is {known}")
            return ErrorCode.INVALID_REQUEST
        return self.check_newer_epoch(leader_id, epoch)

    # -- epochs that requests name -------------------------------------------------------------

    def check_newer_epoch(self, peer: NodeId, epoch: Epoch) -> ErrorCode:
        """Return an error if a peer's newer `epoch` may not raise this node's epoch, or else NONE.

        Otherwise a Fetch asks `peer` for its epoch.
        """
        if epoch <= self._context.epoch or self._believes(peer, epoch):
            return ErrorCode.NONE
        self._context.requests.send_due = True
        return ErrorCode.UNKNOWN_LEADER_EPOCH

    def _believes(self, peer: NodeId, epoch: Epoch) -> bool:
        """Return whether the epoch budget allows `epoch`; if not, record `epoch` as unconfirmed.

        An observer has no budget.

        Why: a leader sends BeginQuorumEpoch to a voter that is ahead of it, and joins it. No node
        dials an observer, so one that believed an epoch that never began would stay alone in it.
        """
        context, now_ms = self._context, self._context.timers.now_ms
        if context.is_voter and self._epochs.spend(epoch - context.epoch, now_ms):
            return True
        if self._epochs.claim(peer, epoch, now_ms):
            reason = f"is said to be in epoch {epoch}, we are in {context.epoch}: it is asked"
            context.fault(peer, reason)
        return False

    def claimed(self) -> tuple[NodeId, ...]:
        """Return the voters that peers report, without confirmation, to be in a newer epoch."""
        return self._epochs.unconfirmed(self._context.epoch, self._context.timers.now_ms)

    def ask_claimed(self) -> None:
        """Send a Fetch to each voter that is reported in a newer epoch, to learn its real epoch.

        A leader that we follow is asked by the ordinary Fetch. The question is a Fetch, too, which
        voters of every version answer with their epoch. As an acknowledgement it says no more than
        is true, so it may go before the end of the log is flushed.
        """
        role, log = self._context.role, self._context.log
        leader_id = role.leader_id if isinstance(role, Follower | Prospective) else None
        for peer in self.claimed():
            if peer != leader_id:
                held = log.flushed_end_offset
                last_epoch = log.epoch_before(held)
                question = self.fetch_request(max_wait_ms=0)
                question = replace(question, fetch_offset=held, last_fetched_epoch=last_epoch)
                self._context.requests.offer(peer, question)

    # -- the search for a leader ---------------------------------------------------------------

    def ask_voters(self, besides: NodeId | None = None) -> None:
        """Send a Fetch to a random voter other than `besides`, to learn which node leads.

        One voter is asked at a time.
        """
        context, requests = self._context, self._context.requests
        apart = (context.node_id, besides, *self.claimed())  # those are asked anyway
        others = [peer for peer in context.voters if peer not in apart]
        if not self.can_fetch() or any(
            requests.outstanding_id(peer, FetchRequest) is not None for peer in others
        ):
            return
        ready = [peer for peer in others if requests.can_send(peer, FetchRequest)]
        if ready:
            requests.send(context.random.choice(ready), self.fetch_request(max_wait_ms=0))

    def can_fetch(self) -> bool:
        """Return whether a Fetch may be sent: by a voter only when its whole log is flushed.

        A Fetch acknowledges the records below its offset, and only that of a voter counts.
        """
        log = self._context.log
        return log.flushed_end_offset == log.end_offset or not self._context.acknowledges

    def fetch_request(self, max_wait_ms: int) -> FetchRequest:
        """Build a Fetch request for the records after the end of this node's log."""
        context, log = self._context, self._context.log
        return FetchRequest(
            cluster_id=context.cluster_id,
            replica=context.identity,
            epoch=context.epoch,
            fetch_offset=log.end_offset,
            last_fetched_epoch=log.last_epoch,
            high_watermark=log.high_watermark,
            floor=log.held_floor,
            max_wait_ms=max_wait_ms,
            max_bytes=context.config.fetch_max_bytes,
        )
