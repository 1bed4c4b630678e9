"""The runs that retention removes: one computation for coordinator, local engine and Spark.

A run is removed whole or not at all, oldest first. By time goes the longest prefix of runs that are
all older than `retention.ms`; by size the longest prefix whose removal leaves at least
`retention.bytes`, so that Kafka's promise to keep that much holds. The greater of the two decides.

The traps. One young run protects everything behind it, however old: offsets are removed from the
front, and producers' clocks need not rise. And what is "too old" is compared without subtracting
timestamps, because a producer may send any 64-bit number as one.

Runs of many partitions are planned at once, as columns: partition i has the rows
[bounds[i], bounds[i + 1]), by rising offset. The rows may be only the oldest runs of a partition,
so that a pass is bounded; `total_bytes` then says what all its live runs have.

Source: docs/design/batch-coordinator.md#retention; upstream's
UnifiedLog.deleteRetentionMsBreachedSegments and deleteRetentionSizeBreachedSegments (there the unit
is a segment).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Column: TypeAlias = npt.NDArray[np.int64]
Numbers: TypeAlias = Column | Sequence[int]

UNLIMITED: Final = -1
"""Stands for no limit in `retention.ms` and `retention.bytes`."""

NOTHING: Final = -1
"""Reasons, as in LogStartOffsetsRecord; here: the log start stays."""
RETENTION_MS: Final = 1
RETENTION_BYTES: Final = 2

_INT64: Final = np.iinfo(np.int64)


class Runs(NamedTuple):
    """Runs as columns of equal length. The timestamp is the append time where the topic says so."""

    last_offsets: Column  # inclusive
    timestamps: Column  # the run's greatest, ms since 1970; of its commit if it has none (-1)
    byte_sizes: Column


class Plan(NamedTuple):
    """New log starts, one row a partition."""

    log_start_offsets: Column  # inclusive: the first offset to keep; never below what it was
    reasons: Column
    removed_runs: Column
    removed_bytes: Column
    exhausted: npt.NDArray[np.bool_]  # every run given goes: if there are more, plan again


def plan_retention(
    runs: Runs,
    bounds: Numbers,
    *,
    log_start_offsets: Numbers,
    total_bytes: Numbers,
    retention_ms: Numbers,
    retention_bytes: Numbers,
    now_ms: int,
) -> Plan:
    """Compute the new log starts of all partitions from their retention settings.

    Args:    bounds: rows of partition i are [bounds[i], bounds[i + 1]); one more than partitions.
             total_bytes: of all live runs of the partition, those not given included.
             retention_ms, retention_bytes: of the partition's topic; -1: no limit.
             now_ms: ms since 1970.
    Raises:  ValueError if the columns do not fit together.
    Source:  docs/design/batch-coordinator.md#retention.

    Two partitions; an hour and 150 bytes are to be kept of each:

    >>> columns = Runs(*(np.array(column) for column in (
    ...     [9, 19, 29, 4], [0, 7_200_000, 0, 0], [100, 100, 100, 50])))
    >>> plan = plan_retention(columns, [0, 3, 4], log_start_offsets=[0, 0],
    ...     total_bytes=[300, 50], retention_ms=[3_600_000] * 2, retention_bytes=[150] * 2,
    ...     now_ms=7_200_000)
    >>> plan.log_start_offsets.tolist(), plan.reasons.tolist(), plan.exhausted.tolist()
    ([10, 5], [1, 1], [False, True])
    """
    cuts = np.asarray(bounds, np.int64)
    starts, ends = cuts[:-1], cuts[1:]
    counts = ends - starts
    _check(runs, cuts, log_start_offsets, total_bytes, retention_ms, retention_bytes)
    if not len(counts):
        empty = np.zeros(0, np.int64)
        return Plan(empty, empty, empty, empty, empty.astype(np.bool_))
    summed = np.concatenate((np.zeros(1, np.int64), np.cumsum(runs.byte_sizes)))
    by_time = _old_prefix(runs.timestamps, starts, ends, np.asarray(retention_ms), now_ms)
    by_size = _large_prefix(
        summed, starts, ends, np.asarray(total_bytes), np.asarray(retention_bytes)
    )
    removed = np.maximum(by_time, by_size)
    log_starts = np.array(log_start_offsets, np.int64)
    some = removed > 0
    last_removed = runs.last_offsets[(starts + removed - 1)[some]]
    log_starts[some] = np.maximum(log_starts[some], last_removed + 1)
    reasons = np.where(by_time >= by_size, RETENTION_MS, RETENTION_BYTES)
    return Plan(
        log_start_offsets=log_starts,
        reasons=np.where(some, reasons, NOTHING),
        removed_runs=removed,
        removed_bytes=summed[starts + removed] - summed[starts],
        exhausted=some & (removed == counts),
    )


def _old_prefix(
    timestamps: Column, starts: Column, ends: Column, retention_ms: Column, now_ms: int
) -> Column:
    """Count each partition's leading runs of batches that are all older than retention.ms."""
    counts = ends - starts
    removed = np.zeros(len(counts), np.int64)
    limited = (retention_ms >= 0) & (counts > 0)
    if not limited.any():
        return removed
    # the first that is kept has a timestamp of at least now - retention.ms
    oldest_kept = np.array(
        [max(now_ms - int(limit), _INT64.min) for limit in retention_ms[limited]], np.int64
    )
    rows = np.repeat(limited, counts)
    kept = timestamps if rows.all() else timestamps[rows]
    young = np.flatnonzero(kept >= np.repeat(oldest_kept, counts[limited]))
    ends_here = np.cumsum(counts[limited])
    starts_here = ends_here - counts[limited]
    # the first young row at or after a partition's start, but not past its end
    found = np.append(young, len(kept))[np.searchsorted(young, starts_here)]
    removed[limited] = np.minimum(found, ends_here) - starts_here
    return removed


def _large_prefix(
    summed: Column, starts: Column, ends: Column, total_bytes: Column, retention_bytes: Column
) -> Column:
    """Count each partition's oldest runs whose deletion leaves retention.bytes or more."""
    excess = np.where(retention_bytes >= 0, total_bytes - retention_bytes, -1)
    # bytes only add up, so the sums are sorted over all partitions: one search finds every cut
    cut = np.searchsorted(summed, summed[starts] + excess, side="right") - 1
    return np.where(excess > 0, np.minimum(cut, ends) - starts, 0)


def _check(runs: Runs, cuts: Column, *per_partition: Numbers) -> None:
    rows = len(runs.last_offsets)
    if len(runs.timestamps) != rows or len(runs.byte_sizes) != rows:
        raise ValueError("the columns of runs differ in length")
    if not len(cuts) or cuts[0] != 0 or cuts[-1] != rows or (np.diff(cuts) < 0).any():
        raise ValueError(f"bounds do not divide {rows} runs")
    if any(len(values) != len(cuts) - 1 for values in per_partition):
        raise ValueError(f"not one value for each of {len(cuts) - 1} partitions")
