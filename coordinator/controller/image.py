"""The state of the cluster as of one offset: an immutable view that any code may keep.

Most values are the records themselves. A broker *is* its last RegisterBrokerRecord with the changes
since merged in, a partition its PartitionRecord, with the tagged fields that Esker does not know;
so an image turns into a checkpoint by listing its records, and back into an image by applying them.

An image never changes; `coordinator.controller.apply` makes the next one, which shares everything
that did not change.

Source: KIP-631 (records), KIP-1114 (chunks), KIP-1164 (mapping); upstream's MetadataImage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from coordinator.controller.security import Security
from coordinator.features import Features
from coordinator.persistent_map import Map
from records.chunks import ChunkRecord
from records.internal_topics import DISKLESS_METADATA, INTERNAL_TOPICS
from records.leader_epochs import LeaderEpochs
from records.metadata import (
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
)
from records.object_keys import Ancestor, Ancestors
from records.timelines import PartitionTimelinesRecord, TimelineRecord
from records.types import Epoch, Offset

_START: Final = Offset(0)
_NO_EPOCH: Final = Epoch(0)

_NO_TIMELINES: Final[Map[int, PartitionTimelinesRecord]] = Map()

TOPIC: Final = 2  # resource types of a ConfigRecord
BROKER: Final = 4


class Resource(NamedTuple):
    """The topic or broker that a setting belongs to."""

    type: int
    name: str


class TopicImage(NamedTuple):
    """A topic, its partitions, their chunks, and the batch coordinator of each."""

    name: str
    topic_id: UUID
    partitions: Map[int, PartitionRecord]
    chunks: Map[int, tuple[ChunkRecord, ...]]  # inactive ones by rising start; most have none
    coordinators: Map[int, int]  # partition -> of `__diskless-metadata`, where not 0 by default
    timelines: Map[int, PartitionTimelinesRecord] = _NO_TIMELINES  # of partitions before a restore

    def coordinator(self, partition: int) -> int:
        """Return a partition's batch coordinator, a partition of `__diskless-metadata`."""
        found: int = self.coordinators.get(partition, 0)
        return found

    @property
    def is_internal(self) -> bool:
        """Return whether the topic is a log of the quorums and not a client's topic."""
        return self.name in INTERNAL_TOPICS


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataImage:
    """The cluster as of `offset` (exclusive: every record below it is applied)."""

    offset: Offset = _START
    epoch: Epoch = _NO_EPOCH  # of the record before the offset
    features: Features = field(default_factory=Features)  # finalized levels
    controllers: Map[int, RegisterControllerRecord] = field(default_factory=Map)
    brokers: Map[int, RegisterBrokerRecord] = field(default_factory=Map)
    topics: Map[UUID, TopicImage] = field(default_factory=Map)
    topic_ids: Map[str, UUID] = field(default_factory=Map)
    similar: Map[str, frozenset[str]] = field(default_factory=Map)  # by `apply.metric_name`
    loads: Map[int, int] = field(default_factory=Map)  # client partitions of each coordinator
    configs: Map[Resource, Map[str, str]] = field(default_factory=Map)
    producer_ids: tuple[ProducerIdsRecord, ...] = ()  # ends of blocks, rising; see apply
    security: Security = field(default_factory=Security)
    timeline: TimelineRecord | None = None  # None: the cluster was never restored
    record_count: int = 0  # that a checkpoint of it would hold
    file_defaults: Mapping[str, str] = field(default_factory=dict)
    """Defaults of topic settings in this node's properties file, by the broker's name of each. No
    record holds them, so nodes may differ."""

    def topic(self, name: str) -> TopicImage | None:
        """Return a topic by its name; None if there is no such topic."""
        topic_id = self.topic_ids.get(name)
        return None if topic_id is None else self.topics[topic_id]

    def partition(self, topic_id: UUID, partition: int) -> PartitionRecord | None:
        """Return a partition by its topic's id and its index; None if it does not exist."""
        topic = self.topics.get(topic_id)
        found: PartitionRecord | None = None if topic is None else topic.partitions.get(partition)
        return found

    def config(self, resource: Resource, name: str) -> str | None:
        """Return a resource's own value of a setting, or None if it has no such value."""
        settings = self.configs.get(resource)
        value: str | None = None if settings is None else settings.get(name)
        return value

    def iter_topics(self) -> Iterator[TopicImage]:
        """Yield the topics by rising id, the same order on every replica."""
        for topic_id in sorted(self.topics, key=_as_int):
            yield self.topics[topic_id]

    @property
    def next_producer_id(self) -> int:
        """Return the lowest producer id that was never allocated."""
        return self.producer_ids[-1].next_producer_id if self.producer_ids else 0

    @property
    def timeline_number(self) -> int:
        """Return the number of restores in this cluster's history: the partitions' leader epoch."""
        return 0 if self.timeline is None else self.timeline.timeline

    @property
    def ancestors(self) -> Ancestors:
        """Return the clusters whose objects this cluster goes on with."""
        if self.timeline is None:
            return Ancestors()
        return Ancestors(
            tuple(Ancestor(a.cluster_id, a.object_ids_below) for a in self.timeline.ancestors)
        )

    def leader_epochs(self, topic: TopicImage, partition: int) -> LeaderEpochs:
        """Return the leader epochs of a client's partition.

        A partition without a record of its timelines was created in the current one.
        """
        found: PartitionTimelinesRecord | None = topic.timelines.get(partition)
        if found is None:
            return LeaderEpochs(((self.timeline_number, 0),))
        return LeaderEpochs(tuple(zip(found.timelines, found.first_offsets, strict=True)))

    @property
    def coordinator_count(self) -> int:
        """Return the number of batch coordinators: the partitions of `__diskless-metadata`."""
        topic = self.topic(DISKLESS_METADATA)
        return 0 if topic is None else len(topic.partitions)


def _as_int(topic_id: UUID) -> int:
    return topic_id.int


def active_start(partition: PartitionRecord) -> int:
    """Return the first offset of the partition's active chunk, or 0 without chunks."""
    return max(0, partition.start_offset)
