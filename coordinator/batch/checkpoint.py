"""A coordinator's state as the records of a checkpoint, and back.

Written once, against what every kind of state can do, so that the same state gives the same bytes
in memory and in SQLite: everything stands in the order of its key, and rows are cut into records of
a thousand. The order of the kinds is the order of loading: what refers stands after what it refers
to.

An appended run has no append time of its own: it is its object's commit time. So runs are written
in the older form while all runs of a record are appended ones. A broker's open leases are found
among the leases.

Source: KIP-630 (snapshots); records.diskless (the records whose names end in State).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, Final, Protocol
from uuid import UUID

from coordinator.batch.id_ranges import flat, from_flat
from coordinator.batch.runs import APPENDED, MARKER, Run, StoredObject
from coordinator.batch.state import (
    Answer,
    Broker,
    Cleaning,
    Counters,
    Lease,
    Log,
    LogId,
    OpenObject,
    Producer,
    ProducerKey,
    Rewrite,
    SmallTable,
    Table,
    Tables,
    Topic,
)
from coordinator.batch.transactions import Aborted, Marker, OpenTransactions, Transactional
from records.diskless import (
    AbortedState,
    CleaningState,
    CoordinatorState,
    DisklessBrokerState,
    DisklessTopicState,
    KeptAnswerState,
    LeaseState,
    ObjectsState,
    ProducersState,
    RewriteLeaseState,
    RunsState,
)
from records.frame import encode_record
from records.schema import MetadataRecord

CHUNK_ROWS: Final = 1000
"""Rows of one record: 50-70 KB, a few ms to load."""


class CheckpointSource(Tables, Protocol):
    """A state that can be walked from end to end."""

    def all_objects(self) -> Iterable[tuple[int, StoredObject]]:
        """Return all objects of the state with their object ids, by rising id."""

    def all_runs(self, log_id: LogId) -> Iterable[Run]:
        """Return a partition's undeleted runs of batches, by rising offset."""

    def all_aborted(self, log_id: LogId) -> Iterable[Aborted]:
        """Return a partition's aborted transactions, by rising last offset."""

    def all_producers(self, log_id: LogId) -> Iterable[tuple[int, Producer]]:
        """Return a partition's producer states with their producer ids, by rising id."""

    def all_answers(self) -> Iterable[tuple[int, Answer]]:
        """Return the commit responses kept for retries with their object ids, by rising id."""


class CheckpointSink(Protocol):
    """An empty state, to be filled."""

    @property
    def topics(self) -> SmallTable[UUID, Topic]: ...

    @property
    def logs(self) -> Table[LogId, Log]: ...

    @property
    def producers(self) -> Table[ProducerKey, Producer]: ...

    @property
    def leases(self) -> SmallTable[int, Lease]: ...

    @property
    def brokers(self) -> SmallTable[int, Broker]: ...

    @property
    def answers(self) -> Table[int, Answer]: ...

    @property
    def cleanings(self) -> Table[LogId, Cleaning]: ...

    @property
    def open_transactions(self) -> Table[LogId, OpenTransactions]: ...

    @property
    def counters(self) -> Counters: ...

    def add_aborted(self, log_id: LogId, entries: Iterable[Aborted]) -> None:
        """Add a partition's aborted transactions from a checkpoint, by rising last offset."""

    def add_objects(self, objects: Iterable[tuple[int, StoredObject]]) -> None:
        """Add objects from a checkpoint to the state being loaded, by rising object id."""

    def add_runs(self, log_id: LogId, rows: Iterable[Run]) -> None:
        """Add a partition's runs of batches from a checkpoint to the state, by rising offset.

        An append time of -1 stands for the commit time of the run's object, which is added before.
        """


# --- writing -----------------------------------------------------------------------------------


def checkpoint_values(source: CheckpointSource) -> Iterator[bytes]:
    """Yield the encoded records of a state's checkpoint in the order that `load_record` expects."""
    return map(encode_record, checkpoint_records(source))


