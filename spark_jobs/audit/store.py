"""Compares objects in the store with what the log says of them.

For each object that the log still refers to, the audit checks that it exists, that it is as long as
the commit says, that its footer agrees with the commit, and that its bytes are those that were
written. Reading costs requests, so there are three depths: `none` only checks that the object
exists, `sample` reads one object of sixteen, `full` reads all.

The trap is time. Retention may lawfully delete objects while the audit runs; so a missing object is
only a finding after the log was read on to its newest end (`spark_jobs.audit.job`).

Source: docs/design/broker.md#wal-segment-objects; invariants 5 and 7 (docs/design/invariants.md);
`records.wal`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple
from zlib import crc32

import numpy as np
from crc32c import crc32c

from records.batch import HEADER_SIZE_BYTES, iter_batches
from records.errors import RecordError
from records.object_keys import ObjectKeys
from records.uuids import encode_uuid
from records.wal import (
    APPENDED,
    FINAL,
    TRAILER,
    Footer,
    PartitionBytes,
    footer_range,
    parse_footer,
)
from spark_jobs.audit.commits import COMMIT
from spark_jobs.audit.objects import DEAD_AT_ONCE
from spark_jobs.audit.rows import Numbers, Rows, TopicPartition, groups, slices
from spark_jobs.audit.rules import Fault, Faults, Findings, rule, rules_of
from spark_jobs.readers.object_store import MAX_READ_BYTES, ObjectStore

SAMPLE: Final = 16
THREADS: Final = 8
"""Requests in flight of one task: each waits for the store."""


class Depth(StrEnum):
    """Amount of object bytes that an audit reads: none, those of a sample, or all."""

    NONE = "none"
    SAMPLE = "sample"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class Bucket:
    """The store and keys of one coordinator's objects, and the depth to read them at."""

    store: ObjectStore
    keys: ObjectKeys
    depth: Depth


class ObjectClaim(NamedTuple):
    """An object according to the log: the rows of its commit, or its runs in a checkpoint."""

    object_id: int
    rows: Rows
    whole: bool  # a commit: all batches there are, and the size


class Inspection(NamedTuple):
    """A claimed object as the store has it."""

    claim: ObjectClaim
    key: str
    size_bytes: int | None  # None: it is not there
    footer: Footer | None = None  # None: not looked at, or unreadable
    damage: tuple[str, ...] = ()  # of the footer
    bad_bytes: tuple[str, ...] = ()


def _fault(inspection: Inspection, what: str) -> Fault:
    rows = inspection.claim.rows
    record = COMMIT if inspection.claim.whole else "RunsState"
    return Fault(
        int(rows["log_offset"][0]), f"{inspection.key}: {what}", record, inspection.claim.object_id
    )


# --- the rules ----------------------------------------------------------------------------------


@rule("object-exists", "7", "An object that a run refers to exists in the store.", loss=True)
def object_exists(inspections: Sequence[Inspection]) -> Faults:
    for inspection in inspections:
        if inspection.size_bytes is None:
            yield _fault(
                inspection, f"it is not in the store; {_describe_affected(inspection.claim.rows)}"
            )


@rule("object-whole", "7", "An object is as long as its commit says.", loss=True)
def object_whole(inspections: Sequence[Inspection]) -> Faults:
    for inspection in inspections:
        if inspection.size_bytes is None:
            continue
        committed = int(inspection.claim.rows["size_bytes"][0])
        if inspection.size_bytes != committed:
            what = f"{inspection.size_bytes} bytes, {committed} were committed"
            yield _fault(inspection, f"{what}; {_describe_affected(inspection.claim.rows)}")


@rule("footer-agrees", "5", "An object's footer agrees with the log.")
def footer_agrees(inspections: Sequence[Inspection]) -> Faults:
    for inspection in inspections:
        for what in inspection.damage:
            yield _fault(inspection, what)
        if inspection.footer is not None:
            yield from (
                _fault(inspection, what) for what in _differences(inspection, inspection.footer)
            )


@rule("bytes-sound", "5", "The bytes of every batch are those that were written.", loss=True)
def bytes_sound(inspections: Sequence[Inspection]) -> Faults:
    for inspection in inspections:
        yield from (_fault(inspection, what) for what in inspection.bad_bytes)


def check_store(log: str, inspections: Sequence[Inspection], findings: Findings) -> None:
    """Compare the contents of each inspected object with the log's records of that object.

    Missing objects are left to `missing_objects`.
    """
    findings.check(
        log,
        (declared for declared in rules_of(__name__) if declared.name != "object-exists"),
        inspections,
    )


