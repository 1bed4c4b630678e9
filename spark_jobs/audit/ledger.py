"""Holds a coordinator's records other than commits, with the offsets from which and to which they
held.

There are few such records, so they are applied one after the other, in one place. The resulting
`Ledger` says, for every offset of the log, which partitions existed, where their logs began, which
leases were open and which objects were marked. With it, each commit can be judged by itself, in any
task.

The trap: the ledger believes nothing. A record that contradicts what came before it is a violation,
and is then applied as it stands, so that one mistake is reported once.

Source: docs/design/batch-coordinator.md#object-leases, docs/design/batch-coordinator.md#deletion;
invariants 5, 7 and 8 (docs/design/invariants.md); `records.diskless`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from records.diskless import (
    CleaningState,
    ControllerEpochRecord,
    CoordinatorState,
    DeleteFenceRecord,
    DisklessBrokerState,
    DisklessPartitionsRecord,
    DisklessPartitionsReleasedRecord,
    DisklessPartitionsRemovedRecord,
    DisklessTombstoneExpiredRecord,
    DisklessTopicState,
    DisklessTopicTombstoneRecord,
    LeaseClosedRecord,
    LeaseGrantedRecord,
    LeasesForgottenRecord,
    LeaseState,
    LogStartOffsetsRecord,
    ObjectsMarkedRecord,
    ObjectsRemovedRecord,
    ObjectsState,
    OrphansFoundRecord,
    ProducersExpiredRecord,
    RewriteLeaseGrantedRecord,
    RewriteLeaseState,
    RunsReplacedRecord,
)
from records.schema import MetadataRecord
from records.uuids import encode_uuid
from spark_jobs.audit.rows import TopicPartition

NEVER: Final = 2**63 - 1
"""A log offset for events that did not happen."""


@dataclass(slots=True)
class Incarnation:
    """One incarnation of a partition; releasing and creating it again makes another one."""

    created: int
    log_id: int
    starts: list[tuple[int, int]] = field(default_factory=list)  # log offset, log start; rising
    gone: int = NEVER
    released: bool = False

    def start_before(self, offset: int) -> int:
        """Return the log start after all records below a log offset (exclusive)."""
        index = bisect_right(self.starts, offset - 1, key=lambda entry: entry[0]) - 1
        return self.starts[index][1] if index >= 0 else 0


@dataclass(slots=True)
class LeaseHistory:
    """A lease's object ids, [first, end), and the log offsets between which it was open."""

    broker_id: int
    broker_epoch: int
    first: int
    end: int
    granted: int
    granted_at_ms: int
    closed: int = NEVER
    closed_at_ms: int = -1
    forgotten: int = NEVER
    used_end: int = NEVER  # exclusive: from here on nothing was uploaded; once it is closed
    last_committed: int = -1  # where the log begins; first - 1: none
    skipped: tuple[tuple[int, int], ...] = ()  # below it and never committed, likewise
    orphans: tuple[tuple[int, int], ...] = ()  # likewise, if it
    was_closed: bool = False  # by then
    rewrites: bool = False  # of a rewriter


@dataclass(slots=True)
class TopicIncarnation:
    """A topic's name, and the log offsets of its creation and deletion."""

    name: str
    created: int
    deleted: int = NEVER
    deleted_at_ms: int = -1
    partitions: int = 0  # the highest index, and one
    expired: int = NEVER  # its tombstone was forgotten


@dataclass(slots=True)
class OrphanInterval:
    """The interval in which an orphan that a sweep found is listed among the objects."""

    found: int
    marked_at_ms: int
    gone: int = NEVER


class Replacement(NamedTuple):
    """A range of a partition whose runs one record replaced."""

    offset: int  # of the record in the log
    object_id: int
    first: int
    end: int  # exclusive
    old_runs: int
    old_digest: int  # of the old runs, as the rewriter named them
    bound: int  # -1: merged
    flags: int
    runs: tuple[tuple[int, ...], ...]  # new ones, each with the values of `NEW_RUN_COLUMNS`
    ended: tuple[tuple[int, int], ...] = ()  # aborted entries: producer id, first offset

    @property
    def records(self) -> int:
        """Return the number of records in all new runs of the range."""
        return sum(run[1] for run in self.runs)


