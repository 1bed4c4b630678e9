"""The state that decisions read, as tables.

They have three owners: the in-memory state, where a table is a dict; the database's store; and a
leader's pending overlay, whose tables fall through to the database. `coordinator.batch.applying`
changes them, in one way for all three.

Tables are only read, written and deleted by key; only the small ones are walked (`leases`,
`brokers`, `topics`). Values are tuples, replaced and never changed, so an overlay may share them.
Runs and objects are not here: no decision about a commit reads them.

The trap: partitions are keyed by *log id*, a number never given twice, and not by topic id. Hashing
a UUID costs more than deciding a batch, and when a topic is deleted, its remaining producers under
an old log id cannot be found.

Source: docs/design/batch-coordinator.md; KIP-1164, Batch Coordinator.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from uuid import UUID

from coordinator.batch.id_ranges import Ranges, contains
from coordinator.batch.steady_clock import NO_STAMP
from coordinator.batch.transactions import OpenTransactions, Transactional
from records.diskless import (
    ObjectCommitRecord,
)

K = TypeVar("K", contravariant=True)
V = TypeVar("V")

Log = tuple[int, int]
"""A partition: log start offset (inclusive), high watermark (exclusive)."""

LogId = int
ProducerKey = tuple[LogId, int]
"""Log id and producer id."""

KeptBatch = tuple[int, int, int, int]
"""Base sequence, last sequence (inclusive), base offset, append time (-1: create time)."""

Producer = tuple[int, int, tuple[KeptBatch, ...], Transactional | None]
"""Epoch; when it last appended, ms since 1970; its last batches, at most five, oldest first; its
transactions here, or None if it never had one. Only a row that a marker made has no batches."""

MAX_SEQUENCE: Final = 2**31 - 1
"""Last sequence number before 0. `x & MAX_SEQUENCE` is x for smaller numbers, and wraps larger
ones."""

NO_LOG: Final = -1
"""Stands in `Topic.log_ids` for a partition that was already removed while its topic is being
deleted. Every number below 0 stands for a partition that is not here."""


UNKNOWN_ID: Final = -2
"""Stands in `Counters.largest_expired_id` until a record of level 2 says it."""


def released_mark(controller_epoch: int) -> LogId:
    """Return the log id that marks a partition as released under a controller epoch.

    >>> released_mark(0), released_mark(7)
    (-2, -9)
    """
    return -2 - controller_epoch


def may_return(log_id: LogId, controller_epoch: int) -> bool:
    """Return whether a partition may be restored: a lower controller epoch released it.

    >>> mark = released_mark(7)
    >>> may_return(mark, 7), may_return(mark, 8), may_return(5, 8), may_return(NO_LOG, 8)
    (False, True, False, False)
    """
    return released_mark(controller_epoch) < log_id < NO_LOG


class Topic(NamedTuple):
    """A topic, or the tombstone of one."""

    name: str
    log_ids: tuple[LogId, ...]  # by partition; below 0: it is not here
    deleted_at_ms: int = -1  # -1 while it is not deleted


class OpenObject(NamedTuple):
    """A rewritten object that is still filled."""

    object_id: int
    size_bytes: int
    object_format: int
    filled_bytes: int  # that runs were ever given


class Rewrite(NamedTuple):
    """The part of a lease that only rewriters' leases have. Source: docs/design/compaction.md."""

    plan_id: bytes  # of the plan that owns the lease; zero if a broker does
    renewed_at_ms: int
    opened: Ranges  # ids that became objects, in any order
    open_objects: tuple[OpenObject, ...]  # of them, those that are still filled; by rising id

    def find_open(self, object_id: int) -> OpenObject | None:
        """Return the object with this id if it still accepts runs of batches, else None."""
        return next((one for one in self.open_objects if one.object_id == object_id), None)


