"""Changes the tables as records say: once, for every owner of tables.

`apply_record` serves live traffic, a leader's pending overlay, replay after a restart and other
replicas alike. So a decision made against pending state sees what every replica will see.

The trap: nothing is chosen here. The time, the refusals and the next id stand in the record.

Source: docs/design/state-machines.md#decide-and-apply; KIP-1164, Batch Coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from coordinator.batch.id_ranges import added, appended, numbers, without
from coordinator.batch.runs import ranges_of
from coordinator.batch.settings import KEPT_ANSWERS, KEPT_BATCHES
from coordinator.batch.state import (
    MAX_SEQUENCE,
    NO_LOG,
    UNKNOWN_ID,
    Answer,
    Broker,
    KeptBatch,
    Lease,
    LeaseFinder,
    Log,
    LogId,
    OpenObject,
    Producer,
    ProducerKey,
    Rewrite,
    Tables,
    Topic,
    cleaned,
    log_ids_of,
    released_mark,
)
from coordinator.batch.transactions import Transactional, ended, opened, without_transaction
from records.diskless import (
    ControllerEpochRecord,
    DeleteFenceRecord,
    DisklessPartitionsRecord,
    DisklessPartitionsReleasedRecord,
    DisklessPartitionsRemovedRecord,
    DisklessTombstoneExpiredRecord,
    DisklessTopicTombstoneRecord,
    LeaseClosedRecord,
    LeaseGrantedRecord,
    LeasesForgottenRecord,
    LogStartOffsetsRecord,
    ObjectCommitRecord,
    ObjectsMarkedRecord,
    ObjectsRemovedRecord,
    OrphansFoundRecord,
    ProducersExpiredRecord,
    RewriteLeaseGrantedRecord,
    RewriteLeaseRenewedRecord,
    RunsReplacedRecord,
    SteadyTimeRecord,
    TransactionMarkersRecord,
)
from records.schema import MetadataRecord


def apply_record(tables: Tables, record: MetadataRecord) -> None:
    """Apply one record, committed or proposed, to the coordinator's tables.

    Raises:  KeyError for a record that is not a batch coordinator's:
    `coordinator.batch.log_records`          reads a log so that there is none.
    """
    _APPLY[type(record)](tables, record)


# --- topics ------------------------------------------------------------------------------------


def _partitions(tables: Tables, record: DisklessPartitionsRecord) -> None:
    topic = tables.topics.get(record.topic_id) or Topic(record.topic_name, ())
    assert topic.deleted_at_ms < 0, f"partitions for a tombstone: {record}"
    first = record.first_partition
    end = first + record.partition_count
    assert first <= len(topic.log_ids), f"partitions out of order: {record}"
    there = topic.log_ids[first:end]
    assert all(log_id < NO_LOG for log_id in there), f"partitions made twice: {record}"
    counters = tables.counters
    assert record.first_log_id >= counters.next_log_id, f"a log id given twice: {record}"
    counters.next_log_id = record.first_log_id + record.partition_count
    added = tuple(range(record.first_log_id, counters.next_log_id))
    for log_id in added:
        tables.logs[log_id] = (0, 0)
    tables.topics[record.topic_id] = topic._replace(
        log_ids=topic.log_ids[:first] + added + topic.log_ids[end:]
    )
    _heard_controller(tables, record.controller_epoch)


def _tombstone(tables: Tables, record: DisklessTopicTombstoneRecord) -> None:
    topic = tables.topics.get(record.topic_id) or Topic("", ())
    tables.topics[record.topic_id] = topic._replace(deleted_at_ms=record.deleted_at_ms)
    _heard_controller(tables, record.controller_epoch)


def _partitions_removed(tables: Tables, record: DisklessPartitionsRemovedRecord) -> None:
    topic = tables.topics.get(record.topic_id)
    assert topic is not None, f"no such topic: {record}"
    assert topic.deleted_at_ms >= 0, f"a living topic loses partitions: {record}"
    left = list(topic.log_ids)
    for partition in record.partitions:
        tables.logs.pop(left[partition], None)
        tables.cleanings.pop(left[partition], None)
        tables.open_transactions.pop(left[partition], None)
        left[partition] = NO_LOG
    tables.topics[record.topic_id] = topic._replace(log_ids=tuple(left))


def _partitions_released(tables: Tables, record: DisklessPartitionsReleasedRecord) -> None:
    topic = tables.topics.get(record.topic_id)
    assert topic is not None, f"no such topic: {record}"
    assert topic.deleted_at_ms < 0, f"a deleted topic lets go of partitions: {record}"
    left = list(topic.log_ids)
    for partition in record.partitions:
        log = tables.logs.pop(left[partition], None)
        assert log is None or log[1] == 0, f"partition {partition} has data: {record}"
        left[partition] = released_mark(record.controller_epoch)
    tables.topics[record.topic_id] = topic._replace(log_ids=tuple(left))
    _heard_controller(tables, record.controller_epoch)


def _tombstone_expired(tables: Tables, record: DisklessTombstoneExpiredRecord) -> None:
    tables.topics.pop(record.topic_id, None)


def _controller_epoch(tables: Tables, record: ControllerEpochRecord) -> None:
    _heard_controller(tables, record.controller_epoch)


def _heard_controller(tables: Tables, epoch: int) -> None:
    counters = tables.counters
    assert epoch >= counters.controller_epoch, f"controller epoch {epoch} after {counters}"
    counters.controller_epoch = epoch


# --- commits -----------------------------------------------------------------------------------


def _commit(tables: Tables, record: ObjectCommitRecord) -> None:
    apply_commit(tables, record, log_ids_of(tables, record))


def apply_commit(tables: Tables, record: ObjectCommitRecord, log_ids: Sequence[LogId]) -> None:
    """Apply an object's commit record, whose partitions have the log ids `log_ids`."""
    object_id = record.object_id
    lease = tables.leases.get(record.lease_id)
    assert lease is not None, f"a commit without a lease: object {object_id}"
    assert lease.is_open, f"a commit under a closed lease: object {object_id}"
    last = lease.last_committed_id
    assert object_id > last, f"object {object_id} committed after object {last}"
    tables.leases[record.lease_id] = lease._replace(
        last_committed_id=object_id,
        skipped=appended(lease.skipped, last + 1, object_id),
        fenced=tuple(fenced for fenced in lease.fenced if fenced > object_id),
    )
    alone = not (record.error_codes or record.duplicates or record.transaction_numbers)
    alone = alone and len(log_ids) == len(record.base_offsets)
    append = _append_single_batches if alone else _append_batches
    log_starts = append(tables, record, log_ids)
    times: tuple[int, ...] = ()
    if any(record.timestamp_types):
        times = tuple(_append_times(record))
    tables.answers[object_id] = Answer(
        record.lease_id,
        record.committed_at_ms,
        record.topic_ids,
        record.topic_indexes,
        record.partitions,
        record.batch_counts,
        tuple(log_starts),
        record.base_offsets,
        times,
        record.error_codes,
        record.duplicates,
    )
    _keep_newest_answers(tables, record.broker_id, record.broker_epoch, object_id)


