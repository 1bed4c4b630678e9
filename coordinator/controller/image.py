"""What the cluster has agreed on, as of one offset: an immutable view that anybody may keep.

Most values are the records themselves. A broker *is* its last RegisterBrokerRecord with the changes
since merged in, a partition its PartitionRecord, with the tagged fields that we do not know; so an
image turns into a checkpoint by listing what it holds, and back into an image by applying that.

Whoever holds an image sees it stand still; `coordinator.controller.apply` makes the next one, which
shares all that did not change.

Source: KIP-631 (records), KIP-1114 (chunks), KIP-1164 (mapping); upstream's MetadataImage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from coordinator.controller.security import Security
from coordinator.persistent_map import Map
from records.chunks import ChunkRecord
from records.metadata import (
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
)
from records.types import Epoch, Offset

_START: Final = Offset(0)
_NO_EPOCH: Final = Epoch(0)

TOPIC: Final = 2  # resource types of a ConfigRecord
BROKER: Final = 4

CLUSTER_METADATA: Final = "__cluster_metadata"
DISKLESS_METADATA: Final = "__diskless-metadata"
INTERNAL_TOPICS: Final = frozenset(
    {CLUSTER_METADATA, DISKLESS_METADATA, "__consumer_offsets", "esker-bench-log"}
)
"""Topics of the quorum itself: clients may neither write, grow at will nor delete them."""


class Resource(NamedTuple):
    """What a setting belongs to."""

    type: int
    name: str


class TopicImage(NamedTuple):
    """A topic, its partitions, their chunks, and which coordinator has which."""

    name: str
    topic_id: UUID
    partitions: Map[int, PartitionRecord]
    chunks: Map[int, tuple[ChunkRecord, ...]]  # inactive ones by rising start; most have none
    coordinators: Map[int, int]  # partition -> of `__diskless-metadata`, where not 0 by default

    def coordinator(self, partition: int) -> int:
        """The partition of `__diskless-metadata` that has this partition's batches."""
        found: int = self.coordinators.get(partition, 0)
        return found

    @property
    def is_internal(self) -> bool:
        """A topic of the quorum, not of a client."""
        return self.name in INTERNAL_TOPICS


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataImage:
    """The cluster as of `offset` (exclusive: everything below is in it)."""

    offset: Offset = _START
    epoch: Epoch = _NO_EPOCH  # of the record before the offset
    features: Map[str, int] = field(
        default_factory=Map
    )  # finalised levels; a feature at 0 is not there
    controllers: Map[int, RegisterControllerRecord] = field(default_factory=Map)
    brokers: Map[int, RegisterBrokerRecord] = field(default_factory=Map)
    topics: Map[UUID, TopicImage] = field(default_factory=Map)
    topic_ids: Map[str, UUID] = field(default_factory=Map)
    similar: Map[str, frozenset[str]] = field(
        default_factory=Map
    )  # names that hold . or _, by their name with _
    loads: Map[int, int] = field(default_factory=Map)  # client partitions of each coordinator
    configs: Map[Resource, Map[str, str]] = field(default_factory=Map)
    producer_ids: tuple[ProducerIdsRecord, ...] = ()  # ends of blocks, rising; see apply
    security: Security = field(default_factory=Security)
    record_count: int = 0  # that a checkpoint of it would hold

    def topic(self, name: str) -> TopicImage | None:
        """A topic by its name."""
        topic_id = self.topic_ids.get(name)
        return None if topic_id is None else self.topics[topic_id]

    def partition(self, topic_id: UUID, partition: int) -> PartitionRecord | None:
        """A partition by its topic's id."""
        topic = self.topics.get(topic_id)
        found: PartitionRecord | None = None if topic is None else topic.partitions.get(partition)
        return found

    def config(self, resource: Resource, name: str) -> str | None:
        """A setting of this very resource; None: it has none."""
        settings = self.configs.get(resource)
        value: str | None = None if settings is None else settings.get(name)
        return value

    def iter_topics(self) -> Iterator[TopicImage]:
        """Topics in an order that is the same everywhere: by id."""
        for topic_id in sorted(self.topics, key=_as_int):
            yield self.topics[topic_id]

    @property
    def next_producer_id(self) -> int:
        """The first producer id that nobody was given."""
        return self.producer_ids[-1].next_producer_id if self.producer_ids else 0

    @property
    def coordinator_count(self) -> int:
        """Partitions of `__diskless-metadata`: batch coordinators."""
        topic = self.topic(DISKLESS_METADATA)
        return 0 if topic is None else len(topic.partitions)


def _as_int(topic_id: UUID) -> int:
    return topic_id.int


def active_start(partition: PartitionRecord) -> int:
    """Where the active chunk begins (inclusive): without chunks, at the partition's own start."""
    return max(0, partition.start_offset)
