"""A retention plan from digests: whole pieces first, single runs only where a limit is crossed.

Four passes over the pieces of a log, each of which sends back little:

1. the digests, that is one row for each partition of a piece;
2. of pieces that a log start lies in: what is alive of those partitions (the digest does not know);
3. of pieces that a new log start lies in: which of the runs of those partitions go;
4. with all log starts known, old and new: what that frees (`spark_jobs.retention.effects`).

The arithmetic is the coordinator's own planner, twice. First every piece is taken for one run; what
it removes whole, goes whole, and the first piece that it does not is where the limit is crossed.
Then the runs of that piece, with the bytes that are gone before it taken off the total.

The surprise is time: one young run protects all that is behind it. So if time's limit is crossed in
an earlier piece than size's, time has nothing to say about the later one.

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
"""The log start of a partition that is not there any more: nothing of it lives."""


class Starts(NamedTuple):
    """Log starts by topic and index; `GONE` where there is no partition."""

    by_topic: Mapping[str, Numbers]

    def of(self, digest: Digest) -> Numbers:
        """Of each partition of a digest."""
        found = np.full(len(digest), GONE, np.int64)
        for code, topic_id in enumerate(digest.topic_ids):
            starts = self.by_topic.get(topic_id)
            if starts is not None and len(starts):
                here = np.flatnonzero(digest.topics == code)
                index = digest.partitions[here]
                known = starts[np.minimum(index, len(starts) - 1)]
                found[here] = np.where(index < len(starts), known, GONE)
        return found


# --- asked of a piece -----------------------------------------------------------------------------


class Question(NamedTuple):
    """Rows of one piece's digest that are to be looked at, and where each partition begins."""

    rows: Numbers
    starts: Numbers


class Live(NamedTuple):
    """What is alive of each of them."""

    counts: Numbers
    byte_sums: Numbers
    max_timestamps: Numbers


class Limits(NamedTuple):
    """What the planner is to be asked of the rows of a question, once all before them is gone."""

    question: Question
    log_starts: Numbers
    total_bytes: Numbers
    retention_ms: Numbers
    retention_bytes: Numbers
    now_ms: int


class Crossed(NamedTuple):
    """What of each of them goes."""

    log_starts: Numbers
    reasons: Numbers
    runs: Numbers
    byte_sums: Numbers


def live_of(digest: Digest, rows: Rows, asked: Question) -> Live:
    """What ends at or above the log starts, added up."""
    counts, runs = _live_runs(digest, rows, asked)
    code = np.repeat(np.arange(len(counts)), counts)
    youngest = np.full(len(counts), np.iinfo(np.int64).min, np.int64)
    np.maximum.at(youngest, code, runs.timestamps)
    sums = np.zeros(len(counts), np.int64)
    np.add.at(sums, code, runs.byte_sizes)
    return Live(counts, sums, youngest)


def crossed_in(digest: Digest, rows: Rows, asked: Limits) -> Crossed:
    """Which runs go, of those that end at or above the log starts."""
    counts, runs = _live_runs(digest, rows, asked.question)
    plan = plan_retention(
        runs,
        np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))),
        log_start_offsets=asked.log_starts,
        total_bytes=asked.total_bytes,
        retention_ms=asked.retention_ms,
        retention_bytes=asked.retention_bytes,
        now_ms=asked.now_ms,
    )
    return Crossed(plan.log_start_offsets, plan.reasons, plan.removed_runs, plan.removed_bytes)


def _live_runs(digest: Digest, rows: Rows, asked: Question) -> tuple[Numbers, Runs]:
    """How many of each are alive, and all those runs."""
    ends = np.cumsum(digest.run_counts)
    counts = digest.run_counts[asked.rows]
    begins = ends[asked.rows] - counts
    before = np.cumsum(counts) - counts
    place = np.arange(int(counts.sum())) + np.repeat(begins - before, counts)
    alive = rows.last_offsets[place] >= np.repeat(asked.starts, counts)
    code = np.repeat(np.arange(len(counts)), counts)[alive]
    place = place[alive]
    columns = (column[place] for column in (rows.last_offsets, rows.timestamps, rows.byte_sizes))
    return np.bincount(code, minlength=len(counts)), Runs(
        *(column.astype(np.int64) for column in columns)
    )


# --- worked out of the answers --------------------------------------------------------------------