def _append_times(record: ObjectCommitRecord) -> Iterator[int]:
    """Yield the append time of each batch, or -1 for a batch with create time.

    Kafka answers a Produce request so.
    """
    for kind, time in zip(record.timestamp_types, record.max_timestamps, strict=True):
        yield time if kind else -1


def _append_single_batches(
    tables: Tables, record: ObjectCommitRecord, log_ids: Sequence[LogId]
) -> list[int]:
    """Apply a commit with one accepted batch per partition; return the partitions' log starts.

    The usual case, done faster. Tables change once, at the end: no partition and so no producer's
    row occurs twice.
    """
    log_starts: list[int] = []
    now_ms = record.committed_at_ms
    get_log, get_producer = tables.logs.get, tables.producers.get
    logs: dict[LogId, Log] = {}
    producers: dict[ProducerKey, Producer] = {}
    for log_id, base, count, time, kind, producer_id, epoch, sequence in zip(
        log_ids,
        record.base_offsets,
        record.record_counts,
        record.max_timestamps,
        record.timestamp_types,
        record.producer_ids,
        record.producer_epochs,
        record.base_sequences,
        strict=True,
    ):
        log = get_log(log_id)
        assert log is not None, f"no partition for object {record.object_id}"
        log_start, end = log
        assert base == end, f"offset {base} at end {end} of {log_id}, {record.object_id}"
        logs[log_id] = (log_start, end + count)
        log_starts.append(log_start)
        if producer_id < 0:
            continue
        key = (log_id, producer_id)
        before = get_producer(key)
        kept = before[2][1 - KEPT_BATCHES :] if before is not None and before[0] == epoch else ()
        last = (sequence + count - 1) & MAX_SEQUENCE
        batch = (sequence, last, base, time if kind else -1)
        transactional = None if before is None else before[3]
        producers[key] = (epoch, now_ms, (*kept, batch), transactional)
    assert len(logs) == len(log_starts), f"a partition named twice: object {record.object_id}"
    tables.logs.update(logs)
    tables.producers.update(producers)
    return log_starts


