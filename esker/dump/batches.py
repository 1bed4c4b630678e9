"""Reads segments and checkpoints as items: every batch, every record, typed if the type is known.

A record without a key whose value is a metadata frame is shown with its fields; of any other the
bytes are shown and the reason counted. So a segment of an ordinary topic can be read as well.

Source: KIP-98, Message Format; KIP-631, Record Format.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from esker.dump.items import BatchItem, FileEnd, FileStart, Item, RecordItem, Tally
from esker.dump.kinds import Kind
from raft.segments.files import FileSystem, Mode
from records.batch import Batch, ControlType, Record, iter_records
from records.errors import RecordError, UnknownRecordError, UnsupportedVersionError
from records.frame import (
    CONTROL_RECORDS,
    METADATA_RECORDS,
    control_record_type,
    decode_control_record,
    decode_record,
    read_frame,
)
from records.schema import Message
from snapshot.errors import DamagedFileError
from snapshot.framing import Checkpoint, Origin
from snapshot.reader import CheckpointReader
from snapshot.stream import iter_file_batches

NOT_METADATA: Final = "not a metadata record"
MALFORMED: Final = "malformed "


def read_batches_file(files: FileSystem, path: Path, kind: Kind) -> Iterator[Item]:
    """Yield the batches and records of a segment or a checkpoint.

    Raises:  DamagedFileError at the first thing that is wrong; OSError.
    """
    tally = Tally()
    for item in _segment(files, path) if kind is Kind.SEGMENT else _checkpoint(files, path, tally):
        if isinstance(item, FileStart):
            start = item
            yield item
            continue
        tally.saw_batch(item.header)
        yield BatchItem(item.position, item.header)
        yield from decode_records(path, item, tally)
    yield FileEnd(start, tally)


def _segment(files: FileSystem, path: Path) -> Iterator[FileStart | Batch]:
    file = files.open(path, Mode.READ)
    try:
        yield FileStart(path, Kind.SEGMENT, file.size())
        yield from iter_file_batches(file, path)
    finally:
        file.close()


def _checkpoint(files: FileSystem, path: Path, tally: Tally) -> Iterator[FileStart | Batch]:
    with CheckpointReader(files, path) as reader:
        yield FileStart(path, Kind.CHECKPOINT, reader.size_bytes)
        yield from reader.batches()
        assert reader.checkpoint is not None, f"{path} was not read to its end"
        tally.remarks.append(origin_remark(reader.checkpoint))


def origin_remark(checkpoint: Checkpoint) -> str:
    """Return a remark that names the program that wrote a checkpoint, from its footer."""
    match checkpoint.origin:
        case Origin.ESKER:
            return "whole: count and checksum in the footer are right"
        case Origin.KAFKA:
            return "written by Kafka: its footer holds no checksum of the whole"


def check_segment_order(
    path: Path,
    batches: Iterator[Batch],
    *,
    expected_offset: int | None,
    epoch: int = -1,
    allow_gaps: bool = False,
) -> Iterator[Batch]:
    """Yield a segment's batches; a wrong offset or epoch raises DamagedFileError.

    Args:    expected_offset: of the first batch; None allows any.
             epoch: of the batch before the first.
    Raises:  DamagedFileError for an offset that is not the next one or, with `allow_gaps`, goes
             back, and for an epoch older than the one before.
    """
    for batch in batches:
        header = batch.header
        base = header.base_offset
        reason = None
        if expected_offset is not None and base != expected_offset:
            if base < expected_offset or not allow_gaps:
                reason = f"base offset {base}, expected {expected_offset}"
            if base > expected_offset and not allow_gaps:
                reason = f"{reason} (--allow-gaps accepts a compacted topic's)"
        if reason is None and header.leader_epoch < epoch:
            reason = f"epoch {header.leader_epoch} after epoch {epoch}"
        if reason is not None:
            raise DamagedFileError(path=path, position=batch.position, offset=base, reason=reason)
        expected_offset, epoch = header.end_offset, header.leader_epoch
        yield batch


def decode_records(path: Path, batch: Batch, tally: Tally) -> Iterator[RecordItem]:
    """Decode a batch's records; count in `tally` the records that cannot be decoded.

    Raises:  DamagedFileError if the batch does not consist of records.
    """
    control = batch.header.is_control
    try:
        for record in iter_records(batch):
            message, version, note = (_control if control else _metadata)(record)
            if note is not None:
                tally.saw_opaque(note)
            yield RecordItem(record, message, version, note)
    except RecordError as error:
        raise DamagedFileError(
            path=path,
            position=batch.position,
            offset=batch.header.base_offset,
            reason=str(getattr(error, "reason", error)),
        ) from error


def _metadata(record: Record) -> tuple[Message | None, int, str | None]:
    """Return a record's metadata message and version, or a reason to show the record as bytes."""
    if record.key is not None or not record.value or record.value[0] != 1:
        return None, 0, NOT_METADATA
    try:
        key, version, _ = read_frame(record.value)
    except RecordError:
        return None, 0, NOT_METADATA
    try:
        return decode_record(record.value), version, None
    except UnknownRecordError:
        return None, version, f"unknown type {key}"
    except UnsupportedVersionError:
        return None, version, f"unknown version {version} of {METADATA_RECORDS[key].__name__}"
    except RecordError:
        return None, version, f"{MALFORMED}{METADATA_RECORDS[key].__name__} v{version}"


def _control(record: Record) -> tuple[Message | None, int, str | None]:
    """Return a control record's message and version, or a reason to show the record as bytes."""
    if record.key is None or record.value is None:
        return None, 0, "control record without key or value"
    version = int.from_bytes(record.value[:2], "big") if len(record.value) >= 2 else 0
    try:
        kind = control_record_type(record.key)
        return decode_control_record(record.key, record.value), version, None
    except UnknownRecordError:
        if kind in (ControlType.ABORT, ControlType.COMMIT):
            return None, version, f"transaction marker {ControlType(kind).name}"
        return None, version, f"unknown control type {kind}"
    except UnsupportedVersionError:
        return None, version, f"unknown version {version} of {CONTROL_RECORDS[kind].__name__}"
    except RecordError:
        return None, version, f"{MALFORMED}control record"
