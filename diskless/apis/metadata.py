"""Metadata: describes brokers, topics and partitions to a client.

The answer is a function of the image and of the client's rack, so that every broker gives the same
one (`coordinator.controller.placement`). A partition's leader is chosen for that rack; its
replicas, all in sync, are the leaders for clients of the other racks, or those of its active chunk.
The leader epoch is always 0: any broker may lead.

The trap: a broker that answers lists itself, even if it is fenced; and if no broker serves, because
all restart at once or the last one leaves, all registered brokers are listed, leading nothing.
Kafka lists only brokers that serve. But librdkafka forgets every broker that is not listed, also
those that it was configured with; if it can reach none that is left, it may stop asking (its issue
5301).

A topic that is named twice is described once, as in Kafka, and long answers are built in slices.

Chunks (KIP-1114) travel in tagged fields that other clients skip.

Source: the protocol guide, Metadata; KIP-430 (authorized operations); KIP-1114;
docs/design/numbers.md#tagged-fields-where-upstream-has-no-room,
docs/design/broker.md#any-broker-leads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple
from uuid import UUID

from coordinator.controller.access import Access
from coordinator.controller.authorizer import Operation, ResourceType
from coordinator.controller.chunk_placement import active_replicas
from coordinator.controller.guarding import replace
from coordinator.controller.image import MetadataImage, TopicImage, active_start
from coordinator.controller.placement import (
    PlacedBroker,
    PlacementScope,
    place,
    placement_scope,
    unfenced_brokers,
)
from diskless.loop_turns import Pace
from records.chunks import ChunkRecord
from records.kafka_errors import ErrorCode
from records.metadata import PartitionRecord
from records.rpc.cluster import MetadataRequest, MetadataResponse
from records.types import ZERO_UUID

_Topic = MetadataResponse.MetadataResponseTopic
_Partition = MetadataResponse.MetadataResponseTopic.MetadataResponsePartition
_Chunk = _Partition.MetadataResponseChunk

NOBODY: Final = -1

FIRST_WITH_IDS: Final = 12
"""Versions 10 and 11 have the field and do not serve it. Source: KAFKA-13428."""

TOPIC_OPERATIONS: Final = sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))
"""Read, write, create, delete, alter, describe, describe and alter configs: all operations on a
topic, of a client without access control. Source: KIP-430."""

CLUSTER_OPERATIONS: Final = sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))
"""Create, alter, describe, cluster action, describe and alter configs, idempotent write."""

NOT_ASKED: Final = -(2**31)

STEPS_OF_OPERATIONS: Final = 4
"""The cost of deciding a client's eight operations on a topic, in partitions described."""


class ClientView(NamedTuple):
    """The cluster and client data that a description depends on."""

    cluster_id: str
    listener: str  # the client's listener, whose addresses are described
    rack: str | None
    broker_id: int | None = None  # the broker that answers


def reachable(image: MetadataImage, listener: str) -> list[PlacedBroker]:
    """Return the unfenced brokers that have a listener of this name."""
    return [
        broker
        for broker in unfenced_brokers(image)
        if any(end.name == listener for end in image.brokers[broker.broker_id].end_points)
    ]


def address(image: MetadataImage, broker_id: int, listener: str) -> tuple[str, int] | None:
    """Return a broker's address at a listener, or None if the broker has no such listener."""
    broker = image.brokers.get(broker_id)
    ends = () if broker is None else broker.end_points
    return next(((end.host, end.port) for end in ends if end.name == listener), None)


async def describe(
    request: MetadataRequest,
    version: int,
    image: MetadataImage,
    view: ClientView,
    missing: Mapping[str, int] = MappingProxyType({}),
    access: Access | None = None,
) -> MetadataResponse:
    """Answer a Metadata request; each unknown topic has its own error.

    Args:  missing: error codes of topics that could not be created.
           access: what the client may describe; None: everything.
    """
    brokers = reachable(image, view.listener)
    scope = placement_scope(brokers, view.rack)
    with_operations = request.include_topic_authorized_operations
    pace, topics = Pace(), []
    requested: Iterator[TopicImage | _Topic | None]
    if wants_all(request, version):
        requested = _all_topics(await _sorted_names(image, pace), image, access)
    else:
        requested = _requested_topics(request, version, image, missing, access)
    for found in requested:
        await pace.step()
        if found is None:
            continue
        if with_operations and access is not None:
            await pace.step(STEPS_OF_OPERATIONS)
        described = (
            await _describe_topic(found, image, scope, pace)
            if isinstance(found, TopicImage)
            else found
        )
        if with_operations and described.error_code not in _WITHOUT_OPERATIONS:
            bits = topic_operations(described.name or "", access)
            described = replace(described, topic_authorized_operations=bits)
        topics.append(described)
    with_cluster_operations = request.include_cluster_authorized_operations
    named = tuple(_listed_brokers(image, brokers, view))
    return MetadataResponse(
        brokers=named,
        cluster_id=view.cluster_id,
        controller_id=controller_of(
            brokers, view.broker_id, listed=[broker.node_id for broker in named]
        ),
        topics=tuple(topics),
        cluster_authorized_operations=cluster_operations(access)
        if with_cluster_operations
        else NOT_ASKED,
    )


_WITHOUT_OPERATIONS: Final = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INVALID_REQUEST,
)
"""The errors of topics whose authorized operations are not told."""


def topic_operations(name: str, access: Access | None) -> int:
    """Return the operations that a client may do on a topic, as a set of bits."""
    return TOPIC_OPERATIONS if access is None else access.operations(ResourceType.TOPIC, name)


