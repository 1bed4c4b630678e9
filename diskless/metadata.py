"""Metadata: the cluster as a client is to see it.

What is told is a function of the image and of the rack that the client says it is in, so that every
broker tells the same (`diskless.placement`). A partition's leader is chosen for that rack; its
replicas, all in sync, are the brokers that clients of the other racks are sent to. The leader epoch
is 0 for ever: nobody is deposed, for anybody may lead.

Chunks (KIP-1114) travel in tagged fields that other clients skip.

Source: the protocol guide, Metadata; KIP-1114; DESIGN §3, §8 (any broker leads).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum, unique
from typing import Final, NamedTuple
from uuid import UUID

from coordinator.controller.image import MetadataImage, TopicImage, active_start
from diskless.placement import PlacedBroker, leader
from diskless.runs_reader import LEADER_EPOCH
from records.metadata import PartitionRecord
from records.rpc.cluster import MetadataRequest, MetadataResponse
from records.types import ZERO_UUID

_Topic = MetadataResponse.MetadataResponseTopic
_Partition = MetadataResponse.MetadataResponseTopic.MetadataResponsePartition
_Chunk = _Partition.MetadataResponseChunk

NOBODY: Final = -1


@unique
class MetadataError(IntEnum):
    """Why a topic or a partition is not described. The numbers are Kafka's."""

    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    UNKNOWN_TOPIC_ID = 100


class ClientView(NamedTuple):
    """What of the cluster depends on who asks."""

    cluster_id: str
    listener: str  # the listener the client came by: it is told the addresses of that one
    rack: str | None


def unfenced(image: MetadataImage) -> list[PlacedBroker]:
    """The brokers that clients may be sent to."""
    return [
        PlacedBroker(broker_id, broker.rack)
        for broker_id, broker in sorted(image.brokers.items())
        if not broker.fenced and not broker.in_controlled_shutdown
    ]


def describe(
    request: MetadataRequest, version: int, image: MetadataImage, view: ClientView
) -> MetadataResponse:
    """The answer to a Metadata request; unknown topics have errors, each its own."""
    brokers = unfenced(image)
    topics = [
        topic if isinstance(topic, _Topic) else _described(topic, brokers, view.rack)
        for topic in _asked_for(request, version, image)
    ]
    return MetadataResponse(
        brokers=tuple(_brokers(image, brokers, view.listener)),
        cluster_id=view.cluster_id,
        controller_id=brokers[0].broker_id if brokers else NOBODY,
        topics=tuple(topics),
    )


def _asked_for(
    request: MetadataRequest, version: int, image: MetadataImage
) -> Iterable[TopicImage | _Topic]:
    """The topics, or the error in place of one. Version 0 asks for all by naming none."""
    if request.topics is None or (version == 0 and not request.topics):
        yield from sorted(image.topics.values(), key=lambda topic: topic.name)
        return
    for asked in request.topics:
        found = image.topics.get(asked.topic_id) if asked.name is None else image.topic(asked.name)
        if found is not None:
            yield found
        elif asked.name is None:
            yield _unknown(MetadataError.UNKNOWN_TOPIC_ID, None, asked.topic_id)
        else:
            yield _unknown(MetadataError.UNKNOWN_TOPIC_OR_PARTITION, asked.name, ZERO_UUID)


def _unknown(error: MetadataError, name: str | None, topic_id: UUID) -> _Topic:
    return _Topic(error_code=error, name=name, topic_id=topic_id, partitions=())


def _brokers(
    image: MetadataImage, brokers: Iterable[PlacedBroker], listener: str
) -> Iterable[MetadataResponse.MetadataResponseBroker]:
    for broker_id, rack in brokers:
        for end in image.brokers[broker_id].end_points:
            if end.name == listener:
                yield MetadataResponse.MetadataResponseBroker(
                    node_id=broker_id, host=end.host, port=end.port, rack=rack
                )


def _described(topic: TopicImage, brokers: list[PlacedBroker], rack: str | None) -> _Topic:
    return _Topic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=tuple(
            _partition(topic, index, record, brokers, rack)
            for index, record in sorted(topic.partitions.items())
        ),
    )


def _partition(
    topic: TopicImage,
    index: int,
    record: PartitionRecord,
    brokers: list[PlacedBroker],
    rack: str | None,
) -> _Partition:
    leader_id = leader(topic.topic_id, index, rack, brokers)
    racks = {broker.rack for broker in brokers}
    replicas = {leader(topic.topic_id, index, one, brokers) for one in racks} | {leader_id}
    known = tuple(sorted(replica for replica in replicas if replica is not None))
    chunks = topic.chunks.get(index, ())
    error = MetadataError.LEADER_NOT_AVAILABLE if leader_id is None else 0
    return _Partition(
        error_code=error,
        partition_index=index,
        leader_id=NOBODY if leader_id is None else leader_id,
        leader_epoch=LEADER_EPOCH,
        replica_nodes=known,
        isr_nodes=known,
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
