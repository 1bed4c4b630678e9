"""Voter sets as data, each in force from an offset on.

A voter is a node *and* its disk: `(id, directory id)`. A node whose disk was replaced has the
same id but none of its promises, and must not be taken for the node that promised its vote. Under
kraft.version 0 voters come from configuration and their directory ids are unknown, so an unknown
directory id matches any.

The set is versioned: the set in force at an offset is the last one written at or before it, and
truncating the log undoes the sets that were cut. Today the history has one entry, from
configuration; changing voters at run time (KIP-853) adds entries and changes nothing else.

Source: KIP-595 (static voters); KIP-853, Key Terms (replica key, voter set).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from records.types import ZERO_UUID, NodeId, Offset


class ReplicaKey(NamedTuple):
    """A node and its disk; `ZERO_UUID` stands for an unknown directory id."""

    id: NodeId
    directory_id: UUID = ZERO_UUID


class Endpoint(NamedTuple):
    """Address at which a voter listens; the host is resolved again at every connect."""

    listener: str
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Voter:
    """A member of a voter set. Source: KIP-853, VotersRecord."""

    key: ReplicaKey
    endpoints: tuple[Endpoint, ...] = ()


class VoterSet:
    """The voters in force over some range of the log; immutable, iterated in order of id.

    >>> three = VoterSet.of_ids(3, 1, 2)
    >>> [int(v) for v in three], three.majority, 4 in three
    ([1, 2, 3], 2, False)
    """

    __slots__ = ("_voters", "ids", "majority")

    def __init__(self, voters: Iterable[Voter]) -> None:
        ordered = sorted(voters, key=lambda voter: voter.key.id)
        self._voters = {voter.key.id: voter for voter in ordered}
        if len(self._voters) != len(ordered) or not ordered:
            raise ValueError(f"a voter set needs voters, each id once: {ordered}")
        self.ids: tuple[NodeId, ...] = tuple(self._voters)
        self.majority: int = len(self.ids) // 2 + 1

    @classmethod
    def of_ids(cls, *ids: int) -> VoterSet:
        """Create a static voter set of node ids, without directory ids or endpoints."""
        return cls(Voter(key=ReplicaKey(NodeId(node_id))) for node_id in ids)

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._voters

    def __iter__(self) -> Iterator[NodeId]:
        return iter(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VoterSet) and self._voters == other._voters

    def __hash__(self) -> int:
        return hash(self.ids)

    def __repr__(self) -> str:
        return f"VoterSet{self.ids}"

    def voter(self, node_id: NodeId) -> Voter:
        """Return the voter with this node id.

        Raises: KeyError if there is none.
        """
        return self._voters[node_id]

    def is_voter(self, key: ReplicaKey) -> bool:
        """Return whether a voter has the node id of `key`, and a directory id that matches.

        An unknown directory id matches any.
        """
        voter = self._voters.get(key.id)
        return voter is not None and is_same_replica(voter.key, key)


def is_same_replica(one: ReplicaKey, other: ReplicaKey) -> bool:
    """Return whether two replica keys can mean the same node and disk.

    A directory id of `ZERO_UUID` is unknown, and matches any.

    >>> is_same_replica(ReplicaKey(NodeId(1), UUID(int=7)), ReplicaKey(NodeId(1)))
    True
    >>> is_same_replica(ReplicaKey(NodeId(1), UUID(int=7)), ReplicaKey(NodeId(1), UUID(int=8)))
    False
    """
    one_disk, other_disk = one.directory_id, other.directory_id
    return one.id == other.id and (ZERO_UUID in (one_disk, other_disk) or one_disk == other_disk)


class VoterSetHistory:
    """Voter sets by the offset of the record that wrote them; the newest in the log is in force.

    A set counts as soon as its record is appended, committed or not, as upstream has it.

    >>> history = VoterSetHistory(VoterSet.of_ids(1))
    >>> history.append(Offset(10), VoterSet.of_ids(1, 2, 3))
    >>> history.at(Offset(9)), history.latest
    (VoterSet(1,), VoterSet(1, 2, 3))
    >>> history.truncate(Offset(10)); history.latest
    VoterSet(1,)
    """

    __slots__ = ("_offsets", "_sets", "latest")

    def __init__(self, configured: VoterSet) -> None:
        self._offsets: list[int] = [-1]  # before every record
        self._sets: list[VoterSet] = [configured]
        self.latest: VoterSet = configured

    def append(self, offset: Offset, voters: VoterSet) -> None:
        """Record that the voter set was appended to the log at `offset`."""
        assert offset > self._offsets[-1], f"voter sets out of order: {offset}, {self._offsets}"
        self._offsets.append(offset)
        self._sets.append(voters)
        self.latest = voters

    def at(self, offset: Offset) -> VoterSet:
        """Return the voter set in force for the record at `offset`."""
        return self._sets[bisect_right(self._offsets, offset) - 1]

    def truncate(self, end_offset: Offset) -> None:
        """Remove the voter sets that were written at or after `end_offset`."""
        while self._offsets[-1] >= end_offset:
            self._offsets.pop()
            self._sets.pop()
        self.latest = self._sets[-1]


def majority_offset(end_offsets: Mapping[NodeId, Offset]) -> Offset:
    """Return the highest exclusive end offset that a majority of voters have reached.

    57 covers 0..56.

    Args:    end_offsets: one entry per voter, the leader included.
    Raises:  ValueError if there are no voters.
    Source:  KIP-595, Key Concepts (high watermark).

    >>> majority_offset({NodeId(1): Offset(57), NodeId(2): Offset(60), NodeId(3): Offset(12)})
    57
    """
    if not end_offsets:
        raise ValueError("a majority of no voters")
    ordered = sorted(end_offsets.values(), reverse=True)
    return ordered[len(ordered) // 2]
