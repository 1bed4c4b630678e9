"""Creates and deletes topics as the controller decides, and dismantles them in bounded steps.

Calls may arrive late and out of order, also from deposed controllers. They carry the controller's
epoch; the highest one is recorded, and lower ones are refused. Within one epoch a late call to
create could follow the one to delete, so a deleted topic stays as a tombstone, also if it was never
created here, for longer than any call is under way.

A partition that never had a commit can be released, for another coordinator to take. Its mark holds
the epoch that released it: only a call of a higher epoch that names it brings it back.

Deleting a topic is one small record, and from then on nothing of it is found. Its runs and
producers, of which there may be millions, are deleted afterwards, a maintenance step's worth at a
time.

Source: docs/design/controller.md#hand-over-between-groups,
docs/design/batch-coordinator.md#deletion; KIP-1164, InitDisklessTopics and DeleteDisklessTopics;
KIP-631 (controller epochs).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from uuid import UUID

from coordinator.batch.decide.base import Context, Decision
from coordinator.batch.reads import Candidates
from coordinator.batch.settings import MAX_PARTITIONS
from coordinator.batch.state import Tables, Topic, may_return, released_mark
from records.diskless import (
    ControllerEpochRecord,
    DisklessPartitionsRecord,
    DisklessPartitionsReleasedRecord,
    DisklessPartitionsRemovedRecord,
    DisklessTombstoneExpiredRecord,
    DisklessTopicTombstoneRecord,
    LogStartOffsetsRecord,
    ProducersExpiredRecord,
)
from records.kafka_errors import ErrorCode
from records.rpc.batch_coordinator import (
    DeleteDisklessTopicsRequest,
    DeleteDisklessTopicsResponse,
    InitDisklessTopicsRequest,
    InitDisklessTopicsResponse,
    ReleaseDisklessPartitionsRequest,
    ReleaseDisklessPartitionsResponse,
)
from records.schema import MetadataRecord
from records.types import ZERO_UUID

MAX_NAME_LENGTH: Final = 249
"""Length of a topic's name; Kafka's own limit."""

MAX_TOPICS: Final = 10_000
"""Largest number of topics in one call."""

MAX_RESTORED: Final = 10_000
"""Partitions named one by one in a call to create: each costs a record."""

DELETION: Final = 4
"""LogStartOffsetsRecord's reason: a deleted topic is being dismantled."""

BARE_COST: Final = 10
"""Cost, in rows, of an empty partition of a deleted topic: it is looked up, and its own row is
deleted."""

_InitResult = InitDisklessTopicsResponse.TopicResult
_DeleteResult = DeleteDisklessTopicsResponse.TopicResult
_ReleasedTopic = ReleaseDisklessPartitionsResponse.Topic


def decide_init_topics(
    request: InitDisklessTopicsRequest, tables: Tables, _context: Context
) -> Decision[InitDisklessTopicsResponse]:
    """Create the requested topics, or add partitions to them up to the requested numbers."""
    results: list[_InitResult] = []
    records: list[MetadataRecord] = []
    seen: set[UUID] = set()
    next_log_id = tables.counters.next_log_id
    added = named = 0  # partitions, in all topics: what one call may cost
    stale = request.controller_epoch < tables.counters.controller_epoch
    for number, requested in enumerate(request.topics):
        code, message = ErrorCode.NONE, None
        topic = tables.topics.get(requested.topic_id)
        if stale:
            code, message = ErrorCode.STALE_CONTROLLER_EPOCH, "a newer controller has called"
        elif requested.topic_id in seen or number >= MAX_TOPICS:
            code, message = ErrorCode.INVALID_REQUEST, "named twice, or too many topics in one call"
        elif (
            requested.topic_id == ZERO_UUID or not 0 < len(requested.topic_name) <= MAX_NAME_LENGTH
        ):
            code, message = ErrorCode.INVALID_REQUEST, "a topic has an id and a name"
        elif topic is not None and topic.deleted_at_ms >= 0:
            code, message = ErrorCode.UNKNOWN_TOPIC_ID, "it is deleted"
        elif topic is not None and topic.name != requested.topic_name:
            code, message = ErrorCode.INVALID_REQUEST, f"its name is {topic.name!r}"
        elif len(requested.restored) > MAX_RESTORED - named:
            code, message = (
                ErrorCode.INVALID_PARTITIONS,
                f"over {MAX_RESTORED} restored in one call",
            )
        elif not 1 <= requested.num_partitions <= MAX_PARTITIONS - added:
            code, message = ErrorCode.INVALID_PARTITIONS, f"{requested.num_partitions} partitions"
        else:
            named += len(requested.restored)
            for first, count in _wanted(requested, topic, request.controller_epoch):
                records.append(
                    DisklessPartitionsRecord(
                        topic_id=requested.topic_id,
                        topic_name=requested.topic_name,
                        first_partition=first,
                        partition_count=count,
                        first_log_id=next_log_id,
                        controller_epoch=request.controller_epoch,
                    )
                )
                next_log_id += count
                added += count
        seen.add(requested.topic_id)
        results.append(
            _InitResult(topic_id=requested.topic_id, error_code=code, error_message=message)
        )
    response = InitDisklessTopicsResponse(responses=tuple(results))
    return Decision(_heard(request.controller_epoch, tables, records), response)


