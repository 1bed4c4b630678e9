"""The ledgers of the drill find what must not be."""

from __future__ import annotations

import math

import pytest

from tests.clients.restoring import Ledger, Shown, Transaction, Transactions

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


def copies(*offsets: int) -> dict[tuple[int, int], Shown]:
    """A record of partition 0 at each of these offsets; the exact end is 5."""
    return {(0, offset): Shown(b"record", offset >= 5) for offset in offsets}


def acknowledged(offset: int, *, plain: bool) -> Ledger:
    """A ledger of that record."""
    made = Ledger(plain=plain)
    made.acknowledged[0, offset] = b"record"
    made.times_ms[0, offset] = CUT_MS
    return made


@pytest.mark.parametrize("place", [2, 3])
def test_a_plain_record_may_be_there_twice_and_an_idempotent_one_not(place: int) -> None:
    assert acknowledged(place, plain=True).settle(copies(2, 3), {0: 5}).doubled == 1
    with pytest.raises(AssertionError, match="twice"):
        acknowledged(place, plain=False).settle(copies(2, 3), {0: 5})


def test_a_plain_record_whose_earlier_copy_is_left_is_not_lost() -> None:
    settled = acknowledged(7, plain=True).settle(copies(2), {0: 5})
    assert (settled.exact, settled.lost_ms) == (1, [])
    with pytest.raises(AssertionError, match="gone back"):
        acknowledged(7, plain=False).settle(copies(2), {0: 5})


@pytest.mark.parametrize("plain", [True, False])
def test_a_record_without_a_copy_is_lost_above_the_exact_end_alone(plain: bool) -> None:
    assert acknowledged(7, plain=plain).settle({}, {0: 5}).lost_ms == [CUT_MS]
    with pytest.raises(AssertionError, match="lost at"):
        acknowledged(2, plain=plain).settle({}, {0: 5})
