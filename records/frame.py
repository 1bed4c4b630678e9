"""The frame around a metadata record's value, and the key of a control record.

A metadata record's value is: frame version (unsigned varint, 1), type (unsigned varint), version
(unsigned varint), then the record in Kafka's flexible encoding. A control record has no frame: its
type is in the key (int16 version 0, int16 type), its value is the bare message.

Source: KIP-631, Record Format, as upstream's MetadataRecordSerde writes it (the KIP's text lacks
the frame version); KIP-595, Leader Change Messages.
"""

from __future__ import annotations

from typing import Final

from records import (
    chunks,
    control,
    diskless,
    groups,
    key_value,
    metadata,
    timelines,
    transactions,
)
from records.batch import CONTROL_KEY
from records.codec import Buffer, decode_message, encode_message, encode_parts
from records.codegen import read_uvarint, uvarint
from records.errors import MalformedMessageError, UnknownRecordError
from records.schema import ControlRecord, MetadataRecord

FRAME_VERSION: Final = 1
_LARGEST_NUMBER: Final = 32767  # of a type or a version: int16 in upstream

METADATA_RECORDS: Final = {
    cls.number(): cls
    for module in (metadata, chunks, diskless, groups, key_value, timelines, transactions)
    for cls in vars(module).values()
    if isinstance(cls, type) and issubclass(cls, MetadataRecord) and cls is not MetadataRecord
}
"""Every metadata record class by its type number."""

CONTROL_RECORDS: Final = {
    cls.number(): cls
    for cls in vars(control).values()
    if isinstance(cls, type) and issubclass(cls, ControlRecord) and cls is not ControlRecord
}
"""Every control record class by its control record type."""

_headers: dict[tuple[type[MetadataRecord], int], bytes] = {}


def lowest_version(record: MetadataRecord) -> int:
    """Return the lowest version that can encode all fields that this record sets.

    An older reader then reads as much as can be read by an older reader at all.

    >>> lowest_version(metadata.NoOpRecord())
    0
    """
    schema = record.schema()
    needed = schema.versions.first
    for field in schema.fields:
        if field.versions.first > needed and getattr(record, field.name) != field.default:
            needed = field.versions.first
    return needed


def encode_record(record: MetadataRecord, version: int | None = None) -> bytes:
    """Encode a record at `version`, or else the lowest version that encodes all its fields.

    >>> encode_record(metadata.FeatureLevelRecord(name="x", feature_level=7)).hex(" ")
    '01 0c 00 02 78 00 07 00'
    """
    if version is None:
        version = lowest_version(record)
    cls = type(record)
    header = _headers.get((cls, version))
    if header is None:
        key = cls.schema().key
        assert key is not None, f"{cls.__name__} has no type number"
        header = uvarint(FRAME_VERSION) + uvarint(key) + uvarint(version)
        _headers[cls, version] = header
    return b"".join([header, *encode_parts(record, version)])


def read_frame(value: Buffer | None) -> tuple[int, int, int]:
    """Return the type, version and body position of a metadata record's value.

    Raises:  MalformedMessageError if the frame is not one that upstream writes.
    """
    if value is None:
        raise _malformed_error("frame version", 0, "the record's value is null")
    if len(value) > 2 and value[0] == FRAME_VERSION and value[1] < 0x80 and value[2] < 0x80:
        return value[1], value[2], 3
    position = 0
    numbers = []
    for what in ("frame version", "type", "version"):
        start = position
        try:
            number, position = read_uvarint(memoryview(value), position)
        except (IndexError, ValueError):
            raise _malformed_error(what, start, "not an unsigned varint") from None
        numbers.append(number)
        if what == "frame version" and number != FRAME_VERSION:
            raise _malformed_error(what, start, f"{number}, expected {FRAME_VERSION}")
        if number > _LARGEST_NUMBER:
            raise _malformed_error(what, start, f"{number} is out of range")
    return numbers[1], numbers[2], position


def _malformed_error(path: str, position: int, reason: str) -> MalformedMessageError:
    return MalformedMessageError(
        message="record frame", version=FRAME_VERSION, path=path, position=position, reason=reason
    )


def decode_record(value: Buffer | None) -> MetadataRecord:
    """Decode the metadata record in the value of a log record.

    Raises:  UnknownRecordError for a type, UnsupportedVersionError for a version, that this code
             does not know; MalformedMessageError, which counts bytes from behind the frame.
    """
    key, version, start = read_frame(value)
    assert value is not None, "a null has no frame"
    cls = METADATA_RECORDS.get(key)
    if cls is None:
        raise UnknownRecordError(kind="metadata", key=key)
    return decode_message(cls, value, version, start)


def encode_control_record(record: ControlRecord, version: int = 0) -> tuple[bytes, bytes]:
    """Encode a control record's key and value.

    >>> key, value = encode_control_record(control.SnapshotFooterRecord())
    >>> key.hex(), value.hex()
    ('00000004', '000000')
    """
    says = getattr(record, "version", version)
    if says != version:
        raise ValueError(f"{type(record).__name__} says version {says}, is written at {version}")
    return CONTROL_KEY.pack(0, record.schema().key), encode_message(record, version)


def control_record_type(key: Buffer | None) -> int:
    """Return the type in a control record's key, which may be longer than Kafka's."""
    if key is None or len(key) < CONTROL_KEY.size:
        length = "null" if key is None else f"{len(key)} bytes"
        raise _malformed_control("key", f"{length}, expected {CONTROL_KEY.size} bytes")
    kind: int = CONTROL_KEY.unpack_from(key)[1]
    return kind


def _malformed_control(path: str, reason: str) -> MalformedMessageError:
    return MalformedMessageError(
        message="control record", version=0, path=path, position=0, reason=reason
    )


def decode_control_record(key: Buffer | None, value: Buffer | None) -> ControlRecord:
    """Decode a control record's key and value; the value begins with the version.

    Raises:  UnknownRecordError, UnsupportedVersionError, MalformedMessageError.
    """
    kind = control_record_type(key)
    cls = CONTROL_RECORDS.get(kind)
    if cls is None:
        raise UnknownRecordError(kind="control", key=kind)
    if value is None:
        raise _malformed_control("value", "null")
    version = int.from_bytes(value[:2], "big", signed=True) if len(value) >= 2 else 0
    return decode_message(cls, value, version)