NEW_RUN_COLUMNS: Final = (
    "last_offsets", "record_counts", "byte_offsets", "byte_sizes", "max_timestamps",
    "append_times", "timestamp_types",
)  # fmt: skip


class Cleaning(NamedTuple):
    """The offsets up to which a partition is cleaned."""

    cleaned_until: int = 0
    bound: int = -1
    rewritten_until: int = 0

    def after(self, first: int, end: int, bound: int, log_start: int) -> Cleaning:
        """Return a partition's compaction progress after the range [first, end) was compacted."""
        if bound < 0:
            return self
        cleaned = max(self.cleaned_until, log_start)  # below it nothing is left to clean
        rewritten = max(self.rewritten_until, log_start)
        reach = rewritten if bound == self.bound else log_start
        if first > reach:
            return Cleaning(cleaned, self.bound, rewritten)
        return Cleaning(max(cleaned, reach, end), bound, max(reach, end))


@dataclass(slots=True)
class RewrittenObject:
    """An object that a rewriter filled, and the log offsets between which it was open."""

    size_bytes: int
    broker_id: int
    lease_id: int
    opened: int
    opened_at_ms: int
    closed: int = NEVER
    filled: int = 0  # bytes that runs were given


@dataclass(slots=True)
class Ledger:
    """Everything that a coordinator's log says besides commits.

    Log offsets are those of the records; -1 means before the log begins.
    """

    places: dict[TopicPartition, list[Incarnation]] = field(default_factory=dict)
    topics: dict[str, list[TopicIncarnation]] = field(default_factory=dict)
    by_log_id: dict[int, TopicPartition] = field(default_factory=dict)
    leases: dict[int, LeaseHistory] = field(default_factory=dict)
    open_leases: dict[int, set[int]] = field(default_factory=dict)  # by broker
    brokers: dict[int, int] = field(default_factory=dict)  # the highest epoch of each
    fenced: dict[int, int] = field(default_factory=dict)  # object: log offset
    marked: dict[int, tuple[int, int]] = field(default_factory=dict)  # log offset, time
    removed: dict[int, int] = field(default_factory=dict)
    expired: dict[tuple[TopicPartition, int], list[int]] = field(default_factory=dict)
    found_orphans: dict[int, list[OrphanInterval]] = field(default_factory=dict)  # by sweeps
    controller_epochs: list[tuple[int, int]] = field(
        default_factory=list
    )  # log offset, controller epoch
    replaced: dict[TopicPartition, list[Replacement]] = field(default_factory=dict)
    rewritten: dict[int, RewrittenObject] = field(default_factory=dict)
    cleanings: dict[TopicPartition, list[tuple[int, Cleaning]]] = field(
        default_factory=dict
    )  # by log offset
    controller_epoch: int = -1
    base_ids: tuple[int, int, int] = (0, 0, 0)  # lease, object, log: next where the log begins
    next_lease_id: int = 0
    next_object_id: int = 0
    next_log_id: int = 0
    start_events: list[tuple[int, TopicPartition, int]] = field(
        default_factory=list
    )  # by log offset

    def incarnation(self, place: TopicPartition, offset: int = NEVER) -> Incarnation | None:
        """Return a partition's incarnation at a log offset, or None if none existed then."""
        for incarnation in reversed(self.places.get(place, ())):
            if incarnation.created < offset:
                return incarnation if offset <= incarnation.gone else None
        return None

    def topic(self, topic_id: str, offset: int = NEVER) -> TopicIncarnation | None:
        """Return a topic, or its tombstone, at a log offset; None if neither existed then."""
        for topic in reversed(self.topics.get(topic_id, ())):
            if topic.created < offset:
                return topic if offset <= topic.expired else None
        return None

    def cleaning(self, place: TopicPartition, offset: int = NEVER) -> Cleaning | None:
        """Return a partition's compaction progress at a log offset; None if never compacted."""
        found = [cleaning for at, cleaning in self.cleanings.get(place, ()) if at < offset]
        return found[-1] if found else None

    def cleaning_after(self, place: TopicPartition, row: Replacement) -> Cleaning:
        """Return a partition's compaction progress after a replacement of its runs."""
        incarnation = self.incarnation(place)
        start = 0 if incarnation is None else incarnation.start_before(NEVER)
        before = self.cleaning(place) or Cleaning()
        return before.after(row.first, row.end, row.bound, start)

    def object_is_open(self, object_id: int, offset: int = NEVER) -> bool:
        """Return whether a rewriter may still fill an object at a log offset."""
        found = self.rewritten.get(object_id)
        if found is None or not found.opened < offset <= found.closed:
            return False
        lease = self.leases.get(found.lease_id)
        return lease is not None and offset <= lease.closed

    def get_or_add_topic(self, topic_id: str, name: str, created: int) -> TopicIncarnation:
        """Return the topic that has this id now, or add a topic with this id and name."""
        found = self.topic(topic_id)
        if found is None:
            found = TopicIncarnation(name, created)
            self.topics.setdefault(topic_id, []).append(found)
        return found

    def apply(self, offset: int, record: MetadataRecord) -> None:
        """Apply one record of the log to this state, without checking the record."""
        _APPLY[type(record)](self, offset, record)


