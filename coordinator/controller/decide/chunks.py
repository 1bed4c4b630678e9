"""Decides about chunks: which replicas hold which offsets of a partition.

Creating a chunk ends the active one: its offsets up to the high watermark become a ChunkRecord with
the replicas it has, and a PartitionChangeRecord gives the partition a new start and new replicas.
The two are one fact and are written in one batch. The high watermark is exclusive, so the old
chunk's last offset is one below it, and the new chunk starts at it.

The controller cannot see the high watermark. It trusts the request (of a broker, or of Esker's
command, which read it behind the read barrier) as far as it can check: a start never goes back.

Source: KIP-1114; docs/design/numbers.md#offsets-of-chunks, docs/design/chunks.md#creating-a-chunk.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from coordinator.controller.decide.context import Context, Decision
from coordinator.controller.decide.placement import check_replicas
from coordinator.controller.decide.topics import named_twice
from coordinator.controller.errors import RefusedError
from coordinator.controller.image import MetadataImage, TopicImage, active_start
from records.chunks import ChunkChangeRecord, ChunkRecord
from records.kafka_errors import ErrorCode
from records.metadata import PartitionChangeRecord, PartitionRecord
from records.rpc import chunks as rpc
from records.schema import MetadataRecord
from records.types import ZERO_UUID, Offset

MAX_CHUNKS_OF_REQUEST: Final = 1_000
"""A request becomes one batch, which every replica applies in one step."""

MAX_CHUNKS_OF_PARTITION: Final = 10_000

FIRST_EPOCH: Final = 0


def create_chunks(request: rpc.CreateChunksRequest, context: Context) -> Decision:
    """Close each partition's active chunk, and begin a new chunk with the requested replicas."""
    result = rpc.CreateChunksResponse.TopicPartitionResult
    records: list[MetadataRecord] = []
    results = []
    seen: set[tuple[str, int]] = set()
    too_many = len(request.topic_partitions) > MAX_CHUNKS_OF_REQUEST
    for item in request.topic_partitions:
        code, message = ErrorCode.NONE, None
        try:
            if too_many:
                raise RefusedError(
                    ErrorCode.POLICY_VIOLATION, f"More than {MAX_CHUNKS_OF_REQUEST} at once."
                )
            if (item.topic_name, item.partition_id) in seen:
                raise named_twice(f"{item.topic_name[:249]}-{item.partition_id}")
            seen.add((item.topic_name, item.partition_id))
            records += _create(item, context.image)
        except RefusedError as refused:
            code, message = refused.code, refused.message
        results.append(
            result(
                topic_name=item.topic_name,
                partition_id=item.partition_id,
                error_code=code,
                error_message=message,
            )
        )
    return Decision(
        tuple(records), rpc.CreateChunksResponse(results=tuple(results)), one_batch=True
    )


def find_partition(
    image: MetadataImage, topic_name: str, index: int
) -> tuple[TopicImage, PartitionRecord, str]:
    """Find a requested partition; return its topic, record and name. Raises RefusedError."""
    what = f"{topic_name[:249]}-{index}"
    topic = image.topic(topic_name)
    partition = None if topic is None else topic.partitions.get(index)
    if topic is None or partition is None:
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no {what}.")
    if topic.is_internal:
        raise RefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{what} is internal.")
    return topic, partition, what


def _create(
    item: rpc.CreateChunksRequest.TopicPartition, image: MetadataImage
) -> tuple[MetadataRecord, MetadataRecord]:
    """Build the two records of a partition's new chunk. Raises RefusedError."""
    topic, partition, what = find_partition(image, item.topic_name, item.partition_id)
    if item.topic_id not in (ZERO_UUID, topic.topic_id):
        raise RefusedError(
            ErrorCode.UNKNOWN_TOPIC_ID,
            f"{what}: its end was read from topic {item.topic_id}, which was deleted.",
        )
    replicas = _check_count(check_replicas(item.broker_ids, image, what), partition, what)
    start = active_start(partition)
    if item.active_start_offset not in (-1, start):
        raise RefusedError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"{what}: its active chunk begins at {start}, not at {item.active_start_offset}: "
            "a chunk was created meanwhile.",
        )
    if item.start_offset <= start:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST,
            f"{what}: a chunk at {item.start_offset} must begin above {start}, where the active "
            "one begins; its range would be empty.",
        )
    stop, end = item.prev_stop_offset, item.start_offset - 1
    if not start - 1 <= stop <= end:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST,
            f"{what}: the chunk {start}..{end} cannot stop at {stop}.",
        )
    if len(topic.chunks.get(item.partition_id, ())) >= MAX_CHUNKS_OF_PARTITION:
        raise RefusedError(
            ErrorCode.POLICY_VIOLATION, f"{what} has {MAX_CHUNKS_OF_PARTITION} chunks already."
        )
    ended = ChunkRecord(
        partition_id=item.partition_id,
        topic_id=topic.topic_id,
        start_offset=start,
        start_timestamp=partition.start_timestamp,
        stop_offset=stop,
        end_offset=end,
        chunk_epoch=FIRST_EPOCH,
        replicas=partition.replicas,
        directories=partition.directories,
        isr=partition.replicas,  # a replica is a cache: it is in sync at once
        removing_replicas=(),
        adding_replicas=(),
        epoch=FIRST_EPOCH,
    )
    changed = PartitionChangeRecord(
        partition_id=item.partition_id,
        topic_id=topic.topic_id,
        isr=replicas,
        leader=-2 if replicas[0] == partition.leader else replicas[0],  # -2: unchanged
        replicas=replicas,
        start_offset=item.start_offset,
        start_timestamp=max(item.start_timestamp, partition.start_timestamp),
    )
    return ended, changed


