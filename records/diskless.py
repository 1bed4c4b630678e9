"""The batch coordinator's records: which bytes of which object are which offsets.

One `ObjectCommitRecord` is one uploaded object with all its batches and what became of each, so a
commit is atomic by construction. Its batches are *columns*, parallel arrays of numbers, because a
coordinator decodes a hundred thousand batches a second: an array is one C call, an object is not.

The records whose names end in `State` stand in checkpoints only.

Source: KIP-1164 (batch metadata, object lifecycle). The numbers, from 1100 on, and the records are
ours: the KIP leaves the log's contents open.
"""

from typing import Annotated

from records.schema import MetadataRecord
from records.wire import Array, Int8, Int16, Int32, Int64, String, Uuid, tag


class DisklessPartitionsRecord(MetadataRecord, key=1100, versions="0"):
    """Partitions of a topic exist here, empty. Source: KIP-1164, InitDisklessTopics."""

    topic_id: Uuid
    topic_name: String
    first_partition: Int32
    partition_count: Int32
    controller_epoch: Int32  # of the controller that asked; a lower one is refused from now on


class DisklessTopicTombstoneRecord(MetadataRecord, key=1101, versions="0"):
    """A topic is deleted: it answers no more, and is dismantled in steps. Source: KIP-1164."""

    topic_id: Uuid
    controller_epoch: Int32
    deleted_at_ms: Int64  # ms since 1970


class DisklessPartitionsRemovedRecord(MetadataRecord, key=1102, versions="0"):
    """One step: all that these partitions of a deleted topic had is gone. Source: KIP-1164."""

    topic_id: Uuid
    partitions: Array[Int32]


class DisklessTombstoneExpiredRecord(MetadataRecord, key=1103, versions="0"):
    """No call can name this deleted topic any more: its tombstone goes."""

    topic_id: Uuid


class ObjectCommitRecord(MetadataRecord, key=1104, versions="0"):
    """An object is committed: its batches, in the order they stand in it, and their outcomes.

    The columns are equally long. A batch whose error code is not 0 was refused: it has no offset,
    its bytes are dead from the start, and it stands here because a retry must get the same answer.
    A duplicate (`duplicates`) answers the offset of its first commit and its bytes are dead too.
    Source: KIP-1164, CommitBatches.
    """

    object_id: Int64
    object_format: Int8
    size_bytes: Int64
    broker_id: Int32
    broker_epoch: Int64
    lease_id: Int64
    committed_at_ms: Int64  # ms since 1970, the append time of LogAppendTime topics
    topic_ids: Array[Uuid]  # each topic once; the batches point into it
    topic_indexes: Array[Int32]  # into topic_ids
    partitions: Array[Int32]
    byte_offsets: Array[Int64]  # in the object
    byte_sizes: Array[Int32]
    base_offsets: Array[Int64]  # assigned, or the first commit's; -1 if refused
    record_counts: Array[Int32]
    max_timestamps: Array[Int64]  # ms since 1970
    timestamp_types: Array[Int8]  # 0 create time, 1 append time
    producer_ids: Array[Int64]  # -1: not idempotent
    producer_epochs: Array[Int16]
    base_sequences: Array[Int32]
    error_codes: Array[Int16]
    duplicates: Array[Int8]  # 1: a duplicate of an earlier batch


class LogStartOffsetsRecord(MetadataRecord, key=1105, versions="0"):
    """Log starts moved forward, by retention or by DeleteRecords. Source: KIP-1164."""

    topic_ids: Array[Uuid]
    topic_indexes: Array[Int32]
    partitions: Array[Int32]
    log_start_offsets: Array[Int64]  # inclusive: the first offset that is left
    reason: Int8  # 0 DeleteRecords, 1 retention.ms, 2 retention.bytes, 3 external plan


class LeaseGrantedRecord(MetadataRecord, key=1106, versions="0"):
    """A broker may commit objects with these ids, and its lower epochs may no more."""

    lease_id: Int64
    broker_id: Int32
    broker_epoch: Int64
    first_object_id: Int64
    object_count: Int32
    granted_at_ms: Int64
    closed_lease_ids: Array[Int64]


