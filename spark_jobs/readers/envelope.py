"""The envelope: every record of a log as a row that loses nothing, and back to the log's bytes.

    for row in rows_of(batch): ...        # what is written
    for batch in batches_of(rows): ...    # the very bytes that were read

A row has a record's position, type and version, and the bytes of its body, so
a reader needs no code of ours to find a record, and code that knows the type can still
decode it years later. The log's own records (a new leader's, a checkpoint's header and footer) are
rows like others, marked `control`: without them offsets would have gaps without a reason.

The trap is what it takes to be exact. The first row of each batch carries the batch's header,
61 bytes; everything after it follows from the rows, which is tried before it is relied on: a batch
that could not be made again (it is compressed, or a record has headers) is carried whole. And a
record whose frame is not written as we would write it carries its frame.

Source: `records.batch` (format v2), `records.frame`; docs/design/pipeline.md#one-input.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypedDict

from records.batch import (
    HEADER_SIZE_BYTES,
    Batch,
    BatchHeader,
    iter_records,
    parse_header,
    read_batch,
)
from records.codegen import uvarint
from records.compression import Buffer
from records.errors import RecordError
from records.frame import (
    CONTROL_RECORDS,
    FRAME_VERSION,
    METADATA_RECORDS,
    control_record_type,
    read_frame,
)
from records.varint import encode_varint

UNREADABLE: Final = -1
"""The type and version of a record whose frame says neither."""


class Row(TypedDict):
    """One record with its batch's header fields, as it is written to an archive."""

    offset: int
    epoch: int
    timestamp_ms: int
    control: bool
    type: int
    version: int
    name: str | None  # None: the writer did not know the type
    body: bytes | None  # after the frame; of a control record: its whole value
    frame: bytes | None  # None: as `frame_of` writes it
    key: bytes | None
    batch: bytes | None  # of a batch's first record: its header, or all of it


SCHEMA: Final[dict[str, Any]] = {
    "type": "record",
    "name": "Record",
    "namespace": "esker",
    "doc": "One record of a replicated log, undecoded.",
    "fields": [
        {"name": "offset", "type": "long", "doc": "In a checkpoint: inside its file."},
        {"name": "epoch", "type": "int"},
        {"name": "timestamp_ms", "type": "long", "doc": "ms since 1970"},
        {"name": "control", "type": "boolean", "doc": "The log's own record."},
        {"name": "type", "type": "int", "doc": "-1: the record's frame cannot be read."},
        {"name": "version", "type": "int"},
        {"name": "name", "type": ["null", "string"], "default": None},
        {"name": "body", "type": ["null", "bytes"], "default": None, "doc": "After the frame."},
        {"name": "frame", "type": ["null", "bytes"], "default": None, "doc": "null: as usual."},
        {"name": "key", "type": ["null", "bytes"], "default": None},
        {
            "name": "batch",
            "type": ["null", "bytes"],
            "default": None,
            "doc": "Of a batch's first record: the batch's header (61 bytes), or all of it.",
        },
    ],
}
"""The Avro schema. New fields are appended, nullable, with the default null."""


class EnvelopeError(Exception):
    """Rows that cannot be turned into a log's batches. The message names the offset."""


def frame_of(record_type: int, version: int) -> bytes:
    """Encode the frame, with type and version, that precedes a metadata record's body.

    >>> frame_of(2, 0).hex(" ")
    '01 02 00'
    """
    return uvarint(FRAME_VERSION) + uvarint(record_type) + uvarint(version)


_usual: dict[tuple[int, int], bytes] = {}


def _usual_frame(record_type: int, version: int) -> bytes:
    found = _usual.get((record_type, version))
    if found is None:
        found = _usual[record_type, version] = frame_of(record_type, version)
    return found


# --- from batches to rows -------------------------------------------------------------------------