def _append_batches(
    tables: Tables, record: ObjectCommitRecord, log_ids: Sequence[LogId]
) -> list[int]:
    """Advance high watermarks and producer states by a commit; return partitions' log starts."""
    log_starts: list[int] = []
    now_ms = record.committed_at_ms
    logs, producers = tables.logs, tables.producers
    get_producer = producers.get
    nothing = (0,) * len(record.base_offsets)
    rows = zip(
        record.error_codes or nothing,
        record.duplicates or nothing,
        record.base_offsets,
        record.record_counts,
        record.max_timestamps,
        record.timestamp_types,
        record.producer_ids,
        record.producer_epochs,
        record.base_sequences,
        record.transaction_numbers or (-1,) * len(record.base_offsets),
        strict=True,
    )
    for log_id, batch_count in zip(log_ids, record.batch_counts, strict=True):
        group = islice(rows, batch_count)
        log = logs.get(log_id) if log_id >= 0 else None
        if log is None:
            log_starts.append(-1)
            assert all(row[0] for row in group), f"no partition for object {record.object_id}"
            continue
        log_start, end = log
        log_starts.append(log_start)
        current, current_epoch = -1, -1  # whose batches these are: its row is written once
        kept: tuple[KeptBatch, ...] = ()
        transactional: Transactional | None = None
        for (
            error,
            duplicate,
            base,
            count,
            time,
            kind,
            producer_id,
            epoch,
            sequence,
            number,
        ) in group:
            if error or duplicate:
                continue
            assert base == end, f"offset {base} at end {end} of {log_id}, {record.object_id}"
            end += count
            if producer_id < 0:
                continue
            if producer_id != current:
                if current >= 0:
                    producers[log_id, current] = (current_epoch, now_ms, kept, transactional)
                before = get_producer((log_id, producer_id))
                kept = before[2] if before is not None and before[0] == epoch else ()
                transactional = None if before is None else before[3]
                current, current_epoch = producer_id, epoch
            elif epoch != current_epoch:
                current_epoch, kept = epoch, ()
            last = (sequence + count - 1) & MAX_SEQUENCE
            kept = (*kept[1 - KEPT_BATCHES :], (sequence, last, base, time if kind else -1))
            if number >= 0 and not (transactional and transactional.is_open):
                others = tables.open_transactions.get(log_id) or ()
                tables.open_transactions[log_id] = (*others, (base, producer_id))
                transactional = opened(transactional, number, base)
        if current >= 0:
            producers[log_id, current] = (current_epoch, now_ms, kept, transactional)
        logs[log_id] = (log_start, end)
    return log_starts


def log_ids_of_markers(tables: Tables, record: TransactionMarkersRecord) -> list[LogId]:
    """Return the log id of each marker of a committed record."""
    topics = [tables.topics.get(topic_id) for topic_id in record.topic_ids]
    assert None not in topics, f"no such topic: {record}"
    log_ids = [topic.log_ids for topic in topics if topic is not None]
    return [
        log_ids[index][partition]
        for index, partition in zip(record.topic_indexes, record.partitions, strict=True)
    ]


def _markers(tables: Tables, record: TransactionMarkersRecord) -> None:
    apply_markers(tables, record, log_ids_of_markers(tables, record))


def apply_markers(
    tables: Tables, record: TransactionMarkersRecord, log_ids: Sequence[LogId]
) -> None:
    """End transactions by their markers, which take offsets and change producer states.

    Args:  log_ids: of the markers (`log_ids_of_markers`).
    """
    logs, producers, now_ms = tables.logs, tables.producers, record.written_at_ms
    for log_id, offset, producer_id, epoch, number, coordinator_epoch in zip(
        log_ids,
        record.offsets,
        record.producer_ids,
        record.producer_epochs,
        record.transaction_numbers,
        record.coordinator_epochs,
        strict=True,
    ):
        if offset >= 0:
            log_start, end = logs.get(log_id) or (0, -1)
            assert offset == end, f"a marker at {offset}, at end {end} of {log_id}: {record}"
            logs[log_id] = (log_start, offset + 1)
        key = (log_id, producer_id)
        known_epoch, _, kept, row = producers.get(key) or (epoch, 0, (), None)
        if epoch > known_epoch:
            known_epoch, kept = epoch, ()
        if row is not None and row.open_number == number:
            _close_transaction(tables, log_id, row.first_offset, producer_id)
        producers[key] = (known_epoch, now_ms, kept, ended(row, number, coordinator_epoch))