# --- applying records ---------------------------------------------------------------------------


def _apply_partitions(ledger: Ledger, offset: int, record: DisklessPartitionsRecord) -> None:
    topic_id = encode_uuid(record.topic_id)
    topic = ledger.get_or_add_topic(topic_id, record.topic_name, offset)
    for i in range(record.partition_count):
        place = topic_id, record.first_partition + i
        ledger.places.setdefault(place, []).append(Incarnation(offset, record.first_log_id + i))
        ledger.by_log_id[record.first_log_id + i] = place
    topic.partitions = max(topic.partitions, record.first_partition + record.partition_count)
    ledger.next_log_id = max(ledger.next_log_id, record.first_log_id + record.partition_count)
    _note_controller_epoch(ledger, offset, record.controller_epoch)


def _apply_tombstone(ledger: Ledger, offset: int, record: DisklessTopicTombstoneRecord) -> None:
    topic = ledger.get_or_add_topic(encode_uuid(record.topic_id), "", offset)
    topic.deleted, topic.deleted_at_ms = offset, record.deleted_at_ms
    _note_controller_epoch(ledger, offset, record.controller_epoch)


def _apply_partitions_gone(
    ledger: Ledger,
    offset: int,
    record: DisklessPartitionsRemovedRecord | DisklessPartitionsReleasedRecord,
) -> None:
    for index in record.partitions:
        incarnation = ledger.incarnation((encode_uuid(record.topic_id), index))
        if incarnation is not None:
            incarnation.gone = offset
            incarnation.released = isinstance(record, DisklessPartitionsReleasedRecord)
    if isinstance(record, DisklessPartitionsReleasedRecord):
        _note_controller_epoch(ledger, offset, record.controller_epoch)


def _apply_tombstone_expired(
    ledger: Ledger, offset: int, record: DisklessTombstoneExpiredRecord
) -> None:
    topic = ledger.topic(encode_uuid(record.topic_id))
    if topic is not None:
        topic.expired = offset


def _apply_log_starts(ledger: Ledger, offset: int, record: LogStartOffsetsRecord) -> None:
    for topic, index, start in zip(
        record.topic_indexes, record.partitions, record.log_start_offsets, strict=True
    ):
        place = encode_uuid(record.topic_ids[topic]), index
        incarnation = ledger.incarnation(place)
        if incarnation is not None:
            before = incarnation.starts[-1][1] if incarnation.starts else 0
            incarnation.starts.append((offset, max(before, start)))
            ledger.start_events.append((offset, place, start))


