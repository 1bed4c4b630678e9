"""Requests of clients about offsets and partitions, and of producers about their ids.

Source: KIP-107 (DeleteRecords), KIP-98 and KIP-360 (InitProducerId), KIP-101 and KIP-320
(OffsetForLeaderEpoch), KIP-966 (DescribeTopicPartitions).
"""

from typing import Annotated

from records.rpc.base import Request, Response
from records.schema import Message
from records.wire import IGNORABLE, Array, Bool, Int16, Int32, Int64, String, Uuid, since


class DeleteRecordsRequest(Request, key=21, versions="0-2", flexible="2+"):
    """Moves the log starts of partitions forward. Source: KIP-107."""

    class DeleteRecordsTopic(Message):
        class DeleteRecordsPartition(Message):
            partition_index: Int32
            offset: Int64

        name: String
        partitions: Array[DeleteRecordsPartition]

    topics: Array[DeleteRecordsTopic]
    timeout_ms: Int32


class DeleteRecordsResponse(Response, key=21, versions="0-2", flexible="2+"):
    """The new log start of each partition. Source: KIP-107."""

    class DeleteRecordsTopicResult(Message):
        class DeleteRecordsPartitionResult(Message):
            partition_index: Int32
            low_watermark: Int64
            error_code: Int16

        name: String
        partitions: Array[DeleteRecordsPartitionResult]

    throttle_time_ms: Int32 = 0
    topics: Array[DeleteRecordsTopicResult]


class InitProducerIdRequest(Request, key=22, versions="0-6", flexible="2+"):
    """A producer asks for an id and an epoch. Source: KIP-98, KIP-360, KIP-939."""

    transactional_id: String | None
    transaction_timeout_ms: Int32
    producer_id: Annotated[Int64, since(3)] = -1
    producer_epoch: Annotated[Int16, since(3)] = -1
    enable_2_pc: Annotated[Bool, since(6)] = False
    keep_prepared_txn: Annotated[Bool, since(6)] = False


class InitProducerIdResponse(Response, key=22, versions="0-6", flexible="2+"):
    """Its id and epoch. Source: KIP-98, KIP-939."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    producer_id: Int64 = -1
    producer_epoch: Int16
    ongoing_txn_producer_id: Annotated[Int64, since(6)] = -1
    ongoing_txn_producer_epoch: Annotated[Int16, since(6)] = -1


class OffsetForLeaderEpochRequest(Request, key=23, versions="2-4", flexible="4+"):
    """Asks where leader epochs end. Source: KIP-101, KIP-320."""

    class OffsetForLeaderTopic(Message):
        class OffsetForLeaderPartition(Message):
            partition: Int32
            current_leader_epoch: Int32 = -1
            leader_epoch: Int32

        topic: String
        partitions: Array[OffsetForLeaderPartition]

    replica_id: Annotated[Int32, since(3), IGNORABLE] = -2
    topics: Array[OffsetForLeaderTopic]


class OffsetForLeaderEpochResponse(Response, key=23, versions="2-4", flexible="4+"):
    """The exclusive end offset of each epoch. Source: KIP-101, KIP-320."""

    class OffsetForLeaderTopicResult(Message):
        class EpochEndOffset(Message):
            error_code: Int16
            partition: Int32
            leader_epoch: Int32 = -1
            end_offset: Int64 = -1

        topic: String
        partitions: Array[EpochEndOffset]

    throttle_time_ms: Int32 = 0
    topics: Array[OffsetForLeaderTopicResult]


class DescribeTopicPartitionsRequest(Request, key=75, versions="0", flexible="0+"):
    """Asks for partitions of topics, page by page. Source: KIP-966."""

    class TopicRequest(Message):
        name: String

    class Cursor(Message):
        topic_name: String
        partition_index: Int32

    topics: Array[TopicRequest]
    response_partition_limit: Int32 = 2_000
    cursor: Cursor | None = None


class DescribeTopicPartitionsResponse(Response, key=75, versions="0", flexible="0+"):
    """A page of partitions, and where the next one begins. Source: KIP-966."""

    class DescribeTopicPartitionsResponseTopic(Message):
        class DescribeTopicPartitionsResponsePartition(Message):
            error_code: Int16
            partition_index: Int32
            leader_id: Int32
            leader_epoch: Int32 = -1
            replica_nodes: Array[Int32]
            isr_nodes: Array[Int32]
            eligible_leader_replicas: Array[Int32] | None = None
            last_known_elr: Array[Int32] | None = None
            offline_replicas: Array[Int32]

        error_code: Int16
        name: String | None
        topic_id: Uuid
        is_internal: Bool = False
        partitions: Array[DescribeTopicPartitionsResponsePartition]
        topic_authorized_operations: Int32 = -2_147_483_648

    class Cursor(Message):
        topic_name: String
        partition_index: Int32

    throttle_time_ms: Int32 = 0
    topics: Array[DescribeTopicPartitionsResponseTopic]
    next_cursor: Cursor | None = None
