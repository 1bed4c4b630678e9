"""Chooses the leader of a partition for a client: a pure function, the same on every node.

Any broker can take any batch and serve any offset. Still, Kafka's protocol wants a leader for each
partition, and the choice matters: in the client's own rack, because bytes between racks cost money,
and always the same broker, because a broker that has read an object has it in its cache.

Rendezvous hashing gives that without a stored table: each broker has a score for a partition, and
the highest wins. When a broker joins or leaves, only the partitions that it wins or had won move.

A broker that is not preferred is placed nowhere (docs/design/health.md#not-preferred).

Source: docs/design/broker.md#any-broker-leads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from coordinator.controller.image import MetadataImage
from coordinator.controller.preference import is_preferred, serving_brokers
from coordinator.rendezvous import score


class PlacedBroker(NamedTuple):
    """An unfenced broker."""

    broker_id: int
    rack: str | None
    is_preferred: bool = True


def unfenced_brokers(image: MetadataImage) -> list[PlacedBroker]:
    """Return the unfenced brokers, by rising id."""
    return [
        PlacedBroker(broker_id, broker.rack, is_preferred(broker))
        for broker_id, broker in serving_brokers(image).items()
    ]


def preferred_brokers(brokers: Sequence[PlacedBroker]) -> Sequence[PlacedBroker]:
    """Return the preferred brokers, on which partitions are placed, or all if none is preferred."""
    return [broker for broker in brokers if broker.is_preferred] or brokers


def is_known(rack: str | None, brokers: Iterable[PlacedBroker]) -> bool:
    """Return whether any broker is in this rack; True if `rack` is None.

    An unknown rack is usually misspelt.
    """
    return rack is None or any(broker.rack == rack for broker in brokers)


def leader(
    topic_id: UUID, partition: int, rack: str | None, brokers: Sequence[PlacedBroker]
) -> int | None:
    """Return the broker that leads a partition for a client in `rack`, or None without brokers.

    Brokers in the client's rack are preferred; in an unknown rack, or without any, all count.

    >>> leader(UUID(int=1), 0, "b", [PlacedBroker(1, "a"), PlacedBroker(2, "b")])
    2
    """
    near = [broker for broker in brokers if broker.rack == rack] if rack is not None else []
    best = max(
        near or brokers,
        key=lambda broker: (_score(topic_id, partition, broker.broker_id), broker.broker_id),
        default=None,
    )
    return None if best is None else best.broker_id


def leaders(
    topic_id: UUID, partition: int, brokers: Iterable[PlacedBroker]
) -> tuple[int | None, dict[str | None, int]]:
    """Return a partition's leader for clients without a known rack, and its leader by rack.

    Computes each broker's score once; that is the cost of the call.
    """
    ranked = sorted(
        (
            (_score(topic_id, partition, broker.broker_id), broker.broker_id, broker.rack)
            for broker in brokers
        ),
        key=lambda scored: scored[:2],
    )
    best = ranked[-1][1] if ranked else None
    return best, {rack: broker_id for _, broker_id, rack in ranked}  # the last of a rack stays


def _score(topic_id: UUID, partition: int, broker_id: int) -> bytes:
    return score(topic_id.bytes + partition.to_bytes(4, "big"), broker_id)


class PlacementScope(NamedTuple):
    """The brokers that partitions are placed on, and the client's rack."""

    brokers: Sequence[PlacedBroker]
    rack: str | None


class Placement(NamedTuple):
    """The leader and replicas of a partition, for one client."""

    leader_id: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]  # all of them, unless a chunk has a replica that is not placed on


def placement_scope(brokers: Sequence[PlacedBroker], rack: str | None) -> PlacementScope:
    """Return the preferred brokers, and the client's rack if any of the brokers is in it.

    In a rack whose brokers are all not preferred, partitions have the leaders of other racks.
    """
    return PlacementScope(preferred_brokers(brokers), rack if is_known(rack, brokers) else None)


def place(
    topic_id: UUID, index: int, scope: PlacementScope, assigned: tuple[int, ...] = ()
) -> Placement:
    """Choose a partition's leader for the client's rack, and the list of its replicas.

    Args:  assigned: the replicas of its active chunk; none if it was never cut into chunks.
    """
    best, by_rack = leaders(topic_id, index, scope.brokers)
    if assigned:
        holders = [broker for broker in scope.brokers if broker.broker_id in assigned]
        if holders:
            best, in_rack = leaders(topic_id, index, holders)
            by_rack = by_rack | in_rack  # a rack without a replica keeps its own broker
    leader_id = best if scope.rack is None else by_rack.get(scope.rack, best)
    if assigned:
        placed = {broker.broker_id for broker in scope.brokers}
        replicas = assigned
        if leader_id is not None and leader_id not in assigned:
            replicas = (*assigned, leader_id)
        return Placement(leader_id, replicas, tuple(one for one in replicas if one in placed))
    known = set(by_rack.values())
    if leader_id is not None:
        known.add(leader_id)
    rising = tuple(sorted(known))
    return Placement(leader_id, rising, rising)
