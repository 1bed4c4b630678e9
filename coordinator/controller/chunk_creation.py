"""Where a new chunk begins: at the high watermark, read so that it cannot be an old one.

The chunk before ends one below. A high watermark read without the read barrier may be an old
leader's: offsets above it are promised to producers already, and two askers could get chunks in the
wrong order. So it is read by ListDisklessOffsets, which a coordinator answers only after a majority
has confirmed that it leads; FindBatches says a high watermark too, and is not asked.

Source: DESIGN §9; KIP-1114, Handle ChunkCreateRequest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol
from uuid import UUID

from coordinator.controller.chunk_files import NewChunk, create_request
from records.rpc.chunks import CreateChunksRequest
from records.rpc.coordinator import ListDisklessOffsetsRequest, ListDisklessOffsetsResponse
from records.types import Offset

LATEST: Final = -1


class OffsetsReader(Protocol):
    """A batch coordinator, or a client that finds it (`coordinator.interface`)."""

    async def list_offsets(
        self, request: ListDisklessOffsetsRequest
    ) -> ListDisklessOffsetsResponse: ...


class UnknownEndError(Exception):
    """A partition's coordinator did not say where it ends; `code` is Kafka's."""

    def __init__(self, topic: str, partition: int, code: int) -> None:
        super().__init__(f"{topic}-{partition}: its high watermark is unknown (error code {code})")
        self.code = code


async def chunks_at_the_end(
    chunks: tuple[NewChunk, ...],
    topic_ids: Mapping[str, UUID],
    reader: OffsetsReader,
    now_ms: Callable[[], int],
) -> CreateChunksRequest:
    """The request that creates these chunks where their partitions end now.

    Args:    now_ms: the clock, read right after the high watermarks.
    Raises:  KeyError for a topic without an id; UnknownEndError; what `reader` raises.
    """
    by_topic: dict[str, list[int]] = {}
    for chunk in chunks:
        by_topic.setdefault(chunk.topic, []).append(chunk.partition)
    topic = ListDisklessOffsetsRequest.Topic
    answer = await reader.list_offsets(
        ListDisklessOffsetsRequest(
            topics=tuple(
                topic(
                    topic_id=topic_ids[name],
                    partitions=tuple(
                        topic.Partition(partition_index=index, timestamp=LATEST)
                        for index in indexes
                    ),
                )
                for name, indexes in by_topic.items()
            )
        )
    )
    time_ms = now_ms()
    names = {topic_ids[name]: name for name in by_topic}
    ends: dict[tuple[str, int], Offset] = {}
    for listed in answer.responses:
        name = names[listed.topic_id]
        for found in listed.partitions:
            if found.error_code:
                raise UnknownEndError(name, found.partition_index, found.error_code)
            ends[name, found.partition_index] = Offset(found.offset)
    return create_request(chunks, ends, now_ms=time_ms)
