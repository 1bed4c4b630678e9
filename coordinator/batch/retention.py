"""A coordinator's own retention, a bounded piece at a time: which log starts may move now.

A pass visits partitions in the order of their topic ids and goes on where the last one stopped. Of
most it reads one run: if the oldest may stay, all may. Of the others it reads the oldest runs, up
to a limit, and the planner does the rest; what is left over is found again by a later pass.

Source: docs/design/batch-coordinator.md#retention.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import nsmallest
from itertools import islice
from operator import itemgetter
from typing import NamedTuple, Protocol
from uuid import UUID

from coordinator.batch.cluster_view import ClusterView, Enforcer
from coordinator.batch.decide.log_start import NewLogStart
from coordinator.batch.runs import Run
from coordinator.batch.state import Log, LogId, SmallTable, Table, Topic

TopicPartition = tuple[UUID, int]
"""A topic id and a partition: where a pass stopped."""


class Kept(Protocol):
    """The applied state that a pass reads."""

    @property
    def topics(self) -> SmallTable[UUID, Topic]:
        """Return the table of topics by topic id, including the tombstones of deleted topics."""

    @property
    def logs(self) -> Table[LogId, Log]:
        """Return the table of each partition's log start and high watermark, by log id."""

    def runs_from(self, log_id: LogId, offset: int) -> Iterable[Run]:
        """Return a partition's runs of batches from the run that contains `offset` on."""

    def run_totals(self, log_id: LogId) -> tuple[int, int] | None:
        """Return the number and total bytes of a partition's undeleted runs, or None if unknown."""


class Pass(NamedTuple):
    """The rows that one pass found, and where the next begins."""

    rows: tuple[NewLogStart, ...]
    stopped_at: TopicPartition | None  # None: all partitions were visited


class _Partition(NamedTuple):
    topic_id: UUID
    partition: int
    log_start: int
    total_bytes: int
    retention_ms: int | None
    retention_bytes: int | None
    runs: list[Run]


def retention_pass(
    kept: Kept,
    view: ClusterView,
    now_ms: int,
    *,
    after: TopicPartition | None = None,
    max_partitions: int = 1_000,
    max_runs: int = 2_000,
) -> Pass:
    """Compute the new log starts that retention requires for the partitions after `after`.

    Args:  after: where the last pass stopped. max_partitions, max_runs: what is read at most, save
           for one run of each partition.
    """
    place = after
    partitions: list[_Partition] = []
    looked_at = _partitions_after(kept, after, max_partitions + 1)
    for visited, (topic_id, topic, partition) in enumerate(looked_at):
        if visited == max_partitions or max_runs <= 0:
            return Pass(tuple(_plan_log_starts(partitions, now_ms)), place)
        place = (topic_id, partition)
        found = _look(kept, view, topic_id, topic, partition, now_ms, max_runs)
        if found is not None:
            partitions.append(found)
            max_runs -= len(found.runs)
    return Pass(tuple(_plan_log_starts(partitions, now_ms)), None)


def _partitions_after(
    kept: Kept, after: TopicPartition | None, limit: int
) -> Iterator[tuple[UUID, Topic, int]]:
    """Yield the partitions after `after` by topic id, in the same order on every replica.

    At least `limit` of them, if there are as many.

    Of ten thousand topics the next few are chosen in a millisecond, where sorting them all takes
    thirty: a UUID is compared in Python.
    """
    begin = -1 if after is None else after[0].int
    later = (
        (topic_id.int, topic_id, topic)
        for topic_id, topic in kept.topics.items()
        if topic_id.int >= begin and topic.deleted_at_ms < 0 and topic.log_ids
    )
    # one more than the limit: nothing may be left of the topic that the last pass stopped in
    for _, topic_id, topic in nsmallest(limit + 1, later, key=itemgetter(0)):
        first = after[1] + 1 if after is not None and topic_id == after[0] else 0
        for partition in range(first, len(topic.log_ids)):
            yield topic_id, topic, partition


def _look(
    kept: Kept,
    view: ClusterView,
    topic_id: UUID,
    topic: Topic,
    partition: int,
    now_ms: int,
    limit: int,
) -> _Partition | None:
    """Return a partition's oldest runs of batches if retention deletes any of them, else None."""
    log_id = topic.log_ids[partition]
    log = kept.logs.get(log_id)
    if log is None or log[0] == log[1]:
        return None
    config = view.topic_config(topic_id)
    if config is None or config.enforcer is Enforcer.EXTERNAL:
        return None
    walk = iter(kept.runs_from(log_id, log[0]))
    oldest = next(walk, None)
    if oldest is None:
        return None
    totals = kept.run_totals(log_id)
    if totals is None:
        return None
    _, total_bytes = totals
    keep_ms, keep_bytes = config.retention_ms, config.retention_bytes
    too_old = keep_ms is not None and now_ms - _time_of(oldest) > keep_ms
    too_much = keep_bytes is not None and total_bytes - oldest.byte_size >= keep_bytes
    if not too_old and not too_much:
        return None
    return _Partition(
        topic_id,
        partition,
        log[0],
        total_bytes,
        keep_ms,
        keep_bytes,
        [oldest, *islice(walk, limit - 1)],
    )


def _time_of(run: Run) -> int:
    """Return a run's max timestamp, or its commit time if the run has no timestamp."""
    return run.appended_at_ms if run.max_timestamp < 0 else run.max_timestamp


def _plan_log_starts(partitions: list[_Partition], now_ms: int) -> Iterator[NewLogStart]:
    """Yield the new log start offsets that retention requires for these partitions.

    Imports numpy here, so that no node waits for it at its start.
    """
    if not partitions:
        return
    import numpy as np

    from coordinator.batch.retention_planner import (
        NOTHING,
        RETENTION_MS,
        UNLIMITED,
        Runs,
        plan_retention,
    )

    runs = [run for partition in partitions for run in partition.runs]
    plan = plan_retention(
        Runs(
            last_offsets=np.array([run.last_offset for run in runs], np.int64),
            timestamps=np.array([_time_of(run) for run in runs], np.int64),
            byte_sizes=np.array([run.byte_size for run in runs], np.int64),
        ),
        np.cumsum([0, *(len(partition.runs) for partition in partitions)]),
        log_start_offsets=[partition.log_start for partition in partitions],
        total_bytes=[partition.total_bytes for partition in partitions],
        retention_ms=[
            UNLIMITED if one.retention_ms is None else one.retention_ms for one in partitions
        ],
        retention_bytes=[
            UNLIMITED if one.retention_bytes is None else one.retention_bytes for one in partitions
        ],
        now_ms=now_ms,
    )
    for partition, log_start, reason in zip(
        partitions, plan.log_start_offsets.tolist(), plan.reasons.tolist(), strict=True
    ):
        if reason != NOTHING:
            by_time = reason == RETENTION_MS
            limit = partition.retention_ms if by_time else partition.retention_bytes
            assert limit is not None, f"planned by a limit that is not set: {reason}"
            yield NewLogStart(partition.topic_id, partition.partition, log_start, reason, limit)
