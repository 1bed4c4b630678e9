"""The state of a batch coordinator at one offset: runs, objects, producers, transactions.

    state = state_at(LogFiles(directory), 120_000)
    state.runs.num_rows
    yesterday = state_at(LogFiles(directory), timestamp_ms=1_700_000_000_000)

The same state that a coordinator has in its database, found another way: not record by record, but
by columns. The accepted batches of all commits stand in one table; batches that touch are joined to
runs; and a run is live if its last offset is at or above its partition's log start. That is the
whole computation, because log starts only rise and offsets are never given twice.

Three traps. A partition is its topic's id and its index, also where it was released and created
again: it had no data then. Used bytes are not read but summed from live runs, so that they can be
compared with the coordinator's. And a time stands for the first later record: leaders' clocks
differ, so a record after that one may be older again, and does not count.

Source: docs/design/batch-coordinator.md#runs, docs/design/batch-coordinator.md#deletion,
docs/design/pipeline.md#one-input; KIP-630 (a checkpoint stands for the log before it).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pyarrow as pa

from records.compression import Buffer
from records.uuids import decode_uuid
from spark_jobs.readers.log_files import LostRangeError
from spark_jobs.readers.log_position import LogPosition
from spark_jobs.readers.logs import Log, LogsError, Span
from spark_jobs.tables import producers
from spark_jobs.tables.commits import CommitColumns
from spark_jobs.tables.coordinator_log import CHANGE_KEYS, STATE_KEYS, CoordinatorLog, fold
from spark_jobs.tables.markers import MARKERS_KEY, MarkerColumns
from spark_jobs.tables.producer_transactions import (
    ABORTED_SCHEMA,
    TRANSACTIONS_SCHEMA,
    aborted_rows,
    aborted_table,
    checkpoint_aborted,
    checkpoint_transactions,
    ends,
    first_batches,
    transaction_table,
)
from spark_jobs.tables.producers import PRODUCERS_SCHEMA
from spark_jobs.tables.runs import (
    NO_OBJECT,
    RUN_COLUMNS,
    RUNS_SCHEMA,
    Mask,
    Numbers,
    batches,
    is_accepted,
    is_covered,
    join_runs,
    marker_runs,
    numbers_of,
    run_table,
    topics_of_objects,
    transactions_of,
)

_Object = tuple[int, int, int, int, tuple[str, ...]]
"""Size, broker, commit time, format; ids of the topics with batches in it."""

_ORPHAN: Final[_Object] = (0, -1, -1, 0, ())

TOPICS_SCHEMA: Final = pa.schema(
    [
        pa.field("topic_id", pa.string(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),  # empty: deleted before it was known here
        pa.field("partition_count", pa.int32(), nullable=False),  # that are here
        pa.field("deleted_at_ms", pa.int64()),  # null while it lives
    ]
)
PARTITIONS_SCHEMA: Final = pa.schema(
    [
        pa.field("topic_id", pa.string(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("log_start_offset", pa.int64(), nullable=False),  # inclusive
        pa.field("high_watermark", pa.int64(), nullable=False),  # exclusive
        pa.field("deleted_at_ms", pa.int64()),  # null while the topic lives
        pa.field("log_id", pa.int64(), nullable=False),  # what the coordinator calls it inside
    ]
)
OBJECTS_SCHEMA: Final = pa.schema(
    [
        pa.field("object_id", pa.int64(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("used_bytes", pa.int64(), nullable=False),
        pa.field("broker_id", pa.int32(), nullable=False),
        pa.field("committed_at_ms", pa.int64(), nullable=False),
        pa.field("marked_at_ms", pa.int64()),  # null: not marked
        pa.field("object_format", pa.int8(), nullable=False),
        pa.field("topic_ids", pa.list_(pa.string()), nullable=False),  # that had batches in it
    ]
)

__all__ = [
    "ABORTED_SCHEMA", "OBJECTS_SCHEMA", "PARTITIONS_SCHEMA", "PRODUCERS_SCHEMA", "RUNS_SCHEMA",
    "TOPICS_SCHEMA", "TRANSACTIONS_SCHEMA", "LogState", "StateGoneError", "state_at", "state_of",
]  # fmt: skip


class StateGoneError(LogsError):
    """The state cannot be computed: the log's records for it were deleted."""

    def __init__(self, requested: str, earliest: int) -> None:
        super().__init__(
            f"there is no state at {requested} any more: the earliest is at offset {earliest}"
        )
        self.earliest = earliest


