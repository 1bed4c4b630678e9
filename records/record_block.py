"""Columns of the records of several batches: where each record, key and value is.

    block = read_block(batches)
    block.key_sizes[i], block.offsets[i]

A loop in Python costs some 5 us a record to read all of its fields. Here the loop only follows the
records' lengths, and NumPy reads the other fields of all records of many batches at once: small
batches cost no more a record than large ones.

Only the fields that compaction needs are read: headers are not. A batch whose lengths or offsets
contradict each other raises `CorruptBatchError`, whatever its checksum says.

Source: KIP-98, Message Format; docs/design/compaction.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from records.batch import HEADER_SIZE_BYTES, MIN_RECORD_BYTES, Batch, records_of
from records.compression import MAX_DECOMPRESSED_BYTES, Buffer
from records.errors import CorruptBatchError
from records.varint import MAX_VARLONG_BYTES, decode_varint
from records.varint_columns import Numbers, read_uvarints, unzigzag

_MAX_VARINT: Final = 0xFFFF_FFFF


class RecordBlock(NamedTuple):
    """The records of some batches, in order; columns have one entry for each record."""

    batches: Sequence[Batch]
    data: bytes  # the batches' decompressed records, one after the other
    first_records: Numbers  # of each batch: the index of its first record; and the end
    starts: Numbers  # in `data`, where the record's length stands
    ends: Numbers
    batch_indexes: Numbers
    offsets: Numbers
    timestamps: Numbers  # ms; of create time, also where the batch has an append time
    after_timestamps: Numbers  # in `data`, where the offset delta stands
    key_starts: Numbers
    key_sizes: Numbers  # -1: null
    value_sizes: Numbers  # -1: null, a tombstone


def read_block(
    batches: Sequence[Batch], *, limit_bytes: int = MAX_DECOMPRESSED_BYTES
) -> RecordBlock:
    """Read the positions, keys and values of all records of batches with verified checksums.

    Args:    limit_bytes: the most that the records of all batches together may expand to.
    Raises:  CorruptBatchError, CompressionError: at the first batch that cannot be read;
             DecompressedTooLargeError before memory beyond the limit is taken.
    """
    bodies: list[Buffer] = []
    left = limit_bytes
    for batch in batches:
        bodies.append(_body(batch, left))
        left -= len(bodies[-1])
    data = b"".join(bodies)
    counts = [batch.header.record_count for batch in batches]
    first_records = np.zeros(len(batches) + 1, np.int64)
    np.cumsum(counts, out=first_records[1:])
    ends_list: list[int] = []
    position = 0
    for batch, body in zip(batches, bodies, strict=True):
        end = position + len(body)
        _find_ends(batch, data, position, end, ends_list)
        position = end
    ends = np.array(ends_list, np.int64)
    starts = np.zeros_like(ends)
    starts[1:] = ends[:-1]
    batch_indexes = np.repeat(np.arange(len(batches)), counts)
    try:
        return _columns(batches, data, first_records, starts, ends, batch_indexes)
    except MalformedRecordError as error:
        raise _corrupt(batches[batch_indexes[error.record]], error.reason) from None
    except ValueError as error:  # a varint that does not end: the batch is found one by one
        if len(batches) == 1:
            raise _corrupt(batches[0], str(error)) from None
        for batch in batches:
            read_block([batch], limit_bytes=limit_bytes)
        raise


class MalformedRecordError(Exception):
    """A record that contradicts itself or its batch."""

    def __init__(self, record: int, reason: str) -> None:
        super().__init__(reason)
        self.record = record
        self.reason = reason


def _body(batch: Batch, limit_bytes: int) -> Buffer:
    """Return a batch's decompressed records; raise an error if the count exceeds their size."""
    if batch.header.record_count == 0:  # an emptied batch
        if batch.header.size_bytes != HEADER_SIZE_BYTES:
            raise _corrupt(batch, "no records, but bytes for some")
        return b""
    body = records_of(batch, limit_bytes=limit_bytes)
    if batch.header.record_count * MIN_RECORD_BYTES > len(body):
        reason = f"{batch.header.record_count} records cannot fit in {len(body)} bytes"
        raise _corrupt(batch, reason)
    return body


def _find_ends(batch: Batch, data: bytes, position: int, end: int, found: list[int]) -> None:
    """Find the end of each record of a batch by its length, and append the ends to `found`."""
    try:
        ends = follow_records(data, position, batch.header.record_count)
    except (IndexError, ValueError) as error:
        raise _corrupt(batch, f"a record's length: {error}") from None
    if ends and ends[-1] != end:
        raise _corrupt(batch, f"records end at byte {ends[-1]}, their batch at {end}")
    found += ends


