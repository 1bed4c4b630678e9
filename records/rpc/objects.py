"""The calls of a batch coordinator about objects: leases of ids, deletion, and descriptions.

KIP-1164's interface has calls about files (getFilesToDelete, deleteFiles, isSafeToDeleteFile) and
gives them no RPCs; leases are ours, and make orphaned objects enumerable without listing a bucket.
MarkOrphans is for what even they cannot know: an upload that ended after its key was cleaned.
The last two are for people: the overview of topics and of one object that KIP-1163 asks of its
`kafka-diskless-metadata.sh`.

A key or an object id names its coordinator; where neither is given, `coordinator_partition` does:
the partition of `__diskless-metadata`.

Source: KIP-1164, Public Interfaces; KIP-1163, Command line tools;
docs/design/batch-coordinator.md#object-leases. The numbers, from 1100 on, are ours.
"""

from typing import Annotated

from records.rpc.base import CoordinatorRequest, Response
from records.schema import Message
from records.wire import Array, Bool, Int8, Int16, Int32, Int64, String, Uuid, tag


class AcquireObjectLeaseRequest(
    CoordinatorRequest["AcquireObjectLeaseResponse"], key=1100, versions="0"
):
    """A broker asks for ids, in order, for the objects it is going to upload."""

    coordinator_partition: Int32
    broker_id: Int32
    broker_epoch: Int64
    object_count: Int32


class AcquireObjectLeaseResponse(Response, key=1100, versions="0"):
    """The ids [first_object_id, first_object_id + object_count) are the broker's to commit."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    lease_id: Int64 = -1
    first_object_id: Int64 = -1
    object_count: Int32 = 0


class ReleaseObjectLeaseRequest(
    CoordinatorRequest["ReleaseObjectLeaseResponse"], key=1101, versions="0"
):
    """A broker gives a lease back: ids of it that were not committed never will be."""

    coordinator_partition: Int32
    broker_id: Int32
    broker_epoch: Int64
    lease_id: Int64
    end_object_id: Annotated[Int64, tag(0)] = -1  # nothing was uploaded from here on; -1: unsaid


class ReleaseObjectLeaseResponse(Response, key=1101, versions="0"):
    """The lease is over, also if it was before."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


class GetFilesToDeleteRequest(
    CoordinatorRequest["GetFilesToDeleteResponse"], key=1102, versions="0"
):
    """A broker asks for objects that nothing refers to any more. Source: KIP-1164."""

    coordinator_partition: Int32
    max_files: Int32


class GetFilesToDeleteResponse(Response, key=1102, versions="0"):
    """Objects to delete from the store, those marked first before the others."""

    class File(Message):
        object_key: String
        marked_for_deletion_at: Int64  # ms since 1970

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    files: Array[File] = ()


class DeleteFilesRequest(CoordinatorRequest["DeleteFilesResponse"], key=1103, versions="0"):
    """A broker has deleted these objects from the store. Source: KIP-1164."""

    coordinator_partition: Int32
    object_keys: Array[String]


class DeleteFilesResponse(Response, key=1103, versions="0"):
    """A result for each key, in the order of the request; 0 also for what was gone before."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0  # of the whole request; the keys then have no results
    error_message: String | None = None
    key_error_codes: Array[Int16] = ()


class IsSafeToDeleteFileRequest(
    CoordinatorRequest["IsSafeToDeleteFileResponse"], key=1104, versions="0"
):
    """Asks whether an object is uncommitted, and forbids its commit if so. Source: KIP-1164."""

    coordinator_partition: Int32
    object_key: String


class IsSafeToDeleteFileResponse(Response, key=1104, versions="0"):
    """Safe means fenced: a commit of this key is refused from now on."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    is_safe: Bool = False


class MarkOrphansRequest(CoordinatorRequest["MarkOrphansResponse"], key=1109, versions="0"):
    """A sweep has found these objects in the store, and in the metadata nothing that needs them.

    Keys of one coordinator.

    Source: docs/design/pipeline.md#spark-deletes-nothing.
    """

    coordinator_partition: Int32
    cluster_id: String  # whose objects the sweep listed
    expires_at_ms: Int64  # of the plan they stand in; ms since 1970
    object_keys: Array[String]


class MarkOrphansResponse(Response, key=1109, versions="0"):
    """A result for each key, in the order of the request; 0 also for what was to go already."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0  # of the whole request; the keys then have no results
    error_message: String | None = None
    key_error_codes: Array[Int16] = ()


class AcceptClockRequest(CoordinatorRequest["AcceptClockResponse"], key=1115, versions="0"):
    """Sets a coordinator's steady time to its leader's wall clock.

    Source: docs/design/clocks.md#states-of-a-processs-clock.
    """

    coordinator_partition: Int32


class AcceptClockResponse(Response, key=1115, versions="0"):
    """Steady time before and now, in ms since 1970."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    was_held: Bool = False
    before_ms: Int64 = -1  # the newest stamp, if the clock was held; -1: there was none
    steady_ms: Int64 = -1


class DescribeDisklessTopicsRequest(
    CoordinatorRequest["DescribeDisklessTopicsResponse"], key=1105, versions="0"
):
    """Asks for an overview of topics; of all of them if none is named. Source: KIP-1163."""

    coordinator_partition: Int32
    topic_names: Array[String] | None = None
    include_objects: Annotated[Bool, tag(0)] = True  # else a topic's figures of them are 0, at once
    behind_barrier: Annotated[Bool, tag(1)] = False  # with all that was answered before


class DescribeDisklessTopicsResponse(Response, key=1105, versions="0"):
    """KIP-1163's four figures for each topic, and the dead bytes it keeps from being deleted."""

    class Topic(Message):
        class Partition(Message):
            partition_index: Int32
            log_start_offset: Int64  # inclusive
            high_watermark: Int64  # exclusive
            run_count: Int64
            stored_bytes: Int64  # of its live runs

        topic_id: Uuid
        topic_name: String
        error_code: Int16 = 0
        object_bytes: Int64 = 0  # whole sizes of the objects that it has a live run in
        past_object_bytes: Int64 = 0  # of those it had one in, and has none in now
        dead_bytes: Int64 = 0  # of the first, what no live run of any topic uses
        partitions: Array[Partition] = ()

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    applied_offset: Int64 = -1  # the state described: everything below it (exclusive)
    topics: Array[Topic] = ()


class DescribeDisklessObjectRequest(
    CoordinatorRequest["DescribeDisklessObjectResponse"], key=1106, versions="0"
):
    """Asks what is known of an object. Source: KIP-1163."""

    coordinator_partition: Int32
    object_key: String


class DescribeDisklessObjectResponse(Response, key=1106, versions="0"):
    """An object's sizes and whose live runs are in it."""

    class Owner(Message):
        topic_id: Uuid
        topic_name: String
        partition_index: Int32
        run_count: Int32
        used_bytes: Int64

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    applied_offset: Int64 = -1
    object_id: Int64 = -1
    object_format: Int8 = 0
    size_bytes: Int64 = -1
    used_bytes: Int64 = -1
    broker_id: Int32 = -1
    committed_at_ms: Int64 = -1
    marked_at_ms: Annotated[Int64, tag(0)] = -1  # since when it is to be deleted; -1: it is not
    owners: Array[Owner] = ()
