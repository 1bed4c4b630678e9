"""Digests a piece of a log by partition, for retention: computed once, small, and valid for ever.

    piece = piece_of(span)
    piece.digest.byte_sums  # one number for each partition that the piece has runs of

A committed piece of a log never changes, and so neither does its digest. For each partition a
digest has the number of runs in the piece, their bytes, their last offset and the youngest
timestamp. That is enough to find the piece that a partition's new log start lies in, without
reading a single run; only that piece's runs are read. They are stored beside the digest, by
partition and offset.

Where runs were replaced (merging, compaction), a piece alone does not say which of its runs live. A
digest has the records that say so, and `spark_jobs.retention.replaced` corrects the pieces.

The trap: a digest does not depend on log starts. It includes runs that are already dead, or each
sweep would invalidate the digests of the one before. The planner knows the log starts, and reads
the runs of the one piece that each of them lies in.

Source: docs/design/batch-coordinator.md#retention, docs/design/pipeline.md#plans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from records.compression import Buffer
from spark_jobs.readers.log_position import LogPosition
from spark_jobs.readers.logs import Span
from spark_jobs.tables.commit_columns import Columns, CommitPile
from spark_jobs.tables.coordinator_log import REPLACEMENT_KEYS, RUNS_KEYS, CoordinatorLog, fold
from spark_jobs.tables.markers import MARKERS_KEY, MarkerColumns
from spark_jobs.tables.partitions import KEYS as PARTITION_KEYS
from spark_jobs.tables.runs import NO_OBJECT

Numbers = npt.NDArray[np.int64]
AnyNumbers = npt.NDArray[Any]

_FIELDS: Final = (
    "byte_offsets", "byte_sizes", "base_offsets", "record_counts", "max_timestamps",
    "timestamp_types", "producer_ids", "error_codes", "duplicates", "transaction_numbers",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Digest:
    """A piece's runs summed up, with one row for each partition."""

    topic_ids: Sequence[str]
    topics: AnyNumbers  # which of them
    partitions: AnyNumbers
    run_counts: Numbers
    byte_sums: Numbers
    first_ends: Numbers  # the last offset of the first run
    last_offsets: Numbers  # of the last run
    max_timestamps: Numbers  # of the youngest run
    records: Sequence[bytes]  # those that say what partitions there are, with their frames
    replacements: Sequence[bytes]  # those that say which runs were replaced, of any piece

    def __len__(self) -> int:
        return len(self.run_counts)


@dataclass(frozen=True, slots=True)
class Rows:
    """The runs of a piece as columns: the first partition's by offset, then the next one's."""

    last_offsets: AnyNumbers
    timestamps: AnyNumbers  # of the planner: of the youngest batch, or of the commit
    byte_sizes: AnyNumbers
    objects: AnyNumbers  # which of the object sizes
    object_sizes: Numbers
    batch_bytes: Numbers  # of accepted batches, by object; of a checkpoint's: all that is stored


@dataclass(frozen=True, slots=True)
class Piece:
    """A digest and its runs."""

    digest: Digest
    rows: Rows


def digest_span(span: Span) -> Piece:
    """Read a span of a log; return its runs of batches, and their sums by partition.

    Raises:  LogsError for a record of an unknown type; as `Span.values`.
    """
    return digest_records(span.values())


def digest_records(values: Iterable[tuple[LogPosition, Buffer]]) -> Piece:
    """Read the records of a log or checkpoint; return runs of batches, and sums by partition."""
    commits, checkpoint, markers = CommitPile(_FIELDS), CoordinatorLog(), MarkerColumns()
    records: list[bytes] = []
    replacements: list[bytes] = []

    def on_replacement(_: LogPosition, value: Buffer) -> None:
        replacements.append(bytes(value))

    def on_partitions(position: LogPosition, value: Buffer) -> None:
        records.append(bytes(value))
        if position.from_checkpoint:
            checkpoint.add(position, value)

    handlers = checkpoint.handlers(RUNS_KEYS) | dict.fromkeys(PARTITION_KEYS, on_partitions)
    handlers |= dict.fromkeys(REPLACEMENT_KEYS, on_replacement) | {MARKERS_KEY: markers.add}
    fold(values, handlers, commits.add, refuses_unknown=True)
    columns = commits.take()
    found = _runs(columns) if columns.rows_of.any() else _checkpoint_runs(checkpoint)
    if markers.rows:
        found = _add_markers(*found, markers.take())
    return build_piece(*found, records, replacements)


