"""The batch coordinator's records: which bytes of which object are which offsets.

One `ObjectCommitRecord` is one uploaded object with all its batches and what became of each, so a
commit is atomic by construction. Its batches are *columns*, parallel arrays of numbers, because a
coordinator decodes a hundred thousand batches a second: an array is one C call, an object is not.

A partition is called by its topic's id and its index, except where there would be thousands of
them: there by its *log id*, a number that the coordinator gave it and never gives again.

The records whose names end in `State` stand in checkpoints only, in this order: the coordinator,
its brokers, leases and topics; then objects, runs, aborted transactions, producers and kept
answers.

Source: KIP-1164 (batch metadata, object lifecycle). The numbers, from 1100 on, and the records are
ours: the KIP leaves the log's contents open.
"""

from typing import Annotated

from records.schema import MetadataRecord
from records.wire import Array, Int8, Int16, Int32, Int64, String, Uuid, since, tag


class DisklessPartitionsRecord(MetadataRecord, key=1100, versions="0"):
    """Partitions of a topic exist here, empty: new ones, or released ones that came back.

    Source: KIP-1164, InitDisklessTopics.
    """

    topic_id: Uuid
    topic_name: String
    first_partition: Int32
    partition_count: Int32
    first_log_id: Int64  # of the first of them; the others' follow
    controller_epoch: Int32  # of the controller that asked; a lower one is refused from now on


class DisklessTopicTombstoneRecord(MetadataRecord, key=1101, versions="0"):
    """A topic is deleted: calls are refused, its rows are deleted in steps. Source: KIP-1164."""

    topic_id: Uuid
    controller_epoch: Int32
    deleted_at_ms: Int64  # ms since 1970


class DisklessPartitionsRemovedRecord(MetadataRecord, key=1102, versions="0"):
    """A step: all rows of these partitions of a deleted topic are deleted. Source: KIP-1164."""

    topic_id: Uuid
    partitions: Array[Int32]


class DisklessTombstoneExpiredRecord(MetadataRecord, key=1103, versions="0"):
    """The tombstone of a deleted topic expires: no late call can name the topic any more."""

    topic_id: Uuid


class ObjectCommitRecord(MetadataRecord, key=1104, versions="0-1"):
    """An object is committed: its batches, in the order of the request, and their outcomes.

    The batches of one partition are a *group*. There are as many topic indexes, partitions and
    batch counts as groups; the columns after them have an entry for each batch, group by group.

    A batch whose error code is not 0 was refused: it has no offset, its bytes are dead from the
    start, and it stands here because a retry must get the same answer. A duplicate answers the
    offset of its first commit and its bytes are dead too. Source: KIP-1164, CommitBatches.

    Version 1 has the transaction numbers; version 0 is written while no batch has one.
    """

    object_id: Int64
    object_format: Int8
    size_bytes: Int64
    broker_id: Int32
    broker_epoch: Int64
    lease_id: Int64
    committed_at_ms: Int64  # ms since 1970, the append time of LogAppendTime topics
    topic_ids: Array[Uuid]  # each topic once; the groups point into it
    topic_indexes: Array[Int32]  # of each group: into topic_ids
    partitions: Array[Int32]  # of each group
    batch_counts: Array[Int32]  # of each group, at least 1
    byte_offsets: Array[Int64]  # in the object
    byte_sizes: Array[Int32]
    base_offsets: Array[Int64]  # assigned, or the first commit's; -1 if refused
    record_counts: Array[Int32]
    max_timestamps: Array[Int64]  # ms since 1970; of append-time batches the append time, and of a
    # duplicate the time that its first commit answered
    timestamp_types: Array[Int8]  # 0 create time, 1 append time
    producer_ids: Array[Int64]  # -1: not idempotent
    producer_epochs: Array[Int16]
    base_sequences: Array[Int32]
    error_codes: Array[Int16]  # empty: none was refused
    duplicates: Array[Int8]  # 1: a duplicate of an earlier batch; empty: none is
    transaction_numbers: Annotated[Array[Int64], since(1)] = ()  # -1: not transactional; empty: all


