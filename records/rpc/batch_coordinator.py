"""The batch coordinator's RPCs, with KIP-1164's numbers plus 1000.

Differences from the KIP, each decided on purpose: CommitBatches commits one object, carries the
uploader's broker epoch and nests its batches by topic and partition; FindBatches answers a list of
batches; byte offsets are 64-bit everywhere. Batches are rows, tuples of numbers: an object may hold
ten thousand of them. A node may lead several coordinators, so a request says which one it means, in
a tagged field that the first one needs none of.

Source: KIP-1164, Public Interfaces.
"""

from typing import Annotated, NamedTuple

from records.rpc.base import CoordinatorRequest, Request, Response
from records.schema import Message
from records.wire import Array, Bool, Int8, Int16, Int32, Int64, String, Uuid, tag


class InitDisklessTopicsRequest(
    CoordinatorRequest["InitDisklessTopicsResponse"], key=1093, versions="0"
):
    """The controller tells a coordinator of new topics or partitions. Source: KIP-1164."""

    class Topic(Message):
        topic_id: Uuid
        topic_name: String
        num_partitions: Int32
        restored: Annotated[Array[Int32], tag(0)] = ()  # let go under an earlier controller epoch

    controller_epoch: Int32
    topics: Array[Topic]
    coordinator_partition: Annotated[Int32, tag(0)] = 0  # of __diskless-metadata


class InitDisklessTopicsResponse(Response, key=1093, versions="0"):
    """A result for each topic. Source: KIP-1164."""

    class TopicResult(Message):
        topic_id: Uuid
        error_code: Int16 = 0
        error_message: String | None = None

    throttle_time_ms: Int32 = 0
    responses: Array[TopicResult]


class CommitBatch(NamedTuple):
    """One batch of an object, as its uploader describes it."""

    byte_offset: Int64  # in the object
    size: Int32  # bytes
    base_offset: Int64  # in the producer's numbering: 0 in every batch a client sends
    last_offset: Int64  # inclusive
    batch_max_timestamp: Int64  # ms since 1970
    message_timestamp_type: Int8  # 0 create time, 1 append time
    producer_id: Int64  # -1: not idempotent
    producer_epoch: Int16
    base_sequence: Int32
    last_sequence: Int32  # inclusive


class TransactionalBatch(NamedTuple):
    """The proof that a batch belongs to an ongoing transaction.

    Source: docs/design/transactions-batches.md#commitbatches.
    """

    batch_index: Int32  # counted from 0 over all batches of the request
    transaction_number: Int64
    transaction_version: Int8  # 1 or 2: which protocol the producer speaks
    epoch_began_at_ms: Int64  # since when the producer has its id and epoch; ms since 1970


class CommitBatchesRequest(CoordinatorRequest["CommitBatchesResponse"], key=1094, versions="0"):
    """A broker commits an uploaded object with all its batches. Source: KIP-1164."""

    class Topic(Message):
        class Partition(Message):
            partition_index: Int32
            batches: Array[CommitBatch]

        topic_id: Uuid
        partitions: Array[Partition]

    broker_id: Int32
    broker_epoch: Int64
    lease_id: Int64
    object_id: Int64
    object_format: Int8
    object_size: Int64  # bytes
    topics: Array[Topic]
    coordinator_partition: Annotated[Int32, tag(0)] = 0  # of __diskless-metadata
    transactional: Annotated[Array[TransactionalBatch], tag(1)] = ()  # by rising batch index


class CommitBatchResult(NamedTuple):
    """The outcome of one batch. Source: KIP-1164, CommitBatches response."""

    error_code: Int16
    assigned_base_offset: Int64
    log_append_time: Int64
    log_start_offset: Int64
    is_duplicate: Bool


class CommitBatchesResponse(Response, key=1094, versions="0"):
    """A result for each batch, in the order of the request. Source: KIP-1164."""

    class Topic(Message):
        class Partition(Message):
            partition_index: Int32
            results: Array[CommitBatchResult]

        topic_id: Uuid
        partitions: Array[Partition]

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0  # of the whole object; the batches then have no results
    error_message: String | None = None
    topics: Array[Topic] = ()


class DeleteDisklessTopicsRequest(
    CoordinatorRequest["DeleteDisklessTopicsResponse"], key=1095, versions="0"
):
    """The controller tells a coordinator of deleted topics. Source: KIP-1164."""

    controller_epoch: Int32
    topic_ids: Array[Uuid]
    coordinator_partition: Annotated[Int32, tag(0)] = 0  # of __diskless-metadata