def _check_count(
    replicas: tuple[int, ...], partition: PartitionRecord, what: str
) -> tuple[int, ...]:
    if len(replicas) != len(partition.replicas):
        raise RefusedError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{what} has {len(partition.replicas)} replicas, {len(replicas)} are assigned.",
        )
    return replicas


def alter_chunks(request: rpc.AlterChunkAssignmentsRequest, context: Context) -> Decision:
    """Give inactive partition chunks other replicas; no data moves, as replicas are caches."""
    result = rpc.AlterChunkAssignmentsResponse.AssignmentResult
    records: list[MetadataRecord] = []
    results = []
    seen: set[tuple[str, int, int]] = set()
    too_many = len(request.chunks) > MAX_CHUNKS_OF_REQUEST
    for item in request.chunks:
        code, message = ErrorCode.NONE, None
        try:
            if too_many:
                raise RefusedError(
                    ErrorCode.POLICY_VIOLATION, f"More than {MAX_CHUNKS_OF_REQUEST} at once."
                )
            named = (item.topic_name, item.partition_id, item.start_offset)
            if named in seen:
                what = f"{item.topic_name[:200]}-{item.partition_id} at {item.start_offset}"
                raise named_twice(f"The chunk of {what}")
            seen.add(named)
            records += _alter(item, context.image)
        except RefusedError as refused:
            code, message = refused.code, refused.message
        results.append(
            result(
                topic_name=item.topic_name,
                partition_id=item.partition_id,
                start_offset=item.start_offset,
                error_code=code,
                error_message=message,
            )
        )
    response = rpc.AlterChunkAssignmentsResponse(results=tuple(results))
    return Decision(tuple(records), response, one_batch=True)


def _alter(
    item: rpc.AlterChunkAssignmentsRequest.Assignment, image: MetadataImage
) -> list[MetadataRecord]:
    """Build the record that changes a chunk's replicas; none if the replicas stay the same.

    Raises RefusedError.
    """
    topic, partition, what = find_partition(image, item.topic_name, item.partition_id)
    chunks = topic.chunks.get(item.partition_id, ())
    chunk = next((c for c in chunks if c.start_offset == item.start_offset), None)
    if chunk is None:
        raise RefusedError(
            ErrorCode.INVALID_REQUEST, f"{what} has no chunk that starts at {item.start_offset}."
        )
    if item.chunk_epoch not in (-1, chunk.chunk_epoch):
        raise RefusedError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"{what}: the chunk at {item.start_offset} has epoch {chunk.chunk_epoch}, "
            f"not {item.chunk_epoch}.",
        )
    replicas = _check_count(check_replicas(item.broker_ids, image, what), partition, what)
    if replicas == chunk.replicas:
        return []
    return [
        ChunkChangeRecord(
            partition_id=item.partition_id,
            topic_id=topic.topic_id,
            start_offset=item.start_offset,
            replicas=replicas,
            isr=replicas,
            epoch=chunk.chunk_epoch + 1,
        )
    ]


def remove_chunks(image: MetadataImage, log_starts: Mapping[tuple[UUID, int], Offset]) -> Decision:
    """Remove the partition chunks below the log start, and those without a registered replica.

    Args:  log_starts: of the partitions whose coordinator answered; other chunks stay.
    """
    records: list[MetadataRecord] = []
    for topic in image.iter_topics():
        for index in sorted(topic.chunks):
            log_start = log_starts.get((topic.topic_id, index), Offset(0))
            for chunk in topic.chunks[index]:
                held = any(broker_id in image.brokers for broker_id in chunk.replicas)
                if (held and log_start <= chunk.end_offset) or len(records) >= MAX_REMOVED:
                    continue
                records.append(
                    ChunkChangeRecord(
                        partition_id=index,
                        topic_id=topic.topic_id,
                        start_offset=chunk.start_offset,
                        epoch=chunk.chunk_epoch + 1,
                    )
                )
    return Decision(tuple(records), len(records))


MAX_REMOVED: Final = 1_000  # in one decision; the next one continues