def _close_transaction(tables: Tables, log_id: LogId, first_offset: int, producer_id: int) -> None:
    """Remove a producer's transaction from a partition's open transactions."""
    before = tables.open_transactions.get(log_id) or ()
    left = without_transaction(before, first_offset, producer_id)
    if left:
        tables.open_transactions[log_id] = left
    else:
        tables.open_transactions.pop(log_id, None)


def _keep_newest_answers(tables: Tables, broker_id: int, epoch: int, object_id: int) -> None:
    broker = tables.brokers.get(broker_id)
    assert broker is not None, f"broker {broker_id} never had a lease"
    assert broker.epoch == epoch, f"a commit of an old epoch {epoch}: {broker}"
    answered = (*broker.answered, object_id)
    if len(answered) > KEPT_ANSWERS:
        tables.answers.pop(answered[0], None)
        answered = answered[1:]
    tables.brokers[broker_id] = broker._replace(answered=answered)


def _log_starts(tables: Tables, record: LogStartOffsetsRecord) -> None:
    for index, partition, offset in zip(
        record.topic_indexes, record.partitions, record.log_start_offsets, strict=True
    ):
        topic = tables.topics.get(record.topic_ids[index])
        assert topic is not None, f"no such topic: {record}"
        log_id = topic.log_ids[partition]
        log = tables.logs.get(log_id)
        assert log is not None, f"no such partition: {record}"
        assert log[0] <= offset <= log[1], f"log start {log} moves to {offset}"
        tables.logs[log_id] = (offset, log[1])


def _producers_expired(tables: Tables, record: ProducersExpiredRecord) -> None:
    for key in zip(record.log_ids, record.producer_ids, strict=True):
        gone = tables.producers.pop(key, None)
        if gone is not None and gone[3] is not None and gone[3].is_open:
            log_id, producer_id = key
            # The topic is deleted.
            _close_transaction(tables, log_id, gone[3].first_offset, producer_id)
    if record.largest_expired_id != UNKNOWN_ID:
        counters = tables.counters
        before = counters.largest_expired_id
        assert record.largest_expired_id >= before, f"expired ids fall from {before}: {record}"
        counters.largest_expired_id = record.largest_expired_id


def _steady_time(tables: Tables, record: SteadyTimeRecord) -> None:
    tables.counters.steady_ms = record.steady_ms
    tables.counters.clock_resets += record.replaces != 0


# --- leases ------------------------------------------------------------------------------------


def _granted(tables: Tables, record: LeaseGrantedRecord) -> None:
    counters = tables.counters
    end = record.first_object_id + record.object_count
    assert record.lease_id >= counters.next_lease_id, f"a lease id given twice: {record}"
    assert record.first_object_id >= counters.next_object_id, f"an id given twice: {record}"
    counters.next_lease_id, counters.next_object_id = record.lease_id + 1, end
    for lease_id in record.closed_lease_ids:
        _close(tables, lease_id, record.granted_at_ms, None)
    tables.leases[record.lease_id] = Lease(
        record.broker_id,
        record.broker_epoch,
        record.first_object_id,
        end,
        record.first_object_id - 1,
        (),
        (),
        record.granted_at_ms,
    )
    broker = tables.brokers.get(record.broker_id)
    if broker is None or broker.epoch != record.broker_epoch:
        assert broker is None or broker.epoch < record.broker_epoch, f"{record} after {broker}"
        broker = Broker(record.broker_epoch, (), ())
    tables.brokers[record.broker_id] = broker._replace(
        open_leases=(*broker.open_leases, record.lease_id)
    )


def _closed(tables: Tables, record: LeaseClosedRecord) -> None:
    _close(tables, record.lease_id, record.closed_at_ms, record.end_object_id)


