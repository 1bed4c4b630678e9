"""Computes a retention plan from digests: whole pieces first, single runs only where a limit is
crossed.

Four passes over the pieces of a log each return little:

1. the digests, with one row for each partition of a piece;
2. for pieces that a log start lies in: the live runs of those partitions, summed up;
3. for pieces that a new log start lies in: which of those partitions' runs are removed;
4. with all old and new log starts known: the freed objects (`spark_jobs.retention.effects`).

The arithmetic is the coordinator's own planner, used twice. First every piece is treated as one
run: the pieces that it removes are removed whole, and the first that it keeps is where the limit is
crossed. Then the planner gets the runs of that piece, with the bytes before it taken off the total.

The trap is time: one young run protects everything behind it. So if the time limit is crossed in an
earlier piece than the size limit, time does not apply to the later one.

Source: docs/design/batch-coordinator.md#retention, docs/design/pipeline.md#plans.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from coordinator.batch.retention_planner import (
    NOTHING,
    RETENTION_BYTES,
    UNLIMITED,
    Runs,
    plan_retention,
)
from records.frame import decode_record
from spark_jobs.plans.retention_plan import PlanRow
from spark_jobs.retention.digests import Digest, Rows
from spark_jobs.tables.partitions import Partitions
from spark_jobs.tables.topics import BOTH, EXTERNAL, TopicSettings

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

GONE: Final = np.iinfo(np.int64).max
"""The log start of a partition that no longer exists: it has no live runs."""


class Starts(NamedTuple):
    """Log starts by topic and index; `GONE` where there is no partition."""

    by_topic: Mapping[str, Numbers]

    def of(self, digest: Digest) -> Numbers:
        """Return the log start of each partition of a digest; GONE if no such partition exists."""
        found = np.full(len(digest), GONE, np.int64)
        for code, topic_id in enumerate(digest.topic_ids):
            starts = self.by_topic.get(topic_id)
            if starts is not None and len(starts):
                here = np.flatnonzero(digest.topics == code)
                index = digest.partitions[here]
                known = starts[np.minimum(index, len(starts) - 1)]
                found[here] = np.where(index < len(starts), known, GONE)
        return found


# --- requests to pieces ---------------------------------------------------------------------------


class LiveRequest(NamedTuple):
    """Rows of one piece's digest to look at, and the log start of each partition."""

    rows: Numbers
    starts: Numbers


class LiveRuns(NamedTuple):
    """The live runs of each requested partition, summed up."""

    counts: Numbers
    byte_sums: Numbers
    max_timestamps: Numbers


class LimitRequest(NamedTuple):
    """The planner's arguments for the rows of a request, after all before them is removed."""

    live: LiveRequest
    log_starts: Numbers
    total_bytes: Numbers
    retention_ms: Numbers
    retention_bytes: Numbers
    now_ms: int


class RemovedRuns(NamedTuple):
    """The runs of each requested partition that are removed."""

    log_starts: Numbers
    reasons: Numbers
    runs: Numbers
    byte_sums: Numbers


def sum_live_runs(digest: Digest, rows: Rows, request: LiveRequest) -> LiveRuns:
    """Sum up, for each requested partition, the runs of batches that end above its log start."""
    counts, runs = _live_runs(digest, rows, request)
    code = np.repeat(np.arange(len(counts)), counts)
    youngest = np.full(len(counts), np.iinfo(np.int64).min, np.int64)
    np.maximum.at(youngest, code, runs.timestamps)
    sums = np.zeros(len(counts), np.int64)
    np.add.at(sums, code, runs.byte_sizes)
    return LiveRuns(counts, sums, youngest)


def plan_within(digest: Digest, rows: Rows, request: LimitRequest) -> RemovedRuns:
    """Plan which runs of batches retention deletes from the requested partitions."""
    counts, runs = _live_runs(digest, rows, request.live)
    plan = plan_retention(
        runs,
        np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))),
        log_start_offsets=request.log_starts,
        total_bytes=request.total_bytes,
        retention_ms=request.retention_ms,
        retention_bytes=request.retention_bytes,
        now_ms=request.now_ms,
    )
    return RemovedRuns(plan.log_start_offsets, plan.reasons, plan.removed_runs, plan.removed_bytes)


def _live_runs(digest: Digest, rows: Rows, request: LiveRequest) -> tuple[Numbers, Runs]:
    """Return the number of undeleted runs of batches in each requested partition, and the runs."""
    ends = np.cumsum(digest.run_counts)
    counts = digest.run_counts[request.rows]
    begins = ends[request.rows] - counts
    before = np.cumsum(counts) - counts
    place = np.arange(int(counts.sum())) + np.repeat(begins - before, counts)
    alive = rows.last_offsets[place] >= np.repeat(request.starts, counts)
    code = np.repeat(np.arange(len(counts)), counts)[alive]
    place = place[alive]
    columns = (column[place] for column in (rows.last_offsets, rows.timestamps, rows.byte_sizes))
    return np.bincount(code, minlength=len(counts)), Runs(
        *(column.astype(np.int64) for column in columns)
    )