class Cleaning(NamedTuple):
    """A partition's compaction progress. Source: docs/design/compaction.md#cleaned_until."""

    cleaned_until: int  # exclusive
    bound: int  # exclusive, of the newest round's key map; -1: there was no round
    rewritten_until: int  # exclusive, under that bound


def cleaning_of(row: Cleaning | None, log_start_offset: int) -> Cleaning:
    """Return a partition's compaction progress; records below the log start count as compacted.

    >>> cleaning_of(None, 5), cleaning_of(Cleaning(9, 20, 3), 5)
    (Cleaning(cleaned_until=5, bound=-1, rewritten_until=5), \
Cleaning(cleaned_until=9, bound=20, rewritten_until=5))
    """
    cleaned, bound, rewritten = row or (0, -1, 0)
    return Cleaning(max(cleaned, log_start_offset), bound, max(rewritten, log_start_offset))


def cleaned(
    row: Cleaning | None, log_start_offset: int, first_offset: int, end_offset: int, bound: int
) -> Cleaning:
    """Return a partition's compaction progress after a range was compacted.

    `bound` is the offset up to which the compaction knew the newest record of each key.
    Progress is contiguous from the log start, under one bound; other ranges change nothing.
    """
    before = cleaning_of(row, log_start_offset)
    reached = before.rewritten_until if bound == before.bound else log_start_offset
    if first_offset > reached:
        return before
    reached = max(reached, end_offset)
    return Cleaning(max(before.cleaned_until, reached), bound, reached)


class Lease(NamedTuple):
    """A block of object ids, [first_object_id, end_object_id), that one broker epoch may commit."""

    broker_id: int
    broker_epoch: int
    first_object_id: int
    end_object_id: int
    last_committed_id: int  # the highest; first_object_id - 1: none yet
    skipped: Ranges  # below it and never committed: dead
    fenced: tuple[int, ...]  # above it, rising, and called safe to delete: dead too
    granted_at_ms: int
    closed_at_ms: int = -1  # -1: open
    orphans: Ranges = ()  # once it is closed: all that is dead and not yet deleted
    rewrite: Rewrite | None = None  # of a rewriter's lease; such a one commits nothing

    @property
    def is_open(self) -> bool:
        """Return whether the lease's broker may still commit object ids of the lease."""
        return self.closed_at_ms < 0

    def committed(self, object_id: int) -> bool:
        """Return whether the object with this id of the lease was committed.

        The object may have been removed since.
        """
        if self.rewrite is not None:
            return contains(self.rewrite.opened, object_id)
        return object_id <= self.last_committed_id and not contains(self.skipped, object_id)


class Broker(NamedTuple):
    """A broker's highest epoch, and the objects whose answers are kept for it."""

    epoch: int
    open_leases: tuple[int, ...]
    answered: tuple[int, ...]  # object ids in the order of their commits, at most 64


class Answer(NamedTuple):
    """The answer to a commit, in columns as its ObjectCommitRecord has them."""

    lease_id: int
    committed_at_ms: int
    topic_ids: tuple[UUID, ...]
    topic_indexes: tuple[int, ...]  # this and the next three: of each group
    partitions: tuple[int, ...]
    batch_counts: tuple[int, ...]
    log_start_offsets: tuple[int, ...]
    base_offsets: tuple[int, ...]  # this and the next three: of each batch
    append_times: tuple[int, ...]  # empty: all -1
    error_codes: tuple[int, ...]  # empty: all 0
    duplicates: tuple[int, ...]  # empty: all 0


@dataclass(slots=True)
class Counters:
    """Numbers of the whole coordinator. An overlay has a copy of its own."""

    controller_epoch: int = -1  # the highest that has called
    next_lease_id: int = 0
    next_object_id: int = 0
    next_log_id: int = 0
    largest_expired_id: int = UNKNOWN_ID  # of producers, by time; -1: none has
    steady_ms: int = NO_STAMP  # the newest stamp; it may have been set back
    clock_resets: int = 0  # stamps that replaced steady time
    notes_deletions: int = 0  # 1: a rewriter had a lease, and objects note their first deletion


