"""Joins the batches of commits into runs, by columns.

Batches that lie back to back in one object are one run. An object is one commit, and a commit is
one record of the log: so a record has all batches of its runs, and a log can be split anywhere
between records.

A run that a rewriter has written is a run by itself: its bytes are final, and it is joined to none.
So is a transaction's marker, a run of one offset without an object. The batches of two transactions
are two runs, so that the last stable offset lies between runs.

Source: docs/design/batch-coordinator.md#runs, docs/design/compaction.md#runs,
docs/design/transactions-batches.md#a-marker-is-a-run;
`coordinator.batch.runs` does the same batch by batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from records.uuids import decode_uuid

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

MARKER: Final = 0
"""Format of a marker's run, which lies in no object."""

NO_OBJECT: Final = -1
"""Stands for the object of a marker's run."""

APPENDED: Final = 1
"""Format of a run that brokers stamp with offsets; others have final bytes."""

RUN_COLUMNS: Final = (
    "base_offset", "last_offset", "object_id", "byte_offset", "byte_size", "max_timestamp",
    "appended_at_ms", "timestamp_type", "record_count", "object_format",
    "marker_producer_id", "marker_epoch", "marker_outcome", "marker_coordinator_epoch",
)  # fmt: skip
"""Columns of a run; those of its marker are -1 unless it is one."""

NO_MARKER: Final = (-1, -1, -1, -1)

