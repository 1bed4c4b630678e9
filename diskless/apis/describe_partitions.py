"""DescribeTopicPartitions: describes the partitions of topics in pages.

A page has a limited number of partitions, and the cursor names the first that is not in it. Topics
are sorted by name, so a cursor means the same at every broker, also after topics were created or
deleted.

The trap: an invalid request has no error code of its own, only one for each topic.

Source: KIP-966; upstream's DescribeTopicPartitionsRequestHandler.
"""

from __future__ import annotations

from typing import Final

from coordinator.controller.access import Access
from coordinator.controller.chunk_placement import active_replicas
from coordinator.controller.guarding import replace
from coordinator.controller.image import MetadataImage, TopicImage
from coordinator.controller.placement import PlacementScope, place, placement_scope
from diskless.apis.auto_creation import check_name
from diskless.apis.metadata import (
    NOBODY,
    ClientView,
    may_describe,
    reachable,
    topic_operations,
)
from diskless.loop_turns import Pace
from records.internal_topics import INTERNAL_TOPICS
from records.kafka_errors import ErrorCode
from records.rpc.partitions import DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse
from records.types import ZERO_UUID

MAX_PARTITIONS: Final = 2_000
"""The most partitions of a page. Source: upstream's max.request.partition.size.limit."""

_Topic = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
_Partition = _Topic.DescribeTopicPartitionsResponsePartition
_Cursor = DescribeTopicPartitionsResponse.Cursor


async def describe(
    request: DescribeTopicPartitionsRequest,
    image: MetadataImage,
    view: ClientView,
    access: Access | None = None,
) -> DescribeTopicPartitionsResponse:
    """Describe one page of partitions, beginning at the request's cursor.

    Args:  access: what the client may describe; None: everything.
    """
    names = {topic.name for topic in request.topics}
    cursor = request.cursor
    start = ("", 0) if cursor is None else (cursor.topic_name, cursor.partition_index)
    if start[1] < 0 or (cursor is not None and names and cursor.topic_name not in names):
        refused = (_error_topic(ErrorCode.INVALID_REQUEST, name, image) for name in sorted(names))
        return DescribeTopicPartitionsResponse(topics=tuple(refused))
    brokers = reachable(image, view.listener)
    scope = placement_scope(brokers, view.rack)
    left = max(1, min(MAX_PARTITIONS, request.response_partition_limit))
    topics: list[_Topic] = []
    denied: list[_Topic] = []
    pace = Pace()
    for name in sorted(name for name in names or image.topic_ids if name >= start[0]):
        await pace.step()
        if not may_describe(name, access, logs=bool(names)):
            if names:
                denied.append(_denied_topic(name))
            continue
        if not left:
            return _page([*topics, *denied], name, 0)
        topic = image.topic(name)
        if topic is None:
            missing = _error_topic(check_name(name), name, image)
            operations = topic_operations(name, access)
            topics.append(replace(missing, topic_authorized_operations=operations))
            continue
        indexes = sorted(i for i in topic.partitions if name != start[0] or i >= start[1])
        taken = indexes[:left]
        operations = topic_operations(name, access)
        topics.append(await _describe_topic(topic, taken, image, scope, pace, operations))
        if len(taken) < len(indexes):
            return _page([*topics, *denied], name, indexes[len(taken)])
        left -= len(taken)
    return DescribeTopicPartitionsResponse(topics=(*topics, *denied))


def _page(topics: list[_Topic], name: str, index: int) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(
        topics=tuple(topics), next_cursor=_Cursor(topic_name=name, partition_index=index)
    )


def _error_topic(error: int, name: str, image: MetadataImage) -> _Topic:
    return _Topic(
        error_code=error,
        name=name,
        topic_id=image.topic_ids.get(name, ZERO_UUID),
        is_internal=name in INTERNAL_TOPICS,
        partitions=(),
    )


def _denied_topic(name: str) -> _Topic:
    """Return the error of a topic of which the client may not know whether it exists."""
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return _Topic(error_code=denied, name=name, topic_id=ZERO_UUID, partitions=())


async def _describe_topic(
    topic: TopicImage,
    indexes: list[int],
    image: MetadataImage,
    scope: PlacementScope,
    pace: Pace,
    operations: int,
) -> _Topic:
    partitions = []
    for index in indexes:
        await pace.step()
        partitions.append(_partition(topic, index, image, scope))
    return _Topic(
        error_code=0,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple(partitions),
        topic_authorized_operations=operations,
    )


def _partition(
    topic: TopicImage, index: int, image: MetadataImage, scope: PlacementScope
) -> _Partition:
    assigned = active_replicas(topic.partitions[index])
    leader_id, replicas, in_sync = place(topic.topic_id, index, scope, assigned)
    return _Partition(
        error_code=ErrorCode.LEADER_NOT_AVAILABLE if leader_id is None else 0,
        partition_index=index,
        leader_id=NOBODY if leader_id is None else leader_id,
        leader_epoch=image.leader_epochs(topic, index).current,
        replica_nodes=replicas,
        isr_nodes=in_sync,
        eligible_leader_replicas=(),
        last_known_elr=(),
        offline_replicas=tuple(one for one in replicas if one not in in_sync),
    )
