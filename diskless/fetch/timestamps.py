"""Offsets by timestamp, exactly: the coordinator knows runs, so their records are read.

A run's greatest timestamp says that some record of it is as late as asked for; which, only its
bytes say, decompressed if need be. Headers of batches are not believed: a producer may write there
what its records do not say.

A batch with very many records is read in a thread, so that others are served meanwhile.

Under LogAppendTime nothing is read: all records of a run have the time of its commit, whatever the
topic is set to now.

Source: KIP-79 (offset and timestamp of the record itself), KIP-734 (the greatest timestamp);
docs/design/broker.md#timestamp-look-ups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, TypeVar

from diskless.fetch.object_cache import ObjectCache
from diskless.fetch.runs_reader import LOG_APPEND_TIME, DamagedRunError, Run, read_run
from diskless.loop_turns import takes_long
from records.batch import Batch, iter_batches, iter_records
from records.errors import RecordError

T = TypeVar("T")


class Stamped(NamedTuple):
    """A record's offset and time (ms since 1970)."""

    offset: int
    timestamp: int


async def first_since(
    cache: ObjectCache, run: Run, *, from_offset: int, timestamp: int
) -> Stamped | None:
    """The first record from `from_offset` on that is not earlier; None: there is none in this run.

    Raises:  DamagedRunError, StorageError.
    """
    if run.timestamp_type == LOG_APPEND_TIME:
        first = _at_the_commit(run, from_offset)
        return first if first.timestamp >= timestamp else None
    for base_offset, batch in await _batches(cache, run, from_offset):
        stamped = _records(run, base_offset, batch)
        late = (one for one in stamped if one.offset >= from_offset and one.timestamp >= timestamp)
        found = await _searched(batch, partial(_first, late))
        if found is not None:
            return found
    return None


async def latest(cache: ObjectCache, run: Run, *, from_offset: int) -> Stamped | None:
    """Of the records from `from_offset` on, the first of those with the greatest timestamp.

    Raises:  DamagedRunError, StorageError.
    """
    if run.timestamp_type == LOG_APPEND_TIME:
        return _at_the_commit(run, from_offset)
    best: Stamped | None = None
    for base_offset, batch in await _batches(cache, run, from_offset):
        stamped = _records(run, base_offset, batch)
        wanted = (one for one in stamped if one.offset >= from_offset)
        found = await _searched(batch, partial(_greatest, wanted))
        if found is not None and (best is None or found.timestamp > best.timestamp):
            best = found
    return best


def _first(records: Iterator[Stamped]) -> Stamped | None:
    return next(records, None)


def _greatest(records: Iterator[Stamped]) -> Stamped | None:
    """The first of those with the greatest timestamp."""
    return max(records, key=lambda one: one.timestamp, default=None)


async def _searched(batch: Batch, search: Callable[[], T]) -> T:
    """What a search of this batch finds; the loop gets its turns."""
    if takes_long((batch.view,)):
        return await asyncio.to_thread(search)
    await asyncio.sleep(0)  # one batch may take ten milliseconds
    return search()


def _at_the_commit(run: Run, from_offset: int) -> Stamped:
    return Stamped(max(run.base_offset, from_offset), run.append_time)


async def _batches(cache: ObjectCache, run: Run, from_offset: int) -> list[tuple[int, Batch]]:
    """The run's batches from the one that holds `from_offset` on, with their first offsets."""
    found = []
    base_offset = run.base_offset
    for batch in iter_batches(await read_run(cache, run), verify_crc=False):
        end_offset = base_offset + batch.header.last_offset_delta + 1
        if end_offset > from_offset:
            found.append((base_offset, batch))
        base_offset = end_offset
    return found


def _records(run: Run, base_offset: int, batch: Batch) -> Iterator[Stamped]:
    """Offsets and times of a batch, which counts from 0 as it is stored."""
    try:
        for record in iter_records(batch):
            yield Stamped(base_offset + record.offset, record.timestamp)
    except RecordError as error:
        raise DamagedRunError(run, str(error)) from error
