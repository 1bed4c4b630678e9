"""Transactional ids as the log defines them: one immutable image after another.

`apply` decides nothing: which transitions are legal was decided before they became records. Only a
record of an id that does not exist is ignored and counted.

Source: docs/design/transactions.md#states, docs/design/state-machines.md#decide-and-apply.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple
from uuid import UUID

from coordinator.persistent_map import Editor, Map
from coordinator.transactions.settings import RECORD_PARTITIONS
from records.schema import MetadataRecord
from records.transactions import (
    TransactionalIdOwnerRecord,
    TransactionalIdRemovedRecord,
    TransactionPartitionsRecord,
    TransactionsState,
    TransactionStateRecord,
)

NONE: Final = -1
"""Stands for no producer id, no epoch and no time, as in Kafka's messages."""

LAST_EPOCH: Final = 2**15 - 2
"""The largest epoch that a producer gets; the largest int16 is left to fence it."""


class State(IntEnum):
    """The states of a transactional id, with Kafka's numbers."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """Return Kafka's name of the state, for example `PrepareCommit`."""
        return self.name.title().replace("_", "")


PREPARED: Final = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})
"""The states in which the outcome is decided and markers are being written."""

OPEN: Final = PREPARED | {State.ONGOING}
"""The states in which a transaction has partitions."""

TopicPartition = tuple[UUID, int]
"""Topic id and partition."""

_NO_PARTITIONS: Final[Map[TopicPartition, str]] = Map()


