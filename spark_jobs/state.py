"""What a batch coordinator's log says at one offset: topics, partitions, live runs, objects.

    state = state_at(LogFiles(directory), 120_000)
    state.runs.num_rows

The same state that a coordinator has in its database, found another way: not record by record, but
by columns. The accepted batches of all commits stand in one table; batches that touch are joined to
runs; and a run is live if its last offset is at or above its partition's log start. That is the
whole computation, because log starts only rise and offsets are never given twice.

Two surprises. A partition is its topic's id and its index, also where it was let go and came back:
it had no data then. And used bytes are not read anywhere, they are the sum of live runs: whoever
doubts that a coordinator counts well compares.

Source: DESIGN §7 (runs, used bytes), §10; KIP-630 (a checkpoint stands for the log before it).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from records.compression import Buffer
from records.diskless import (
    DisklessPartitionsRecord,
    DisklessPartitionsReleasedRecord,
    DisklessPartitionsRemovedRecord,
    DisklessTombstoneExpiredRecord,
    DisklessTopicState,
    DisklessTopicTombstoneRecord,
    LogStartOffsetsRecord,
    ObjectsMarkedRecord,
    ObjectsRemovedRecord,
    ObjectsState,
    RunsState,
)
from records.frame import METADATA_RECORDS, decode_record, read_frame
from records.uuids import encode_uuid
from spark_jobs.commits import CommitColumns
from spark_jobs.logs import Log, Span
from spark_jobs.tables import OBJECT_COMMIT_KEY

Numbers = npt.NDArray[np.int64]

RUN_COLUMNS: Final = (
    "base_offset", "last_offset", "object_id", "byte_offset", "byte_size", "max_timestamp",
    "appended_at_ms", "timestamp_type",
)  # fmt: skip

RUNS_SCHEMA: Final = pa.schema(
    [
        pa.field("topic_id", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        *(pa.field(name, pa.int64(), nullable=False) for name in RUN_COLUMNS),
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
    ]
)


@dataclass(frozen=True, slots=True)
class LogState:
    """As of `offset`, exclusive. Partitions, runs and objects by rising id, runs by offset."""

    offset: int
    partitions: pa.Table
    run_bounds: Numbers  # partition i has the runs [bounds[i], bounds[i + 1])
    runs: pa.Table
    objects: pa.Table


def state_at(log: Log, offset: int) -> LogState:
    """The state that everything below `offset` gives.

    Args:    offset: exclusive; at or below the high watermark.
    Raises:  LostRangeError naming the first offset that there can be a state of; as `read_values`.
    """
    return state_of(log.spans(offset), offset)


def state_of(spans: Iterable[Span], offset: int) -> LogState:
    """The state that these spans, which follow each other, give."""
    gathered = _Gathered()
    for span in spans:
        for place, value in span.values():
            key = read_frame(value)[0]
            if key == OBJECT_COMMIT_KEY:
                gathered.commits.add(place, value)
            elif key in _OF_STATE:
                gathered.take(value)
    return gathered.state(offset)


@dataclass(slots=True)
class _Partition:
    """Numbers to come: high watermarks also rise by commits, which are looked at together."""

    log_start: int = 0
    high_watermark: int = 0


@dataclass(slots=True)
class _Topic:
    name: str
    deleted_at_ms: int = -1
    partitions: dict[int, _Partition] = field(default_factory=dict)


class _Gathered:
    """What was read so far: commits as columns, the rest applied one by one."""

    def __init__(self) -> None:
        self.commits = CommitColumns()
        self._topics: dict[str, _Topic] = {}
        self._log_ids: dict[int, tuple[str, int]] = {}
        self._runs: list[tuple[str, int, Numbers]] = []  # of checkpoints, columns by rows
        self._objects: dict[int, tuple[int, int, int]] = {}  # size, broker, committed
        self._marked: dict[int, int] = {}
        self._removed: set[int] = set()

    def take(self, value: Buffer) -> None:
        """Apply a record that is no commit."""
        record: Any = decode_record(value)
        _OF_STATE[record.schema().key](self, record)

    # --- one by one ---------------------------------------------------------------------------

    def topic_state(self, record: DisklessTopicState) -> None:
        topic_id = encode_uuid(record.topic_id)
        topic = self._topics[topic_id] = _Topic(record.topic_name, record.deleted_at_ms)
        columns = (record.log_ids, record.log_start_offsets, record.high_watermarks)
        for index, (log_id, *log) in enumerate(zip(*columns, strict=True)):
            if log_id >= 0:
                topic.partitions[record.first_partition + index] = _Partition(*log)
                self._log_ids[log_id] = topic_id, record.first_partition + index

    def runs_state(self, record: RunsState) -> None:
        topic_id, partition = self._log_ids[record.log_id]
        last = np.array(record.last_offsets, np.int64)
        rows = np.empty((len(RUN_COLUMNS), len(last)), np.int64)
        rows[0] = np.concatenate(([record.base_offset], last[:-1] + 1))
        rows[1] = last
        rows[2:6] = (
            record.object_ids, record.byte_offsets, record.byte_sizes, record.max_timestamps,
        )  # fmt: skip
        rows[6] = -1  # its object's, once all objects are known
        rows[7] = record.timestamp_types
        self._runs.append((topic_id, partition, rows))

    def objects_state(self, record: ObjectsState) -> None:
        columns = (record.sizes_bytes, record.broker_ids, record.committed_at_ms)
        self._objects.update(zip(record.object_ids, zip(*columns, strict=True), strict=True))
        for object_id, marked_at_ms in zip(record.object_ids, record.marked_at_ms, strict=True):
            if marked_at_ms >= 0:
                self._marked[object_id] = marked_at_ms

    def partitions(self, record: DisklessPartitionsRecord) -> None:
        topic = self._topics.setdefault(encode_uuid(record.topic_id), _Topic(record.topic_name))
        for index in range(record.first_partition, record.first_partition + record.partition_count):
            topic.partitions[index] = _Partition()

    def tombstone(self, record: DisklessTopicTombstoneRecord) -> None:
        topic = self._topics.setdefault(encode_uuid(record.topic_id), _Topic(""))
        topic.deleted_at_ms = record.deleted_at_ms

    def partitions_gone(
        self, record: DisklessPartitionsRemovedRecord | DisklessPartitionsReleasedRecord
    ) -> None:
        topic = self._topics[encode_uuid(record.topic_id)]
        for index in record.partitions:
            topic.partitions.pop(index, None)

    def tombstone_expired(self, record: DisklessTombstoneExpiredRecord) -> None:
        self._topics.pop(encode_uuid(record.topic_id), None)

    def log_starts(self, record: LogStartOffsetsRecord) -> None:
        topics = [self._topics.get(encode_uuid(topic_id)) for topic_id in record.topic_ids]
        columns = (record.topic_indexes, record.partitions, record.log_start_offsets)
        for topic_index, index, log_start in zip(*columns, strict=True):
            topic = topics[topic_index]
            partition = topic.partitions.get(index) if topic is not None else None
            if partition is not None:
                partition.log_start = max(partition.log_start, log_start)

    def marked(self, record: ObjectsMarkedRecord) -> None:
        for object_id in record.object_ids:
            self._marked.setdefault(object_id, record.marked_at_ms)

    def removed(self, record: ObjectsRemovedRecord) -> None:
        self._removed.update(record.object_ids)

    # --- all together -------------------------------------------------------------------------

    def state(self, offset: int) -> LogState:
        places = [
            (topic_id, index)
            for topic_id in sorted(self._topics)
            for index in sorted(self._topics[topic_id].partitions)
        ]
        number = {place: i for i, place in enumerate(places)}
        logs = [self._topics[topic_id].partitions[index] for topic_id, index in places]
        commits = self.commits.take()
        self._see_objects(commits)
        partition, runs = _joined(*self._all_runs(commits, number))
        watermarks = np.array([log.high_watermark for log in logs], np.int64)
        np.maximum.at(watermarks, partition, runs[1] + 1)
        log_starts = np.array([log.log_start for log in logs], np.int64)
        live = runs[1] >= log_starts[partition]
        partition, runs = partition[live], runs[:, live]
        return LogState(
            offset,
            self._partition_table(places, log_starts, watermarks),
            np.searchsorted(partition, np.arange(len(places) + 1)),
            _run_table(places, partition, runs),
            self._object_table(runs),
        )

    def _see_objects(self, commits: pa.RecordBatch) -> None:
        """Every object that was committed, once."""
        ids = commits.column("object_id").to_numpy()
        _, first = np.unique(ids, return_index=True)
        names = ("size_bytes", "broker_id", "committed_at_ms")
        columns = [commits.column(name).to_numpy()[first].tolist() for name in names]
        self._objects.update(zip(ids[first].tolist(), zip(*columns, strict=True), strict=True))
        for object_id in self._removed:
            self._objects.pop(object_id, None)

    def _all_runs(
        self, commits: pa.RecordBatch, number: dict[tuple[str, int], int]
    ) -> tuple[Numbers, Numbers]:
        """Runs of the checkpoint, then accepted batches: partition numbers, and columns."""
        known = [
            (np.full(rows.shape[1], number[topic_id, index]), self._with_times(rows))
            for topic_id, index, rows in self._runs
            if (topic_id, index) in number
        ]
        new = _accepted(commits, number)
        return (
            np.concatenate([one for one, _ in known] + [new[0]]),
            np.concatenate([rows for _, rows in known] + [new[1]], axis=1),
        )

    def _with_times(self, rows: Numbers) -> Numbers:
        times = [self._objects[object_id][2] for object_id in rows[2].tolist()]
        rows[6] = times
        return rows

    def _partition_table(
        self, places: Sequence[tuple[str, int]], log_starts: Numbers, watermarks: Numbers
    ) -> pa.Table:
        topics = [self._topics[topic_id] for topic_id, _ in places]
        deleted = [None if topic.deleted_at_ms < 0 else topic.deleted_at_ms for topic in topics]
        return pa.table(
            [
                [topic_id for topic_id, _ in places],
                [topic.name for topic in topics],
                pa.array([index for _, index in places], pa.int32()),
                log_starts,
                watermarks,
                pa.array(deleted, pa.int64()),
            ],
            schema=PARTITIONS_SCHEMA,
        )

    def _object_table(self, runs: Numbers) -> pa.Table:
        ids = np.array(sorted(self._objects), np.int64)
        used = np.zeros(len(ids), np.int64)
        at = np.searchsorted(ids, runs[2])
        np.add.at(used, at, runs[4])
        facts = [self._objects[object_id] for object_id in ids.tolist()]
        return pa.table(
            [
                ids,
                pa.array([size for size, _, _ in facts], pa.int64()),
                used,
                pa.array([broker for _, broker, _ in facts], pa.int32()),
                pa.array([committed for _, _, committed in facts], pa.int64()),
                pa.array([self._marked.get(one) for one in ids.tolist()], pa.int64()),
            ],
            schema=OBJECTS_SCHEMA,
        )


def _accepted(
    commits: pa.RecordBatch, number: dict[tuple[str, int], int]
) -> tuple[Numbers, Numbers]:
    """Batches that have offsets of their own, of partitions that there are still."""

    def column(name: str) -> Numbers:
        values: Numbers = commits.column(name).to_numpy().astype(np.int64)
        return values

    topics = commits.column("topic_id").dictionary_encode()
    codes, indexes = topics.indices.to_numpy().astype(np.int64), column("partition")
    pairs, inverse = np.unique(np.stack((codes, indexes)), axis=1, return_inverse=True)
    names = topics.dictionary.to_pylist()
    numbers = np.array(
        [number.get((names[code], index), -1) for code, index in pairs.T.tolist()], np.int64
    )
    partition = numbers[inverse.reshape(-1)] if len(numbers) else np.zeros(0, np.int64)
    kept = (partition >= 0) & (column("error_code") == 0) & (column("duplicate") == 0)
    base = column("base_offset")
    rows = np.stack(
        (
            base, base + column("record_count") - 1, column("object_id"), column("byte_offset"),
            column("byte_size"), column("max_timestamp"), column("committed_at_ms"),
            column("timestamp_type"),
        )
    )  # fmt: skip
    return partition[kept], rows[:, kept]


def _joined(partition: Numbers, rows: Numbers) -> tuple[Numbers, Numbers]:
    """Batches that lie back to back in one object as runs, by partition and offset."""
    order = np.lexsort((rows[0], partition))
    partition, rows = partition[order], rows[:, order]
    if not len(partition):
        return partition, rows
    before = slice(None, -1), slice(1, None)
    old, new = (rows[:, part] for part in before)
    touches = (
        (partition[1:] == partition[:-1])
        & (new[2] == old[2])
        & (new[3] == old[3] + old[4])
        & (new[7] == old[7])
    )
    first = np.flatnonzero(np.concatenate(([True], ~touches)))
    last = np.append(first[1:], len(partition)) - 1
    joined = rows[:, first].copy()
    joined[1] = rows[1, last]
    joined[4] = np.add.reduceat(rows[4], first)
    joined[5] = np.maximum.reduceat(rows[5], first)
    return partition[first], joined


def _run_table(places: Sequence[tuple[str, int]], partition: Numbers, rows: Numbers) -> pa.Table:
    topics = pa.array([topic_id for topic_id, _ in places], pa.string())
    indexes = pa.array([index for _, index in places], pa.int32())
    numbers = pa.array(partition)
    return pa.table([topics.take(numbers), indexes.take(numbers), *rows], schema=RUNS_SCHEMA)


_APPLY: Final = {
    DisklessTopicState: _Gathered.topic_state,
    RunsState: _Gathered.runs_state,
    ObjectsState: _Gathered.objects_state,
    DisklessPartitionsRecord: _Gathered.partitions,
    DisklessTopicTombstoneRecord: _Gathered.tombstone,
    DisklessPartitionsRemovedRecord: _Gathered.partitions_gone,
    DisklessPartitionsReleasedRecord: _Gathered.partitions_gone,
    DisklessTombstoneExpiredRecord: _Gathered.tombstone_expired,
    LogStartOffsetsRecord: _Gathered.log_starts,
    ObjectsMarkedRecord: _Gathered.marked,
    ObjectsRemovedRecord: _Gathered.removed,
}
_OF_STATE: Final[dict[int, Any]] = {
    key: _APPLY[record] for key, record in METADATA_RECORDS.items() if record in _APPLY and key
}