# --- planning from the answers --------------------------------------------------------------------


@dataclass(slots=True)
class _Entries:
    """One row for each partition of each piece with live runs, sorted by partition and piece."""

    partition: Numbers
    piece: Numbers
    row: Numbers  # of the piece's digest
    counts: Numbers
    byte_sums: Numbers
    last_offsets: Numbers
    max_timestamps: Numbers
    partly: Mask  # the log start lies in it


class Planner:
    """One coordinator's plan, from the digests of all pieces of its log, in order.

        planner = Planner(digests, topics)
        planner.apply_live({piece: sum_live_runs(...) for piece, _ in planner.live_requests()})
        removed = {piece: plan_within(...) for piece, _ in planner.limit_requests(now)}
        rows = planner.plan(0, removed)

    Topics that the cluster's log does not have are skipped: they are being deleted, or are newer
    than the end that was read.
    """

    def __init__(self, digests: Sequence[Digest], topics: Mapping[str, TopicSettings]) -> None:
        self.partitions = Partitions()
        for digest in digests:
            for record in digest.records:
                self.partitions.apply(decode_record(record))
        self.starts = _starts(self.partitions)
        places = self.partitions.in_order()
        alive = {one for one, topic in self.partitions.topics.items() if topic.deleted_at_ms < 0}
        mine = {
            topic_id
            for topic_id, one in topics.items()
            if topic_id in alive and one.enforcer in (EXTERNAL, BOTH)
        }
        self._places = [place for place in places if place[0] in mine]
        self._entries = _live_entries(digests, self._places, self.starts)
        of_topics = self.partitions.topics
        self._old = np.array(
            [of_topics[t].partitions[i].log_start for t, i in self._places], np.int64
        )
        keep = [topics[topic_id] for topic_id, _ in self._places]
        self._keep_ms = np.array([one.retention_ms for one in keep], np.int64)
        self._keep_bytes = np.array([one.retention_bytes for one in keep], np.int64)
        self._requested: dict[int, Numbers] = {}  # by piece: partitions
        self._bounds = np.searchsorted(self._entries.partition, np.arange(len(self._places) + 1))

    def live_requests(self) -> Iterator[tuple[int, LiveRequest]]:
        """Yield the `sum_live_runs` request of each span of the log in which a log start lies."""
        yield from self._requests(np.flatnonzero(self._entries.partly))

    def apply_live(self, answers: Mapping[int, LiveRuns]) -> None:
        """Replace sums of spans in which a log start lies by exact sums from `sum_live_runs`."""
        entries = self._entries
        for piece, live in answers.items():
            indexes = np.flatnonzero(entries.partly & (entries.piece == piece))
            entries.counts[indexes] = live.counts
            entries.byte_sums[indexes] = live.byte_sums
            entries.max_timestamps[indexes] = live.max_timestamps

    def limit_requests(self, now_ms: int) -> Iterator[tuple[int, LimitRequest]]:
        """Yield the `plan_within` request of each span in which a partition crosses a limit."""
        entries, bounds = self._entries, self._bounds
        self._bytes_before = _sums(entries.byte_sums, bounds)
        whole = self._whole = plan_retention(
            Runs(entries.last_offsets, entries.max_timestamps, entries.byte_sums),
            bounds,
            log_start_offsets=self._old,
            total_bytes=self._bytes_before,
            retention_ms=self._keep_ms,
            retention_bytes=self._keep_bytes,
            now_ms=now_ms,
        )
        crossed = bounds[:-1] + whole.removed_runs  # an entry of each partition
        limited = (self._keep_ms >= 0) | (self._keep_bytes >= 0)
        wanted = np.flatnonzero((crossed < bounds[1:]) & limited)
        self._requested = {}
        for piece, question in self._requests(crossed[wanted]):
            here = self._requested[piece] = wanted[entries.piece[crossed[wanted]] == piece]
            by_size = whole.reasons[here] == RETENTION_BYTES
            yield (
                piece,
                LimitRequest(
                    question,
                    whole.log_start_offsets[here],
                    self._bytes_before[here] - whole.removed_bytes[here],
                    # the time limit was crossed before: a young run protects these
                    np.where(by_size, UNLIMITED, self._keep_ms[here]),
                    self._keep_bytes[here],
                    now_ms,
                ),
            )

    def plan(self, coordinator: int, answers: Mapping[int, RemovedRuns]) -> list[PlanRow]:
        """Return the plan's rows by topic id and partition, from the `plan_within` results."""
        entries, whole = self._entries, self._whole
        log_starts, reasons = whole.log_start_offsets.copy(), whole.reasons.copy()
        gone_bytes = whole.removed_bytes.copy()
        gone_runs = _sums(entries.counts, self._bounds, whole.removed_runs)
        for piece, inside in answers.items():
            inner, some = self._requested[piece], inside.reasons != NOTHING
            log_starts[inner] = inside.log_starts
            reasons[inner[some]] = inside.reasons[some]
            gone_runs[inner] += inside.runs
            gone_bytes[inner] += inside.byte_sums
        runs_before = _sums(entries.counts, self._bounds)
        keep = np.where(reasons == RETENTION_BYTES, self._keep_bytes, self._keep_ms)
        columns = (
            self._old, log_starts, reasons, keep, gone_runs, gone_bytes, runs_before,
            self._bytes_before,
        )  # fmt: skip
        trimmed = np.flatnonzero(reasons != NOTHING)
        numbers = zip(*(column[trimmed].tolist() for column in columns), strict=True)
        return [
            self._row(coordinator, number, *row)
            for number, row in zip(trimmed.tolist(), numbers, strict=True)
        ]

    def _row(self, coordinator: int, number: int, *numbers: int) -> PlanRow:
        topic_id, index = self._places[number]
        return PlanRow(
            coordinator, topic_id, self.partitions.topics[topic_id].name, index, *numbers
        )

    def _requests(self, which: Numbers) -> Iterator[tuple[int, LiveRequest]]:
        """Yield one request for each span of the log that has a chosen partition."""
        entries = self._entries
        for piece in np.unique(entries.piece[which]).tolist():
            here = which[entries.piece[which] == piece]
            yield piece, LiveRequest(entries.row[here], self._old[entries.partition[here]])


