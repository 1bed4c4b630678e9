"""Recovery of a voter whose disk was lost.

It forgot its votes and acknowledgements. So it may only follow, and not even that at once: a leader
that was deposed and does not know it would commit, with this node's Fetches, records that
contradict those that its former self helped to commit. First it asks the others for their epochs,
by a request that acknowledges nothing. Then it follows, until it holds all that its leader had when
it began; it spends its vote of this epoch on that leader, durably, and drops the mark.

Why n - majority + 1 answers are enough: every majority has one of any so many voters, so the node
is then in an epoch as new as any in which its former self counted.

Source: docs/design/quorum.md#lost-disks; docs/quorum.md, Lost disks, says what is not promised.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from raft.core.context import Context
from raft.core.discovery import Discovery
from raft.core.effects import ClearRecovering
from raft.core.messages import DescribeQuorumRequest, DescribeQuorumResponse
from raft.core.roles import Follower
from raft.core.voters import ReplicaKey
from records.kafka_errors import ErrorCode
from records.types import NodeId


@dataclass(slots=True, eq=False)
class Recovery:
    """Asks for epochs and catches up, while this voter has the mark of a lost disk."""

    _context: Context
    _discovery: Discovery
    _answered: set[NodeId] = field(default_factory=set)  # voters that named their epoch
    _without_log: set[NodeId] = field(default_factory=set)  # that answered, and have no epoch

    def describe(self) -> str | None:
        """Return the condition that ends the recovery, with a remedy; None if not recovering."""
        context = self._context
        if not context.recovering:
            return None
        if self.has_current_epoch():
            return "this voter lost its disk and is catching up; it votes again once it has"
        needed = len(context.voters) - context.voters.majority + 1
        silent = {
            voter
            for voter in context.voters
            if voter not in self._answered | self._without_log | {context.node_id}
        }
        text = (
            f"this voter lost its disk and waits until {needed} voters with their logs answer: "
            f"answered {_ids(self._answered)}, silent {_ids(silent)}, "
            f"without a log {_ids(self._without_log)}"
        )
        if len(context.voters) - 1 - len(self._without_log) >= needed:
            return f"{text}. Start the silent voters"
        lost = " or ".join(map(str, sorted(self._without_log | {context.node_id})))
        return (
            f"{text}. A majority of disks is lost: bring back the disk of voter {lost}, as no "
            "other copy proves what was committed; without one the cluster must be created anew"
        )

    def has_current_epoch(self) -> bool:
        """Return whether this node's epoch is at least the epoch of its votes before the disk loss.

        An acknowledgement counts like a vote.

        A commit or an election takes a majority, which has one of any n - majority + 1 other
        voters. Always true of a voter that has its disk.
        """
        context = self._context
        needed = len(context.voters) - context.voters.majority + 1
        return not context.recovering or len(self._answered) >= needed

    def ask_epochs(self) -> None:
        """Request the other voters' epochs by DescribeQuorum, which acknowledges no records."""
        context = self._context
        for peer in context.voters:
            if peer != context.node_id and peer not in self._answered:
                context.requests.offer(peer, DescribeQuorumRequest())

    def ask_log_end(self, leader_id: NodeId) -> None:
        """Request the leader's log end, once per leader, after its first response to a Fetch."""
        context, follower = self._context, self._context.follower
        if context.recovering and follower.hears_leader and follower.catch_up_offset is None:
            context.requests.offer(leader_id, DescribeQuorumRequest())

    def on_response(self, peer: NodeId, response: DescribeQuorumResponse) -> None:
        """Learn a voter's epoch and, from the leader, the offset at which catching up ends.

        All that our former self acknowledged or helped to commit lies below the end of the leader's
        log. (It is asked once per leader: the goal must not move under load.)
        """
        context, requests = self._context, self._context.requests
        self._discovery.learn(peer, response.epoch, response.leader_id)
        answered = response.error in (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if answered and response.epoch > 0:  # 0: no epoch has begun there, or its disk was lost too
            self._answered.add(peer)
            self._without_log.discard(peer)
        else:
            if answered:
                self._without_log.add(peer)
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
        """Vote for the leader of this epoch if caught up; the durable vote ends the recovery."""
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
            if not context.gate.is_closed:  # it was durable before a crash kept the mark
                self.on_vote_durable()

    def on_vote_durable(self) -> None:
        """End the recovery if the vote that is now durable is for the current leader."""
        if self._context.recovering and self._context.follower.spent_vote_due:
            self._context.recovering = False
            self._context.gate.emit(ClearRecovering())


def _ids(nodes: set[NodeId]) -> str:
    return ", ".join(map(str, sorted(nodes))) or "none"
