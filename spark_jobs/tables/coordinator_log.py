"""The fold of a batch coordinator's log: what every record type means, read once for all jobs.

    log = CoordinatorLog()
    fold(span.values(), log.handlers(CHANGE_KEYS), on_commit=commits.add)

`fold` reads the frame of each record and passes it to the handler of its type; a type without a
handler is not even decoded. So a job names the record types that it needs, and pays for no others.
Commits, which are most of a log, are collected as columns by one of several collectors.

Not one of the other records is written for what is appended, so there are few, and `CoordinatorLog`
applies them one by one. Once all changes are known, pieces of the log can be looked at apart: which
of their batches live, and what became of their objects, no longer depends on any other piece.

The trap is an object that was removed and is there again: an upload that finished late, which a
listing of the store has shown. So what was found is kept apart from what was removed.

The report's first pass counts records in pieces of any order, and the audit has a fold of its own,
so that the two can be compared.

Source: docs/design/batch-coordinator.md#deletion, docs/design/batch-coordinator.md#object-leases;
KIP-630 (a checkpoint stands for the log before it).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from records.compression import Buffer
from records.diskless import (
    AbortedState,
    CoordinatorState,
    LeaseClosedRecord,
    LeaseGrantedRecord,
    LeasesForgottenRecord,
    LeaseState,
    ObjectsMarkedRecord,
    ObjectsRemovedRecord,
    ObjectsState,
    OrphansFoundRecord,
    ProducersExpiredRecord,
    ProducersState,
    RewriteLeaseGrantedRecord,
    RewriteLeaseState,
    RunsReplacedRecord,
    RunsState,
)
from records.frame import METADATA_RECORDS, decode_record, read_frame
from records.schema import MetadataRecord
from records.uuids import encode_uuid
from spark_jobs.readers.log_position import LogPosition
from spark_jobs.readers.logs import LogsError
from spark_jobs.tables.partitions import KEYS as PARTITION_KEYS
from spark_jobs.tables.partitions import Partitions
from spark_jobs.tables.runs import APPENDED, MARKER, NO_MARKER, RUN_COLUMNS
from spark_jobs.tables.schemas import OBJECT_COMMIT_KEY

Numbers = npt.NDArray[np.int64]
Handler = Callable[[LogPosition, Buffer], None]
"""Takes a record's position and its value, with the frame."""
CommitHandler = Callable[[LogPosition, Buffer, int, int], None]
"""Takes a commit's position and value, its version, and where its frame ends."""

_Ranges = list[tuple[int, int]]
"""Object ids, as pairs of the first and the end (exclusive)."""


def _keys(*records: Any) -> frozenset[int]:
    return frozenset(record.schema().key for record in records)


CHANGE_KEYS: Final = PARTITION_KEYS | _keys(
    ProducersExpiredRecord,
    ObjectsMarkedRecord,
    ObjectsRemovedRecord,
    OrphansFoundRecord,
    RunsReplacedRecord,
)
"""Record types that say what was created, trimmed, marked, removed and forgotten."""
OBJECT_KEYS: Final = _keys(
    CoordinatorState, LeaseState, ObjectsState, LeaseGrantedRecord, LeaseClosedRecord,
    LeasesForgottenRecord, ObjectsMarkedRecord, OrphansFoundRecord, ObjectsRemovedRecord,
    RewriteLeaseState, RewriteLeaseGrantedRecord, RunsReplacedRecord,
)  # fmt: skip
"""Record types that say what became of object ids."""
REPLACEMENT_KEYS: Final = _keys(RunsReplacedRecord)
"""Record types that say which runs were replaced."""
RUNS_KEYS: Final = _keys(RunsState, ObjectsState)
"""Record types with a checkpoint's runs and objects."""
STATE_KEYS: Final = RUNS_KEYS | _keys(ProducersState, AbortedState)
"""Record types with a checkpoint's runs, objects, producers and aborted transactions."""

OBJECT_COLUMNS: Final = (
    "object_ids", "sizes_bytes", "broker_ids", "committed_at_ms", "formats", "marked_at_ms",
)  # fmt: skip