class DeleteDisklessTopicsResponse(Response, key=1095, versions="0"):
    """A result for each topic. Source: KIP-1164."""

    class TopicResult(Message):
        topic_id: Uuid
        error_code: Int16 = 0

    throttle_time_ms: Int32 = 0
    responses: Array[TopicResult]


class DeleteDisklessRecordsRequest(
    CoordinatorRequest["DeleteDisklessRecordsResponse"], key=1096, versions="0"
):
    """Moves log starts forward; -1 means the high watermark. Source: KIP-1164."""

    class Topic(Message):
        class Partition(Message):
            partition_index: Int32
            offset: Int64  # the first offset to keep

        topic_id: Uuid
        partitions: Array[Partition]

    topics: Array[Topic]
    coordinator_partition: Annotated[Int32, tag(0)] = 0  # of __diskless-metadata


class DeleteDisklessRecordsResponse(Response, key=1096, versions="0"):
    """The new log start of each partition. Source: KIP-1164."""

    class Topic(Message):
        class Partition(Message):
            partition_index: Int32
            error_code: Int16 = 0
            low_watermark: Int64

        topic_id: Uuid
        partitions: Array[Partition]

    throttle_time_ms: Int32 = 0
    responses: Array[Topic]


class FindBatchesRequest(CoordinatorRequest["FindBatchesResponse"], key=1097, versions="0"):
    """Asks where the batches from an offset on lie. Source: KIP-1164."""

    class Topic(Message):
        class Partition(Message):
            partition_index: Int32
            offset: Int64
            max_bytes: Int32

        topic_id: Uuid
        partitions: Array[Partition]

    topics: Array[Topic]
    max_bytes: Int32
    coordinator_partition: Annotated[Int32, tag(0)] = 0  # of __diskless-metadata
    isolation_level: Annotated[Int8, tag(1)] = 0  # 0 read_uncommitted, 1 read_committed


class AbortedTransaction(NamedTuple):
    """An aborted transaction that has batches among those of an answer."""

    producer_id: Int64
    first_offset: Int64  # of the transaction in the partition


class FindBatchesResponse(Response, key=1097, versions="0"):
    """Batch coordinates, several a partition. Source: KIP-1164."""

    class Topic(Message):
        class Partition(Message):
            class Batch(Message):
                object_key: String
                byte_offset: Int64
                size: Int64  # bytes
                base_offset: Int64
                last_offset: Int64  # inclusive
                log_append_timestamp: Int64
                batch_max_timestamp: Int64
                message_timestamp_type: Int8
                producer_id: Int64 = -1  # of a marker; -1 for a run: batches' headers have it
                producer_epoch: Int16 = -1
                base_sequence: Int32 = -1
                last_sequence: Int32 = -1
                object_format: Annotated[Int8, tag(0)] = 1  # 2: final bytes; 0: a marker
                record_count: Annotated[Int64, tag(1)] = -1  # -1: a record at every offset
                marker_outcome: Annotated[Int8, tag(2)] = -1  # 0 aborted, 1 committed
                coordinator_epoch: Annotated[Int32, tag(3)] = -1  # of a marker

            partition_index: Int32
            error_code: Int16 = 0
            log_start_offset: Int64
            high_watermark: Int64
            batches: Array[Batch]
            last_stable_offset: Annotated[Int64, tag(0)] = -1  # -1: the high watermark
            aborted: Annotated[Array[AbortedTransaction], tag(1)] = ()  # for read_committed

        topic_id: Uuid
        partitions: Array[Partition]

    throttle_time_ms: Int32 = 0
    responses: Array[Topic]


class ListDisklessOffsetsRequest(
    CoordinatorRequest["ListDisklessOffsetsResponse"], key=1098, versions="0"
):
    """Asks for offsets by timestamp, or by one of ListOffsets' sentinels. Source: KIP-1164.

    A search by time begins at the run that holds `from_offset`: who has read a run and found that
    only records before the log start are so late goes on after it.
    """

    class Topic(Message):
        class Partition(Message):
            partition_index: Int32
            timestamp: Int64
            from_offset: Annotated[Int64, tag(0)] = -1  # of runs; -1: the log start

        topic_id: Uuid
        partitions: Array[Partition]

    topics: Array[Topic]
    coordinator_partition: Annotated[Int32, tag(0)] = 0  # of __diskless-metadata
    isolation_level: Annotated[Int8, tag(1)] = 0  # 0 read_uncommitted, 1 read_committed


class ListDisklessOffsetsResponse(Response, key=1098, versions="0"):
    """The offset and timestamp found for each partition. Source: KIP-1164."""

    class Topic(Message):
        class Partition(Message):
            partition_index: Int32
            error_code: Int16 = 0
            timestamp: Int64
            offset: Int64

        topic_id: Uuid
        partitions: Array[Partition]

    throttle_time_ms: Int32 = 0
    responses: Array[Topic]


