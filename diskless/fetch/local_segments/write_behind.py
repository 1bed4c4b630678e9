"""Writes ranges to segments behind the readers that brought them, a few bytes at a time.

The trap: a quorum may flush its log to the same disk. Much that is written at once makes such a
flush wait, so there are pauses between pieces, and a limit of bytes a second. What does not fit in
the queue is not written: no reader or producer waits for this disk.

Source: docs/design/local-segments.md#filling.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Final

from diskless.fetch.local_segments.format import Entry
from diskless.fetch.local_segments.segment import Append, Segment, write

QUEUE_BYTES: Final = 32 * 1024 * 1024
ITEM_BYTES: Final = 1024 * 1024
PIECE_BYTES: Final = 4 * 1024 * 1024  # written between two pauses
PIECE_ITEMS: Final = 256
FREE_BYTES: Final = 1024**3
"""Bytes of the disk that stay free, so that a quorum's log on the same disk can be written."""


class _Item:
    """Ranges of one segment that wait to be written."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.position = segment.log_bytes
        self.first_entry = segment.entry_count
        self.parts: list[memoryview] = []
        self.entries: list[bytes] = []
        self.size_bytes = 0


class WriteBehind:
    """The queue of one broker's writes to local segments. Belongs to the event loop."""

    def __init__(
        self,
        executor: Executor,
        *,
        bytes_per_second: int,
        on_written: Callable[[int], None],
        on_failed: Callable[[OSError, Sequence[Segment]], None],
    ) -> None:
        """Prepare the queue, which `start` begins to write.

        Args:  executor: writes, one call at a time.
               on_written: called with the bytes of ranges that can be read now.
               on_failed: called with the segments of which ranges were given up.
        """
        self.queued_bytes = 0
        self._executor = executor
        self._bytes_per_second = bytes_per_second
        self._on_written = on_written
        self._on_failed = on_failed
        self._queue: deque[_Item] = deque()
        self._taking: dict[Segment, _Item] = {}  # of the queue, those that take more ranges
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """Return whether what is queued is written."""
        return self._task is not None

    def start(self) -> None:
        """Begin to write."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="local-segments")

    async def close(self) -> None:
        """Write what is queued, and end."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        while self._queue:
            await self._write_piece()

    def has_room(self, size_bytes: int) -> bool:
        """Return whether so many bytes may be queued now."""
        return self.queued_bytes + size_bytes <= QUEUE_BYTES

    def add(self, segment: Segment, entry: Entry, data: memoryview) -> None:
        """Append a range to a segment, and queue it to be written."""
        item = self._taking.get(segment)
        if item is None:
            item = self._taking[segment] = _Item(segment)
            self._queue.append(item)
        item.entries.append(segment.append(entry))
        item.parts.append(data)
        item.size_bytes += len(data)
        self.queued_bytes += len(data)
        if item.size_bytes >= ITEM_BYTES:
            del self._taking[segment]
        self._wake.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                began = loop.time()
                size_bytes = await self._write_piece()
                pause_s = size_bytes / self._bytes_per_second
                await asyncio.sleep(max(0.0, began + pause_s - loop.time()))

    async def _write_piece(self) -> int:
        """Write some of the queue; return the bytes that were tried."""
        appends: list[Append] = []
        size_bytes = 0
        while self._queue and size_bytes < PIECE_BYTES and len(appends) < PIECE_ITEMS:
            item = self._take()
            if not item.segment.is_discarded:
                size_bytes += item.size_bytes
                appends.append(
                    Append(item.segment, item.position, item.parts, item.first_entry, item.entries)
                )
        if appends:
            loop = asyncio.get_running_loop()
            count, error = await loop.run_in_executor(self._executor, _write_all, appends)
            for append in appends[:count]:
                if not append.segment.is_discarded:
                    append.segment.readable = append.first_entry + len(append.entries)
                    self._on_written(append.size_bytes)
            if error is not None:
                given_up = [append.segment for append in appends[count:]]
                while self._queue:
                    given_up.append(self._take().segment)
                self._on_failed(error, given_up)
        return size_bytes

    def _take(self) -> _Item:
        item = self._queue.popleft()
        if self._taking.get(item.segment) is item:
            del self._taking[item.segment]
        self.queued_bytes -= item.size_bytes
        return item


def _write_all(appends: Sequence[Append]) -> tuple[int, OSError | None]:
    """Write to several segments; return how many were written, and the error of the next."""
    for index, append in enumerate(appends):
        try:
            if not index:
                _check_free(append.segment)
            write(append)
        except OSError as error:
            return index, error
    return len(appends), None


def _check_free(segment: Segment) -> None:
    """Raise OSError if the disk is nearly full."""
    found = os.statvfs(segment.path.parent.parent)
    if found.f_bavail * found.f_frsize < FREE_BYTES:
        raise OSError(errno.ENOSPC, f"less than {FREE_BYTES // 1024**2} MiB of the disk are free")