def follow_records(data: Buffer, position: int, count: int) -> list[int]:
    """Return where each of `count` records ends by its length; the first begins at `position`.

    A negative length is taken for a positive one: `read_fields` refuses it.

    Raises:  IndexError where the buffer ends first; ValueError for a length that is too long.
    """
    ends: list[int] = []
    append = ends.append
    for _ in range(count):
        low = data[position]
        if low < 0x80:
            position += 1 + (low >> 1)
        elif (high := data[position + 1]) < 0x80:
            position += 2 + ((low & 0x7F | high << 7) >> 1)
        else:
            length, position = decode_varint(data, position)
            position += length
        append(position)
    return ends


class RecordFields(NamedTuple):
    """The fields of records, read where they lie; columns have one entry for each record."""

    timestamp_deltas: Numbers
    after_timestamps: Numbers  # where the offset delta stands
    offset_deltas: Numbers
    key_starts: Numbers
    key_sizes: Numbers  # -1: null
    value_starts: Numbers
    value_sizes: Numbers  # -1: null
    value_ends: Numbers  # where the number of headers stands


def read_fields(data: Buffer, starts: Numbers, ends: Numbers) -> RecordFields:
    """Read the fields of the records that lie in `data` from `starts` to `ends`, but for headers.

    Raises:  MalformedRecordError; ValueError for a varint that is too long.
    """
    raw = np.frombuffer(data or b"\0", np.uint8)
    lengths, positions = read_uvarints(raw, starts)
    _check(positions + unzigzag(lengths) == ends, "its length is negative or too large")
    timestamp_deltas, after_timestamps = read_uvarints(
        raw,
        positions + 1,  # its attributes: unused in v2
        max_bytes=MAX_VARLONG_BYTES,
    )
    offset_deltas, positions = read_varints(raw, after_timestamps)
    key_sizes, key_starts = read_varints(raw, positions)
    value_sizes, value_starts = read_varints(raw, key_starts + np.maximum(key_sizes, 0))
    value_ends = value_starts + np.maximum(value_sizes, 0)
    _check((key_sizes >= -1) & (value_sizes >= -1), "a key or value of negative length")
    _check(value_ends < ends, "its key and value do not fit in it")  # a byte at least for headers
    return RecordFields(
        unzigzag(timestamp_deltas),
        after_timestamps,
        offset_deltas,
        key_starts,
        key_sizes,
        value_starts,
        value_sizes,
        value_ends,
    )


def check_deltas(offset_deltas: Numbers, first_records: Numbers, last_deltas: Numbers) -> None:
    """Check that the offsets of each batch's records rise, and end within the batch.

    Args:    first_records: the index of each batch's first record; batches without records too.
             last_deltas: of the batch of each record, the last offset's delta.
    Raises:  MalformedRecordError.
    """
    previous = np.full_like(offset_deltas, -1)
    previous[1:] = offset_deltas[:-1]
    previous[first_records[first_records < len(offset_deltas)]] = -1
    in_order = (previous < offset_deltas) & (offset_deltas <= last_deltas)
    _check(in_order, "its offset is not between its neighbours'")


def _columns(
    batches: Sequence[Batch],
    data: bytes,
    first_records: Numbers,
    starts: Numbers,
    ends: Numbers,
    batch_indexes: npt.NDArray[Any],
) -> RecordBlock:
    """Read each field of all records of the batches into one array.

    Raises:  MalformedRecordError; ValueError for a varint that is too long.
    """
    fields = read_fields(data, starts, ends)
    headers = [batch.header for batch in batches]
    base_offsets = np.array([header.base_offset for header in headers], np.int64)
    last_deltas = np.array([header.last_offset_delta for header in headers], np.int64)
    base_timestamps = np.array([header.base_timestamp for header in headers], np.int64)
    check_deltas(fields.offset_deltas, first_records[:-1], last_deltas[batch_indexes])
    return RecordBlock(
        batches,
        data,
        first_records,
        starts,
        ends,
        batch_indexes,
        base_offsets[batch_indexes] + fields.offset_deltas,
        base_timestamps[batch_indexes] + fields.timestamp_deltas,
        fields.after_timestamps,
        fields.key_starts,
        fields.key_sizes,
        fields.value_sizes,
    )


def read_varints(raw: npt.NDArray[np.uint8], positions: Numbers) -> tuple[Numbers, Numbers]:
    """Read a signed varint of 32 bits at each position; return values and end positions.

    Raises:  MalformedRecordError; ValueError for a varint that is too long.
    """
    values, after = read_uvarints(raw, positions)
    _check(values <= _MAX_VARINT, "a varint exceeds 32 bits")
    return unzigzag(values), after


def _check(is_sound: npt.NDArray[np.bool_], reason: str) -> None:
    """Raise MalformedRecordError for the first record that `is_sound` marks as false."""
    if not is_sound.all():
        raise MalformedRecordError(int(np.argmin(is_sound)), reason)


def _corrupt(batch: Batch, reason: str) -> CorruptBatchError:
    return CorruptBatchError(
        position=batch.position, offset=batch.header.base_offset, reason=reason
    )