def checkpoint_records(source: CheckpointSource) -> Iterator[MetadataRecord]:
    """Yield the records of a state's checkpoint in the order that `load_record` expects."""
    counters = source.counters
    yield CoordinatorState(
        controller_epoch=counters.controller_epoch,
        next_lease_id=counters.next_lease_id,
        next_object_id=counters.next_object_id,
        next_log_id=counters.next_log_id,
        largest_expired_id=counters.largest_expired_id,
        steady_ms=counters.steady_ms,
        clock_resets=counters.clock_resets,
        notes_deletions=counters.notes_deletions,
    )
    for broker_id, broker in sorted(source.brokers.items()):
        yield DisklessBrokerState(
            broker_id=broker_id, broker_epoch=broker.epoch, answered=broker.answered
        )
    for lease_id, lease in sorted(source.leases.items()):
        yield _lease_record(lease_id, lease)
    yield from _topic_records(source)
    for rows in _chunks(source.all_objects()):
        yield _objects_record(rows)
    log_ids = sorted(_log_ids(source))
    found = ((log_id, source.cleanings.get(log_id)) for log_id in log_ids)
    for rows in _chunks((log_id, *row) for log_id, row in found if row is not None):
        yield CleaningState(**dict(zip(_CLEANING, zip(*rows, strict=True), strict=True)))
    for log_id in log_ids:
        for rows in _chunks(source.all_runs(log_id)):
            yield _runs_record(log_id, rows)
    for log_id in log_ids:
        for rows in _chunks(source.all_aborted(log_id)):
            columns = dict(zip(_ABORTED, zip(*rows, strict=True), strict=True))
            yield AbortedState(log_id=log_id, **columns)
    for log_id in log_ids:
        for rows in _chunks(source.all_producers(log_id)):
            yield _producers_record(log_id, rows)
    for object_id, answer in source.all_answers():
        yield _answer_record(object_id, answer)


def _chunks(rows: Iterable[Any]) -> Iterator[list[Any]]:
    iterator = iter(rows)
    while chunk := list(islice(iterator, CHUNK_ROWS)):
        yield chunk


def _log_ids(source: Tables) -> Iterator[LogId]:
    for _, topic in source.topics.items():
        yield from (log_id for log_id in topic.log_ids if log_id >= 0)


def _topic_records(source: CheckpointSource) -> Iterator[DisklessTopicState]:
    for topic_id, topic in sorted(source.topics.items(), key=lambda item: item[0].bytes):
        for first in range(0, max(len(topic.log_ids), 1), CHUNK_ROWS):
            log_ids = topic.log_ids[first : first + CHUNK_ROWS]
            logs = [source.logs.get(log_id) or (0, 0) for log_id in log_ids]
            yield DisklessTopicState(
                topic_id=topic_id,
                topic_name=topic.name,
                first_partition=first,
                log_ids=log_ids,
                log_start_offsets=tuple(log[0] for log in logs),
                high_watermarks=tuple(log[1] for log in logs),
                deleted_at_ms=topic.deleted_at_ms,
            )


_ABORTED: Final = ("producer_ids", "first_offsets", "last_offsets", "last_stable_offsets")
_CLEANING: Final = ("log_ids", "cleaned_until", "bounds", "rewritten_until")


def _lease_record(lease_id: int, lease: Lease) -> LeaseState | RewriteLeaseState:
    if lease.rewrite is not None:
        return _rewrite_lease_record(lease_id, lease, lease.rewrite)
    return LeaseState(
        lease_id=lease_id,
        broker_id=lease.broker_id,
        broker_epoch=lease.broker_epoch,
        first_object_id=lease.first_object_id,
        end_object_id=lease.end_object_id,
        last_committed_id=lease.last_committed_id,
        skipped=flat(lease.skipped),
        fenced=lease.fenced,
        granted_at_ms=lease.granted_at_ms,
        closed_at_ms=lease.closed_at_ms,
        orphans=flat(lease.orphans),
    )