def _close(tables: Tables, lease_id: int, closed_at_ms: int, end_object_id: int | None) -> None:
    """Close a lease of object ids; uncommitted ids below `end_object_id` become orphans."""
    lease = tables.leases.get(lease_id)
    assert lease is not None, f"no lease {lease_id} to close"
    assert lease.is_open, f"lease {lease_id} is closed twice"
    if lease.rewrite is not None:
        ids = ((lease.first_object_id, lease.end_object_id),)
        tables.leases[lease_id] = lease._replace(
            closed_at_ms=closed_at_ms,
            orphans=without(ids, numbers(lease.rewrite.opened)),
            rewrite=lease.rewrite._replace(open_objects=()),
        )
        return
    end = lease.end_object_id if end_object_id is None else end_object_id
    orphans = appended(lease.skipped, lease.last_committed_id + 1, end)
    tables.leases[lease_id] = lease._replace(closed_at_ms=closed_at_ms, orphans=orphans)
    broker = tables.brokers.get(lease.broker_id)
    assert broker is not None, f"a lease of an unknown broker: {lease}"
    tables.brokers[lease.broker_id] = broker._replace(
        open_leases=tuple(other for other in broker.open_leases if other != lease_id)
    )


def _forgotten(tables: Tables, record: LeasesForgottenRecord) -> None:
    for lease_id in record.lease_ids:
        lease = tables.leases.pop(lease_id, None)
        assert lease is not None, f"no lease {lease_id} to forget"
        if lease.rewrite is not None:
            continue
        broker = tables.brokers.get(lease.broker_id)
        assert broker is not None, f"a lease of an unknown broker: {lease}"
        for object_id in lease_answers(tables, lease):
            tables.answers.pop(object_id, None)
        first, end = lease.first_object_id, lease.end_object_id
        tables.brokers[lease.broker_id] = broker._replace(
            answered=tuple(i for i in broker.answered if not first <= i < end)
        )


def lease_answers(tables: Tables, lease: Lease) -> Iterator[int]:
    """Yield the ids of a lease's committed objects whose commit responses are kept for retries."""
    kept = 0
    for object_id in range(lease.last_committed_id, lease.first_object_id - 1, -1):
        if kept == KEPT_ANSWERS:
            return
        if lease.committed(object_id):
            kept += 1
            if tables.answers.get(object_id) is not None:
                yield object_id


# --- rewriting ---------------------------------------------------------------------------------


def _rewrite_granted(tables: Tables, record: RewriteLeaseGrantedRecord) -> None:
    counters = tables.counters
    first, end = record.first_object_id, record.first_object_id + record.object_count
    assert record.lease_id >= counters.next_lease_id, f"a lease id given twice: {record}"
    assert first >= counters.next_object_id, f"an id given twice: {record}"
    counters.next_lease_id, counters.next_object_id = record.lease_id + 1, end
    counters.notes_deletions = 1
    for lease_id in record.closed_lease_ids:
        _close(tables, lease_id, record.granted_at_ms, None)
    tables.leases[record.lease_id] = Lease(
        record.broker_id,
        record.broker_epoch,
        first,
        end,
        first - 1,
        (),
        (),
        record.granted_at_ms,
        rewrite=Rewrite(record.plan_id.bytes, record.granted_at_ms, (), ()),
    )


def _rewrite_renewed(tables: Tables, record: RewriteLeaseRenewedRecord) -> None:
    lease, rewrite = _rewrite_lease(tables, record.lease_id)
    tables.leases[record.lease_id] = lease._replace(
        rewrite=rewrite._replace(renewed_at_ms=record.renewed_at_ms)
    )


def _rewrite_lease(tables: Tables, lease_id: int) -> tuple[Lease, Rewrite]:
    lease = tables.leases.get(lease_id)
    assert lease is not None, f"no rewrite lease {lease_id}"
    assert lease.is_open, f"rewrite lease {lease_id} is over"
    assert lease.rewrite is not None, f"lease {lease_id} is no rewriter's"
    return lease, lease.rewrite


