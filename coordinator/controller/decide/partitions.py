"""Decides about more partitions for a topic; a new one of `__diskless-metadata` is a batch
coordinator.

The quorum's own topics grow like any other, but their replicas are the voters: the next partition
of `__diskless-metadata` is a Raft group on every node of the quorum. It starts when the record is
applied, and from then on new topics are spread over one more coordinator.

Source: KIP-195; KIP-1164, Scaling the number of Batch Coordinators;
docs/design/quorum.md#groups-come-from-the-cluster-log.
"""

from __future__ import annotations

from typing import Final

from coordinator.controller.decide.context import Context, Decision
from coordinator.controller.decide.placement import (
    assign_round_robin,
    check_replicas,
    coordinator_loads,
    new_partition,
)
from coordinator.controller.decide.topics import check_partition_cap, mappings, named_twice
from coordinator.controller.errors import RefusedError
from coordinator.controller.image import TopicImage
from records.internal_topics import DISKLESS_METADATA
from records.kafka_errors import ErrorCode
from records.metadata import PartitionRecord
from records.rpc.topics import CreatePartitionsRequest, CreatePartitionsResponse
from records.schema import MetadataRecord

MAX_COORDINATORS: Final = 64
"""Each one is a Raft group with a log, timers and a database of its own."""

_Topic = CreatePartitionsRequest.CreatePartitionsTopic


def create_partitions(request: CreatePartitionsRequest, context: Context) -> Decision:
    """Add partitions to topics; one topic's error does not affect the other topics."""
    result = CreatePartitionsResponse.CreatePartitionsTopicResult
    records: list[MetadataRecord] = []
    results = []
    seen: set[str] = set()
    partitions = sum(coordinator_loads(context.image))
    too_many = len(request.topics) > context.limits.max_items_of_request
    for topic in request.topics:
        try:
            if too_many:
                raise RefusedError(
                    ErrorCode.POLICY_VIOLATION, f"{len(request.topics)} topics at once."
                )
            if topic.name in seen:
                raise named_twice(topic.name)
            seen.add(topic.name)
            made = _grow(topic, context, len(records), partitions)
            partitions += sum(isinstance(record, PartitionRecord) for record in made)
        except RefusedError as refused:
            results.append(
                result(name=topic.name, error_code=refused.code, error_message=refused.message)
            )
            continue
        records += made
        results.append(result(name=topic.name))
    kept = () if request.validate_only else tuple(records)
    return Decision(kept, CreatePartitionsResponse(results=tuple(results)))


def _grow(
    item: _Topic, context: Context, records_so_far: int, partitions: int
) -> list[MetadataRecord]:
    """Build the records of a topic's new partitions. Raises RefusedError.

    Args:  partitions: of the cluster, with those of `records_so_far`.
    """
    topic = context.image.topic(item.name)
    if topic is None:
        raise RefusedError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {item.name[:249]!r}."
        )
    now, limits = len(topic.partitions), context.limits
    if topic.is_internal and topic.name != DISKLESS_METADATA:
        raise RefusedError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is internal and does not grow."
        )
    most = MAX_COORDINATORS if topic.is_internal else limits.max_partitions_of_topic
    if not now < item.count <= most:
        raise RefusedError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {now} partition(s); {item.count} would "
            f"{'not be an increase' if item.count <= now else f'exceed {most}'}.",
        )
    added = range(now, item.count)
    if len(added) + records_so_far > limits.max_records_of_request:
        raise RefusedError(
            ErrorCode.POLICY_VIOLATION, f"{topic.name}: too many partitions; send several requests."
        )
    if not topic.is_internal:
        check_partition_cap(topic.name, partitions + len(added), limits)
    replicas = _replicas(item, topic, context, added)
    context.take(len(added))
    records: list[MetadataRecord] = [
        new_partition(topic.topic_id, index, replicas[index - now]) for index in added
    ]
    if not topic.is_internal:
        # A topic's partitions stay together, so that one object of a broker commits in one place.
        coordinator = _coordinator(topic, context)
        if coordinator:
            records += mappings(topic.topic_id, added, coordinator)
    return records


def _coordinator(topic: TopicImage, context: Context) -> int:
    used = {topic.coordinator(index) for index in topic.partitions}
    if len(used) == 1:
        return used.pop()
    loads = coordinator_loads(context.image)
    return min(sorted(used), key=loads.__getitem__)


def _replicas(
    item: _Topic, topic: TopicImage, context: Context, added: range
) -> list[tuple[int, ...]]:
    width = len(topic.partitions[0].replicas)
    if topic.is_internal:
        if item.assignments:
            raise RefusedError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{topic.name} is on every voter: replicas cannot be assigned.",
            )
        voters = sorted(topic.partitions[0].replicas)
        return assign_round_robin(voters, len(voters), len(added), first=added.start % len(voters))
    if item.assignments is not None and item.assignments:
        if len(item.assignments) != len(added):
            raise RefusedError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{topic.name}: {len(added)} partitions are added, replicas of "
                f"{len(item.assignments)} are assigned.",
            )
        assigned = [
            check_replicas(entry.broker_ids, context.image, f"{topic.name}-{index}")
            for index, entry in zip(added, item.assignments, strict=True)
        ]
        if {len(replicas) for replicas in assigned} != {width}:
            raise RefusedError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{topic.name}: its partitions have {width} replicas each.",
            )
        return assigned
    brokers = sorted(context.image.brokers)
    if not brokers:
        raise RefusedError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{topic.name}: no broker is registered that could be a replica.",
        )
    first = (topic.topic_id.int + added.start) % len(brokers)
    return assign_round_robin(brokers, width, len(added), first=first)
