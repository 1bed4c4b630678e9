"""Functions that generated code calls: varints, ids, arrays of numbers, tagged fields.

Small cases go through tables (a compiled `struct` for each short array, the bytes of each short
length), because looking up is several times cheaper than computing. The functions whose names begin
with `read_` take (buffer, position, ...) and return (value, position after it).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Final
from uuid import UUID, SafeUUID

MAX_STRING_BYTES: Final = 32767  # a Kafka string's length is an int16 wherever it is not compact
MAX_UVARINT: Final = 0xFFFFFFFF  # a length or a tag; a longer varint is refused
SMALL_ARRAY: Final = 64  # elements; shorter arrays have a compiled `struct` of their own
_MEMOIZED_UUIDS: Final = 4096  # topic ids come again and again; building a UUID costs 1.2 µs

Buffer = bytes | memoryview


# --- varints and lengths -------------------------------------------------------------------------


def read_uvarint(buf: Buffer, pos: int) -> tuple[int, int]:
    """Read an unsigned varint of at most 32 bits; return its value and the position after it.

    >>> read_uvarint(bytes.fromhex("ac02"), 0)
    (300, 2)
    """
    first = buf[pos]
    if first < 0x80:
        return first, pos + 1
    second = buf[pos + 1]
    if second < 0x80:  # a byte with its high bit set counts 128 too much, at its place
        return first + (second << 7) - 0x80, pos + 2
    third = buf[pos + 2]
    if third < 0x80:
        return first + (second << 7) + (third << 14) - 0x4080, pos + 3
    low = first + (second << 7) + (third << 14) - 0x204080
    fourth = buf[pos + 3]
    if fourth < 0x80:
        return low + (fourth << 21), pos + 4
    fifth = buf[pos + 4]
    if fifth > 0x0F:
        raise ValueError("a varint of more than 32 bits")
    return low + (fourth << 21) - (0x80 << 21) + (fifth << 28), pos + 5


def read_text_length(buf: Buffer, pos: int) -> tuple[int, int]:
    """Read a varint, a string's length plus one; raise ValueError if the string is too long."""
    value, pos = read_uvarint(buf, pos)
    if value > MAX_STRING_BYTES + 1:
        raise ValueError("string too long")
    return value, pos


def uvarint(value: int) -> bytes:
    """Encode a number as an unsigned varint.

    >>> uvarint(300).hex()
    'ac02'
    """
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


LENGTHS: Final = tuple(bytes([size + 1]) for size in range(127))
"""The bytes of a short compact length, by size."""


def long_length(size: int) -> bytes:
    """Encode a compact length (length plus one, as an unsigned varint) of any size."""
    return uvarint(size + 1)


def long_text_length(size: int) -> bytes:
    """Encode the compact length of a string of any size."""
    if size > MAX_STRING_BYTES:
        raise ValueError("string too long")
    return uvarint(size + 1)


def as_buffer(data: Any) -> Any:
    """Return `data` as a buffer whose `len` is its number of bytes.

    Raises TypeError if it is not a buffer.
    """
    view = data if data.__class__ is memoryview else memoryview(data)
    return data if len(data) == view.nbytes else view.cast("B")


# --- ids -----------------------------------------------------------------------------------------


class _Uuids(dict[bytes, UUID]):
    """16 bytes to their UUID, remembering the last few thousand."""

    _set_int = UUID.int.__set__  # type: ignore[attr-defined,misc]
    _set_safe = UUID.is_safe.__set__  # type: ignore[attr-defined,misc]

    def __missing__(self, raw: bytes) -> UUID:
        new = UUID.__new__(UUID)  # what the constructor does, less its checks
        _Uuids._set_int(new, int.from_bytes(raw, "big"))
        _Uuids._set_safe(new, SafeUUID.unknown)
        if len(self) >= _MEMOIZED_UUIDS:
            self.clear()
        self[raw] = new
        return new


UUIDS: Final = _Uuids()


