"""The records of transactional ids: what `__transaction_state-0` holds.

Upstream keeps one value for each transactional id in a compacted topic, and writes all of it at
each change. This log has no keys and is never compacted: its checkpoints hold what is left, in the
same records, each id's owner before its state and its partitions. States have upstream's numbers,
and fields upstream's meaning (TransactionLogValue).

*Every transaction of an id has a number*, which rises by one whenever a transaction begins. It
tells a transaction of an id from the next one; producer id and epoch do not while the epoch stays.

Source: docs/design/transactions.md; KIP-98, KIP-360, KIP-890. The numbers, from 1170 on, are ours.
"""

from typing import Annotated

from records.schema import Message, MetadataRecord
from records.wire import Array, Int8, Int16, Int32, Int64, String, Uuid, tag


class TransactionalIdOwnerRecord(MetadataRecord, key=1170, versions="0"):
    """A broker owns a transactional id; owners with a lower ownership epoch are fenced."""

    transactional_id: String
    ownership_epoch: Int64  # rises with every owner of any id, so none is ever used twice
    broker_id: Int32
    broker_epoch: Int64
    acquired_at_ms: Int64  # ms since 1970


class TransactionStateRecord(MetadataRecord, key=1171, versions="0"):
    """Sets the state of a transactional id. Source: upstream's TransactionLogValue.

    Partitions are added by TransactionPartitionsRecord alone. A state that is neither Ongoing nor
    a Prepare state removes all partitions.
    """

    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    last_producer_epoch: Int16  # -1: none; the epoch with which the last call may be repeated
    previous_producer_id: Annotated[Int64, tag(0)] = -1
    next_producer_id: Annotated[Int64, tag(1)] = -1  # after an epoch that is exhausted
    timeout_ms: Int32
    state: Int8  # upstream's numbers: 0 Empty, 1 Ongoing, 2 PrepareCommit, ...
    client_version: Annotated[Int8, tag(2)] = 0  # of the protocol that ended the transaction
    transaction_number: Int64  # of the newest transaction; 0 before the first
    epoch_began_at_ms: Int64  # ms since 1970: since when the producer has this id and epoch
    started_at_ms: Int64  # ms since 1970 of the newest transaction; -1: none since the last init
    updated_at_ms: Int64  # ms since 1970


class TransactionPartitionsRecord(MetadataRecord, key=1172, versions="0"):
    """Adds partitions to a transaction; begins the transaction if its number is a new one."""

    class Topic(Message):
        topic_id: Uuid
        topic_name: String
        partitions: Array[Int32]

    transactional_id: String
    transaction_number: Int64
    topics: Array[Topic]
    metadata_offset: Int64  # of a cluster image that has these topics
    added_at_ms: Int64  # ms since 1970


class TransactionalIdRemovedRecord(MetadataRecord, key=1173, versions="0"):
    """A transactional id is removed, with its state and its ownership."""

    transactional_id: String
    reason: Int8  # 0 expired


class TransactionsState(MetadataRecord, key=1174, versions="0"):
    """The counter of ownership epochs, which outlives the ids. First in checkpoints only."""

    next_ownership_epoch: Int64