def _describe_affected(rows: Rows) -> str:
    """List the partitions and offsets of these batches, for a message about lost data."""
    kept = rows.where(rows.accepted)
    order, starts = groups(kept.place)
    parts = [
        f"{kept.name(order[first])} offsets {kept['base_offset'][order[first]]} to "
        f"{kept.end_offset[order[end - 1]] - 1}"
        for first, end in slices(starts, len(order))
    ]
    more = f" and {len(parts) - 3} more partitions" if len(parts) > 3 else ""
    return ", ".join(parts[:3]) + more


def _differences(inspection: Inspection, footer: Footer) -> Iterator[str]:
    rows = inspection.claim.rows
    if footer.object_id != inspection.claim.object_id:
        yield f"its footer says object {footer.object_id}"
    parts = _parts_of(footer)
    if footer.object_format != _format_of(rows):
        yield f"its footer says format {footer.object_format}, its runs have {_format_of(rows)}"
    if inspection.claim.whole:
        writer = int(rows["broker_id"][0]), int(rows["broker_epoch"][0])
        if (footer.broker_id, footer.broker_epoch) != writer:
            text = f"broker {footer.broker_id} epoch {footer.broker_epoch}"
            yield f"its footer says {text}, it was committed by {writer[0]} epoch {writer[1]}"
    order, starts = groups(rows.place)
    for first, end in slices(starts, len(order)):
        mine = rows.where(order[first:end])
        name, part = mine.name(0), parts.pop(mine.places[mine.place[0]], None)
        begin = int(mine["byte_offset"].min())
        behind = int((mine["byte_offset"] + mine["byte_size"]).max())
        if part is None:
            yield f"its footer knows nothing of {name}"
            continue
        ends = part.byte_offset + part.size_bytes
        text = f"{name} at {part.byte_offset} to {ends}, {part.batch_count} batches"
        counts = len(mine), int(mine["record_count"].sum())
        if not inspection.claim.whole:
            if begin < part.byte_offset or behind > ends:
                yield f"its footer has {text}, a run lies at {begin} to {behind}"
        elif (begin, behind, *counts) != (
            part.byte_offset, ends, part.batch_count, part.record_count,
        ):  # fmt: skip
            yield (
                f"its footer has {text} of {part.record_count} records, "
                f"the commit {begin} to {behind}, {counts[0]} batches of {counts[1]} records"
            )
    if parts and inspection.claim.whole:
        yield f"its footer has {len(parts)} partitions that were not committed"


def _format_of(rows: Rows) -> int:
    """Return the object format that the log records for these batches or runs."""
    return int(rows["object_format"][0]) if "object_format" in rows.columns else APPENDED


def _parts_of(footer: Footer) -> dict[TopicPartition, PartitionBytes]:
    """Return each partition's part of an object, by topic id and partition index.

    A partition may have several parts of a merged object, which lie side by side.
    """
    parts: dict[TopicPartition, PartitionBytes] = {}
    for row in footer.partitions:
        name = encode_uuid(row.topic_id), row.partition
        before = parts.get(name)
        if before is not None and before.byte_offset + before.size_bytes == row.byte_offset:
            row = row._replace(
                byte_offset=before.byte_offset,
                size_bytes=before.size_bytes + row.size_bytes,
                batch_count=before.batch_count + row.batch_count,
                record_count=before.record_count + row.record_count,
            )
        parts[name] = row
    return parts


# --- inspecting ---------------------------------------------------------------------------------


def claims_of(rows: Rows, alive: Numbers, *, whole: bool) -> list[ObjectClaim]:
    """Group the batches of live objects into one `ObjectClaim` for each object.

    Args:  alive: ids of objects.
    """
    wanted = np.flatnonzero(np.isin(rows["object_id"], alive))
    order, starts = groups(rows["object_id"][wanted])
    claims = []
    for first, end in slices(starts, len(order)):
        mine = rows.where(wanted[order[first:end]])
        claims.append(ObjectClaim(int(mine["object_id"][0]), mine, whole))
    return claims


def inspect_objects(bucket: Bucket, claims: Sequence[ObjectClaim]) -> list[Inspection]:
    """Inspect in the object store each object that the log claims to exist.

    Raises:  StorageError if the store does not answer.
    """
    newest = max((claim.object_id for claim in claims), default=None)

    def one(claim: ObjectClaim) -> Inspection:
        chosen = claim.object_id == newest or is_sampled(claim.object_id)
        deep = bucket.depth is Depth.FULL or (bucket.depth is Depth.SAMPLE and chosen)
        return _inspect(bucket, claim, deep=deep)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(one, claims))


