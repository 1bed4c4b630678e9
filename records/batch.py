"""Record batch v2: the unit that is appended, replicated, checksummed and compressed.

A batch is a 61 byte header and then its records. The CRC-32C covers everything from the attributes
to the end and leaves out the first 21 bytes, and that is the idea of the format: base offset and
leader epoch can be stamped by the node that orders the log without reading, let alone checksumming,
the records again.

The surprise is how little is certain until the checksum has been looked at. Lengths and counts are
compared with the bytes that are really there before anything is believed or allocated, and a buffer
that merely *ends too early* (`IncompleteBatchError`) is told apart from one that contradicts itself
(`CorruptBatchError`): the first is the ordinary end of a Fetch answer, the second never is.

For others in this project:

- `parse_header(buffer, position)`: the header alone, as a cheap tuple.
- `read_batch`, `iter_batches`: whole batches as (position, header, view); nothing is copied.
- `iter_records(batch)`: light tuples; keys and values are memoryviews into the batch (or into its
  decompressed records).
- `records.batch_writer` builds batches and stamps them in place.

Source: KIP-98, Message Format; KIP-595 (control batches).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from crc32c import crc32c

from records.compression import (
    MAX_DECOMPRESSED_BYTES,
    Buffer,
    Compression,
    codec_of,
    decompress,
)
from records.errors import (
    BatchChecksumError,
    CorruptBatchError,
    IncompleteBatchError,
)
from records.types import Epoch, Offset
from records.varint import decode_varint, decode_varlong

HEADER: Final = struct.Struct(">qiiBIhiqqqhii")
HEADER_SIZE_BYTES: Final = HEADER.size
LOG_OVERHEAD_BYTES: Final = 12
"""Base offset and length: what precedes the bytes that `batch_length` counts."""

CRC_START: Final = 21
"""The checksum covers a batch from here (its attributes) to its end."""

MAX_BATCH_SIZE_BYTES: Final = 100 * 1024 * 1024
"""No batch is larger than the largest request (`socket.request.max.bytes`) that can carry it."""

NO_TIMESTAMP: Final = -1

MAGIC: Final = 2
"""Format version in a batch's header: v2, the only one since Kafka 4."""

MIN_RECORD_BYTES: Final = 7
"""A record's length, attributes, two deltas, key and value length, header count: a byte each."""

_MAX_INT64: Final = (1 << 63) - 1
_LEAST_LENGTH: Final = (
    HEADER_SIZE_BYTES - LOG_OVERHEAD_BYTES
)  # of a batch, as `batch_length` counts

COMPRESSION_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40
"""The base timestamp is the time from which compaction removes the batch's tombstones (KIP-534)."""


class ControlType(IntEnum):
    """The second int16 of a control record's key. A reader skips the types it does not know."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    VOTERS = 6


CONTROL_KEY: Final = struct.Struct(">hh")
"""A control record's key: version (0), type."""


class BatchHeader(NamedTuple):
    """The header's fields in wire order (a NamedTuple: eight times cheaper than a dataclass)."""

    base_offset: Offset
    batch_length: int  # counts what follows this field
    leader_epoch: Epoch
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int  # ms; of the first record, or the delete horizon if that bit is set
    max_timestamp: int  # ms
    producer_id: int  # -1: not an idempotent producer
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """Return the size of the whole batch in bytes, header included."""
        return LOG_OVERHEAD_BYTES + self.batch_length

    @property
    def last_offset(self) -> Offset:
        """Return the inclusive last offset of the batch, even if compaction removed that record."""
        return Offset(self.base_offset + self.last_offset_delta)

    @property
    def end_offset(self) -> Offset:
        """Return the offset after the batch's last record."""
        return Offset(self.base_offset + self.last_offset_delta + 1)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_dense(self) -> bool:
        """Return whether the batch has a record at every offset; compaction may remove records."""
        return self.record_count == self.last_offset_delta + 1

    @property
    def compression(self) -> Compression:
        """Return the compression codec of the records.

        Raises UnknownCodecError.
        """
        return codec_of(self.attributes)


class Batch(NamedTuple):
    """A whole batch inside some buffer. `view` keeps that buffer alive and is only as constant."""

    position: int  # in the buffer it was read from
    header: BatchHeader
    view: memoryview  # header and records


class RecordHeader(NamedTuple):
    """A header that a producer gave a record: a name, and bytes or none."""

    key: str
    value: memoryview | bytes | None


class Record(NamedTuple):
    """One record; positions and times are absolute, bytes are views."""

    offset: Offset
    timestamp: int  # ms; the batch's max_timestamp under LogAppendTime
    key: memoryview | bytes | None
    value: memoryview | bytes | None
    headers: tuple[RecordHeader, ...] = ()


