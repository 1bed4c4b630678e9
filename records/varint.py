"""Kafka's signed variable-length integers: zigzag, then seven bits a byte, lowest first.

Zigzag maps 0, -1, 1, -2, ... to 0, 1, 2, 3, ..., so that small negative numbers (the -1 that means
null) stay one byte. Records inside a batch use these; the compact types of KIP-482 use the same
seven-bit groups *without* zigzag.

Source: KIP-98, Message Format; the protocol guide's VARINT and VARLONG.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

MAX_VARINT_BYTES: Final = 5
MAX_VARLONG_BYTES: Final = 10


def encode_varint(value: int) -> bytes:
    """Encode an int32 or int64 as a zigzag varint.

    The bytes do not depend on the type.
    >>> encode_varint(-1).hex(), encode_varint(63).hex(), encode_varint(64).hex()
    ('01', '7e', '8001')
    """
    if 0 <= value < _TABLE_SIZE:
        return SMALL_VARINTS[value]
    return _encode(value)


def _encode(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    assert 0 <= rest < 1 << 64, f"not an int64: {value}"
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def decode_varint(buffer: Sequence[int], position: int) -> tuple[int, int]:
    """Return the int32 encoded as a varint at `position`, and the position after it.

    Raises:  IndexError where the buffer ends first; ValueError where the varint is longer than any
             int32 needs. (Callers sit in loops and turn both into an error that says where.)
    """
    low = buffer[position]
    if low < 0x80:
        return (low >> 1) ^ -(low & 1), position + 1
    high = buffer[position + 1]
    if high < 0x80:  # two bytes reach to 8191: lengths of nearly every metadata record
        return ((low & 0x7F | high << 7) >> 1) ^ -(low & 1), position + 2
    value, position = _decode(buffer, position, MAX_VARINT_BYTES)
    if value > 0xFFFF_FFFF:
        raise ValueError("varint exceeds 32 bits")
    return (value >> 1) ^ -(value & 1), position


def decode_varlong(buffer: Sequence[int], position: int) -> tuple[int, int]:
    """Return the int64 encoded as a varint at `position`, and the position after it."""
    value, position = _decode(buffer, position, MAX_VARLONG_BYTES)
    if value > 0xFFFF_FFFF_FFFF_FFFF:
        raise ValueError("varint exceeds 64 bits")
    return (value >> 1) ^ -(value & 1), position


def _decode(buffer: Sequence[int], position: int, max_bytes: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 7 * max_bytes, 7):
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError(f"varint is longer than {max_bytes} bytes")


_TABLE_SIZE: Final = 4096  # offset deltas and lengths of nearly every metadata record; 200 KiB
SMALL_VARINTS: Final[tuple[bytes, ...]] = tuple(_encode(value) for value in range(_TABLE_SIZE))
"""Varints of 0..4095, made once: building a batch is otherwise half varint loops."""
