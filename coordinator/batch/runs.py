"""Runs: accepted batches of one partition that lie back to back in one object, as one row.

Where a broker writes four batches of a partition one after the other, readers never need to know
that there are four: the batches' own headers say so. A run is cut by whatever is between two
accepted batches: a refused one and a duplicate occupy bytes too, so bytes that touch mean that
nothing dead lies inside and that offsets have no gap.

A rewriter replaces runs by runs of its own: there offsets may be missing between two records, so
that a run carries its number of records, and its bytes are final.

Source: docs/design/batch-coordinator.md#runs; docs/design/compaction.md#runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from struct import pack
from typing import Any, Final, NamedTuple

from coordinator.batch.transactions import ABORTED, Aborted, Marker
from records.diskless import ObjectCommitRecord, RunsReplacedRecord, TransactionMarkersRecord

MARKER: Final = 0
"""Format of a transaction marker's run: without bytes; brokers build its control batch."""

NO_OBJECT: Final = -1
"""Stands for the object of a marker's run."""

APPENDED: Final = 1
"""Format of a run whose batches begin at offset 0; brokers stamp offset, epoch and append time."""

REWRITTEN: Final = 2
"""Format of a run whose bytes are final: brokers send them as they are."""

NOT_MARKED: Final = -1
OPEN: Final = -2
"""Mark times of objects that are not to be deleted; into an open one a rewriter puts more runs."""


class Run(NamedTuple):
    """A run of a partition.

    It is live as a whole while its last offset is at or above log start.
    """

    base_offset: int
    last_offset: int  # inclusive
    object_id: int
    byte_offset: int  # in the object
    byte_size: int
    max_timestamp: int  # ms since 1970; the append time where that is the batches' type
    appended_at_ms: int  # when its object was committed; of a rewritten run: its newest source's
    timestamp_type: int  # 0 create time, 1 append time
    record_count: int
    object_format: int = APPENDED
    marker: Marker | None = None  # of format MARKER only


RunRow = tuple[int, int, int, int, int, int, int, int, int, int, int, Marker | None]
"""A log id, then the fields of a `Run`."""

_LAST_OFFSET, _BYTE_OFFSET, _BYTE_SIZE, _MAX_TIMESTAMP = 2, 4, 5, 6
_TIMESTAMP_TYPE, _RECORD_COUNT = 8, 9
"""Places of those columns in a row."""


def runs_of(record: ObjectCommitRecord, log_ids: Sequence[int]) -> list[RunRow]:
    """Return the runs of batches that an object's commit adds, partition by partition.

    A run has the batches of one transaction or of none, so the last stable offset of a partition
    lies between two runs.

    Args:  log_ids: of each group, from `coordinator.batch.state.log_ids_of` before the record is
    applied.
    """
    object_id, now_ms = record.object_id, record.committed_at_ms
    errors, duplicates = record.error_codes, record.duplicates
    batches = zip(
        record.base_offsets, record.record_counts, record.byte_offsets, record.byte_sizes,
        record.max_timestamps, record.timestamp_types, strict=True,
    )  # fmt: skip
    if not errors and not duplicates and len(log_ids) == len(record.base_offsets):
        return [  # a batch of each partition: the usual object
            (log_id, base, base + count - 1, object_id, start, size, newest, now_ms, kind, count,
             APPENDED, None)
            for log_id, (base, count, start, size, newest, kind)
            in zip(log_ids, batches, strict=True)
        ]  # fmt: skip
    nothing = (0,) * len(record.base_offsets)
    outcomes = zip(
        errors or nothing, duplicates or nothing, _transactions_of(record) or nothing, strict=True
    )
    judged = zip(batches, outcomes, strict=True)
    runs: list[list[Any]] = []  # rows whose run may still grow
    for log_id, batch_count in zip(log_ids, record.batch_counts, strict=True):
        run: list[Any] | None = None
        run_transaction: object = None
        for batch, (error, duplicate, transaction) in islice(judged, batch_count):
            if error or duplicate:
                continue
            base, count, start, size, newest, kind = batch
            if (
                run is not None
                and start == run[_BYTE_OFFSET] + run[_BYTE_SIZE]
                and kind == run[_TIMESTAMP_TYPE]
                and transaction == run_transaction
            ):
                run[_LAST_OFFSET] += count
                run[_RECORD_COUNT] += count
                run[_BYTE_SIZE] += size
                run[_MAX_TIMESTAMP] = max(run[_MAX_TIMESTAMP], newest)
                continue
            run = [
                log_id, base, base + count - 1, object_id, start, size, newest, now_ms, kind, count,
                APPENDED, None,
            ]  # fmt: skip
            run_transaction = transaction
            runs.append(run)
    return list(map(tuple, runs))


