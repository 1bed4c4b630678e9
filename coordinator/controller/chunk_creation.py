"""Determines where a new chunk begins: at the high watermark, read behind the read barrier.

The chunk before ends one below. A high watermark read without the read barrier may be a deposed
leader's: offsets above it are acknowledged to producers already, and two requesters could get
chunks in the wrong order. So it is read by ListDisklessOffsets, which a coordinator answers only
after a majority has confirmed that it leads; FindBatches returns a high watermark too, without a
barrier, and is not used.

Source: docs/design/chunks.md#creating-a-chunk; KIP-1114, Handle ChunkCreateRequest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple
from uuid import UUID

from coordinator.batch.interface import CallTarget
from coordinator.controller.chunk_files import NewChunk, create_request
from records.rpc.batch_coordinator import ListDisklessOffsetsRequest
from records.rpc.chunks import CreateChunksRequest
from records.types import Offset

LATEST: Final = -1


class TopicCoordinator(NamedTuple):
    """A topic, and the batch coordinator of one of its partitions."""

    topic_id: UUID
    coordinator: int


class UnknownEndError(Exception):
    """A partition's coordinator did not return its high watermark; `code` is Kafka's error code."""

    def __init__(self, topic: str, partition: int, code: int) -> None:
        super().__init__(f"{topic}-{partition}: its high watermark is unknown (error code {code})")
        self.code = code


async def create_request_at_end(
    chunks: tuple[NewChunk, ...],
    coordinators: Mapping[tuple[str, int], TopicCoordinator],
    reader: Callable[[int], CallTarget],
    now_ms: Callable[[], int],
) -> CreateChunksRequest:
    """Build a CreateChunks request whose chunks begin at their partitions' high watermarks.

    Args:    coordinators: of every partition that a chunk names; reader: returns the client of a
             coordinator; now_ms: the clock, read right after the high watermarks.
    Raises:  UnknownEndError; what a reader raises.
    """
    by_coordinator: dict[int, dict[UUID, list[int]]] = {}
    names: dict[UUID, str] = {}
    for chunk in chunks:
        target = coordinators[chunk.topic, chunk.partition]
        names[target.topic_id] = chunk.topic
        by_topic = by_coordinator.setdefault(target.coordinator, {})
        by_topic.setdefault(target.topic_id, []).append(chunk.partition)
    ends: dict[tuple[str, int], Offset] = {}
    for coordinator, by_topic in by_coordinator.items():
        answer = await reader(coordinator).call(_latest(coordinator, by_topic))
        for listed in answer.responses:
            name = names[listed.topic_id]
            for found in listed.partitions:
                if found.error_code:
                    raise UnknownEndError(name, found.partition_index, found.error_code)
                ends[name, found.partition_index] = Offset(found.offset)
    topic_ids = {name: topic_id for topic_id, name in names.items()}
    return create_request(chunks, ends, now_ms=now_ms(), topic_ids=topic_ids)


def _latest(coordinator: int, by_topic: Mapping[UUID, list[int]]) -> ListDisklessOffsetsRequest:
    topic = ListDisklessOffsetsRequest.Topic
    return ListDisklessOffsetsRequest(
        coordinator_partition=coordinator,
        topics=tuple(
            topic(
                topic_id=topic_id,
                partitions=tuple(
                    topic.Partition(partition_index=index, timestamp=LATEST) for index in indexes
                ),
            )
            for topic_id, indexes in by_topic.items()
        ),
    )
