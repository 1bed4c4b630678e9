"""Metadata: the cluster as a client is to see it.

What is told is a function of the image and of the rack that the client says it is in, so that every
broker tells the same (`diskless.placement`). A partition's leader is chosen for that rack; its
replicas, all in sync, are the brokers that clients of the other racks are sent to. The leader epoch
is 0 for ever: nobody is deposed, for anybody may lead.

The surprise: a broker that answers names itself, be it fenced, and where nobody serves, since all
come back at once or the last one leaves, all members are named; leading nothing. Kafka names who
serves and nobody else. But librdkafka forgets every broker that is not named, and those that it was
configured with; if none is left that it can reach, it may ask nobody any more (its issue 5301).

Two things keep a question from costing more than it should: a topic that is named twice is
described once, as in Kafka, and what takes long to describe is described in slices.

Chunks (KIP-1114) travel in tagged fields that other clients skip.

Source: the protocol guide, Metadata; KIP-430 (authorized operations); KIP-1114;
docs/design/numbers.md#tagged-fields-where-upstream-has-no-room,
docs/design/broker.md#any-broker-leads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple
from uuid import UUID

from coordinator.controller.image import MetadataImage, TopicImage, active_start
from diskless.fetch.runs_reader import LEADER_EPOCH
from diskless.loop_turns import Pace
from diskless.placement import PlacedBroker, is_known, leaders, unfenced
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
"""Read, write, create, delete, alter, describe, describe and alter configs: all there are.
Nobody is refused anything here, so everybody is told so. Source: KIP-430."""

CLUSTER_OPERATIONS: Final = sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))
"""Create, alter, describe, cluster action, describe and alter configs, idempotent write."""

NOT_ASKED: Final = -(2**31)


class ClientView(NamedTuple):
    """What of the cluster depends on who asks."""

    cluster_id: str
    listener: str  # the listener the client came by: it is told the addresses of that one
    rack: str | None
    asked: int | None = None  # the broker that answers


class Placing(NamedTuple):
    """The brokers that partitions are placed on, and whom for."""

    brokers: list[PlacedBroker]
    rack: str | None


class Placed(NamedTuple):
    """Where a client finds a partition."""

    leader_id: int | None
    replicas: tuple[int, ...]  # rising; all of them in sync


def reachable(image: MetadataImage, listener: str) -> list[PlacedBroker]:
    """Those of them that have the listener by which a client came."""
    return [
        broker
        for broker in unfenced(image)
        if any(end.name == listener for end in image.brokers[broker.broker_id].end_points)
    ]


def address(image: MetadataImage, broker_id: int, listener: str) -> tuple[str, int] | None:
    """Where clients of a listener find a broker; None if it has no such listener."""
    broker = image.brokers.get(broker_id)
    ends = () if broker is None else broker.end_points
    return next(((end.host, end.port) for end in ends if end.name == listener), None)


def place(topic_id: UUID, index: int, placing: Placing) -> Placed:
    """Who leads a partition for these clients, and who its replicas are."""
    best, by_rack = leaders(topic_id, index, placing.brokers)
    leader_id = best if placing.rack is None else by_rack.get(placing.rack, best)
    known = set(by_rack.values())
    if leader_id is not None:
        known.add(leader_id)
    return Placed(leader_id, tuple(sorted(known)))


async def describe(
    request: MetadataRequest,
    version: int,
    image: MetadataImage,
    view: ClientView,
    missing: Mapping[str, int] = MappingProxyType({}),
) -> MetadataResponse:
    """The answer to a Metadata request; unknown topics have errors, each its own.

    Args:  missing: error codes of topics that were to be made and are not there.
    """
    brokers = reachable(image, view.listener)
    placing = Placing(brokers, view.rack if is_known(view.rack, brokers) else None)
    with_operations = request.include_topic_authorized_operations
    pace, topics = Pace(), []
    for found in _asked_for(request, version, image, missing):
        await pace.step()
        if isinstance(found, TopicImage):
            topics.append(await _described(found, placing, pace, with_operations=with_operations))
        else:
            topics.append(found)
    asked_cluster = request.include_cluster_authorized_operations
    named = tuple(_named(image, brokers, view))
    return MetadataResponse(
        brokers=named,
        cluster_id=view.cluster_id,
        controller_id=_controller(brokers, [broker.node_id for broker in named], view),
        topics=tuple(topics),
        cluster_authorized_operations=CLUSTER_OPERATIONS if asked_cluster else NOT_ASKED,
    )


def wants_all(request: MetadataRequest, version: int) -> bool:
    """Version 0 asks for all topics by naming none, later ones by null."""
    return request.topics is None or (version == 0 and not request.topics)


def _asked_for(
    request: MetadataRequest, version: int, image: MetadataImage, missing: Mapping[str, int]
) -> Iterator[TopicImage | _Topic]:
    """The topics, each once, or the error in place of one."""
    if wants_all(request, version):
        yield from sorted(image.topics.values(), key=lambda topic: topic.name)
        return
    asked_for = request.topics or ()
    if version < FIRST_WITH_IDS and any(t.name is None or t.topic_id.int for t in asked_for):
        for asked in asked_for:
            yield _failed(ErrorCode.INVALID_REQUEST, asked.name or "", asked.topic_id)
        return
    for name, topic_id in dict.fromkeys((asked.name, asked.topic_id) for asked in asked_for):
        found = image.topics.get(topic_id) if name is None else image.topic(name)
        if found is not None:
            yield found
        elif name is None:
            yield _failed(ErrorCode.UNKNOWN_TOPIC_ID, None, topic_id)
        else:
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            yield _failed(missing.get(name, unknown), name, ZERO_UUID)


def _failed(error: int, name: str | None, topic_id: UUID) -> _Topic:
    return _Topic(error_code=error, name=name, topic_id=topic_id, partitions=())


def _named(
    image: MetadataImage, serving: Iterable[PlacedBroker], view: ClientView
) -> Iterable[MetadataResponse.MetadataResponseBroker]:
    """The brokers that serve, or else all members; and the one that was asked. See the module."""
    alive = {broker.broker_id for broker in serving}
    for broker_id, broker in sorted(image.brokers.items()):
        if not alive or broker_id in alive or broker_id == view.asked:
            found = address(image, broker_id, view.listener)
            if found is not None:
                yield MetadataResponse.MetadataResponseBroker(
                    node_id=broker_id, host=found[0], port=found[1], rack=broker.rack
                )


def _controller(serving: list[PlacedBroker], named: list[int], view: ClientView) -> int:
    """Any broker forwards to the controller. Whoever hears of brokers must hear of one of them as
    the controller: librdkafka's administrator asks about that once, and then waits for minutes.
    """
    if serving:
        return serving[0].broker_id
    if view.asked in named:
        return view.asked  # it is there, for it answers
    return named[0] if named else NOBODY


async def _described(
    topic: TopicImage, placing: Placing, pace: Pace, *, with_operations: bool
) -> _Topic:
    partitions = []
    for index, record in sorted(topic.partitions.items()):
        await pace.step()
        partitions.append(_partition(topic, index, record, placing))
    return _Topic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple(partitions),
        topic_authorized_operations=TOPIC_OPERATIONS if with_operations else NOT_ASKED,
    )


def _partition(
    topic: TopicImage, index: int, record: PartitionRecord, placing: Placing
) -> _Partition:
    leader_id, replicas = place(topic.topic_id, index, placing)
    chunks = topic.chunks.get(index, ())
    return _Partition(
        error_code=ErrorCode.LEADER_NOT_AVAILABLE if leader_id is None else 0,
        partition_index=index,
        leader_id=NOBODY if leader_id is None else leader_id,
        leader_epoch=LEADER_EPOCH,
        replica_nodes=replicas,
        isr_nodes=replicas,
        start_offset=active_start(record) if chunks else -1,
        chunks=tuple(
            _Chunk(
                start_offset=chunk.start_offset,
                start_timestamp=chunk.start_timestamp,
                stop_offset=chunk.stop_offset,
                end_offset=chunk.end_offset,
                replica_nodes=chunk.replicas,
                isr_nodes=chunk.isr,
            )
            for chunk in chunks
        ),
    )
