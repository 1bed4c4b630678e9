"""Requests to a batch coordinator about rewritten objects: leases, replaced runs, unused bytes.

A rewriter merges runs of batches into larger objects, and compacts them. It works for a broker or
for a plan made elsewhere, under a lease of object ids that it renews.

Source: docs/design/compaction.md#calls. The numbers, from 1116 on, are ours.
"""

from typing import NamedTuple
from uuid import UUID

from records.rpc.base import CoordinatorRequest, Response
from records.schema import Message
from records.wire import Array, Bool, Int8, Int16, Int32, Int64, String, Uuid

NO_PLAN = UUID(int=0)
"""Stands for the plan of a lease whose owner is a broker."""

HORIZONS_SET = 1
TOMBSTONES_REMOVED = 2
"""Flags of a replaced range: a delete horizon was set in it; a tombstone or marker was removed."""


class RewriteLeaseRequest(CoordinatorRequest["RewriteLeaseResponse"], key=1116, versions="0"):
    """Grants, renews or releases a lease of object ids for rewritten objects.

    Source: docs/design/compaction.md#rewritelease-1116-object-ids-for-a-rewriter.
    """

    coordinator_partition: Int32
    lease_id: Int64 = -1  # -1: grant a new lease
    releases: Bool = False  # ends the lease
    broker_id: Int32 = -1  # the owner, if it is a broker
    broker_epoch: Int64 = -1
    plan_id: Uuid = NO_PLAN  # the owner, if it is a plan
    object_count: Int32 = 0  # of a grant


class RewriteLeaseResponse(Response, key=1116, versions="0"):
    """The ids [first_object_id, first_object_id + object_count) are the owner's, in any order."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    lease_id: Int64 = -1
    first_object_id: Int64 = -1
    object_count: Int32 = 0
    timeout_ms: Int64 = 0  # without a renewal the lease ends after so long


class NewRun(NamedTuple):
    """One run of batches in a rewritten object; it begins where the run before it ends."""

    last_offset: Int64  # inclusive
    record_count: Int32  # 0: only an empty batch
    byte_offset: Int64  # in the object
    size: Int64  # bytes
    max_timestamp: Int64  # ms since 1970; -1: none
    append_time: Int64  # ms since 1970; the newest of its sources
    timestamp_type: Int8  # 0 create time, 1 append time


class AbortedEntry(NamedTuple):
    """An aborted transaction of a partition, whose entry ends with a compaction."""

    producer_id: Int64
    first_offset: Int64


class ReplaceRunsRequest(CoordinatorRequest["ReplaceRunsResponse"], key=1117, versions="0"):
    """Replaces the runs of batches that cover ranges of offsets by runs in one rewritten object.

    Source: docs/design/compaction.md#replaceruns-1117-these-runs-become-those.
    """

    class Topic(Message):
        class Partition(Message):
            partition_index: Int32
            first_offset: Int64  # base offset of the first old run
            end_offset: Int64  # exclusive, behind the last old run
            old_run_count: Int32
            old_runs_digest: Int64  # coordinator.batch.runs.digest_runs
            bound: Int64 = -1  # exclusive, of the key map; -1: merged, every record is kept
            flags: Int8 = 0  # HORIZONS_SET, TOMBSTONES_REMOVED
            runs: Array[NewRun]
            ended_aborted: Array[AbortedEntry] = ()

        topic_id: Uuid
        partitions: Array[Partition]

    coordinator_partition: Int32
    lease_id: Int64
    broker_id: Int32 = -1
    broker_epoch: Int64 = -1
    plan_id: Uuid = NO_PLAN
    object_id: Int64
    object_format: Int8
    object_size: Int64  # bytes of the whole object
    closes_object: Bool = False  # no further request names the object
    topics: Array[Topic]


class ReplaceRunsResponse(Response, key=1117, versions="0"):
    """The outcome for each range, and the new compaction progress of its partition."""

    class Topic(Message):
        class Partition(Message):
            partition_index: Int32
            error_code: Int16 = 0
            error_message: String | None = None
            cleaned_until: Int64 = -1  # exclusive
            bound: Int64 = -1  # of the newest round; -1: there was none
            rewritten_until: Int64 = -1  # exclusive, under that bound

        topic_id: Uuid
        partitions: Array[Partition]

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0  # of the whole request; the partitions then have no results
    error_message: String | None = None
    topics: Array[Topic] = ()


class DescribeCleaningRequest(
    CoordinatorRequest["DescribeCleaningResponse"], key=1118, versions="0"
):
    """Asks for the compaction progress of partitions.

    Source: docs/design/compaction.md#describecleaning-1118-the-compaction-progress-of-partitions.
    """

    class Topic(Message):
        topic_id: Uuid
        partitions: Array[Int32]

    coordinator_partition: Int32
    topics: Array[Topic]


class DescribeCleaningResponse(Response, key=1118, versions="0"):
    """The offsets and sizes that a compaction is planned by, of each partition."""

    class Topic(Message):
        class Partition(Message):
            partition_index: Int32
            error_code: Int16 = 0
            log_start_offset: Int64 = -1  # inclusive
            high_watermark: Int64 = -1  # exclusive
            last_stable_offset: Int64 = -1  # exclusive
            cleaned_until: Int64 = -1  # exclusive
            bound: Int64 = -1  # of the newest round; -1: there was none
            rewritten_until: Int64 = -1  # exclusive, under that bound
            run_count: Int64 = -1  # -1, as the bytes, while rows of dead runs await deletion
            stored_bytes: Int64 = -1

        topic_id: Uuid
        partitions: Array[Partition]

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    responses: Array[Topic] = ()


class ListDisklessObjectsRequest(
    CoordinatorRequest["ListDisklessObjectsResponse"], key=1119, versions="0"
):
    """Asks for objects by rising id: their sizes, and how much of them is used.

    Source: docs/design/compaction.md#listdisklessobjects-1119-objects-and-how-much-of-them-is-used.
    """

    coordinator_partition: Int32
    from_object_id: Int64 = 0
    max_objects: Int32
    deleted_before_ms: Int64 = -1  # only objects used in part, with an earlier first deletion


class ObjectUse(NamedTuple):
    """One object, and how much of it is used."""

    object_id: Int64
    size_bytes: Int64
    used_bytes: Int64  # of its live runs
    object_format: Int8
    broker_id: Int32
    committed_at_ms: Int64  # ms since 1970
    marked_at_ms: Int64  # -1: in use; -2: open; else when it was marked for deletion
    first_deletion_ms: Int64  # when its first run died, in steady time; -1: none has


class ListDisklessObjectsResponse(Response, key=1119, versions="0"):
    """Objects by rising id, and where to go on."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    applied_offset: Int64 = -1
    next_object_id: Int64 = -1  # -1: there are no more
    objects: Array[ObjectUse] = ()