def fold(
    values: Iterable[tuple[LogPosition, Buffer]],
    handlers: Mapping[int, Handler],
    on_commit: CommitHandler | None = None,
    *,
    until_ms: int | None = None,
    refuses_unknown: bool = False,
) -> LogPosition | None:
    """Pass each record to the handler of its type, in the order of the log.

    Args:    handlers: by record key; records without one are skipped.
             on_commit: takes object commits.
             until_ms: stop at the first record that is later, in ms since 1970.
             refuses_unknown: raise LogsError for a record type that this version does not know.
    Returns: the position of the record that `until_ms` stopped at; None at the end.
    Raises:  LogsError; RecordError; what handlers and `values` raise.
    """
    for position, value in values:
        if until_ms is not None and position.timestamp_ms > until_ms:
            return position
        key, version, body = read_frame(value)
        if key == OBJECT_COMMIT_KEY and on_commit is not None:
            on_commit(position, value, version, body)
        elif key in handlers:
            handlers[key](position, value)
        elif refuses_unknown and key not in METADATA_RECORDS:
            raise unknown_record(position, key, version)
    return None


def unknown_record(position: LogPosition, key: int, version: int) -> LogsError:
    """Build the error for a record of an unknown type, which might change partitions or objects."""
    return LogsError(
        f"the record at offset {position.offset} is of type {key}, version {version}, which this "
        "version does not know: nothing is concluded from such a log; use a newer one"
    )


@dataclass(frozen=True, slots=True)
class CheckpointObjects:
    """Objects of one record of a checkpoint."""

    columns: Numbers  # by rows, as OBJECT_COLUMNS
    topic_ids: tuple[str, ...]
    topic_counts: npt.NDArray[np.int32]  # of each object
    topic_indexes: npt.NDArray[np.int32]  # of each topic of each object, into topic_ids

    def topics(self) -> list[tuple[str, ...]]:
        """Return, for each object, the ids of the topics with batches in it."""
        indexes = iter(self.topic_indexes.tolist())
        counts = self.topic_counts.tolist()
        return [tuple(self.topic_ids[i] for i in islice(indexes, count)) for count in counts]


@dataclass(slots=True)
class Lease:
    """A range of object ids that a broker may commit."""

    first: int
    end: int  # exclusive
    last_committed: int
    skipped: _Ranges = field(default_factory=list)  # below last_committed, never committed
    orphans: _Ranges | None = None  # once it is closed: the ids that were never committed
    opened: set[int] | None = None  # of a rewriter's lease: its objects, in any order


@dataclass(slots=True)
class RewrittenObject:
    """An object that rewriters filled, as the log's records of it say."""

    size_bytes: int
    broker_id: int
    committed_at_ms: int
    object_format: int
    topic_ids: set[str] = field(default_factory=set)


_Place = tuple[str, int]
"""Topic id as text, and partition."""


