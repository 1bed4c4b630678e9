"""The sans-I/O core of the quorum: events in, effects out.

A `Quorum` is one member of one replicated partition. It has no clock, socket, file, thread or
random source of its own: `step(event, now_ms)` returns what the driver must do. Begin with `events`
(what a driver owes the core), then `effects`, `roles` (the six states and their moves) and
`quorum`, whose docstring lists the classes of the protocol; `docs/quorum.md` describes all of it.

    >>> from random import Random
    >>> from raft.core.events import Start, Tick, ElectionStateDurable, AppendDurable
    >>> alone = Quorum(
    ...     identity=ReplicaKey(NodeId(1)), cluster_id=None,
    ...     voters=VoterSetHistory(VoterSet.of_ids(1)), log=LogState(),
    ...     election=ElectionState(epoch=Epoch(0)), random=Random(1))
    >>> for effect in alone.step(Start(), 0): print(type(effect).__name__)
    Transition
    SetTimer
    >>> [type(effect).__name__ for effect in alone.step(Tick(), 0)][-1]
    'PersistElectionState'
    >>> _ = alone.step(ElectionStateDurable(1), 1)  # its own vote counts
    >>> _ = alone.step(ElectionStateDurable(2), 2)  # it leads, and appends its first record
    >>> [type(effect).__name__ for effect in alone.step(AppendDurable(Offset(1), 0), 3)]
    ['Committed', 'Lead']
"""

from raft.core.config import QuorumConfig
from raft.core.log import EpochStart, LogState
from raft.core.quorum import Quorum
from raft.core.roles import ElectionState
from raft.core.voters import Endpoint, ReplicaKey, Voter, VoterSet, VoterSetHistory
from records.kafka_errors import ErrorCode
from records.types import Epoch, NodeId, Offset

__all__ = [
    "ElectionState",
    "Endpoint",
    "Epoch",
    "EpochStart",
    "ErrorCode",
    "LogState",
    "NodeId",
    "Offset",
    "Quorum",
    "QuorumConfig",
    "ReplicaKey",
    "Voter",
    "VoterSet",
    "VoterSetHistory",
]
