"""Caches ranges of objects: equal reads share one GET, and neighbouring reads are merged.

Consumers of one partition read the same bytes within moments of each other, and an object has many
partitions' bytes side by side. So the reads of one turn of the event loop are collected, and a read
that lies inside a range that is cached or being fetched causes no request to the store.

The trap: a read returns a view into a cached range, so its memory may outlive its place in the
cache. The bound counts only what the cache itself references.

A broker adds each object that it has written: consumers that keep up read what was just written,
mostly from the same broker, and then no object is fetched at all.

Source: KIP-1163, Consume path (caching reads); docs/design/broker.md#fetch.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from diskless.stores import ByteRange, ObjectStorage, StorageError
from records.compression import Buffer

READ_S: Final = 20.0
"""How long a read waits for the store: less than clients wait for an answer."""

MERGE_GAP_BYTES: Final = 128 * 1024
"""The largest gap between two reads that one GET covers: a second GET costs milliseconds."""

WRITTEN_HERE: Final = "written here"
"""A key of the notes on the bytes of an object that this broker wrote: they never left its memory,
and it checked the batches in them before it wrote them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """Bounds of a cache."""

    max_bytes: int = 256 * 1024 * 1024  # of cached ranges
    max_ranges: int = 50_000  # each costs about a kilobyte besides
    max_get_bytes: int = 16 * 1024 * 1024  # of a merged GET; a single read may be larger
    max_gets: int = 16  # at the same time


@dataclass(slots=True)
class CacheCounters:
    """Counts of reads and GETs, for metrics."""

    reads: int = 0
    hits: int = 0  # reads without a request to the store
    gets: int = 0
    get_bytes: int = 0


class _CachedRange:
    """Bytes [offset, end) of an object: cached, or being fetched."""

    __slots__ = ("data", "end", "key", "notes", "offset", "parts")

    def __init__(self, key: str, offset: int, end: int) -> None:
        self.key = key
        self.offset = offset
        self.end = end
        self.notes: dict[object, object] = {}  # what readers computed from these bytes
        self.parts: list[_CachedRange] = []  # the requested ranges that were merged into this one
        self.data: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()

    def complete(self, data: memoryview) -> None:
        """Store the fetched bytes in this range and in the ranges merged into it."""
        self.data.set_result(data)
        for part in self.parts:
            part.complete(data[part.offset - self.offset : part.end - self.offset])

    def fail(self, error: BaseException) -> None:
        """Raise an error in the readers of this range and of the ranges merged into it."""
        self.data.set_exception(error)
        self.data.exception()  # retrieved: a range without readers must not log an error
        for part in self.parts:
            part.fail(error)


