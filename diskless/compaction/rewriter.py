"""Rewrites runs of batches into new objects: merging keeps every record, compaction does not.

    rewriter = Rewriter(store, next_id=..., replace=..., settings=...)
    await rewriter.merge(sources)        # one object
    await rewriter.compact(task)         # as many as it takes

The rewriter knows no coordinator. It asks for the id of each object that it writes, and hands over
what the object holds; the caller has the coordinator replace the runs, and says whether to go on.

Compaction reads the part of a partition that was not cleaned yet, to learn the newest offset of
each key, and then rewrites the partition from the start, object by object. The map is bounded: if
it is full, the round ends at the run where it was, and the rest is another round's.

The trap: a damaged run, or one whose object is missing. What lies behind it is not rewritten, and
neither is the run itself: the round or the range ends before it, and the damage is reported. A
key's older record is never removed for the sake of a newer one that cannot be read.

Source: docs/design/compaction.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from diskless.compaction.tasks import (
    MAX_OLD_RUNS,
    MERGED,
    CompactionTask,
    Damage,
    Report,
    RewriterSettings,
    RewrittenObject,
    RewrittenRange,
    Source,
)
from diskless.fetch.object_cache import CacheSettings, ObjectCache
from diskless.fetch.runs_reader import (
    LOG_APPEND_TIME,
    DamagedRunError,
    Run,
    read_run,
    read_stored,
)
from diskless.stores import ObjectNotFoundError, ObjectStorage, RangeError
from records.aborted import TransactionReader
from records.batch import NO_TIMESTAMP, Batch
from records.batch_columns import BatchColumns
from records.cleaning import (
    Cleaned,
    Mask,
    Round,
    clean_block,
    cut_front,
    empty_batch,
    newest_by_map,
    newest_by_offset,
    note_keys,
)
from records.errors import DecompressedTooLargeError, RecordError
from records.final_batches import FinalRun
from records.final_runs import (
    RunBuilder,
    finish_columns,
    finish_run,
    read_final_columns,
    read_final_run,
)
from records.offset_map import ENTRY_BYTES, OffsetMap
from records.record_block import RecordBlock, read_block
from records.rpc.rewriting import HORIZONS_SET, TOMBSTONES_REMOVED
from records.types import Offset
from records.varint_columns import Numbers
from records.wal import FINAL, PartitionBatches, build_object

log = logging.getLogger("diskless.compaction.rewriter")

WINDOW_BYTES: Final = 16 * 1024 * 1024
WINDOW_RUNS: Final = 10_000
"""Bytes and number of runs that are read together."""

UNREADABLE: Final = (DamagedRunError, RecordError, ObjectNotFoundError, RangeError)
"""Errors of one run: a retry would not help, and other runs may be read."""

BLOCK_BYTES: Final = 1024 * 1024
BLOCK_RECORDS: Final = 20_000
"""Batches whose records are looked at together: their columns take 100 bytes a record."""

BLOCK_DATA_BYTES: Final = 16 * 1024 * 1024
"""Decompressed bytes of a block of several batches: a thousand small ones may expand to 100 GB."""


@dataclass(slots=True)
class _Content:
    """Runs that are collected for one range of an object."""

    source: Source
    bound: int
    runs: list[FinalRun] = field(default_factory=list)
    old_runs: list[Run] = field(default_factory=list)
    flags: int = 0
    ended_aborted: list[tuple[int, int]] = field(default_factory=list)


class Rewriter:
    """Rewrites runs of batches of one batch coordinator's partitions."""

    def __init__(
        self,
        store: ObjectStorage,
        settings: RewriterSettings,
        *,
        next_id: Callable[[], Awaitable[int]],
        replace: Callable[[RewrittenObject], Awaitable[bool]],
    ) -> None:
        """Create a rewriter that copies the batches of runs into new objects.

        Args:    next_id: gives a leased object id that was never used.
                 replace: called once an object is uploaded; returns whether its task goes on.
        """
        self._store = store
        self._settings = settings
        self._next_id = next_id
        self._replace = replace
        bounds = CacheSettings(max_bytes=0)  # nothing is read twice
        self._reader = ObjectCache(store, bounds)

    async def close(self) -> None:
        """Cancel the reads of objects that are in progress."""
        await self._reader.close()

    # --- merging --------------------------------------------------------------------------------

    async def merge(self, sources: Sequence[Source]) -> Report:
        """Merge the runs of all sources into one object, sorted by topic and partition.

        A source with a damaged or missing run is merged up to there; the others are not affected.

        Raises:  StorageError if the store fails.
        """
        report = Report()
        sources = sorted(sources, key=lambda source: (source.topic_id.bytes, source.partition))
        contents: list[_Content] = []
        found = iter(await self._read_all([run for source in sources for run in source.runs]))
        for source in sources:
            stored = [next(found) for _ in source.runs]
            content = await self._merged(source, stored, report)
            if content.runs:
                contents.append(content)
        if contents:
            await self._write(contents, report)
        return report

    async def _merged(
        self, source: Source, stored: Sequence[memoryview | BaseException], report: Report
    ) -> _Content:
        """Return the runs of a source as new runs, up to the first damaged or missing one."""
        content = _Content(source, MERGED)
        builder = RunBuilder(max(source.runs[0].base_offset, source.deleted_before))
        for run, data in zip(source.runs, stored, strict=True):
            try:
                if isinstance(data, BaseException):
                    raise data
                columns = _final_columns(run, data, source.deleted_before)
                batches = [] if columns else await self._verified_batches(run, data)
                if batches and run.base_offset < source.deleted_before:
                    deleted, batches = _cut(run, batches, source.deleted_before)
                    content.runs.append(deleted)
            except UNREADABLE as error:
                report.damages.append(_damage(source, run, error))
                break
            report.read_bytes += run.size_bytes
            if columns:
                content.runs += builder.add_all(columns, run.append_time)
            for batch in batches:
                content.runs += builder.add(batch, run.append_time)
            content.old_runs.append(run)
        content.runs += builder.take()
        return content

    async def _read_all(self, runs: Sequence[Run]) -> list[memoryview | BaseException]:
        """Read runs by object, a window of bytes at a time; return unverified bytes or errors.

        Why windows: a hundred thousand reads at once take longer than a read may.
        """
        order = sorted(range(len(runs)), key=lambda at: (runs[at].object_key, runs[at].byte_offset))
        results: dict[int, memoryview | BaseException] = {}
        places = iter(order)
        for window in _windows([runs[at] for at in order]):
            reads = [asyncio.ensure_future(read_stored(self._reader, run)) for run in window]
            try:
                read = await asyncio.gather(*reads, return_exceptions=True)
            finally:
                await _cancel(reads)
            results.update(zip(islice(places, len(window)), read, strict=True))
        return [results[at] for at in range(len(runs))]

    # --- compaction -----------------------------------------------------------------------------

    async def compact(self, task: CompactionTask) -> Report:
        """Rewrite a partition's runs without the records that Kafka's log cleaner would remove.

        Raises:  StorageError.
        """
        report = Report(bound=task.bound)
        survivors = _Survivors(task, await self._map_keys(task, report))
        begin = task.rewritten_until if report.bound == task.bound else 0
        runs = [
            run
            for run in task.source.runs
            if run.last_offset >= begin and run.last_offset < report.bound
        ]
        rules = Round(task.now_ms, task.delete_retention_ms, task.last_sequences, task.salt)
        content = _Content(task.source, report.bound)
        builder = RunBuilder(runs[0].base_offset if runs else 0)
        last: Batch | None = None
        transactions = TransactionReader(task.aborted_from(runs), from_log_start=begin == 0)
        unused = transactions.unused_markers
        async for run, stored in self._read(task.source, runs, report):
            batches = transactions.read(stored)
            try:
                cleaned = [
                    clean_block(block, survivors.choose(block), rules, unused)
                    for block in _blocks(batches)
                ]
            except RecordError as error:
                report.damages.append(_damage(task.source, run, error))
                break
            report.read_records += sum(batch.header.record_count for batch in stored)
            for batch in _kept_batches(cleaned, run):
                report.kept_records += batch.header.record_count
                content.runs += builder.add(batch, run.append_time)
            content.flags |= HORIZONS_SET * any(part.sets_horizons for part in cleaned)
            content.flags |= TOMBSTONES_REMOVED * any(part.drops_tombstones for part in cleaned)
            dropped = [unused[offset] for part in cleaned for offset in part.dropped_markers]
            content.ended_aborted += [entry for entry in dropped if entry is not None]
            content.old_runs.append(run)
            last = batches[-1]
            if self._is_full(content, builder):
                _end(content, builder, last)
                if not await self._write([content], report):
                    return report
                content = _Content(task.source, report.bound)
        if content.old_runs and last is not None:
            _end(content, builder, last)
            await self._write([content], report)
        return report

    def _is_full(self, content: _Content, builder: RunBuilder) -> bool:
        """Return whether an object has reached its limit of bytes or of replaced runs."""
        kept_bytes = sum(run.size_bytes for run in content.runs) + builder.size_bytes
        return kept_bytes >= self._settings.object_bytes or len(content.old_runs) >= MAX_OLD_RUNS

    async def _map_keys(self, task: CompactionTask, report: Report) -> OffsetMap:
        """Map each key of the dirty runs to the newest offset of a record with that key.

        Lowers `report.bound` to the first run that is damaged or does not fit into the map.
        """
        offsets = OffsetMap()
        most = max(1, self._settings.map_bytes // ENTRY_BYTES)
        dirty = [run for run in task.source.runs if run.last_offset >= task.first_dirty]
        transactions = TransactionReader(task.aborted_from(dirty), from_log_start=False)
        async for run, batches in self._read(task.source, dirty, report):
            if len(offsets) > most:
                offsets.merge()
            if len(offsets) > most:
                report.bound = run.base_offset
                break
            try:
                for block in _blocks(transactions.read(batches)):
                    note_keys(block, offsets, task.salt)
            except RecordError as error:
                report.damages.append(_damage(task.source, run, error))
                report.bound = run.base_offset
                break
        for damage in report.damages:
            report.bound = min(report.bound, damage.offset)
        return offsets

    async def _read(
        self, source: Source, runs: Sequence[Run], report: Report
    ) -> AsyncIterator[tuple[Run, list[Batch]]]:
        """Yield each run with its batches at their final offsets, up to the first damaged run."""
        for window in _windows(runs):
            reads = [asyncio.ensure_future(read_stored(self._reader, run)) for run in window]
            try:
                for run, reading in zip(window, reads, strict=True):
                    try:
                        batches = await self._verified_batches(run, await reading)
                    except UNREADABLE as error:
                        report.damages.append(_damage(source, run, error))
                        return
                    report.read_bytes += run.size_bytes
                    yield run, batches
            finally:
                await _cancel(reads)

    async def _verified_batches(self, run: Run, data: memoryview) -> list[Batch]:
        """Verify and parse a run's batches at once; read damaged bytes a second time."""
        try:
            return _final_batches(run, data, verify_crc=True)
        except RecordError:
            return _final_batches(run, await read_run(self._reader, run), verify_crc=True)

    # --- objects --------------------------------------------------------------------------------

    async def _write(self, contents: Sequence[_Content], report: Report) -> bool:
        """Upload an object, and replace the older runs by the object's runs in the metadata.

        Returns:  False if the coordinator refused, so that the task is abandoned.
        """
        object_id = await self._next_id()
        parts, size_bytes = build_object(
            [
                PartitionBatches(
                    content.source.topic_id,
                    content.source.partition,
                    [part for run in content.runs for part in run.parts],
                    sum(run.record_count for run in content.runs),
                    sum(run.batch_count for run in content.runs),
                )
                for content in contents
            ],
            cluster_id=self._settings.keys.cluster_id,
            object_id=object_id,
            broker_id=max(0, self._settings.broker_id),
            broker_epoch=max(0, self._settings.broker_epoch),
            object_format=FINAL,
        )
        await self._store.upload(self._settings.keys.key(object_id), parts, size_bytes)
        report.written_bytes += size_bytes
        ranges, position = [], 0
        for content in contents:
            byte_offsets = []
            for run in content.runs:
                byte_offsets.append(position)
                position += run.size_bytes
            ranges.append(
                RewrittenRange(
                    content.source.topic_id,
                    content.source.partition,
                    tuple(content.old_runs),
                    content.bound,
                    content.flags,
                    tuple(run._replace(parts=()) for run in content.runs),
                    tuple(byte_offsets),
                    tuple(content.ended_aborted),
                )
            )
        written = RewrittenObject(object_id, size_bytes, tuple(ranges))
        goes_on = await self._replace(written)
        report.is_abandoned = not goes_on
        return goes_on


class _Survivors:
    """Chooses the newest record of each key, in blocks of rising offsets.

    Below the first dirty run keys are looked up. From there on all keys were put into the map, so
    that an offset is enough, and the digests' memory is freed.
    """

    def __init__(self, task: CompactionTask, offsets: OffsetMap) -> None:
        dirty = (run for run in task.source.runs if run.last_offset >= task.first_dirty)
        first = next(dirty, None)
        self._first_dirty = task.bound if first is None else first.base_offset
        self._salt = task.salt
        self._offsets = offsets
        self._newest: Numbers | None = None

    def choose(self, block: RecordBlock) -> Mask:
        """Return a mask of the records of a block that are the newest of their keys."""
        if block.batches[0].header.base_offset < self._first_dirty:
            return newest_by_map(block, self._offsets, self._salt)
        if self._newest is None:
            self._newest = self._offsets.drain_offsets()
        return newest_by_offset(block, self._newest)


def _final_columns(run: Run, data: memoryview, deleted_before: int) -> BatchColumns | None:
    """Return a run's verified batches at their final offsets, as columns.

    None of a run that has to be read batch by batch: it is damaged, the log start lies in it, or it
    needs an append time.
    """
    if run.base_offset < deleted_before:
        return None
    end_offset = run.last_offset + 1
    if run.is_final:
        columns = read_final_columns(data, base_offset=run.base_offset, end_offset=end_offset)
    elif run.timestamp_type == LOG_APPEND_TIME:
        return None
    else:
        columns = finish_columns(data, base_offset=run.base_offset, end_offset=end_offset)
    return columns if columns is not None and columns.is_log_append_time is not None else None


def _final_batches(run: Run, data: memoryview, *, verify_crc: bool = False) -> list[Batch]:
    """Check a run's batches, and return the batches with their final offsets and times."""
    end_offset = run.last_offset + 1
    if run.is_final:
        return read_final_run(
            data, base_offset=run.base_offset, end_offset=end_offset, verify_crc=verify_crc
        )
    return finish_run(
        data,
        base_offset=run.base_offset,
        end_offset=end_offset,
        append_time=run.append_time if run.timestamp_type == LOG_APPEND_TIME else None,
        verify_crc=verify_crc,
    )


def _cut(run: Run, batches: Sequence[Batch], first_offset: int) -> tuple[FinalRun, list[Batch]]:
    """Divide a run at the log start: an empty run below it, and the batches above it.

    The first run stands for the deleted records. It ends below the log start, so the coordinator
    has it die at once: merging keeps the number of records and deletes their bytes.

    Raises:  CorruptBatchError, CompressionError.
    """
    kept = [batch for batch in batches if batch.header.last_offset >= first_offset]
    if kept[0].header.base_offset < first_offset:
        kept[0] = cut_front(kept[0], first_offset)
    old, new = (sum(one.header.record_count for one in some) for some in (batches, kept))
    empty = empty_batch(
        kept[0].header._replace(base_offset=Offset(first_offset - 1), last_offset_delta=0)
    )
    deleted = FinalRun(
        run.base_offset,
        first_offset - 1,
        old - new,
        NO_TIMESTAMP,
        run.append_time,
        run.timestamp_type,
        1,
        len(empty.view),
        (empty.view,),
    )
    return deleted, kept


def _windows(runs: Sequence[Run]) -> Iterator[list[Run]]:
    """Divide runs into lists within `WINDOW_BYTES` and `WINDOW_RUNS`, or of a single larger run."""
    window: list[Run] = []
    size_bytes = 0
    for run in runs:
        is_full = len(window) == WINDOW_RUNS or size_bytes + run.size_bytes > WINDOW_BYTES
        if window and is_full:
            yield window
            window, size_bytes = [], 0
        window.append(run)
        size_bytes += run.size_bytes
    if window:
        yield window


def _blocks(batches: Sequence[Batch]) -> Iterator[RecordBlock]:
    """Yield records in blocks of one batch, or of several batches within the size limits.

    Raises:  CorruptBatchError, CompressionError.
    """
    some: list[Batch] = []
    size_bytes = record_count = 0
    for batch in batches:
        size_bytes += len(batch.view)
        record_count += batch.header.record_count
        if some and (size_bytes > BLOCK_BYTES or record_count > BLOCK_RECORDS):
            yield from _read_blocks(some)
            some, size_bytes, record_count = [], len(batch.view), batch.header.record_count
        some.append(batch)
    if some:
        yield from _read_blocks(some)


def _read_blocks(batches: Sequence[Batch]) -> Iterator[RecordBlock]:
    """Yield the batches as one block, or one block each if their decompressed size is too large."""
    if len(batches) > 1:
        with contextlib.suppress(DecompressedTooLargeError):
            yield read_block(batches, limit_bytes=BLOCK_DATA_BYTES)
            return
    for batch in batches:
        yield read_block([batch])


def _kept_batches(cleaned: Sequence[Cleaned], run: Run) -> Iterator[Batch]:
    """Yield the batches that compaction leaves of a run.

    Copies batches that are less than half of the run's bytes, to free the run's memory.
    """
    batches = [batch for part in cleaned for batch in part.batches]
    copies = 2 * sum(len(batch.view) for batch in batches) < run.size_bytes
    for batch in batches:
        # Why not _replace: with small batches it would cost as much as the copy.
        view = memoryview(bytes(batch.view)) if copies else batch.view
        yield Batch(batch.position, batch.header, view)


def _end(content: _Content, builder: RunBuilder, last: Batch) -> None:
    """Finish the new runs of a range of offsets, with an empty batch if the last was removed.

    Consumers that read to the end of a partition wait for that offset.
    """
    run = content.old_runs[-1]
    if builder.end_offset <= run.last_offset:
        content.runs += builder.add(empty_batch(last.header), run.append_time)
    content.runs += builder.take()
    assert builder.end_offset == run.last_offset + 1, f"{builder.end_offset} after {run}"


def _damage(source: Source, run: Run, error: Exception) -> Damage:
    log.error("action=rewrite run=%s error=%r", run, str(error))
    return Damage(source.topic_id, source.partition, run.base_offset, run.object_key, str(error))


async def _cancel(reads: Sequence[asyncio.Future[memoryview]]) -> None:
    """Cancel reads of objects that are in progress, and wait until they have ended."""
    for reading in reads:
        reading.cancel()
    await asyncio.gather(*reads, return_exceptions=True)
