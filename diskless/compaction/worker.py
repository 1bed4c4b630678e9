"""Runs a rewriter's tasks: in this process for tests, or in a child (`diskless.compaction.child`).

Source: docs/design/compaction.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from diskless.compaction.tasks import (
    CompactionTask,
    Report,
    RewriterSettings,
    RewrittenObject,
    Source,
)
from diskless.stores import ByteRange, ObjectStorage
from diskless.stores.interface import StoredObject
from records.compression import Buffer

Task: TypeAlias = CompactionTask | tuple[Source, ...]
"""A round of compaction, or the sources of a merged object."""


class Callbacks(NamedTuple):
    """The calls that a task makes to its caller."""

    next_id: Callable[[], Awaitable[int]]
    replace: Callable[[RewrittenObject], Awaitable[bool]]


class TaskFailedError(Exception):
    """A task ended early: the store failed, or the process that ran it died."""


class Worker(Protocol):
    """Runs one task at a time."""

    async def run(self, task: Task, settings: RewriterSettings, callbacks: Callbacks) -> Report:
        """Run a merge or compaction task to its end.

        Raises:  TaskFailedError, and the errors of the callbacks.
        """

    async def close(self) -> None:
        """Stop the worker that merges and compacts."""


class Throttle:
    """Delays work so that it does not exceed a number of bytes a second, over time."""

    def __init__(self, bytes_per_second: int) -> None:
        """Create a throttle of reads and uploads; 0 bytes per second mean no limit."""
        self._rate = bytes_per_second
        self._free_at = 0.0

    async def take(self, size_bytes: int) -> None:
        """Wait until the bytes taken by earlier calls are within the rate limit."""
        if not self._rate:
            return
        now = asyncio.get_running_loop().time()
        begin = max(now, self._free_at)
        self._free_at = begin + size_bytes / self._rate
        if begin > now:
            await asyncio.sleep(begin - now)


class ThrottledStore:
    """An object store whose reads and uploads pass through a throttle."""

    def __init__(self, store: ObjectStorage, throttle: Throttle) -> None:
        self._store = store
        self._throttle = throttle

    async def upload(self, key: str, parts: Sequence[Buffer], size_bytes: int) -> None:
        await self._throttle.take(size_bytes)
        await self._store.upload(key, parts, size_bytes)

    async def fetch(self, key: str, byte_range: ByteRange) -> Buffer:
        await self._throttle.take(byte_range.size)
        return await self._store.fetch(key, byte_range)

    async def delete(self, keys: Collection[str]) -> None:
        await self._store.delete(keys)

    def list_objects(self, prefix: str) -> AsyncIterator[StoredObject]:
        return self._store.list_objects(prefix)

    async def close(self) -> None:
        """Close the object store that this store throttles."""
        await self._store.close()


async def run_task(
    store: ObjectStorage, task: Task, settings: RewriterSettings, callbacks: Callbacks
) -> Report:
    """Run a merge or compaction task in this process.

    Raises:  StorageError, and the errors of the callbacks.
    """
    from diskless.compaction.rewriter import Rewriter  # imports NumPy: not before a task runs

    rewriter = Rewriter(store, settings, next_id=callbacks.next_id, replace=callbacks.replace)
    try:
        if isinstance(task, CompactionTask):
            return await rewriter.compact(task)
        return await rewriter.merge(task)
    finally:
        await rewriter.close()