def _apply_lease_granted(ledger: Ledger, offset: int, record: LeaseGrantedRecord) -> None:
    for lease_id in record.closed_lease_ids:
        _end_lease(ledger, offset, lease_id, record.granted_at_ms)
    end = record.first_object_id + record.object_count
    ledger.leases[record.lease_id] = LeaseHistory(
        record.broker_id, record.broker_epoch, record.first_object_id, end, offset,
        record.granted_at_ms, last_committed=record.first_object_id - 1,
    )  # fmt: skip
    ledger.open_leases.setdefault(record.broker_id, set()).add(record.lease_id)
    known = ledger.brokers.get(record.broker_id, -1)
    ledger.brokers[record.broker_id] = max(known, record.broker_epoch)
    ledger.next_lease_id = max(ledger.next_lease_id, record.lease_id + 1)
    ledger.next_object_id = max(ledger.next_object_id, end)


def _apply_lease_closed(ledger: Ledger, offset: int, record: LeaseClosedRecord) -> None:
    _end_lease(ledger, offset, record.lease_id, record.closed_at_ms, record.end_object_id)


def _end_lease(
    ledger: Ledger, offset: int, lease_id: int, closed_at_ms: int, used_end: int = NEVER
) -> None:
    lease = ledger.leases.get(lease_id)
    if lease is not None and lease.closed == NEVER:
        lease.closed, lease.closed_at_ms = offset, closed_at_ms
        lease.used_end = min(lease.end, used_end)
        ledger.open_leases.get(lease.broker_id, set()).discard(lease_id)


def _apply_rewrite_lease(ledger: Ledger, offset: int, record: RewriteLeaseGrantedRecord) -> None:
    for lease_id in record.closed_lease_ids:
        _end_lease(ledger, offset, lease_id, record.granted_at_ms)
    end = record.first_object_id + record.object_count
    ledger.leases[record.lease_id] = LeaseHistory(
        record.broker_id, record.broker_epoch, record.first_object_id, end, offset,
        record.granted_at_ms, last_committed=record.first_object_id - 1, rewrites=True,
    )  # fmt: skip
    ledger.next_lease_id = max(ledger.next_lease_id, record.lease_id + 1)
    ledger.next_object_id = max(ledger.next_object_id, end)


def replacements_of(
    offset: int, record: RunsReplacedRecord
) -> list[tuple[TopicPartition, Replacement]]:
    """Return the offset ranges whose runs of batches a record replaces, each with its partition."""
    runs = list(zip(*(getattr(record, name) for name in NEW_RUN_COLUMNS), strict=True))
    ended = list(zip(record.ended_producer_ids, record.ended_first_offsets, strict=True))
    found, at, ended_at = [], 0, 0
    for topic, index, count, first, end, old_runs, digest, bound, flags, ended_count in zip(
        record.topic_indexes, record.partitions, record.run_counts, record.first_offsets,
        record.end_offsets, record.old_run_counts, record.old_run_digests, record.bounds,
        record.flags, record.ended_counts or (0,) * len(record.flags), strict=True,
    ):  # fmt: skip
        place = encode_uuid(record.topic_ids[topic]), index
        new = tuple(runs[at : at + count])
        gone = tuple(ended[ended_at : ended_at + ended_count])
        row = Replacement(
            offset, record.object_id, first, end, old_runs, digest, bound, flags, new, gone
        )
        found.append((place, row))
        at, ended_at = at + count, ended_at + ended_count
    return found


def _apply_replaced(ledger: Ledger, offset: int, record: RunsReplacedRecord) -> None:
    filled = ledger.rewritten.setdefault(
        record.object_id,
        RewrittenObject(
            record.size_bytes, record.broker_id, record.lease_id, offset, record.replaced_at_ms
        ),
    )
    filled.filled += sum(record.byte_sizes)
    if record.closes_object:
        filled.closed = min(filled.closed, offset)
    for place, row in replacements_of(offset, record):
        cleaning = ledger.cleaning_after(place, row)
        ledger.replaced.setdefault(place, []).append(row)
        if row.bound >= 0 and cleaning != ledger.cleaning(place):
            ledger.cleanings.setdefault(place, []).append((offset, cleaning))


