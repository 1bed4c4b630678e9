"""Transactions, as producers end them and administrators see them.

Source: KIP-98; KIP-890; KIP-664; KIP-994 (filters).
"""

from typing import Annotated

from records.rpc.base import Request, Response
from records.schema import Message
from records.wire import IGNORABLE, Array, Bool, Int8, Int16, Int32, Int64, String, since, until


class AddPartitionsToTxnTopic(Message):
    """Partitions of a topic that a producer adds to its transaction."""

    name: String
    partitions: Array[Int32]


class AddPartitionsToTxnRequest(Request, key=24, versions="0-5", flexible="3+"):
    """Adds partitions to transactions. Source: KIP-98, KIP-890 (several ids, verification)."""

    class AddPartitionsToTxnTransaction(Message):
        transactional_id: Annotated[String, since(4)] = ""
        producer_id: Annotated[Int64, since(4)] = 0
        producer_epoch: Annotated[Int16, since(4)] = 0
        verify_only: Annotated[Bool, since(4)] = False
        topics: Annotated[Array[AddPartitionsToTxnTopic], since(4)] = ()

    transactions: Annotated[Array[AddPartitionsToTxnTransaction], since(4)] = ()
    v3_and_below_transactional_id: Annotated[String, until(3)] = ""
    v3_and_below_producer_id: Annotated[Int64, until(3)] = 0
    v3_and_below_producer_epoch: Annotated[Int16, until(3)] = 0
    v3_and_below_topics: Annotated[Array[AddPartitionsToTxnTopic], until(3)] = ()


class AddPartitionsToTxnTopicResult(Message):
    """The results of adding a topic's partitions to a transaction."""

    class AddPartitionsToTxnPartitionResult(Message):
        partition_index: Int32
        partition_error_code: Int16

    name: String
    results_by_partition: Array[AddPartitionsToTxnPartitionResult]


class AddPartitionsToTxnResponse(Response, key=24, versions="0-5", flexible="3+"):
    """Returns a result for each partition. Source: KIP-98, KIP-890."""

    class AddPartitionsToTxnResult(Message):
        transactional_id: Annotated[String, since(4)] = ""
        topic_results: Annotated[Array[AddPartitionsToTxnTopicResult], since(4)] = ()

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, since(4), IGNORABLE] = 0
    results_by_transaction: Annotated[Array[AddPartitionsToTxnResult], since(4)] = ()
    results_by_topic_v3_and_below: Annotated[Array[AddPartitionsToTxnTopicResult], until(3)] = ()


class AddOffsetsToTxnRequest(Request, key=25, versions="0-4", flexible="3+"):
    """Adds a group's offsets to a transaction. Source: KIP-98."""

    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    group_id: String


class AddOffsetsToTxnResponse(Response, key=25, versions="0-4", flexible="3+"):
    """Returns the result of adding a group's offsets. Source: KIP-98."""

    throttle_time_ms: Int32 = 0
    error_code: Int16


class EndTxnRequest(Request, key=26, versions="0-5", flexible="3+"):
    """Commits or aborts a transaction. Source: KIP-98, KIP-890 (version 5 raises the epoch)."""

    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    committed: Bool


class EndTxnResponse(Response, key=26, versions="0-5", flexible="3+"):
    """Returns the producer id and epoch of the next transaction. Source: KIP-98, KIP-890."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    producer_id: Annotated[Int64, since(5), IGNORABLE] = -1
    producer_epoch: Annotated[Int16, since(5), IGNORABLE] = -1


class WriteTxnMarkersRequest(Request, key=27, versions="1-2", flexible="1+"):
    """An administrator ends transactions at partitions. Source: KIP-98, KIP-664, KIP-1228."""

    class WritableTxnMarker(Message):
        class WritableTxnMarkerTopic(Message):
            name: String
            partition_indexes: Array[Int32]

        producer_id: Int64
        producer_epoch: Int16
        transaction_result: Bool  # whether the transaction is committed
        topics: Array[WritableTxnMarkerTopic]
        coordinator_epoch: Int32
        transaction_version: Annotated[Int8, since(2), IGNORABLE] = 0

    markers: Array[WritableTxnMarker]


class WriteTxnMarkersResponse(Response, key=27, versions="1-2", flexible="1+"):
    """Returns a result for each partition of each marker. Source: KIP-98, KIP-664."""

    class WritableTxnMarkerResult(Message):
        class WritableTxnMarkerTopicResult(Message):
            class WritableTxnMarkerPartitionResult(Message):
                partition_index: Int32
                error_code: Int16

            name: String
            partitions: Array[WritableTxnMarkerPartitionResult]

        producer_id: Int64
        topics: Array[WritableTxnMarkerTopicResult]

    markers: Array[WritableTxnMarkerResult]


class DescribeProducersRequest(Request, key=61, versions="0"):
    """Asks for the producers that partitions know. Source: KIP-664."""

    class TopicRequest(Message):
        name: String
        partition_indexes: Array[Int32]

    topics: Array[TopicRequest]


class DescribeProducersResponse(Response, key=61, versions="0"):
    """Returns the active producers of each partition. Source: KIP-664."""

    class TopicResponse(Message):
        class PartitionResponse(Message):
            class ProducerState(Message):
                producer_id: Int64
                producer_epoch: Int32
                last_sequence: Int32 = -1
                last_timestamp: Int64 = -1
                coordinator_epoch: Int32
                current_txn_start_offset: Int64 = -1

            partition_index: Int32
            error_code: Int16 = 0
            error_message: String | None = None
            active_producers: Array[ProducerState]

        name: String
        partitions: Array[PartitionResponse]

    throttle_time_ms: Int32 = 0
    topics: Array[TopicResponse]


class DescribeTransactionsRequest(Request, key=65, versions="0"):
    """Asks for the state of transactions. Source: KIP-664."""

    transactional_ids: Array[String]


class DescribeTransactionsResponse(Response, key=65, versions="0"):
    """Returns the state of each transaction. Source: KIP-664."""

    class TransactionState(Message):
        class TopicData(Message):
            topic: String
            partitions: Array[Int32]

        error_code: Int16 = 0
        transactional_id: String
        transaction_state: String
        transaction_timeout_ms: Int32
        transaction_start_time_ms: Int64
        producer_id: Int64
        producer_epoch: Int16
        topics: Array[TopicData]

    throttle_time_ms: Int32 = 0
    transaction_states: Array[TransactionState]


class ListTransactionsRequest(Request, key=66, versions="0-2"):
    """Asks for the transactions that match filters. Source: KIP-664, KIP-994."""

    state_filters: Array[String]
    producer_id_filters: Array[Int64]
    duration_filter: Annotated[Int64, since(1)] = -1
    transactional_id_pattern: Annotated[String | None, since(2)] = None


class ListTransactionsResponse(Response, key=66, versions="0-2"):
    """Returns the matching transactions. Source: KIP-664."""

    class TransactionState(Message):
        transactional_id: String
        producer_id: Int64
        transaction_state: String

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    unknown_state_filters: Array[String]
    transaction_states: Array[TransactionState]
