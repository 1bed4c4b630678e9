"""From batch coordinates to the bytes that a consumer reads.

A coordinate is a run: batches of one partition that lie side by side in one object and have
consecutive offsets. In the object each batch begins at offset 0; here it gets the offset that the
coordinator gave it, and the constant leader epoch. Neither is under the checksum. Under
LogAppendTime it also gets the time of its append, and then a new checksum.

Everything that comes from the store is verified: each batch's checksum, and that the batches make
up the run exactly, in bytes and in offsets. Bytes that fail are read once more, past the cache; if
they fail again, the run is damaged, and the fetch ends before it, or with an error if it began
there. Nothing beyond it is given out: a consumer must not skip offsets unawares.

Source: KIP-1163, Data Flow (replicas inject offsets), Consume path; DESIGN §8 (Fetch).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

from diskless.object_cache import ObjectCache
from diskless.stores import ByteRange
from records.batch import HEADER_SIZE_BYTES, iter_batches
from records.batch_writer import stamp, stamp_log_append_time
from records.errors import RecordError

log = logging.getLogger("diskless.fetch")

LEADER_EPOCH: Final = 0
"""Of every diskless partition, for ever: any broker leads (DESIGN §8)."""

LOG_APPEND_TIME: Final = 1


class Run(NamedTuple):
    """Where consecutive batches of a partition are."""

    object_key: str
    byte_offset: int
    size_bytes: int
    base_offset: int
    last_offset: int  # inclusive
    timestamp_type: int  # 0 create time, 1 append time
    append_time: int  # ms since 1970


class DamagedRunError(Exception):
    """The store's bytes are not those that were committed."""

    def __init__(self, run: Run, reason: str) -> None:
        super().__init__(
            f"{run.object_key} at byte {run.byte_offset}, offsets {run.base_offset} to "
            f"{run.last_offset}: {reason}"
        )
        self.run = run


async def read_runs(
    cache: ObjectCache, runs: Sequence[Run], *, from_offset: int, max_bytes: int
) -> bytes:
    """Whole batches from the one that holds `from_offset` on, ready for a consumer.

    Args:    runs: consecutive, the first holding `from_offset`.
             max_bytes: of the answer; the first batch is given whole, however large (KIP-74).
    Raises:  DamagedRunError and StorageError, where not even the first run can be given.
    """
    reads = [asyncio.ensure_future(read_run(cache, run)) for run in runs]
    parts: list[bytes | bytearray] = []
    size_bytes = 0
    try:
        for run, reading in zip(runs, reads, strict=True):
            try:
                data = await reading
            except Exception as error:
                if not parts:
                    raise
                log.warning("run=%s error=%r", run, str(error))
                break
            for base_offset, end_offset, begin, end in _batches_of(run, data):
                if end_offset <= from_offset:
                    continue
                if parts and size_bytes + end - begin > max_bytes:
                    return b"".join(parts)
                parts.append(_stamped(run, data[begin:end], base_offset))
                size_bytes += end - begin
    finally:
        for reading in reads:
            reading.cancel()
        await asyncio.gather(*reads, return_exceptions=True)
    return b"".join(parts)


async def read_run(cache: ObjectCache, run: Run) -> memoryview:
    """The run's bytes as stored, verified; read once more if they are not what they must be.

    Raises:  DamagedRunError, StorageError.
    """
    where = ByteRange(run.byte_offset, run.size_bytes)
    try:
        data = await cache.read(run.object_key, where)
        verify(run, data)
    except DamagedRunError as error:
        log.warning("action=read_again reason=%r", str(error))
        cache.forget(run.object_key)
        data = await cache.read(run.object_key, where)
        verify(run, data)
    return data


def verify(run: Run, data: memoryview) -> None:
    """Are these the run's batches, each sound? Raises DamagedRunError."""
    count = 0
    try:
        for _, header, _ in iter_batches(data):
            count += header.last_offset_delta + 1
    except RecordError as error:
        raise DamagedRunError(run, str(error)) from error
    expected = run.last_offset - run.base_offset + 1
    if count != expected:
        raise DamagedRunError(run, f"batches of {count} offsets, {expected} were committed")


def _batches_of(run: Run, data: memoryview) -> list[tuple[int, int, int, int]]:
    """Each batch's base offset, end offset (exclusive), and first and last byte (exclusive)."""
    found = []
    offset = run.base_offset
    for position, header, _ in iter_batches(data, verify_crc=False):
        end_offset = offset + header.last_offset_delta + 1
        found.append((offset, end_offset, position, position + header.size_bytes))
        offset = end_offset
    return found


def _stamped(run: Run, batch: memoryview, base_offset: int) -> bytearray:
    copy = bytearray(batch)
    assert len(copy) >= HEADER_SIZE_BYTES, f"a batch of {len(copy)} bytes"
    stamp(copy, base_offset=base_offset, leader_epoch=LEADER_EPOCH)
    if run.timestamp_type == LOG_APPEND_TIME:
        stamp_log_append_time(copy, timestamp=run.append_time)
    return copy
