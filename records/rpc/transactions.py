"""Producers and transactions, as administrators see them.

Source: KIP-664; KIP-994 (filters).
"""

from typing import Annotated

from records.rpc.base import Request, Response
from records.schema import Message
from records.wire import Array, Int16, Int32, Int64, String, since


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