def _replaced(tables: Tables, record: RunsReplacedRecord) -> None:
    lease, rewrite = _rewrite_lease(tables, record.lease_id)
    object_id = record.object_id
    known = rewrite.find_open(object_id)
    assert known is not None or not lease.committed(object_id), f"object {object_id} is closed"
    filled = sum(record.byte_sizes) + (0 if known is None else known.filled_bytes)
    still_open = {one.object_id: one for one in rewrite.open_objects}
    still_open[object_id] = OpenObject(object_id, record.size_bytes, record.object_format, filled)
    if record.closes_object:
        del still_open[object_id]
    tables.leases[record.lease_id] = lease._replace(
        rewrite=rewrite._replace(
            opened=added(rewrite.opened, object_id),
            open_objects=tuple(sorted(still_open.values())),
        )
    )
    for replaced in ranges_of(record):
        topic = tables.topics.get(record.topic_ids[replaced.topic_index])
        assert topic is not None, f"no such topic: {record}"
        log_id = topic.log_ids[replaced.partition]
        log = tables.logs.get(log_id)
        assert log is not None, f"no such partition: {record}"
        first, end = replaced.first_offset, replaced.end_offset
        assert end <= log[1], f"runs up to {end} are replaced, of {log}"
        tables.replacing[log_id, first] = end
        if replaced.bound >= 0:
            before = tables.cleanings.get(log_id)
            tables.cleanings[log_id] = cleaned(before, log[0], first, end, replaced.bound)


def ended_objects(tables: Tables, record: MetadataRecord) -> list[int]:
    """Return the ids of rewritten objects that accept no more runs once this record ends a lease.

    Call it before `apply`.
    """
    match record:
        case LeaseClosedRecord():
            lease_ids: tuple[int, ...] = (record.lease_id,)
        case RewriteLeaseGrantedRecord():
            lease_ids = record.closed_lease_ids
        case _:
            return []
    leases = (tables.leases.get(lease_id) for lease_id in lease_ids)
    rewrites = (lease.rewrite for lease in leases if lease is not None)
    return [
        one.object_id for rewrite in rewrites if rewrite is not None for one in rewrite.open_objects
    ]


# --- objects -----------------------------------------------------------------------------------


def _fenced(tables: Tables, record: DeleteFenceRecord) -> None:
    find = LeaseFinder(tables).find
    for object_id in record.object_ids:
        lease_id = find(object_id)
        lease = None if lease_id is None else tables.leases.get(lease_id)
        if lease is None or lease_id is None:
            continue  # forgotten: nothing can commit it
        assert not lease.committed(object_id), f"a fence for committed object {object_id}"
        if object_id > lease.last_committed_id and object_id not in lease.fenced:
            tables.leases[lease_id] = lease._replace(
                fenced=tuple(sorted((*lease.fenced, object_id)))
            )


def _removed(tables: Tables, record: ObjectsRemovedRecord) -> None:
    """Remove the ids of deleted objects from the orphan ids of the objects' leases."""
    by_lease: dict[int, list[int]] = {}
    find = LeaseFinder(tables).find
    for object_id in record.object_ids:
        lease_id = find(object_id)
        if lease_id is not None:
            by_lease.setdefault(lease_id, []).append(object_id)
    for lease_id, object_ids in by_lease.items():
        lease = tables.leases.get(lease_id)
        if lease is not None and lease.orphans:
            tables.leases[lease_id] = lease._replace(orphans=without(lease.orphans, object_ids))


def _nothing_here(_tables: Tables, _record: ObjectsMarkedRecord | OrphansFoundRecord) -> None:
    """Do nothing: deletion marks are stored in the rows of objects, not in these tables."""


_APPLY: Final[Mapping[type[MetadataRecord], Callable[[Tables, Any], None]]] = {
    DisklessPartitionsRecord: _partitions,
    DisklessTopicTombstoneRecord: _tombstone,
    DisklessPartitionsRemovedRecord: _partitions_removed,
    DisklessPartitionsReleasedRecord: _partitions_released,
    DisklessTombstoneExpiredRecord: _tombstone_expired,
    ControllerEpochRecord: _controller_epoch,
    ObjectCommitRecord: _commit,
    LogStartOffsetsRecord: _log_starts,
    TransactionMarkersRecord: _markers,
    ProducersExpiredRecord: _producers_expired,
    SteadyTimeRecord: _steady_time,
    LeaseGrantedRecord: _granted,
    LeaseClosedRecord: _closed,
    LeasesForgottenRecord: _forgotten,
    DeleteFenceRecord: _fenced,
    ObjectsRemovedRecord: _removed,
    ObjectsMarkedRecord: _nothing_here,
    OrphansFoundRecord: _nothing_here,
    RewriteLeaseGrantedRecord: _rewrite_granted,
    RewriteLeaseRenewedRecord: _rewrite_renewed,
    RunsReplacedRecord: _replaced,
}

RECORD_TYPES: Final = frozenset(_APPLY)
"""The records of a batch coordinator's log."""
