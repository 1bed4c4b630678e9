"""The ledger of transactions of the drill finds what must not be."""

from __future__ import annotations

import math

import pytest

from tests.clients.restoring import Shown, Transaction, Transactions

CUT_MS = 100.0


def ledger(*answered_ms: float, aborts: int = -1) -> Transactions:
    """Transactions with these times of their acknowledgement; their values are their numbers."""
    made = Transactions()
    for number, at_ms in enumerate(answered_ms):
        made.sent[b"%d" % number] = Transaction(commits=number != aborts, answered_ms=at_ms)
    return made


def shown(*counts: int) -> dict[tuple[int, int], Shown]:
    """In how many of two partitions a reader of committed records sees each transaction."""
    return {
        (partition, number): Shown(b"%d" % number, 0)
        for number, count in enumerate(counts)
        for partition in range(count)
    }


def test_the_ledger_counts_whole_lost_and_aborted_transactions_and_forgets_the_lost() -> None:
    transactions = ledger(10, 20, 120, 130, math.inf, aborts=1)
    settled = transactions.settle(shown(2, 0, 1), 2, CUT_MS)
    assert settled == (1, 1, 2, 1)
    assert list(transactions.sent) == [b"0", b"1"]


@pytest.mark.parametrize(
    ("transactions", "counts"),
    [
        (ledger(99), (0,)),  # acknowledged before the cut, and lost
        (ledger(99), (1,)),  # and there in part
        (ledger(120, 130), (0, 2)),  # a later one is there
        (ledger(120, 130), (1, 1)),  # two are there in part
        (ledger(10, aborts=0), (1,)),
    ],
)
def test_the_ledger_refuses_a_torn_lost_or_aborted_transaction_that_must_not_be(
    transactions: Transactions, counts: tuple[int, ...]
) -> None:
    with pytest.raises(AssertionError):
        transactions.settle(shown(*counts), 2, CUT_MS)
