"""How a voter whose disk was lost becomes a voter again.

It forgot its votes, and what it acknowledged. So it may only follow, and not even that at once: a
deposed leader that has not heard of it would commit, with a newcomer's Fetches, what contradicts
records that its former self helped to commit. First it asks the others for their epochs, by a
question that acknowledges nothing. Then it follows, until it holds all that its leader had when it
began; it spends its vote of this epoch on that leader, durably, and drops the mark.

Why n - majority + 1 answers are enough: every majority has one of any so many voters, so the node
is then in an epoch as new as any in which its former self counted.

Source: docs/design/quorum.md#lost-disks; docs/quorum.md, Lost disks, says what is not promised.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from raft.core.context import Context
from raft.core.discovery import Discovery
from raft.core.effects import ClearRecovering
from raft.core.errors import ErrorCode
from raft.core.messages import DescribeQuorumRequest, DescribeQuorumResponse
from raft.core.roles import Follower
from raft.core.voters import ReplicaKey
from records.types import NodeId


@dataclass(slots=True, eq=False)
class Recovery:
    """What a voter does besides, while it carries the mark of a lost disk."""

    _context: Context
    _discovery: Discovery
    _answered: set[NodeId] = field(default_factory=set)  # voters that told us their epoch

    def knows_the_epoch(self) -> bool:
        """Is this node's epoch as new as any its former self counted in? Always, if none was lost.

        Our former self may have voted in an epoch, or helped to commit in it, that a deposed leader
        has not heard of. Were we to follow that one, it would commit with us what contradicts it.
        But a commit or an election takes a majority; of so many others, one is in it.
        """
        context = self._context
        needed = len(context.voters) - context.voters.majority + 1
        return not context.recovering or len(self._answered) >= needed

    def ask_epochs(self) -> None:
        """Ask the voters by DescribeQuorum, which acknowledges nothing: a Fetch would."""
        context = self._context
        for peer in context.voters:
            if peer != context.node_id and peer not in self._answered:
                context.requests.offer(peer, DescribeQuorumRequest())

    def ask_log_end(self, leader_id: NodeId) -> None:
        """Ask the leader we fetch from how far its log reaches, once."""
        context, follower = self._context, self._context.follower
        if context.recovering and follower.hears_leader and follower.catch_up_offset is None:
            context.requests.offer(leader_id, DescribeQuorumRequest())

    def on_response(self, peer: NodeId, response: DescribeQuorumResponse) -> None:
        """Learn an epoch, and how far the leader's log reached when we had begun to fetch from it.

        Whatever our former self acknowledged before its disk was lost, and whatever it helped to
        commit, lies below that. (Once per leader: the goal must not run away under load.)
        """
        context, requests = self._context, self._context.requests
        self._discovery.learn(peer, response.epoch, response.leader_id)
        answered = response.error in (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if answered and response.epoch > 0:  # 0: nothing has begun there, or all was forgotten
            self._answered.add(peer)
        else:
            requests.retry_later(peer, DescribeQuorumRequest)
        role = context.role
        if not (isinstance(role, Follower) and role.leader_id == peer):
            return
        if not context.follower.hears_leader:
            return
        ends = [state.log_end_offset for state in response.voters if state.key.id == peer]
        if response.error is not ErrorCode.NONE or not ends or ends[0] is None:
            requests.retry_later(peer, DescribeQuorumRequest)
            return
        context.follower.catch_up_offset = ends[0]
        self.finish_if_caught_up()

    def finish_if_caught_up(self) -> None:
        """Once caught up, spend this epoch's vote on its leader; durable, it ends the recovery."""
        context, role, follower = self._context, self._context.role, self._context.follower
        goal = follower.catch_up_offset
        if not context.recovering or not isinstance(role, Follower) or goal is None:
            return
        if context.log.flushed_end_offset >= goal and not follower.spent_vote_due:
            leader_key = (
                context.voters.voter(role.leader_id).key
                if role.leader_id in context.voters
                else ReplicaKey(role.leader_id)
            )
            follower.spent_vote_due = True
            context.update(replace(role, voted=leader_key))
            if not context.gate.is_closed:  # voted so before a crash kept us from clearing the mark
                self.on_vote_durable()

    def on_vote_durable(self) -> None:
        """Drop the mark, if the vote that is durable now is the spent one."""
        if self._context.recovering and self._context.follower.spent_vote_due:
            self._context.recovering = False
            self._context.gate.emit(ClearRecovering())
