"""The state that the classes of one quorum member share.

Identity, log and role, composed with the gate, the timers and the requests. `become` is the only
way to another role, and checks that the move is legal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, field
from random import Random

from raft.core import roles
from raft.core.config import QuorumConfig
from raft.core.effects import PeerFault, Transition
from raft.core.gate import Gate
from raft.core.log import LogState
from raft.core.messages import Request
from raft.core.progress import FollowerState, LeaderState, LeaderWatermark
from raft.core.requests import Requests
from raft.core.roles import ElectionState, Role
from raft.core.timers import Timers
from raft.core.voters import ReplicaKey, VoterSet, VoterSetHistory, is_same_replica
from records.kafka_errors import ErrorCode
from records.types import Epoch, NodeId


@dataclass(eq=False)
class Context:
    """The state of one member; each class of the core holds a reference to it."""

    identity: ReplicaKey
    cluster_id: str | None
    voter_history: VoterSetHistory
    log: LogState
    election: InitVar[ElectionState]
    random: Random
    config: QuorumConfig
    recovering: bool
    shutting_down: bool = False
    in_doubt: bool = False  # a fork was found: this member takes no part any more
    follower: FollowerState = field(default_factory=FollowerState)
    leader: LeaderState | None = None
    leader_watermark: LeaderWatermark | None = None  # as a leader last told it
    on_enter: Mapping[type[Role], Callable[[], None]] = field(default_factory=dict)
    """Functions that begin a role and set its timers; complete before `Start`."""
    on_leave: Mapping[type[Role], Callable[[], None]] = field(default_factory=dict)
    """Functions that end a role, if it needs one; `role` is the next one already."""

    def __post_init__(self, election: ElectionState) -> None:
        self.node_id = self.identity.id
        self.note_voters()
        self.gate = Gate(election)
        self.timers = Timers(self.gate)
        self.requests = Requests(self.config, self.gate, self.timers)
        self.role: Role = self.restored_role(election)

    # -- identity ------------------------------------------------------------------------------

    def note_voters(self) -> None:
        """Use the newest voter set in the log from now on, even before it is committed."""
        self.voters: VoterSet = self.voter_history.latest
        self.is_voter: bool = self.voters.is_voter(self.identity)

    @property
    def acknowledges(self) -> bool:
        """Return whether this node's Fetch acknowledges records: it is a voter, on whatever disk.

        No other node becomes a voter while it runs, so another may flush later than it fetches. A
        voter with a new disk does, by a voter set that names the disk.
        """
        return self.node_id in self.voters

    @property
    def can_campaign(self) -> bool:
        """Return whether this node is a voter that is not recovering, shutting down or in doubt."""
        stands_back = self.recovering or self.shutting_down or self.in_doubt
        return self.is_voter and not stands_back

    @property
    def leader_id(self) -> NodeId | None:
        """Return this epoch's leader; None if it is unknown, resigned or not yet serving.

        A leader that resigned is not named, and this node names itself only once its epoch is open:
        before that it would serve no Fetch.
        """
        role = self.role
        if isinstance(role, roles.Leader):
            return self.node_id if self.leader is not None and self.leader.is_open else None
        if isinstance(role, roles.Follower | roles.Prospective):
            return role.leader_id
        return None

    @property
    def election_state(self) -> ElectionState:
        """Return the epoch, leader and vote of the present role, which must survive a crash."""
        role = self.role
        match role:
            case roles.Unattached():
                return ElectionState(epoch=role.epoch, voted=role.voted)
            case roles.Prospective() | roles.Follower():
                return ElectionState(epoch=role.epoch, leader_id=role.leader_id, voted=role.voted)
            case roles.Candidate():
                return ElectionState(epoch=role.epoch, voted=self.identity)
            case roles.Leader() | roles.Resigned():
                return ElectionState(epoch=role.epoch, leader_id=self.node_id, voted=self.identity)

    def restored_role(self, election: ElectionState) -> Role:
        """Return the role that a node starts in, from its election state and log.

        A former leader is Resigned: other nodes may know offsets of its epoch that its disk never
        saw. A former candidate waits for the next epoch: votes for it may still be under way. A log
        or snapshot newer than the election state says that an epoch began, and no more.
        """
        seen = self.log.last_epoch
        if self.log.snapshot_id is not None:
            seen = max(seen, self.log.snapshot_id.epoch)
        if seen > election.epoch:
            return roles.Unattached(epoch=seen)
        leader_id = election.leader_id
        if leader_id == self.node_id:
            if self.can_campaign:
                return roles.Resigned(epoch=election.epoch, preferred_candidates=())
            return roles.Unattached(epoch=election.epoch, voted=election.voted)
        if leader_id is not None and leader_id in self.voters:
            return roles.Follower(epoch=election.epoch, leader_id=leader_id, voted=election.voted)
        return roles.Unattached(epoch=election.epoch, voted=election.voted)

    # -- moving between states -----------------------------------------------------------------

    def become(self, new: Role, reason: str) -> None:
        """Change the role, and assert that the transition table allows the change."""
        old = self.role
        table = roles.NEXT if self.is_voter and not self.recovering else roles.OBSERVER_NEXT
        assert type(new) in table.get(type(old), ()), f"illegal transition: {old} -> {new}"
        assert new.epoch >= old.epoch, f"epoch went backwards: {old} -> {new}"
        self.role = new
        self.gate.emit(Transition(old, new, reason))
        self.requests.abandon_all()
        self.timers.deadlines.clear()
        self.note_election_state()
        leave = self.on_leave.get(type(old))
        if leave is not None:
            leave()
        self.on_enter[type(new)]()
        self.requests.send_due = True

    def update(self, new: Role) -> None:
        """Replace the role by an updated role of the same class and epoch, as after a vote."""
        assert type(new) is type(self.role), f"not an update: {self.role} -> {new}"
        assert new.epoch == self.role.epoch, f"not an update: {self.role} -> {new}"
        self.role = new
        self.note_election_state()

    def note_election_state(self) -> None:
        """Hold back outgoing messages until the changed election state is durable on disk."""
        if self.election_state != self.gate.election:
            self.gate.close()

    # -- peers ---------------------------------------------------------------------------------

    def fault(self, peer: NodeId | None, reason: str, delayed: type[Request] | None = None) -> None:
        """Report that a peer violated the protocol, and delay `delayed` requests to that peer.

        Args:  delayed: requests of this kind to it are repeated only after the longest back-off.
        """
        self.gate.emit(PeerFault(peer, reason))
        if peer is not None and delayed is not None:
            self.requests.retry_later(peer, delayed, self.config.retry_backoff_max_ms)

    def on_other_cluster(self, peer: NodeId, kind: type[Request]) -> None:
        """Report a peer with another cluster id, and delay requests of this kind to that peer."""
        self.fault(peer, f"is of another cluster: ours is {self.cluster_id}", kind)

    def check_addressee(self, cluster_id: str | None, voter: ReplicaKey | None) -> ErrorCode:
        """Return the error of a request meant for another cluster, node or disk, or else NONE."""
        if None not in (cluster_id, self.cluster_id) and cluster_id != self.cluster_id:
            return ErrorCode.INCONSISTENT_CLUSTER_ID
        if voter is not None and not is_same_replica(voter, self.identity):
            return ErrorCode.INVALID_VOTER_KEY
        return ErrorCode.NONE

    @property
    def epoch(self) -> Epoch:
        """Return the epoch that this node is in."""
        return self.role.epoch