def _apply_leases_forgotten(ledger: Ledger, offset: int, record: LeasesForgottenRecord) -> None:
    for lease_id in record.lease_ids:
        lease = ledger.leases.get(lease_id)
        if lease is not None:
            lease.forgotten = min(lease.forgotten, offset)


def _apply_fence(ledger: Ledger, offset: int, record: DeleteFenceRecord) -> None:
    for object_id in record.object_ids:
        ledger.fenced.setdefault(object_id, offset)


def _apply_marked(ledger: Ledger, offset: int, record: ObjectsMarkedRecord) -> None:
    for object_id in record.object_ids:
        ledger.marked.setdefault(object_id, (offset, record.marked_at_ms))


def _apply_removed(ledger: Ledger, offset: int, record: ObjectsRemovedRecord) -> None:
    for object_id in record.object_ids:
        ledger.removed.setdefault(object_id, offset)
        for stay in ledger.found_orphans.get(object_id, ())[-1:]:
            stay.gone = min(stay.gone, offset)


def _apply_orphans_found(ledger: Ledger, offset: int, record: OrphansFoundRecord) -> None:
    for object_id in record.object_ids:
        stays = ledger.found_orphans.setdefault(object_id, [])
        if not stays or stays[-1].gone != NEVER:
            stays.append(OrphanInterval(offset, record.marked_at_ms))


def _apply_producers_expired(ledger: Ledger, offset: int, record: ProducersExpiredRecord) -> None:
    for log_id, producer_id in zip(record.log_ids, record.producer_ids, strict=True):
        place = ledger.by_log_id.get(log_id)
        if place is not None:
            ledger.expired.setdefault((place, producer_id), []).append(offset)


def _apply_controller_epoch(ledger: Ledger, offset: int, record: ControllerEpochRecord) -> None:
    _note_controller_epoch(ledger, offset, record.controller_epoch)


def _note_controller_epoch(ledger: Ledger, offset: int, epoch: int) -> None:
    ledger.controller_epoch = max(ledger.controller_epoch, epoch)
    ledger.controller_epochs.append((offset, epoch))


# --- loading a checkpoint -----------------------------------------------------------------------


def _load_counters(ledger: Ledger, _offset: int, record: CoordinatorState) -> None:
    _note_controller_epoch(ledger, -1, record.controller_epoch)
    ledger.base_ids = record.next_lease_id, record.next_object_id, record.next_log_id
    ledger.next_lease_id = record.next_lease_id
    ledger.next_object_id = record.next_object_id
    ledger.next_log_id = record.next_log_id


def _load_topic(ledger: Ledger, offset: int, record: DisklessTopicState) -> None:
    topic_id = encode_uuid(record.topic_id)
    topic = ledger.get_or_add_topic(topic_id, record.topic_name, -1)
    if record.deleted_at_ms >= 0:
        topic.deleted, topic.deleted_at_ms = offset, record.deleted_at_ms
    for i, (log_id, start) in enumerate(zip(record.log_ids, record.log_start_offsets, strict=True)):
        place = topic_id, record.first_partition + i
        if log_id >= 0:
            ledger.places[place] = [Incarnation(-1, log_id, [(-1, start)] if start else [])]
            ledger.by_log_id[log_id] = place
    topic.partitions = max(topic.partitions, record.first_partition + len(record.log_ids))


def _load_lease(ledger: Ledger, offset: int, record: LeaseState) -> None:
    lease = LeaseHistory(
        record.broker_id, record.broker_epoch, record.first_object_id, record.end_object_id, -1,
        record.granted_at_ms, last_committed=record.last_committed_id,
        skipped=pairs(record.skipped), orphans=pairs(record.orphans),
        was_closed=record.closed_at_ms >= 0,
    )  # fmt: skip
    if record.closed_at_ms >= 0:
        lease.closed, lease.closed_at_ms = offset, record.closed_at_ms
    else:
        ledger.open_leases.setdefault(record.broker_id, set()).add(record.lease_id)
    ledger.leases[record.lease_id] = lease
    ledger.fenced.update((object_id, offset) for object_id in record.fenced)


