"""Reads a varint at each of many positions of one buffer, with NumPy.

Source: docs/design/compaction.md, records/varint.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from records.varint import MAX_VARINT_BYTES

Numbers = npt.NDArray[np.int64]


def read_uvarints(
    raw: npt.NDArray[np.uint8], positions: Numbers, *, max_bytes: int = MAX_VARINT_BYTES
) -> tuple[npt.NDArray[np.uint64], Numbers]:
    """Read an unsigned varint at each position; return the values and their end positions.

    A position past the end reads the last byte; the caller compares the positions after the
    values with the ends that it knows.

    Raises:  ValueError if a varint is longer than `max_bytes`, or exceeds 64 bits.
    """
    low = raw.take(positions, mode="clip")
    has_more = low >= 0x80
    if not has_more.any():
        return low.astype(np.uint64), positions + 1
    high = raw.take(positions + 1, mode="clip")
    if (high < 0x80).all():  # two bytes at the most, as for most lengths: no more indexes needed
        bits = low & 0x7F
        value = bits.astype(np.uint64)
        value |= (high * has_more).astype(np.uint64) << np.uint64(7)
        after = positions + 1
        after += has_more
        return value, after
    value, after = (low & 0x7F).astype(np.uint64), positions + 1
    more = np.flatnonzero(has_more)
    shift = 7
    while len(more):
        if shift == 7 * max_bytes:
            raise ValueError(f"varint is longer than {max_bytes} bytes")
        byte = raw.take(after[more], mode="clip")
        if shift == 63 and (byte > 1).any():
            raise ValueError("varint exceeds 64 bits")
        value[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        after[more] += 1
        more = more[byte >= 0x80]
        shift += 7
    return value, after


def unzigzag(values: npt.NDArray[Any]) -> Numbers:
    """Decode unsigned numbers by zigzag: 0, 1, 2, 3 stand for 0, -1, 1, -2."""
    half = (values >> np.uint64(1)).view(np.int64)
    return half ^ -(values & np.uint64(1)).view(np.int64)