@dataclass(frozen=True, slots=True)
class LogState:
    """A state as of `offset`, exclusive. Tables are sorted by id as text; runs by offset."""

    offset: int
    topics: pa.Table
    partitions: pa.Table
    run_bounds: Numbers  # partition i has the runs [bounds[i], bounds[i + 1])
    runs: pa.Table
    objects: pa.Table
    producers: pa.Table
    transactions: pa.Table
    aborted: pa.Table

    def last_stable_offsets(self) -> Numbers:
        """Return the last stable offset of each partition, in the order of the partitions."""
        starts = self.partitions.column("log_start_offset").to_numpy()
        stable: Numbers = self.partitions.column("high_watermark").to_numpy().copy()
        places = zip(*self.partitions.select(["topic_id", "partition"]).to_pydict().values(),
                     strict=True)  # fmt: skip
        number = {place: i for i, place in enumerate(places)}
        columns = self.transactions.select(["topic_id", "partition", "first_offset"])
        for topic_id, index, first in zip(*columns.to_pydict().values(), strict=True):
            if first is not None:
                i = number[topic_id, index]
                stable[i] = max(starts[i], min(stable[i], first))
        return stable


def state_at(log: Log, offset: int | None = None, *, timestamp_ms: int | None = None) -> LogState:
    """Compute a coordinator's state at an offset, at a time, or at the end of the log.

    Args:    offset: exclusive; at or below the log's end.
             timestamp_ms: ms since 1970, inclusive: what the first later record found.
    Raises:  StateGoneError naming the first offset that there can be a state of; LogsError for an
             offset that is not committed yet; LostRangeError; as `Span.values`.
    """
    end, spans = span_of_state(log, offset)
    return state_of(spans, end, until_ms=timestamp_ms)


def span_of_state(log: Log, offset: int | None) -> tuple[int, Sequence[Span]]:
    """Return the offset of the requested state, and the spans of the log to read for it.

    Raises:  as `state_at`.
    """
    end = log.end_offset()
    if offset is not None and not 0 <= offset <= end:
        raise LogsError(f"there is no offset {offset}: the committed part ends at {end}")
    try:
        return (end, log.spans(end)) if offset is None else (offset, log.spans(offset))
    except LostRangeError as error:
        if offset is None or (earliest := _earliest(log)) is None or earliest <= offset:
            raise
        raise StateGoneError(f"offset {offset}", earliest) from error


def _earliest(log: Log) -> int | None:
    """Return the lowest offset at which the state can be computed; None if records were lost."""
    try:
        first = next(iter(log.spans(log.end_offset())), None)
    except LostRangeError:
        return None
    return first.end_offset if first is not None and first.is_checkpoint else 0


def state_of(spans: Iterable[Span], offset: int, *, until_ms: int | None = None) -> LogState:
    """Compute a coordinator's state at the end of consecutive spans of its log.

    Args:    offset: where they end.
             until_ms: stop at the first record that is later; the state is then as of that one.
    Raises:  StateGoneError if they begin with a checkpoint that is later; as `Span.values`.
    """
    log, appended = CoordinatorLog(), _Appended()
    for span in spans:
        later = _add(span, log, appended, CHANGE_KEYS | STATE_KEYS, until_ms)
        if later is not None:
            if later.from_checkpoint:
                raise StateGoneError(f"time {until_ms}", later.offset + 1)
            return _Tables(log, appended).state(later.offset)
    return _Tables(log, appended).state(offset)