class ObjectCache:
    """A read cache in front of one store. Belongs to the event loop."""

    def __init__(
        self,
        store: ObjectStorage,
        settings: CacheSettings | None = None,
        *,
        counters: CacheCounters | None = None,
    ) -> None:
        """Create an empty cache; `counters` are another cache's if both count together."""
        self.counters = counters or CacheCounters()
        self.kept_bytes = 0
        self._store = store
        self._settings = settings or CacheSettings()
        self._ranges: dict[
            str, list[_CachedRange]
        ] = {}  # cached, being fetched or requested, by object
        self._kept: OrderedDict[_CachedRange, None] = OrderedDict()  # the longest unused first
        self._requested: dict[str, list[_CachedRange]] = {}  # requested in this turn of the loop
        self._gets = asyncio.Semaphore(self._settings.max_gets)
        self._tasks: set[asyncio.Task[None]] = set()

    async def read(self, key: str, byte_range: ByteRange) -> memoryview:
        """Return a range of an object's bytes, from the cache or the object store.

        Raises StorageError and its subclasses.
        """
        data, _ = await self.read_noted(key, byte_range)
        return data

    async def read_noted(
        self, key: str, byte_range: ByteRange
    ) -> tuple[memoryview, dict[object, object]]:
        """Return a range's bytes, and a dictionary for values computed from these bytes."""
        offset, end = byte_range.offset, byte_range.offset + byte_range.size
        found = self.read_now(key, offset, byte_range.size)
        if found is not None:
            return found
        self.counters.reads += 1
        cached = self._find(key, offset, end)
        if cached is None:
            cached = self._request(key, offset, end)
        else:
            self.counters.hits += 1
        await asyncio.wait((cached.data,), timeout=READ_S)
        if not cached.data.done():
            raise StorageError(key, f"the store has not answered within {READ_S:g} s")
        data = cached.data.result()
        return data[offset - cached.offset : end - cached.offset], cached.notes

    def read_now(
        self, key: str, offset: int, size: int
    ) -> tuple[memoryview, dict[object, object]] | None:
        """Return what `read_noted` does for bytes that are in memory; None for others."""
        cached = self._find(key, offset, offset + size)
        if cached is None or cached not in self._kept:
            return None
        self.counters.reads += 1
        self.counters.hits += 1
        self._kept.move_to_end(cached)
        data = cached.data.result()
        return data[offset - cached.offset : offset + size - cached.offset], cached.notes

    def add(self, key: str, data: Buffer) -> None:
        """Add a whole object that this broker has just written to the cache."""
        if self._find(key, 0, len(data)) is None and len(data) <= self._settings.max_bytes:
            cached = _CachedRange(key, 0, len(data))
            cached.notes[WRITTEN_HERE] = True
            self._ranges.setdefault(key, []).append(cached)
            cached.complete(memoryview(data).toreadonly())
            self._keep(cached, len(data))

    def has(self, key: str, byte_range: ByteRange) -> bool:
        """Return whether a read of this range now causes no request to the store."""
        return self._find(key, byte_range.offset, byte_range.offset + byte_range.size) is not None

    def is_in_memory(self, key: str, offset: int, size: int) -> bool:
        """Return whether a read of `size` bytes from `offset` on waits for nothing now."""
        cached = self._find(key, offset, offset + size)
        return cached is not None and cached in self._kept

    def forget(self, key: str) -> None:
        """Drop all cached ranges of an object that was deleted or has damaged bytes."""
        for cached in list(self._ranges.get(key, ())):
            if cached in self._kept:
                self._drop(cached)

    async def close(self) -> None:
        """Cancel all GET requests, whose readers then get a StorageError."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- ranges ---------------------------------------------------------------------------------

    def _find(self, key: str, offset: int, end: int) -> _CachedRange | None:
        for cached in self._ranges.get(key, ()):
            if cached.offset <= offset and end <= cached.end:
                return cached
        return None

    def _request(self, key: str, offset: int, end: int) -> _CachedRange:
        if not self._requested:
            asyncio.get_running_loop().call_soon(self._start_gets)
        cached = _CachedRange(key, offset, end)
        self._requested.setdefault(key, []).append(cached)
        self._ranges.setdefault(key, []).append(cached)
        return cached

    def _start_gets(self) -> None:
        """Start GETs for the ranges requested in this event loop turn, joining adjacent ranges."""
        requested, self._requested = self._requested, {}
        for key, ranges in requested.items():
            for group in self._neighbours(ranges):
                merged = group[0] if len(group) == 1 else self._merge(key, group)
                task = asyncio.get_running_loop().create_task(self._get(merged))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def _merge(self, key: str, group: list[_CachedRange]) -> _CachedRange:
        """Replace several cached ranges by one range that covers all of them."""
        merged = _CachedRange(key, group[0].offset, max(cached.end for cached in group))
        merged.parts = group
        self._ranges[key].append(merged)
        for cached in group:
            self._ranges[key].remove(cached)
        return merged

    def _neighbours(self, ranges: list[_CachedRange]) -> Iterable[list[_CachedRange]]:
        group: list[_CachedRange] = []
        end = 0
        for cached in sorted(ranges, key=lambda cached: cached.offset):
            near = group and cached.offset <= end + MERGE_GAP_BYTES
            if near and cached.end - group[0].offset <= self._settings.max_get_bytes:
                group.append(cached)
                end = max(end, cached.end)
                continue
            if group:
                yield group
            group, end = [cached], cached.end
        if group:
            yield group

    async def _get(self, cached: _CachedRange) -> None:
        size = cached.end - cached.offset
        try:
            async with self._gets:
                self.counters.gets += 1
                self.counters.get_bytes += size
                data = await self._store.fetch(cached.key, ByteRange(cached.offset, size))
        except asyncio.CancelledError:
            self._remove(cached)
            cached.fail(StorageError(cached.key, "the cache was closed"))
            raise
        except Exception as error:
            self._remove(cached)
            cached.fail(error)
            return
        cached.complete(memoryview(data).toreadonly())
        self._keep(cached, size)

    def _keep(self, cached: _CachedRange, size: int) -> None:
        self._kept[cached] = None
        self.kept_bytes += size
        bounds = self._settings
        while self._kept and (
            self.kept_bytes > bounds.max_bytes or len(self._kept) > bounds.max_ranges
        ):
            self._drop(next(iter(self._kept)))

    def _drop(self, cached: _CachedRange) -> None:
        del self._kept[cached]
        self.kept_bytes -= cached.end - cached.offset
        self._remove(cached)

    def _remove(self, cached: _CachedRange) -> None:
        ranges = self._ranges[cached.key]
        ranges.remove(cached)
        if not ranges:
            del self._ranges[cached.key]
