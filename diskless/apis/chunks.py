"""Chunks are created and moved: a broker reads where a partition ends, the controller decides.

The new chunk begins at the high watermark. Only the partition's coordinator can say where that is,
and only behind the read barrier is it not an old one, so the broker that is asked reads it there,
whatever start the request names. Between that and the controller's decision the partition may grow:
no harm is done, for the old chunk then ends a little earlier than it might have.

Source: KIP-1114, Handle ChunkCreateRequest; docs/design/numbers.md#offsets-of-chunks,
docs/design/chunks.md#creating-a-chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from coordinator.controller.image import MetadataImage, active_start
from coordinator.controller.refusals import refuse
from coordinator.errors import CoordinatorError
from diskless.apis.handler import served
from diskless.apis.partition_offsets import LATEST, Place, Wanted, find_place, list_offsets
from diskless.cluster import Cluster
from raft.net.handlers import Served
from records.kafka_errors import ErrorCode
from records.rpc import chunks as rpc

SEEN_HERE_S: Final = 1.0
"""How long an answer is held back for this broker's own image, at most."""

MAX_NAME_LENGTH: Final = 249  # of a topic, and so of what is repeated to whoever names one
MAX_CHUNKS: Final = 1_000  # of one request, as the controller takes them

_Asked = rpc.CreateChunksRequest.TopicPartition
_Result = rpc.CreateChunksResponse.TopicPartitionResult


async def create(
    request: rpc.CreateChunksRequest, cluster: Cluster, wall_ms: Callable[[], int]
) -> rpc.CreateChunksResponse:
    """End the active chunk of each partition where it ends now, and begin another."""
    asked = request.topic_partitions
    if len(asked) > MAX_CHUNKS:
        text = f"More than {MAX_CHUNKS} at once."
        return rpc.CreateChunksResponse(
            results=tuple(_refused(one, ErrorCode.POLICY_VIOLATION, text) for one in asked)
        )
    places = [find_place(cluster.image, one.topic_name, one.partition_id) for one in asked]
    wanted = [Wanted(place, LATEST) for place in places if isinstance(place, Place)]
    listed = iter(await list_offsets(cluster, wanted))
    now_ms = wall_ms()
    results: dict[int, _Result] = {}
    forwarded: dict[int, _Asked] = {}
    for at, (one, place) in enumerate(zip(asked, places, strict=True)):
        if not isinstance(place, Place):
            results[at] = _refused(
                one, place, f"There is no {one.topic_name[:249]}-{one.partition_id}."
            )
            continue
        end = next(listed)
        if end.error:
            text = f"{one.topic_name}-{one.partition_id}: its high watermark is not known now."
            results[at] = _refused(one, end.error, text)
            continue
        forwarded[at] = _Asked(
            topic_name=one.topic_name,
            partition_id=one.partition_id,
            broker_ids=one.broker_ids,
            start_offset=end.offset,
            start_timestamp=now_ms,
            prev_stop_offset=end.offset - 1,
            topic_id=place.topic_id,
        )
    if forwarded:
        answer = await _ask(
            rpc.CreateChunksRequest(topic_partitions=(*forwarded.values(),)), cluster
        )
        results.update(zip(forwarded, answer.results, strict=True))
        made = [one for at, one in forwarded.items() if not results[at].error_code]
        await cluster.image_where(
            lambda image: all(_begun(image, one) for one in made), SEEN_HERE_S
        )
    return rpc.CreateChunksResponse(results=tuple(results[at] for at in range(len(asked))))


async def _ask(request: rpc.CreateChunksRequest, cluster: Cluster) -> rpc.CreateChunksResponse:
    try:
        return await cluster.ask_controller(request, rpc.CreateChunksResponse)
    except CoordinatorError as error:
        refusal = refuse(request, ErrorCode.REQUEST_TIMED_OUT, error.message)
        assert isinstance(refusal, rpc.CreateChunksResponse), f"{refusal}"
        return refusal


def _begun(image: MetadataImage, asked: _Asked) -> bool:
    """Does the active chunk begin there, or later? So it does where the topic is gone."""
    topic = image.topic(asked.topic_name)
    partition = None if topic is None else topic.partitions.get(asked.partition_id)
    return partition is None or active_start(partition) >= asked.start_offset


def _name(asked: _Asked) -> str:
    return f"{asked.topic_name[:MAX_NAME_LENGTH]}-{asked.partition_id}"


def _refused(asked: _Asked, code: int, message: str) -> _Result:
    return _Result(
        topic_name=asked.topic_name,
        partition_id=asked.partition_id,
        error_code=code,
        error_message=message,
    )


async def alter(
    request: rpc.AlterChunkAssignmentsRequest, cluster: Cluster
) -> rpc.AlterChunkAssignmentsResponse:
    """Give inactive chunks other replicas: the controller's decision."""
    try:
        answer = await cluster.ask_controller(request, rpc.AlterChunkAssignmentsResponse)
    except CoordinatorError as error:
        refusal = refuse(request, ErrorCode.REQUEST_TIMED_OUT, error.message)
        assert isinstance(refusal, rpc.AlterChunkAssignmentsResponse), f"{refusal}"
        return refusal
    done = {
        (told.topic_name, told.partition_id, told.start_offset)
        for told in answer.results
        if not told.error_code
    }
    moved = [
        one
        for one in request.chunks
        if (one.topic_name, one.partition_id, one.start_offset) in done
    ]
    await cluster.image_where(lambda image: all(_moved(image, one) for one in moved), SEEN_HERE_S)
    return answer


def _moved(image: MetadataImage, asked: rpc.AlterChunkAssignmentsRequest.Assignment) -> bool:
    """Has the chunk these replicas, unless it is gone?"""
    topic = image.topic(asked.topic_name)
    chunks = () if topic is None else topic.chunks.get(asked.partition_id, ())
    chunk = next((one for one in chunks if one.start_offset == asked.start_offset), None)
    return chunk is None or chunk.replicas == asked.broker_ids


def handlers(cluster: Cluster, wall_ms: Callable[[], int]) -> dict[int, Served]:
    """By api key.

    Args:  wall_ms: the clock, ms since 1970; a chunk says since when it takes records.
    """
    return {
        1076: served(rpc.CreateChunksRequest, lambda request, _: create(request, cluster, wall_ms)),
        1077: served(rpc.AlterChunkAssignmentsRequest, lambda request, _: alter(request, cluster)),
    }