def _wanted(
    requested: InitDisklessTopicsRequest.Topic, topic: Topic | None, controller_epoch: int
) -> Iterator[tuple[int, int]]:
    """Yield (first index, count) of partitions to restore, and of partitions to create.

    A partition released under this very epoch stays so: the call that names it is late.
    """
    log_ids = () if topic is None else topic.log_ids
    for partition in sorted(set(requested.restored)):
        if 0 <= partition < len(log_ids) and may_return(log_ids[partition], controller_epoch):
            yield partition, 1
    if requested.num_partitions > len(log_ids):
        yield len(log_ids), requested.num_partitions - len(log_ids)


def decide_release_partitions(
    request: ReleaseDisklessPartitionsRequest, tables: Tables, _context: Context
) -> Decision[ReleaseDisklessPartitionsResponse]:
    """Release the requested partitions that never had data: their high watermark is 0.

    Pending state counts, too.

    Repeated under a higher epoch, it is written again: then only a higher one still brings them
    back.
    """
    epoch = request.controller_epoch
    stale = epoch < tables.counters.controller_epoch
    records: list[MetadataRecord] = []
    answered = []
    seen: set[tuple[UUID, int]] = set()
    for requested in request.topics:
        topic = tables.topics.get(requested.topic_id)
        results = []
        released = []
        for partition in (named.partition_index for named in requested.partitions):
            code = ErrorCode.NONE
            if stale:
                code = ErrorCode.STALE_CONTROLLER_EPOCH
            elif (requested.topic_id, partition) in seen or len(seen) >= MAX_PARTITIONS:
                code = ErrorCode.INVALID_REQUEST
            elif topic is None or topic.deleted_at_ms >= 0:
                code = ErrorCode.UNKNOWN_TOPIC_ID
            elif not 0 <= partition < len(topic.log_ids):
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif (tables.logs.get(topic.log_ids[partition]) or (0, 0))[1] > 0:
                code = ErrorCode.INVALID_REQUEST
            elif topic.log_ids[partition] != released_mark(epoch):
                released.append(partition)
            seen.add((requested.topic_id, partition))
            results.append(_ReleasedTopic.Partition(partition_index=partition, error_code=code))
        if released:
            records.append(
                DisklessPartitionsReleasedRecord(
                    topic_id=requested.topic_id, partitions=tuple(released), controller_epoch=epoch
                )
            )
        answered.append(_ReleasedTopic(topic_id=requested.topic_id, partitions=tuple(results)))
    response = ReleaseDisklessPartitionsResponse(responses=tuple(answered))
    return Decision(_heard(epoch, tables, records), response)


