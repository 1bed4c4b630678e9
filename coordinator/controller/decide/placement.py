"""Chooses a partition's replicas and its batch coordinator.

In a diskless cluster a replica is a name in a record: any broker serves any partition, and the
leaders that clients see are computed from the live brokers
(docs/design/broker.md#any-broker-leads). So replicas are assigned round robin over the *registered*
brokers, once, and never reassigned. The first is named as leader.

A new topic is assigned as a whole to the coordinator with the fewest partitions.

Source: docs/design/broker.md#any-broker-leads; KIP-1164, Scaling the number of Batch Coordinators.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from coordinator.controller.errors import RefusedError
from coordinator.controller.image import MetadataImage
from records.kafka_errors import ErrorCode
from records.metadata import PartitionRecord


def assign_round_robin(
    brokers: Sequence[int], replication_factor: int, count: int, *, first: int
) -> list[tuple[int, ...]]:
    """Assign replicas to `count` partitions, round robin from the broker at `first`.

    Each partition gets min(factor, brokers) replicas.

    >>> assign_round_robin([1, 2, 3], 2, 3, first=1)
    [(2, 3), (3, 1), (1, 2)]
    """
    width = min(replication_factor, len(brokers))
    return [
        tuple(brokers[(first + index + place) % len(brokers)] for place in range(width))
        for index in range(count)
    ]


def new_partition(topic_id: UUID, index: int, replicas: tuple[int, ...]) -> PartitionRecord:
    """Build the record of a new partition: the first replica leads, all replicas are in sync."""
    return PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=replicas,
        isr=replicas,
        removing_replicas=(),
        adding_replicas=(),
        leader=replicas[0],
        leader_epoch=0,
        partition_epoch=0,
    )


def check_replicas(replicas: Sequence[int], image: MetadataImage, what: str) -> tuple[int, ...]:
    """Check that requested replicas are distinct registered brokers; return them as a tuple.

    Raises RefusedError (INVALID_REPLICA_ASSIGNMENT).
    """
    if not replicas:
        raise _invalid(f"{what}: no replicas.")
    if len(set(replicas)) != len(replicas):
        raise _invalid(f"{what}: {list(replicas)[:20]} names a broker twice.")
    for broker_id in replicas:
        if broker_id not in image.brokers:
            raise _invalid(
                f"The manual partition assignment includes broker {broker_id}, but no such broker "
                "is registered."
            )
    return tuple(replicas)


def _invalid(message: str) -> RefusedError:
    return RefusedError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def coordinator_loads(image: MetadataImage) -> list[int]:
    """Return the number of partitions of client topics for each batch coordinator."""
    loads = [0] * max(1, image.coordinator_count)
    for coordinator, count in image.loads.items():
        loads[max(0, min(coordinator, len(loads) - 1))] += count
    return loads
