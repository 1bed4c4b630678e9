"""Turns an image of transactional ids into the records of a checkpoint.

The records come in the order of the ids, and inside an id its owner, its state, its partitions: so
replicas with the same ids write the same bytes. The trap is the sorting: a hundred thousand ids are
sorted in runs, with a pause after each, because the node's event loop must go on meanwhile.

Source: KIP-630, Snapshot Format; docs/design/snapshots.md#generation-never-blocks-commits.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final
from uuid import UUID

from coordinator.transactions.settings import RECORD_PARTITIONS
from coordinator.transactions.state import NONE, TopicPartition, Transaction, TransactionsImage
from records.frame import encode_record
from records.transactions import (
    TransactionalIdOwnerRecord,
    TransactionPartitionsRecord,
    TransactionsState,
    TransactionStateRecord,
)

_SORT_AT_ONCE: Final = 2_000  # ids: about a millisecond


def image_values(image: TransactionsImage) -> Iterator[bytes]:
    """Yield the encoded records of all transactional ids, in the order of loading.

    An empty value (b"") marks a pause, at which the caller lets other work run.
    """
    yield encode_record(TransactionsState(next_ownership_epoch=image.next_ownership_epoch))
    runs: list[list[str]] = []
    ids = iter(image.ids)
    while run := sorted(islice(ids, _SORT_AT_ONCE)):
        runs.append(run)
        yield b""
    for transactional_id in heapq.merge(*runs):
        yield from _id_values(transactional_id, image.ids[transactional_id])


def _id_values(transactional_id: str, transaction: Transaction) -> Iterator[bytes]:
    """Yield a transactional id's encoded records: the owner, the state and the partitions."""
    yield encode_record(
        TransactionalIdOwnerRecord(
            transactional_id=transactional_id,
            ownership_epoch=transaction.ownership_epoch,
            broker_id=transaction.broker_id,
            broker_epoch=transaction.broker_epoch,
            acquired_at_ms=transaction.acquired_at_ms,
        )
    )
    if transaction.updated_at_ms != NONE:
        yield encode_record(state_record(transactional_id, transaction))
    yield from map(
        encode_record,
        partition_records(
            transactional_id,
            transaction.number,
            sorted(transaction.partitions.items()),
            metadata_offset=transaction.metadata_offset,
            added_at_ms=transaction.updated_at_ms,
        ),
    )


def partition_records(
    transactional_id: str,
    number: int,
    partitions: Sequence[tuple[TopicPartition, str]],
    *,
    metadata_offset: int,
    added_at_ms: int,
) -> list[TransactionPartitionsRecord]:
    """Return the records, each of a limited size, that add partitions to a transaction."""
    topic = TransactionPartitionsRecord.Topic
    return [
        TransactionPartitionsRecord(
            transactional_id=transactional_id,
            transaction_number=number,
            topics=tuple(
                topic(topic_id=topic_id, topic_name=name, partitions=indexes)
                for topic_id, name, indexes in by_topic(partitions[at : at + RECORD_PARTITIONS])
            ),
            metadata_offset=metadata_offset,
            added_at_ms=added_at_ms,
        )
        for at in range(0, len(partitions), RECORD_PARTITIONS)
    ]


def state_record(transactional_id: str, transaction: Transaction) -> TransactionStateRecord:
    """Return the record that sets a transactional id to this state."""
    return TransactionStateRecord(
        transactional_id=transactional_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        last_producer_epoch=transaction.last_producer_epoch,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        timeout_ms=transaction.timeout_ms,
        state=int(transaction.state),
        client_version=transaction.client_version,
        transaction_number=transaction.number,
        epoch_began_at_ms=transaction.epoch_began_at_ms,
        started_at_ms=transaction.started_at_ms,
        updated_at_ms=transaction.updated_at_ms,
    )


def by_topic(
    partitions: Iterable[tuple[TopicPartition, str]],
) -> list[tuple[UUID, str, tuple[int, ...]]]:
    """Return partitions grouped by topic: id, name and sorted partition numbers.

    >>> by_topic([((UUID(int=1), 4), "t"), ((UUID(int=1), 2), "t")])
    [(UUID('00000000-0000-0000-0000-000000000001'), 't', (2, 4))]
    """
    topics: dict[tuple[UUID, str], list[int]] = {}
    for (topic_id, index), name in partitions:
        topics.setdefault((topic_id, name), []).append(index)
    return [
        (topic_id, name, tuple(sorted(indexes)))
        for (topic_id, name), indexes in sorted(topics.items())
    ]


class FrozenTransactions:
    """An image of transactional ids to be written to a checkpoint; see `raft.interfaces.Frozen`.

    Images are immutable, so nothing needs to be copied.
    """

    def __init__(self, image: TransactionsImage) -> None:
        self._image: TransactionsImage | None = image

    def values(self) -> Iterator[bytes]:
        """Yield the encoded records of the frozen image of transactional ids."""
        assert self._image is not None, "the frozen image is closed"
        return image_values(self._image)

    def close(self) -> None:
        """Release the reference to the frozen image of transactional ids."""
        self._image = None