class LogStartOffsetsRecord(MetadataRecord, key=1105, versions="0"):
    """Log starts moved forward, by retention or by DeleteRecords. Source: KIP-1164."""

    topic_ids: Array[Uuid]
    topic_indexes: Array[Int32]
    partitions: Array[Int32]
    log_start_offsets: Array[Int64]  # inclusive: the first offset that is left
    reason: Int8  # 0 DeleteRecords, 1 retention.ms, 2 retention.bytes, 3 external plan, 4 deletion


class LeaseGrantedRecord(MetadataRecord, key=1106, versions="0"):
    """A broker epoch may commit objects with these ids; lower epochs of the broker may not."""

    lease_id: Int64
    broker_id: Int32
    broker_epoch: Int64
    first_object_id: Int64
    object_count: Int32
    granted_at_ms: Int64
    closed_lease_ids: Array[Int64]


class LeaseClosedRecord(MetadataRecord, key=1107, versions="0"):
    """A lease is closed: an id of it that was not committed can never be."""

    lease_id: Int64
    closed_at_ms: Int64
    end_object_id: Int64  # exclusive: from here on nothing was uploaded, so nothing is orphaned
    reason: Int8  # 0 given back, 1 expired


class DeleteFenceRecord(MetadataRecord, key=1108, versions="0"):
    """These object ids were declared safe to delete: every later commit of them is refused.

    Source: KIP-1164, isSafeToDeleteFile.
    """

    object_ids: Array[Int64]
    fenced_at_ms: Int64


class ObjectsMarkedRecord(MetadataRecord, key=1109, versions="0"):
    """No run refers to these objects: they are deleted after the delay. Source: KIP-1164."""

    object_ids: Array[Int64]
    marked_at_ms: Int64


class ObjectsRemovedRecord(MetadataRecord, key=1110, versions="0"):
    """These objects were deleted from the store, and now from the metadata. Source: KIP-1164."""

    object_ids: Array[Int64]


class ProducersExpiredRecord(MetadataRecord, key=1111, versions="0"):
    """The state of producers that were silent for too long is removed, in these partitions."""

    log_ids: Array[Int64]
    producer_ids: Array[Int64]
    largest_expired_id: Annotated[Int64, tag(0)] = -2  # ever, by time; -1: none; -2: unchanged


class LeasesForgottenRecord(MetadataRecord, key=1112, versions="0"):
    """Old closed leases are removed, with their kept answers; their orphans are deleted."""

    lease_ids: Array[Int64]


class ControllerEpochRecord(MetadataRecord, key=1113, versions="0"):
    """A controller of this epoch called and changed nothing: lower epochs are refused now."""

    controller_epoch: Int32


class DisklessPartitionsReleasedRecord(MetadataRecord, key=1114, versions="0"):
    """Partitions that never had a commit are released to another coordinator.

    Source: KIP-1164, AssignPartitionToBatchCoordinator.
    """

    topic_id: Uuid
    partitions: Array[Int32]
    controller_epoch: Int32  # only a higher one can bring them back


class OrphansFoundRecord(MetadataRecord, key=1115, versions="0"):
    """Unreferenced objects that a listing of the store showed, and that can never be committed.

    They stand among the objects from now on, marked, with no size, no writer and no commit: they go
    after the delay like those that had runs. An id that is there already stays as it is.
    """

    object_ids: Array[Int64]
    marked_at_ms: Int64


class SteadyTimeRecord(MetadataRecord, key=1116, versions="0"):
    """The leader's steady time, by which records are deleted: it does not follow wall clocks.

    Source: docs/design/clocks.md#steady-time.
    """

    steady_ms: Int64  # ms since 1970
    replaces: Int8  # 1: steady time was set, perhaps back; 0: it went on