def state_of_piece(span: Span, changes: CoordinatorLog, *, is_first: bool) -> LogState:
    """Compute the part of the log's state that the records of one span determine.

    Its runs and objects are those of the whole log that stand in this span. High watermarks,
    producers and transactions are as this span alone knows them; orphans that a listing showed are
    left out.

    Args:    changes: all changes of the whole log; not modified.
             is_first: this piece has the runs and objects that rewriters wrote, too.
    """
    log = replace(changes, found={}, runs=[], objects=[], producers=[], aborted=[])
    if not is_first:
        log.rewritten, log.rewritten_objects = {}, {}
    appended = _Appended()
    _add(span, log, appended, STATE_KEYS)
    return _Tables(log, appended).state(span.end_offset)


def state_of_changes(changes: CoordinatorLog, offset: int) -> LogState:
    """Build a coordinator's state from collected changes, without batches and their objects."""
    return _Tables(changes, _Appended()).state(offset)


@dataclass(frozen=True, slots=True)
class _Appended:
    """Everything that took offsets of partitions: the batches of commits, and markers."""

    commits: CommitColumns = field(default_factory=CommitColumns)
    markers: MarkerColumns = field(default_factory=MarkerColumns)


def _add(
    span: Span,
    log: CoordinatorLog,
    appended: _Appended,
    keys: frozenset[int],
    until_ms: int | None = None,
) -> LogPosition | None:
    """Apply a span's records of these types to `log`, and collect its commits and markers.

    Raises:  as `fold`.
    """

    def on_commit(position: LogPosition, value: Buffer, _version: int, _body: int) -> None:
        appended.commits.add(position, value)

    handlers = log.handlers(keys) | {MARKERS_KEY: appended.markers.add}
    return fold(span.values(), handlers, on_commit, until_ms=until_ms)


def _written(markers: pa.RecordBatch, partition: Numbers) -> tuple[Numbers, Numbers]:
    """Return the partition and the run of each marker that has an offset."""
    runs = marker_runs(markers)
    there = (partition >= 0) & (runs[0] >= 0)
    return partition[there], runs[:, there]


