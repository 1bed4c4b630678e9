"""Describes topics and brokers from an image.

Leaders and replicas are computed, as in Metadata for a client without a rack: any broker can serve
any partition, and the leaders in the log are those of the topic's creation.

Any node of the quorum answers from its own image: that is committed, and may be a moment old;
`image_offset` shows how old.

Source: KIP-1114 (what a description of a partition shows of its chunks); docs/design/chunks.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from coordinator.controller.chunk_placement import active_replicas
from coordinator.controller.image import MetadataImage, TopicImage, active_start
from coordinator.controller.placement import (
    PlacementScope,
    place,
    placement_scope,
    unfenced_brokers,
)
from raft.net import Answer, Frame, RequestHeader, ServerConnection
from raft.net.handlers import Serve, Served, payload
from records.codec import decode_message
from records.kafka_errors import ErrorCode
from records.metadata import PartitionRecord
from records.rpc import descriptions as rpc
from records.rpc.base import Request, Response
from records.types import ZERO_UUID

MAX_PARTITIONS: Final = 100_000
"""Partitions in one response: a few megabytes. Larger clusters are described topic by topic."""

NO_LEADER: Final = -1

_Topic = rpc.DescribeTopicsResponse.Topic
_Partition = rpc.DescribeTopicsResponse.Topic.Partition
_Chunk = rpc.DescribeTopicsResponse.Topic.Partition.Chunk


def describe_topics(
    request: rpc.DescribeTopicsRequest, image: MetadataImage
) -> rpc.DescribeTopicsResponse:
    """Describe topics in the order of their names; a missing topic gets an error."""
    requested = request.topic_names
    if requested is not None and len(requested) > MAX_PARTITIONS:
        return rpc.DescribeTopicsResponse(
            error_code=ErrorCode.INVALID_REQUEST,
            error_message=f"{len(requested)} topics; the limit is {MAX_PARTITIONS}.",
        )
    names = sorted(image.topic_ids if requested is None else set(requested))
    scope = placement_scope(unfenced_brokers(image), rack=None)
    topics = []
    partitions = 0
    for name in names:
        topic = image.topic(name)
        if topic is None:
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            topics.append(_Topic(topic_name=name, topic_id=ZERO_UUID, error_code=unknown))
            continue
        partitions += len(topic.partitions)
        if partitions > MAX_PARTITIONS:
            return rpc.DescribeTopicsResponse(
                error_code=ErrorCode.INVALID_REQUEST,
                error_message=f"More than {MAX_PARTITIONS} partitions: ask for topics by name.",
            )
        topics.append(_describe_topic(topic, scope))
    return rpc.DescribeTopicsResponse(image_offset=image.offset, topics=tuple(topics))


def _describe_topic(topic: TopicImage, scope: PlacementScope) -> _Topic:
    return _Topic(
        topic_name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple(
            _describe_partition(topic, index, partition, scope)
            for index, partition in sorted(topic.partitions.items())
        ),
    )


def _describe_partition(
    topic: TopicImage, index: int, partition: PartitionRecord, scope: PlacementScope
) -> _Partition:
    leader_id, replicas, in_sync = place(topic.topic_id, index, scope, active_replicas(partition))
    return _Partition(
        partition_index=index,
        leader_id=NO_LEADER if leader_id is None else leader_id,
        replicas=replicas,
        isr=in_sync,
        coordinator=topic.coordinator(index),
        chunks=_chunks(topic, index, partition),
        assigned=partition.replicas,
    )


def _chunks(topic: TopicImage, index: int, partition: PartitionRecord) -> tuple[_Chunk, ...]:
    """Describe a partition's chunks (offset ranges with their replicas), the active chunk last.

    The active chunk is in the partition's own record.
    """
    inactive = topic.chunks.get(index, ())
    if not inactive and active_start(partition) == 0:
        return ()
    cut = [
        _Chunk(
            start_offset=chunk.start_offset,
            start_timestamp=chunk.start_timestamp,
            stop_offset=chunk.stop_offset,
            end_offset=chunk.end_offset,
            epoch=chunk.chunk_epoch,
            replicas=chunk.replicas,
            isr=chunk.isr,
        )
        for chunk in inactive
    ]
    active = _Chunk(
        start_offset=active_start(partition),
        start_timestamp=partition.start_timestamp,
        stop_offset=-1,
        end_offset=-1,
        epoch=partition.partition_epoch,
        replicas=partition.replicas,
        isr=partition.isr,
    )
    return (*cut, active)


def describe_brokers(
    request: rpc.DescribeBrokersRequest,  # noqa: ARG001 (it has no fields)
    image: MetadataImage,
) -> rpc.DescribeBrokersResponse:
    """Describe the registered brokers in the order of their ids."""
    broker_type = rpc.DescribeBrokersResponse.Broker
    return rpc.DescribeBrokersResponse(
        image_offset=image.offset,
        brokers=tuple(
            broker_type(
                broker_id=broker_id,
                broker_epoch=broker.broker_epoch,
                rack=broker.rack,
                is_fenced=broker.fenced,
                in_controlled_shutdown=broker.in_controlled_shutdown,
                listeners=tuple(
                    broker_type.Listener(name=end.name, host=end.host, port=end.port)
                    for end in broker.end_points
                ),
                unpreferred_reason=broker.unpreferred_reason,
            )
            for broker_id, broker in sorted(image.brokers.items())
        ),
    )


def handlers(image: Callable[[], MetadataImage]) -> Mapping[int, Served]:
    """Return the handlers of DescribeTopics and DescribeBrokers requests, by api key.

    `image` returns this node's newest image.
    """

    def serve(kind: type[Request], answer: Callable[..., Response]) -> Serve:
        def handle(
            connection: ServerConnection,  # noqa: ARG001 (a handler's)
            header: RequestHeader,
            body: Frame,
        ) -> Answer:
            message = decode_message(kind, body, header.api_version)
            return payload(header, answer(message, image()))

        return handle

    return {
        1112: Served(0, 0, serve(rpc.DescribeTopicsRequest, describe_topics)),
        1113: Served(0, 0, serve(rpc.DescribeBrokersRequest, describe_brokers)),
    }