class AssignPartitionToBatchCoordinatorRequest(Request, key=1099, versions="0"):
    """Gives partitions without data to another batch coordinator. Source: KIP-1164."""

    class Topic(Message):
        class Partition(Message):
            partition_index: Int32
            batch_coordinator_partition_index: Int32

        topic_id: Uuid
        partitions: Array[Partition]

    topics: Array[Topic]


class AssignPartitionToBatchCoordinatorResponse(Response, key=1099, versions="0"):
    """A result for each partition. Source: KIP-1164."""

    class Topic(Message):
        class Partition(Message):
            partition_index: Int32
            error_code: Int16 = 0
            error_message: String | None = None

        topic_id: Uuid
        partitions: Array[Partition]

    throttle_time_ms: Int32 = 0
    responses: Array[Topic]


class ReleaseDisklessPartitionsRequest(
    CoordinatorRequest["ReleaseDisklessPartitionsResponse"], key=1107, versions="0"
):
    """The controller wants partitions let go that never had data: another coordinator gets them.

    Source: KIP-1164, AssignPartitionToBatchCoordinator; the call is ours.
    """

    class Topic(Message):
        class Partition(Message):
            partition_index: Int32

        topic_id: Uuid
        partitions: Array[Partition]

    controller_epoch: Int32
    topics: Array[Topic]
    coordinator_partition: Annotated[Int32, tag(0)] = 0  # of __diskless-metadata


class ReleaseDisklessPartitionsResponse(Response, key=1107, versions="0"):
    """The outcome of releasing each partition. Source: as the request's."""

    class Topic(Message):
        class Partition(Message):
            partition_index: Int32
            error_code: Int16 = 0

        topic_id: Uuid
        partitions: Array[Partition]

    throttle_time_ms: Int32 = 0
    responses: Array[Topic]


class ApplyRetentionRequest(CoordinatorRequest["ApplyRetentionResponse"], key=1108, versions="0"):
    """Rows of a retention plan that somebody outside made, each judged by itself.

    Source: docs/design/pipeline.md#applying-a-plan; the call is ours.
    """

    class Topic(Message):
        class Partition(Message):
            partition_index: Int32
            log_start_offset: Int64  # the first offset to keep
            reason: Int8  # 1 retention.ms, 2 retention.bytes
            limit: Int64  # of that setting, as the plan assumed it

        topic_id: Uuid
        partitions: Array[Partition]

    cluster_id: String
    expires_at_ms: Int64  # an hour after what ages were counted from; from then on no row is taken
    topics: Array[Topic]
    coordinator_partition: Annotated[Int32, tag(0)] = 0  # of __diskless-metadata


class ApplyRetentionResponse(Response, key=1108, versions="0"):
    """The outcome of each row of a plan. Source: as the request's."""

    class Topic(Message):
        class Partition(Message):
            partition_index: Int32
            error_code: Int16 = 0
            low_watermark: Int64  # the log start from now on; -1 if the row was refused

        topic_id: Uuid
        partitions: Array[Partition]

    throttle_time_ms: Int32 = 0
    responses: Array[Topic]


class DescribeDisklessProducersRequest(
    CoordinatorRequest["DescribeDisklessProducersResponse"], key=1114, versions="0"
):
    """Asks for the idempotent producers that partitions know. Source: KIP-664."""

    class Topic(Message):
        topic_id: Uuid
        partitions: Array[Int32]

    coordinator_partition: Int32
    topics: Array[Topic]
    producer_id: Annotated[Int64, tag(0)] = -1  # only of this producer; -1: of all


class DescribeDisklessProducersResponse(Response, key=1114, versions="0"):
    """Returns the producers of each partition, by rising producer id."""

    class Topic(Message):
        class Partition(Message):
            class Producer(Message):
                producer_id: Int64
                producer_epoch: Int16
                last_sequence: Int32  # of its last batch
                appended_at_ms: Int64  # its last batch or marker; ms since 1970
                coordinator_epoch: Annotated[Int32, tag(0)] = -1  # of its last marker
                current_txn_start_offset: Annotated[Int64, tag(1)] = -1  # -1: none is open
                open_number: Annotated[Int64, tag(2)] = -1  # of the open transaction

            partition_index: Int32
            error_code: Int16 = 0
            producers: Array[Producer] = ()

        topic_id: Uuid
        partitions: Array[Partition]

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    responses: Array[Topic] = ()
