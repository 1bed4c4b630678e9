"""What every part of the core shares: identity, log, role, timers, requests, and the gate.

**The gate.** While the election state of the present role is not on disk, nothing is sent and
nobody is answered: what is to be sent waits in order and leaves when the disk reports. So no vote,
no epoch and no leader is ever known to others that a crash could take back (invariants 1 and 11,
docs/design/invariants.md), and the parts that decide need not think of it. What must not even
*happen* before (a candidate counting its own vote, a leader's first append) hangs on
`ElectionStateDurable` itself.

**Timers** are named deadlines; the driver holds one timer, armed at the earliest. A deadline that
moves back costs nothing: the tick comes early and the timer is armed again.

**Requests** are derived from state: after each step that may have changed something, `_pump` asks
what the role wants of each peer, and sends what is neither outstanding nor backing off. Losing a
request or an answer therefore never loses the intent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import IntEnum, unique
from random import Random
from typing import Final, NamedTuple

from raft.core.config import QuorumConfig
from raft.core.effects import (
    Effect,
    PeerFault,
    PersistElectionState,
    Reconnect,
    Respond,
    RespondFetch,
    Send,
    ServeSnapshot,
    SetTimer,
    Transition,
)
from raft.core.errors import ErrorCode
from raft.core.log import LogState
from raft.core.messages import FetchRequest, Request, Response
from raft.core.progress import FollowerBook, LeaderBook
from raft.core.roles import (
    NEXT,
    OBSERVER_NEXT,
    Candidate,
    ElectionState,
    Follower,
    Leader,
    Prospective,
    Resigned,
    Role,
    Unattached,
)
from raft.core.voters import ReplicaKey, VoterSet, VoterSetHistory, same_replica
from records.types import Epoch, NodeId, Offset

NEVER: Final = 2**63 - 1
"""A time that does not come."""


MAX_HELD: Final = 1000
"""So much may wait for the disk; what comes then is lost as on a network, and asked again."""


@unique
class Timer(IntEnum):
    """What a deadline is for. (An int, since its hash is on the hot path.)"""

    ELECTION = 1  # the role has had its time: campaign, or give up campaigning
    FETCH = 2  # no successful Fetch from the leader for too long
    SILENCE = 3  # the connection to the leader is lost and it has not been heard of since
    FAILOVER = 4  # the leader is taken for dead, but somebody else may be quicker
    PRE_VOTE = 5  # ask those again who have not granted
    BEGIN = 6  # look for voters that do not fetch
    CHECK_QUORUM = 7  # a majority may have been silent for too long
    PARKED = 8  # a Fetch has waited long enough
    REQUESTS = 9  # a request expires or may be repeated


class Outstanding(NamedTuple):
    """A request on its way."""

    peer: NodeId
    request: Request
    sent_ms: int
    expires_ms: int


class Told(NamedTuple):
    """A leader's word on how far its log is committed, and since when it has held at the latest.

    What was committed by `at_ms` is below `high_watermark`. It is the time at which the question
    left, not that of the answer: an answer may lie unread for as long as a process stands still.
    """

    high_watermark: Offset
    at_ms: int


class QuorumBase(ABC):
    """State and helpers; `raft.core.quorum.Quorum` is the whole."""

    def __init__(
        self,
        *,
        identity: ReplicaKey,
        cluster_id: str | None,
        voters: VoterSetHistory,
        log: LogState,
        election: ElectionState,
        random: Random,
        config: QuorumConfig | None = None,
        recovering: bool = False,
    ) -> None:
        """A member as it was when it stopped; `Start` makes it move.

        Args:    identity: this node and its disk.
                 cluster_id: requests that name another are refused; None accepts any.
                 log, election, recovering: as found on disk after recovery.
                 random: the only source of chance; not shared with anyone.
        """
        self.node_id = identity.id
        self.identity = identity
        self.cluster_id = cluster_id
        self.config = config or QuorumConfig()
        self.voter_history = voters
        self.voters: VoterSet = voters.latest
        self.is_voter: bool = self.voters.is_voter(identity)
        self.log = log
        self.recovering = recovering
        self._asked_around: set[NodeId] = set()  # recovering: who told us its epoch since we began
        self.shutting_down = False
        self._random = random
        self._effects: list[Effect] = []
        self._held: list[Effect] = []
        self._now_ms = 0
        # Election state: newest asked to be written, and whether it is on its way to the disk.
        self._election = election
        self._sequence = 0
        self._durable_sequence = 0
        self._persisting = False
        self._persist_due = False
        # Timers and requests.
        self._deadlines: dict[Timer, int] = {}
        self._armed_ms = NEVER
        self._request_id = 0
        self._outstanding: dict[int, Outstanding] = {}
        self._slots: dict[tuple[NodeId, type[Request]], int] = {}
        self._retry_at: dict[tuple[NodeId, type[Request]], int] = {}
        self._failures: dict[NodeId, int] = {}
        self._dangling: dict[NodeId, int] = {}  # Fetches forgotten, maybe still to be answered
        self._pump_due = False
        # What the role keeps accounts of.
        self._following = FollowerBook()
        self._told: Told | None = None  # by a leader, last
        self._leading: LeaderBook | None = None
        self._ended_at: frozenset[NodeId] = frozenset()  # as Resigned: who knows that we are
        self.role: Role = self._restored_role(election)

    # -- who we are ----------------------------------------------------------------------------

    @property
    def epoch(self) -> Epoch:
        """The epoch this node is in."""
        return self.role.epoch

    def _note_voters(self) -> None:
        """The newest voter set in the log may be another one now: it is in force at once."""
        self.voters = self.voter_history.latest
        self.is_voter = self.voters.is_voter(self.identity)

    @property
    def may_campaign(self) -> bool:
        """Voters campaign, unless their disk was lost or they are leaving."""
        return self.is_voter and not self.recovering and not self.shutting_down

    @property
    def leader_id(self) -> NodeId | None:
        """The leader of this epoch as far as we may tell.

        Not one that resigned, nor ourselves before our epoch is open: we would serve no Fetch yet.
        """
        role = self.role
        if isinstance(role, Leader):
            return self.node_id if self._leading is not None and self._leading.opened else None
        if isinstance(role, Follower | Prospective):
            return role.leader_id
        return None

    @property
    def election_state(self) -> ElectionState:
        """What must survive a crash, given the present role."""
        role = self.role
        match role:
            case Unattached(epoch=epoch, voted=voted):
                return ElectionState(epoch=epoch, voted=voted)
            case Prospective(epoch=epoch, leader_id=leader_id, voted=voted):
                return ElectionState(epoch=epoch, leader_id=leader_id, voted=voted)
            case Follower(epoch=epoch, leader_id=leader_id, voted=voted):
                return ElectionState(epoch=epoch, leader_id=leader_id, voted=voted)
            case Candidate(epoch=epoch):
                return ElectionState(epoch=epoch, voted=self.identity)
            case Leader(epoch=epoch) | Resigned(epoch=epoch):
                return ElectionState(epoch=epoch, leader_id=self.node_id, voted=self.identity)

    def _restored_role(self, election: ElectionState) -> Role:
        """The state a node starts in, from what its disk says.

        A former leader resigned: offsets of its epoch may be out that its disk never saw. A former
        candidate waits for the next epoch: votes for its former self may still be under way. A log
        or snapshot newer than the election state says that an epoch began, and no more.
        """
        seen = self.log.last_epoch
        if self.log.snapshot_id is not None:
            seen = max(seen, self.log.snapshot_id.epoch)
        if seen > election.epoch:
            return Unattached(epoch=seen)
        leader_id = election.leader_id
        if leader_id == self.node_id:
            if self.may_campaign:
                return Resigned(epoch=election.epoch, preferred_candidates=())
            return Unattached(epoch=election.epoch, voted=election.voted)
        if leader_id is not None and leader_id in self.voters:
            return Follower(epoch=election.epoch, leader_id=leader_id, voted=election.voted)
        return Unattached(epoch=election.epoch, voted=election.voted)

    # -- moving between states -----------------------------------------------------------------

    def _become(self, new: Role, reason: str) -> None:
        """Change the role: the only place where that happens."""
        old = self.role
        table = NEXT if self.is_voter and not self.recovering else OBSERVER_NEXT
        assert type(new) in table.get(type(old), ()), f"illegal transition: {old} -> {new}"
        assert new.epoch >= old.epoch, f"epoch went backwards: {old} -> {new}"
        self.role = new
        self._effects.append(Transition(old, new, reason))
        self._forget_requests()
        self._deadlines.clear()
        self._note_election_state()
        self._left(old)
        self._entered()
        self._pump_due = True

    def _update(self, new: Role) -> None:
        """Replace the role by one of the same class and epoch: something in it was counted."""
        assert type(new) is type(self.role), f"not an update: {self.role} -> {new}"
        assert new.epoch == self.role.epoch, f"not an update: {self.role} -> {new}"
        self.role = new
        self._note_election_state()

    @abstractmethod
    def _left(self, old: Role) -> None:
        """Clean up after `old`; `self.role` is already the new one."""

    @abstractmethod
    def _entered(self) -> None:
        """Begin the life of the role we now have: set its timers."""

    def _note_election_state(self) -> None:
        """If what must survive a crash changed, close the gate; the step's end asks to write it."""
        if self.election_state != self._election:
            self._persist_due = True
            self._persisting = self._must_wait()

    def _must_wait(self) -> bool:
        """Does anything wait for the election state to be durable? Everything does."""
        return True

    def _emit_persist(self) -> None:
        """At the end of a step: ask for the state the step arrived at, not for those it passed."""
        self._persist_due = False
        state = self.election_state
        if state != self._election:
            self._election = state
            self._sequence += 1
            self._effects.append(PersistElectionState(self._sequence, state))
        elif self._durable_sequence == self._sequence:  # it came back to what the disk has
            self._open_gate()

    # -- the gate ------------------------------------------------------------------------------

    def _out(self, effect: Send | Respond | RespondFetch | ServeSnapshot | Reconnect) -> None:
        """Say something to somebody, as soon as the election state allows."""
        if self._persisting:
            if len(self._held) < MAX_HELD:
                self._held.append(effect)
        else:
            self._effects.append(effect)

    def _open_gate(self) -> None:
        """The election state is durable: let out what waited and still makes sense."""
        self._persisting = False
        held, self._held = self._held, []
        for effect in held:
            if isinstance(effect, Send) and effect.request_id not in self._outstanding:
                continue  # of a role we no longer have
            self._effects.append(effect)

    def _respond(self, connection: int, correlation: int, response: Response) -> None:
        self._out(Respond(connection, correlation, response))

    def _fault(self, peer: NodeId | None, reason: str) -> None:
        """A peer broke the protocol; it is logged, and what it said has no effect."""
        self._effects.append(PeerFault(peer, reason))

    # -- timers --------------------------------------------------------------------------------

    def _set(self, timer: Timer, at_ms: int) -> None:
        self._deadlines[timer] = at_ms
        if at_ms < self._armed_ms:
            self._armed_ms = at_ms
            self._effects.append(SetTimer(at_ms))

    def _clear(self, *timers: Timer) -> None:
        for timer in timers:
            self._deadlines.pop(timer, None)

    def _rearm(self) -> None:
        """After a tick the driver has no timer: arm it at the earliest deadline."""
        self._armed_ms = min(self._deadlines.values(), default=NEVER)
        if self._armed_ms != NEVER:
            self._effects.append(SetTimer(self._armed_ms))

    def _election_deadline(self) -> int:
        """T + uniform [0, T): so that voters seldom campaign at the same time."""
        timeout_ms = self.config.election_timeout_ms
        return self._now_ms + timeout_ms + self._random.randrange(timeout_ms)

    # -- requests ------------------------------------------------------------------------------

    def _may_send(self, peer: NodeId, kind: type[Request]) -> bool:
        """Nothing of this kind is outstanding to the peer, and it is not being spared."""
        slot = (peer, kind)
        return slot not in self._slots and self._retry_at.get(slot, 0) <= self._now_ms

    def _send(self, peer: NodeId, request: Request) -> None:
        slot = (peer, type(request))
        assert slot not in self._slots, f"two {slot} at once"
        if isinstance(request, FetchRequest) and self._dangling.pop(peer, None) is not None:
            # An unanswered Fetch is still out on that connection: the next one needs a new one, or
            # the leader could take it for news of us. See `raft.core.events`, rule 7.
            self._out(Reconnect(peer))
        self._request_id += 1
        self._slots[slot] = self._request_id
        self._retry_at.pop(slot, None)
        expires_ms = self._now_ms + self.config.request_timeout_ms
        outstanding = Outstanding(peer, request, self._now_ms, expires_ms)
        self._outstanding[self._request_id] = outstanding
        self._arm_requests(expires_ms)
        self._out(Send(peer, self._request_id, request))

    def _arm_requests(self, at_ms: int) -> None:
        if at_ms < self._deadlines.get(Timer.REQUESTS, NEVER):
            self._set(Timer.REQUESTS, at_ms)

    def _settle(self, request_id: int) -> Outstanding | None:
        """A request is over, answered or failed; None if we had given it up before."""
        outstanding = self._outstanding.pop(request_id, None)
        if outstanding is None:
            for peer, dangling_id in self._dangling.items():
                if dangling_id == request_id:
                    del self._dangling[peer]
                    break
            return None
        del self._slots[outstanding.peer, type(outstanding.request)]
        self._pump_due = True
        return outstanding

    def _give_up(self, request_id: int) -> Outstanding:
        """Wait for this answer no longer."""
        outstanding = self._outstanding.pop(request_id)
        del self._slots[outstanding.peer, type(outstanding.request)]
        if isinstance(outstanding.request, FetchRequest):
            self._dangling[outstanding.peer] = request_id
        return outstanding

    def _forget_requests(self) -> None:
        """A new role wants other things; back-off is kept, since the peers are the same."""
        for request_id in tuple(self._outstanding):
            self._give_up(request_id)

    def _back_off(self, peer: NodeId, kind: type[Request], longest_ms: int | None = None) -> None:
        """Spare a peer that failed: twice as long for each failure in a row, to a limit."""
        failures = self._failures.get(peer, 0)
        self._failures[peer] = min(failures + 1, 20)
        limit_ms = longest_ms or self.config.retry_backoff_max_ms
        self._retry_later(peer, kind, min(self.config.retry_backoff_ms << failures, limit_ms))

    def _retry_later(self, peer: NodeId, kind: type[Request], wait_ms: int | None = None) -> None:
        """A peer answered, but not what we hoped for: ask again after a short pause."""
        at_ms = self._now_ms + (self.config.retry_backoff_ms if wait_ms is None else wait_ms)
        self._retry_at[peer, kind] = at_ms
        self._arm_requests(at_ms)

    def _foreign(self, peer: NodeId, kind: type[Request]) -> None:
        """It says that we are of another cluster: that is all it can teach us."""
        self._fault(peer, f"is of another cluster: ours is {self.cluster_id}")
        self._retry_later(peer, kind, self.config.retry_backoff_max_ms)

    def _heard_from(self, peer: NodeId) -> None:
        """A peer lives: no need to spare it."""
        if self._failures.pop(peer, None) is not None:
            for slot in [slot for slot in self._retry_at if slot[0] == peer]:
                del self._retry_at[slot]
            self._pump_due = True

    def _on_requests_due(self) -> None:
        """Give up requests that got no answer, and see when to look again."""
        now_ms = self._now_ms
        for request_id, outstanding in tuple(self._outstanding.items()):
            if outstanding.expires_ms <= now_ms:
                self._give_up(request_id)
                self._back_off(outstanding.peer, type(outstanding.request))
        expiries = [outstanding.expires_ms for outstanding in self._outstanding.values()]
        retries = [at_ms for at_ms in self._retry_at.values() if at_ms > now_ms]
        next_ms = min(expiries + retries, default=NEVER)
        if next_ms != NEVER:
            self._set(Timer.REQUESTS, next_ms)
        self._pump_due = True

    # -- answering -----------------------------------------------------------------------------

    def _check_addressee(self, cluster_id: str | None, voter: ReplicaKey | None) -> ErrorCode:
        """Is the request meant for this cluster, node and disk?"""
        if None not in (cluster_id, self.cluster_id) and cluster_id != self.cluster_id:
            return ErrorCode.INCONSISTENT_CLUSTER_ID
        if voter is not None and not same_replica(voter, self.identity):
            return ErrorCode.INVALID_VOTER_KEY
        return ErrorCode.NONE
