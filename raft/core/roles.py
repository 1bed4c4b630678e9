"""The six states of a quorum member, and the legal moves between them as data.

One class per state: a follower counts no votes, so it has no field for them. What a state must
remember through a crash is its `ElectionState`: an epoch, the leader known in it, the vote given in
it. A role is immutable; a vote counted is a new value of the same class, which is no transition.

Surprises. *Voted* is no state: it is a field. *Prospective* (pre-vote) does not touch the epoch, so
a node that cannot hear the leader disturbs nobody. *Resigned* is the state a leader restarts in: it
may have handed out offsets of its epoch that its disk never saw, and must not use them twice.

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
    """What survives a crash. `leader_id` and `voted` belong to `epoch`. Source: QuorumStateData."""

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
    """Asks whether it would win an election; campaigns once a majority says so. Source: KIP-996."""

    epoch: Epoch
    voted: ReplicaKey | None
    leader_id: NodeId | None  # the leader of this epoch that we lost; any sign of it brings us back
    granted: frozenset[NodeId]
    rejected: frozenset[NodeId]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Asking for votes in `epoch`; leads once a majority of voters, itself included, granted.

    Its own vote counts, and the others are asked, only once that vote is durable.
    """

    epoch: Epoch
    granted: frozenset[NodeId]
    rejected: frozenset[NodeId]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """Won `epoch`; appends nothing and tells nobody until that is durable."""

    epoch: Epoch
    granted: frozenset[NodeId]  # who voted for it; written into the LeaderChange record


@dataclass(frozen=True, slots=True, kw_only=True)
class Follower:
    """Fetches from the leader of `epoch`."""

    epoch: Epoch
    leader_id: NodeId
    voted: ReplicaKey | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resigned:
    """Led `epoch` and will not any more: after a restart, a request, or losing its majority."""

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
"""Where a voter may go from each state."""

OBSERVER_NEXT: Final[dict[type[Role], frozenset[type[Role]]]] = {
    Unattached: frozenset({Unattached, Follower}),
    Follower: frozenset({Unattached, Follower}),
}
"""Where an observer, or a voter that is recovering from a lost disk, may go."""