def _live_entries(
    digests: Sequence[Digest], places: Sequence[tuple[str, int]], starts: Starts
) -> _Entries:
    """Return the partitions that have undeleted batches in each span of the log."""
    numbers = _partition_numbers(places)
    parts = []
    for piece, digest in enumerate(digests):
        partition, start = numbers.of(digest), starts.of(digest)
        row = np.flatnonzero((partition != GONE) & (digest.last_offsets >= start))
        parts.append(
            (
                partition[row], np.full(len(row), piece), row, digest.run_counts[row],
                digest.byte_sums[row].astype(np.int64), digest.last_offsets[row],
                digest.max_timestamps[row], digest.first_ends[row] < start[row],
            )
        )  # fmt: skip
    if not parts:
        return _Entries(*(np.zeros(0, np.int64),) * 7, np.zeros(0, np.bool_))
    columns = [np.concatenate(one) for one in zip(*parts, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    return _Entries(*(column[order] for column in columns))


def _partition_numbers(places: Sequence[tuple[str, int]]) -> Starts:
    """Number the partitions, and return the numbers by topic and partition index."""
    by_topic: dict[str, tuple[list[int], list[int]]] = {}
    for number, (topic_id, index) in enumerate(places):
        indexes, numbers = by_topic.setdefault(topic_id, ([], []))
        indexes.append(index)
        numbers.append(number)
    found = {}
    for topic_id, (indexes, numbers) in by_topic.items():
        found[topic_id] = np.full(indexes[-1] + 1, GONE, np.int64)
        found[topic_id][indexes] = numbers
    return Starts(found)


def _sums(values: Numbers, bounds: Numbers, counts: Numbers | None = None) -> Numbers:
    """Sum each partition's values over all spans, or over its first `counts` spans."""
    totals = np.concatenate((np.zeros(1, np.int64), np.cumsum(values)))
    ends = bounds[1:] if counts is None else bounds[:-1] + counts
    found: Numbers = totals[ends] - totals[bounds[:-1]]
    return found


def _starts(partitions: Partitions) -> Starts:
    found = {}
    for topic_id, topic in partitions.topics.items():
        starts = np.full(max(topic.partitions, default=-1) + 1, GONE, np.int64)
        for index, partition in topic.partitions.items():
            starts[index] = partition.log_start
        found[topic_id] = starts
    return Starts(found)


def apply_rows(starts: Starts, rows: Sequence[PlanRow]) -> Starts:
    """Return the log starts after the plan's rows are applied."""
    found = {topic_id: log_starts.copy() for topic_id, log_starts in starts.by_topic.items()}
    for row in rows:
        found[row.topic_id][row.partition] = row.new_log_start
    return Starts(found)