class RewriteLeaseGrantedRecord(MetadataRecord, key=1117, versions="0"):
    """A rewriter may fill objects with these ids, in any order, until its lease ends.

    Source: docs/design/compaction.md#records.
    """

    lease_id: Int64
    broker_id: Int32  # the owner; -1: a plan
    broker_epoch: Int64
    plan_id: Uuid  # the owner; zero: a broker
    first_object_id: Int64
    object_count: Int32
    granted_at_ms: Int64
    closed_lease_ids: Array[Int64]  # rewrite leases of lower epochs of the broker


class RewriteLeaseRenewedRecord(MetadataRecord, key=1118, versions="0"):
    """A rewrite lease is renewed: its age counts from here. Source: docs/design/compaction.md."""

    lease_id: Int64
    renewed_at_ms: Int64


class RunsReplacedRecord(MetadataRecord, key=1119, versions="0"):
    """Runs of batches that cover ranges of offsets are replaced by runs in a rewritten object.

    The first record of an object opens it. There are as many topic indexes as ranges, each a
    partition once; a range's runs tile it, so each begins where the one before it ends. A record
    without ranges only closes the object. Source: docs/design/compaction.md#records.
    """

    object_id: Int64
    object_format: Int8
    size_bytes: Int64
    broker_id: Int32  # -1: a plan's
    lease_id: Int64
    replaced_at_ms: Int64  # ms since 1970; of an object's first record: when it was committed
    closes_object: Int8  # 1: no further record fills the object
    topic_ids: Array[Uuid]  # each topic once; the ranges point into it
    topic_indexes: Array[Int32]  # of each range: into topic_ids
    partitions: Array[Int32]  # of each range, as the next eight columns
    first_offsets: Array[Int64]
    end_offsets: Array[Int64]  # exclusive
    old_run_counts: Array[Int32]
    old_run_digests: Array[Int64]  # of object, byte offset and size of each
    bounds: Array[Int64]  # exclusive, of the key map; -1: every record was kept
    flags: Array[Int8]  # 1 a delete horizon was set, 2 a tombstone or marker was removed
    run_counts: Array[Int32]
    last_offsets: Array[Int64]  # of each new run, as the columns below; inclusive
    record_counts: Array[Int32]
    byte_offsets: Array[Int64]  # in the object
    byte_sizes: Array[Int64]
    max_timestamps: Array[Int64]  # ms since 1970
    append_times: Array[Int64]  # ms since 1970; the newest of the sources
    timestamp_types: Array[Int8]  # 0 create time, 1 append time
    ended_counts: Annotated[Array[Int32], tag(0)] = ()  # aborted entries of each range
    ended_producer_ids: Annotated[Array[Int64], tag(1)] = ()  # of each ended entry
    ended_first_offsets: Annotated[Array[Int64], tag(2)] = ()  # of each ended entry


class TransactionMarkersRecord(MetadataRecord, key=1160, versions="0"):
    """Transactions end in partitions: each marker takes one offset and no bytes of an object.

    The columns after `topic_ids` have an entry for each partition of each transaction. The record
    has the outcome, so that a reader needs no other state: where the transaction began in the
    partition, and the last stable offset after the marker.
    Source: docs/design/transactions-batches.md#records.
    """

    written_at_ms: Int64  # ms since 1970; the timestamp and append time of all markers
    topic_ids: Array[Uuid]  # each topic once; the markers point into it
    topic_indexes: Array[Int32]  # of each marker: into topic_ids
    partitions: Array[Int32]
    offsets: Array[Int64]  # of the marker; -1: another transaction is open, and none is written
    producer_ids: Array[Int64]
    producer_epochs: Array[Int16]  # of the marker
    transaction_numbers: Array[Int64]
    outcomes: Array[Int8]  # 0 aborted, 1 committed
    coordinator_epochs: Array[Int32]  # of the transaction log's leader
    first_offsets: Array[Int64]  # of the transaction in the partition; -1: it has no batch here
    last_stable_offsets: Array[Int64]  # of the partition, after this marker; exclusive