def _rewrite_lease_record(lease_id: int, lease: Lease, rewrite: Rewrite) -> RewriteLeaseState:
    return RewriteLeaseState(
        lease_id=lease_id,
        broker_id=lease.broker_id,
        broker_epoch=lease.broker_epoch,
        plan_id=UUID(bytes=rewrite.plan_id),
        first_object_id=lease.first_object_id,
        end_object_id=lease.end_object_id,
        fenced=lease.fenced,
        granted_at_ms=lease.granted_at_ms,
        renewed_at_ms=rewrite.renewed_at_ms,
        closed_at_ms=lease.closed_at_ms,
        orphans=flat(lease.orphans),
        opened=flat(rewrite.opened),
        open_ids=tuple(one.object_id for one in rewrite.open_objects),
        open_sizes=tuple(one.size_bytes for one in rewrite.open_objects),
        open_formats=tuple(one.object_format for one in rewrite.open_objects),
        open_filled=tuple(one.filled_bytes for one in rewrite.open_objects),
    )


def _objects_record(rows: list[tuple[int, StoredObject]]) -> ObjectsState:
    object_ids, objects = zip(*rows, strict=True)
    columns = zip(*objects, strict=True)
    sizes, used, formats, brokers, committed, marked, topics, first_deletions = columns
    indexes: dict[bytes, int] = {}
    for topic_id in chain.from_iterable(topics):
        indexes.setdefault(topic_id, len(indexes))
    return ObjectsState(
        object_ids=object_ids,
        sizes_bytes=sizes,
        used_bytes=used,
        formats=formats,
        broker_ids=brokers,
        committed_at_ms=committed,
        marked_at_ms=marked,
        topic_ids=tuple(UUID(bytes=topic_id) for topic_id in indexes),
        topic_counts=tuple(map(len, topics)),
        topic_indexes=tuple(indexes[topic_id] for topic_id in chain.from_iterable(topics)),
        first_deletions_ms=first_deletions if max(first_deletions) >= 0 else (),
    )


def _runs_record(log_id: LogId, rows: list[Run]) -> RunsState:
    columns = zip(*rows, strict=True)
    bases, lasts, objects, places, sizes, times, appended, kinds, counts, formats, markers = columns
    all_appended = min(formats) == max(formats) == APPENDED
    facts = [marker for marker in markers if marker is not None]
    producer_ids, epochs, outcomes, coordinators = zip(*facts, strict=True) if facts else ((),) * 4
    return RunsState(
        log_id=log_id,
        base_offset=bases[0],
        last_offsets=lasts,
        object_ids=objects,
        byte_offsets=places,
        byte_sizes=sizes,
        max_timestamps=times,
        timestamp_types=kinds,
        append_times=() if all_appended else appended,
        record_counts=() if all_appended else counts,
        object_formats=() if all_appended else formats,
        marker_producer_ids=producer_ids,
        marker_epochs=epochs,
        marker_outcomes=outcomes,
        marker_coordinator_epochs=coordinators,
    )


def _producers_record(log_id: LogId, rows: list[tuple[int, Producer]]) -> ProducersState:
    producer_ids, producers = zip(*rows, strict=True)
    epochs, appended, kept, transactional = zip(*producers, strict=True)
    batches = tuple(chain.from_iterable(kept))
    sequences, lasts, bases, times = zip(*batches, strict=True) if batches else ((),) * 4
    facts: Any = ((),) * 4
    if any(transactional):
        facts = zip(*(row or Transactional() for row in transactional), strict=True)
    open_numbers, first_offsets, ended_numbers, coordinators = facts
    return ProducersState(
        log_id=log_id,
        producer_ids=producer_ids,
        producer_epochs=epochs,
        appended_at_ms=appended,
        batch_counts=tuple(map(len, kept)),
        base_sequences=sequences,
        last_sequences=lasts,
        base_offsets=bases,
        append_times=times,
        open_numbers=open_numbers,
        first_offsets=first_offsets,
        ended_numbers=ended_numbers,
        coordinator_epochs=coordinators,
    )


