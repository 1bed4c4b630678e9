"""Elections: pre-votes, votes, and which of them a voter grants.

A node that misses its leader first asks whether it *would* win (pre-vote, KIP-996). Only if a
majority grants that does it begin a new epoch and ask for binding votes. A binding vote goes to one
candidate per epoch, and only if its log is at least as complete as the voter's: the last epoch
decides, then the length. So the winner has every record that is committed on a majority, since any
two majorities share a voter (Raft paper, section 5.4.1).

The trap: a pre-vote may be granted by a follower that has lost its leader's connection, although
its fetch timeout is not over. It binds the follower to nothing.

Source: KIP-595, Vote; KIP-996; docs/design/quorum.md#fast-failover.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from raft.core.context import Context
from raft.core.discovery import Discovery
from raft.core.epoch_budget import MAX_EPOCH
from raft.core.messages import VoteRequest, VoteResponse
from raft.core.roles import Candidate, Follower, Leader, Prospective, Resigned, Unattached
from raft.core.timers import Timer
from raft.core.voters import ReplicaKey
from records.kafka_errors import ErrorCode
from records.types import Epoch, NodeId, Offset


@dataclass(slots=True, eq=False)
class VoteGranting:
    """Answers requests for votes and pre-votes, in every role."""

    _context: Context
    _discovery: Discovery

    def answer(self, request: VoteRequest) -> VoteResponse:
        """Grant or refuse a candidate's request for a vote or pre-vote.

        1. Refuse a request that is meant for another node (INCONSISTENT_CLUSTER_ID,
           INVALID_VOTER_KEY), contradicts itself (INVALID_REQUEST), or comes from no voter
           (INCONSISTENT_VOTER_SET): voters are static, so no other node can win, and strangers must
           not raise the epoch. (Kafka's voters may not know the newest set and let any node ask.)
        2. Refuse an older epoch (FENCED_LEADER_EPOCH). A binding vote enters a newer epoch, if that
           is believed, and is refused otherwise (UNKNOWN_LEADER_EPOCH). A pre-vote leaves our epoch
           alone, and is answered in its own, as Kafka expects.
        3. Decide, and note a binding vote; the gate holds the answer until it is durable.
        """
        context = self._context
        error = context.check_addressee(request.cluster_id, request.voter)
        if error is ErrorCode.NONE and not self._is_consistent(request):
            context.fault(request.candidate.id, f"vote request contradicts itself: {request}")
            error = ErrorCode.INVALID_REQUEST
        if error is ErrorCode.NONE and request.candidate.id not in context.voters:
            context.fault(request.candidate.id, "asks for votes but is no voter")
            error = ErrorCode.INCONSISTENT_VOTER_SET
        if error is ErrorCode.NONE and request.epoch < context.epoch:
            error = ErrorCode.FENCED_LEADER_EPOCH
        granted = False
        moves = request.epoch > context.epoch and not request.pre_vote
        if error is ErrorCode.NONE and moves:
            error = self._discovery.check_newer_epoch(request.candidate.id, request.epoch)
        if error is ErrorCode.NONE:
            if moves:
                context.become(Unattached(epoch=request.epoch), f"vote request {request.epoch}")
            granted = self._can_grant(request)
            if granted and not request.pre_vote:
                self._vote_for(request.candidate)
        leader_id, epoch = context.leader_id, context.epoch
        if error is ErrorCode.NONE and request.epoch > epoch:
            leader_id, epoch = None, request.epoch
        return VoteResponse(error=error, leader_id=leader_id, epoch=epoch, granted=granted)

    def _is_consistent(self, request: VoteRequest) -> bool:
        """Return whether the epochs, offsets and candidate of a vote request are consistent."""
        above = request.last_epoch + (0 if request.pre_vote else 1)
        return (
            request.candidate.id != self._context.node_id
            and request.last_epoch >= 0
            and request.end_offset >= 0
            and request.epoch >= above
        )

    def _can_grant(self, request: VoteRequest) -> bool:
        if not self._can_vote():
            return False
        log_ok = (request.last_epoch, request.end_offset) >= self.log_position()
        if request.end_offset < self._least_end_offset():
            return False  # it lacks committed records, whatever its last epoch
        match self._context.role:
            case Leader():
                return False
            case Follower():
                return request.pre_vote and log_ok and not self._context.follower.hears_leader
            case Candidate() | Resigned():
                return request.pre_vote and log_ok
            case Prospective(leader_id=leader_id, voted=voted):
                free = leader_id is None and voted in (None, request.candidate)
                return log_ok and (request.pre_vote or free)
            case Unattached(voted=voted):
                return log_ok and (request.pre_vote or voted in (None, request.candidate))

    def log_position(self) -> tuple[Epoch, Offset]:
        """Return the last epoch and the end offset of the log, which voters compare.

        They cover the newest snapshot too: a snapshot newer than the log becomes the log's start as
        soon as it is complete, so a log without a record ends where its snapshot does, and in its
        epoch. Source: KIP-630, Changes to Leader Election.
        """
        return self._context.log.last_epoch, self._context.log.end_offset

    def _least_end_offset(self) -> Offset:
        """Return the smallest log end offset with which a candidate gets this voter's vote."""
        return self._context.log.floor

    def _can_vote(self) -> bool:
        """Return whether this voter may vote, which is false while it recovers from a lost disk."""
        return not self._context.recovering

    def _vote_for(self, candidate: ReplicaKey) -> None:
        role = self._context.role
        assert isinstance(role, Unattached | Prospective), f"{role} votes for {candidate}"
        if role.voted != candidate:
            voted = Unattached(epoch=role.epoch, voted=candidate)
            self._context.become(voted, f"vote for {candidate.id}")


@dataclass(slots=True, eq=False)
class Elections:
    """Campaigns as Unattached, Prospective and Candidate: asks for votes and counts them."""

    _context: Context
    _discovery: Discovery
    _granting: VoteGranting
    _shortened: int = -1  # the newest epoch whose candidacy was shortened after a rejection

    # -- entering the states -------------------------------------------------------------------

    def enter_unattached(self) -> None:
        """Set the election timer on becoming Unattached, if this node can campaign."""
        if self._context.can_campaign:
            self.await_timeout()

    def await_timeout(self) -> None:
        """Set the election timer, which expires immediately if this node is the only voter."""
        alone = len(self._context.voters) == 1
        self._context.timers.set_in(Timer.ELECTION, 0 if alone else self._timeout_ms())

    def enter_prospective(self) -> None:
        """Set the timers that repeat the pre-vote requests and that end the pre-vote."""
        timers = self._context.timers
        timers.set_in(Timer.ELECTION, self._timeout_ms())
        timers.set_in(Timer.PRE_VOTE, self._context.config.pre_vote_repeat_ms)

    def enter_candidate(self) -> None:
        """Set the timer that ends this candidacy after the election timeout."""
        self._context.timers.set_in(Timer.ELECTION, self._timeout_ms())

    def _timeout_ms(self) -> int:
        """Draw a random election timeout, so that voters seldom campaign at the same time.

        It is uniform in [T, 2T) for a configured timeout T.
        """
        timeout_ms = self._context.config.election_timeout_ms
        return timeout_ms + self._context.random.randrange(timeout_ms)

    def start_pre_vote(self, reason: str) -> None:
        """Become Prospective and request pre-votes; a sole voter becomes Candidate immediately."""
        context, role = self._context, self._context.role
        assert isinstance(role, Unattached | Candidate | Follower), f"{role} becomes prospective"
        new = Prospective(
            epoch=role.epoch,
            voted=context.identity if isinstance(role, Candidate) else role.voted,
            leader_id=role.leader_id if isinstance(role, Follower) else None,
            granted=frozenset({context.node_id}),
            rejected=frozenset(),
        )
        context.become(new, reason)
        self._campaign_if_granted(new)

    def _campaign_if_granted(self, role: Prospective) -> None:
        if len(role.granted) < self._context.voters.majority:
            return
        if role.epoch >= MAX_EPOCH:
            reason = f"epoch {role.epoch} is the last possible epoch: no election is possible"
            self._context.fault(None, reason)
        else:
            self._campaign(Epoch(role.epoch + 1), "majority of pre-votes")

    def _campaign(self, epoch: Epoch, reason: str) -> None:
        """Become a candidate in `epoch`; this node's own vote is counted once it is durable."""
        candidate = Candidate(epoch=epoch, granted=frozenset(), rejected=frozenset())
        self._context.become(candidate, reason)

    def on_own_vote_durable(self, role: Candidate) -> None:
        """Count this node's own durable vote, and request votes from the other voters."""
        self._count_vote(role, self._context.node_id)
        self._context.requests.send_due = True

    # -- time ----------------------------------------------------------------------------------

    def on_timeout(self) -> None:
        """Start a campaign or leave the current role when the election timer expires."""
        context = self._context
        match context.role:
            case Unattached() if context.can_campaign:
                self.start_pre_vote("election timeout")
            case Candidate() if context.can_campaign:
                self.start_pre_vote("election lost or timed out")
            case Candidate(epoch=epoch):
                self._discovery.join(epoch, None, "election timed out")
            case Prospective(leader_id=leader_id, epoch=epoch):
                self._discovery.join(epoch, leader_id, "no majority of pre-votes")
            case Resigned(epoch=epoch):
                newer = Epoch(min(epoch + 1, MAX_EPOCH))
                self._discovery.join(newer, None, "resigned long enough")
            case Unattached() | Leader() | Follower():
                pass

    def on_pre_vote_repeat(self) -> None:
        """Send the pre-vote requests again to all voters that have not granted a pre-vote."""
        context, role = self._context, self._context.role
        if not isinstance(role, Prospective):
            return
        for peer in context.voters:
            context.requests.reset(peer, VoteRequest)
        context.update(replace(role, rejected=frozenset()))
        context.timers.set_in(Timer.PRE_VOTE, context.config.pre_vote_repeat_ms)
        context.requests.send_due = True

    # -- asking for votes ----------------------------------------------------------------------

    def send_requests(self, role: Prospective | Candidate) -> None:
        """Send vote requests to the voters that have neither granted nor refused a vote."""
        context = self._context
        if isinstance(role, Candidate) and context.node_id not in role.granted:
            return  # our own vote is not durable yet
        last_epoch, end_offset = self._granting.log_position()
        for peer in context.voters:
            settled = peer in role.granted or peer in role.rejected or peer == context.node_id
            if not settled:
                request = VoteRequest(
                    cluster_id=context.cluster_id,
                    voter=context.voters.voter(peer).key,
                    candidate=context.identity,
                    epoch=role.epoch,
                    last_epoch=last_epoch,
                    end_offset=end_offset,
                    pre_vote=isinstance(role, Prospective),
                )
                context.requests.offer(peer, request)

    def on_response(self, peer: NodeId, sent: VoteRequest, response: VoteResponse) -> None:
        """Count the vote in a response, if the role and epoch of the request are still current."""
        context = self._context
        if response.error is ErrorCode.INCONSISTENT_CLUSTER_ID:
            context.on_other_cluster(peer, VoteRequest)
            return
        # A voter that grants and names a leader has lost the same one: do not follow that.
        leader_id = None if response.granted else response.leader_id
        self._discovery.learn(peer, response.epoch, leader_id)
        role = context.role
        wanted = Prospective if sent.pre_vote else Candidate
        if not isinstance(role, Prospective | Candidate) or type(role) is not wanted:
            return
        if role.epoch != sent.epoch or peer not in context.voters:
            return
        if response.error is not ErrorCode.NONE:
            context.requests.retry_later(peer, VoteRequest)
        elif response.granted:
            self._count_vote(role, peer)
        else:
            context.update(replace(role, rejected=role.rejected | {peer}))
            if isinstance(role, Candidate):
                self._shorten_candidacy(role)

    def _shorten_candidacy(self, role: Candidate) -> None:
        """Campaign again sooner after a rejection, because the vote is probably split.

        Why: of three voters, the third may be the frozen leader, whose vote would be waited for
        until the election timeout. Two candidacies in a row are never shortened: a distant voter
        whose vote is needed must have the time to answer.
        """
        context = self._context
        if role.epoch > self._shortened + 1:
            self._shortened = role.epoch
            config = context.config
            wait_ms = config.failover_silence_ms
            wait_ms += context.random.randrange(config.failover_jitter_ms + 1)
            context.timers.set_earlier(Timer.ELECTION, context.timers.now_ms + wait_ms)

    def on_pre_vote_unsupported(self, peer: NodeId) -> None:
        """Count a voter that does not support pre-votes (Vote v0, v1) as granting a pre-vote.

        Source: KIP-996.
        """
        role = self._context.role
        if isinstance(role, Prospective) and peer in self._context.voters:
            self._count_vote(role, peer)

    def _count_vote(self, role: Prospective | Candidate, voter: NodeId) -> None:
        """Count a vote that a voter granted, and change the role once a majority has granted it."""
        context = self._context
        counted = replace(role, granted=role.granted | {voter}, rejected=role.rejected - {voter})
        context.update(counted)
        if isinstance(counted, Prospective):
            self._campaign_if_granted(counted)
        elif len(counted.granted) >= context.voters.majority:
            leader = Leader(epoch=counted.epoch, granted=counted.granted)
            context.become(leader, "majority of votes")
