"""Reads a segment or a checkpoint with `records` alone, in the shape of `dump_output`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from records.batch import Batch, Record, iter_batches, iter_records
from records.frame import decode_control_record, decode_record, read_frame
from records.schema import ControlRecord, MetadataRecord
from tests.interop.dump_output import DumpedBatch, DumpedRecord
from tests.interop.upstream_json import kind_of, to_json


def decode(batch: Batch, record: Record) -> tuple[MetadataRecord | ControlRecord, int]:
    """A record of a metadata log, and the version it was written at."""
    assert record.value is not None
    if not batch.header.is_control:
        return decode_record(record.value), read_frame(record.value)[1]
    assert record.key is not None
    control = decode_control_record(record.key, record.value)
    return control, getattr(control, "version", 0)


def batches(file: Path) -> Iterator[Batch]:
    """Every batch of a file, its checksum verified."""
    return iter_batches(file.read_bytes())


def read(file: Path) -> list[DumpedBatch]:
    """Our own reading of a file, as DumpLogSegments would have it."""
    return [
        DumpedBatch(_header_fields(batch), [_dumped(batch, r) for r in iter_records(batch)])
        for batch in batches(file)
    ]


def _dumped(batch: Batch, record: Record) -> DumpedRecord:
    message, version = decode(batch, record)
    return DumpedRecord(record.offset, kind_of(message), version, to_json(message, version))


def _header_fields(batch: Batch) -> dict[str, str]:
    header = batch.header
    said = {
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "count": header.record_count,
        "baseSequence": header.base_sequence,
        "lastSequence": -1,
        "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch,
        "partitionLeaderEpoch": header.leader_epoch,
        "isTransactional": header.is_transactional,
        "isControl": header.is_control,
        "deleteHorizonMs": "OptionalLong.empty",
        "position": batch.position,
        "CreateTime": header.max_timestamp,
        "size": header.size_bytes,
        "magic": header.magic,
        "compresscodec": header.compression.name.lower(),
        "crc": header.crc,
        "isvalid": True,
    }
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in said.items()
    }