def _answer_record(object_id: int, answer: Answer) -> KeptAnswerState:
    return KeptAnswerState(
        object_id=object_id,
        lease_id=answer.lease_id,
        committed_at_ms=answer.committed_at_ms,
        topic_ids=answer.topic_ids,
        topic_indexes=answer.topic_indexes,
        partitions=answer.partitions,
        batch_counts=answer.batch_counts,
        log_start_offsets=answer.log_start_offsets,
        base_offsets=answer.base_offsets,
        append_times=answer.append_times,
        error_codes=answer.error_codes,
        duplicates=answer.duplicates,
    )


# --- loading -----------------------------------------------------------------------------------


class MisplacedRecordError(Exception):
    """A checkpoint holds a record that is not part of a batch coordinator's state."""


def load_record(sink: CheckpointSink, record: MetadataRecord) -> None:
    """Add the content of one checkpoint record to the state being loaded.

    Call it in the order in which the records were written.

    Raises:  MisplacedRecordError; ValueError for columns of unequal length.
    """
    match record:
        case CoordinatorState():
            counters = sink.counters
            counters.controller_epoch = record.controller_epoch
            counters.next_lease_id = record.next_lease_id
            counters.next_object_id = record.next_object_id
            counters.next_log_id = record.next_log_id
            counters.largest_expired_id = record.largest_expired_id
            counters.steady_ms = record.steady_ms
            counters.clock_resets = record.clock_resets
            counters.notes_deletions = record.notes_deletions
        case DisklessBrokerState():
            sink.brokers[record.broker_id] = Broker(record.broker_epoch, (), record.answered)
        case LeaseState():
            _load_lease(sink, record)
        case RewriteLeaseState():
            sink.leases[record.lease_id] = _rewrite_lease_in(record)
        case CleaningState():
            for log_id, *row in zip(*(getattr(record, name) for name in _CLEANING), strict=True):
                sink.cleanings[log_id] = Cleaning(*row)
        case DisklessTopicState():
            _load_topic(sink, record)
        case ObjectsState():
            sink.add_objects(_objects_in(record))
        case RunsState():
            sink.add_runs(record.log_id, _runs_in(record))
        case AbortedState():
            columns = (getattr(record, name) for name in _ABORTED)
            sink.add_aborted(record.log_id, map(Aborted._make, zip(*columns, strict=True)))
        case ProducersState():
            _load_producers(sink, record)
        case KeptAnswerState():
            sink.answers[record.object_id] = _answer_in(record)
        case _:
            raise MisplacedRecordError(f"{type(record).__name__} in a coordinator's checkpoint")


def _load_lease(sink: CheckpointSink, record: LeaseState) -> None:
    lease = Lease(
        record.broker_id,
        record.broker_epoch,
        record.first_object_id,
        record.end_object_id,
        record.last_committed_id,
        from_flat(record.skipped),
        record.fenced,
        record.granted_at_ms,
        record.closed_at_ms,
        from_flat(record.orphans),
    )
    sink.leases[record.lease_id] = lease
    broker = sink.brokers.get(lease.broker_id)
    if lease.is_open and broker is not None:
        sink.brokers[lease.broker_id] = broker._replace(
            open_leases=(*broker.open_leases, record.lease_id)
        )


def _rewrite_lease_in(record: RewriteLeaseState) -> Lease:
    open_objects = zip(
        record.open_ids, record.open_sizes, record.open_formats, record.open_filled, strict=True
    )
    rewrite = Rewrite(
        record.plan_id.bytes,
        record.renewed_at_ms,
        from_flat(record.opened),
        tuple(OpenObject(*one) for one in open_objects),
    )
    return Lease(
        record.broker_id,
        record.broker_epoch,
        record.first_object_id,
        record.end_object_id,
        record.first_object_id - 1,
        (),
        record.fenced,
        record.granted_at_ms,
        record.closed_at_ms,
        from_flat(record.orphans),
        rewrite,
    )


