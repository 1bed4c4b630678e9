"""Prints items as JSON lines: one object a line, for programs.

`type` says what the line is (`file`, `batch`, `record`, an entry's own, `end`, `verified`,
`error`), `file` which file it belongs to. Names are Kafka's where Kafka has one; times are ms since
1970; bytes are base64; a field that says nothing is null or left out.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from esker.dump.fields import fields_of, to_json
from esker.dump.items import BatchItem, Entry, FileEnd, FileStart, Item, RecordItem, Tally
from esker.dump.kinds import Kind
from records.batch import COMPRESSION_MASK
from records.compression import Compression


class LinePrinter:
    """Turns items into lines of text."""

    def __init__(self) -> None:
        self._file = ""
        self._position = 0

    def render(self, item: Item) -> str:
        """Return an item of a log file as one JSON line, without the newline."""
        match item:
            case FileStart(path, kind, size_bytes):
                self._file = str(path)
                return self._line("file", {"kind": kind.value, "sizeBytes": size_bytes})
            case BatchItem(position, _):
                self._position = position
                return self._line("batch", _batch(item))
            case RecordItem():
                return self._line("record", {"batchPosition": self._position, **_record(item)})
            case Entry(name, fields):
                return self._line(name, to_json(fields, 0))
            case FileEnd(start, tally):
                return self._line("end", _tally(start.kind, tally))

    def _line(self, name: str, fields: dict[str, Any]) -> str:
        return _dumps({"type": name, "file": self._file, **fields})


def verified_line(path: Path | str, kind: Kind, size_bytes: int, tally: Tally) -> str:
    """Return the JSON line of a file that `--verify` found sound."""
    fields = {"kind": kind.value, "sizeBytes": size_bytes, **_tally(kind, tally)}
    return _dumps({"type": "verified", "file": str(path), **fields})


def error_line(path: Path | str, reason: str, *, position: int | None, offset: int | None) -> str:
    """Return the JSON line of a file that cannot be read to its end."""
    fields = {"position": position, "offset": offset, "reason": reason}
    return _dumps({"type": "error", "file": str(path), **fields})


def _dumps(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))


def _batch(item: BatchItem) -> dict[str, Any]:
    header = item.header
    fields: dict[str, Any] = {
        "position": item.position,
        "sizeBytes": header.size_bytes,
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "leaderEpoch": header.leader_epoch,
        "recordCount": header.record_count,
        "control": header.is_control,
        "transactional": header.is_transactional,
        "compression": codec_name(header.attributes),
        "timestampType": "LogAppendTime" if header.is_log_append_time else "CreateTime",
        "baseTimestamp": header.base_timestamp,
        "maxTimestamp": header.max_timestamp,
        "crc": header.crc,
    }
    if header.producer_id != -1:
        fields["producerId"] = header.producer_id
        fields["producerEpoch"] = header.producer_epoch
        fields["baseSequence"] = header.base_sequence
    return fields


def codec_name(attributes: int) -> str:
    """Return the name of a batch's compression codec, or the number of an unknown codec."""
    codec = attributes & COMPRESSION_MASK
    return Compression(codec).name.lower() if codec <= max(Compression) else f"codec {codec}"


def _record(item: RecordItem) -> dict[str, Any]:
    record = item.record
    fields: dict[str, Any] = {"offset": record.offset, "timestamp": record.timestamp}
    if item.message is not None:
        fields["record"] = type(item.message).__name__
        fields["version"] = item.version
        fields["data"] = {
            name: to_json(value, item.version)
            for name, value in fields_of(item.message, item.version)
        }
    else:
        fields["note"] = item.note
        fields["key"] = _base64(record.key)
        fields["value"] = _base64(record.value)
    if record.headers:
        fields["headers"] = [
            {"key": header.key, "value": _base64(header.value)} for header in record.headers
        ]
    return fields


def _base64(data: bytes | memoryview | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _tally(kind: Kind, tally: Tally) -> dict[str, Any]:
    fields: dict[str, Any]
    if kind in (Kind.SEGMENT, Kind.CHECKPOINT):
        fields = {"firstOffset": tally.first_offset, "endOffset": tally.end_offset}
        if tally.counted:
            fields |= {"batches": tally.batches, "records": tally.records}
            fields["opaqueRecords"] = tally.opaque
    elif kind is Kind.WAL_OBJECT:
        fields = {"partitions": tally.entries}
        fields |= {"batches": tally.batches, "records": tally.records}
    else:
        fields = {"entries": tally.entries}
    return {**fields, "remarks": tally.remarks}