def parse_header(
    buffer: Buffer, position: int = 0, *, max_size_bytes: int = MAX_BATCH_SIZE_BYTES
) -> BatchHeader:
    """Parse the batch header at `position`, and check that the fields are consistent.

    The bytes after the header need not be there yet, so the checksum is not looked at.

    Raises:  IncompleteBatchError if fewer than 61 bytes are left; CorruptBatchError.
    """
    available = len(buffer) - position
    if available < HEADER_SIZE_BYTES:
        raise IncompleteBatchError(
            position=position, needed_bytes=HEADER_SIZE_BYTES, available_bytes=available
        )
    fields = HEADER.unpack_from(buffer, position)
    reason = _contradiction(fields, max_size_bytes)
    header = tuple.__new__(BatchHeader, fields)  # `_make` takes three times as long
    if reason is not None:
        offset = header.base_offset if header.magic == MAGIC else None
        raise CorruptBatchError(position=position, offset=offset, reason=reason)
    return header


def _contradiction(fields: tuple[int, ...], max_size_bytes: int) -> str | None:
    """Return a description of the contradiction between a batch header's fields, or None.

    Args:  fields: those of `BatchHeader`, as a plain tuple, which is taken apart at once.
    """
    base, length, _, magic, _, attributes, delta, _, _, _, _, _, count = fields
    if magic != MAGIC:
        return f"magic {magic}, only 2 is known"
    if length < HEADER_SIZE_BYTES - LOG_OVERHEAD_BYTES:
        return f"length {length} is smaller than a header"
    if length > max_size_bytes - LOG_OVERHEAD_BYTES:
        return f"length {length} exceeds the limit of {max_size_bytes} bytes"
    if base < 0 or delta < 0 or base > _MAX_INT64 - 1 - delta:
        return f"offsets {base} + {delta} are impossible"
    if not 0 <= count <= delta + 1:
        return f"{count} records in {delta + 1} offsets"
    records_bytes = length + LOG_OVERHEAD_BYTES - HEADER_SIZE_BYTES
    if not attributes & COMPRESSION_MASK and count * MIN_RECORD_BYTES > records_bytes:
        return f"{count} records cannot fit in {records_bytes} bytes"
    return None


def read_batch(
    buffer: Buffer,
    position: int = 0,
    *,
    max_size_bytes: int = MAX_BATCH_SIZE_BYTES,
    verify_crc: bool = True,
) -> Batch:
    """Read and check the batch at `position` of a buffer.

    Raises:  IncompleteBatchError if the buffer ends inside it; CorruptBatchError, of which
             BatchChecksumError is a kind.
    """
    header = parse_header(buffer, position, max_size_bytes=max_size_bytes)
    end = position + header.size_bytes
    if end > len(buffer):
        raise IncompleteBatchError(
            position=position,
            needed_bytes=header.size_bytes,
            available_bytes=len(buffer) - position,
        )
    view = memoryview(buffer)[position:end]
    if verify_crc:
        actual = crc32c(view[CRC_START:])
        if actual != header.crc:
            raise BatchChecksumError(
                position=position,
                offset=header.base_offset,
                expected_crc=header.crc,
                actual_crc=actual,
            )
    return Batch(position, header, view)


def iter_batches(
    buffer: Buffer,
    position: int = 0,
    *,
    max_size_bytes: int = MAX_BATCH_SIZE_BYTES,
    verify_crc: bool = True,
    allow_partial_tail: bool = False,
) -> Iterator[Batch]:
    """Yield the batches from `position` to the buffer's end, in order.

    Args:    allow_partial_tail: a buffer that ends inside a batch is simply over there (a Fetch
             answer may be cut at any byte); otherwise that raises.
    Raises:  IncompleteBatchError, CorruptBatchError.

    The loop has as few Python steps for a batch as it can have: logs of small batches are applied
    through it. It takes what `read_batch` takes, and leaves it to that to explain what it refuses.
    """
    view = memoryview(buffer)
    available = len(view)
    max_length = max_size_bytes - LOG_OVERHEAD_BYTES
    unpack, new_tuple = HEADER.unpack_from, tuple.__new__
    while position < available:
        if available - position >= HEADER_SIZE_BYTES:
            fields = unpack(view, position)
            base, length, _, magic, crc, attributes, delta, _, _, _, _, _, count = fields
            end = position + LOG_OVERHEAD_BYTES + length
            if (
                end <= available
                and magic == MAGIC
                and _LEAST_LENGTH <= length <= max_length
                and delta >= 0 <= base <= _MAX_INT64 - 1 - delta
                and 0 <= count <= delta + 1
                and (
                    count * MIN_RECORD_BYTES <= length - _LEAST_LENGTH
                    or attributes & COMPRESSION_MASK
                )
                and (not verify_crc or crc32c(view[position + CRC_START : end]) == crc)
            ):
                header = new_tuple(BatchHeader, fields)
                yield new_tuple(Batch, (position, header, view[position:end]))
                position = end
                continue
        try:  # names what is wrong
            batch = read_batch(view, position, max_size_bytes=max_size_bytes, verify_crc=verify_crc)
        except IncompleteBatchError:
            if allow_partial_tail:
                return
            raise
        yield batch
        position += batch.header.size_bytes


