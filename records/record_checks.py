"""Checks each record of a producer's batch, and reads the batch's least and greatest timestamp.

A loop in Python costs 0.5 us a record. So the fields of many records are read at once by NumPy, and
Python only follows the lengths; for few records a call of NumPy costs more than the loop. Records
of one length need neither (`records.records_alike`).

The trap: both only decide whether all is well. If not, the loop checks the same records again and
says what is wrong with which of them.

Source: upstream's LogValidator and DefaultRecord; docs/design/broker.md#validation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from records.batch import MIN_RECORD_BYTES, Batch
from records.records_alike import FEWEST_ALIKE, check_alike
from records.varint import SMALL_VARINTS, decode_varint, decode_varlong

SLICE_RECORDS: Final = 10_000
"""Records whose fields are held at once, so that memory does not grow with the record count."""

FEW_RECORDS: Final = 150
"""Fewer records are checked faster by the loop.

Measured in ns a record, loop and columns: 520 and 680 for 100 records of 100 bytes, 520 and 200 for
1,000, 550 and 210 for 1,000 of 1 KiB.
"""

_SMALL: Final = len(SMALL_VARINTS)

_CheckColumns: TypeAlias = Callable[[bytes, int, int, int], tuple[int, int, int] | None]
_check_columns: _CheckColumns | None = None


def load() -> None:
    """Import NumPy, which takes a tenth of a node's start; before, the loop checks all records."""
    global _check_columns
    from records.record_columns import check_columns

    _check_columns = check_columns


def check_records(batch: Batch, body: memoryview) -> tuple[int, int]:
    """Return the least and greatest timestamp of a batch's records, in ms, after checking each one.

    Checked are the lengths of a record and its parts, its offset delta, and that the records fill
    the body.

    Args:    body: the decompressed records.
    Raises:  ValueError; IndexError where the bytes end too early.
    """
    header = batch.header
    count = header.record_count
    if count * MIN_RECORD_BYTES > len(body):
        raise ValueError(f"{count} records in {len(body)} bytes")
    data = bytes(body)  # indexed twice as fast as a view
    if FEWEST_ALIKE <= count <= SLICE_RECORDS:
        alike = check_alike(data, 0, 0, count)
        if alike is not None and alike[2] == len(data):
            return header.base_timestamp + alike[0], header.base_timestamp + alike[1]
    position = 0
    earliest, latest = 1 << 64, -(1 << 64)
    for first in range(0, count, SLICE_RECORDS):
        stop = min(first + SLICE_RECORDS, count)
        checked = None
        if _check_columns is not None and stop - first >= FEW_RECORDS:
            checked = _check_columns(data, position, first, stop)
        least, greatest, position = checked or _check_each(data, position, first, stop)
        earliest, latest = min(earliest, least), max(latest, greatest)
    if position != len(data):
        raise ValueError(f"{len(data) - position} bytes after the last record")
    return header.base_timestamp + earliest, header.base_timestamp + latest


def iter_timestamps(batch: Batch, body: bytes) -> Iterator[int]:
    """Yield the timestamp of each record, in ms, of a batch whose records are known to be valid."""
    position = 0
    for expected_delta in range(batch.header.record_count):
        delta, position = _check_one(body, position, expected_delta)
        yield batch.header.base_timestamp + delta


def _check_each(data: bytes, position: int, first: int, stop: int) -> tuple[int, int, int]:
    """Check the records with offset deltas from `first` to `stop`, exclusive, one by one.

    The usual record (no headers, a short key or none) is parsed here, in less than half the time;
    `_check_one` parses any record.

    Returns: the least and greatest timestamp delta, and the last record's end.
    Raises:  ValueError; IndexError where the bytes end too early.
    """
    size = len(data)
    deltas: list[int] = []
    append = deltas.append
    for expected_delta in range(first, stop):
        low = data[position]
        at = position + 1
        if low >= 0x80:
            high = data[at]
            low = low & 0x7F | high << 7 if high < 0x80 else 1
            at += 1
        end = at + (low >> 1)  # of the record, if its length has one or two bytes
        if not low & 1 and end <= size and expected_delta < _SMALL:
            delta = data[at + 1]  # after the attributes, unused
            if delta < 0x80:
                delta, at = (delta >> 1) ^ -(delta & 1), at + 2
            else:
                delta, at = decode_varlong(data, at + 1)
            expected = SMALL_VARINTS[expected_delta]
            if data.startswith(expected, at):
                at += len(expected)
                low = data[at]  # the key's length
                at += 1 if low & 1 else 1 + (low >> 1)
                if (low == 1 or (low < 0x80 and not low & 1)) and at < end:
                    low = data[at]  # the value's
                    at += 1
                    if low >= 0x80:
                        high = data[at]
                        low = low & 0x7F | high << 7 if high < 0x80 else 3
                        at += 1
                    if low != 1:
                        at += low >> 1
                    if (low == 1 or not low & 1) and at == end - 1 and not data[at]:
                        append(delta)
                        position = end
                        continue
        delta, position = _check_one(data, position, expected_delta)
        append(delta)
    return min(deltas), max(deltas), position


def _check_one(data: bytes, position: int, expected_delta: int) -> tuple[int, int]:
    """Return a record's timestamp delta and the position of its end, after checking it.

    Raises:  ValueError; IndexError where the bytes end too early.
    """
    size = len(data)
    length, position = decode_varint(data, position)
    end = position + length
    if length < MIN_RECORD_BYTES - 1 or end > size:
        raise ValueError(f"record {expected_delta}: {length} bytes, {size - position} are left")
    delta, position = decode_varlong(data, position + 1)  # after the attributes, unused
    offset_delta, position = decode_varint(data, position)
    if offset_delta != expected_delta:
        raise ValueError(f"record {expected_delta}: its offset delta is {offset_delta}")
    _check_inside(data, position, end, expected_delta)
    return delta, end


def _check_inside(body: bytes, position: int, end: int, index: int) -> None:
    """Check that the key, value and headers fill the record exactly.

    Raises ValueError.
    """
    length, position = decode_varint(body, position)
    position += max(length, 0)
    shortest = length
    if position < end:
        length, position = decode_varint(body, position)
        position += max(length, 0)
        shortest = min(shortest, length)
        if position == end - 1 and body[position] == 0 and shortest >= -1:
            return  # no headers, as nearly always
    if shortest < -1 or position >= end:
        raise ValueError(f"record {index}: key and value do not fit")
    count, position = decode_varint(body, position)
    if not 0 <= count <= (end - position) // 2:
        raise ValueError(f"record {index}: {count} headers")
    for _ in range(count):
        length, position = decode_varint(body, position)
        position += length
        if length < 0 or position >= end:
            raise ValueError(f"record {index}: a header's key does not fit")
        length, position = decode_varint(body, position)
        position += max(length, 0)
        if length < -1 or position > end:
            raise ValueError(f"record {index}: a header's value does not fit")
    if position != end:
        raise ValueError(f"record {index}: {end - position} bytes after its headers")