def _load_topic(sink: CheckpointSink, record: DisklessTopicState) -> None:
    before = sink.topics.get(record.topic_id)
    log_ids = record.log_ids if before is None else before.log_ids + record.log_ids
    sink.topics[record.topic_id] = Topic(record.topic_name, log_ids, record.deleted_at_ms)
    for log_id, log_start, high_watermark in zip(
        record.log_ids, record.log_start_offsets, record.high_watermarks, strict=True
    ):
        if log_id >= 0:
            sink.logs[log_id] = (log_start, high_watermark)


def _objects_in(record: ObjectsState) -> Iterator[tuple[int, StoredObject]]:
    raw = [topic_id.bytes for topic_id in record.topic_ids]
    indexes = iter(record.topic_indexes)
    rows = zip(
        record.object_ids,
        record.sizes_bytes,
        record.used_bytes,
        record.formats,
        record.broker_ids,
        record.committed_at_ms,
        record.marked_at_ms,
        record.topic_counts,
        record.first_deletions_ms or (-1,) * len(record.object_ids),
        strict=True,
    )
    for object_id, *columns, count, died_ms in rows:
        topics = tuple(raw[index] for index in islice(indexes, count))
        yield object_id, StoredObject._make((*columns, topics, died_ms))


def _runs_in(record: RunsState) -> Iterator[Run]:
    bases = (record.base_offset, *(last + 1 for last in record.last_offsets[:-1]))
    counts = (last - base + 1 for base, last in zip(bases, record.last_offsets, strict=True))
    formats = record.object_formats or (APPENDED,) * len(bases)
    facts = zip(
        record.marker_producer_ids,
        record.marker_epochs,
        record.marker_outcomes,
        record.marker_coordinator_epochs,
        strict=True,
    )
    markers = (Marker(*next(facts)) if one == MARKER else None for one in formats)
    rows = zip(
        bases,
        record.last_offsets,
        record.object_ids,
        record.byte_offsets,
        record.byte_sizes,
        record.max_timestamps,
        record.append_times or (-1,) * len(bases),
        record.timestamp_types,
        record.record_counts or counts,
        formats,
        markers,
        strict=True,
    )
    return map(Run._make, rows)


def _load_producers(sink: CheckpointSink, record: ProducersState) -> None:
    batches = zip(
        record.base_sequences,
        record.last_sequences,
        record.base_offsets,
        record.append_times,
        strict=True,
    )
    absent = (-1,) * len(record.producer_ids)
    facts = zip(
        record.open_numbers or absent,
        record.first_offsets or absent,
        record.ended_numbers or absent,
        record.coordinator_epochs or absent,
        strict=True,
    )
    log_id, loaded_open = record.log_id, []
    for producer_id, epoch, appended, count, fields in zip(
        record.producer_ids,
        record.producer_epochs,
        record.appended_at_ms,
        record.batch_counts,
        facts,
        strict=True,
    ):
        kept = tuple(islice(batches, count))
        row: Transactional | None = Transactional(*fields)
        if row == Transactional():
            row = None
        elif row is not None and row.is_open:
            loaded_open.append((row.first_offset, producer_id))
        sink.producers[log_id, producer_id] = (epoch, appended, kept, row)
    if loaded_open:
        others = sink.open_transactions.get(log_id) or ()
        sink.open_transactions[log_id] = tuple(sorted((*others, *loaded_open)))


def _answer_in(record: KeptAnswerState) -> Answer:
    return Answer(
        record.lease_id,
        record.committed_at_ms,
        record.topic_ids,
        record.topic_indexes,
        record.partitions,
        record.batch_counts,
        record.log_start_offsets,
        record.base_offsets,
        record.append_times,
        record.error_codes,
        record.duplicates,
    )
