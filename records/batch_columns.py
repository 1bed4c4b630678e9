"""Reads the headers of all batches of a buffer at once, with NumPy.

One by one, a header takes 5 µs to read, check and verify, which is most of the work of rewriting
small batches. Here Python finds where each batch begins and asks for its checksum; the rest is done
on columns.

The trap: an error must name the batch at fault and the reason. So the columns only decide whether
all is well. If not, the caller reads the buffer batch by batch, and that raises.

Source: KIP-98, Message Format; records/batch.py.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from records.batch import (
    COMPRESSION_MASK,
    CRC_START,
    HEADER_SIZE_BYTES,
    LOG_APPEND_TIME,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAX_BATCH_SIZE_BYTES,
    MIN_RECORD_BYTES,
    Batch,
    BatchHeader,
)
from records.varint_columns import Numbers

HEADERS: Final = np.dtype(
    [
        ("base_offset", ">i8"),
        ("batch_length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "u1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("record_count", ">i4"),
    ]
)
"""The fields of `BatchHeader`, as they lie in a batch."""

_LENGTH: Final = struct.Struct(">i")
_LENGTH_AT: Final = 8
_STAMPED_BYTES: Final = 16  # base offset, length, leader epoch
_MAX_INT64: Final = (1 << 63) - 1


class Slice(NamedTuple):
    """Neighbouring batches, as one part of their buffer."""

    view: memoryview
    batch_count: int
    record_count: int
    last_offset: int  # inclusive; that of the last batch
    max_timestamp: int  # ms since 1970; the greatest of the batches


class BatchColumns:
    """The headers of batches that fill a buffer, in order, and where each batch lies."""

    def __init__(self, view: memoryview, bounds: list[int], headers: npt.NDArray[Any]) -> None:
        """Create columns of the batches between neighbouring `bounds`, positions in the buffer."""
        self._view = view
        self._bounds = bounds
        self._headers = headers

    @property
    def bounds(self) -> list[int]:
        """Return the positions between which the batches lie: each start, and the buffer's end."""
        return self._bounds

    @property
    def headers(self) -> npt.NDArray[Any]:
        """Return the batches' headers, as rows of `HEADERS`."""
        return self._headers

    def __len__(self) -> int:
        return len(self._headers)

    @property
    def is_log_append_time(self) -> bool | None:
        """Return whether the batches have the append time, or None if some have and some not."""
        have = self._headers["attributes"] & LOG_APPEND_TIME != 0
        return bool(have[0]) if np.all(have == have[0]) else None

    @property
    def _deltas(self) -> Numbers:
        deltas: Numbers = self._headers["last_offset_delta"].astype(np.int64)
        return deltas

    def is_consistent(self) -> bool:
        """Return whether each header agrees with itself, as `records.batch.parse_header` checks."""
        headers, deltas = self._headers, self._deltas
        lengths = headers["batch_length"].astype(np.int64)
        bases, counts = headers["base_offset"], headers["record_count"]
        record_bytes = lengths + LOG_OVERHEAD_BYTES - HEADER_SIZE_BYTES
        compressed = headers["attributes"] & COMPRESSION_MASK != 0
        fits = compressed | (counts.astype(np.int64) * MIN_RECORD_BYTES <= record_bytes)
        return bool(
            np.all(headers["magic"] == MAGIC)
            and np.all(lengths <= MAX_BATCH_SIZE_BYTES - LOG_OVERHEAD_BYTES)
            and np.all((deltas >= 0) & (bases >= 0))
            and np.all(bases <= _MAX_INT64 - 1 - deltas)
            and np.all((counts >= 0) & (counts <= deltas + 1))
            and np.all(fits)
        )

    def has_valid_checksums(self) -> bool:
        """Return whether each batch has the bytes that its checksum was made of."""
        view, expected = self._view, self._headers["crc"].tolist()
        return all(
            crc32c(view[begin + CRC_START : end]) == crc
            for (begin, end), crc in zip(pairwise(self._bounds), expected, strict=True)
        )

    def rises_to(self, base_offset: int, end_offset: int) -> bool:
        """Return whether offsets rise from `base_offset` and end before `end_offset`, exclusive.

        Gaps between batches are allowed, but for one at the end.
        """
        bases = self._headers["base_offset"].astype(np.int64)
        ends = bases + self._deltas + 1
        rises = bases[0] >= base_offset and np.all(bases[1:] >= ends[:-1])
        return bool(rises and ends[-1] == end_offset)

    def count_fitting(self, first: int, size_bytes: int) -> int:
        """Return how many batches from the one at index `first` on fit into `size_bytes`."""
        return bisect_right(self._bounds, self._bounds[first] + size_bytes) - 1 - first

    def slice(self, first: int, count: int) -> Slice:
        """Return `count` batches from the one at index `first` on."""
        some = self._headers[first : first + count]
        last = some[-1]
        return Slice(
            self._view[self._bounds[first] : self._bounds[first + count]],
            count,
            int(some["record_count"].sum(dtype=np.int64)),
            int(last["base_offset"]) + int(last["last_offset_delta"]),
            int(some["max_timestamp"].max()),
        )

    def stamp(self, base_offset: int, leader_epoch: int) -> int:
        """Give the batches consecutive offsets and an epoch, in the buffer too; return the end."""
        ends = base_offset + np.cumsum(self._deltas + 1)
        self._headers["base_offset"] = ends - self._deltas - 1
        self._headers["leader_epoch"] = leader_epoch
        stamped = self._headers.view(np.uint8).reshape(len(self), -1)[:, :_STAMPED_BYTES]
        begins = np.array(self._bounds[:-1])[:, None]
        np.frombuffer(self._view, np.uint8)[begins + np.arange(_STAMPED_BYTES)] = stamped
        return int(ends[-1])

    def batches(self) -> list[Batch]:
        """Return the batches; their views are parts of the buffer."""
        view, headers = self._view, self._headers.tolist()
        return [
            Batch(begin, BatchHeader._make(fields), view[begin:end])
            for (begin, end), fields in zip(pairwise(self._bounds), headers, strict=True)
        ]


def read_columns(view: memoryview, *, verify_crc: bool) -> BatchColumns | None:
    """Return the headers of the batches in a buffer, or None unless all are whole and sound.

    None also of an empty buffer.
    """
    bounds, at, size = [0], 0, len(view)
    shortest = HEADER_SIZE_BYTES - LOG_OVERHEAD_BYTES
    while size - at >= HEADER_SIZE_BYTES:
        (length,) = _LENGTH.unpack_from(view, at + _LENGTH_AT)
        if length < shortest:
            return None
        at += LOG_OVERHEAD_BYTES + length
        bounds.append(at)
    if at != size or not size:
        return None
    headers = bytearray().join([view[at : at + HEADER_SIZE_BYTES] for at in bounds[:-1]])
    columns = BatchColumns(view, bounds, np.frombuffer(headers, HEADERS))
    if not columns.is_consistent() or (verify_crc and not columns.has_valid_checksums()):
        return None
    return columns
