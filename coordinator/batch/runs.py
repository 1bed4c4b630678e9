"""Runs: accepted batches of one partition that lie back to back in one object, as one row.

Where a broker writes four batches of a partition one after the other, readers never need to know
that there are four: the batches' own headers say so. A run is cut by whatever is between two
accepted batches: a refused one and a duplicate occupy bytes too, so bytes that touch mean that
nothing dead lies inside and that offsets have no gap.

Source: docs/design/batch-coordinator.md#runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from records.diskless import ObjectCommitRecord


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
    appended_at_ms: int  # when its object was committed
    timestamp_type: int  # 0 create time, 1 append time


RunRow = tuple[int, int, int, int, int, int, int, int, int]
"""A log id, then the fields of a `Run`."""


def runs_of(record: ObjectCommitRecord, log_ids: Sequence[int]) -> list[RunRow]:
    """Return the runs of batches that an object's commit adds, partition by partition.

    Args:  log_ids: of each group, from `coordinator.batch.state.log_ids_of` before the record is
    applied.
    """
    object_id, now_ms = record.object_id, record.committed_at_ms
    errors, duplicates = record.error_codes, record.duplicates
    whole = not errors and not duplicates
    bases, counts, places, sizes = (
        record.base_offsets,
        record.record_counts,
        record.byte_offsets,
        record.byte_sizes,
    )
    times, kinds = record.max_timestamps, record.timestamp_types
    if whole and len(log_ids) == len(bases):  # a batch of each partition: the usual object
        return [
            (log_id, base, base + count - 1, object_id, start, size, newest, now_ms, kind)
            for log_id, base, count, start, size, newest, kind in zip(
                log_ids, bases, counts, places, sizes, times, kinds, strict=True
            )
        ]
    rows: list[RunRow] = []
    add = rows.append
    at = 0
    for log_id, batch_count in zip(log_ids, record.batch_counts, strict=True):
        first, at = at, at + batch_count
        open_run = False
        base = last = start = end = newest = kind = 0
        for i in range(first, at):
            if not whole and ((errors and errors[i]) or (duplicates and duplicates[i])):
                continue
            if open_run and places[i] == end and kinds[i] == kind:
                last += counts[i]
                end += sizes[i]
                newest = max(newest, times[i])
                continue
            if open_run:
                add((log_id, base, last, object_id, start, end - start, newest, now_ms, kind))
            open_run, kind, newest = True, kinds[i], times[i]
            base, start = bases[i], places[i]
            last, end = base + counts[i] - 1, start + sizes[i]
        if open_run:
            add((log_id, base, last, object_id, start, end - start, newest, now_ms, kind))
    return rows


class StoredObject(NamedTuple):
    """An object that was committed and is not yet removed; or one that a listing found."""

    size_bytes: int
    used_bytes: int  # the sum of its live runs
    object_format: int
    broker_id: int
    committed_at_ms: int  # -1: it never was
    marked_at_ms: int  # -1: not marked
    topics: tuple[bytes, ...]  # ids of those that had accepted batches in it, rising


def found_orphan(marked_at_ms: int) -> StoredObject:
    """Return the table row that marks an uncommitted object in the store for deletion."""
    return StoredObject(0, 0, 0, -1, -1, marked_at_ms, ())