def _load_rewrite_lease(ledger: Ledger, offset: int, record: RewriteLeaseState) -> None:
    lease = LeaseHistory(
        record.broker_id, record.broker_epoch, record.first_object_id, record.end_object_id, -1,
        record.granted_at_ms, was_closed=record.closed_at_ms >= 0, rewrites=True,
    )  # fmt: skip
    if record.closed_at_ms >= 0:
        lease.closed, lease.closed_at_ms = offset, record.closed_at_ms
    ledger.leases[record.lease_id] = lease
    ledger.fenced.update((object_id, offset) for object_id in record.fenced)
    still_open = set(record.open_ids)
    for first, end in pairs(record.opened):
        for object_id in range(first, end):
            if object_id not in still_open:  # its size is the objects' to say
                ledger.rewritten[object_id] = RewrittenObject(
                    -1, record.broker_id, record.lease_id, -1, -1, -1
                )
    for object_id, size, filled in zip(
        record.open_ids, record.open_sizes, record.open_filled, strict=True
    ):
        ledger.rewritten[object_id] = RewrittenObject(
            size, record.broker_id, record.lease_id, -1, -1, filled=filled
        )


def _load_cleaning(ledger: Ledger, _offset: int, record: CleaningState) -> None:
    rows = zip(record.cleaned_until, record.bounds, record.rewritten_until, strict=True)
    for log_id, row in zip(record.log_ids, rows, strict=True):
        place = ledger.by_log_id.get(log_id)
        if place is not None:
            ledger.cleanings[place] = [(-1, Cleaning(*row))]


def pairs(flat: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Split a flat list of range bounds into pairs; an unpaired last bound is dropped."""
    return tuple(zip(flat[::2], flat[1::2], strict=False))


def _load_broker(ledger: Ledger, _offset: int, record: DisklessBrokerState) -> None:
    ledger.brokers[record.broker_id] = record.broker_epoch


def _load_objects(ledger: Ledger, offset: int, record: ObjectsState) -> None:
    for object_id, marked_at_ms in zip(record.object_ids, record.marked_at_ms, strict=True):
        if marked_at_ms >= 0:
            ledger.marked[object_id] = offset, marked_at_ms


_APPLY: Final[dict[type[MetadataRecord], Callable[[Ledger, int, Any], None]]] = {
    DisklessPartitionsRecord: _apply_partitions,
    DisklessTopicTombstoneRecord: _apply_tombstone,
    DisklessPartitionsRemovedRecord: _apply_partitions_gone,
    DisklessPartitionsReleasedRecord: _apply_partitions_gone,
    DisklessTombstoneExpiredRecord: _apply_tombstone_expired,
    LogStartOffsetsRecord: _apply_log_starts,
    LeaseGrantedRecord: _apply_lease_granted,
    LeaseClosedRecord: _apply_lease_closed,
    RewriteLeaseGrantedRecord: _apply_rewrite_lease,
    RunsReplacedRecord: _apply_replaced,
    LeasesForgottenRecord: _apply_leases_forgotten,
    DeleteFenceRecord: _apply_fence,
    ObjectsMarkedRecord: _apply_marked,
    ObjectsRemovedRecord: _apply_removed,
    OrphansFoundRecord: _apply_orphans_found,
    ProducersExpiredRecord: _apply_producers_expired,
    ControllerEpochRecord: _apply_controller_epoch,
    CoordinatorState: _load_counters,
    DisklessTopicState: _load_topic,
    LeaseState: _load_lease,
    RewriteLeaseState: _load_rewrite_lease,
    CleaningState: _load_cleaning,
    DisklessBrokerState: _load_broker,
    ObjectsState: _load_objects,
}

APPLIED: Final = frozenset(_APPLY)
"""The record types that a ledger applies."""