@dataclass(slots=True)
class _Entries:
    """One row for each partition of each piece that has something alive: by partition, by piece."""

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
        planner.begun({piece: live_of(...) for piece, question in planner.beginnings()})
        rows = planner.plan(0, {piece: crossed_in(...) for piece, limits in planner.limits(now)})

    Topics that the cluster log does not know are left alone: they are being deleted, or are newer
    than what was read of it.
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
        self._entries = _gathered(digests, self._places, self.starts)
        of_topics = self.partitions.topics
        self._old = np.array(
            [of_topics[t].partitions[i].log_start for t, i in self._places], np.int64
        )
        keep = [topics[topic_id] for topic_id, _ in self._places]
        self._keep_ms = np.array([one.retention_ms for one in keep], np.int64)
        self._keep_bytes = np.array([one.retention_bytes for one in keep], np.int64)
        self._asked: dict[int, Numbers] = {}  # by piece: partitions
        self._bounds = np.searchsorted(self._entries.partition, np.arange(len(self._places) + 1))

    def beginnings(self) -> Iterator[tuple[int, Question]]:
        """By piece, what to ask `live_of` because log starts lie in it."""
        yield from self._questions(np.flatnonzero(self._entries.partly))

    def begun(self, answers: Mapping[int, Live]) -> None:
        """The answers, by piece."""
        entries = self._entries
        for piece, live in answers.items():
            at = np.flatnonzero(entries.partly & (entries.piece == piece))
            entries.counts[at] = live.counts
            entries.byte_sums[at] = live.byte_sums
            entries.max_timestamps[at] = live.max_timestamps

    def limits(self, now_ms: int) -> Iterator[tuple[int, Limits]]:
        """By piece, what to ask `crossed_in` because limits are crossed in it."""
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
        asked = np.flatnonzero((crossed < bounds[1:]) & limited)
        self._asked = {}
        for piece, question in self._questions(crossed[asked]):
            here = self._asked[piece] = asked[entries.piece[crossed[asked]] == piece]
            by_size = whole.reasons[here] == RETENTION_BYTES
            yield (
                piece,
                Limits(
                    question,
                    whole.log_start_offsets[here],
                    self._bytes_before[here] - whole.removed_bytes[here],
                    # time's limit was crossed before: a young run stands in front of these
                    np.where(by_size, UNLIMITED, self._keep_ms[here]),
                    self._keep_bytes[here],
                    now_ms,
                ),
            )

    def plan(self, coordinator: int, answers: Mapping[int, Crossed]) -> list[PlanRow]:
        """What retention removes, by topic id and partition. The answers by piece."""
        entries, whole = self._entries, self._whole
        log_starts, reasons = whole.log_start_offsets.copy(), whole.reasons.copy()
        gone_bytes = whole.removed_bytes.copy()
        gone_runs = _sums(entries.counts, self._bounds, whole.removed_runs)
        for piece, inside in answers.items():
            asked, some = self._asked[piece], inside.reasons != NOTHING
            log_starts[asked] = inside.log_starts
            reasons[asked[some]] = inside.reasons[some]
            gone_runs[asked] += inside.runs
            gone_bytes[asked] += inside.byte_sums
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

    def _questions(self, which: Numbers) -> Iterator[tuple[int, Question]]:
        """Of some entries, which rise; in each piece in the order of the entries."""
        entries = self._entries
        for piece in np.unique(entries.piece[which]).tolist():
            here = which[entries.piece[which] == piece]
            yield piece, Question(entries.row[here], self._old[entries.partition[here]])


def _gathered(
    digests: Sequence[Digest], places: Sequence[tuple[str, int]], starts: Starts
) -> _Entries:
    """What is alive of these partitions, as far as digests know."""
    numbers = _numbered(places)
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


def _numbered(places: Sequence[tuple[str, int]]) -> Starts:
    """Each partition's number, found as log starts are."""
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
    """Of each partition: of all its entries, or of so many of the first."""
    summed = np.concatenate((np.zeros(1, np.int64), np.cumsum(values)))
    ends = bounds[1:] if counts is None else bounds[:-1] + counts
    found: Numbers = summed[ends] - summed[bounds[:-1]]
    return found


def _starts(partitions: Partitions) -> Starts:
    found = {}
    for topic_id, topic in partitions.topics.items():
        starts = np.full(max(topic.partitions, default=-1) + 1, GONE, np.int64)
        for index, one in topic.partitions.items():
            starts[index] = one.log_start
        found[topic_id] = starts
    return Starts(found)


def moved(starts: Starts, rows: Sequence[PlanRow]) -> Starts:
    """Log starts as they are once these rows are applied."""
    found = {topic_id: one.copy() for topic_id, one in starts.by_topic.items()}
    for row in rows:
        found[row.topic_id][row.partition] = row.new_log_start
    return Starts(found)