class _Tables:
    """Makes tables of a log that was folded, and of its commits and markers."""

    def __init__(self, log: CoordinatorLog, appended: _Appended) -> None:
        self._appended = appended
        self._log = log
        self._partitions = log.partitions
        self._marks = log.marks()
        self._objects: dict[int, _Object] = {}
        for part in log.objects:
            ids, *columns, _ = part.columns.tolist()
            rows = zip(*columns, part.topics(), strict=True)
            self._objects.update(zip(ids, rows, strict=True))

    def state(self, offset: int) -> LogState:
        places = self._partitions.in_order()
        number = {place: i for i, place in enumerate(places)}
        logs = [self._partitions.topics[topic_id].partitions[index] for topic_id, index in places]
        commits, markers = self._appended.commits.take(), self._appended.markers.take()
        numbers, accepted = numbers_of(commits, number), is_accepted(commits)
        marked = numbers_of(markers, number)
        self._add_objects(commits, accepted)
        there = accepted & (numbers >= 0)
        joined = join_runs(
            numbers[there], batches(commits)[:, there], transactions_of(commits)[:, there]
        )
        partition, runs = self._all_runs(joined, _written(markers, marked), number)
        partition, runs = self._replace(partition, runs, number)
        watermarks = np.array([log.high_watermark for log in logs], np.int64)
        np.maximum.at(watermarks, partition, runs[1] + 1)
        log_starts = np.array([log.log_start for log in logs], np.int64)
        live = runs[1] >= log_starts[partition]
        partition, runs = partition[live], runs[:, live]
        batches_of_producers = producers.appended_batches(commits, numbers, there)
        first = first_batches(commits, numbers, there)
        return LogState(
            offset,
            self._topic_table(),
            self._partition_table(places, log_starts, watermarks),
            np.searchsorted(partition, np.arange(len(places) + 1)),
            run_table(places, partition, runs),
            self._object_table(runs),
            self._producer_table(
                places, number, batches_of_producers, producers.marker_rows(markers, marked)
            ),
            self._transaction_table(places, number, first, ends(markers, marked)),
            self._aborted_table(places, number, aborted_rows(markers, marked), log_starts),
        )

    def _replace(
        self, partition: Numbers, runs: Numbers, number: dict[tuple[str, int], int]
    ) -> tuple[Numbers, Numbers]:
        """Replace runs of batches in rewritten offset ranges by the runs of rewritten objects."""
        ranges = {number[place]: pairs for place, pairs in self._log.replaced.items()
                  if place in number}  # fmt: skip
        if not ranges:
            return partition, runs
        kept = ~is_covered(partition, runs[0], ranges)
        new = [
            (number[place], *row)
            for place, rows in self._log.rewritten.items() if place in number
            for row in rows
        ]  # fmt: skip
        added = np.array(new, np.int64).reshape(len(new), len(RUN_COLUMNS) + 1).T
        partition = np.concatenate((partition[kept], added[0]))
        runs = np.concatenate((runs[:, kept], added[1:]), axis=1)
        order = np.lexsort((runs[0], partition))
        return partition[order], runs[:, order]

    def _add_objects(self, commits: pa.RecordBatch, accepted: Mask) -> None:
        """Add all committed objects and all orphans, and drop the removed objects."""
        ids = commits.column("object_id").to_numpy()
        _, first = np.unique(ids, return_index=True)
        names = ("size_bytes", "broker_id", "committed_at_ms", "object_format")
        columns = [commits.column(name).to_numpy()[first].tolist() for name in names]
        of_topics = topics_of_objects(ids[accepted], commits.column("topic_id").filter(accepted))
        objects = ids[first].tolist()
        topics = [of_topics.get(object_id, ()) for object_id in objects]
        self._objects.update(zip(objects, zip(*columns, topics, strict=True), strict=True))
        for object_id, filled in self._log.rewritten_objects.items():
            size, broker, at_ms, kind, topics_before = self._objects.get(
                object_id,
                (filled.size_bytes, filled.broker_id, filled.committed_at_ms,
                 filled.object_format, ()),
            )  # fmt: skip
            of_topics_now = sorted(
                {*topics_before, *filled.topic_ids}, key=lambda name: decode_uuid(name).bytes
            )
            self._objects[object_id] = size, broker, at_ms, kind, tuple(of_topics_now)
        for object_id in self._log.removed:
            self._objects.pop(object_id, None)
        for object_id, marked_at_ms in self._log.found.items():
            if object_id not in self._objects:  # what is known stays as it is
                self._objects[object_id] = _ORPHAN
                self._marks[object_id] = marked_at_ms

    def _all_runs(
        self,
        joined: tuple[Numbers, Numbers],
        markers: tuple[Numbers, Numbers],
        number: dict[tuple[str, int], int],
    ) -> tuple[Numbers, Numbers]:
        """Return as columns a checkpoint's runs, and the runs and markers written after it.

        They are sorted by partition and offset.
        """
        of_log = self._numbers_by_log(number)
        log_ids, rows = self._log.run_columns()
        of_run = np.array([of_log.get(log_id, -1) for log_id in log_ids.tolist()], np.int64)
        rows = self._with_times(rows[:, of_run >= 0])
        partition = np.concatenate((of_run[of_run >= 0], joined[0], markers[0]))
        rows = np.concatenate((rows, joined[1], markers[1]), axis=1)
        order = np.lexsort((rows[0], partition))
        return partition[order], rows[:, order]

    def _numbers_by_log(self, number: dict[tuple[str, int], int]) -> dict[int, int]:
        """Return the partition number of each log id, or -1 if the partition was removed."""
        return {log_id: number.get(place, -1) for log_id, place in self._partitions.places.items()}

    def _with_times(self, rows: Numbers) -> Numbers:
        """Set the missing append times of a checkpoint's runs to the commit times of their objects.

        A removed object has only dead runs left, which any time suits.
        """
        objects = (self._objects.get(object_id, _ORPHAN) for object_id in rows[2].tolist())
        committed = np.array([stored[2] for stored in objects], np.int64)
        rows[6] = np.where(rows[6] < 0, committed, rows[6])
        return rows

    def _producer_table(
        self,
        places: Sequence[tuple[str, int]],
        number: dict[tuple[str, int], int],
        *new: Numbers,
    ) -> pa.Table:
        of_log = self._numbers_by_log(number)
        old = [
            producers.checkpoint_batches(record, of_log[record.log_id])
            for record in self._log.producers
        ]
        rows = self._remembered(np.concatenate([*old, *new], axis=1), of_log)
        return producers.producer_table(places, producers.last_batches(rows))

    def _remembered(self, rows: Numbers, of_log: dict[int, int]) -> Numbers:
        """Drop the rows of removed partitions, and those from before their producer expired."""
        forgotten = {
            (of_log.get(log, -1), producer): offset
            for (log, producer), offset in self._log.forgotten.items()
        }
        return producers.drop_expired(rows[:, rows[producers.PARTITION] >= 0], forgotten)

    def _transaction_table(
        self,
        places: Sequence[tuple[str, int]],
        number: dict[tuple[str, int], int],
        first: Numbers,
        ended: Numbers,
    ) -> pa.Table:
        of_log = self._numbers_by_log(number)
        old = [
            checkpoint_transactions(record, of_log[record.log_id]) for record in self._log.producers
        ]
        parts = zip(*old, (first, ended), strict=True)
        both = (self._remembered(np.concatenate(part, axis=1), of_log) for part in parts)
        return transaction_table(places, *both)

    def _aborted_table(
        self,
        places: Sequence[tuple[str, int]],
        number: dict[tuple[str, int], int],
        new: Numbers,
        log_starts: Numbers,
    ) -> pa.Table:
        of_log = self._numbers_by_log(number)
        old = [
            checkpoint_aborted(record, of_log[record.log_id])
            for record in self._log.aborted
            if of_log[record.log_id] >= 0
        ]
        rows = np.concatenate([*old, new], axis=1)
        return aborted_table(places, rows, log_starts, self._log.ended_aborted)

    def _topic_table(self) -> pa.Table:
        topics = sorted(self._partitions.topics.items())
        deleted = [None if topic.deleted_at_ms < 0 else topic.deleted_at_ms for _, topic in topics]
        return pa.table(
            [
                pa.array([topic_id for topic_id, _ in topics], pa.string()),
                pa.array([topic.name for _, topic in topics], pa.string()),
                pa.array([len(topic.partitions) for _, topic in topics], pa.int32()),
                pa.array(deleted, pa.int64()),
            ],
            schema=TOPICS_SCHEMA,
        )

    def _partition_table(
        self, places: Sequence[tuple[str, int]], log_starts: Numbers, watermarks: Numbers
    ) -> pa.Table:
        topics = [self._partitions.topics[topic_id] for topic_id, _ in places]
        deleted = [None if topic.deleted_at_ms < 0 else topic.deleted_at_ms for topic in topics]
        return pa.table(
            [
                [topic_id for topic_id, _ in places],
                [topic.name for topic in topics],
                pa.array([index for _, index in places], pa.int32()),
                log_starts,
                watermarks,
                pa.array(deleted, pa.int64()),
                [
                    topic.partitions[index].log_id
                    for topic, (_, index) in zip(topics, places, strict=True)
                ],
            ],
            schema=PARTITIONS_SCHEMA,
        )

    def _object_table(self, runs: Numbers) -> pa.Table:
        ids = np.array(sorted(self._objects), np.int64)
        used = np.zeros(len(ids), np.int64)
        runs = runs[:, runs[2] != NO_OBJECT]
        rows = np.searchsorted(ids, runs[2])
        np.add.at(used, rows, runs[4])
        facts = [self._objects[object_id] for object_id in ids.tolist()]
        return pa.table(
            [
                ids,
                pa.array([fact[0] for fact in facts], pa.int64()),
                used,
                pa.array([fact[1] for fact in facts], pa.int32()),
                pa.array([fact[2] for fact in facts], pa.int64()),
                pa.array([self._marks.get(object_id) for object_id in ids.tolist()], pa.int64()),
                pa.array([fact[3] for fact in facts], pa.int8()),
                pa.array([list(fact[4]) for fact in facts], pa.list_(pa.string())),
            ],
            schema=OBJECTS_SCHEMA,
        )
