"""The state of idempotent producers that a coordinator keeps, computed by columns.

Of each producer in each partition: its epoch, when it last appended, and its last five batches of
that epoch. A coordinator updates it batch by batch. Here all accepted batches stand in one
table, and the same is read off its end: in the order of the log, the last batches of a key as far
back as their epoch is the last one's, and not more than five.

The traps: a marker of a higher epoch clears the kept batches, and it makes a row where there was
none. So a marker stands among the batches as a row that is no batch. And expiry is part of the
order too. An idle producer expires at some offset of the
log; its earlier batches count no more, and if it returns, it starts anew.

Source: docs/design/batch-coordinator.md#idempotence; upstream's ProducerStateManager.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from records.diskless import ProducersState

Numbers = npt.NDArray[np.int64]

KEPT_BATCHES: Final = 5
MAX_SEQUENCE: Final = 2**31 - 1
"""Sequences go on with 0 after it."""

PRODUCERS_SCHEMA: Final = pa.schema(
    [
        pa.field("topic_id", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("producer_id", pa.int64(), nullable=False),
        pa.field("producer_epoch", pa.int16(), nullable=False),
        pa.field("appended_at_ms", pa.int64(), nullable=False),  # of the last batch
        pa.field("base_sequences", pa.list_(pa.int32()), nullable=False),  # oldest batch first
        pa.field("last_sequences", pa.list_(pa.int32()), nullable=False),  # inclusive
        pa.field("base_offsets", pa.list_(pa.int64()), nullable=False),
        pa.field("append_times", pa.list_(pa.int64()), nullable=False),  # -1: create time
    ]
)

NO_BATCH: Final = -1
"""Stands for sequences and offsets of a row that is no batch."""

ORDER, PARTITION, PRODUCER, EPOCH, APPENDED, BASE, LAST, OFFSET, TIME = range(9)
"""Columns of what was appended: by what the log orders it, and a number for the partition; then as
in the schema."""

_EPOCH_BITS: Final = 16


def appended_batches(
    commits: pa.RecordBatch, partition: Numbers, kept: npt.NDArray[np.bool_]
) -> Numbers:
    """Return the accepted batches of idempotent producers as columns, in the log's order.

    Args:    commits: as `spark_jobs.tables.commits` gives them.
             partition: a number for each batch's.
             kept: which batches were accepted.
    """

    def column(name: str) -> Numbers:
        values: Numbers = commits.column(name).to_numpy().astype(np.int64)
        return values

    producers, base = column("producer_id"), column("base_sequence")
    times = np.where(column("timestamp_type") != 0, column("max_timestamp"), -1)
    rows = np.stack(
        (
            column("log_offset"), partition, producers, column("producer_epoch"),
            column("committed_at_ms"), base, (base + column("record_count") - 1) & MAX_SEQUENCE,
            column("base_offset"), times,
        )
    )  # fmt: skip
    return rows[:, kept & (producers >= 0)]


def checkpoint_batches(record: ProducersState, partition: int) -> Numbers:
    """Return the batches in a checkpoint, in the same columns as `appended_batches`.

    They precede all records of the log.
    """
    counts = np.array(record.batch_counts, np.int64)
    without = counts == 0  # a row of no batch keeps epoch and time
    producers = np.stack(
        [
            np.array(column, np.int64)
            for column in (record.producer_ids, record.producer_epochs, record.appended_at_ms)
        ]
    )
    batches = (
        record.base_sequences, record.last_sequences, record.base_offsets, record.append_times,
    )  # fmt: skip
    rows = np.empty((9, int(counts.sum())), np.int64)
    rows[ORDER], rows[PARTITION] = -1, partition
    rows[PRODUCER : APPENDED + 1] = np.repeat(producers, counts, axis=1)
    rows[BASE:] = batches
    none = np.full((9, int(without.sum())), NO_BATCH)
    none[PARTITION] = partition
    none[PRODUCER : APPENDED + 1] = producers[:, without]
    return np.concatenate((rows, none), axis=1)


def marker_rows(markers: pa.RecordBatch, partition: Numbers) -> Numbers:
    """Return markers in the same columns as `appended_batches`, as rows that are no batches.

    Args:    markers: as `spark_jobs.tables.markers` gives them.
             partition: a number for each marker's; -1 if the partition was removed.
    """
    rows = np.full((9, markers.num_rows), NO_BATCH)
    rows[PARTITION] = partition
    names = {ORDER: "log_offset", PRODUCER: "producer_id", EPOCH: "producer_epoch",
             APPENDED: "written_at_ms"}  # fmt: skip
    for row, name in names.items():
        rows[row] = markers.column(name).to_numpy()
    return rows[:, partition >= 0]


def drop_expired(rows: Numbers, forgotten: Mapping[tuple[int, int], int]) -> Numbers:
    """Drop the rows of batches that producers appended before those producers expired.

    Args:    forgotten: partition's number and producer id: the log's offset at which it last was.
    """
    if not forgotten or not rows.shape[1]:
        return rows
    keys, inverse = np.unique(rows[PARTITION : PRODUCER + 1], axis=1, return_inverse=True)
    since = np.array(
        [forgotten.get((log, producer), -1) for log, producer in keys.T.tolist()], np.int64
    )
    return rows[:, rows[ORDER] >= since[inverse.reshape(-1)]]


class LastBatches(NamedTuple):
    """The last batches of each producer in each partition."""

    producers: Numbers  # the first columns, up to APPENDED, of each producer
    rows: Numbers  # its batches
    bounds: Numbers  # producer i has the rows [bounds[i], bounds[i + 1])


def last_batches(rows: Numbers) -> LastBatches:
    """Return each producer's epoch, and its last batches of that epoch, in each partition.

    Args:    rows: of equal order they stand as they were appended.
    """
    rows = rows[:, np.lexsort((rows[ORDER], rows[PRODUCER], rows[PARTITION]))]
    count = rows.shape[1]
    if not count:
        return LastBatches(rows[: APPENDED + 1], rows, np.zeros(1, np.int64))
    other = (rows[PARTITION : PRODUCER + 1, 1:] != rows[PARTITION : PRODUCER + 1, :-1]).any(axis=0)
    first = np.flatnonzero(np.concatenate(([True], other)))
    ends = np.append(first[1:], count)
    number = np.repeat(np.arange(len(first)), ends - first)
    # an epoch never falls: a marker of a lower one changes nothing of it
    epochs = np.maximum.accumulate((number << _EPOCH_BITS) + rows[EPOCH]) - (number << _EPOCH_BITS)
    is_kept = (epochs == epochs[ends - 1][number]) & (rows[BASE] != NO_BATCH)
    places = np.flatnonzero(is_kept)
    counts = np.bincount(number[places], minlength=len(first))
    begins = np.cumsum(counts) - counts
    places = places[np.arange(len(places)) >= np.repeat(begins + counts - KEPT_BATCHES, counts)]
    bounds = np.concatenate(([0], np.cumsum(np.minimum(counts, KEPT_BATCHES))))
    producers = rows[: APPENDED + 1, ends - 1]
    producers[EPOCH] = epochs[ends - 1]
    return LastBatches(producers, rows[:, places], bounds)


def producer_table(places: Sequence[tuple[str, int]], last: LastBatches) -> pa.Table:
    """Return a table with a row for each producer and partition.

    Args:    places: topic id and index by the partition's number.
    """
    topics = pa.array([topic_id for topic_id, _ in places], pa.string())
    indexes = pa.array([index for _, index in places], pa.int32())
    numbers = pa.array(last.producers[PARTITION])
    bounds = pa.array(last.bounds, pa.int32())
    lists = [
        pa.ListArray.from_arrays(bounds, pa.array(last.rows[column], kind))
        for column, kind in (
            (BASE, pa.int32()), (LAST, pa.int32()), (OFFSET, pa.int64()), (TIME, pa.int64()),
        )
    ]  # fmt: skip
    return pa.table(
        [
            topics.take(numbers),
            indexes.take(numbers),
            last.producers[PRODUCER],
            pa.array(last.producers[EPOCH], pa.int16()),
            last.producers[APPENDED],
            *lists,
        ],
        schema=PRODUCERS_SCHEMA,
    )