# --- arrays --------------------------------------------------------------------------------------

Unpack = Callable[[Buffer, int], tuple[Any, ...]]


def _refuse_null(buf: Buffer, pos: int) -> tuple[Any, ...]:  # noqa: ARG001
    raise ValueError("null array")


@cache
def small_unpackers(code: str) -> tuple[Unpack, ...]:
    """Return functions that decode small arrays, indexed by the compact count (elements + 1)."""
    sizes = range(SMALL_ARRAY)
    return _refuse_null, *(struct.Struct(">" + code * size).unpack_from for size in sizes)


@cache
def small_packers(code: str) -> tuple[Callable[..., bytes], ...]:
    """Return functions that encode small arrays with their counts, indexed by element count."""
    return tuple(struct.Struct(">B" + code * size).pack for size in range(SMALL_ARRAY))


def read_numbers(buf: Buffer, pos: int, end: int, code: str) -> tuple[tuple[Any, ...], int]:
    """Read a compact count, then an array of that many numbers or 16-byte strings."""
    size, pos = read_uvarint(buf, pos)
    return _numbers(buf, pos, end, code, size - 1)


def read_old_numbers(
    buf: Buffer, pos: int, end: int, code: str
) -> tuple[tuple[Any, ...] | None, int]:
    """Read an int32 count, then so many numbers or 16-byte strings; count -1 gives None."""
    (size,) = struct.unpack_from(">i", buf, pos)
    if size == -1:
        return None, pos + 4
    return _numbers(buf, pos + 4, end, code, size)


def _numbers(buf: Buffer, pos: int, end: int, code: str, size: int) -> tuple[tuple[Any, ...], int]:
    stop = pos + size * struct.calcsize(code)
    if size < 0 or stop > end:
        raise ValueError("null array, or count past the end")
    return struct.unpack_from(_repeat(code, size), buf, pos), stop


def _repeat(code: str, size: int) -> str:
    # "3i" is three numbers, but "3s" is one string of three bytes: that code is written out.
    return ">" + code * size if code.endswith("s") else f">{size}{code}"


def pack_numbers(code: str, numbers: Sequence[Any]) -> bytes:
    """Encode the compact count of an array of numbers, and then the numbers."""
    return uvarint(len(numbers) + 1) + struct.pack(_repeat(code, len(numbers)), *numbers)


def pack_old_numbers(code: str, numbers: Sequence[Any]) -> bytes:
    """Encode the int32 count of an array of numbers, and then the numbers."""
    size = len(numbers)
    return size.to_bytes(4, "big") + struct.pack(_repeat(code, size), *numbers)


# --- tagged fields -------------------------------------------------------------------------------


def merge_tags(known: list[tuple[int, bytes]], unknown: Iterable[tuple[int, bytes]]) -> bytes:
    """Encode known and unknown tagged fields as one section, in the order of their tags."""
    tags = sorted([*known, *unknown])
    parts = [uvarint(len(tags))]
    previous = -1
    for tag, body in tags:
        if not previous < tag <= MAX_UVARINT:
            raise ValueError(f"tag {tag} after {previous}")
        previous = tag
        parts += (uvarint(tag), uvarint(len(body)), body)
    return b"".join(parts)


def read_tags(
    buf: Buffer, pos: int, end: int, count: int
) -> tuple[tuple[tuple[int, bytes], ...], int]:
    """Read tagged fields as (tag, bytes), all unknown to a structure without declared tags.

    `count` is the count's first byte.
    """
    if count & 0x80:
        count, pos = read_uvarint(buf, pos - 1)
    tags = []
    previous = -1
    for _ in range(count):
        tag, pos = read_uvarint(buf, pos)
        size, pos = read_uvarint(buf, pos)
        if tag <= previous or pos + size > end:
            raise ValueError("tags out of order or past the end")
        previous = tag
        tags.append((tag, bytes(buf[pos : pos + size])))
        pos += size
    return tuple(tags), pos
