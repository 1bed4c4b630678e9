"""The offsets that open transactions have committed to a group, until their markers arrive.

The order of records decides between offsets of one partition: a plain commit or a deletion drops
the pending offsets before it, and a transaction that is committed drops those of earlier records.
So the pending offsets of a partition are kept in the order of their records.

Source: docs/design/transactions-groups.md#the-later-record-wins.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple
from uuid import UUID

from coordinator.persistent_map import Map

TopicPartition = tuple[str, int]
"""Topic name and partition."""

TransactionKey = tuple[int, int]
"""Producer id and transaction number."""


class CommittedOffset(NamedTuple):
    """The position from which a group continues to read a partition."""

    offset: int
    leader_epoch: int  # -1: unknown
    metadata: str
    committed_at_ms: int
    expire_at_ms: int  # -1: by retention
    topic_id: UUID  # zero: unknown


class PendingOffset(NamedTuple):
    """An offset that counts once its transaction is committed."""

    transaction: TransactionKey
    producer_epoch: int
    committed: CommittedOffset


_NO_OFFSETS: Final[Map[TopicPartition, tuple[PendingOffset, ...]]] = Map()
_NO_TRANSACTIONS: Final[Map[TransactionKey, frozenset[TopicPartition]]] = Map()


class PendingOffsets(NamedTuple):
    """The pending offsets of one group. Immutable."""

    by_partition: Map[TopicPartition, tuple[PendingOffset, ...]] = _NO_OFFSETS
    transactions: Map[TransactionKey, frozenset[TopicPartition]] = _NO_TRANSACTIONS
    total: int = 0

    def topic_ids(self) -> frozenset[UUID]:
        """Return the ids of the topics with pending offsets."""
        return frozenset(p.committed.topic_id for ps in self.by_partition.values() for p in ps)

    def add(
        self, offsets: Iterable[tuple[TopicPartition, PendingOffset]]
    ) -> tuple[PendingOffsets, set[TransactionKey]]:
        """Return the pending offsets with these added, and the transactions that changed.

        A transaction's newer offset of a partition replaces its older one.
        """
        edit = _Edit(self)
        for place, pending in offsets:
            others = (old for old in edit.at(place) if old.transaction != pending.transaction)
            edit.replace(place, (*others, pending))
        return edit.publish()

    def supersede(
        self, places: Iterable[TopicPartition]
    ) -> tuple[PendingOffsets, set[TransactionKey]]:
        """Return the offsets pending in other partitions, and the transactions that changed."""
        edit = _Edit(self)
        for place in places:
            edit.replace(place, ())
        return edit.publish()

    def end(
        self, key: TransactionKey, *, is_committed: bool
    ) -> tuple[PendingOffsets, set[TransactionKey], list[tuple[TopicPartition, CommittedOffset]]]:
        """Return other transactions' pending offsets, changed transactions, committed offsets.

        If it is committed, older pending offsets of its partitions are dropped with it.
        """
        edit = _Edit(self)
        counting = []
        for place in sorted(self.transactions.get(key, ())):
            waiting = self.by_partition[place]
            index = next(i for i, pending in enumerate(waiting) if pending.transaction == key)
            if is_committed:
                counting.append((place, waiting[index].committed))
                edit.replace(place, waiting[index + 1 :])
            else:
                edit.replace(place, waiting[:index] + waiting[index + 1 :])
        return *edit.publish(), counting


class _Edit:
    """Changes of a group's pending offsets, one partition at a time."""

    def __init__(self, before: PendingOffsets) -> None:
        self._by_partition = before.by_partition.edit()
        self._transactions = before.transactions.edit()
        self._total = before.total
        self._changed: set[TransactionKey] = set()

    def at(self, place: TopicPartition) -> tuple[PendingOffset, ...]:
        """Return the pending offsets of a partition, the oldest record first."""
        return self._by_partition.get(place) or ()

    def replace(self, place: TopicPartition, after: tuple[PendingOffset, ...]) -> None:
        """Replace the pending offsets of a partition by at most one for each transaction."""
        before = self.at(place)
        if after:
            self._by_partition.set(place, after)
        elif before:
            self._by_partition.pop(place)
        self._total += len(after) - len(before)
        keys_before = {pending.transaction for pending in before}
        keys_after = {pending.transaction for pending in after}
        for key in keys_before ^ keys_after:
            places = (self._transactions.get(key) or frozenset()) ^ {place}
            if places:
                self._transactions.set(key, places)
            else:
                self._transactions.pop(key)
            self._changed.add(key)

    def publish(self) -> tuple[PendingOffsets, set[TransactionKey]]:
        """Return the pending offsets with all changes, and the transactions that changed."""
        frozen = PendingOffsets(
            self._by_partition.freeze(), self._transactions.freeze(), self._total
        )
        return frozen, self._changed
