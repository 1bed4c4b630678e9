"""Transactions in partitions: the open ones, the ended numbers, and the last stable offset.

A transaction is known by its number, which rises by one with every transaction of a transactional
id. A producer's row in a partition has the number that is open there, and the highest that ended.

Source: docs/design/transactions-batches.md.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final, NamedTuple

NONE_OPEN: Final = -1

TRANSACTIONS_LEVEL: Final = 4
"""Level of `esker.version` that allows records of transactions."""

NEEDS_LEVEL: Final = "transactions need esker.version 4: finalize it first (esker features upgrade)"

COMMITTED: Final = 1
ABORTED: Final = 0
"""Outcomes of a marker."""


class Transactional(NamedTuple):
    """The part of a producer's row that only transactional producers have."""

    open_number: int = NONE_OPEN
    first_offset: int = -1  # of the open transaction
    ended_number: int = -1  # the highest; -1: none has ended
    coordinator_epoch: int = -1  # of the newest marker

    @property
    def is_open(self) -> bool:
        """Return whether a transaction of the producer is open in the partition."""
        return self.open_number != NONE_OPEN

    def accepts(self, number: int) -> bool:
        """Return whether a batch may be appended to transaction `number`, or may begin it."""
        return number > self.ended_number and self.open_number in (NONE_OPEN, number)


_NEVER: Final = Transactional()
"""The row of a producer that never had a transaction in the partition."""


class Marker(NamedTuple):
    """The facts of a marker's run, from which a broker builds a control batch."""

    producer_id: int
    producer_epoch: int
    outcome: int  # COMMITTED or ABORTED
    coordinator_epoch: int


class Aborted(NamedTuple):
    """An aborted transaction of a partition."""

    producer_id: int
    first_offset: int
    last_offset: int  # of its marker
    last_stable_offset: int  # of the partition after the marker: entries behind begin at or above


OpenTransactions = tuple[tuple[int, int], ...]
"""First offset and producer id of each open transaction of a partition, by rising offset."""


def opened(row: Transactional | None, number: int, offset: int) -> Transactional:
    """Return a producer's state after a batch of a transaction was appended at an offset.

    >>> opened(None, 7, 100)
    Transactional(open_number=7, first_offset=100, ended_number=-1, coordinator_epoch=-1)
    """
    before = row or Transactional()
    return before if before.is_open else before._replace(open_number=number, first_offset=offset)


def ended(row: Transactional | None, number: int, coordinator_epoch: int) -> Transactional:
    """Return a producer's state after a marker ended the transaction with this number.

    >>> ended(Transactional(7, 100, 6, 1), 7, 2)
    Transactional(open_number=-1, first_offset=-1, ended_number=7, coordinator_epoch=2)
    >>> ended(Transactional(7, 100, 6, 1), 8, 2)
    Transactional(open_number=7, first_offset=100, ended_number=8, coordinator_epoch=2)
    """
    open_number, first_offset, ended_number, _ = row or _NEVER
    if open_number == number:
        open_number, first_offset = NONE_OPEN, -1
    return Transactional(open_number, first_offset, max(ended_number, number), coordinator_epoch)


def without_transaction(
    transactions: OpenTransactions, first_offset: int, producer_id: int
) -> OpenTransactions:
    """Return a partition's open transactions without one, which need not be among them.

    >>> without_transaction(((4, 1), (6, 2), (9, 1)), 6, 2)
    ((4, 1), (9, 1))
    >>> without_transaction(((4, 1),), -1, 2)
    ((4, 1),)
    """
    at = bisect_left(transactions, (first_offset, producer_id))
    if transactions[at : at + 1] != ((first_offset, producer_id),):
        return transactions
    return transactions[:at] + transactions[at + 1 :]


def last_stable_offset(log: tuple[int, int], transactions: OpenTransactions | None) -> int:
    """Return a partition's last stable offset: all transactions below it have ended.

    >>> last_stable_offset((0, 9), ()), last_stable_offset((0, 9), ((4, 1), (6, 2)))
    (9, 4)
    >>> last_stable_offset((5, 9), ((4, 1),))
    5
    """
    log_start, high_watermark = log
    return max(log_start, transactions[0][0]) if transactions else high_watermark


def overlapping(entries: Iterable[Aborted], end_offset: int) -> list[Aborted]:
    """Return those of the aborted transactions that begin below an offset.

    Args:  entries: by rising last offset. The scan stops where no later entry can begin below.
    """
    found = []
    for entry in entries:
        if entry.first_offset < end_offset:
            found.append(entry)
        if entry.last_stable_offset >= end_offset:
            break
    return found