class CoordinatorState(MetadataRecord, key=1120, versions="0"):
    """A coordinator's counters: the first data record of its checkpoints."""

    controller_epoch: Int32  # the highest that has called; -1: none has
    next_lease_id: Int64
    next_object_id: Int64
    next_log_id: Int64
    largest_expired_id: Annotated[Int64, tag(0)] = -2  # of producers; -1: none; -2: unknown
    steady_ms: Annotated[Int64, tag(1)] = -1  # the newest stamp of steady time; -1: none
    clock_resets: Annotated[Int32, tag(2)] = 0  # stamps that replaced steady time
    notes_deletions: Annotated[Int8, tag(3)] = 0  # 1: objects note when a run in them died


class DisklessTopicState(MetadataRecord, key=1121, versions="0"):
    """Partitions of a topic as a checkpoint has them. Their runs and producers follow."""

    topic_id: Uuid
    topic_name: String
    first_partition: Int32
    log_ids: Array[Int64]  # by rising partition; -1: it was removed, the topic being deleted
    log_start_offsets: Array[Int64]  # inclusive
    high_watermarks: Array[Int64]  # exclusive
    deleted_at_ms: Annotated[Int64, tag(0)] = -1  # of a tombstone; -1 while the topic lives


class RunsState(MetadataRecord, key=1122, versions="0-2"):
    """Live runs of a partition by rising offset: byte-contiguous batches of one object.

    A run begins where the one before it ends. At version 0 all of them were appended: each has a
    record at every offset, and its append time is when its object was committed. Version 2 has
    transaction markers: runs of format 0, without an object (-1) and bytes.
    """

    log_id: Int64
    base_offset: Int64  # of the first run
    last_offsets: Array[Int64]  # inclusive
    object_ids: Array[Int64]
    byte_offsets: Array[Int64]
    byte_sizes: Array[Int64]
    max_timestamps: Array[Int64]
    timestamp_types: Array[Int8]
    append_times: Annotated[Array[Int64], since(1)] = ()  # ms since 1970
    record_counts: Annotated[Array[Int64], since(1)] = ()
    object_formats: Annotated[Array[Int8], since(1)] = ()
    marker_producer_ids: Annotated[Array[Int64], since(2)] = ()  # of each run of format 0
    marker_epochs: Annotated[Array[Int16], since(2)] = ()
    marker_outcomes: Annotated[Array[Int8], since(2)] = ()  # 0 aborted, 1 committed
    marker_coordinator_epochs: Annotated[Array[Int32], since(2)] = ()


class ObjectsState(MetadataRecord, key=1123, versions="0-1"):
    """Objects as a checkpoint has them, by rising id.

    One that a listing found, and that was never committed, has no size, broker -1 and committed at
    -1.
    """

    object_ids: Array[Int64]
    sizes_bytes: Array[Int64]
    used_bytes: Array[Int64]  # the sum of its live runs
    formats: Array[Int8]
    broker_ids: Array[Int32]
    committed_at_ms: Array[Int64]
    marked_at_ms: Array[Int64]  # -1: not marked; -2: open, it is still filled
    topic_ids: Array[Uuid]  # each topic once
    topic_counts: Array[Int32]  # of each object: how many topics had accepted batches in it
    topic_indexes: Array[Int32]  # object by object: which, into topic_ids
    first_deletions_ms: Annotated[Array[Int64], since(1)] = ()  # when a run in it died; -1: none


class ProducersState(MetadataRecord, key=1124, versions="0-1"):
    """Producers of a partition by rising id, with their last five batches, oldest first.

    Version 1 has transactions; version 0 is written while no producer of a record has had one.
    """

    log_id: Int64
    producer_ids: Array[Int64]
    producer_epochs: Array[Int16]
    appended_at_ms: Array[Int64]  # of the last batch
    batch_counts: Array[Int8]  # how many of its batches follow, 0 to 5
    base_sequences: Array[Int32]  # producer by producer, as the columns below
    last_sequences: Array[Int32]  # inclusive
    base_offsets: Array[Int64]
    append_times: Array[Int64]  # what a duplicate answers; -1: create time
    open_numbers: Annotated[Array[Int64], since(1)] = ()  # of the open transaction; -1: none
    first_offsets: Annotated[Array[Int64], since(1)] = ()  # of the open transaction; -1: none
    ended_numbers: Annotated[Array[Int64], since(1)] = ()  # the highest; -1: none has ended
    coordinator_epochs: Annotated[Array[Int32], since(1)] = ()  # of the newest marker; -1: none