def cluster_operations(access: Access | None) -> int:
    """Return the operations that a client may do on the cluster; 0 if it may not describe it."""
    if access is None:
        return CLUSTER_OPERATIONS
    if not access.allows_cluster(Operation.DESCRIBE):
        return 0
    return access.operations(ResourceType.CLUSTER)


def may_describe(name: str, access: Access | None, *, logs: bool = True) -> bool:
    """Return whether a client may know that a topic exists."""
    return access is None or access.allows(Operation.DESCRIBE, ResourceType.TOPIC, name, logs=logs)


def wants_all(request: MetadataRequest, version: int) -> bool:
    """Return whether the request wants all topics: by null, or by an empty list in version 0."""
    return request.topics is None or (version == 0 and not request.topics)


async def _sorted_names(image: MetadataImage, pace: Pace) -> list[str]:
    """Return the names of all topics, in order."""
    names = []
    for name in image.topic_ids:
        await pace.step()
        names.append(name)
    names.sort()
    return names


def _all_topics(
    names: Iterable[str], image: MetadataImage, access: Access | None
) -> Iterator[TopicImage | None]:
    """Yield each of these topics, or None in place of one that the client may not describe."""
    for name in names:
        yield image.topic(name) if may_describe(name, access, logs=False) else None


def _requested_topics(
    request: MetadataRequest,
    version: int,
    image: MetadataImage,
    missing: Mapping[str, int],
    access: Access | None,
) -> Iterator[TopicImage | _Topic | None]:
    """Yield each named topic, or an error if it is missing or denied; None for a repeated one."""
    requested = request.topics or ()
    if version < FIRST_WITH_IDS and any(t.name is None or t.topic_id.int for t in requested):
        for named in requested:
            yield _error_topic(ErrorCode.INVALID_REQUEST, named.name or "", named.topic_id)
        return
    seen = set[tuple[str | None, UUID]]()
    for named in requested:
        name, topic_id = key = named.name, named.topic_id
        if key in seen:
            yield None
            continue
        seen.add(key)
        found = image.topics.get(topic_id) if name is None else image.topic(name)
        known_name = name if found is None else found.name
        if known_name is not None and not may_describe(known_name, access):
            denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            yield _error_topic(denied, name, ZERO_UUID if name is not None else topic_id)
        elif found is not None:
            yield found
        elif name is None:
            yield _error_topic(ErrorCode.UNKNOWN_TOPIC_ID, None, topic_id)
        else:
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            yield _error_topic(missing.get(name, unknown), name, ZERO_UUID)


def _error_topic(error: int, name: str | None, topic_id: UUID) -> _Topic:
    return _Topic(error_code=error, name=name, topic_id=topic_id, partitions=())


def _listed_brokers(
    image: MetadataImage, serving: Iterable[PlacedBroker], view: ClientView
) -> Iterable[MetadataResponse.MetadataResponseBroker]:
    """Yield this broker and the unfenced brokers, or all registered brokers if all are fenced."""
    alive = {broker.broker_id for broker in serving}
    for broker_id, broker in sorted(image.brokers.items()):
        if not alive or broker_id in alive or broker_id == view.broker_id:
            found = address(image, broker_id, view.listener)
            if found is not None:
                yield MetadataResponse.MetadataResponseBroker(
                    node_id=broker_id, host=found[0], port=found[1], rack=broker.rack
                )


def controller_of(
    serving: Sequence[PlacedBroker], own: int | None, *, listed: Sequence[int] = ()
) -> int:
    """Choose a broker as the controller, because every broker forwards controller requests.

    The answering broker is certainly alive; the image may still have another that has just ended.
    An answer with brokers must name one: librdkafka's admin client asks only once, and then waits
    for minutes.

    Args:  own: the broker that answers.
           listed: the brokers in the response; the first is chosen if no broker serves.
    """
    ids = [broker.broker_id for broker in serving] or listed
    if own is not None and own in ids:
        return own
    return ids[0] if ids else NOBODY


async def _describe_topic(
    topic: TopicImage, image: MetadataImage, scope: PlacementScope, pace: Pace
) -> _Topic:
    partitions = []
    for index, record in sorted(topic.partitions.items()):
        await pace.step()
        partitions.append(_partition(topic, index, record, image, scope))
    return _Topic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple(partitions),
    )


def _partition(
    topic: TopicImage,
    index: int,
    record: PartitionRecord,
    image: MetadataImage,
    scope: PlacementScope,
) -> _Partition:
    leader_id, replicas, in_sync = place(topic.topic_id, index, scope, active_replicas(record))
    chunks = topic.chunks.get(index, ())
    return _Partition(
        error_code=ErrorCode.LEADER_NOT_AVAILABLE if leader_id is None else 0,
        partition_index=index,
        leader_id=NOBODY if leader_id is None else leader_id,
        leader_epoch=image.leader_epochs(topic, index).current,
        replica_nodes=replicas,
        isr_nodes=in_sync,
        offline_replicas=tuple(one for one in replicas if one not in in_sync),
        start_offset=active_start(record) if chunks else -1,
        chunks=tuple(_chunk(chunk, scope, leader_id) for chunk in chunks),
    )


def _chunk(chunk: ChunkRecord, scope: PlacementScope, leader_id: int | None) -> _Chunk:
    """Describe a closed chunk; the leader serves it where no replica does."""
    placed = {broker.broker_id for broker in scope.brokers}
    in_sync = tuple(one for one in chunk.replicas if one in placed)
    if not in_sync and leader_id is not None:
        in_sync = (leader_id,)
    return _Chunk(
        start_offset=chunk.start_offset,
        start_timestamp=chunk.start_timestamp,
        stop_offset=chunk.stop_offset,
        end_offset=chunk.end_offset,
        replica_nodes=chunk.replicas,
        isr_nodes=in_sync,
    )
