"""The records of the cluster log that a quorum without a controller keeps in memory.

It keeps the newest record of each feature, topic and partition, whole, so that a checkpoint can
give back what the log had. A record of any other kind is a controller's state. It is not kept, and
from then on no checkpoint may be taken: a log cut at that checkpoint would have lost the record.

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
    """Tables of features, topics and partitions, iterated in the same order on every replica."""

    def __init__(self) -> None:
        """Create an empty collection of the cluster log's records."""
        self.features: dict[str, FeatureLevelRecord] = {}
        self.topics: dict[UUID, TopicRecord] = {}
        self.partitions: dict[UUID, dict[int, PartitionRecord]] = {}
        self.changed = 0  # records added or superseded since the tables were empty
        self.complete = True  # every record seen is of a kind that is kept here

    @property
    def count(self) -> int:
        """Return the number of records that a checkpoint of this collection would hold."""
        partitions = sum(map(len, self.partitions.values()))
        return len(self.features) + len(self.topics) + partitions

    def replay(self, record: MetadataRecord) -> None:
        """Apply one committed record of the cluster log to this collection of its records."""
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
                pass  # of a topic that was removed or never existed: without meaning
            case RemoveTopicRecord(topic_id=topic_id):
                self.changed += self.topics.pop(topic_id, None) is not None
                self.changed += len(self.partitions.pop(topic_id, {}))
            case NoOpRecord():
                pass
            case _:
                self.complete = False

    def records(self) -> Iterator[MetadataRecord]:
        """Yield the records that rebuild this collection, in an order valid for replay."""
        for name in sorted(self.features, key=lambda name: (name != FIRST_FEATURE, name)):
            yield self.features[name]
        for topic_id in sorted(self.topics):
            yield self.topics[topic_id]
            partitions = self.partitions[topic_id]
            for index in sorted(partitions):
                yield partitions[index]