class LeaseState(MetadataRecord, key=1125, versions="0"):
    """A lease in a checkpoint; it is kept for a while after it is closed.

    Ranges of ids are pairs of numbers: the first id, and the one after the last.
    """

    lease_id: Int64
    broker_id: Int32
    broker_epoch: Int64
    first_object_id: Int64
    end_object_id: Int64  # exclusive
    last_committed_id: Int64  # first_object_id - 1: none yet
    skipped: Array[Int64]  # ranges at or below last_committed_id that were never committed
    fenced: Array[Int64]  # single ids above last_committed_id, called safe to delete
    granted_at_ms: Int64
    closed_at_ms: Int64  # -1: open
    orphans: Array[Int64]  # ranges that were never committed and are not yet deleted; once closed


class KeptAnswerState(MetadataRecord, key=1126, versions="0"):
    """The answer to a committed object, kept for the broker's retries.

    They stand by rising object id. The columns are those of the ObjectCommitRecord, and the log
    start of each group.
    """

    object_id: Int64
    lease_id: Int64
    committed_at_ms: Int64
    topic_ids: Array[Uuid]
    topic_indexes: Array[Int32]
    partitions: Array[Int32]
    batch_counts: Array[Int32]
    log_start_offsets: Array[Int64]  # of each group; -1 if there is no such partition
    base_offsets: Array[Int64]
    append_times: Array[Int64]  # -1: create time; empty: of all
    error_codes: Array[Int16]
    duplicates: Array[Int8]


class DisklessBrokerState(MetadataRecord, key=1127, versions="0"):
    """The highest epoch of a broker that ever had a lease here; lower epochs get none."""

    broker_id: Int32
    broker_epoch: Int64
    answered: Array[Int64]  # its objects whose answers are kept, in the order of their commits


class RewriteLeaseState(MetadataRecord, key=1128, versions="0"):
    """A rewrite lease in a checkpoint; ranges of ids are pairs, as a LeaseState's.

    Source: docs/design/compaction.md#records.
    """

    lease_id: Int64
    broker_id: Int32  # -1: a plan
    broker_epoch: Int64
    plan_id: Uuid
    first_object_id: Int64
    end_object_id: Int64  # exclusive
    fenced: Array[Int64]  # single ids, called safe to delete
    granted_at_ms: Int64
    renewed_at_ms: Int64
    closed_at_ms: Int64  # -1: open
    orphans: Array[Int64]  # ranges that were never opened and are not yet deleted; once closed
    opened: Array[Int64]  # ranges of ids that became objects
    open_ids: Array[Int64]  # of them, those that are still filled
    open_sizes: Array[Int64]  # bytes
    open_formats: Array[Int8]
    open_filled: Array[Int64]  # bytes that runs were ever given


class CleaningState(MetadataRecord, key=1129, versions="0"):
    """Compaction progress of partitions, by rising log id. Source: docs/design/compaction.md."""

    log_ids: Array[Int64]
    cleaned_until: Array[Int64]  # exclusive
    bounds: Array[Int64]  # exclusive, of the newest round
    rewritten_until: Array[Int64]  # exclusive, under that bound


class AbortedState(MetadataRecord, key=1161, versions="0"):
    """Aborted transactions of a partition, by the rising offset of their markers.

    They stand behind the runs in a checkpoint. Source: docs/design/transactions-batches.md#records.
    """

    log_id: Int64
    producer_ids: Array[Int64]
    first_offsets: Array[Int64]
    last_offsets: Array[Int64]  # of the marker
    last_stable_offsets: Array[Int64]  # of the partition, after the marker; exclusive
