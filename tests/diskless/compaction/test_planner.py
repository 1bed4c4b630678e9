"""Which runs are worth rewriting, and when a partition is due for compaction.

Source: docs/design/compaction.md; Kafka's LogCleanerManager.
"""

from __future__ import annotations

from uuid import UUID

from diskless.compaction.planner import (
    Cleaning,
    CompactionSettings,
    MergeSettings,
    PartitionRuns,
    plan_compaction,
    plan_merges,
)
from diskless.fetch.runs_reader import Run
from records.final_batches import MAX_RUN_BYTES
from records.wal import APPENDED, FINAL, MARKER

TOPIC = UUID(int=1)
YOUNG_MS, WAIT_MS, FEWEST_SAVED = MergeSettings()
NOW = 10 * WAIT_MS
OLD = NOW - 2 * WAIT_MS
MIB = 1 << 20


def runs_of(*rows: tuple[int, int], object_format: int = APPENDED, time: int = OLD) -> list[Run]:
    """Return runs of one offset each, from (object id, size)."""
    return [
        Run(str(object_id), 0, size, offset, offset, 0, time, object_format, time)
        for offset, (object_id, size) in enumerate(rows)
    ]


def plan(*partitions: list[Run], expires: int | None = None, **options):
    columns = [PartitionRuns(TOPIC, i, runs, expires) for i, runs in enumerate(partitions)]
    options = {"object_bytes": 10 * MIB, "now_ms": NOW} | options
    return plan_merges(columns, object_id=int, **options)


def names(merge) -> list[tuple[int, list[str]]]:
    return [(source.partition, [run.object_key for run in source.runs]) for source in merge.sources]


def test_the_compaction_planner_merges_all_partitions_of_an_interval_of_object_ids() -> None:
    one = runs_of(*((i, MIB) for i in range(8)))
    two = runs_of(*((i, MIB) for i in range(0, 8, 2)))
    merges = plan(one, two)
    assert sorted(map(names, merges)) == [
        [(0, list("0123456")), (1, list("0246"))],  # 11 MiB; the rest saves too little
    ]


def test_the_compaction_planner_merges_a_marker_with_the_run_before_it() -> None:
    runs = runs_of(*((i, MIB) for i in range(22)))
    marked = [
        run._replace(object_key="", size_bytes=78, object_format=MARKER, control=b"m")
        if run.base_offset % 2
        else run
        for run in runs
    ]
    (merge,) = plan(marked)
    ((_, keys),) = names(merge)
    assert keys == [key for number in range(0, len(keys), 2) for key in (str(number), "")]
    assert len(keys) >= 18


def test_the_compaction_planner_plans_a_partly_filled_object_only_for_old_and_numerous_runs() -> (
    None
):
    few = runs_of(*((i, 100) for i in range(FEWEST_SAVED)))
    many = runs_of(*((i, 100) for i in range(FEWEST_SAVED + 1)))
    assert not plan(few)
    assert len(plan(many)) == 1
    assert not plan(runs_of(*((i, 100) for i in range(99)), time=NOW - WAIT_MS + 1))


def test_the_compaction_planner_merges_neither_young_nor_soon_expiring_runs() -> None:
    runs = runs_of(*((i, MIB) for i in range(40)))
    assert plan(runs)
    assert not plan(runs, expires=OLD + 1)
    assert plan(runs, expires=OLD)
    assert not plan(runs_of(*((i, MIB) for i in range(40)), time=NOW - YOUNG_MS + 1))


def test_the_compaction_planner_rewrites_soon_expiring_runs_only_from_overdue_objects() -> None:
    runs = runs_of(*((i, 9 * MIB) for i in range(3)), object_format=FINAL)
    assert not plan(runs)
    assert names(plan(runs, sparse={"1"})[0]) == [(0, ["1"])]
    assert not plan(runs, sparse={"1"}, expires=OLD + 1)
    assert names(plan(runs, overdue={"1"}, expires=OLD + 1)[0]) == [(0, ["1"])]


def test_the_compaction_planner_obeys_the_settings_of_run_age_delay_and_least_saved_runs() -> None:
    runs = runs_of(*((i, 100) for i in range(3)), time=NOW - 1_000)
    assert plan(runs, settings=MergeSettings(1_000, 1_000, 2))
    assert not plan(runs, settings=MergeSettings(1_001, 1_000, 2))
    assert not plan(runs, settings=MergeSettings(1_000, 1_001, 2))
    assert not plan(runs, settings=MergeSettings(1_000, 1_000, 3))


