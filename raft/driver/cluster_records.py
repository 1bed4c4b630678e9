"""What a quorum without a controller keeps of the cluster log: features, topics, partitions.

The newest record of each, whole, so that a checkpoint can give back what the log had. A record of
any other kind is somebody else's state. It is not kept, and from then on no checkpoint may be
taken: a log cut down to what is known here would have lost it.

Source: KIP-631, Record Schemas; KIP-630 (changed records).
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from records.metadata import (
    FeatureLevelRecord,
    NoOpRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from records.schema import MetadataRecord

FIRST_FEATURE = "metadata.version"  # a reader has to know it before it reads anything else


class ClusterRecords:
    """The tables; replayed into, iterated in one order on every replica."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.features: dict[str, FeatureLevelRecord] = {}
        self.topics: dict[UUID, TopicRecord] = {}
        self.partitions: dict[UUID, dict[int, PartitionRecord]] = {}
        self.changed = 0  # records that came, or are no longer true, since the tables were empty
        self.complete = True  # nothing was seen that is not kept here

    @property
    def count(self) -> int:
        """Records that say all this."""
        partitions = sum(map(len, self.partitions.values()))
        return len(self.features) + len(self.topics) + partitions

    def replay(self, record: MetadataRecord) -> None:
        """Take in a committed record."""
        match record:
            case FeatureLevelRecord(name=name, feature_level=level):
                self.changed += 1
                if level:
                    self.features[name] = record
                else:
                    self.features.pop(name, None)
            case TopicRecord(topic_id=topic_id):
                self.changed += 1
                self.topics[topic_id] = record
                self.partitions.setdefault(topic_id, {})
            case PartitionRecord(topic_id=topic_id) if topic_id in self.topics:
                self.changed += 1
                self.partitions[topic_id][record.partition_id] = record
            case PartitionRecord():
                pass  # of a topic that is gone, or never was: it says nothing
            case RemoveTopicRecord(topic_id=topic_id):
                self.changed += self.topics.pop(topic_id, None) is not None
                self.changed += len(self.partitions.pop(topic_id, {}))
            case NoOpRecord():
                pass
            case _:
                self.complete = False

    def records(self) -> Iterator[MetadataRecord]:
        """What builds these tables anew, in the order in which it can be read."""
        for name in sorted(self.features, key=lambda name: (name != FIRST_FEATURE, name)):
            yield self.features[name]
        for topic_id in sorted(self.topics):
            yield self.topics[topic_id]
            partitions = self.partitions[topic_id]
            for index in sorted(partitions):
                yield partitions[index]
