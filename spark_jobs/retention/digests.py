"""What retention needs of a piece of a log, by partition: made once, small, and never wrong later.

    piece = piece_of(span)
    piece.digest.byte_sums  # one number for each partition that the piece has runs of

A committed piece of a log never changes, so what is worked out of it never does either. Of each
partition a digest says how many runs the piece has, their bytes, where they end and how young the
youngest is. That is enough to see, without a single run, which piece a partition's new log start
lies in; only there are runs looked at. They stand beside the digest, by partition and offset.

The surprise is what a digest leaves out: log starts. A run that is dead already is in it all the
same, or each sweep would undo the work of the one before. Whoever plans knows the log starts, and
looks closer at the one piece that each of them lies in.

Source: docs/design/batch-coordinator.md#retention, docs/design/pipeline.md#plans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from records.compression import Buffer
from spark_jobs.readers.log_position import LogPosition
from spark_jobs.readers.logs import Span
from spark_jobs.tables.commit_columns import Columns, CommitPile
from spark_jobs.tables.coordinator_log import RUNS_KEYS, CoordinatorLog, fold
from spark_jobs.tables.partitions import KEYS as PARTITION_KEYS

Numbers = npt.NDArray[np.int64]
AnyNumbers = npt.NDArray[Any]

_FIELDS: Final = (
    "byte_offsets", "byte_sizes", "base_offsets", "record_counts", "max_timestamps",
    "timestamp_types", "error_codes", "duplicates",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Digest:
    """One row for each partition that a piece has runs of."""

    topic_ids: Sequence[str]
    topics: AnyNumbers  # which of them
    partitions: AnyNumbers
    run_counts: Numbers
    byte_sums: Numbers
    first_ends: Numbers  # the last offset of the first run
    last_offsets: Numbers  # of the last run
    max_timestamps: Numbers  # of the youngest run
    records: Sequence[bytes]  # those that say what partitions there are, with their frames

    def __len__(self) -> int:
        return len(self.run_counts)


@dataclass(frozen=True, slots=True)
class Rows:
    """The runs of a piece: those of the digest's first partition, by offset, then the next's."""

    last_offsets: AnyNumbers
    timestamps: AnyNumbers  # of the planner: of the youngest batch, or of the commit
    byte_sizes: AnyNumbers
    objects: AnyNumbers  # which of the object sizes
    object_sizes: Numbers
    batch_bytes: Numbers  # of accepted batches, by object; of a checkpoint's: all that is stored


@dataclass(frozen=True, slots=True)
class Piece:
    """A digest, and the runs that it is of."""

    digest: Digest
    rows: Rows


def piece_of(span: Span) -> Piece:
    """What retention needs of a span.

    Raises:  LogsError for a record of an unknown type; as `Span.values`.
    """
    return gather(span.values())


def gather(values: Iterable[tuple[LogPosition, Buffer]]) -> Piece:
    """The same of records that follow each other: of a log, or all of a checkpoint."""
    commits, checkpoint = CommitPile(_FIELDS), CoordinatorLog()
    records: list[bytes] = []

    def on_partitions(position: LogPosition, value: Buffer) -> None:
        records.append(bytes(value))
        if position.from_checkpoint:
            checkpoint.add(position, value)

    handlers = checkpoint.handlers(RUNS_KEYS) | dict.fromkeys(PARTITION_KEYS, on_partitions)
    fold(values, handlers, commits.add, refuses_unknown=True)
    columns = commits.take()
    found = _runs(columns) if columns.rows_of.any() else _checkpoint_runs(checkpoint)
    return _piece(*found, records)


@dataclass(frozen=True, slots=True)
class _Found:
    """Runs of a partition stand together: by offset, but partitions in any order."""

    topic_ids: Sequence[str]
    topics: AnyNumbers  # of each partition
    partitions: AnyNumbers
    counts: Numbers


def _piece(found: _Found, rows: Rows, records: list[bytes]) -> Piece:
    ends = np.cumsum(found.counts)
    starts = ends - found.counts
    some = len(ends) > 0
    empty = np.zeros(0, np.int64)
    return Piece(
        Digest(
            found.topic_ids,
            found.topics,
            found.partitions,
            found.counts,
            np.add.reduceat(rows.byte_sizes, starts) if some else empty,
            rows.last_offsets[starts],
            rows.last_offsets[ends - 1],
            np.maximum.reduceat(rows.timestamps, starts) if some else empty,
            records,
        ),
        rows,
    )


# --- of commits -----------------------------------------------------------------------------------


def _runs(columns: Columns) -> tuple[_Found, Rows]:
    """Accepted batches of a group that touch are a run; then runs by partition."""
    codes, topics, partitions = _codes(columns)
    batches = columns.batches
    group = np.repeat(np.arange(len(codes), dtype=np.int32), columns.batch_counts)
    if batches["error_codes"].any() or batches["duplicates"].any():
        kept = np.flatnonzero((batches["error_codes"] == 0) & (batches["duplicates"] == 0))
        group = group[kept]
        batches = {name: column[kept] for name, column in batches.items()}
    place, sizes, kinds = (
        batches[name] for name in ("byte_offsets", "byte_sizes", "timestamp_types")
    )
    begins = np.ones(len(group), np.bool_)
    begins[1:] = group[1:] != group[:-1]
    begins[1:] |= place[1:] != place[:-1] + sizes[:-1]
    begins[1:] |= kinds[1:] != kinds[:-1]
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(group))[: len(first)] - 1
    group = group[first]
    code = codes[group]
    order = np.argsort(code, kind="stable")
    records = np.arange(len(columns.rows_of), dtype=np.int32)
    record = np.repeat(records, columns.groups_of)[group]
    times = _reduced(np.maximum, batches["max_timestamps"], first)
    if len(times) and times.min() < 0:
        times = np.where(times < 0, columns.heads["committed_at_ms"][record], times)
    stored, run_sizes = columns.heads["size_bytes"], _reduced(np.add, sizes, first)
    batch_bytes = np.bincount(record, weights=run_sizes, minlength=len(stored)).astype(np.int64)
    ends_at = last[order]
    ends = batches["base_offsets"][ends_at] + batches["record_counts"][ends_at] - 1
    rows = Rows(ends, times[order], run_sizes[order], record[order], stored, batch_bytes)
    counts = np.bincount(code, minlength=len(topics))
    there = counts > 0
    return _Found(columns.topic_ids, topics[there], partitions[there], counts[there]), rows


def _codes(columns: Columns) -> tuple[AnyNumbers, AnyNumbers, AnyNumbers]:
    """Of each group a number for its partition; then of each number, its topic and its index."""
    width = int(columns.partitions.max(initial=0)) + 1
    keys = columns.topics.astype(np.int64) * width + np.maximum(columns.partitions, 0)
    possible = len(columns.topic_ids) * width
    if possible <= 4 * len(keys) + 1024:  # then counting is cheaper than sorting
        seen = np.zeros(possible, np.bool_)
        seen[keys] = True
        known = np.flatnonzero(seen)
        number = np.cumsum(seen) - 1
        code = number[keys]
    else:
        known, code = np.unique(keys, return_inverse=True)
    if len(known) <= 1 << 16:
        code = code.astype(np.uint16)  # which NumPy sorts by counting
    topics, partitions = np.divmod(known, width)
    return code, topics.astype(np.int32), partitions.astype(np.int32)


def _reduced(how: Any, column: AnyNumbers, first: Numbers) -> AnyNumbers:
    """One value for each run: of batches [first[i], first[i + 1])."""
    if len(first) == len(column):
        return column
    reduced: AnyNumbers = how.reduceat(column, first)
    return reduced


# --- of a checkpoint ------------------------------------------------------------------------------


def _checkpoint_runs(checkpoint: CoordinatorLog) -> tuple[_Found, Rows]:
    """Those of partitions that there are; a checkpoint cuts a long partition in pieces."""
    ids, sizes, _, committed, _, _ = checkpoint.object_columns()
    _, (_, last, objects, _, byte_sizes, times, _, _) = checkpoint.run_columns()
    at = np.searchsorted(ids, objects)
    if len(times):
        times = np.where(times < 0, committed[at], times)
    counts = Counter[int]()
    for log_id, runs in checkpoint.runs:
        counts[log_id] += runs.shape[1]
    places = [checkpoint.partitions.places[log_id] for log_id in counts]
    topic_ids = list(dict.fromkeys(topic_id for topic_id, _ in places))
    topics = np.array([topic_ids.index(topic_id) for topic_id, _ in places], np.int32)
    indexes = np.array([index for _, index in places], np.int32)
    found = _Found(topic_ids, topics, indexes, np.array(list(counts.values()), np.int64))
    return found, Rows(last, times, byte_sizes, at.astype(np.int32), sizes, sizes)