class Transaction(NamedTuple):
    """A transactional id: its owner, its producer, and its newest transaction."""

    ownership_epoch: int
    broker_id: int
    broker_epoch: int
    acquired_at_ms: int
    producer_id: int = NONE
    producer_epoch: int = NONE
    last_producer_epoch: int = NONE
    previous_producer_id: int = NONE
    next_producer_id: int = NONE
    timeout_ms: int = 0
    state: State = State.EMPTY
    client_version: int = 0  # of the protocol that ended the newest transaction
    number: int = 0  # of the newest transaction; 0: there was none
    epoch_began_at_ms: int = NONE
    started_at_ms: int = NONE
    updated_at_ms: int = NONE
    metadata_offset: int = NONE  # of a cluster image that has all topics of the partitions
    partitions: Map[TopicPartition, str] = _NO_PARTITIONS  # topic names

    @property
    def is_exhausted(self) -> bool:
        """Return whether the producer id has reached the last epoch that a producer may have."""
        return self.producer_epoch >= LAST_EPOCH

    @property
    def record_count(self) -> int:
        """Return the number of records that a checkpoint has for the transactional id."""
        records_of_partitions = -(-len(self.partitions) // RECORD_PARTITIONS)
        return 1 + (self.updated_at_ms != NONE) + records_of_partitions

    @property
    def touched_at_ms(self) -> int:
        """Return when the transactional id was last acquired or changed, in ms since 1970."""
        return max(self.acquired_at_ms, self.updated_at_ms)


class TransactionsImage(NamedTuple):
    """All transactional ids, immutable."""

    ids: Map[str, Transaction] = Map()
    by_producer: Map[int, str] = Map()  # the transactional id of each present producer id
    ongoing: Map[str, int] = Map()  # the numbers of Ongoing transactions
    prepared: Map[tuple[str, int], bool] = Map()  # ids and numbers in a Prepare state
    next_ownership_epoch: int = 1
    record_count: int = 1  # of a checkpoint


class TransactionsEdit:
    """A mutable copy of an image, from which the next image is published."""

    def __init__(self, image: TransactionsImage) -> None:
        self._ids: Editor[str, Transaction] = image.ids.edit()
        self._by_producer: Editor[int, str] = image.by_producer.edit()
        self._ongoing: Editor[str, int] = image.ongoing.edit()
        self._prepared: Editor[tuple[str, int], bool] = image.prepared.edit()
        self._next_ownership_epoch = image.next_ownership_epoch
        self._record_count = image.record_count
        self.changed = 0  # records of a checkpoint that were replaced or removed
        self.contradictions = 0  # records that named no existing transactional id

    def publish(self) -> TransactionsImage:
        """Return the image of the transactional ids with all changes; more changes may follow."""
        return TransactionsImage(
            self._ids.freeze(),
            self._by_producer.freeze(),
            self._ongoing.freeze(),
            self._prepared.freeze(),
            self._next_ownership_epoch,
            self._record_count,
        )

    def apply(self, record: MetadataRecord) -> None:
        """Add one committed record to the changes of the next image of transactional ids."""
        match record:
            case TransactionalIdOwnerRecord():
                self._apply_owner(record)
            case TransactionStateRecord():
                self._apply_state(record)
            case TransactionPartitionsRecord():
                self._apply_partitions(record)
            case TransactionalIdRemovedRecord():
                self._set(record.transactional_id, None)
            case TransactionsState():
                self._next_ownership_epoch = record.next_ownership_epoch
            case _:
                self.contradictions += 1

    def _apply_owner(self, record: TransactionalIdOwnerRecord) -> None:
        before = self._ids.get(record.transactional_id)
        owner = Transaction(
            record.ownership_epoch, record.broker_id, record.broker_epoch, record.acquired_at_ms
        )
        after = owner
        if before is not None:
            after = before._replace(
                ownership_epoch=owner.ownership_epoch,
                broker_id=owner.broker_id,
                broker_epoch=owner.broker_epoch,
                acquired_at_ms=owner.acquired_at_ms,
            )
        self._set(record.transactional_id, after)
        self._next_ownership_epoch = max(self._next_ownership_epoch, record.ownership_epoch + 1)

    def _apply_state(self, record: TransactionStateRecord) -> None:
        before = self._ids.get(record.transactional_id)
        if before is None:
            self.contradictions += 1
            return
        state = State(record.state)
        keeps = state in OPEN
        after = before._replace(
            producer_id=record.producer_id,
            producer_epoch=record.producer_epoch,
            last_producer_epoch=record.last_producer_epoch,
            previous_producer_id=record.previous_producer_id,
            next_producer_id=record.next_producer_id,
            timeout_ms=record.timeout_ms,
            state=state,
            client_version=record.client_version,
            number=record.transaction_number,
            epoch_began_at_ms=record.epoch_began_at_ms,
            started_at_ms=record.started_at_ms,
            updated_at_ms=record.updated_at_ms,
            partitions=before.partitions if keeps else _NO_PARTITIONS,
            metadata_offset=before.metadata_offset if keeps else NONE,
        )
        self._set(record.transactional_id, after)

    def _apply_partitions(self, record: TransactionPartitionsRecord) -> None:
        before = self._ids.get(record.transactional_id)
        if before is None:
            self.contradictions += 1
            return
        begins = record.transaction_number > before.number
        partitions = (_NO_PARTITIONS if begins else before.partitions).edit()
        for topic in record.topics:
            for index in topic.partitions:
                partitions.set((topic.topic_id, index), topic.topic_name)
        after = before._replace(
            partitions=partitions.freeze(),
            metadata_offset=max(NONE if begins else before.metadata_offset, record.metadata_offset),
            updated_at_ms=max(before.updated_at_ms, record.added_at_ms),
        )
        if begins:
            after = after._replace(
                state=State.ONGOING,
                number=record.transaction_number,
                started_at_ms=record.added_at_ms,
            )
        self._set(record.transactional_id, after)

    def _set(self, transactional_id: str, after: Transaction | None) -> None:
        """Store or remove a transactional id, and update the indexes and counts of records."""
        before = self._ids.get(transactional_id)
        if before is None and after is None:
            self.contradictions += 1
            return
        before_count = 0 if before is None else before.record_count
        after_count = 0 if after is None else after.record_count
        self._record_count += after_count - before_count
        self.changed += 1 if before is not None else 0
        if before is not None:
            self._by_producer.pop(before.producer_id)
            self._ongoing.pop(transactional_id)
            self._prepared.pop((transactional_id, before.number))
        if after is None:
            self._ids.pop(transactional_id)
            return
        self._ids.set(transactional_id, after)
        if after.producer_id != NONE:
            self._by_producer.set(after.producer_id, transactional_id)
        if after.state is State.ONGOING:
            self._ongoing.set(transactional_id, after.number)
        elif after.state in PREPARED:
            self._prepared.set((transactional_id, after.number), True)
