"""Builds batches, and stamps offsets and times on batches that another program built.

Metadata batches are built from values alone (no key, no headers, one time for all), which is the
fast path; anything else goes through `build_batch`. The bytes are final: a log appends them as they
are, and `stamp` gives a client's batch its offset and leader epoch without touching its checksum.

Source: KIP-98, Message Format; KIP-32 (LogAppendTime); KIP-595 (control batches).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final

from crc32c import crc32c

from records.batch import (
    CONTROL,
    CONTROL_KEY,
    CRC_START,
    HEADER,
    HEADER_SIZE_BYTES,
    LOG_APPEND_TIME,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAX_BATCH_SIZE_BYTES,
    NO_TIMESTAMP,
)
from records.compression import Buffer, Compression, compress
from records.errors import BatchTooLargeError
from records.varint import encode_varint

_VALUE_ONLY_PREFIX: Final = b"\x00\x00"  # attributes, timestamp delta
_NULL: Final = b"\x01"  # a length of -1
_NO_HEADERS: Final = b"\x00"


def build_value_batch(
    values: Sequence[Buffer],
    *,
    base_offset: int,
    leader_epoch: int,
    timestamp: int,
    compression: Compression = Compression.NONE,
    max_size_bytes: int = MAX_BATCH_SIZE_BYTES,
) -> bytearray:
    """Build a batch of records without keys and with one timestamp, as metadata logs have.

    Raises:  BatchTooLargeError.

    >>> from records.batch import iter_records, read_batch
    >>> batch = build_value_batch([b"a", b"bc"], base_offset=7, leader_epoch=3, timestamp=0)
    >>> [bytes(record.value) for record in iter_records(read_batch(batch))]
    [b'a', b'bc']
    """
    parts: list[Buffer] = []
    for delta, value in enumerate(values):
        offset_delta = encode_varint(delta)
        value_size = encode_varint(len(value))
        size = 5 + len(offset_delta) + len(value_size) - 1 + len(value)
        parts += (
            encode_varint(size),
            _VALUE_ONLY_PREFIX,
            offset_delta,
            _NULL,
            value_size,
            value,
            _NO_HEADERS,
        )
    return _finish(
        parts,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=0,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        record_count=len(values),
        compression=compression,
        max_size_bytes=max_size_bytes,
    )


def seal_value_records(
    records: Buffer,
    *,
    base_offset: int,
    leader_epoch: int,
    timestamp: int,
    record_count: int,
    max_size_bytes: int = MAX_BATCH_SIZE_BYTES,
) -> bytearray:
    """Build a batch from encoded records, which have no keys and one common timestamp.

    The records are encoded as `build_value_batch` encodes them.
    Raises:  BatchTooLargeError.
    """
    return _finish(
        [records],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=0,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        record_count=record_count,
        compression=Compression.NONE,
        max_size_bytes=max_size_bytes,
    )


def build_batch(
    records: Iterable[
        tuple[Buffer | None, Buffer | None, int, Sequence[tuple[str, Buffer | None]]]
    ],
    *,
    base_offset: int,
    leader_epoch: int,
    compression: Compression = Compression.NONE,
    attributes: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    max_size_bytes: int = MAX_BATCH_SIZE_BYTES,
) -> bytearray:
    """Build a batch of (key, value, timestamp in ms, headers) at consecutive offsets.

    Args:    attributes: any of LOG_APPEND_TIME, TRANSACTIONAL, CONTROL; not the codec's bits.
    Raises:  BatchTooLargeError.
    """
    parts: list[Buffer] = []
    count, base_timestamp, max_timestamp = 0, NO_TIMESTAMP, NO_TIMESTAMP
    for key, value, timestamp, headers in records:
        if count == 0:
            base_timestamp = timestamp
        max_timestamp = max(max_timestamp, timestamp)
        fields: list[Buffer] = [
            b"\x00",
            encode_varint(timestamp - base_timestamp),
            encode_varint(count),
        ]
        _put_bytes(fields, key)
        _put_bytes(fields, value)
        fields.append(encode_varint(len(headers)))
        for name, content in headers:
            _put_bytes(fields, name.encode())
            _put_bytes(fields, content)
        parts.append(encode_varint(sum(map(len, fields))))
        parts += fields
        count += 1
    return _finish(
        parts,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        record_count=count,
        compression=compression,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        max_size_bytes=max_size_bytes,
    )


def build_control_batch(
    controls: Sequence[tuple[int, Buffer]],
    *,
    base_offset: int,
    leader_epoch: int,
    timestamp: int,
) -> bytearray:
    """Build an uncompressed control batch of (`ControlType`, encoded message) pairs.

    Source: KIP-595, Leader Change Message; KIP-853 (several in one batch).
    """
    records = [(CONTROL_KEY.pack(0, kind), value, timestamp, ()) for kind, value in controls]
    return build_batch(
        records, base_offset=base_offset, leader_epoch=leader_epoch, attributes=CONTROL
    )


def _put_bytes(fields: list[Buffer], value: Buffer | None) -> None:
    if value is None:
        fields.append(_NULL)
    else:
        fields += (encode_varint(len(value)), value)


def _finish(
    parts: list[Buffer],
    *,
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    record_count: int,
    compression: Compression,
    max_size_bytes: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytearray:
    """Build a batch from encoded records, by adding a header with a checksum."""
    assert record_count > 0, "a batch without records"
    batch = bytearray(HEADER_SIZE_BYTES)
    batch += compress(compression, b"".join(parts))
    if len(batch) > max_size_bytes:
        raise BatchTooLargeError(size_bytes=len(batch), limit_bytes=max_size_bytes)
    HEADER.pack_into(
        batch,
        0,
        base_offset,
        len(batch) - LOG_OVERHEAD_BYTES,
        leader_epoch,
        MAGIC,
        0,
        attributes | compression,
        record_count - 1,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    seal(batch)
    return batch


def seal(batch: bytearray | memoryview) -> int:
    """Write a complete batch's checksum into the batch's header, and return the checksum."""
    crc: int = crc32c(memoryview(batch)[CRC_START:])
    _CRC.pack_into(batch, CRC_START - _CRC.size, crc)
    return crc


_CRC: Final = struct.Struct(">I")
_BASE_OFFSET: Final = struct.Struct(">q")
_LEADER_EPOCH: Final = struct.Struct(">i")
_ATTRIBUTES: Final = struct.Struct(">h")
_MAX_TIMESTAMP: Final = struct.Struct(">q")
_LEADER_EPOCH_AT: Final = 12
_ATTRIBUTES_AT: Final = 21
_MAX_TIMESTAMP_AT: Final = 35


def stamp(batch: bytearray | memoryview, *, base_offset: int, leader_epoch: int) -> None:
    """Set a batch's base offset and leader epoch, which its checksum does not cover."""
    _BASE_OFFSET.pack_into(batch, 0, base_offset)
    _LEADER_EPOCH.pack_into(batch, _LEADER_EPOCH_AT, leader_epoch)


def stamp_leader_epoch(batches: bytearray, position: int, leader_epoch: int) -> None:
    """Set the leader epoch of the batch at `position`, which its checksum does not cover."""
    _LEADER_EPOCH.pack_into(batches, position + _LEADER_EPOCH_AT, leader_epoch)


def stamp_log_append_time(batch: bytearray | memoryview, *, timestamp: int) -> None:
    """Set the append time in ms of all records of a batch, and update the checksum.

    Records keep their own deltas: readers ignore them once the attribute bit is set.
    Source: KIP-32, LogAppendTime.
    """
    (attributes,) = _ATTRIBUTES.unpack_from(batch, _ATTRIBUTES_AT)
    _ATTRIBUTES.pack_into(batch, _ATTRIBUTES_AT, attributes | LOG_APPEND_TIME)
    _MAX_TIMESTAMP.pack_into(batch, _MAX_TIMESTAMP_AT, timestamp)
    seal(batch)


def stamp_max_timestamp(batch: bytearray | memoryview, *, timestamp: int) -> None:
    """Set the greatest timestamp in a batch's header, and update the checksum."""
    _MAX_TIMESTAMP.pack_into(batch, _MAX_TIMESTAMP_AT, timestamp)
    seal(batch)
