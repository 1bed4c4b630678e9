"""Retention: the planner against its definition, one prefix after the other.

Source: docs/design/batch-coordinator.md#retention.
"""

from __future__ import annotations

import doctest
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.batch import retention_planner as planner
from coordinator.batch.retention_planner import (
    NOTHING,
    RETENTION_BYTES,
    RETENTION_MS,
    Runs,
    plan_retention,
)

NOW = 1_000_000


class Run(NamedTuple):
    """A run and its count of offsets."""

    records: int
    timestamp: int
    size: int


class Partition(NamedTuple):
    """A partition's known runs, and the bytes of the others in `unseen_bytes`."""

    runs: list[Run]
    unseen_bytes: int
    retention_ms: int
    retention_bytes: int
    first_offset: int


def naive(partition: Partition) -> tuple[int, int, int]:
    """Log start, reason and removed bytes by trying every prefix: quadratic, and hard to get wrong.

    A prefix goes by time if all its runs are too old, by size if what it leaves is enough.
    """
    runs, total = partition.runs, sum(run.size for run in partition.runs) + partition.unseen_bytes
    by_time = by_size = 0
    for count in range(1, len(runs) + 1):
        if partition.retention_ms >= 0 and all(
            NOW - run.timestamp > partition.retention_ms for run in runs[:count]
        ):
            by_time = count
        left = total - sum(run.size for run in runs[:count])
        if partition.retention_bytes >= 0 and left >= partition.retention_bytes:
            by_size = count
    count = max(by_time, by_size)
    log_start = partition.first_offset + sum(run.records for run in runs[:count])
    reason = NOTHING if not count else RETENTION_MS if by_time >= by_size else RETENTION_BYTES
    return log_start, reason, sum(run.size for run in runs[:count])


def planned(partitions: list[Partition]) -> planner.Plan:
    rows: list[tuple[int, int, int]] = []
    bounds = [0]
    for partition in partitions:
        offset = partition.first_offset
        for run in partition.runs:
            offset += run.records
            rows.append((offset - 1, run.timestamp, run.size))
        bounds.append(len(rows))
    columns = np.array(rows, np.int64).reshape(len(rows), 3).T
    return plan_retention(
        Runs(*columns),
        bounds,
        log_start_offsets=[partition.first_offset for partition in partitions],
        total_bytes=[
            sum(run.size for run in partition.runs) + partition.unseen_bytes
            for partition in partitions
        ],
        retention_ms=[partition.retention_ms for partition in partitions],
        retention_bytes=[partition.retention_bytes for partition in partitions],
        now_ms=NOW,
    )


# few distinct numbers, so that they meet: sizes that add up to the limit, times exactly at it
RUNS = st.builds(
    Run,
    st.integers(1, 3),
    st.one_of(
        st.sampled_from([NOW - 101, NOW - 100, NOW - 99, NOW]), st.integers(-(2**63), 2**63 - 1)
    ),
    st.integers(1, 3),
)
PARTITIONS = st.builds(
    Partition,
    st.lists(RUNS, max_size=6),
    st.sampled_from([0, 0, 1, 5]),
    st.sampled_from([-1, 0, 99, 100, 2**63 - 1]),
    st.sampled_from([-1, 0, 1, 4, 6, 2**63 - 1]),
    st.sampled_from([0, 40]),
)


@pytest.mark.slow
@settings(max_examples=500, deadline=None, database=None)
@given(st.lists(PARTITIONS, max_size=5))
def test_the_retention_planner_agrees_with_a_search_over_all_log_starts(
    partitions: list[Partition],
) -> None:
    plan = planned(partitions)
    found = [
        (int(start), int(reason), int(size))
        for start, reason, size in zip(
            plan.log_start_offsets, plan.reasons, plan.removed_bytes, strict=True
        )
    ]
    assert found == [naive(partition) for partition in partitions]
    for partition, exhausted in zip(partitions, plan.exhausted, strict=True):
        everything = sum(run.size for run in partition.runs)
        assert bool(exhausted) == bool(partition.runs and naive(partition)[2] == everything)


def test_the_retention_planner_keeps_all_runs_after_the_first_run_younger_than_retention_ms() -> (
    None
):
    old = Run(10, 0, 100)
    plan = planned([Partition([old, Run(10, NOW, 100), old], 0, 1000, -1, 0)])
    assert plan.log_start_offsets.tolist() == [10]


def test_the_retention_planner_keeps_a_run_of_batches_that_is_exactly_retention_ms_old() -> None:
    runs = [Run(1, NOW - 101, 1), Run(1, NOW - 100, 1)]
    assert planned([Partition(runs, 0, 100, -1, 0)]).log_start_offsets.tolist() == [1]


def test_the_retention_planner_never_keeps_fewer_bytes_than_retention_bytes() -> None:
    runs = [Run(1, NOW, 60), Run(1, NOW, 60), Run(1, NOW, 60)]
    assert planned([Partition(runs, 0, -1, 100, 0)]).log_start_offsets.tolist() == [1]
    assert planned([Partition(runs, 0, -1, 120, 0)]).log_start_offsets.tolist() == [1]
    assert planned([Partition(runs, 0, -1, 121, 0)]).log_start_offsets.tolist() == [0]


def test_the_retention_planner_does_not_move_a_log_start_backwards() -> None:
    """DeleteRecords went to 7 in a run of offsets 0 to 9: the run is live, whole, until it goes.

    A run that is dead already (the log starts at 12) moves nothing back either.
    """
    columns = Runs(np.array([9]), np.array([NOW]), np.array([10]))
    for before, retention_bytes, log_start in ((7, 10, 7), (7, 0, 10), (12, 0, 12)):
        plan = plan_retention(
            columns, [0, 1], log_start_offsets=[before], total_bytes=[10], retention_ms=[-1],
            retention_bytes=[retention_bytes], now_ms=NOW,
        )  # fmt: skip
        assert plan.log_start_offsets.tolist() == [log_start]


@pytest.mark.parametrize(
    ("bounds", "per_partition"), [([0, 2], [0]), ([1], []), ([], []), ([0, 1], [0, 0])]
)
def test_the_retention_planner_refuses_columns_of_unequal_length(
    bounds: list[int], per_partition: list[int]
) -> None:
    one = np.zeros(1, np.int64)
    with pytest.raises(ValueError, match=r"bounds|not one value"):
        plan_retention(
            Runs(one, one, one), bounds, log_start_offsets=per_partition,
            total_bytes=per_partition, retention_ms=per_partition,
            retention_bytes=per_partition, now_ms=0,
        )  # fmt: skip


def test_the_retention_planners_docstring_example_runs_without_errors() -> None:
    assert doctest.testmod(planner).failed == 0