def decide_delete_topics(
    request: DeleteDisklessTopicsRequest, tables: Tables, context: Context
) -> Decision[DeleteDisklessTopicsResponse]:
    """Mark each requested topic as deleted with a tombstone, even if it does not exist."""
    results: list[_DeleteResult] = []
    records: list[MetadataRecord] = []
    seen: set[UUID] = set()
    stale = request.controller_epoch < tables.counters.controller_epoch
    for number, topic_id in enumerate(request.topic_ids):
        code = ErrorCode.NONE
        topic = tables.topics.get(topic_id)
        if stale:
            code = ErrorCode.STALE_CONTROLLER_EPOCH
        elif topic_id in seen or topic_id == ZERO_UUID or number >= MAX_TOPICS:
            code = ErrorCode.INVALID_REQUEST
        elif topic is None or topic.deleted_at_ms < 0:
            records.append(
                DisklessTopicTombstoneRecord(
                    topic_id=topic_id,
                    controller_epoch=request.controller_epoch,
                    deleted_at_ms=context.steady_ms,
                )
            )
        seen.add(topic_id)
        results.append(_DeleteResult(topic_id=topic_id, error_code=code))
    response = DeleteDisklessTopicsResponse(responses=tuple(results))
    return Decision(_heard(request.controller_epoch, tables, records), response)


def _heard(epoch: int, tables: Tables, records: list[MetadataRecord]) -> tuple[MetadataRecord, ...]:
    """Return `records`, or if empty, a record of `epoch` if this controller epoch is new."""
    if not records and epoch > tables.counters.controller_epoch:
        return (ControllerEpochRecord(controller_epoch=epoch),)
    return tuple(records)


def decide_dismantling(tables: Tables, candidates: Candidates, context: Context) -> Decision[None]:
    """Delete a limited number of runs of batches, producers and partitions of deleted topics.

    Where the step before is appended and not yet applied, the topic waits: what that step will
    leave is not known.
    """
    records: list[MetadataRecord] = []
    budget = context.settings.maintenance_limit
    for topic_id, topic in _deleted_topics(tables):
        removed = []
        for partition, log_id in enumerate(topic.log_ids):
            if log_id < 0:
                continue
            if budget <= 0:
                break
            steps, cost = _empty_partition(topic_id, partition, log_id, tables, candidates, budget)
            if steps is None:
                continue
            records += steps
            budget -= cost
            if not steps:
                removed.append(partition)
        if removed:
            records.append(
                DisklessPartitionsRemovedRecord(topic_id=topic_id, partitions=tuple(removed))
            )
        if budget <= 0:
            break
    return Decision(tuple(records), None)


def _deleted_topics(tables: Tables) -> list[tuple[UUID, Topic]]:
    """Return the deleted topics, sorted by topic id.

    To sort ten thousand topics takes 20 ms: a UUID is compared in Python. Its number is not, and
    the undeleted topics, nearly all, are left out before.
    """
    deleted = [item for item in tables.topics.items() if item[1].deleted_at_ms >= 0]
    return sorted(deleted, key=lambda item: item[0].int)


def _empty_partition(
    topic_id: UUID,
    partition: int,
    log_id: int,
    tables: Tables,
    candidates: Candidates,
    limit: int,
) -> tuple[list[MetadataRecord] | None, int]:
    """Return records that delete up to `limit` rows of a partition, and their cost in rows.

    The records are [] if the partition is empty, and None if its last deletions are not applied
    yet.

    Whoever removes the partition drops what rows are left, so "bare" may be a little wrong.
    """
    log_start, end = tables.logs.get(log_id) or (0, 0)
    last = candidates.last_offset_of_runs(log_id, limit) if log_start < end else None
    if last is not None and last < log_start:
        return None, 0
    if last is not None:
        step = LogStartOffsetsRecord(
            topic_ids=(topic_id,),
            topic_indexes=(0,),
            partitions=(partition,),
            log_start_offsets=(last + 1,),
            reason=DELETION,
        )
        return [step], limit
    keys = [key for key in candidates.producers_of(log_id, limit) if tables.producers.get(key)]
    if not keys:
        return [], BARE_COST
    log_ids, producer_ids = zip(*keys, strict=True)
    return [ProducersExpiredRecord(log_ids=log_ids, producer_ids=producer_ids)], len(keys)


def decide_expired_tombstones(tables: Tables, context: Context) -> Decision[None]:
    """Delete the old tombstones of deleted topics that have no partitions left."""
    records = [
        DisklessTombstoneExpiredRecord(topic_id=topic_id)
        for topic_id, topic in _deleted_topics(tables)
        if all(log_id < 0 for log_id in topic.log_ids)
        and context.age_ms(topic.deleted_at_ms) >= context.settings.tombstone_retention_ms
    ]
    return Decision(tuple(records[: context.settings.maintenance_limit]), None)
