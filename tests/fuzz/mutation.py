"""Damages bytes at random, and repairs checksums so that decoders look behind them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random

from crc32c import crc32c

from records.batch import CRC_START, HEADER_SIZE_BYTES
from records.wal import TRAILER

INTERESTING = (
    b"\0", b"\1", b"\x7f", b"\x80", b"\xff", b"\xff" * 4, b"\x7f\xff\xff\xff", b"\xff" * 8,
)  # fmt: skip


def mutated(data: bytes, rng: Random, others: Sequence[bytes] = ()) -> bytes:
    """Return the bytes with one to four changes.

    A change flips a bit, writes an interesting number, cuts, copies, or joins with another sample.
    """
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(out))
        match rng.randrange(6):
            case 0 | 1 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            case 2:
                number = rng.choice(INTERESTING)
                out[at : at + len(number)] = number
            case 3:
                del out[at : at + rng.randint(1, 8)]
            case 4 if others:
                out[at:] = rng.choice(others)[at:]
            case _:
                out[at:at] = out[at : at + rng.randint(1, 8)]
    return bytes(out)


def with_batch_checksums(data: bytes) -> bytes:
    """Return record batches back to back with the checksum that their bytes have."""
    out, at = bytearray(data), 0
    while at + HEADER_SIZE_BYTES <= len(out):
        (length,) = struct.unpack_from(">i", out, at + 8)
        end = at + 12 + length
        if not HEADER_SIZE_BYTES - 12 <= length <= len(out) - at - 12:
            break
        struct.pack_into(
            ">I", out, at + CRC_START - 4, crc32c(memoryview(out)[at + CRC_START : end])
        )
        at = end
    return bytes(out)


def with_footer_checksum(data: bytes) -> bytes:
    """Return a WAL object whose trailer agrees with its size and its footer."""
    if len(data) < TRAILER.size:
        return data
    footer_bytes, _, _, magic = TRAILER.unpack(data[-TRAILER.size :])
    end = len(data) - TRAILER.size
    footer = data[max(0, end - footer_bytes) : end]
    return data[:end] + TRAILER.pack(footer_bytes, crc32c(footer), len(data), magic)
