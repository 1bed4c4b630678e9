"""The requests of brokers to the leader of the transaction log.

A broker acquires the ownership of a transactional id and forwards the calls of the id's producer
under the ownership epoch, one at a time, each sent once. Proofs and checks of markers carry no
ownership epoch and come from any broker.

Source: docs/design/transactions.md#requests. The numbers, from 1140 on, are ours.
"""

from typing import Annotated

from records.rpc.base import Request, Response
from records.schema import Message
from records.wire import Array, Bool, Int8, Int16, Int32, Int64, String, Uuid, tag


class TransactionTopic(Message):
    """Partitions of a topic, by the topic's id and name."""

    topic_id: Uuid
    topic_name: String
    partitions: Array[Int32]


class AcquireTransactionalIdRequest(Request, key=1140, versions="0"):
    """A broker requests the ownership of a transactional id, which ends any former ownership."""

    transactional_id: String
    broker_id: Int32
    broker_epoch: Int64
    create: Bool  # also if the id is not known; otherwise that is TRANSACTIONAL_ID_NOT_FOUND


class AcquireTransactionalIdResponse(Response, key=1140, versions="0"):
    """Returns the ownership epoch."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    ownership_epoch: Int64 = -1


class InitTransactionalIdRequest(Request, key=1141, versions="0"):
    """The owner of a transactional id forwards InitProducerId. Source: KIP-98, KIP-360."""

    transactional_id: String
    ownership_epoch: Int64
    timeout_ms: Int32
    producer_id: Int64 = -1  # -1: the producer has none yet
    producer_epoch: Int16 = -1
    spare_producer_id: Int64  # given out if a new producer id is needed


class InitTransactionalIdResponse(Response, key=1141, versions="0"):
    """Returns the producer id and epoch."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    producer_id: Int64 = -1
    producer_epoch: Int16 = -1


class AddTransactionPartitionsRequest(Request, key=1142, versions="0"):
    """The owner of a transactional id forwards AddPartitionsToTxn or AddOffsetsToTxn."""

    transactional_id: String
    ownership_epoch: Int64
    producer_id: Int64
    producer_epoch: Int16
    topics: Array[TransactionTopic]
    metadata_offset: Int64  # of the broker's cluster image, which has these topics


class AddTransactionPartitionsResponse(Response, key=1142, versions="0"):
    """Returns the number of the transaction that has the partitions."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    transaction_number: Int64 = -1


class EndTransactionRequest(Request, key=1143, versions="0"):
    """The owner of a transactional id forwards EndTxn. Source: KIP-98, KIP-890."""

    transactional_id: String
    ownership_epoch: Int64
    producer_id: Int64
    producer_epoch: Int16
    committed: Bool
    client_version: Int8  # 2: EndTxn version 5 and later, which raises the epoch
    spare_producer_id: Annotated[Int64, tag(0)] = -1  # if the raised epoch is the last one


class EndTransactionResponse(Response, key=1143, versions="0"):
    """Returns the producer id and epoch of the next transaction."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    producer_id: Int64 = -1
    producer_epoch: Int16 = -1


class ProveTransactionRequest(Request, key=1144, versions="0"):
    """Asks whether partitions are in an ongoing transaction; may add them. Source: KIP-890.

    Any broker asks, before it commits batches or offsets of the transaction.
    """

    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    topics: Array[TransactionTopic]
    adds: Bool = False  # add the partitions that are missing; begin a transaction if necessary
    metadata_offset: Int64 = -1  # as in AddTransactionPartitions; only with `adds`


class ProveTransactionResponse(Response, key=1144, versions="0"):
    """Returns the number of the transaction, and the partitions that it does not have.

    Without an error, the answer is true at `log_offset`. TRANSACTION_ABORTABLE with `missing`
    partitions: the others are in the transaction. CONCURRENT_TRANSACTIONS: the former transaction
    of the producer is ending.
    """

    class MissingTopic(Message):
        topic_id: Uuid
        partitions: Array[Int32]

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    transaction_number: Int64 = -1  # -1: no ongoing transaction
    log_offset: Int64 = -1  # of the transaction log, exclusive
    epoch_began_at_ms: Int64 = -1  # ms since 1970: since when the producer has this id and epoch
    missing: Array[MissingTopic] = ()


class DescribeTransactionalIdsRequest(Request, key=1145, versions="0"):
    """Asks for the states of transactional ids, behind the read barrier."""

    transactional_ids: Array[String]


class DescribeTransactionalIdsResponse(Response, key=1145, versions="0"):
    """Returns the state of each id; ids that are not known are left out."""

    class State(Message):
        transactional_id: String
        state: Int8  # as in TransactionStateRecord
        producer_id: Int64
        producer_epoch: Int16
        timeout_ms: Int32
        transaction_number: Int64
        started_at_ms: Int64
        topics: Array[TransactionTopic]

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    states: Array[State] = ()


class CheckTransactionRequest(Request, key=1146, versions="0"):
    """Asks whether an administrator's marker may end a transaction of a producer id.

    The answer is given behind the read barrier. Source: KIP-664.
    """

    producer_id: Int64
    transaction_number: Int64  # that is open at the marker's partition


class CheckTransactionResponse(Response, key=1146, versions="0"):
    """Returns INVALID_TXN_STATE while this transaction is Ongoing or in a Prepare state."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
