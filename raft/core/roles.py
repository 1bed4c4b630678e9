"""The six states of a quorum member, and the legal moves between them as data.

One class per state: a follower counts no votes, so it has no field for them. The part of a state
that must survive a crash is its `ElectionState`: an epoch, the leader known in it, the vote given
in it. A role is immutable; counting a vote makes a new value of the same class: no transition.

Three things to know. *Voted* is no state: it is a field. *Prospective* (pre-vote) leaves the epoch
alone, so a node that cannot hear the leader disturbs no other. *Resigned* is the state a leader
restarts in: it may have handed out offsets of its epoch that its disk never saw, and must not use
them twice.

Source: KIP-595, State Machine; KIP-996, Prospective; reference behaviour of Apache Kafka 4.x. Two
differences from it: a restarted candidate is Unattached, since campaigning twice in one epoch would
count votes given to its former self; and a node that lost a leader's connection may ask for
pre-votes before its fetch timeout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from raft.core.voters import ReplicaKey
from records.types import Epoch, NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionState:
    """The part of a role that survives a crash; `leader_id` and `voted` belong to `epoch`.

    Source: QuorumStateData.
    """

    epoch: Epoch
    leader_id: NodeId | None = None
    voted: ReplicaKey | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unattached:
    """Knows the epoch but no leader; may have voted. Looks for a leader, then campaigns."""

    epoch: Epoch
    voted: ReplicaKey | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospective:
    """Asks whether it would win an election; campaigns once a majority grants a pre-vote.

    Source: KIP-996.
    """

    epoch: Epoch
    voted: ReplicaKey | None
    leader_id: NodeId | None  # the lost leader of this epoch; any sign of it ends the pre-vote
    granted: frozenset[NodeId]
    rejected: frozenset[NodeId]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Asks for votes in `epoch`; leads once a majority of voters, itself included, granted.

    Its own vote counts, and the others are asked, only once that vote is durable.
    """

    epoch: Epoch
    granted: frozenset[NodeId]
    rejected: frozenset[NodeId]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """Won `epoch`; appends and announces nothing until that is durable."""

    epoch: Epoch
    granted: frozenset[NodeId]  # its voters; written into the LeaderChange record


@dataclass(frozen=True, slots=True, kw_only=True)
class Follower:
    """Fetches from the leader of `epoch`."""

    epoch: Epoch
    leader_id: NodeId
    voted: ReplicaKey | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resigned:
    """Led `epoch` and leads no longer: after a restart, a request, or losing its majority."""

    epoch: Epoch
    preferred_candidates: tuple[ReplicaKey, ...]  # most complete log first; empty after a restart


Role: TypeAlias = Unattached | Prospective | Candidate | Leader | Follower | Resigned

NEXT: Final[dict[type[Role], frozenset[type[Role]]]] = {
    Unattached: frozenset({Unattached, Prospective, Follower}),
    Prospective: frozenset({Unattached, Candidate, Follower}),
    Candidate: frozenset({Unattached, Prospective, Leader, Follower}),
    Leader: frozenset({Unattached, Follower, Resigned}),
    Follower: frozenset({Unattached, Prospective, Follower}),
    Resigned: frozenset({Unattached, Follower}),
}
"""The roles that a voter may take next, by its present role."""

OBSERVER_NEXT: Final[dict[type[Role], frozenset[type[Role]]]] = {
    Unattached: frozenset({Unattached, Follower}),
    Follower: frozenset({Unattached, Follower}),
}
"""The same for an observer, or for a voter that is recovering from a lost disk."""
