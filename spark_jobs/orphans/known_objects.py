"""What a coordinator's log says of its object ids: which live, which go, which may still come.

    known = known_at(log, log.end_offset(), coordinator=0)
    known.classify(ids)

A listing of the store shows ids; this says what each of them is. It is small, two numbers for an
object that lives, and is made by looking at the first bytes of each commit, not at its batches.

The surprise is how little time matters. An id can be committed only while its lease is open, and
ids rise: so whatever is committed after this offset was, as of it, in an open lease or not yet
given. `Kind.ORPHAN` is neither. It is for ever dead, also if this log is a day behind.

Source: docs/design/batch-coordinator.md#object-leases, docs/design/pipeline.md#orphans.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from records.compression import Buffer
from records.diskless import (
    CoordinatorState,
    LeaseClosedRecord,
    LeaseGrantedRecord,
    LeasesForgottenRecord,
    LeaseState,
    ObjectCommitRecord,
    ObjectsMarkedRecord,
    ObjectsRemovedRecord,
    ObjectsState,
    OrphansFoundRecord,
)
from records.frame import METADATA_RECORDS, decode_record, read_frame
from records.schema import MetadataRecord
from spark_jobs.readers.logs import Log, LogsError, Span

Ids = npt.NDArray[np.int64]
"""Object ids; where the name says so, sorted and each once."""

HEAD: Final = struct.Struct(">qbqiqq")
"""The first fields of an ObjectCommitRecord: object, format, size, broker, its epoch, lease."""

_COMMIT: Final = ObjectCommitRecord.schema().key


class Kind(IntEnum):
    """What an object id is, as far as a log was read."""

    LIVE = 0  # committed, and not marked: runs refer to it, or did a moment ago
    MARKED = 1  # to be deleted by a broker
    OF_LEASE = 2  # an orphan that the coordinator knows by its lease: a broker deletes it
    LEASED = 3  # its lease is open: it may be committed yet
    NOT_GIVEN = 4  # in no lease yet: the log was read before the store was listed, or is not whole
    ORPHAN = 5  # nothing refers to it and nothing ever can; and only a listing shows it


@dataclass(frozen=True, slots=True)
class Known:
    """Of one coordinator, as of `offset` (exclusive). Can be pickled."""

    coordinator: int
    offset: int
    next_object_id: int
    live: Ids  # sorted
    live_bytes: Ids  # sizes of those
    marked: Ids  # sorted
    open_leases: Ids  # pairs (first, end), sorted; ends are exclusive here and below
    orphans: Ids  # pairs: never committed, of leases that are over
    removed: Ids  # sorted: gone from the store since the checkpoint, and known to be

    def classify(self, ids: Ids) -> npt.NDArray[np.int8]:
        """The `Kind` of each id; they need not be sorted."""
        kinds = np.full(len(ids), Kind.ORPHAN, np.int8)
        of_lease = _within(self.orphans, ids) & ~is_in(self.removed, ids)
        kinds[of_lease] = Kind.OF_LEASE
        kinds[_within(self.open_leases, ids)] = Kind.LEASED
        kinds[ids >= self.next_object_id] = Kind.NOT_GIVEN
        kinds[is_in(self.marked, ids)] = Kind.MARKED
        kinds[is_in(self.live, ids)] = Kind.LIVE
        return kinds

    def size_of(self, ids: Ids) -> Ids:
        """The committed sizes of these, all of which are live, in bytes."""
        return self.live_bytes[np.searchsorted(self.live, ids)]


def is_in(sorted_ids: Ids, ids: Ids) -> npt.NDArray[np.bool_]:
    """Is each of these in a sorted set?

    >>> is_in(np.array([2, 5]), np.array([5, 3, 9])).tolist()
    [True, False, False]
    """
    if not len(sorted_ids):
        return np.zeros(len(ids), np.bool_)
    at = np.minimum(np.searchsorted(sorted_ids, ids), len(sorted_ids) - 1)
    found: npt.NDArray[np.bool_] = sorted_ids[at] == ids
    return found


def _within(pairs: Ids, ids: Ids) -> npt.NDArray[np.bool_]:
    """Is each of these in one of the ranges?"""
    at = np.searchsorted(pairs[:, 0], ids, side="right") - 1
    if not len(pairs):
        return np.zeros(len(ids), np.bool_)
    found: npt.NDArray[np.bool_] = (at >= 0) & (ids < pairs[np.maximum(at, 0), 1])
    return found


def known_at(
    log: Log, offset: int, *, coordinator: int, progress: Callable[[int], None] = lambda _: None
) -> Known:
    """What everything below `offset` says.

    Args:    offset: exclusive; at or below the log's end.
             progress: told each number of spans that were read.
    Raises:  LogsError, also for records that this version does not know: they might refer to
             objects; LostRangeError, DamagedFileError, RecordError; OSError.
    """
    return known_of(log.spans(offset), offset, coordinator=coordinator, progress=progress)


def known_of(
    spans: Iterable[Span],
    offset: int,
    *,
    coordinator: int,
    progress: Callable[[int], None] = lambda _: None,
) -> Known:
    """What these spans, which follow each other, say together. Raises as `known_at`."""
    gathered = _Gathered()
    for span in spans:
        for place, value in span.values():
            key, version, start = read_frame(value)
            if key == _COMMIT and version == 0:
                gathered.commit(value, start)
            elif key in _TAKEN:
                record: Any = decode_record(value)
                _TAKEN[key](gathered, record)
            elif key not in METADATA_RECORDS or key == _COMMIT:
                raise LogsError(
                    f"the record at offset {place.offset} is of type {key}, version {version}, "
                    "which this version does not know: nothing is concluded from such a log"
                )
        progress(1)
    return gathered.known(coordinator, offset)


# --- gathering ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Lease:
    first: int
    end: int
    last_committed: int
    passed: list[tuple[int, int]] = field(default_factory=list)  # below it, never committed
    orphans: list[tuple[int, int]] | None = None  # once it is over


class _Gathered:
    """Numbers as they come: columns that are sorted once, and a few leases."""

    def __init__(self) -> None:
        self.ids = array("q")
        self.sizes = array("q")
        self.marked = array("q")
        self.removed = array("q")
        self.handed_over: dict[int, int] = {}  # by sweeps: how many were removed before that
        self.leases: dict[int, _Lease] = {}
        self.next_object_id = 0

    def commit(self, value: Buffer, start: int) -> None:
        object_id, _, size_bytes, _, _, lease_id = HEAD.unpack_from(value, start)
        self.ids.append(object_id)
        self.sizes.append(size_bytes)
        lease = self.leases.get(lease_id)
        if lease is None or object_id <= lease.last_committed:
            raise LogsError(f"object {object_id} is committed outside of lease {lease_id}")
        if object_id > lease.last_committed + 1:
            lease.passed.append((lease.last_committed + 1, object_id))
        lease.last_committed = object_id

    def counted(self, record: CoordinatorState) -> None:
        self.next_object_id = record.next_object_id

    def lease(self, record: LeaseState) -> None:
        lease = _Lease(
            record.first_object_id,
            record.end_object_id,
            record.last_committed_id,
            _pairs(record.skipped),
        )
        if record.closed_at_ms >= 0:
            lease.orphans = _pairs(record.orphans)
        self.leases[record.lease_id] = lease

    def objects(self, record: ObjectsState) -> None:
        self.ids.extend(record.object_ids)
        self.sizes.extend(record.sizes_bytes)
        rows = zip(record.object_ids, record.marked_at_ms, strict=True)
        self.marked.extend(object_id for object_id, at_ms in rows if at_ms >= 0)

    def granted(self, record: LeaseGrantedRecord) -> None:
        first, end = record.first_object_id, record.first_object_id + record.object_count
        self.next_object_id = max(self.next_object_id, end)
        for lease_id in record.closed_lease_ids:
            self._end(lease_id, None)
        self.leases[record.lease_id] = _Lease(first, end, first - 1)

    def closed(self, record: LeaseClosedRecord) -> None:
        self._end(record.lease_id, record.end_object_id)

    def _end(self, lease_id: int, end: int | None) -> None:
        lease = self.leases.get(lease_id)
        if lease is None:
            raise LogsError(f"lease {lease_id} ends, and never began")
        left = (lease.last_committed + 1, lease.end if end is None else end)
        lease.orphans = [*lease.passed, *([left] if left[0] < left[1] else [])]

    def forgotten(self, record: LeasesForgottenRecord) -> None:
        for lease_id in record.lease_ids:
            self.leases.pop(lease_id, None)

    def mark(self, record: ObjectsMarkedRecord) -> None:
        self.marked.extend(record.object_ids)

    def found(self, record: OrphansFoundRecord) -> None:
        for object_id in record.object_ids:
            self.handed_over[object_id] = len(self.removed)

    def remove(self, record: ObjectsRemovedRecord) -> None:
        self.removed.extend(record.object_ids)

    def known(self, coordinator: int, offset: int) -> Known:
        """All that was gathered, sorted."""
        gone = np.array(self.removed, np.int64)
        removed = np.unique(gone)
        ids, first = np.unique(np.array(self.ids, np.int64), return_index=True)
        stays = ~is_in(removed, ids)
        ids, sizes = ids[stays], np.array(self.sizes, np.int64)[first][stays]
        marked = np.unique(np.array(self.marked, np.int64))
        marked = marked[~is_in(removed, marked)]
        lives = ~is_in(marked, ids)
        found = self._handed_over(gone, ids)
        leases = sorted(self.leases.values(), key=lambda lease: lease.first)
        return Known(
            coordinator=coordinator,
            offset=offset,
            next_object_id=self.next_object_id,
            live=ids[lives],
            live_bytes=sizes[lives],
            marked=np.union1d(marked, found),
            open_leases=_ranges((a.first, a.end) for a in leases if a.orphans is None),
            orphans=_ranges(pair for lease in leases for pair in lease.orphans or ()),
            removed=removed[~is_in(found, removed)],
        )

    def _handed_over(self, gone: Ids, committed: Ids) -> Ids:
        """Those that a sweep found and that nobody has removed since; sorted."""
        found = np.array(sorted(self.handed_over), np.int64)
        for at in np.flatnonzero(is_in(found, gone)).tolist():
            if at >= self.handed_over[int(gone[at])]:
                found = found[found != gone[at]]
        return found[~is_in(committed, found)]


_RECORDS: Final[tuple[tuple[type[MetadataRecord], Callable[[_Gathered, Any], None]], ...]] = (
    (CoordinatorState, _Gathered.counted),
    (LeaseState, _Gathered.lease),
    (ObjectsState, _Gathered.objects),
    (LeaseGrantedRecord, _Gathered.granted),
    (LeaseClosedRecord, _Gathered.closed),
    (LeasesForgottenRecord, _Gathered.forgotten),
    (ObjectsMarkedRecord, _Gathered.mark),
    (OrphansFoundRecord, _Gathered.found),
    (ObjectsRemovedRecord, _Gathered.remove),
)
_TAKEN: Final = {record.schema().key: take for record, take in _RECORDS}


def _ranges(pairs: Iterable[tuple[int, int]]) -> Ids:
    return np.array(list(pairs), np.int64).reshape(-1, 2)


def _pairs(flat: Iterable[int]) -> list[tuple[int, int]]:
    numbers = list(flat)
    return list(zip(numbers[::2], numbers[1::2], strict=True))
