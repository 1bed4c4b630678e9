"""Reading a segment from end to end, believing nothing: the inner loop of recovery.

Every batch must continue the one before it (offset, epoch not older) and match its checksum. The
first that does not ends the scan; what that means is not decided here. The loop checks with as few
Python steps as it can, and when something is wrong asks the careful reader of `records.batch` for
the reason: that is how it keeps up with the disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from crc32c import crc32c

from raft.segments.epochs import EpochStart
from raft.segments.files import File
from records.batch import (
    CRC_START,
    HEADER,
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


class ScanResult(NamedTuple):
    """What is sound: everything before `size_bytes`, that is, before `end_offset`."""

    size_bytes: int
    end_offset: Offset
    epochs: tuple[EpochStart, ...]  # where the epoch changed, the first batch included
    damage: str | None  # why the scan ended before the file did


def scan(
    file: File,
    *,
    base_offset: Offset,
    size_bytes: int,
    last_epoch: Epoch | None,
    note: Callable[[int, int, int], None],
) -> ScanResult:
    """Check `size_bytes` of batches that start at `base_offset`.

    Args:    last_epoch: of the batch before this segment; None allows any.
             note: told last offset, max timestamp and size of every sound batch, in order.
    """
    position, expected = 0, base_offset
    epoch = -1 if last_epoch is None else last_epoch
    epochs: list[EpochStart] = []
    buffer = memoryview(bytearray(min(_WINDOW_BYTES, size_bytes)))
    start = filled = 0  # buffer[:filled] is the file from `start` on
    unpack = HEADER.unpack_from
    while position < size_bytes:
        at = position - start
        if filled - at >= HEADER_SIZE_BYTES:
            (base, length, batch_epoch, magic, crc, _, delta, _, max_timestamp, *_, count) = unpack(
                buffer, at
            )
            end = at + LOG_OVERHEAD_BYTES + length
            plausible = (
                base == expected
                and magic == MAGIC
                and _MIN_LENGTH <= length <= MAX_BATCH_SIZE_BYTES - LOG_OVERHEAD_BYTES
                and delta >= 0
                and 0 <= count <= delta + 1
                and batch_epoch >= epoch
            )
            if plausible and end <= filled:
                if crc32c(buffer[at + CRC_START : end]) != crc:
                    break
                if batch_epoch != epoch or not epochs:
                    epochs.append(EpochStart(Epoch(batch_epoch), expected))
                    epoch = batch_epoch
                note(base + delta, max_timestamp, end - at)
                expected = Offset(base + delta + 1)
                position = start + end
                continue
            if not plausible or position + end - at > size_bytes:
                break
            if end - at > len(buffer):
                buffer = memoryview(bytearray(end - at))
        elif position + HEADER_SIZE_BYTES > size_bytes:
            break
        start = position
        filled = file.read_into(start, buffer[: size_bytes - start])
        if filled < min(len(buffer), size_bytes - start):
            size_bytes = start + filled  # the file is shorter than its size said
    damage = None
    if position < size_bytes:
        damage = _explain(file, position, size_bytes, expected, epoch)
    return ScanResult(position, expected, tuple(epochs), damage)


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
