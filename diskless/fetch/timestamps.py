"""Finds a record's exact offset by timestamp, by reading the records of a run.

The coordinator knows only the greatest timestamp of each run. Which record of the run has it is
found by reading the run's records, decompressed if necessary. Timestamps in batch headers are not
used: a producer may write others there than its records have.

A batch with very many records, or many bytes of them, is read in a thread, so that the loop serves
others meanwhile.

Under LogAppendTime nothing is read: all records of a run have the time of its commit, whatever the
topic's setting is now. A rewritten run has records of several commits, and its batches say when.

Source: KIP-79 (offset and timestamp of the record itself), KIP-734 (the greatest timestamp);
docs/design/broker.md#timestamp-look-ups.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, TypeVar

from diskless.fetch.object_cache import ObjectCache
from diskless.fetch.runs_reader import LOG_APPEND_TIME, DamagedRunError, Run, read_run
from diskless.loop_turns import INLINE_BYTES, takes_long
from records.batch import Batch, iter_batches, iter_records
from records.compression import MAX_DECOMPRESSED_BYTES
from records.errors import DecompressedTooLargeError, RecordError

T = TypeVar("T")


class TimestampedOffset(NamedTuple):
    """A record's offset and time (ms since 1970)."""

    offset: int
    timestamp: int


async def first_since(
    cache: ObjectCache, run: Run, *, from_offset: int, timestamp: int
) -> TimestampedOffset | None:
    """Return a run's first record at or after a timestamp, or None without such a record.

    Only records from `from_offset` on count.

    Raises:  DamagedRunError, StorageError.
    """
    if run.timestamp_type == LOG_APPEND_TIME and not run.is_final:
        first = _at_append_time(run, from_offset)
        return first if first.timestamp >= timestamp else None
    for base_offset, batch in await _batches(cache, run, from_offset):
        choose = partial(_first, from_offset=from_offset, timestamp=timestamp)
        found = await _search(run, base_offset, batch, choose)
        if found is not None:
            return found
    return None


async def latest(cache: ObjectCache, run: Run, *, from_offset: int) -> TimestampedOffset | None:
    """Return the first record with the greatest timestamp of a run; None without records.

    Only records from `from_offset` on count.

    Raises:  DamagedRunError, StorageError.
    """
    if run.timestamp_type == LOG_APPEND_TIME and not run.is_final:
        return _at_append_time(run, from_offset)
    best: TimestampedOffset | None = None
    for base_offset, batch in await _batches(cache, run, from_offset):
        found = await _search(run, base_offset, batch, partial(_greatest, from_offset=from_offset))
        if found is not None and (best is None or found.timestamp > best.timestamp):
            best = found
    return best


def _first(
    records: Iterator[TimestampedOffset], *, from_offset: int, timestamp: int
) -> TimestampedOffset | None:
    late = (r for r in records if r.offset >= from_offset and r.timestamp >= timestamp)
    return next(late, None)


def _greatest(
    records: Iterator[TimestampedOffset], *, from_offset: int
) -> TimestampedOffset | None:
    """Return the first record with the greatest timestamp, or None without records."""
    wanted = (record for record in records if record.offset >= from_offset)
    return max(wanted, key=lambda record: record.timestamp, default=None)


async def _search(
    run: Run, base_offset: int, batch: Batch, choose: Callable[[Iterator[TimestampedOffset]], T]
) -> T:
    """Choose among the records of a batch, in a thread if reading them takes long."""
    if not takes_long((batch.view,)):
        await asyncio.sleep(0)  # one batch may take ten milliseconds
        with contextlib.suppress(DecompressedTooLargeError):  # 3 KB of zstd may be 100 MB
            return choose(_records(run, base_offset, batch, INLINE_BYTES))
    return await asyncio.to_thread(choose, _records(run, base_offset, batch))


def _at_append_time(run: Run, from_offset: int) -> TimestampedOffset:
    return TimestampedOffset(max(run.base_offset, from_offset), run.append_time)


async def _batches(cache: ObjectCache, run: Run, from_offset: int) -> list[tuple[int, Batch]]:
    """Read a run of batches from the batch that contains `from_offset` on.

    Each comes with the offset of which its records' offsets, as they are stored, fall short.
    """
    found = []
    base_offset = run.base_offset
    for batch in iter_batches(await read_run(cache, run), verify_crc=False):
        if run.is_final:
            if batch.header.end_offset > from_offset:
                found.append((0, batch))
            continue
        end_offset = base_offset + batch.header.last_offset_delta + 1
        if end_offset > from_offset:
            found.append((base_offset, batch))
        base_offset = end_offset
    return found


def _records(
    run: Run, base_offset: int, batch: Batch, limit_bytes: int = MAX_DECOMPRESSED_BYTES
) -> Iterator[TimestampedOffset]:
    """Yield the offset and timestamp of each record of a stored batch.

    Raises:  DamagedRunError; DecompressedTooLargeError past a limit below the usual one.
    """
    try:
        for record in iter_records(batch, limit_bytes=limit_bytes):
            yield TimestampedOffset(base_offset + record.offset, record.timestamp)
    except RecordError as error:
        if isinstance(error, DecompressedTooLargeError) and limit_bytes < MAX_DECOMPRESSED_BYTES:
            raise
        raise DamagedRunError(run, str(error)) from error
