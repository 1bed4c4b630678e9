"""A voter whose disk was lost: what it must hear, and hold, before it is a voter again.

It forgot its votes, and what it acknowledged. So it may only follow, and not even that at once: a
deposed leader that has not heard of it would commit, with a newcomer's Fetches, what contradicts
records that its former self helped to commit. First it asks the others for their epochs, by a
question that acknowledges nothing. Then it follows, until it holds all that its leader had when it
began; it spends its vote of this epoch on that leader, durably, and drops the mark.

The surprise: every majority has one of any n - majority + 1 voters, so with that many answers it
is in an epoch as new as any in which its former self counted.

Source: docs/design/quorum.md#lost-disks; docs/quorum.md, Lost disks, has what this promises and
what not.
"""

from __future__ import annotations

from dataclasses import replace

from raft.core.effects import ClearRecovering
from raft.core.errors import ErrorCode
from raft.core.messages import DescribeQuorumRequest, DescribeQuorumResponse
from raft.core.roles import Follower
from raft.core.voters import ReplicaKey
from raft.core.voting import Voting
from records.types import NodeId


class Recovering(Voting):
    """What a voter does besides, while it carries the mark of a lost disk."""

    def _knows_the_epoch(self) -> bool:
        """Recovering: have enough voters told us their epoch? We are in the newest of them.

        Our former self may have voted in an epoch, or helped to commit in it, that a deposed leader
        has not heard of. Were we to follow that one, it would commit with us what contradicts it.
        But whoever commits or is elected has a majority; of so many others, one is in it.
        """
        needed = len(self.voters) - self.voters.majority + 1
        return not self.recovering or len(self._asked_around) >= needed

    def _pump_asking_around(self) -> None:
        """Ask, by a question that acknowledges nothing: a Fetch would."""
        for peer in self.voters:
            unasked = peer != self.node_id and peer not in self._asked_around
            if unasked and self._may_send(peer, DescribeQuorumRequest):
                self._send(peer, DescribeQuorumRequest())

    def _on_describe_response(self, peer: NodeId, response: DescribeQuorumResponse) -> None:
        """Recovering: learn how far the leader's log reached when we had begun to fetch from it.

        Whatever our former self acknowledged before its disk was lost, and whatever it helped to
        commit, lies below that. (Once per leader: the goal must not run away under load.)
        """
        self._learn(peer, response.epoch, response.leader_id)
        told = response.error in (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if told and response.epoch > 0:  # 0: nothing has begun there, or all was forgotten
            self._asked_around.add(peer)
        else:
            self._retry_later(peer, DescribeQuorumRequest)
        role = self.role
        if not (isinstance(role, Follower) and role.leader_id == peer):
            return
        if not self._following.hears_leader:
            return
        ends = [state.log_end_offset for state in response.voters if state.key.id == peer]
        if response.error is not ErrorCode.NONE or not ends or ends[0] is None:
            self._retry_later(peer, DescribeQuorumRequest)
            return
        self._following.catch_up_offset = ends[0]
        self._see_if_recovered()

    def _see_if_recovered(self) -> None:
        """Caught up: spend this epoch's vote on its leader; once that is durable, be a voter."""
        role, following = self.role, self._following
        goal = following.catch_up_offset
        if not self.recovering or not isinstance(role, Follower) or goal is None:
            return
        if self.log.flushed_end_offset >= goal and not following.spent_vote_due:
            leader_key = (
                self.voters.voter(role.leader_id).key
                if role.leader_id in self.voters
                else ReplicaKey(role.leader_id)
            )
            following.spent_vote_due = True
            self._update(replace(role, voted=leader_key))
            if not self._persisting:  # so it was before a crash kept us from clearing the mark
                self._recovered_durably()

    def _recovered_durably(self) -> None:
        if self.recovering and self._following.spent_vote_due:
            self.recovering = False
            self._effects.append(ClearRecovering())