def records_of(batch: Batch, *, limit_bytes: int = MAX_DECOMPRESSED_BYTES) -> memoryview:
    """Return the bytes of a batch's records, decompressed if they are compressed.

    Raises:  CompressionError, of which DecompressedTooLargeError is a kind.
    """
    view = batch.view[HEADER_SIZE_BYTES:]
    if not batch.header.attributes & COMPRESSION_MASK:
        return view
    codec = batch.header.compression
    return memoryview(decompress(codec, view, limit_bytes=limit_bytes))


def iter_records(batch: Batch, *, limit_bytes: int = MAX_DECOMPRESSED_BYTES) -> Iterator[Record]:
    """Yield the records of one batch, in order.

    They must fill it exactly, and their offsets must rise inside the range the header gives: else
    CorruptBatchError, even if the checksum was right (a peer may send nonsense with a good CRC).

    Args:    limit_bytes: the most that compressed records may expand to.
    Raises:  CorruptBatchError, CompressionError. Records before the damage have been yielded.
    """
    header = batch.header
    if header.record_count == 0:  # an emptied batch keeps a codec's bits but has nothing in it
        if batch.header.size_bytes != HEADER_SIZE_BYTES:
            raise _corrupt(batch, "no records, but bytes for some")
        return
    body = records_of(batch, limit_bytes=limit_bytes)
    if header.record_count * MIN_RECORD_BYTES > len(body):
        raise _corrupt(batch, f"{header.record_count} records cannot fit in {len(body)} bytes")
    try:
        yield from iter_body(batch, body)
    except IndexError:
        raise _corrupt(batch, "ends inside a record") from None
    except (ValueError, struct.error) as error:  # includes bad UTF-8 in a header key
        raise _corrupt(batch, str(error)) from None


def iter_body(batch: Batch, body: memoryview) -> Iterator[Record]:
    """Yield the records in the decompressed body of a batch."""
    header = batch.header
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    fixed_timestamp = header.max_timestamp if header.is_log_append_time else None
    previous_delta, last_delta = -1, header.last_offset_delta
    position, size = 0, len(body)
    key: memoryview | None
    headers: tuple[RecordHeader, ...]
    for _ in range(header.record_count):
        length, position = decode_varint(body, position)
        end = position + length
        if length < MIN_RECORD_BYTES - 1 or end > size:
            raise ValueError(f"record of {length} bytes, {size - position} are left")
        position += 1  # the record's attributes: unused in v2
        if body[position] == 0:
            timestamp, position = base_timestamp, position + 1
        else:
            delta, position = decode_varlong(body, position)
            timestamp = base_timestamp + delta
            if not -_MAX_INT64 <= timestamp <= _MAX_INT64:
                raise ValueError(f"timestamp {timestamp} exceeds 64 bits")
        offset_delta, position = decode_varint(body, position)
        if not previous_delta < offset_delta <= last_delta:
            raise ValueError(
                f"offset delta {offset_delta} after {previous_delta}, the last is {last_delta}"
            )
        previous_delta = offset_delta
        if body[position] == _NULL_LENGTH:
            key, position = None, position + 1
        else:
            key, position = _read_bytes(body, position, end)
        value, position = _read_bytes(body, position, end)
        if body[position] == 0:
            headers, position = (), position + 1
        else:
            headers, position = _read_headers(body, position, end)
        if position != end:
            raise ValueError(f"record ends at {position}, its length says {end}")
        if fixed_timestamp is not None:
            timestamp = fixed_timestamp
        yield _new_record(Record, (base_offset + offset_delta, timestamp, key, value, headers))
    if position != size:
        raise ValueError(f"{size - position} bytes after the last record")


_NULL_LENGTH: Final = 1  # -1 in zigzag
_new_record: Final[Callable[..., Record]] = tuple.__new__  # half the time of Record(...)


def _read_bytes(body: memoryview, position: int, end: int) -> tuple[memoryview | None, int]:
    """Read a byte string or null after its varint length; raise ValueError if past `end`."""
    length, position = decode_varint(body, position)
    if length < 0:
        if length == -1:
            return None, position
        raise ValueError(f"length {length}")
    stop = position + length
    if stop > end:
        raise ValueError(f"{length} bytes, {end - position} are left in the record")
    return body[position:stop], stop


def _read_headers(
    body: memoryview, position: int, end: int
) -> tuple[tuple[RecordHeader, ...], int]:
    count, position = decode_varint(body, position)
    if not 0 <= count <= (end - position) // 2:  # each takes two length bytes at least
        raise ValueError(f"{count} headers in {end - position} bytes")
    headers = []
    for _ in range(count):
        key, position = _read_bytes(body, position, end)
        if key is None:
            raise ValueError("header without a key")
        value, position = _read_bytes(body, position, end)
        headers.append(RecordHeader(str(key, "utf-8"), value))
    return tuple(headers), position


def _corrupt(batch: Batch, reason: str) -> CorruptBatchError:
    return CorruptBatchError(
        position=batch.position, offset=batch.header.base_offset, reason=reason
    )