def is_sampled(object_id: int) -> bool:
    """Return whether an object is in the fixed sample of one object in sixteen."""
    return crc32(object_id.to_bytes(8, "big")) % SAMPLE == 0


def missing_objects(inspections: Sequence[Inspection]) -> list[tuple[int, Fault]]:
    """Return the ids and faults of objects that are missing in the store.

    The caller excuses objects that the log has released since.
    """
    return [(fault.object_id or 0, fault) for fault in object_exists(inspections)]


def _inspect(bucket: Bucket, claim: ObjectClaim, *, deep: bool) -> Inspection:
    store, key = bucket.store, bucket.keys.key(claim.object_id)
    found = store.head(key)
    if found is None:
        return Inspection(claim, key, None)
    size = found.size_bytes
    if not deep or size != claim.rows["size_bytes"][0]:  # its footer is not where it should be
        return Inspection(claim, key, size)
    try:
        if size < TRAILER.size:
            return Inspection(claim, key, size, None, (f"{size} bytes are too few for a footer",))
        trailer = store.read(key, size - TRAILER.size, TRAILER.size)
        offset, length = footer_range(trailer, size)
        footer = parse_footer(store.read(key, offset, length), trailer, size)
    except RecordError as error:
        return Inspection(claim, key, size, None, (str(error),))
    damage: tuple[str, ...] = ()
    if footer.cluster_id != bucket.keys.writer(claim.object_id):
        damage = (f"its footer says cluster {footer.cluster_id}",)
    bad = [what for part in footer.partitions for what in _bad_bytes(bucket, key, claim, part)]
    return Inspection(claim, key, size, footer, damage, tuple(bad))


def _bad_bytes(bucket: Bucket, key: str, claim: ObjectClaim, part: PartitionBytes) -> Iterator[str]:
    """Describe the damage to one partition's bytes in an object, with the offsets that are lost."""
    place = encode_uuid(part.topic_id), part.partition
    name = f"{place[0]}-{place[1]}"
    rows, is_damaged = claim.rows, False
    code = rows.places.index(place) if place in rows.places else -1
    begins = rows["byte_offset"]
    inside = (begins >= part.byte_offset) & (begins < part.byte_offset + part.size_bytes)
    data = None
    if part.size_bytes <= MAX_READ_BYTES:
        data = bucket.store.read(key, part.byte_offset, part.size_bytes)
    elif _format_of(rows) == APPENDED:
        yield f"{name} has {part.size_bytes} bytes in it, more than can be"
        return
    for row in np.flatnonzero((rows.place == code) & inside).tolist():
        begin, size = int(begins[row]), int(rows["byte_size"][row])
        if data is None:  # of a merged object: run by run
            stored = bucket.store.read(key, begin, size)
        else:
            stored = data[begin - part.byte_offset :][:size]
        what = bad_run(stored, rows, row)
        if what is not None:
            is_damaged = True
            ends = int(rows.end_offset[row]) - 1
            yield f"{name} offsets {rows['base_offset'][row]} to {ends}: {what}"
    if not is_damaged and data is not None and crc32c(data) != part.crc:
        ends = part.byte_offset + part.size_bytes
        yield f"{name}, bytes {part.byte_offset} to {ends}: their checksum is not the footer's"


def bad_run(data: bytes, rows: Rows, row: int) -> str | None:
    """Describe the damage to the stored bytes of a batch or run; return None if there is none."""
    if len(data) != rows["byte_size"][row]:
        return f"{len(data)} bytes of {rows['byte_size'][row]} are in its partition's part"
    try:
        headers = [batch.header for batch in iter_batches(data)]
    except RecordError as error:
        return str(error)
    is_final = _format_of(rows) == FINAL
    expected = int(rows["kept_records" if is_final else "record_count"][row])
    count = sum(header.record_count for header in headers)
    # One empty batch stands for deleted records below the log start that a merge left out.
    stands_for_deleted = (
        DEAD_AT_ONCE in rows.columns
        and bool(rows[DEAD_AT_ONCE][row])
        and len(data) == HEADER_SIZE_BYTES
    )
    if count != expected and not stands_for_deleted:
        return f"{count} records in {len(headers)} batches, not {expected}"
    if is_final:
        ends = int(rows["base_offset"][row])
        for header in headers:
            if header.base_offset < ends:
                return f"a batch begins at offset {header.base_offset}, below {ends}"
            ends = header.end_offset
        if ends != rows.end_offset[row]:
            return f"its batches end at offset {ends}"
    return None