@dataclass(slots=True)
class CoordinatorLog:
    """The records that were applied so far. Pickled for tasks that look at pieces of the log."""

    partitions: Partitions = field(default_factory=Partitions)
    forgotten: dict[tuple[int, int], int] = field(default_factory=dict)
    """Log offset at which the producer last expired, by log id and producer id."""
    marked: array[int] = field(default_factory=partial(array, "q"))
    """Ids of objects that the log marked for deletion; `marked_at_ms` has the time of each."""
    marked_at_ms: array[int] = field(default_factory=partial(array, "q"))
    removed: array[int] = field(default_factory=partial(array, "q"))
    """Ids of objects that were removed, in the order of the log."""
    found: dict[int, int] = field(default_factory=dict)
    """Orphans that a listing showed and that were not removed since: when they were marked."""
    replaced: dict[_Place, _Ranges] = field(default_factory=dict)
    """Ranges whose runs were replaced, sorted and disjoint; ends are exclusive."""
    rewritten: dict[_Place, list[tuple[int, ...]]] = field(default_factory=dict)
    """Runs that replaced others, and were not replaced since, as `RUN_COLUMNS`."""
    rewritten_objects: dict[int, RewrittenObject] = field(default_factory=dict)
    ended_aborted: set[tuple[_Place, int, int]] = field(default_factory=set)
    """Aborted transactions that a compaction removed: partition, producer id, first offset."""
    leases: dict[int, Lease] = field(default_factory=dict)
    next_object_id: int = 0
    # Of a checkpoint:
    runs: list[tuple[int, Numbers]] = field(default_factory=list)
    """Log id, and runs by rows as `RUN_COLUMNS`; an appended_at_ms of -1 is the object's."""
    objects: list[CheckpointObjects] = field(default_factory=list)
    producers: list[ProducersState] = field(default_factory=list)
    aborted: list[AbortedState] = field(default_factory=list)

    def handlers(self, keys: Iterable[int]) -> dict[int, Handler]:
        """Return handlers for `fold` that decode and apply records of these types."""
        return dict.fromkeys(keys, self.add)

    def add(self, position: LogPosition, value: Buffer) -> None:
        """Decode one record, and apply the record to this state.

        Raises:  as `apply`, and RecordError.
        """
        self.apply(position.offset, decode_record(value))

    def apply(self, offset: int, record: MetadataRecord) -> None:
        """Apply one record to this state; records come in the order of the log.

        Args:    offset: the record's log offset.
        Raises:  LogsError for a lease that is closed and was never granted.
        """
        match record:
            case RunsState():
                self._runs_state(record)
            case ObjectsState():
                self._objects_state(record)
            case ProducersState():
                self.producers.append(record)
            case AbortedState():
                self.aborted.append(record)
            case ProducersExpiredRecord():
                for key in zip(record.log_ids, record.producer_ids, strict=True):
                    self.forgotten[key] = offset
            case ObjectsMarkedRecord():
                self.marked.extend(record.object_ids)
                self.marked_at_ms.extend([record.marked_at_ms] * len(record.object_ids))
            case ObjectsRemovedRecord():
                self.removed.extend(record.object_ids)
                for object_id in record.object_ids:
                    self.found.pop(object_id, None)
            case OrphansFoundRecord():
                for object_id in record.object_ids:
                    self.found.setdefault(object_id, record.marked_at_ms)
            case CoordinatorState():
                self.next_object_id = record.next_object_id
            case LeaseState():
                self._lease_state(record)
            case LeaseGrantedRecord():
                self._lease_granted(record)
            case RewriteLeaseState():
                orphans = _pairs(record.orphans) if record.closed_at_ms >= 0 else None
                opened = {one for first, end in _pairs(record.opened) for one in range(first, end)}
                first, end = record.first_object_id, record.end_object_id
                self.leases[record.lease_id] = Lease(first, end, first - 1, [], orphans, opened)
            case RewriteLeaseGrantedRecord():
                self._lease_granted(record, opened=set())
            case RunsReplacedRecord():
                self._runs_replaced(record)
            case LeaseClosedRecord():
                self._close_lease(record.lease_id, record.end_object_id)
            case LeasesForgottenRecord():
                for lease_id in record.lease_ids:
                    self.leases.pop(lease_id, None)
            case _:
                self.partitions.apply(record)

    def marks(self) -> dict[int, int]:
        """Return the time at which each object was first marked for deletion, in ms since 1970."""
        marks = dict(zip(reversed(self.marked), reversed(self.marked_at_ms), strict=True))
        for part in self.objects:
            ids, marked_at_ms = part.columns[0], part.columns[-1]
            is_marked = marked_at_ms >= 0
            marks |= zip(ids[is_marked].tolist(), marked_at_ms[is_marked].tolist(), strict=True)
        return marks

    def object_columns(self) -> Numbers:
        """Return the checkpoint's objects as an array with a row for each of OBJECT_COLUMNS."""
        empty = np.zeros((len(OBJECT_COLUMNS), 0), np.int64)
        return np.concatenate([empty, *(part.columns for part in self.objects)], axis=1)

    def run_columns(self) -> tuple[Numbers, Numbers]:
        """Return the log id of each run of batches in the checkpoint, and the runs as columns."""
        empty = np.zeros((len(RUN_COLUMNS), 0), np.int64)
        log_ids = np.array([log_id for log_id, _ in self.runs], np.int64)
        counts = np.array([rows.shape[1] for _, rows in self.runs], np.int64)
        rows = np.concatenate([empty, *(rows for _, rows in self.runs)], axis=1)
        return np.repeat(log_ids, counts), rows

    def lease_committed(self, object_id: int, lease_id: int) -> None:
        """Apply the commit of an object to its lease.

        Raises:  LogsError if the lease does not include the object.
        """
        lease = self.leases.get(lease_id)
        if lease is None or object_id <= lease.last_committed:
            raise LogsError(f"object {object_id} is committed outside of lease {lease_id}")
        if object_id > lease.last_committed + 1:
            lease.skipped.append((lease.last_committed + 1, object_id))
        lease.last_committed = object_id

    def _runs_state(self, record: RunsState) -> None:
        last = np.array(record.last_offsets, np.int64)
        rows = np.empty((len(RUN_COLUMNS), len(last)), np.int64)
        rows[0] = np.concatenate(([record.base_offset], last[:-1] + 1))
        rows[1] = last
        rows[2:6] = (
            record.object_ids, record.byte_offsets, record.byte_sizes, record.max_timestamps,
        )  # fmt: skip
        rows[6] = record.append_times or -1
        rows[7] = record.timestamp_types
        rows[8] = record.record_counts or rows[1] - rows[0] + 1
        rows[9] = record.object_formats or APPENDED
        rows[10:] = -1
        rows[10:, rows[9] == MARKER] = (
            record.marker_producer_ids, record.marker_epochs, record.marker_outcomes,
            record.marker_coordinator_epochs,
        )  # fmt: skip
        self.runs.append((record.log_id, rows))

    def _objects_state(self, record: ObjectsState) -> None:
        columns = np.array([getattr(record, name) for name in OBJECT_COLUMNS], np.int64)
        self.objects.append(
            CheckpointObjects(
                columns,
                tuple(encode_uuid(topic_id) for topic_id in record.topic_ids),
                np.array(record.topic_counts, np.int32),
                np.array(record.topic_indexes, np.int32),
            )
        )

    def _runs_replaced(self, record: RunsReplacedRecord) -> None:
        lease = self.leases.get(record.lease_id)
        if lease is not None and lease.opened is not None:
            lease.opened.add(record.object_id)
        filled = self.rewritten_objects.setdefault(
            record.object_id,
            RewrittenObject(
                record.size_bytes, record.broker_id, record.replaced_at_ms, record.object_format
            ),
        )
        new = zip(
            record.last_offsets, record.byte_offsets, record.byte_sizes, record.max_timestamps,
            record.append_times, record.timestamp_types, record.record_counts, strict=True,
        )  # fmt: skip
        ended = zip(record.ended_producer_ids, record.ended_first_offsets, strict=True)
        for topic_index, partition, first, end, run_count, ended_count in zip(
            record.topic_indexes, record.partitions, record.first_offsets, record.end_offsets,
            record.run_counts, record.ended_counts or (0,) * len(record.run_counts), strict=True,
        ):  # fmt: skip
            place = encode_uuid(record.topic_ids[topic_index]), partition
            filled.topic_ids.add(place[0])
            kept = [row for row in self.rewritten.get(place, ()) if not first <= row[0] < end]
            base = first
            for last, *columns in islice(new, run_count):
                kept.append(
                    (base, last, record.object_id, *columns, record.object_format, *NO_MARKER)
                )
                base = last + 1
            self.rewritten[place] = kept
            self.ended_aborted.update((place, *entry) for entry in islice(ended, ended_count))
            self.replaced[place] = _join_ranges([*self.replaced.get(place, ()), (first, end)])

    def _lease_state(self, record: LeaseState) -> None:
        self.leases[record.lease_id] = Lease(
            record.first_object_id,
            record.end_object_id,
            record.last_committed_id,
            _pairs(record.skipped),
            _pairs(record.orphans) if record.closed_at_ms >= 0 else None,
        )

    def _lease_granted(
        self,
        record: LeaseGrantedRecord | RewriteLeaseGrantedRecord,
        opened: set[int] | None = None,
    ) -> None:
        first, end = record.first_object_id, record.first_object_id + record.object_count
        self.next_object_id = max(self.next_object_id, end)
        for lease_id in record.closed_lease_ids:
            self._close_lease(lease_id, None)
        self.leases[record.lease_id] = Lease(first, end, first - 1, opened=opened)

    def _close_lease(self, lease_id: int, end: int | None) -> None:
        lease = self.leases.get(lease_id)
        if lease is None:
            raise LogsError(f"lease {lease_id} is closed, but was never granted")
        if lease.opened is not None:
            ends = sorted(lease.opened | {lease.first - 1, lease.end})
            gaps = ((before + 1, after) for before, after in pairwise(ends))
            lease.orphans = [(first, stop) for first, stop in gaps if first < stop]
            return
        unused = (lease.last_committed + 1, lease.end if end is None else end)
        lease.orphans = [*lease.skipped, *([unused] if unused[0] < unused[1] else [])]


def _join_ranges(ranges: _Ranges) -> _Ranges:
    """Sort ranges, and join ranges that touch or overlap."""
    joined: _Ranges = []
    for first, end in sorted(ranges):
        if joined and first <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((first, end))
    return joined


def _pairs(flat: Iterable[int]) -> _Ranges:
    numbers = list(flat)
    return list(zip(numbers[::2], numbers[1::2], strict=True))
