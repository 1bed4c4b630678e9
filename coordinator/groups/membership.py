"""The members of a group and the protocol they agree on: plain data without timers.

A protocol can be chosen only if every member offers it; each member votes for the first such
protocol on its own list, and the one with the most votes wins. The number of members that offer a
protocol is kept up to date, so that a join does not walk over all members.

Source: KIP-62; KIP-345 (static members); upstream's ClassicGroup.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from coordinator.groups.events import InboundRequest
from records.groups import GroupGenerationRecord


class State(Enum):
    """A group's state in its rebalance; the values are the names in DescribeGroups."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"  # members join
    COMPLETING = "CompletingRebalance"  # the leader assigns, and the log commits
    STABLE = "Stable"


NEXT: Final = {
    State.EMPTY: {State.PREPARING},
    State.PREPARING: {State.COMPLETING, State.EMPTY},
    State.COMPLETING: {State.PREPARING, State.STABLE},
    State.STABLE: {State.PREPARING},
}

Protocols = tuple[tuple[str, bytes], ...]
"""Names and subscriptions, in the member's order of preference."""


@dataclass(slots=True, kw_only=True)
class Member:
    """One member, with at most one JoinGroup and one SyncGroup waiting."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    waiting_join: InboundRequest | None = None
    waiting_sync: InboundRequest | None = None
    is_new: bool = True  # it has completed no join phase yet

    def subscription(self, protocol: str | None) -> bytes:
        """Return the member's metadata for a protocol, or b"" if the member does not offer it."""
        return next((data for name, data in self.protocols if name == protocol), b"")


@dataclass(slots=True)
class Membership:
    """The members of a group, its static member ids, its leader and the protocols offered."""

    members: dict[str, Member] = field(default_factory=dict)  # oldest first
    static: dict[str, str] = field(default_factory=dict)  # instance id -> member id
    pending: set[str] = field(default_factory=set)  # assigned ids (KIP-394) that have not joined
    leader: str | None = None
    waiting_joins: int = 0  # members whose JoinGroup waits
    size_bytes: int = 0  # of all offered protocols
    _offers: Counter[str] = field(default_factory=Counter)

    def add(self, member: Member) -> None:
        """Add a member; the first member of a consumer group becomes the leader."""
        assert member.member_id not in self.members, f"added twice: {member}"
        self.members[member.member_id] = member
        self.pending.discard(member.member_id)
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self.waiting_joins += member.waiting_join is not None
        self._offer(member.protocols)

    def remove(self, member_id: str) -> Member:
        """Remove a member and return it; the oldest other member succeeds a removed leader."""
        member = self.members.pop(member_id)
        if member.instance_id is not None and self.static.get(member.instance_id) == member_id:
            del self.static[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.waiting_joins -= member.waiting_join is not None
        self._withdraw(member.protocols)
        return member

    def rename(self, old_id: str, new_id: str) -> Member:
        """Replace a static member's id by a new member id."""
        member = self.members.pop(old_id)
        assert member.instance_id is not None, f"not static: {member}"
        member.member_id = new_id
        self.members[new_id] = member
        self.static[member.instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        return member

    def set_protocols(self, member: Member, protocols: Protocols) -> None:
        """Replace the protocols that a member offers."""
        self._withdraw(member.protocols)
        member.protocols = protocols
        self._offer(protocols)

    def set_waiting_join(
        self, member: Member, inbound: InboundRequest | None
    ) -> InboundRequest | None:
        """Set the JoinGroup request that a member waits with, and return the previous request."""
        before, member.waiting_join = member.waiting_join, inbound
        self.waiting_joins += (inbound is not None) - (before is not None)
        return before

    def _offer(self, protocols: Protocols) -> None:
        self._offers.update(name for name, _ in protocols)
        self.size_bytes += offered_bytes(protocols)

    def _withdraw(self, protocols: Protocols) -> None:
        self.size_bytes -= offered_bytes(protocols)
        for name, _ in protocols:
            self._offers[name] -= 1
            if not self._offers[name]:
                del self._offers[name]

    def elect_joined_leader(self) -> bool:
        """Make a member with a waiting JoinGroup the leader; return False without such a member."""
        leader = self.members.get(self.leader or "")
        if leader is not None and leader.waiting_join is not None:
            return True
        for member in self.members.values():
            if member.waiting_join is not None:
                self.leader = member.member_id
                return True
        return False

    def has_common_protocol(self, names: Iterable[str]) -> bool:
        """Return whether all members offer one of these protocols."""
        return any(self._offers[name] == len(self.members) for name in names)

    def select_protocol(self) -> str:
        """Return the protocol with the most votes among protocols that every member supports."""
        size = len(self.members)
        candidates = {name for name, count in self._offers.items() if count == size}
        votes: Counter[str] = Counter()
        for member in self.members.values():
            votes[next(name for name, _ in member.protocols if name in candidates)] += 1
        return max(votes.items(), key=lambda item: (item[1], item[0]))[0]

    @property
    def rebalance_timeout_ms(self) -> int:
        """Return the longest rebalance timeout of any member in ms."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def to_records(
        self, protocol: str | None, assignments: dict[str, bytes]
    ) -> tuple[GroupGenerationRecord.Member, ...]:
        """Build the member records of a completed rebalance."""
        return tuple(
            GroupGenerationRecord.Member(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                session_timeout_ms=member.session_timeout_ms,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                subscription=member.subscription(protocol),
                assignment=assignments.get(member.member_id, b""),
            )
            for member in self.members.values()
        )


def offered_bytes(protocols: Protocols) -> int:
    """Return the approximate size in bytes of a member's protocols."""
    return sum(len(name) + len(data) for name, data in protocols)


def membership_from_records(
    records: Sequence[GroupGenerationRecord.Member], protocol: str | None, leader: str | None
) -> Membership:
    """Rebuild the membership from the member records of a completed rebalance."""
    membership = Membership()
    for record in records:
        member = Member(
            member_id=record.member_id,
            instance_id=record.group_instance_id,
            client_id=record.client_id,
            client_host=record.client_host,
            session_timeout_ms=record.session_timeout_ms,
            rebalance_timeout_ms=record.rebalance_timeout_ms,
            protocols=((protocol or "", record.subscription),),
            assignment=record.assignment,
            is_new=False,
        )
        membership.add(member)
    if leader in membership.members:
        membership.leader = leader
    return membership
