"""Reads runs into the cache before consumers that read sequentially ask for them.

A consumer that catches up sends one Fetch after another, and each waits for the store: 30 ms and
more until the first byte. Here a Fetch that goes on where an earlier one ended is noticed, and the
runs behind it are read meanwhile. Runs that lie side by side in one object are one GET, because
their reads begin in one turn of the event loop.

No consumer is known by name: a Fetch continues a stream if its offset lies behind that of the
stream's last Fetch, in the runs found for it. So streams survive a new connection, and several
consumers of a partition have one each.

Nothing is read ahead for a consumer of batches that are in memory anyway. It waits for the store
once, when it leaves them; from then on its stream is read ahead, until all that is found ahead of
it is in memory again.

Memory is bounded: bytes read ahead and not reached yet are at most `max_bytes`, over all streams,
and each stream has an equal share of them. A stream without a Fetch for `IDLE_S` seconds loses its
share. The bytes themselves are in the cache, and count there.

The trap: reads for nobody must not delay reads for a consumer. Only a few runs at a time are read
ahead, fewer than the GETs that the cache allows. An error is dropped: the consumer's own read finds
it again.

Source: docs/design/broker.md#fetch.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from uuid import UUID

from diskless.fetch.object_cache import ObjectCache
from diskless.fetch.runs_reader import Run
from diskless.stores import ByteRange, StorageError

IDLE_S: Final = 30.0
MAX_STREAMS: Final = 10_000
STREAMS_OF_PARTITION: Final = 16
MAX_RUNS: Final = 64
"""Runs of a stream that are read ahead: small ones cost a GET each."""

PARALLEL_READS: Final = 8

LookUp = Callable[[int, int], Awaitable[Sequence[Run]]]
"""Finds the runs of a partition from an offset on, up to a number of bytes."""


class ReadAheadSettings(NamedTuple):
    """Bounds of the bytes that are read ahead."""

    max_bytes: int = 64 * 1024 * 1024  # of all streams; 0: nothing is read ahead
    stream_bytes: int = 16 * 1024 * 1024


@dataclass(slots=True)
class ReadAheadCounters:
    """Counts of what was read ahead, for metrics."""

    runs: int = 0
    bytes: int = 0
    used_bytes: int = 0  # of runs that a consumer reached afterwards
    failures: int = 0


@dataclass(slots=True, eq=False)
class _Stream:
    """A consumer that reads a partition sequentially."""

    offset: int  # of the last Fetch
    end_offset: int  # behind the runs found for it
    used_at: float
    has_waited: bool  # for the store, since all that was found ahead of it was in memory
    is_sequential: bool = False
    ahead: deque[Run] = field(default_factory=deque)  # read ahead, not reached yet
    is_refilling: bool = False

    @property
    def ahead_bytes(self) -> int:
        """Return the bytes of the runs that were read ahead but not fetched yet."""
        return sum(run.size_bytes for run in self.ahead)

    @property
    def next_offset(self) -> int:
        """Return the first offset that was neither fetched nor read ahead."""
        return max(self.end_offset, self.ahead[-1].last_offset + 1 if self.ahead else 0)


class ReadAhead:
    """Reads ahead for the consumers of one broker. Belongs to the event loop."""

    def __init__(
        self,
        cache: ObjectCache,
        settings: ReadAheadSettings,
        *,
        is_local: Callable[[tuple[UUID, int], Run], bool] = lambda *_: False,
    ) -> None:
        """Prepare to read runs of batches ahead into this cache.

        Args:  is_local: whether a partition's run is on this broker's disk, and needs no reading.
        """
        self.counters = ReadAheadCounters()
        self.pending_bytes = 0  # read ahead, not reached yet
        self._cache = cache
        self._settings = settings
        self._is_local = is_local
        self._streams: OrderedDict[_Stream, tuple[UUID, int]] = OrderedDict()  # longest idle first
        self._by_partition: dict[tuple[UUID, int], list[_Stream]] = {}
        self._sequential = 0  # streams
        self._reads = asyncio.Semaphore(PARALLEL_READS)
        self._tasks: set[asyncio.Task[None]] = set()

    def note(
        self,
        partition: tuple[UUID, int],
        offset: int,
        runs: Sequence[Run],
        high_watermark: int,
        look_up: LookUp,
        *,
        waits: bool = True,
    ) -> None:
        """Record a Fetch, and read ahead if the Fetch continues an earlier Fetch.

        Args:    partition: topic id and index.
                 runs: that were found for the Fetch, at least one.
                 look_up: finds the partition's runs; raises nothing.
                 waits: whether these runs are not all in memory.
        """
        if not self._settings.max_bytes:
            return
        now = asyncio.get_running_loop().time()
        self._drop_idle(now)
        waits = waits and not all(self._is_local(partition, run) for run in runs)
        end_offset = runs[-1].last_offset + 1
        stream = self._find(partition, offset)
        if stream is None:
            if end_offset < high_watermark:  # else there is nothing to read ahead
                self._add(partition, _Stream(offset, end_offset, now, waits))
            return
        self._advance(stream, offset, end_offset, now)
        stream.has_waited = stream.has_waited or waits
        if not stream.has_waited or stream.is_refilling or stream.next_offset >= high_watermark:
            return
        if 2 * stream.ahead_bytes < self._share() and 2 * len(stream.ahead) < MAX_RUNS:
            stream.is_refilling = True
            self._start(self._refill(stream, look_up))

    async def close(self) -> None:
        """Cancel all reads in progress, and drop all streams of Fetches."""
        while self._streams:
            self._drop(next(iter(self._streams)))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- streams --------------------------------------------------------------------------------

    def _add(self, partition: tuple[UUID, int], stream: _Stream) -> None:
        streams = self._by_partition.setdefault(partition, [])
        if len(streams) >= STREAMS_OF_PARTITION:
            self._drop(min(streams, key=lambda each: each.used_at))
        self._by_partition.setdefault(partition, streams).append(stream)
        self._streams[stream] = partition

    def _advance(self, stream: _Stream, offset: int, end_offset: int, now: float) -> None:
        """Move a stream to the offset of its newest Fetch."""
        self._streams.move_to_end(stream)
        self._sequential += not stream.is_sequential
        stream.is_sequential = True
        stream.offset, stream.used_at = offset, now
        stream.end_offset = max(stream.end_offset, end_offset)
        while stream.ahead and stream.ahead[0].base_offset <= offset:
            run = stream.ahead.popleft()
            self.pending_bytes -= run.size_bytes
            self.counters.used_bytes += run.size_bytes

    def _find(self, partition: tuple[UUID, int], offset: int) -> _Stream | None:
        """Return the stream that a Fetch from this offset continues, or None."""
        for stream in self._by_partition.get(partition, ()):
            if stream.offset < offset <= stream.end_offset:
                return stream
        return None

    def _share(self) -> int:
        """Return the number of bytes that each stream may read ahead."""
        settings = self._settings
        return min(settings.stream_bytes, settings.max_bytes // max(1, self._sequential))

    def _drop_idle(self, now: float) -> None:
        while self._streams:
            stream = next(iter(self._streams))
            if now - stream.used_at < IDLE_S and len(self._streams) < MAX_STREAMS:
                return
            self._drop(stream)

    def _drop(self, stream: _Stream) -> None:
        partition = self._streams.pop(stream)
        streams = self._by_partition[partition]
        streams.remove(stream)
        if not streams:
            del self._by_partition[partition]
        self._sequential -= stream.is_sequential
        self.pending_bytes -= stream.ahead_bytes
        stream.ahead.clear()

    # --- reads ----------------------------------------------------------------------------------

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _refill(self, stream: _Stream, look_up: LookUp) -> None:
        """Look up the next runs of a stream, and begin to read them into the cache."""
        room = self._share() - stream.ahead_bytes
        try:
            runs = await look_up(stream.next_offset, room)
        finally:
            stream.is_refilling = False
        partition = self._streams.get(stream)
        if partition is None:
            return
        if runs:
            stream.has_waited = not all(self._is_near(partition, run) for run in runs)
        for run in (found for found in runs if not found.is_marker):
            is_full = self.pending_bytes + run.size_bytes > self._settings.max_bytes
            if run.size_bytes > room or is_full or len(stream.ahead) >= MAX_RUNS:
                break
            room -= run.size_bytes
            stream.ahead.append(run)
            self.pending_bytes += run.size_bytes
            self.counters.runs += 1
            self.counters.bytes += run.size_bytes
            if not self._is_local(partition, run):
                self._start(self._read(run))

    def _is_near(self, partition: tuple[UUID, int], run: Run) -> bool:
        """Return whether a run is in memory, on its way there, or on this broker's disk."""
        where = ByteRange(run.byte_offset, run.size_bytes)
        cached = run.is_marker or self._cache.has(run.object_key, where)
        return cached or self._is_local(partition, run)

    async def _read(self, run: Run) -> None:
        async with self._reads:
            try:
                await self._cache.read(run.object_key, ByteRange(run.byte_offset, run.size_bytes))
            except StorageError:
                self.counters.failures += 1