def _transactions_of(record: ObjectCommitRecord) -> list[tuple[int, int] | None] | None:
    """Return each batch's producer id and transaction number, or None if no batch has them."""
    if not record.transaction_numbers:
        return None
    pairs = zip(record.producer_ids, record.transaction_numbers, strict=True)
    return [pair if pair[1] >= 0 else None for pair in pairs]


def marker_runs(record: TransactionMarkersRecord) -> Iterator[tuple[int, Run]]:
    """Yield (index in the record, run) of each transaction marker that takes an offset."""
    at_ms = record.written_at_ms
    facts = zip(
        record.producer_ids,
        record.producer_epochs,
        record.outcomes,
        record.coordinator_epochs,
        strict=True,
    )
    for index, (offset, marker) in enumerate(zip(record.offsets, facts, strict=True)):
        if offset >= 0:
            run = Run(offset, offset, NO_OBJECT, 0, 0, at_ms, at_ms, 0, 1, MARKER, Marker(*marker))
            yield index, run


def aborted_of(record: TransactionMarkersRecord) -> Iterator[tuple[int, Aborted]]:
    """Yield (marker index in the record, transaction) of each transaction that a record aborts."""
    rows = zip(
        record.producer_ids,
        record.first_offsets,
        record.offsets,
        record.last_stable_offsets,
        record.outcomes,
        strict=True,
    )
    for index, (*entry, outcome) in enumerate(rows):
        if outcome == ABORTED and entry[1] >= 0:
            yield index, Aborted(*entry)


class ReplacedRange(NamedTuple):
    """A range of one partition whose runs a record replaces."""

    topic_index: int
    partition: int
    first_offset: int
    end_offset: int  # exclusive
    old_run_count: int
    old_runs_digest: int
    bound: int  # exclusive, of the key map; -1: every record was kept
    runs: tuple[Run, ...]  # the new ones: they tile the range
    ended_aborted: tuple[tuple[int, int], ...] = ()  # producer ids and first offsets


def ranges_of(record: RunsReplacedRecord) -> Iterator[ReplacedRange]:
    """Yield the offset ranges that a record replaces, each with its new runs of batches."""
    rows = zip(
        record.last_offsets,
        record.byte_offsets,
        record.byte_sizes,
        record.max_timestamps,
        record.append_times,
        record.timestamp_types,
        record.record_counts,
        strict=True,
    )
    ended = iter(zip(record.ended_producer_ids, record.ended_first_offsets, strict=True))
    for *columns, run_count, ended_count in zip(
        record.topic_indexes,
        record.partitions,
        record.first_offsets,
        record.end_offsets,
        record.old_run_counts,
        record.old_run_digests,
        record.bounds,
        record.run_counts,
        record.ended_counts or (0,) * len(record.run_counts),
        strict=True,
    ):
        base, runs = columns[2], []
        for last, place, size, newest, appended, kind, count in islice(rows, run_count):
            run = Run(
                base, last, record.object_id, place, size, newest, appended, kind, count, REWRITTEN
            )
            runs.append(run)
            base = last + 1
        yield ReplacedRange._make((*columns, tuple(runs), tuple(islice(ended, ended_count))))


def digest_runs(runs: Iterable[tuple[int, int, int]]) -> int:
    """Return a 63-bit digest that identifies runs of batches in a ReplaceRuns request.

    Args:  runs: object id, byte offset and byte size of each, by rising offset.

    >>> digest_runs([(1, 0, 100), (2, 50, 7)])
    743869945118556752
    """
    numbers = [number for run in runs for number in run]
    digest = blake2b(pack(f">{len(numbers)}q", *numbers), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class StoredObject(NamedTuple):
    """An object that was committed and is not yet removed; or one that a listing found."""

    size_bytes: int
    used_bytes: int  # the sum of its live runs
    object_format: int
    broker_id: int
    committed_at_ms: int  # -1: it never was
    marked_at_ms: int  # or NOT_MARKED, or OPEN
    topics: tuple[bytes, ...]  # ids of those that had accepted batches in it, rising
    first_deletion_ms: int = -1  # when a run in it died, in steady time; -1: none did


def found_orphan(marked_at_ms: int) -> StoredObject:
    """Return the table row that marks an uncommitted object in the store for deletion."""
    return StoredObject(0, 0, 0, -1, -1, marked_at_ms, ())
