"""Which brokers keep which offsets of a partition, and to which of them a consumer is led.

A replica of a chunk is a broker that keeps its records at hand; any broker serves any offset. So
these are functions of the image, a wrong or old answer costs a GET, and the brokers store nothing.

The trap: racks come before chunks. A client of a rack without a replica stays in its rack, since
bytes between racks cost more than a GET, and the brokers of that rack keep what they serve.

Source: KIP-1114; docs/design/chunks.md#where-clients-are-led,
docs/design/chunks.md#who-keeps-what.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from coordinator.controller.image import MetadataImage, TopicImage, active_start
from coordinator.controller.placement import PlacedBroker, leader
from coordinator.controller.preference import serving_brokers
from coordinator.rendezvous import score
from records.chunks import ChunkRecord
from records.metadata import PartitionRecord


class ChunkSpan(NamedTuple):
    """The offsets of a chunk, and its replicas."""

    start_offset: int
    last_offset: int | None  # inclusive; None: the active chunk
    replicas: tuple[int, ...]


def is_cut(partition: PartitionRecord) -> bool:
    """Return whether the partition was ever cut into chunks."""
    return active_start(partition) > 0


def active_replicas(partition: PartitionRecord) -> tuple[int, ...]:
    """Return the replicas of the active chunk, or none if the partition was never cut."""
    return partition.replicas if is_cut(partition) else ()


def chunk_at(topic: TopicImage, index: int, offset: int) -> ChunkSpan | None:
    """Return the chunk that has this offset; None if none has, or the partition was never cut."""
    partition = topic.partitions[index]
    if not is_cut(partition):
        return None
    if offset >= active_start(partition):
        return ChunkSpan(active_start(partition), None, partition.replicas)
    chunks: tuple[ChunkRecord, ...] = topic.chunks.get(index, ())
    before = bisect_right(chunks, offset, key=_start_of) - 1
    if before < 0 or offset > chunks[before].end_offset:
        return None
    found = chunks[before]
    return ChunkSpan(found.start_offset, found.end_offset, found.replicas)


def _start_of(chunk: ChunkRecord) -> int:
    return chunk.start_offset


def broker_to_read(
    topic_id: UUID,
    index: int,
    span: ChunkSpan,
    *,
    client: str,
    rack: str | None,
    here: int,
    brokers: Sequence[PlacedBroker],
) -> int | None:
    """Return the other broker that a consumer of a chunk is led to, or None if it stays `here`.

    Args:  client: any string that tells clients apart; it spreads them over a closed chunk's
               replicas.
           rack: of the client; None or a rack without a broker: any.
           brokers: the unfenced ones.
    """
    preferred = [broker for broker in brokers if broker.is_preferred]
    candidates = [broker for broker in preferred if broker.broker_id in span.replicas]
    in_rack = [broker for broker in preferred if broker.rack == rack] if rack is not None else []
    if in_rack:
        candidates = [broker for broker in candidates if broker.rack == rack] or in_rack
    if not candidates or any(broker.broker_id == here for broker in candidates):
        return None
    if span.last_offset is None:
        return leader(topic_id, index, None, candidates)
    name = topic_id.bytes + index.to_bytes(4, "big") + client.encode()
    return max((broker.broker_id for broker in candidates), key=lambda one: score(name, one))


def keeps(
    image: MetadataImage, broker_id: int, topic_id: UUID, index: int, first: int, last: int
) -> bool:
    """Return whether a broker keeps some of the offsets `first` to `last`, both inclusive."""
    topic = image.topics.get(topic_id)
    if topic is None or index not in topic.partitions or not is_cut(topic.partitions[index]):
        return True
    offset: int | None = first
    while offset is not None and offset <= last:
        span = chunk_at(topic, index, offset)
        if span is None or _is_keeper(image, broker_id, span.replicas):
            return True
        offset = None if span.last_offset is None else span.last_offset + 1
    return False


def _is_keeper(image: MetadataImage, broker_id: int, replicas: tuple[int, ...]) -> bool:
    """Return whether a broker is a replica, or the consumers of its rack have none."""
    if broker_id in replicas:
        return True
    own, serving = image.brokers.get(broker_id), serving_brokers(image)
    rack = None if own is None else own.rack
    return not any(
        replica in serving and (rack is None or serving[replica].rack == rack)
        for replica in replicas
    )