RUNS_SCHEMA: Final = pa.schema(
    [
        pa.field("topic_id", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        *(pa.field(name, pa.int64(), nullable=False) for name in RUN_COLUMNS),
    ]
)


def column(commits: pa.RecordBatch, name: str) -> Numbers:
    """Return one column of the commits as int64 numbers."""
    values: Numbers = commits.column(name).to_numpy().astype(np.int64)
    return values


def numbers_of(commits: pa.RecordBatch, number: dict[tuple[str, int], int]) -> Numbers:
    """Return the number of each batch's partition; -1 if the partition was removed."""
    topics = commits.column("topic_id").dictionary_encode()
    codes = topics.indices.to_numpy().astype(np.int64)
    keys, inverse = np.unique(codes << 32 | column(commits, "partition"), return_inverse=True)
    names = topics.dictionary.to_pylist()
    pairs = zip((keys >> 32).tolist(), (keys & 0xFFFF_FFFF).tolist(), strict=True)
    found = [number.get((names[code], index), -1) for code, index in pairs]
    return np.array(found, np.int64)[inverse]


def is_accepted(commits: pa.RecordBatch) -> Mask:
    """Return a mask of the batches that were neither refused nor duplicates."""
    error, duplicate = column(commits, "error_code"), column(commits, "duplicate")
    found: Mask = (error == 0) & (duplicate == 0)
    return found


def batches(commits: pa.RecordBatch) -> Numbers:
    """Return each batch as a run of one batch, in the columns of the table of runs."""
    base = column(commits, "base_offset")
    names = (
        "object_id", "byte_offset", "byte_size", "max_timestamp", "committed_at_ms",
        "timestamp_type",
    )  # fmt: skip
    count = column(commits, "record_count")
    columns = (column(commits, name) for name in names)
    rest = (np.full_like(base, one) for one in (APPENDED, *NO_MARKER))
    return np.stack((base, base + count - 1, *columns, count, *rest))


def transactions_of(commits: pa.RecordBatch) -> Numbers:
    """Return the producer id and transaction number of each batch; -1 and -1 without one."""
    numbers = commits.column("transaction_number").fill_null(-1).to_numpy()
    return np.stack((np.where(numbers < 0, -1, column(commits, "producer_id")), numbers))


def marker_runs(markers: pa.RecordBatch) -> Numbers:
    """Return each row of the table of markers as a run of one offset without an object."""
    offset, written = column(markers, "base_offset"), column(markers, "written_at_ms")
    nothing = np.zeros_like(offset)
    names = ("producer_id", "producer_epoch", "outcome", "coordinator_epoch")
    facts = (column(markers, name) for name in names)
    return np.stack(
        (offset, offset, nothing + NO_OBJECT, nothing, nothing, written, written, nothing,
         nothing + 1, nothing + MARKER, *facts)
    )  # fmt: skip


def topics_of_objects(objects: Numbers, topics: pa.Array) -> dict[int, tuple[str, ...]]:
    """Return the ids of the topics in each object, sorted as bytes."""
    encoded = topics.dictionary_encode()
    names = sorted(encoded.dictionary.to_pylist(), key=lambda name: decode_uuid(name).bytes)
    rank = {name: i for i, name in enumerate(names)}
    ranks = np.array([rank[name] for name in encoded.dictionary.to_pylist()], np.int64)
    codes = ranks[encoded.indices.to_numpy()] if len(ranks) else np.zeros(0, np.int64)
    ids, place = np.unique(objects, return_inverse=True)
    pairs = np.unique(place * max(1, len(names)) + codes)
    at, codes = np.divmod(pairs, max(1, len(names)))
    in_order = [names[code] for code in codes.tolist()]
    bounds = np.searchsorted(at, np.arange(len(ids) + 1)).tolist()
    return {
        object_id: tuple(in_order[bounds[i] : bounds[i + 1]])
        for i, object_id in enumerate(ids.tolist())
    }


def join_runs(partition: Numbers, rows: Numbers, transactions: Numbers) -> tuple[Numbers, Numbers]:
    """Join batches that are adjacent in one object into runs, by partition and offset.

    Args:    transactions: of each batch, as `transactions_of` returns them.
    """
    order = np.lexsort((rows[0], partition))
    partition, rows, transactions = partition[order], rows[:, order], transactions[:, order]
    if not len(partition):
        return partition, rows
    before = slice(None, -1), slice(1, None)
    old, new = (rows[:, part] for part in before)
    touches = (
        (partition[1:] == partition[:-1])
        & (new[2] == old[2])
        & (new[3] == old[3] + old[4])
        & (new[7] == old[7])
        & (transactions[:, 1:] == transactions[:, :-1]).all(axis=0)
    )
    first = np.flatnonzero(np.concatenate(([True], ~touches)))
    last = np.append(first[1:], len(partition)) - 1
    whole = rows[:, first].copy()
    whole[1] = rows[1, last]
    whole[4] = np.add.reduceat(rows[4], first)
    whole[5] = np.maximum.reduceat(rows[5], first)
    whole[8] = np.add.reduceat(rows[8], first)
    return partition[first], whole


def is_covered(
    partition: Numbers, base_offsets: Numbers, ranges: dict[int, list[tuple[int, int]]]
) -> Mask:
    """Return a mask of the runs that lie in one of the replaced ranges of their partition.

    Args:    partition: the number of each run's partition, rising.
             ranges: sorted and disjoint, (first, end) with an exclusive end, by partition number.
    """
    covered = np.zeros(len(partition), np.bool_)
    for number, pairs in ranges.items():
        mine = slice(*np.searchsorted(partition, (number, number + 1)))
        firsts, ends = np.array(pairs, np.int64).reshape(-1, 2).T
        at = np.searchsorted(firsts, base_offsets[mine], side="right") - 1
        covered[mine] = (at >= 0) & (base_offsets[mine] < ends[np.maximum(at, 0)])
    return covered


def run_table(places: Sequence[tuple[str, int]], partition: Numbers, rows: Numbers) -> pa.Table:
    """Return runs of batches as an Arrow table.

    Args:    places: topic id and index by the partition's number.
    """
    topics = pa.array([topic_id for topic_id, _ in places], pa.string())
    indexes = pa.array([index for _, index in places], pa.int32())
    numbers = pa.array(partition)
    return pa.table([topics.take(numbers), indexes.take(numbers), *rows], schema=RUNS_SCHEMA)