def rows_of(batch: Batch) -> list[Row]:
    """Convert a whole batch to rows, one for each record.

    Raises:  RecordError if it does not hold what its header says; EnvelopeError if it holds
             nothing: no log of ours has such a batch.
    """
    header = batch.header
    rows = []
    for record in iter_records(batch):
        key = None if record.key is None else bytes(record.key)
        row = _control_row(key, record.value) if header.is_control else _row(record.value)
        row["offset"], row["timestamp_ms"] = record.offset, record.timestamp
        row["epoch"], row["key"] = header.leader_epoch, key
        rows.append(row)
    if not rows:
        raise EnvelopeError(f"the batch at offset {header.base_offset} has no records")
    head = bytes(batch.view[:HEADER_SIZE_BYTES])
    rows[0]["batch"] = head if _rebuild_batch(head, rows) == batch.view else bytes(batch.view)
    return rows


def _row(value: Buffer | None) -> Row:
    record_type, version, name, frame, body = UNREADABLE, UNREADABLE, None, None, None
    if value is not None:
        try:
            record_type, version, position = read_frame(value)
            known = METADATA_RECORDS.get(record_type)
            name = None if known is None else known.schema().name
            if value[:position] != _usual_frame(record_type, version):
                frame = bytes(value[:position])
        except RecordError:
            position, frame = 0, b""
        body = bytes(value[position:])
    return _fill_row(record_type, version, name, frame, body)


def _fill_row(
    record_type: int, version: int, name: str | None, frame: bytes | None, body: bytes | None
) -> Row:
    return {
        "offset": 0,
        "epoch": 0,
        "timestamp_ms": 0,
        "control": False,
        "type": record_type,
        "version": version,
        "name": name,
        "body": body,
        "frame": frame,
        "key": None,
        "batch": None,
    }


def _control_row(key: bytes | None, value: Buffer | None) -> Row:
    """Convert a control record to a row, with the type in its key and the version in its value."""
    body = None if value is None else bytes(value)
    version = int.from_bytes(body[:2], "big", signed=True) if body else UNREADABLE
    try:
        record_type = control_record_type(key)
    except RecordError:
        record_type = UNREADABLE
    known = CONTROL_RECORDS.get(record_type)
    name = None if known is None else known.schema().name
    row = _fill_row(record_type, version, name, None, body)
    row["control"] = True
    return row


# --- and back -------------------------------------------------------------------------------------


def value_of(row: Row) -> bytes | None:
    """Rebuild a record's value from its row, frame included; return None for a null value."""
    body = row["body"]
    if body is None or row["control"]:
        return body
    frame = row["frame"]
    if frame is None:
        frame = _usual_frame(row["type"], row["version"])
    return frame + body


def batches_of(rows: Iterable[Row]) -> Iterator[Batch]:
    """Rebuild the batches that the rows were made from, byte for byte.

    Args:    rows: in the log's order, from the first record of a batch to the last of one.
    Raises:  EnvelopeError if rows are missing or are not what the batch was.
    """
    head: bytes | None = None
    of_batch: list[Row] = []
    for row in rows:
        if row["batch"] is not None:
            if head is not None:
                yield _batch(head, of_batch)
            head, of_batch = row["batch"], []
        elif head is None:
            raise EnvelopeError(f"offset {row['offset']}: the beginning of its batch is missing")
        of_batch.append(row)
    if head is not None:
        yield _batch(head, of_batch)


def _batch(head: bytes, rows: list[Row]) -> Batch:
    data = head if len(head) > HEADER_SIZE_BYTES else _rebuild_batch(head, rows)
    try:
        return read_batch(data)
    except RecordError as error:
        raise EnvelopeError(
            f"the batch at offset {rows[0]['offset']} is not what it was: {error}"
        ) from None


def _rebuild_batch(head: bytes, rows: list[Row]) -> bytes:
    """Rebuild one batch from its header and records."""
    header = _header(head)
    if header is None:
        return head
    parts: list[bytes] = [head]
    for row in rows:
        value, key = value_of(row), row["key"]
        fields = [
            b"\x00",
            encode_varint(row["timestamp_ms"] - header.base_timestamp),
            encode_varint(row["offset"] - header.base_offset),
        ]
        for part in (key, value):
            if part is None:
                fields.append(b"\x01")
            else:
                fields += (encode_varint(len(part)), part)
        fields.append(b"\x00")
        parts.append(encode_varint(sum(map(len, fields))))
        parts += fields
    return b"".join(parts)


def _header(head: bytes) -> BatchHeader | None:
    try:
        return parse_header(head)
    except RecordError:
        return None
