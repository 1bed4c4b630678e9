"""Creates and moves chunks: the broker reads a partition's end, and the controller decides.

A new chunk begins at the high watermark. Only the partition's coordinator knows it, and only behind
the read barrier is it current, so the broker reads it there, whatever start the request names.
Between that and the controller's decision the partition may grow, which is harmless: the old chunk
then ends a little earlier than it might have.

Source: KIP-1114, Handle ChunkCreateRequest; docs/design/numbers.md#offsets-of-chunks,
docs/design/chunks.md#creating-a-chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from coordinator.controller.access import Client
from coordinator.controller.image import MetadataImage, active_start
from coordinator.controller.refusals import refuse
from coordinator.errors import CoordinatorError
from diskless.apis.handler import make_handler
from diskless.apis.partition_offsets import (
    LATEST,
    CoordinatedPartition,
    OffsetQuery,
    find_partition,
    list_offsets,
)
from diskless.cluster import Cluster
from raft.net.handlers import Served
from records.kafka_errors import ErrorCode
from records.rpc import chunks as rpc

SEEN_HERE_S: Final = 1.0
"""The longest that an answer waits for this broker's own image to show the change."""

MAX_NAME_LENGTH: Final = 249  # of a topic name, and so of its repetition in error messages
MAX_CHUNKS: Final = 1_000  # of one request, the controller's limit

_RequestedPartition = rpc.CreateChunksRequest.TopicPartition
_Result = rpc.CreateChunksResponse.TopicPartitionResult


async def create(
    request: rpc.CreateChunksRequest,
    cluster: Cluster,
    wall_ms: Callable[[], int],
    client: Client | None = None,
) -> rpc.CreateChunksResponse:
    """Close partitions' active chunks (offset ranges with replicas) and create new active chunks.

    An active chunk is closed at its partition's high watermark.
    """
    requested = request.topic_partitions
    if len(requested) > MAX_CHUNKS:
        text = f"A request may create at most {MAX_CHUNKS} chunks."
        return rpc.CreateChunksResponse(
            results=tuple(_refusal(named, ErrorCode.POLICY_VIOLATION, text) for named in requested)
        )
    places = [
        find_partition(cluster.image, named.topic_name, named.partition_id) for named in requested
    ]
    wanted = [
        OffsetQuery(place, LATEST) for place in places if isinstance(place, CoordinatedPartition)
    ]
    listed = iter(await list_offsets(cluster, wanted))
    now_ms = wall_ms()
    results: dict[int, _Result] = {}
    forwarded: dict[int, _RequestedPartition] = {}
    for index, (named, place) in enumerate(zip(requested, places, strict=True)):
        if not isinstance(place, CoordinatedPartition):
            results[index] = _refusal(named, place, f"There is no {_name(named)}.")
            continue
        end = next(listed)
        if end.error:
            text = f"{_name(named)}: its high watermark is not known now; retry."
            results[index] = _refusal(named, end.error, text)
            continue
        forwarded[index] = _RequestedPartition(
            topic_name=named.topic_name,
            partition_id=named.partition_id,
            broker_ids=named.broker_ids,
            start_offset=end.offset,
            start_timestamp=now_ms,
            prev_stop_offset=end.offset - 1,
            topic_id=place.topic_id,
            active_start_offset=named.active_start_offset,
        )
    if forwarded:
        answer = await _ask(
            rpc.CreateChunksRequest(topic_partitions=(*forwarded.values(),)), cluster, client
        )
        results.update(zip(forwarded, answer.results, strict=True))
        created = [named for index, named in forwarded.items() if not results[index].error_code]
        await cluster.image_where(
            lambda image: all(_has_begun(image, named) for named in created), SEEN_HERE_S
        )
    return rpc.CreateChunksResponse(
        results=tuple(results[index] for index in range(len(requested)))
    )


async def _ask(
    request: rpc.CreateChunksRequest, cluster: Cluster, client: Client | None
) -> rpc.CreateChunksResponse:
    try:
        return await cluster.ask_controller(request, rpc.CreateChunksResponse, client)
    except CoordinatorError as error:
        refusal = refuse(request, ErrorCode.REQUEST_TIMED_OUT, error.message)
        assert isinstance(refusal, rpc.CreateChunksResponse), f"{refusal}"
        return refusal


def _has_begun(image: MetadataImage, requested: _RequestedPartition) -> bool:
    """Return whether the cluster image has a new chunk of the partition, or lacks the topic."""
    topic = image.topic(requested.topic_name)
    partition = None if topic is None else topic.partitions.get(requested.partition_id)
    return partition is None or active_start(partition) >= requested.start_offset


def _name(requested: _RequestedPartition) -> str:
    return f"{requested.topic_name[:MAX_NAME_LENGTH]}-{requested.partition_id}"


def _refusal(requested: _RequestedPartition, code: int, message: str) -> _Result:
    return _Result(
        topic_name=requested.topic_name,
        partition_id=requested.partition_id,
        error_code=code,
        error_message=message,
    )


async def alter(
    request: rpc.AlterChunkAssignmentsRequest, cluster: Cluster, client: Client | None = None
) -> rpc.AlterChunkAssignmentsResponse:
    """Forward new replicas of partitions' inactive chunks to the controller."""
    try:
        answer = await cluster.ask_controller(request, rpc.AlterChunkAssignmentsResponse, client)
    except CoordinatorError as error:
        refusal = refuse(request, ErrorCode.REQUEST_TIMED_OUT, error.message)
        assert isinstance(refusal, rpc.AlterChunkAssignmentsResponse), f"{refusal}"
        return refusal
    done = {
        (result.topic_name, result.partition_id, result.start_offset)
        for result in answer.results
        if not result.error_code
    }
    moved = [
        chunk
        for chunk in request.chunks
        if (chunk.topic_name, chunk.partition_id, chunk.start_offset) in done
    ]
    await cluster.image_where(
        lambda image: all(_has_moved(image, chunk) for chunk in moved), SEEN_HERE_S
    )
    return answer


def _has_moved(
    image: MetadataImage, requested: rpc.AlterChunkAssignmentsRequest.Assignment
) -> bool:
    """Return whether the cluster image has the chunk's requested replicas, or lacks the chunk."""
    topic = image.topic(requested.topic_name)
    chunks = () if topic is None else topic.chunks.get(requested.partition_id, ())
    chunk = next((known for known in chunks if known.start_offset == requested.start_offset), None)
    return chunk is None or chunk.replicas == requested.broker_ids


def handlers(cluster: Cluster, wall_ms: Callable[[], int]) -> dict[int, Served]:
    """Return the handlers of CreateChunks and AlterChunkAssignments, by api key.

    Args:  wall_ms: the clock, ms since 1970, for the start time of a chunk.
    """
    return {
        1076: make_handler(
            rpc.CreateChunksRequest,
            lambda request, context: create(request, cluster, wall_ms, context.client),
        ),
        1077: make_handler(
            rpc.AlterChunkAssignmentsRequest,
            lambda request, context: alter(request, cluster, context.client),
        ),
    }