class LeaseClosedRecord(MetadataRecord, key=1107, versions="0"):
    """A lease is over: an id of it that was not committed never will be."""

    lease_id: Int64
    closed_at_ms: Int64
    reason: Int8  # 0 given back, 1 expired, 2 its broker has a newer epoch


class DeleteFenceRecord(MetadataRecord, key=1108, versions="0"):
    """These object ids were called safe to delete: no commit of them is accepted from now on.

    Source: KIP-1164, isSafeToDeleteFile.
    """

    object_ids: Array[Int64]
    fenced_at_ms: Int64


class ObjectsMarkedRecord(MetadataRecord, key=1109, versions="0"):
    """Nothing refers to these objects: they may go after the delay. Source: KIP-1164."""

    object_ids: Array[Int64]
    marked_at_ms: Int64


class ObjectsRemovedRecord(MetadataRecord, key=1110, versions="0"):
    """These objects are gone from the store, and now from the metadata. Source: KIP-1164."""

    object_ids: Array[Int64]


class ProducersExpiredRecord(MetadataRecord, key=1111, versions="0"):
    """Producers that were silent for too long are forgotten, in these partitions."""

    topic_ids: Array[Uuid]
    topic_indexes: Array[Int32]
    partitions: Array[Int32]
    producer_ids: Array[Int64]


class CoordinatorState(MetadataRecord, key=1120, versions="0"):
    """What a coordinator knows beside its partitions: the first data record of its checkpoints."""

    controller_epoch: Int32  # the highest that has called
    next_lease_id: Int64
    next_object_id: Int64


class DisklessPartitionState(MetadataRecord, key=1121, versions="0"):
    """A partition as a checkpoint has it. Its runs and producers follow."""

    topic_id: Uuid
    topic_name: String
    partition: Int32
    log_start_offset: Int64  # inclusive
    high_watermark: Int64  # exclusive
    deleted_at_ms: Annotated[Int64, tag(0)] = -1  # of a tombstone; -1 while the topic lives


class RunsState(MetadataRecord, key=1122, versions="0"):
    """Live runs of a partition by rising offset: byte-contiguous batches of one object."""

    topic_id: Uuid
    partition: Int32
    base_offsets: Array[Int64]
    last_offsets: Array[Int64]  # inclusive
    object_ids: Array[Int64]
    byte_offsets: Array[Int64]
    byte_sizes: Array[Int64]
    max_timestamps: Array[Int64]
    appended_at_ms: Array[Int64]
    timestamp_types: Array[Int8]


class ObjectsState(MetadataRecord, key=1123, versions="0"):
    """Objects as a checkpoint has them, by rising id."""

    object_ids: Array[Int64]
    sizes_bytes: Array[Int64]
    used_bytes: Array[Int64]  # the sum of its live runs
    formats: Array[Int8]
    broker_ids: Array[Int32]
    committed_at_ms: Array[Int64]
    marked_at_ms: Array[Int64]  # -1: not marked
    fenced: Array[Int8]  # 1: a delete fence stands, the object need not exist


class ProducersState(MetadataRecord, key=1124, versions="0"):
    """Producers of a partition: their last five batches, oldest first, one entry each."""

    topic_id: Uuid
    partition: Int32
    producer_ids: Array[Int64]
    producer_epochs: Array[Int16]
    base_sequences: Array[Int32]
    last_sequences: Array[Int32]  # inclusive
    base_offsets: Array[Int64]
    appended_at_ms: Array[Int64]


class LeaseState(MetadataRecord, key=1125, versions="0"):
    """A lease as a checkpoint has it; kept for a while after it is over."""

    lease_id: Int64
    broker_id: Int32
    broker_epoch: Int64
    first_object_id: Int64
    object_count: Int32
    last_committed_id: Int64  # -1: none yet
    granted_at_ms: Int64
    closed_at_ms: Int64  # -1: open


class KeptAnswerState(MetadataRecord, key=1126, versions="0"):
    """The answer to a committed object, kept for the broker that asks again.

    The columns are those of its ObjectCommitRecord that an answer needs.
    """

    object_id: Int64
    lease_id: Int64
    committed_at_ms: Int64
    topic_ids: Array[Uuid]
    topic_indexes: Array[Int32]
    partitions: Array[Int32]
    base_offsets: Array[Int64]
    log_start_offsets: Array[Int64]
    error_codes: Array[Int16]
    duplicates: Array[Int8]
