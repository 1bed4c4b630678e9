"""How a leader is found: by votes, and by word of mouth.

A node that misses its leader first asks whether it *would* win (pre-vote, KIP-996). Only if a
majority says yes does it begin a new epoch and ask for binding votes. A binding vote goes to one
candidate per epoch, and only if its log is at least as complete as the voter's: the last epoch
decides, then the length. Whoever is committed on a majority is then on the winner too, since any
two majorities share a voter (Raft paper, section 5.4.1).

Surprises. A pre-vote may be granted by a follower that has lost its leader's connection, although
its own patience is not over: nothing binding follows from it. And a refusal that names the leader
we just lost does not bring us back to it; only the leader's own sign does.

Source: KIP-595, Vote, BeginQuorumEpoch, EndQuorumEpoch; KIP-996;
docs/design/quorum.md#fast-failover.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

from raft.core.base import QuorumBase, Timer
from raft.core.errors import ErrorCode
from raft.core.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchRequest,
    VoteRequest,
    VoteResponse,
)
from raft.core.roles import Candidate, Follower, Leader, Prospective, Resigned, Unattached
from raft.core.voters import ReplicaKey
from records.types import Epoch, NodeId, Offset


class Voting(QuorumBase):
    """Unattached, Prospective, Candidate and Resigned: the states of a quorum without a leader."""

    @property
    @abstractmethod
    def _hears_leader(self) -> bool:
        """As a follower: has the present leader answered a Fetch, and not been lost since?"""

    # -- entering the states -------------------------------------------------------------------

    def _enter_unattached(self) -> None:
        if self.may_campaign:
            alone = len(self.voters) == 1
            self._set(Timer.ELECTION, self._now_ms if alone else self._election_deadline())

    def _enter_prospective(self) -> None:
        self._set(Timer.ELECTION, self._election_deadline())
        self._set(Timer.PRE_VOTE, self._now_ms + self.config.pre_vote_repeat_ms)

    def _enter_candidate(self) -> None:
        self._set(Timer.ELECTION, self._election_deadline())

    def _enter_resigned(self) -> None:
        alone = len(self.voters) == 1
        self._set(Timer.ELECTION, self._now_ms if alone else self._election_deadline())

    def _look_for_votes(self, reason: str) -> None:
        """Become Prospective; a sole voter needs nobody's opinion and goes straight on."""
        role = self.role
        assert isinstance(role, Unattached | Candidate | Follower), f"{role} becomes prospective"
        new = Prospective(
            epoch=role.epoch,
            voted=self.identity if isinstance(role, Candidate) else role.voted,
            leader_id=role.leader_id if isinstance(role, Follower) else None,
            granted=frozenset({self.node_id}),
            rejected=frozenset(),
        )
        self._become(new, reason)
        self._campaign_if_welcome(new)

    def _campaign_if_welcome(self, role: Prospective) -> None:
        if len(role.granted) >= self.voters.majority:
            self._campaign(Epoch(role.epoch + 1), "majority of pre-votes")

    def _campaign(self, epoch: Epoch, reason: str) -> None:
        """Begin an epoch. Our own vote counts once it is durable; see `_own_vote_durable`."""
        self._become(Candidate(epoch=epoch, granted=frozenset(), rejected=frozenset()), reason)

    def _own_vote_durable(self, role: Candidate) -> None:
        self._count_vote(role, self.node_id)
        self._pump_due = True

    # -- time ----------------------------------------------------------------------------------

    def _on_election_timeout(self) -> None:
        match self.role:
            case Unattached() if self.may_campaign:
                self._look_for_votes("election timeout")
            case Candidate() if self.may_campaign:
                self._look_for_votes("election lost or timed out")
            case Candidate(epoch=epoch):
                self._become(Unattached(epoch=epoch, voted=self.identity), "election timed out")
            case Prospective(leader_id=None, epoch=epoch, voted=voted):
                self._become(Unattached(epoch=epoch, voted=voted), "no majority of pre-votes")
            case Prospective(leader_id=leader_id, epoch=epoch, voted=voted):
                assert leader_id is not None
                back = Follower(epoch=epoch, leader_id=leader_id, voted=voted)
                self._become(back, "no majority of pre-votes")
            case Resigned(epoch=epoch):
                self._become(Unattached(epoch=Epoch(epoch + 1)), "resigned long enough")
            case Unattached() | Leader() | Follower():
                pass

    def _on_pre_vote_repeat(self) -> None:
        """Ask again whoever has not granted; answers still out are not waited for."""
        role = self.role
        if not isinstance(role, Prospective):
            return
        for peer in self.voters:
            request_id = self._slots.get((peer, VoteRequest))
            if request_id is not None:
                self._give_up(request_id)
            self._retry_at.pop((peer, VoteRequest), None)
        self._update(replace(role, rejected=frozenset()))
        self._set(Timer.PRE_VOTE, self._now_ms + self.config.pre_vote_repeat_ms)
        self._pump_due = True

    # -- asking for votes ----------------------------------------------------------------------

    def _pump_votes(self, role: Prospective | Candidate) -> None:
        if isinstance(role, Candidate) and self.node_id not in role.granted:
            return  # our own vote is not durable yet
        last_epoch, end_offset = self._newest()
        for peer in self.voters:
            settled = peer in role.granted or peer in role.rejected or peer == self.node_id
            if not settled and self._may_send(peer, VoteRequest):
                self._send(
                    peer,
                    VoteRequest(
                        cluster_id=self.cluster_id,
                        voter=self.voters.voter(peer).key,
                        candidate=self.identity,
                        epoch=role.epoch,
                        last_epoch=last_epoch,
                        end_offset=end_offset,
                        pre_vote=isinstance(role, Prospective),
                    ),
                )

    def _on_vote_response(self, peer: NodeId, sent: VoteRequest, response: VoteResponse) -> None:
        if response.error is ErrorCode.INCONSISTENT_CLUSTER_ID:
            self._foreign(peer, VoteRequest)
            return
        # Who grants names a leader only because it lost the same one: no reason to follow it.
        self._learn(peer, response.epoch, None if response.granted else response.leader_id)
        role = self.role
        wanted = Prospective if sent.pre_vote else Candidate
        if not isinstance(role, Prospective | Candidate) or type(role) is not wanted:
            return
        if role.epoch != sent.epoch or peer not in self.voters:
            return
        if response.error is not ErrorCode.NONE:
            self._retry_later(peer, VoteRequest)
        elif response.granted:
            self._count_vote(role, peer)
        else:
            self._update(replace(role, rejected=role.rejected | {peer}))

    def _on_pre_vote_unsupported(self, peer: NodeId) -> None:
        """A voter without pre-vote (Vote v0, v1) cannot object. Source: KIP-996, Compatibility."""
        if isinstance(self.role, Prospective) and peer in self.voters:
            self._count_vote(self.role, peer)

    def _count_vote(self, role: Prospective | Candidate, voter: NodeId) -> None:
        """A set, so that a repeated answer counts once."""
        counted = replace(role, granted=role.granted | {voter}, rejected=role.rejected - {voter})
        self._update(counted)
        if isinstance(counted, Prospective):
            self._campaign_if_welcome(counted)
        elif len(counted.granted) >= self.voters.majority:
            self._become(Leader(epoch=counted.epoch, granted=counted.granted), "majority of votes")

    # -- giving votes --------------------------------------------------------------------------

    def _on_vote_request(self, connection: int, correlation: int, request: VoteRequest) -> None:
        """Answer whether `candidate` gets, or would get, our vote.

        1. Refuse what is not meant for us (INCONSISTENT_CLUSTER_ID, INVALID_VOTER_KEY), contradicts
           itself (INVALID_REQUEST), or comes from no voter (INCONSISTENT_VOTER_SET): with static
           voters nobody else can win, and strangers must not drive the epoch up. (Upstream, whose
           voters may not know the newest set, lets anybody ask.)
        2. Refuse an older epoch (FENCED_LEADER_EPOCH); a newer one is ours from now on.
        3. Decide, and make a binding vote ours; the gate holds the answer until it is durable.
        """
        error = self._check_addressee(request.cluster_id, request.voter)
        if error is ErrorCode.NONE and not self._makes_sense(request):
            self._fault(request.candidate.id, f"vote request contradicts itself: {request}")
            error = ErrorCode.INVALID_REQUEST
        if error is ErrorCode.NONE and request.candidate.id not in self.voters:
            self._fault(request.candidate.id, "asks for votes but is no voter")
            error = ErrorCode.INCONSISTENT_VOTER_SET
        if error is ErrorCode.NONE and request.epoch < self.epoch:
            error = ErrorCode.FENCED_LEADER_EPOCH
        granted = False
        if error is ErrorCode.NONE:
            if request.epoch > self.epoch:
                self._become(Unattached(epoch=request.epoch), f"vote request {request.epoch}")
            granted = self._grants(request)
            if granted and not request.pre_vote:
                self._vote_for(request.candidate)
        response = VoteResponse(
            error=error, leader_id=self.leader_id, epoch=self.epoch, granted=granted
        )
        self._respond(connection, correlation, response)

    def _makes_sense(self, request: VoteRequest) -> bool:
        """A candidate's epoch is above all its log; a prospective one may still be in its last."""
        above = request.last_epoch + (0 if request.pre_vote else 1)
        return (
            request.candidate.id != self.node_id
            and request.last_epoch >= 0
            and request.end_offset >= 0
            and request.epoch >= above
        )

    def _grants(self, request: VoteRequest) -> bool:
        if not self._may_vote():
            return False
        log_ok = (request.last_epoch, request.end_offset) >= self._newest()
        match self.role:
            case Leader():
                return False
            case Follower():
                return request.pre_vote and log_ok and not self._hears_leader
            case Candidate() | Resigned():
                return request.pre_vote and log_ok
            case Prospective(leader_id=leader_id, voted=voted):
                free = leader_id is None and voted in (None, request.candidate)
                return log_ok and (request.pre_vote or free)
            case Unattached(voted=voted):
                return log_ok and (request.pre_vote or voted in (None, request.candidate))

    def _newest(self) -> tuple[Epoch, Offset]:
        """Where the newest of snapshot and log ends: what votes are asked and given for.

        One and the same: a snapshot newer than the log becomes the log's start the moment it is
        there, so a log without a record ends where its snapshot does, and in its epoch.
        Source: KIP-630, Changes to Leader Election.
        """
        return self.log.last_epoch, self.log.end_offset

    def _may_vote(self) -> bool:
        """A voter whose disk was lost has forgotten its votes, and what it acknowledged."""
        return not self.recovering

    def _vote_for(self, candidate: ReplicaKey) -> None:
        role = self.role
        assert isinstance(role, Unattached | Prospective), f"{role} votes for {candidate}"
        if role.voted != candidate:
            self._become(Unattached(epoch=role.epoch, voted=candidate), f"vote for {candidate.id}")

    # -- word of mouth -------------------------------------------------------------------------

    def _learn(self, peer: NodeId, epoch: Epoch, leader_id: NodeId | None) -> None:
        """Somebody's answer names an epoch, and perhaps its leader: follow what is newer."""
        role = self.role
        if epoch < role.epoch:
            return
        if leader_id == self.node_id:
            if epoch > role.epoch or not isinstance(role, Leader | Resigned):
                self._fault(peer, f"names us leader of epoch {epoch}; we are in {role}")
            leader_id = None
        elif leader_id is not None and leader_id not in self.voters:
            self._fault(peer, f"names {leader_id} leader of epoch {epoch}, who is no voter")
            leader_id = None
        if epoch > role.epoch:
            self._join(epoch, leader_id, f"epoch {epoch} at {peer}")
        elif leader_id is not None:
            match role:
                case Unattached() | Candidate() | Prospective(leader_id=None):
                    self._join(epoch, leader_id, f"leader {leader_id} named by {peer}")
                case Follower(leader_id=known) | Prospective(leader_id=known):
                    if known != leader_id:
                        self._fault(peer, f"names {leader_id} leader of epoch {epoch}, not {known}")
                case Leader() | Resigned():
                    self._fault(peer, f"names {leader_id} leader of our epoch {epoch}")

    def _join(self, epoch: Epoch, leader_id: NodeId | None, reason: str) -> None:
        """Enter `epoch`, or follow its leader now that it is known; a vote in it is kept."""
        voted = self.election_state.voted if epoch == self.epoch else None
        if leader_id is None:
            self._become(Unattached(epoch=epoch, voted=voted), reason)
        else:
            self._become(Follower(epoch=epoch, leader_id=leader_id, voted=voted), reason)

    def _check_leadership_claim(
        self, cluster_id: str | None, voter: ReplicaKey | None, leader_id: NodeId, epoch: Epoch
    ) -> ErrorCode:
        """May this node speak as leader of this epoch? Shared by Begin- and EndQuorumEpoch."""
        error = self._check_addressee(cluster_id, voter)
        if error is not ErrorCode.NONE:
            return error
        if epoch < self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if leader_id not in self.voters:
            self._fault(leader_id, f"leads epoch {epoch} but is no voter")
            return ErrorCode.INCONSISTENT_VOTER_SET
        ours = isinstance(self.role, Leader | Resigned)
        known = self.node_id if ours else self.leader_id
        if leader_id == self.node_id or (epoch == self.epoch and known not in (None, leader_id)):
            self._fault(leader_id, f"claims to lead epoch {epoch}; its leader is {known}")
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.NONE

    def _on_begin_epoch(
        self, connection: int, correlation: int, request: BeginQuorumEpochRequest
    ) -> None:
        """A leader introduces itself: follow it. The surest sign that it lives."""
        error = self._check_leadership_claim(
            request.cluster_id, request.voter, request.leader_id, request.epoch
        )
        if error is ErrorCode.NONE:
            if isinstance(self.role, Follower) and self.epoch == request.epoch:
                self._leader_misses_us()
            else:
                self._join(request.epoch, request.leader_id, "BeginQuorumEpoch")
        self._respond(
            connection,
            correlation,
            BeginQuorumEpochResponse(error=error, leader_id=self.leader_id, epoch=self.epoch),
        )

    @abstractmethod
    def _leader_misses_us(self) -> None:
        """The leader we follow lives, and has not heard our Fetches."""

    def _on_end_epoch(
        self, connection: int, correlation: int, request: EndQuorumEpochRequest
    ) -> None:
        """A leader resigns: campaign, each in its turn, the most complete log first."""
        error = self._check_leadership_claim(
            request.cluster_id, None, request.leader_id, request.epoch
        )
        if error is ErrorCode.NONE:
            if request.epoch > self.epoch:
                self._join(request.epoch, request.leader_id, "EndQuorumEpoch of a newer epoch")
            self._leader_resigned(self._turn_ms(request.preferred_candidates))
        self._respond(
            connection,
            correlation,
            EndQuorumEpochResponse(error=error, leader_id=self.leader_id, epoch=self.epoch),
        )

    @abstractmethod
    def _leader_resigned(self, turn_ms: int) -> None:
        """The leader of this epoch leads no more; campaign in `turn_ms`."""

    def _turn_ms(self, candidates: tuple[ReplicaKey, ...]) -> int:
        """How long to let better candidates go first: nothing for the first, then doubling.

        With three candidates behind the first and 1000 ms: 0, 125, 250, 500. Who is not named
        waits longest. A leader that restarted knows no order and names nobody: then whoever draws
        the shortest lot. Source: KIP-595, EndQuorumEpoch (strict exponential back-off by position).
        """
        if not candidates:
            return self._failover_jitter()
        longest_ms = self.config.election_backoff_max_ms
        ids = [key.id for key in candidates]
        if self.node_id not in ids:
            return longest_ms
        position = ids.index(self.node_id)
        if position == 0:
            return 0
        return min((longest_ms >> (len(ids) - 1)) << (position - 1), longest_ms)

    def _failover_jitter(self) -> int:
        return self._random.randrange(self.config.failover_jitter_ms + 1)

    # -- looking for a leader ------------------------------------------------------------------

    def _pump_discovery(self, besides: NodeId | None = None) -> None:
        """Without a leader, ask the voters one at a time who leads: any answer says."""
        others = [peer for peer in self.voters if peer not in (self.node_id, besides)]
        if not self._may_fetch() or any((peer, FetchRequest) in self._slots for peer in others):
            return
        ready = [peer for peer in others if self._may_send(peer, FetchRequest)]
        if ready:
            self._send(self._random.choice(ready), self._fetch_request(max_wait_ms=0))

    @abstractmethod
    def _may_fetch(self) -> bool:
        """Is all of our log flushed?"""

    @abstractmethod
    def _fetch_request(self, max_wait_ms: int) -> FetchRequest:
        """A Fetch from the end of our log, which must be flushed."""