@dataclass(frozen=True, slots=True)
class PartitionRuns:
    """The number of runs of each partition; a partition's runs stand together, by offset."""

    topic_ids: Sequence[str]
    topics: AnyNumbers  # of each partition
    partitions: AnyNumbers
    counts: Numbers


def build_piece(
    found: PartitionRuns, rows: Rows, records: Sequence[bytes], replacements: Sequence[bytes]
) -> Piece:
    """Sum up runs that are grouped by partition."""
    ends = np.cumsum(found.counts)
    starts = ends - found.counts
    has_runs = len(ends) > 0
    empty = np.zeros(0, np.int64)
    return Piece(
        Digest(
            found.topic_ids,
            found.topics,
            found.partitions,
            found.counts,
            np.add.reduceat(rows.byte_sizes, starts) if has_runs else empty,
            rows.last_offsets[starts],
            rows.last_offsets[ends - 1],
            np.maximum.reduceat(rows.timestamps, starts) if has_runs else empty,
            records,
            replacements,
        ),
        rows,
    )


# --- runs of commits ------------------------------------------------------------------------------


def _runs(columns: Columns) -> tuple[PartitionRuns, Rows]:
    """Merge adjacent accepted batches into runs of batches, sorted by partition."""
    codes, topics, partitions = _number_partitions(columns)
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
    numbers, producers = batches["transaction_numbers"], batches["producer_ids"]
    if len(numbers) and numbers.max() >= 0:  # a run has the batches of one transaction, or of none
        begins[1:] |= numbers[1:] != numbers[:-1]
        begins[1:] |= (numbers[1:] >= 0) & (producers[1:] != producers[:-1])
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(group))[: len(first)] - 1
    group = group[first]
    code = codes[group]
    order = np.argsort(code, kind="stable")
    records = np.arange(len(columns.rows_of), dtype=np.int32)
    record = np.repeat(records, columns.groups_of)[group]
    times = _reduce_runs(np.maximum, batches["max_timestamps"], first)
    if len(times) and times.min() < 0:
        times = np.where(times < 0, columns.heads["committed_at_ms"][record], times)
    stored, run_sizes = columns.heads["size_bytes"], _reduce_runs(np.add, sizes, first)
    batch_bytes = np.bincount(record, weights=run_sizes, minlength=len(stored)).astype(np.int64)
    ends_at = last[order]
    ends = batches["base_offsets"][ends_at] + batches["record_counts"][ends_at] - 1
    rows = Rows(ends, times[order], run_sizes[order], record[order], stored, batch_bytes)
    counts = np.bincount(code, minlength=len(topics))
    there = counts > 0
    return PartitionRuns(columns.topic_ids, topics[there], partitions[there], counts[there]), rows


def _number_partitions(columns: Columns) -> tuple[AnyNumbers, AnyNumbers, AnyNumbers]:
    """Number the partitions of batch groups; return each group's number, and all partitions."""
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


def _reduce_runs(how: Any, column: AnyNumbers, first: Numbers) -> AnyNumbers:
    """Reduce a column of batches to one value for each run of batches.

    Run i has the batches [first[i], first[i + 1]).
    """
    if len(first) == len(column):
        return column
    reduced: AnyNumbers = how.reduceat(column, first)
    return reduced


# --- markers --------------------------------------------------------------------------------------


