"""Which batches of a partition are aborted, with transactions of several producers among them."""

from __future__ import annotations

from records.aborted import AbortedBatches
from records.batch import CONTROL, TRANSACTIONAL, BatchHeader


def header(offset: int, producer_id: int, attributes: int = TRANSACTIONAL) -> BatchHeader:
    return BatchHeader(offset, 49, 0, 2, 0, attributes, 0, 0, 0, producer_id, 0, 0, 1)


def covered(entries: list[tuple[int, int]], *headers: BatchHeader) -> list[int]:
    aborted = AbortedBatches(entries)
    return [each.base_offset for each in headers if aborted.covers(each)]


def test_an_aborted_transaction_ends_with_the_next_marker_of_its_producer() -> None:
    marker = TRANSACTIONAL | CONTROL
    found = covered(
        [(7, 2), (8, 3), (7, 12)],
        header(0, 7),  # committed
        header(1, 7, marker),
        header(2, 7),
        header(3, 8),
        header(4, 9),  # another producer
        header(5, 7),
        header(6, 7, marker),
        header(7, 7),  # committed
        header(8, 8),
        header(9, 8, marker),
        header(10, 7, marker),
        header(11, 8),
        header(12, 7),
        header(13, 7, attributes=0),  # in no transaction
        header(14, 7, marker),
        header(15, 7),
    )
    assert found == [2, 3, 5, 8, 12]


def test_an_aborted_transaction_that_began_below_the_first_batch_covers_its_batches() -> None:
    assert covered([(7, 2)], header(20, 7), header(21, 7, TRANSACTIONAL | CONTROL)) == [20]
