"""Reads from a coordinator's log which object ids are live, marked, or can still be committed.

    known = known_at(log, log.end_offset(), coordinator=0)
    known.classify(ids)

A listing of the store shows ids; this module says what each of them is. The result is small, two
numbers for a live object, and reads only the first bytes of each commit, not its batches.

Why the log may be old: an id can be committed only while its lease is open, and ids rise. So an id
that is committed after this offset was, at this offset, in an open lease or not yet granted.
`Kind.ORPHAN` is neither. It stays dead for ever, even if this log is a day behind.

Source: docs/design/batch-coordinator.md#object-leases, docs/design/pipeline.md#orphans.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from records.compression import Buffer
from spark_jobs.readers.log_position import LogPosition
from spark_jobs.readers.logs import Log, Span
from spark_jobs.tables.commits import VERSIONS
from spark_jobs.tables.coordinator_log import OBJECT_KEYS, CoordinatorLog, fold, unknown_record
from spark_jobs.tables.schemas import OBJECT_COMMIT_KEY

Ids = npt.NDArray[np.int64]
"""Object ids; sorted and distinct where the name says so."""

HEAD: Final = struct.Struct(">qbqiqq")
"""The first fields of an ObjectCommitRecord of every version: object, format, size, broker, its
epoch, lease."""


class Kind(IntEnum):
    """The state of an object id, as far as the log was read."""

    LIVE = 0  # committed and not marked: runs refer to it, or did until recently
    MARKED = 1  # to be deleted by a broker
    OF_LEASE = 2  # an orphan that the coordinator knows from its lease: a broker deletes it
    LEASED = 3  # its lease is open: it may still be committed
    NOT_GIVEN = 4  # in no lease yet: the log was read before the store was listed, or is not whole
    ORPHAN = 5  # nothing refers to it, nothing ever can, and only a listing shows it


@dataclass(frozen=True, slots=True)
class KnownObjects:
    """The object ids of one coordinator, as of `offset` (exclusive). Can be pickled."""

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
        """Return the state of each object id as a `Kind`; the ids need not be sorted."""
        kinds = np.full(len(ids), Kind.ORPHAN, np.int8)
        of_lease = _within(self.orphans, ids) & ~is_in(self.removed, ids)
        kinds[of_lease] = Kind.OF_LEASE
        kinds[_within(self.open_leases, ids)] = Kind.LEASED
        kinds[ids >= self.next_object_id] = Kind.NOT_GIVEN
        kinds[is_in(self.marked, ids)] = Kind.MARKED
        kinds[is_in(self.live, ids)] = Kind.LIVE
        return kinds

    def size_of(self, ids: Ids) -> Ids:
        """Return the committed sizes of live objects, in bytes."""
        return self.live_bytes[np.searchsorted(self.live, ids)]


def is_in(sorted_ids: Ids, ids: Ids) -> npt.NDArray[np.bool_]:
    """Return a mask of the ids that a sorted array contains.

    >>> is_in(np.array([2, 5]), np.array([5, 3, 9])).tolist()
    [True, False, False]
    """
    if not len(sorted_ids):
        return np.zeros(len(ids), np.bool_)
    at = np.minimum(np.searchsorted(sorted_ids, ids), len(sorted_ids) - 1)
    found: npt.NDArray[np.bool_] = sorted_ids[at] == ids
    return found


def _within(pairs: Ids, ids: Ids) -> npt.NDArray[np.bool_]:
    """Return a mask of the ids that lie in one of the ranges `pairs`."""
    at = np.searchsorted(pairs[:, 0], ids, side="right") - 1
    if not len(pairs):
        return np.zeros(len(ids), np.bool_)
    found: npt.NDArray[np.bool_] = (at >= 0) & (ids < pairs[np.maximum(at, 0), 1])
    return found


def known_objects_at(
    log: Log, offset: int, *, coordinator: int, progress: Callable[[int], None] = lambda _: None
) -> KnownObjects:
    """Read the states of a coordinator's object ids from its log below an offset.

    Args:    offset: exclusive; at or below the log's end.
             progress: called with 1 after each span.
    Raises:  LogsError, also for records that this version does not know: they might refer to
             objects; LostRangeError, DamagedFileError, RecordError; OSError.
    """
    return known_objects_of(log.spans(offset), offset, coordinator=coordinator, progress=progress)


def known_objects_of(
    spans: Iterable[Span],
    offset: int,
    *,
    coordinator: int,
    progress: Callable[[int], None] = lambda _: None,
) -> KnownObjects:
    """Read the states of a coordinator's object ids from consecutive spans of its log.

    Raises:  as `known_objects_at`.
    """
    log = CoordinatorLog()
    commits = _Commits(log)
    handlers = log.handlers(OBJECT_KEYS)
    for span in spans:
        fold(span.values(), handlers, commits.add, refuses_unknown=True)
        progress(1)
    return _build_known(log, commits, coordinator, offset)


class _Commits:
    """Collects ids and sizes of committed objects, and notes each in its lease."""

    def __init__(self, log: CoordinatorLog) -> None:
        self.ids = array("q")
        self.sizes = array("q")
        self._log = log

    def add(self, position: LogPosition, value: Buffer, version: int, body: int) -> None:
        """Collect the object id and size of a commit, and apply the commit to its lease.

        Raises:  LogsError for an unknown version.
        """
        if version not in VERSIONS:
            raise unknown_record(position, OBJECT_COMMIT_KEY, version)
        object_id, _, size_bytes, _, _, lease_id = HEAD.unpack_from(value, body)
        self._log.lease_committed(object_id, lease_id)
        self.ids.append(object_id)
        self.sizes.append(size_bytes)


def _build_known(
    log: CoordinatorLog, commits: _Commits, coordinator: int, offset: int
) -> KnownObjects:
    """Build the sorted sets of object ids by state from the log and its commits."""
    stored_ids, stored_sizes, _, _, _, marked_at_ms = log.object_columns()
    removed = np.unique(np.array(log.removed, np.int64))
    rewritten = np.array(sorted(log.rewritten_objects), np.int64)
    filled = [log.rewritten_objects[object_id].size_bytes for object_id in rewritten.tolist()]
    all_ids = np.concatenate((stored_ids, commits.ids, rewritten))
    ids, first = np.unique(all_ids, return_index=True)
    stays = ~is_in(removed, ids)
    ids = ids[stays]
    all_sizes = np.concatenate((stored_sizes, commits.sizes, np.array(filled, np.int64)))
    sizes = all_sizes[first][stays]
    marked = np.unique(np.concatenate((stored_ids[marked_at_ms >= 0], log.marked)))
    marked = marked[~is_in(removed, marked)]
    lives = ~is_in(marked, ids)
    found = np.array(sorted(log.found), np.int64)
    found = found[~is_in(ids, found)]
    leases = sorted(log.leases.values(), key=lambda lease: lease.first)
    return KnownObjects(
        coordinator=coordinator,
        offset=offset,
        next_object_id=log.next_object_id,
        live=ids[lives],
        live_bytes=sizes[lives],
        marked=np.union1d(marked, found),
        open_leases=_ranges((a.first, a.end) for a in leases if a.orphans is None),
        orphans=_ranges(pair for lease in leases for pair in lease.orphans or ()),
        removed=removed[~is_in(found, removed)],
    )


def _ranges(pairs: Iterable[tuple[int, int]]) -> Ids:
    return np.array(list(pairs), np.int64).reshape(-1, 2)
