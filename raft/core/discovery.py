"""How a node finds the leader: from answers and announcements, and by asking the voters.

Every answer names the epoch its sender is in and the leader it knows; a node follows what is newer
than its own. A node without a leader asks the voters, one at a time, by a Fetch.

Source: KIP-595, Vote, BeginQuorumEpoch, EndQuorumEpoch.
"""

from __future__ import annotations

from dataclasses import dataclass

from raft.core.context import Context
from raft.core.errors import ErrorCode
from raft.core.messages import BeginQuorumEpochRequest, EndQuorumEpochRequest, FetchRequest
from raft.core.roles import Candidate, Follower, Leader, Prospective, Resigned, Unattached
from raft.core.voters import ReplicaKey
from records.types import Epoch, NodeId


@dataclass(slots=True, eq=False)
class Discovery:
    """Judges what others say about epochs and leaders, in every role."""

    _context: Context

    def learn(self, peer: NodeId, epoch: Epoch, leader_id: NodeId | None) -> None:
        """Follow the epoch and leader that a peer's answer names, if they are newer than ours."""
        context = self._context
        role = context.role
        if epoch < role.epoch:
            return
        if leader_id == context.node_id:
            if epoch > role.epoch or not isinstance(role, Leader | Resigned):
                context.fault(peer, f"names us leader of epoch {epoch}; we are in {role}")
            leader_id = None
        elif leader_id is not None and leader_id not in context.voters:
            context.fault(peer, f"names {leader_id} leader of epoch {epoch}, who is no voter")
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
        """Enter `epoch`, or follow its leader now that it is known; a vote in it is kept."""
        context = self._context
        voted = context.election_state.voted if epoch == context.epoch else None
        if leader_id is None:
            context.become(Unattached(epoch=epoch, voted=voted), reason)
        else:
            context.become(Follower(epoch=epoch, leader_id=leader_id, voted=voted), reason)

    def check_leadership_claim(
        self, claim: BeginQuorumEpochRequest | EndQuorumEpochRequest, voter: ReplicaKey | None
    ) -> ErrorCode:
        """May this node speak as leader of this epoch? Shared by Begin- and EndQuorumEpoch."""
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
        return ErrorCode.NONE

    def ask_voters(self, besides: NodeId | None = None) -> None:
        """Ask the voters by a Fetch, one at a time at random, who leads; `besides` is left out."""
        context, requests = self._context, self._context.requests
        others = [peer for peer in context.voters if peer not in (context.node_id, besides)]
        if not self.may_fetch() or any(
            requests.outstanding_id(peer, FetchRequest) is not None for peer in others
        ):
            return
        ready = [peer for peer in others if requests.can_send(peer, FetchRequest)]
        if ready:
            requests.send(context.random.choice(ready), self.fetch_request(max_wait_ms=0))

    def may_fetch(self) -> bool:
        """Is the whole log flushed? A Fetch acknowledges all before it."""
        log = self._context.log
        return log.flushed_end_offset == log.end_offset

    def fetch_request(self, max_wait_ms: int) -> FetchRequest:
        """A Fetch from the end of the log."""
        context, log = self._context, self._context.log
        return FetchRequest(
            cluster_id=context.cluster_id,
            replica=context.identity,
            epoch=context.epoch,
            fetch_offset=log.end_offset,
            last_fetched_epoch=log.last_epoch,
            high_watermark=log.high_watermark,
            max_wait_ms=max_wait_ms,
            max_bytes=context.config.fetch_max_bytes,
        )
