"""Checks that batches follow each other, and scans a segment without trusting any byte.

`advance` is the one place that says when a batch continues a log: right offset, an epoch not older,
a sound header, a matching checksum. What is appended and what is found after a crash pass through
the same loop, with as few Python steps for a batch as it can have; when it refuses one, the careful
reader of `records.batch` is asked for the reason. That is how recovery keeps up with the disk.

It also decides what the indexes get: a batch is indexed once more than `index.interval.bytes` of
log lie behind the last one that was, as upstream does it (LogSegment.append).
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from crc32c import crc32c

from raft.segments.epochs import EpochStart
from raft.segments.files import File
from records.batch import (
    COMPRESSION_MASK,
    CRC_START,
    HEADER_SIZE_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAX_BATCH_SIZE_BYTES,
    MIN_RECORD_BYTES,
    parse_header,
    read_batch,
)
from records.compression import Buffer
from records.errors import CorruptBatchError, IncompleteBatchError, RecordError
from records.types import Epoch, Offset

NO_EPOCH: Final = -2
"""Before the first batch: below every epoch, and below the -1 that is none."""

_WINDOW_BYTES: Final = 1024 * 1024
_MIN_LENGTH: Final = HEADER_SIZE_BYTES - LOG_OVERHEAD_BYTES

_FIELDS: Final = struct.Struct(">qiiBIhi8xq14xi")
"""The header without what the rule does not look at: base time, producer."""


class Tail(NamedTuple):
    """The end of a segment, and what its indexes need to continue."""

    position: int  # bytes; where the next batch goes
    end_offset: int  # exclusive
    epoch: int = NO_EPOCH  # of the last batch in the log
    first_timestamp: int | None = None  # ms; of the segment's first batch
    newest: int = -1  # ms; the greatest time in the segment
    newest_offset: int = 0  # last offset of the batch that has it
    since_entry: int = 0  # bytes since the batch that was indexed last


class IndexEntry(NamedTuple):
    """The entries of one batch in both indexes."""

    last_offset: int
    position: int
    newest: int
    newest_offset: int


class Advance:
    """The result of one or more calls of `advance`: the new tail, index entries and epochs."""

    __slots__ = ("entries", "epochs", "tail")

    def __init__(self, tail: Tail) -> None:
        self.tail = tail
        self.entries: list[IndexEntry] = []
        self.epochs: list[EpochStart] = []  # where the epoch changed


def advance(
    found: Advance,
    data: Buffer,
    *,
    index_interval_bytes: int,
    max_batch_size_bytes: int = MAX_BATCH_SIZE_BYTES,
) -> None:
    """Move the scan's position over the valid batches in `data`, up to the first invalid batch.

    A batch that is not whole, or does not continue the batches before it, is invalid.
    """
    view = memoryview(data)
    start, expected, epoch, first_timestamp, newest, newest_offset, since_entry = found.tail
    at, available = 0, len(view)
    max_length = max_batch_size_bytes - LOG_OVERHEAD_BYTES
    unpack = _FIELDS.unpack_from
    while available - at >= HEADER_SIZE_BYTES:
        base, length, batch_epoch, magic, crc, attributes, delta, timestamp, count = unpack(
            view, at
        )
        end = at + LOG_OVERHEAD_BYTES + length
        if (
            end > available
            or base != expected
            or magic != MAGIC
            or not _MIN_LENGTH <= length <= max_length
            or not 0 <= count <= delta + 1
            or delta < 0
            or (
                count * MIN_RECORD_BYTES > length - _MIN_LENGTH
                and not attributes & COMPRESSION_MASK
            )
            or crc32c(view[at + CRC_START : end]) != crc
        ):
            break
        if batch_epoch != epoch:
            if batch_epoch < epoch or batch_epoch < 0:
                break
            epoch = batch_epoch
            found.epochs.append(EpochStart(Epoch(epoch), Offset(expected)))
        last = base + delta
        if timestamp > newest:
            newest, newest_offset = timestamp, last
        if first_timestamp is None:
            first_timestamp = timestamp
        if since_entry > index_interval_bytes:
            found.entries.append(IndexEntry(last, start + at, newest, newest_offset))
            since_entry = 0
        since_entry += end - at
        expected = last + 1
        at = end
    found.tail = Tail(
        start + at, expected, epoch, first_timestamp, newest, newest_offset, since_entry
    )


class ScanResult(NamedTuple):
    """The result of a scan: everything before `found.tail` is sound."""

    found: Advance
    damage: str | None  # why the scan ended before the file did


def scan(
    file: File,
    *,
    base_offset: Offset,
    size_bytes: int,
    last_epoch: Epoch | None,
    index_interval_bytes: int,
) -> ScanResult:
    """Check `size_bytes` of batches in a file, the first of which starts at `base_offset`.

    Args:    last_epoch: of the batch before this segment; None allows any.
    """
    epoch = NO_EPOCH if last_epoch is None else last_epoch
    found = Advance(Tail(0, base_offset, epoch, newest_offset=base_offset))
    buffer = memoryview(bytearray(min(_WINDOW_BYTES, size_bytes)))
    while (position := found.tail.position) < size_bytes:
        window = buffer[: size_bytes - position]
        filled = file.read_into(position, window)
        advance(found, window[:filled], index_interval_bytes=index_interval_bytes)
        if found.tail.position > position:
            continue
        needed = _size_of(window[:filled])
        if filled < len(window) or not len(buffer) < needed <= size_bytes - position:
            return ScanResult(found, _explain(window[:filled], found.tail))
        buffer = memoryview(bytearray(needed))
    return ScanResult(found, None)


def _size_of(window: memoryview) -> int:
    """Return the size in the header of the batch at the start of `window`, or 0 if invalid."""
    try:
        return parse_header(window).size_bytes
    except RecordError:
        return 0


def _explain(window: memoryview, tail: Tail) -> str:
    """Return the reason why `window` does not begin with the expected batch."""
    try:
        header = read_batch(window).header
    except IncompleteBatchError as error:
        return f"needs {error.needed_bytes} bytes, {error.available_bytes} are left"
    except CorruptBatchError as error:
        return error.reason
    if header.base_offset != tail.end_offset:
        return f"base offset {header.base_offset}, expected {tail.end_offset}"
    return f"epoch {header.leader_epoch} after epoch {tail.epoch}"
