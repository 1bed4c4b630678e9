"""Where a new chunk begins: at the high watermark, read so that it cannot be an old one.

The chunk before ends one below. A high watermark read without the read barrier may be an old
leader's: offsets above it are promised to producers already, and two askers could get chunks in the
wrong order. So it is read by ListDisklessOffsets, which a coordinator answers only after a majority
has confirmed that it leads; FindBatches says a high watermark too, and is not asked.

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


class Place(NamedTuple):
    """Where a partition's batches are coordinated."""

    topic_id: UUID
    coordinator: int


class UnknownEndError(Exception):
    """A partition's coordinator did not say where it ends; `code` is Kafka's."""

    def __init__(self, topic: str, partition: int, code: int) -> None:
        super().__init__(f"{topic}-{partition}: its high watermark is unknown (error code {code})")
        self.code = code


async def chunks_at_the_end(
    chunks: tuple[NewChunk, ...],
    places: Mapping[tuple[str, int], Place],
    reader: Callable[[int], CallTarget],
    now_ms: Callable[[], int],
) -> CreateChunksRequest:
    """The request that creates these chunks where their partitions end now.

    Args:    places: of every partition that a chunk names; reader: of each coordinator;
             now_ms: the clock, read right after the high watermarks.
    Raises:  UnknownEndError; what a reader raises.
    """
    by_coordinator: dict[int, dict[UUID, list[int]]] = {}
    names: dict[UUID, str] = {}
    for chunk in chunks:
        place = places[chunk.topic, chunk.partition]
        names[place.topic_id] = chunk.topic
        by_topic = by_coordinator.setdefault(place.coordinator, {})
        by_topic.setdefault(place.topic_id, []).append(chunk.partition)
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