class Table(Protocol[K, V]):
    """The methods that decisions and `apply_record` use of a table. A dict has them."""

    def get(self, key: K, /) -> V | None:
        """Return the value of a key, or None if there is no such key."""

    def __setitem__(self, key: K, value: V, /) -> None:
        """Add a key with its value, or replace the value."""

    def update(self, rows: Any, /) -> None:
        """Add or replace several rows from a dict."""

    def pop(self, key: K, default: None, /) -> V | None:
        """Remove a row and return its value, or None if the row does not exist."""


class SmallTable(Table[K, V], Protocol[K, V]):
    """A table with few entries: it may be walked, in any order."""

    def items(self) -> Iterable[tuple[Any, V]]:
        """Return all keys of the table with their values."""


class Tables(Protocol):
    """The state that decisions read."""

    @property
    def topics(self) -> SmallTable[UUID, Topic]:
        """Return the table of topics by topic id, including the tombstones of deleted topics."""

    @property
    def logs(self) -> Table[LogId, Log]:
        """Return the table of each partition's log start and high watermark, by log id."""

    @property
    def producers(self) -> Table[ProducerKey, Producer]:
        """Return the table of producer states by log id and producer id."""

    @property
    def leases(self) -> SmallTable[int, Lease]:
        """Return the table of object id leases by lease id; closed leases stay for some time."""

    @property
    def brokers(self) -> SmallTable[int, Broker]:
        """Return the table of brokers by broker id."""

    @property
    def answers(self) -> Table[int, Answer]:
        """Return the table of commit responses kept for retries, by object id."""

    @property
    def cleanings(self) -> Table[LogId, Cleaning]:
        """Return the table of compacted partitions' compaction progress, by log id."""

    @property
    def open_transactions(self) -> Table[LogId, OpenTransactions]:
        """Return the table of each partition's open transactions, by log id."""

    @property
    def replacing(self) -> SmallTable[tuple[LogId, int], int]:
        """Return the offset ranges in which proposed records replace runs of batches.

        Keys are log id and first offset, values end offsets (exclusive).
        """

    @property
    def counters(self) -> Counters:
        """Return the mutable counters of the state, such as the next object id."""


class AppliedReplacing(dict[tuple[LogId, int], int]):
    """The table `replacing` of applied state: it stays empty, for all that was proposed is done."""

    def __setitem__(self, _key: tuple[LogId, int], _value: int) -> None:
        pass


def log_ids_of(tables: Tables, record: ObjectCommitRecord) -> list[LogId]:
    """Return the log id of each partition in a commit; negative for a missing partition.

    All batches of such a partition were refused. Call it on the state right before the record.
    """
    known = []
    for topic_id in record.topic_ids:
        topic = tables.topics.get(topic_id)
        known.append(topic.log_ids if topic is not None and topic.deleted_at_ms < 0 else ())
    if len(known) == 1 and not any(record.topic_indexes):
        (log_ids,) = known
        end = len(log_ids)
        return [log_ids[i] if 0 <= i < end else NO_LOG for i in record.partitions]
    found = []
    for index, partition in zip(record.topic_indexes, record.partitions, strict=True):
        log_ids = known[index]
        found.append(log_ids[partition] if 0 <= partition < len(log_ids) else NO_LOG)
    return found


class LeaseFinder:
    """Finds the leases of many object ids, as of its construction."""

    def __init__(self, tables: Tables) -> None:
        self._leases = sorted(
            (lease.first_object_id, lease.end_object_id, lease_id)
            for lease_id, lease in tables.leases.items()
        )

    def find(self, object_id: int) -> int | None:
        """Return the id of the lease that contains an object id, or None if no lease does."""
        at = bisect_right(self._leases, object_id, key=lambda lease: lease[0]) - 1
        return self._leases[at][2] if at >= 0 and object_id < self._leases[at][1] else None