def _add_markers(
    found: PartitionRuns, rows: Rows, markers: pa.RecordBatch
) -> tuple[PartitionRuns, Rows]:
    """Add the markers that have offsets to the runs of batches of a piece, as runs of no bytes."""
    markers = markers.filter(pc.greater_equal(markers["base_offset"], 0))
    number = {topic_id: i for i, topic_id in enumerate(found.topic_ids)}
    names = markers["topic_id"].to_pylist()
    topics = np.array([number.setdefault(name, len(number)) for name in names], np.int64)
    nothing = np.zeros(len(names), np.int64)
    of_markers = Rows(
        markers["base_offset"].to_numpy(), markers["written_at_ms"].to_numpy(), nothing,
        nothing, np.zeros(1, np.int64), np.zeros(1, np.int64),  # an object that does not exist
    )  # fmt: skip
    return group_runs(
        tuple(number),
        np.concatenate((np.repeat(found.topics, found.counts), topics)),
        np.concatenate((np.repeat(found.partitions, found.counts), markers["partition"])),
        concatenate(rows, of_markers),
    )


def concatenate(rows: Rows, others: Rows) -> Rows:
    """Append runs and their objects to the runs and objects of a piece."""
    objects = others.objects + len(rows.object_sizes)
    return Rows(
        np.concatenate((rows.last_offsets, others.last_offsets)),
        np.concatenate((rows.timestamps, others.timestamps)),
        np.concatenate((rows.byte_sizes, others.byte_sizes)),
        np.concatenate((rows.objects, objects)),
        np.concatenate((rows.object_sizes, others.object_sizes)),
        np.concatenate((rows.batch_bytes, others.batch_bytes)),
    )


def group_runs(
    topic_ids: Sequence[str], topics: AnyNumbers, partitions: AnyNumbers, rows: Rows
) -> tuple[PartitionRuns, Rows]:
    """Sort runs by partition and offset, and count those of each partition.

    Args:    topics, partitions: of each run.
    """
    keys = topics.astype(np.int64) << 32 | partitions.astype(np.int64)
    known, code = np.unique(keys, return_inverse=True)
    order = np.lexsort((rows.last_offsets, code))
    found = PartitionRuns(
        topic_ids,
        (known >> 32).astype(np.int32),
        (known & 0xFFFF_FFFF).astype(np.int32),
        np.bincount(code, minlength=len(known)),
    )
    sorted_rows = Rows(
        rows.last_offsets[order],
        rows.timestamps[order],
        rows.byte_sizes[order],
        rows.objects[order],
        rows.object_sizes,
        rows.batch_bytes,
    )
    return found, sorted_rows


# --- runs of a checkpoint -------------------------------------------------------------------------


def _checkpoint_runs(checkpoint: CoordinatorLog) -> tuple[PartitionRuns, Rows]:
    """Return a checkpoint's runs of batches as columns, and their number by partition."""
    ids, sizes, _, committed, _, _ = checkpoint.object_columns()
    _, (_, last, objects, _, byte_sizes, times, appended, *_) = checkpoint.run_columns()
    at = np.where(objects == NO_OBJECT, len(ids), np.searchsorted(ids, objects))
    sizes = np.append(sizes, 0)  # of an object that does not exist, for markers
    appended = np.where(appended < 0, np.append(committed, 0)[at], appended)
    times = np.where(times < 0, appended, times)
    counts = Counter[int]()
    for log_id, runs in checkpoint.runs:
        counts[log_id] += runs.shape[1]
    places = [checkpoint.partitions.places[log_id] for log_id in counts]
    topic_ids = list(dict.fromkeys(topic_id for topic_id, _ in places))
    topics = np.array([topic_ids.index(topic_id) for topic_id, _ in places], np.int32)
    indexes = np.array([index for _, index in places], np.int32)
    found = PartitionRuns(topic_ids, topics, indexes, np.array(list(counts.values()), np.int64))
    return found, Rows(last, times, byte_sizes, at.astype(np.int32), sizes, sizes)
