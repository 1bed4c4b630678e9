"""Reading a segment from end to end, believing nothing: the inner loop of recovery.

Every batch must continue the one before it (offset, epoch not older) and match its checksum. The
first that does not ends the scan; what that means is not decided here. The loop checks with as few
Python steps as it can, and when something is wrong asks the careful reader of `records.batch` for
the reason: that is how it keeps up with the disk.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from crc32c import crc32c

from raft.segments.epochs import EpochStart
from raft.segments.files import File
from records.batch import (
    CRC_START,
    HEADER_SIZE_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAX_BATCH_SIZE_BYTES,
    parse_header,
    read_batch,
)
from records.errors import RecordError
from records.types import Epoch, Offset

_WINDOW_BYTES: Final = 1024 * 1024
_MIN_LENGTH: Final = HEADER_SIZE_BYTES - LOG_OVERHEAD_BYTES

_SCANNED: Final = struct.Struct(">qiiBI2xi8xq14xi")
"""The header without what a scan does not look at: attributes, base time, producer."""


class ScanResult(NamedTuple):
    """What is sound: everything before `size_bytes`, that is, before `end_offset`."""

    size_bytes: int
    end_offset: Offset
    epochs: tuple[EpochStart, ...]  # where the epoch changed, the first batch included
    damage: str | None  # why the scan ended before the file did
    first_timestamp: int | None  # ms; of the first batch, None without one
    max_timestamp: int  # ms; -1 if no batch has a time
    max_timestamp_offset: Offset  # last offset of the batch that has it
    bytes_since_entry: int  # since the batch that was indexed last


def scan(
    file: File,
    *,
    base_offset: Offset,
    size_bytes: int,
    last_epoch: Epoch | None,
    index_interval_bytes: int,
    add_entry: Callable[[int, int, int, int], None],
) -> ScanResult:
    """Check `size_bytes` of batches that start at `base_offset`.

    Args:    last_epoch: of the batch before this segment; None allows any.
             add_entry: told last offset and position of a batch to be indexed, the newest time up
             to there and its offset. The rule is `Segment.note`'s, kept here because a call for
             every batch was a third of the time.
    """
    position, expected = 0, base_offset
    epoch = -1 if last_epoch is None else last_epoch
    epochs: list[EpochStart] = []
    first_timestamp: int | None = None
    newest, newest_offset, since_entry = -1, base_offset, 0
    buffer = memoryview(bytearray(min(_WINDOW_BYTES, size_bytes)))
    start = filled = 0  # buffer[:filled] is the file from `start` on
    unpack = _SCANNED.unpack_from
    while position < size_bytes:
        at = position - start
        if filled - at >= HEADER_SIZE_BYTES:
            base, length, batch_epoch, magic, crc, delta, timestamp, count = unpack(buffer, at)
            if (
                base != expected
                or magic != MAGIC
                or batch_epoch < epoch
                or not _MIN_LENGTH <= length <= MAX_BATCH_SIZE_BYTES - LOG_OVERHEAD_BYTES
                or not 0 <= count <= delta + 1
                or delta < 0
            ):
                break
            size = LOG_OVERHEAD_BYTES + length
            if at + size <= filled:
                if crc32c(buffer[at + CRC_START : at + size]) != crc:
                    break
                last = base + delta
                if batch_epoch != epoch or not epochs:
                    epochs.append(EpochStart(Epoch(batch_epoch), expected))
                    epoch = batch_epoch
                    if first_timestamp is None:
                        first_timestamp = timestamp
                if timestamp > newest:
                    newest, newest_offset = timestamp, last
                if since_entry > index_interval_bytes:
                    add_entry(last, position, newest, newest_offset)
                    since_entry = 0
                since_entry += size
                expected = last + 1
                position += size
                continue
            if position + size > size_bytes:
                break
            if size > len(buffer):
                buffer = memoryview(bytearray(size))
        elif position + HEADER_SIZE_BYTES > size_bytes:
            break
        start = position
        filled = file.read_into(start, buffer[: size_bytes - start])
        if filled < min(len(buffer), size_bytes - start):
            size_bytes = start + filled  # the file is shorter than its size said
    damage = None
    if position < size_bytes:
        damage = _explain(file, position, size_bytes, expected, epoch)
    return ScanResult(
        position,
        Offset(expected),
        tuple(epochs),
        damage,
        first_timestamp,
        newest,
        Offset(newest_offset),
        since_entry,
    )


def _explain(file: File, position: int, size_bytes: int, expected: int, epoch: int) -> str:
    """Why the bytes at `position` are not the batch that should be there."""
    left = size_bytes - position
    try:
        header = parse_header(file.read(position, min(HEADER_SIZE_BYTES, left)))
        read_batch(file.read(position, min(header.size_bytes, left)))
    except RecordError as error:
        return str(error)
    if header.base_offset != expected:
        return f"base offset {header.base_offset}, expected {expected}"
    assert header.leader_epoch < epoch, f"the scan refused a sound batch: {header}"
    return f"epoch {header.leader_epoch} after epoch {epoch}"
