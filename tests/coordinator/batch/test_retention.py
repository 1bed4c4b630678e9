"""The coordinator's own retention: bounded passes that end where all at once would."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import pytest

from coordinator.batch.cluster_view import Enforcer, StaticView, TopicConfig
from coordinator.batch.decide.log_start import BY_SIZE, BY_TIME, NewLogStart
from coordinator.batch.retention import TopicPartition, retention_pass
from coordinator.batch.runs import Run
from coordinator.batch.state import Log, Topic

NOW = 1_000_000
A, B, C = UUID(int=1), UUID(int=2), UUID(int=3)


class Kept:
    """Partitions of ten records and 100 bytes a run, each run 10 ms younger than the one before."""

    def __init__(self, runs_of: dict[UUID, list[int]]) -> None:
        self.topics: dict[UUID, Topic] = {}
        self.logs: dict[int, Log] = {}
        self.read = 0
        for topic_id, counts in runs_of.items():
            first = len(self.logs)
            self.topics[topic_id] = Topic("t", tuple(range(first, first + len(counts))))
            for log_id, count in enumerate(counts, first):
                self.logs[log_id] = (0, 10 * count)

    def _age(self, log_id: int, index: int) -> int:
        return 10 * (self.logs[log_id][1] // 10 - index)

    def runs_from(self, log_id: int, offset: int) -> Iterator[Run]:
        for index in range(offset // 10, self.logs[log_id][1] // 10):
            self.read += 1
            time = NOW - self._age(log_id, index)
            yield Run(10 * index, 10 * index + 9, 0, 0, 100, time, time, 0, 10)

    def run_totals(self, log_id: int) -> tuple[int, int]:
        start, end = self.logs[log_id]
        return (end - start) // 10, (end - start) * 10

    def move(self, row: NewLogStart) -> None:
        log_id = self.topics[row.topic_id].log_ids[row.partition]
        assert row.log_start_offset > self.logs[log_id][0]
        self.logs[log_id] = (row.log_start_offset, self.logs[log_id][1])


def enforce(kept: Kept, view: StaticView, *, max_partitions: int, max_runs: int) -> int:
    """Run passes until two rounds in a row find nothing; returns their count."""
    place: TopicPartition | None = None
    passes, quiet = 0, 0
    while quiet < 2:
        found = retention_pass(
            kept, view, NOW, after=place, max_partitions=max_partitions, max_runs=max_runs
        )
        passes += 1
        for row in found.rows:
            kept.move(row)
        place = found.stopped_at
        quiet = 0 if found.rows else quiet + (place is None)
        assert passes < 1_000, "no end"
    return passes


CONFIGS = {
    A: TopicConfig(retention_ms=50, retention_bytes=None),
    B: TopicConfig(retention_ms=None, retention_bytes=250),
    C: TopicConfig(retention_ms=30, retention_bytes=800),
}


@pytest.mark.parametrize(("max_partitions", "max_runs"), [(100, 10_000), (1, 1), (2, 3)])
def test_small_retention_passes_plan_the_same_log_starts_as_one_large_pass(
    max_partitions: int, max_runs: int
) -> None:
    kept = Kept({A: [20, 3, 0], B: [20, 2], C: [4, 20, 1]})
    enforce(kept, StaticView(configs=CONFIGS), max_partitions=max_partitions, max_runs=max_runs)
    starts = {topic: [kept.logs[i][0] for i in kept.topics[topic].log_ids] for topic in (A, B, C)}
    assert starts == {
        A: [150, 0, 0],  # five runs are at most 50 ms old
        B: [170, 0],  # three runs, 300 bytes, are the least that has 250
        C: [10, 170, 0],  # time goes further than size
    }


def test_each_row_of_a_retention_pass_names_the_time_or_size_limit_that_moves_the_log_start() -> (
    None
):
    rows = retention_pass(Kept({A: [9], B: [9]}), StaticView(configs=CONFIGS), NOW).rows
    assert rows == (NewLogStart(A, 0, 40, BY_TIME, 50), NewLogStart(B, 0, 60, BY_SIZE, 250))


def test_a_retention_pass_reads_one_run_of_each_partition_within_its_retention_limits() -> None:
    kept = Kept({A: [5] * 50})
    assert retention_pass(kept, StaticView(configs=CONFIGS), NOW).rows == ()
    assert kept.read == 50


@pytest.mark.parametrize(("keep", "start"), [(399, 10), (400, 10), (401, 0), (500, 0), (300, 20)])
def test_retention_by_size_deletes_the_oldest_run_if_the_newer_runs_reach_retention_bytes(
    keep: int, start: int
) -> None:
    """Five runs of 100 bytes; the oldest goes if the others are enough, also just enough."""
    view = StaticView(configs={A: TopicConfig(retention_ms=None, retention_bytes=keep)})
    rows = retention_pass(Kept({A: [5]}), view, NOW).rows
    assert [row.log_start_offset for row in rows] == ([start] if start else [])


def test_a_retention_pass_reads_a_bounded_number_of_runs() -> None:
    kept = Kept({A: [1_000]})
    found = retention_pass(kept, StaticView(configs=CONFIGS), NOW, max_runs=10)
    assert kept.read == 10
    assert [row.log_start_offset for row in found.rows] == [100]


@pytest.mark.parametrize(
    "config", [None, TopicConfig(retention_ms=0, enforcer=Enforcer.EXTERNAL)], ids=["none", "else"]
)
def test_retention_passes_skip_unknown_topics_and_topics_with_an_external_enforcer(
    config: TopicConfig | None,
) -> None:
    view = StaticView(default_config=config)
    assert retention_pass(Kept({A: [9]}), view, NOW).rows == ()


def test_retention_passes_plan_no_log_start_for_deleted_topics() -> None:
    kept = Kept({A: [9]})
    kept.topics[A] = kept.topics[A]._replace(deleted_at_ms=1)
    assert retention_pass(kept, StaticView(configs=CONFIGS), NOW).rows == ()


class Untimed(Kept):
    """The runs of records without a timestamp."""

    def runs_from(self, log_id: int, offset: int) -> Iterator[Run]:
        for run in super().runs_from(log_id, offset):
            yield run._replace(max_timestamp=-1)


def test_retention_of_batches_without_a_timestamp_counts_from_their_commit() -> None:
    """Kafka uses the segment's modification time; -1 is not the year 1969."""
    (row,) = retention_pass(Untimed({A: [9]}), StaticView(configs=CONFIGS), NOW).rows
    assert row == NewLogStart(A, 0, 40, BY_TIME, 50)


@pytest.mark.parametrize("max_partitions", [1, 2, 3, 7, 100])
def test_successive_bounded_retention_passes_visit_every_partition_once(
    max_partitions: int,
) -> None:
    """Also where topics are deleted, have none, or end just where a pass does."""

    class Visited(Kept):
        def runs_from(self, log_id: int, offset: int) -> Iterator[Run]:
            visited.append(log_id)
            return super().runs_from(log_id, offset)

    visited: list[int] = []
    counts = {UUID(int=(i * 37) % 64 + 1): [1] * (i % 4) for i in range(40)}
    kept = Visited(counts)
    gone = UUID(int=38)
    kept.topics[gone] = kept.topics[gone]._replace(deleted_at_ms=5)
    place: TopicPartition | None = None
    for _ in range(200):
        place = retention_pass(
            kept, StaticView(), NOW, after=place, max_partitions=max_partitions
        ).stopped_at
        if place is None:
            break
    topics = [kept.topics[topic_id] for topic_id in sorted(counts) if topic_id != gone]
    assert visited == [log_id for topic in topics for log_id in topic.log_ids]
