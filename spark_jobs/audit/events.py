"""Checks a coordinator's other records: topics, log starts, leases, objects.

Each rule looks at one record and at the ledger of everything before it.

The trap: rules that need commits are not here. Whether a log start is above the high watermark, or
a marked object is still in use, only commits show: those rules are in `spark_jobs.audit.commits`
and `spark_jobs.audit.objects`.

Source: docs/design/batch-coordinator.md#one-record-per-object, docs/design/invariants.md;
`coordinator.batch.state` asserts the same while it applies a record, in other words.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from records.batch import HEADER_SIZE_BYTES
from records.diskless import (
    ControllerEpochRecord,
    DisklessPartitionsRecord,
    DisklessPartitionsReleasedRecord,
    DisklessPartitionsRemovedRecord,
    DisklessTombstoneExpiredRecord,
    DisklessTopicTombstoneRecord,
    LeaseClosedRecord,
    LeaseGrantedRecord,
    LeasesForgottenRecord,
    LogStartOffsetsRecord,
    ObjectsMarkedRecord,
    ObjectsRemovedRecord,
    OrphansFoundRecord,
    RewriteLeaseGrantedRecord,
    RunsReplacedRecord,
)
from records.frame import METADATA_RECORDS, decode_record, read_frame
from records.uuids import encode_uuid
from spark_jobs.audit.ledger import APPLIED, NEVER, Ledger, replacements_of
from spark_jobs.audit.log import Event
from spark_jobs.audit.rules import Fault, Faults, Findings, RecordRules

_RULES: Final[RecordRules[Ledger]] = RecordRules()
on = _RULES.on


def check_events(log: str, ledger: Ledger, events: Iterable[Event], findings: Findings) -> None:
    """Check each record, in log order, against the state before it, and then apply it.

    Raises:  RecordError for one that cannot be decoded.
    """
    for offset, value in events:
        cls = METADATA_RECORDS.get(read_frame(value)[0])
        if cls not in APPLIED:
            continue
        record = decode_record(value)
        _RULES.check(log, offset, ledger, record, findings)
        ledger.apply(offset, record)


def _fault(what: str, object_id: int | None = None) -> Fault:
    return Fault(None, what, object_id=object_id)


# --- topics and partitions ----------------------------------------------------------------------


@on(
    "partitions-made-once", "5", "A partition is created once, and not in a deleted topic.",
    DisklessPartitionsRecord,
)  # fmt: skip
def partitions_made_once(ledger: Ledger, record: DisklessPartitionsRecord) -> Faults:
    topic_id = encode_uuid(record.topic_id)
    topic = ledger.topic(topic_id)
    if topic is not None and topic.deleted != NEVER:
        yield _fault(f"topic {topic_id} was deleted at log offset {topic.deleted}")
    if record.first_partition > (0 if topic is None else topic.partitions):
        yield _fault(f"{topic_id}-{record.first_partition} is made before the one below it")
    for i in range(record.partition_count):
        index = record.first_partition + i
        if ledger.incarnation((topic_id, index)) is not None:
            yield _fault(f"{topic_id}-{index} is there already")


@on("log-ids-once", "5", "A log id is allocated once, and log ids rise.", DisklessPartitionsRecord)
def log_ids_once(ledger: Ledger, record: DisklessPartitionsRecord) -> Faults:
    if record.first_log_id < ledger.next_log_id:
        yield _fault(f"log id {record.first_log_id} after {ledger.next_log_id - 1}")


@on(
    "partitions-known", "5", "A record names only existing partitions.",
    LogStartOffsetsRecord, DisklessPartitionsRemovedRecord, DisklessPartitionsReleasedRecord,
    RunsReplacedRecord,
)  # fmt: skip
def partitions_known(
    ledger: Ledger,
    record: LogStartOffsetsRecord
    | RunsReplacedRecord
    | DisklessPartitionsRemovedRecord
    | DisklessPartitionsReleasedRecord,
) -> Faults:
    if isinstance(record, LogStartOffsetsRecord | RunsReplacedRecord):
        topics = [encode_uuid(topic_id) for topic_id in record.topic_ids]
        named = zip((topics[i] for i in record.topic_indexes), record.partitions, strict=True)
    else:
        topic_id = encode_uuid(record.topic_id)
        named = zip([topic_id] * len(record.partitions), record.partitions, strict=True)
    again = isinstance(record, DisklessPartitionsReleasedRecord)  # by a newer controller
    for place in named:
        topic = ledger.topic(place[0])  # a checkpoint counts released partitions, too
        was_there = topic is not None and place[1] < topic.partitions
        if ledger.incarnation(place) is None and not (again and was_there):
            yield _fault(f"there is no partition {place[0]}-{place[1]}")


@on(
    "removed-when-deleted", "7",
    "Only a deleted topic loses its partitions, and all of them before it is forgotten.",
    DisklessPartitionsRemovedRecord, DisklessTombstoneExpiredRecord,
)  # fmt: skip
def removed_when_deleted(
    ledger: Ledger, record: DisklessPartitionsRemovedRecord | DisklessTombstoneExpiredRecord
) -> Faults:
    topic_id = encode_uuid(record.topic_id)
    topic = ledger.topic(topic_id)
    if topic is None:
        yield _fault(f"there is no topic {topic_id}")
    elif topic.deleted == NEVER:
        yield _fault(f"topic {topic_id} is not deleted")
    elif isinstance(record, DisklessTombstoneExpiredRecord):
        left = [i for i in range(topic.partitions) if ledger.incarnation((topic_id, i)) is not None]
        if left:
            yield _fault(f"topic {topic_id} still has partition {left[0]}")


@on("log-start-rises", "8", "A log start offset never goes back.", LogStartOffsetsRecord)
def log_start_rises(ledger: Ledger, record: LogStartOffsetsRecord) -> Faults:
    for topic, index, start in zip(
        record.topic_indexes, record.partitions, record.log_start_offsets, strict=True
    ):
        topic_id = encode_uuid(record.topic_ids[topic])
        incarnation = ledger.incarnation((topic_id, index))
        if incarnation is not None and incarnation.starts and start < incarnation.starts[-1][1]:
            yield _fault(f"{topic_id}-{index}: log start {start} after {incarnation.starts[-1][1]}")


@on(
    "controller-epochs-rise", "1", "A coordinator accepts no call from an older controller epoch.",
    ControllerEpochRecord, DisklessPartitionsRecord, DisklessPartitionsReleasedRecord,
    DisklessTopicTombstoneRecord,
)  # fmt: skip
def controller_epochs_rise(ledger: Ledger, record: Any) -> Faults:
    if record.controller_epoch < ledger.controller_epoch:
        yield _fault(f"controller epoch {record.controller_epoch} after {ledger.controller_epoch}")


# --- leases and objects -------------------------------------------------------------------------


@on(
    "lease-ids-once", "7", "Leases and the object ids in them are granted once.",
    LeaseGrantedRecord, RewriteLeaseGrantedRecord,
)  # fmt: skip
def lease_ids_once(
    ledger: Ledger, record: LeaseGrantedRecord | RewriteLeaseGrantedRecord
) -> Faults:
    if record.lease_id < ledger.next_lease_id:
        yield _fault(f"lease {record.lease_id} after {ledger.next_lease_id - 1}")
    if record.first_object_id < ledger.next_object_id:
        what = f"lease {record.lease_id} begins at object {record.first_object_id}, ids below"
        yield _fault(f"{what} {ledger.next_object_id} are given", record.first_object_id)


@on(
    "broker-epochs-fence", "7",
    "A broker's new epoch closes its older leases, and an old epoch is granted none.",
    LeaseGrantedRecord,
)  # fmt: skip
def broker_epochs_fence(ledger: Ledger, record: LeaseGrantedRecord) -> Faults:
    known = ledger.brokers.get(record.broker_id, -1)
    who = f"broker {record.broker_id} epoch {record.broker_epoch}"
    if record.broker_epoch < known:
        yield _fault(f"{who} gets lease {record.lease_id} after epoch {known}")
    for lease_id in sorted(ledger.open_leases.get(record.broker_id, ())):
        epoch = ledger.leases[lease_id].broker_epoch
        if epoch < record.broker_epoch and lease_id not in record.closed_lease_ids:
            yield _fault(f"{who} leaves lease {lease_id} of epoch {epoch} open")


@on(
    "lease-closed-once", "7", "A lease is closed once, and forgotten only after that.",
    LeaseGrantedRecord, RewriteLeaseGrantedRecord, LeaseClosedRecord, LeasesForgottenRecord,
)  # fmt: skip
def lease_closed_once(ledger: Ledger, record: Any) -> Faults:
    if isinstance(record, LeasesForgottenRecord):
        for lease_id in record.lease_ids:
            lease = ledger.leases.get(lease_id)
            if lease is None or lease.closed == NEVER or lease.forgotten != NEVER:
                yield _fault(f"lease {lease_id} is forgotten and was not closed before")
        return
    closes = (
        (record.lease_id,) if isinstance(record, LeaseClosedRecord) else record.closed_lease_ids
    )
    for lease_id in closes:
        lease = ledger.leases.get(lease_id)
        if lease is None or lease.closed != NEVER:
            yield _fault(f"lease {lease_id} is closed and was not open")


@on(
    "objects-leased", "7", "Only objects of granted leases are marked or removed.",
    ObjectsMarkedRecord, ObjectsRemovedRecord, OrphansFoundRecord,
)  # fmt: skip
def objects_leased(
    ledger: Ledger, record: ObjectsMarkedRecord | ObjectsRemovedRecord | OrphansFoundRecord
) -> Faults:
    for object_id in record.object_ids:
        if not 0 <= object_id < ledger.next_object_id:
            yield _fault("it was never in a lease", object_id)


# --- rewritten objects --------------------------------------------------------------------------


@on("open-unmarked", "7", "An object that is still filled is not marked.", ObjectsMarkedRecord)
def open_unmarked(ledger: Ledger, record: ObjectsMarkedRecord) -> Faults:
    for object_id in record.object_ids:
        if ledger.object_is_open(object_id):
            yield _fault("marked, and its rewriter may still fill it", object_id)


@on(
    "replacement-leased", "7",
    "Runs are replaced by those of an object that is open under an open rewrite lease.",
    RunsReplacedRecord,
)  # fmt: skip
def replacement_leased(ledger: Ledger, record: RunsReplacedRecord) -> Faults:
    object_id, lease = record.object_id, ledger.leases.get(record.lease_id)
    if lease is None or not lease.rewrites or lease.closed != NEVER:
        yield _fault(f"lease {record.lease_id} is no open rewrite lease", object_id)
    elif not lease.first <= object_id < lease.end or lease.broker_id != record.broker_id:
        what = f"lease {record.lease_id} has ids {lease.first} to {lease.end - 1}"
        yield _fault(f"{what} for broker {lease.broker_id}, not {record.broker_id}", object_id)
    known = ledger.rewritten.get(object_id)
    if object_id in ledger.fenced or object_id in ledger.found_orphans:
        yield _fault("it was called safe to delete", object_id)
    elif known is not None and known.closed != NEVER:
        yield _fault(f"it was closed at log offset {known.closed}", object_id)
    elif known is not None and (known.size_bytes, known.lease_id) != (
        record.size_bytes, record.lease_id,
    ):  # fmt: skip
        what = f"{record.size_bytes} bytes of lease {record.lease_id}, it was opened with"
        yield _fault(f"{what} {known.size_bytes} of lease {known.lease_id}", object_id)


@on(
    "replacement-tiles", "5", "New runs tile the range that they replace, inside their object.",
    RunsReplacedRecord,
)  # fmt: skip
def replacement_tiles(ledger: Ledger, record: RunsReplacedRecord) -> Faults:
    for (topic_id, index), row in replacements_of(-1, record):
        name, base = f"{topic_id}-{index}", row.first
        for last, count, place, size, *_ in row.runs:
            if last < base or not 0 <= count <= last - base + 1:
                yield _fault(f"{name}: a run from {base} to {last} has {count} records")
            if place < 0 or size < 1 or place + size > record.size_bytes:
                what = f"bytes {place} to {place + size} of {record.size_bytes}"
                yield _fault(f"{name}: {what}", record.object_id)
            base = last + 1
        if base != row.end:
            yield _fault(f"{name}: new runs end at {base}, the range at {row.end}")
    known = ledger.rewritten.get(record.object_id)
    filled = sum(record.byte_sizes) + (0 if known is None else known.filled)
    if filled > record.size_bytes:
        yield _fault(f"{filled} bytes are claimed of {record.size_bytes}", record.object_id)


@on(
    "empty-runs-deleted", "5, 8",
    "A new run of one empty batch counts records only if it ends below the log start.",
    RunsReplacedRecord,
)  # fmt: skip
def empty_runs_deleted(ledger: Ledger, record: RunsReplacedRecord) -> Faults:
    for place, row in replacements_of(-1, record):
        incarnation = ledger.incarnation(place)
        start = 0 if incarnation is None else incarnation.start_before(NEVER)
        base = row.first
        for last, count, _, size, *_ in row.runs:
            if count > 0 and size == HEADER_SIZE_BYTES and last >= start:
                what = f"offsets {base} to {last} have {count} records in an empty batch"
                what += f", the log starts at {start}"
                yield _fault(f"{place[0]}-{place[1]}: {what}", record.object_id)
            base = last + 1


@on(
    "flags-cleaned", "8",
    "Tombstones are dated or removed only where a partition is cleaned from its log start on.",
    RunsReplacedRecord,
)  # fmt: skip
def flags_cleaned(ledger: Ledger, record: RunsReplacedRecord) -> Faults:
    for place, row in replacements_of(-1, record):
        until = ledger.cleaning_after(place, row).cleaned_until
        if row.flags and until < row.end:
            what = f"flags {row.flags} up to {row.end}, it is cleaned until {until}"
            yield _fault(f"{place[0]}-{place[1]}: {what}", record.object_id)
