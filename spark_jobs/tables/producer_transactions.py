"""The transactions of each producer in each partition, and the aborted ones, computed by columns.

The numbers of a producer's transactions rise, and a number that has ended in a partition gets no
batch there any more. So the open transaction is the one of the highest number that has batches,
unless a marker has that number too; in whatever order batches and markers are read.

Source: docs/design/transactions-batches.md#the-transaction-number,
docs/design/transactions-batches.md#what-a-partition-answers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from records.diskless import AbortedState, ProducersState
from spark_jobs.tables.runs import column, transactions_of

Numbers = npt.NDArray[np.int64]

_ABORTED_OUTCOME: Final = 0

TRANSACTIONS_SCHEMA: Final = pa.schema(
    [
        pa.field("topic_id", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("producer_id", pa.int64(), nullable=False),
        pa.field("open_number", pa.int64()),  # of the open transaction; null: none is open here
        pa.field("first_offset", pa.int64()),  # of the open transaction
        pa.field("ended_number", pa.int64()),  # the highest that has ended here; null: none has
        pa.field("coordinator_epoch", pa.int32()),  # of the newest marker; null: there was none
    ]
)
"""One row for each transactional producer of a partition."""

ABORTED_SCHEMA: Final = pa.schema(
    [
        pa.field("topic_id", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("producer_id", pa.int64(), nullable=False),
        pa.field("first_offset", pa.int64(), nullable=False),
        pa.field("last_offset", pa.int64(), nullable=False),  # of the marker
        pa.field("last_stable_offset", pa.int64(), nullable=False),  # after the marker, exclusive
    ]
)
"""One row for each aborted transaction of a partition."""

ORDER, PARTITION, PRODUCER, NUMBER, DETAIL = range(5)
"""Columns of transactional batches and of markers: by what the log orders it, a number for the
partition, producer id, transaction number, and a batch's offset or a marker's coordinator epoch."""


def first_batches(
    commits: pa.RecordBatch, partition: Numbers, kept: npt.NDArray[np.bool_]
) -> Numbers:
    """Return the first accepted batch of each transaction in each partition.

    Args:    partition: a number for each batch's. kept: which batches were accepted.
    """
    producers, numbers = transactions_of(commits)
    chosen = kept & (numbers >= 0)
    base, order = column(commits, "base_offset"), column(commits, "log_offset")
    rows = np.stack((order, partition, producers, numbers, base))[:, chosen]
    _, first = np.unique(rows[PARTITION : NUMBER + 1], axis=1, return_index=True)
    return rows[:, first]


def ends(markers: pa.RecordBatch, partition: Numbers) -> Numbers:
    """Return the markers of partitions that exist, in the columns of `first_batches`.

    Args:    partition: a number for each marker's; -1 if the partition was removed.
    """
    names = ("log_offset", "producer_id", "transaction_number", "coordinator_epoch")
    order, producer, number, epoch = (column(markers, name) for name in names)
    return np.stack((order, partition, producer, number, epoch))[:, partition >= 0]


def checkpoint_transactions(record: ProducersState, partition: int) -> tuple[Numbers, Numbers]:
    """Return a checkpoint's open transactions as first batches, and its ended ones as markers."""
    if not record.open_numbers:
        return np.zeros((5, 0), np.int64), np.zeros((5, 0), np.int64)
    names = ("producer_ids", "open_numbers", "first_offsets", "ended_numbers", "coordinator_epochs")
    producers, opened, first, ended, epochs = (
        np.array(getattr(record, name), np.int64) for name in names
    )
    before, here = np.full_like(producers, -1), np.full_like(producers, partition)
    firsts = np.stack((before, here, producers, opened, first))
    markers = np.stack((before, here, producers, ended, epochs))
    return firsts[:, opened >= 0], markers[:, epochs >= 0]


def transaction_table(
    places: Sequence[tuple[str, int]], first: Numbers, ended: Numbers
) -> pa.Table:
    """Return a table with a row for each transactional producer and partition.

    Args:    places: topic id and index by the partition's number.
             first: of each transaction. ended: markers, in the log's order.
    """
    found: dict[tuple[int, int], list[int]] = {}
    for partition, producer, number, offset in first[PARTITION:].T.tolist():
        row = found.setdefault((partition, producer), [-1] * 4)
        if number > row[0]:
            row[:2] = number, offset
    ends_of = set()
    for partition, producer, number, epoch in ended[PARTITION:].T.tolist():
        row = found.setdefault((partition, producer), [-1] * 4)
        row[2:] = max(row[2], number), epoch
        ends_of.add((partition, producer, number))
    for (partition, producer), row in found.items():
        if (partition, producer, row[0]) in ends_of:
            row[:2] = -1, -1
    keys = sorted(found)
    facts = np.array([found[key] for key in keys], np.int64).reshape(-1, 4)
    columns = [[places[number][0] for number, _ in keys], [places[number][1] for number, _ in keys]]
    nullable = [pa.array(one, mask=one < 0) for one in facts.T]
    nullable[3] = nullable[3].cast(pa.int32())
    return pa.table(
        [*columns, [producer for _, producer in keys], *nullable], schema=TRANSACTIONS_SCHEMA
    )


def aborted_rows(markers: pa.RecordBatch, partition: Numbers) -> Numbers:
    """Return the transactions that markers abort: partition, producer, first, last, LSO behind."""
    names = ("producer_id", "first_offset", "base_offset", "last_stable_offset")
    rows = np.stack([partition, *(column(markers, name) for name in names)])
    aborts = column(markers, "outcome") == _ABORTED_OUTCOME
    return rows[:, aborts & (partition >= 0) & (rows[2] >= 0) & (rows[3] >= 0)]


def checkpoint_aborted(record: AbortedState, partition: int) -> Numbers:
    """Return a checkpoint's aborted transactions of one partition, as `aborted_rows` does."""
    columns: Sequence[Any] = (
        [partition] * len(record.producer_ids), record.producer_ids, record.first_offsets,
        record.last_offsets, record.last_stable_offsets,
    )  # fmt: skip
    return np.array(columns, np.int64).reshape(5, -1)


def aborted_table(
    places: Sequence[tuple[str, int]],
    rows: Numbers,
    log_starts: Numbers,
    ended: Collection[tuple[tuple[str, int], int, int]],
) -> pa.Table:
    """Return a table of the aborted transactions that readers must still skip.

    Args:    places: topic id and index by the partition's number. log_starts: likewise.
             ended: entries that compaction ended: partition, producer id, first offset.
    """
    rows = rows[:, rows[3] >= log_starts[rows[0]]]
    rows = rows[:, np.lexsort((rows[3], rows[0]))]
    kept = [row for row in rows.T.tolist() if (places[row[0]], *row[1:3]) not in ended]
    columns = np.array(kept, np.int64).reshape(-1, 5).T
    numbers = columns[0].tolist()
    named = [[places[number][0] for number in numbers], [places[number][1] for number in numbers]]
    return pa.table([*named, *columns[1:]], schema=ABORTED_SCHEMA)
