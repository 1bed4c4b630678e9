"""The topics and partitions of a coordinator and their log starts, applied record by record.

There are few such records: none for appended batches, only for partitions that were created,
trimmed and removed. So they are applied one by one; commits, which are many, are read as columns.

The trap: a partition is its topic's id and its index, also where it was released and created again
under another log id: it had no data then.

Source: docs/design/batch-coordinator.md#runs; `coordinator.batch.state` does the same with more
state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from records.diskless import (
    DisklessPartitionsRecord,
    DisklessPartitionsReleasedRecord,
    DisklessPartitionsRemovedRecord,
    DisklessTombstoneExpiredRecord,
    DisklessTopicState,
    DisklessTopicTombstoneRecord,
    LogStartOffsetsRecord,
)
from records.schema import MetadataRecord
from records.uuids import encode_uuid


@dataclass(slots=True)
class Partition:
    """A partition; its high watermark also rises by commits, which are not applied here."""

    log_id: int
    log_start: int = 0
    high_watermark: int = 0  # exclusive


@dataclass(slots=True)
class Topic:
    """A topic, or the tombstone of one."""

    name: str
    deleted_at_ms: int = -1
    partitions: dict[int, Partition] = field(default_factory=dict)


class Partitions:
    """Topics and their partitions, by topic id as text."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.places: dict[int, tuple[str, int]] = {}  # by log id, those that are gone too

    def apply(self, record: MetadataRecord) -> None:
        """Apply one record of a type in `KEYS` to the partitions; records come in log order."""
        match record:
            case DisklessTopicState():
                self._topic_state(record)
            case DisklessPartitionsRecord():
                self._created(record)
            case DisklessTopicTombstoneRecord(topic_id=topic_id, deleted_at_ms=deleted_at_ms):
                topic = self.topics.setdefault(encode_uuid(topic_id), Topic(""))
                topic.deleted_at_ms = deleted_at_ms
            case DisklessPartitionsRemovedRecord() | DisklessPartitionsReleasedRecord():
                topic = self.topics[encode_uuid(record.topic_id)]
                for index in record.partitions:
                    topic.partitions.pop(index, None)
            case DisklessTombstoneExpiredRecord(topic_id=topic_id):
                self.topics.pop(encode_uuid(topic_id), None)
            case LogStartOffsetsRecord():
                self._log_starts(record)

    def in_order(self) -> list[tuple[str, int]]:
        """Return the topic id and index of every partition, in rising order."""
        return [
            (topic_id, index)
            for topic_id in sorted(self.topics)
            for index in sorted(self.topics[topic_id].partitions)
        ]

    def _topic_state(self, record: DisklessTopicState) -> None:
        topic_id = encode_uuid(record.topic_id)
        topic = self.topics.setdefault(topic_id, Topic(record.topic_name, record.deleted_at_ms))
        columns = (record.log_ids, record.log_start_offsets, record.high_watermarks)
        for index, (log_id, *log) in enumerate(zip(*columns, strict=True), record.first_partition):
            if log_id >= 0:
                topic.partitions[index] = Partition(log_id, *log)
                self.places[log_id] = topic_id, index

    def _created(self, record: DisklessPartitionsRecord) -> None:
        topic_id = encode_uuid(record.topic_id)
        topic = self.topics.setdefault(topic_id, Topic(record.topic_name))
        for i in range(record.partition_count):
            index, log_id = record.first_partition + i, record.first_log_id + i
            topic.partitions[index] = Partition(log_id)
            self.places[log_id] = topic_id, index

    def _log_starts(self, record: LogStartOffsetsRecord) -> None:
        topics = [self.topics.get(encode_uuid(topic_id)) for topic_id in record.topic_ids]
        columns = (record.topic_indexes, record.partitions, record.log_start_offsets)
        for topic_index, index, log_start in zip(*columns, strict=True):
            topic = topics[topic_index]
            partition = topic.partitions.get(index) if topic is not None else None
            if partition is not None:
                partition.log_start = max(partition.log_start, log_start)


_RECORDS: Final[tuple[Any, ...]] = (
    DisklessTopicState,
    DisklessPartitionsRecord,
    DisklessTopicTombstoneRecord,
    DisklessPartitionsRemovedRecord,
    DisklessPartitionsReleasedRecord,
    DisklessTombstoneExpiredRecord,
    LogStartOffsetsRecord,
)
KEYS: Final = frozenset(record.schema().key for record in _RECORDS)
"""The record types that say what partitions there are."""