def test_the_compaction_planner_merges_merged_runs_again_if_they_fill_a_run_or_are_numerous() -> (
    None
):
    quarter = MAX_RUN_BYTES // 4
    assert not plan(runs_of((1, quarter), (2, quarter), (3, quarter), object_format=FINAL))
    assert plan(runs_of(*((i, quarter) for i in range(4)), object_format=FINAL))
    assert plan(runs_of(*((i, 1) for i in range(FEWEST_SAVED)), object_format=FINAL))
    assert not plan(runs_of(*((i, 1) for i in range(FEWEST_SAVED - 1)), object_format=FINAL))
    large = runs_of(*((i, MAX_RUN_BYTES) for i in range(99)), object_format=FINAL)
    assert not plan(large)


def test_the_compaction_planner_returns_the_merge_that_saves_the_most_runs_per_byte_first() -> None:
    tiny = runs_of(*((i, 1) for i in range(20)), object_format=FINAL)
    larger = runs_of(*((100 + i, MIB) for i in range(20)), object_format=FINAL)
    merges = plan(larger, tiny, object_bytes=1)
    assert [merge.sources[0].partition for merge in merges] == [1, 0]


def test_the_compaction_planner_plans_no_run_of_batches_for_two_merges() -> None:
    mixed = runs_of(*((i * 7 % 50, MIB // 3) for i in range(60)))
    final = runs_of(*((i, MIB) for i in range(60)), object_format=FINAL)
    merges = plan(mixed, final, sparse={"3", "4", "20"})
    taken = [
        (source.partition, run.base_offset)
        for merge in merges
        for source in merge.sources
        for run in source.runs
    ]
    assert len(taken) == len(set(taken)) > 60
    for merge in merges:
        for source in merge.sources:
            offsets = [run.base_offset for run in source.runs]
            assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))


LAZY = CompactionSettings(0, 1 << 62, 0.5)


def compaction(runs: list[Run], cleaning: Cleaning, settings: CompactionSettings = LAZY):
    return plan_compaction(PartitionRuns(TOPIC, 0, runs), cleaning, settings, now_ms=NOW)


TEN = runs_of(*((i, 10) for i in range(10)))


def test_a_partition_is_due_for_compaction_once_its_dirty_ratio_exceeds_the_setting() -> None:
    half = compaction(TEN, Cleaning(0, 10, 5, 5, 5))
    assert (half.dirty_ratio, half.is_due, half.bound, half.first_dirty) == (0.5, False, 10, 5)
    assert compaction(TEN, Cleaning(0, 10, 4, 4, 4)).is_due
    assert compaction(TEN, Cleaning(0, 10, 10, 10, 10)) is None


def test_a_planned_compaction_round_ends_before_unstable_records_and_too_young_runs() -> None:
    assert compaction(TEN, Cleaning(0, 7, 0, -1, 0)).bound == 7
    young = [*TEN[:6], *(run._replace(max_timestamp=NOW) for run in TEN[6:])]
    lagging = LAZY._replace(min_compaction_lag_ms=1)
    assert compaction(young, Cleaning(0, 10, 0, -1, 0), lagging).bound == 6
    assert compaction(young[6:], Cleaning(6, 10, 6, -1, 6), lagging) is None


def test_a_record_older_than_max_compaction_lag_ms_forces_compaction_of_its_partition() -> None:
    eager = LAZY._replace(max_compaction_lag_ms=NOW - OLD - 1)
    clean = Cleaning(0, 10, 9, 9, 9)
    assert not compaction(TEN, clean).is_due
    forced = compaction(TEN, clean, eager)
    assert forced.is_due
    assert forced.is_forced
    assert forced.urgency > compaction(TEN, Cleaning(0, 10, 0, -1, 0)).urgency


def test_the_compaction_planner_resumes_an_unfinished_round_with_the_same_end_offset() -> None:
    resumed = compaction(TEN, Cleaning(0, 10, 5, 8, 5))
    assert (resumed.bound, resumed.rewritten_until, resumed.first_dirty) == (8, 5, 5)
    assert resumed.is_due
    assert resumed.source.runs[-1].last_offset == 7


def test_the_compaction_planner_begins_a_new_round_if_the_old_rounds_end_lies_inside_a_run() -> (
    None
):
    merged = [*TEN[:7], TEN[7]._replace(last_offset=9)]
    anew = compaction(merged, Cleaning(0, 10, 5, 8, 5))
    assert (anew.bound, anew.rewritten_until, anew.first_dirty) == (10, 0, 5)
