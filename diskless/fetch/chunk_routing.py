"""Leads consumers of a partition that was cut into chunks to the brokers that keep them.

A Fetch of a chunk that other brokers keep is answered with one of them as preferred read replica,
and without batches. A Fetch of a chunk that this broker keeps is answered up to the chunk's end, if
the next chunk is kept elsewhere: so the next Fetch begins there, and is led on.

The trap: circles. Two brokers' images may differ for a moment, and a client may ignore what it is
told. So each chunk sends a client away once a minute at most; a client that comes back is served.

Source: docs/design/chunks.md#where-clients-are-led; KIP-392 (preferred read replica).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from coordinator.controller.chunk_placement import ChunkSpan, broker_to_read, chunk_at
from coordinator.controller.image import MetadataImage, TopicImage
from coordinator.controller.placement import PlacedBroker, unfenced_brokers
from diskless.fetch.local_segments.format import TopicPartition
from diskless.placement import Redirects

CHUNKS_LOOKED_AT: Final = 16  # that this broker keeps, side by side; an answer ends behind them


class Reader(NamedTuple):
    """A consumer, as its Fetch describes it."""

    client: str  # any string that tells clients apart
    rack: str | None


class Route(NamedTuple):
    """The broker that serves a Fetch, and how far."""

    broker_id: int | None  # None: this broker
    last_offset: int | None  # of the last batch's first record; None: no bound


class ChunkRouting:
    """The routes of one Fetch, by one image."""

    def __init__(self, image: MetadataImage, here: int, redirects: Redirects) -> None:
        """Prepare to route consumers that have come to the broker `here`."""
        self._image = image
        self._here = here
        self._redirects = redirects
        self._brokers: Sequence[PlacedBroker] = unfenced_brokers(image)

    def route(
        self, partition: TopicPartition, offset: int, reader: Reader, now_s: float
    ) -> Route | None:
        """Return where a consumer reads from an offset; None if no chunk has it."""
        topic = self._image.topics[partition.topic_id]
        span = chunk_at(topic, partition.partition, offset)
        if span is None:
            return None
        there = self._elsewhere(topic, partition, span, reader)
        key = (reader.client, *partition, span.start_offset)
        if there is not None and self._redirects.may_send(key, now_s):
            return Route(there, None)
        for _ in range(CHUNKS_LOOKED_AT):
            if span.last_offset is None:
                return Route(None, None)
            following = chunk_at(topic, partition.partition, span.last_offset + 1)
            if following is None:
                return Route(None, None)
            if self._elsewhere(topic, partition, following, reader) is not None:
                break
            span = following
        return Route(None, span.last_offset)

    def _elsewhere(
        self, topic: TopicImage, partition: TopicPartition, span: ChunkSpan, reader: Reader
    ) -> int | None:
        return broker_to_read(
            topic.topic_id,
            partition.partition,
            span,
            client=reader.client,
            rack=reader.rack,
            here=self._here,
            brokers=self._brokers,
        )
