"""Rewrites the sources of one merged object: a task of an engine, here or on an executor of Spark.

The rewriter is the brokers' (`diskless.compaction.rewriter`). It is given the object's id, and
returns what the object holds; the command has the coordinator replace the runs.

A task that an engine runs again writes the same bytes under the same key, which is no error. Jobs
delete nothing: an object whose runs are not replaced is an orphan of the plan's lease, and a broker
deletes it.

Source: docs/design/compaction.md, docs/design/pipeline.md#spark-deletes-nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, NamedTuple

from diskless.compaction.rewriter import Rewriter
from diskless.compaction.tasks import Damage, RewriterSettings, RewrittenObject, Source
from diskless.compaction.worker import Throttle, ThrottledStore
from diskless.stores.interface import ByteRange, ObjectExistsError, StorageError, StoredObject
from records.compression import Buffer
from records.object_keys import ObjectKeys
from spark_jobs.readers.object_store import MAX_READ_BYTES, ObjectStore

READS_AT_ONCE: Final = 16
BY_A_PLAN: Final = -1
"""Stands for the broker's id and epoch in objects that a plan writes."""


class RewriteWork(NamedTuple):
    """The sources of one merged object, and the id that the object takes."""

    keys: ObjectKeys
    object_id: int
    sources: tuple[Source, ...]


class Rewritten(NamedTuple):
    """The outcome of one task."""

    written: RewrittenObject | None  # None: no source could be read
    damages: tuple[Damage, ...]
    read_bytes: int
    error: str | None = None  # the store failed


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """The function that engines run on each item of work; it can be pickled."""

    store: ObjectStore
    bytes_per_second: int = 0  # read and written by each task; 0: no limit

    def __call__(self, work: RewriteWork) -> Rewritten:
        """Read the source runs, write them as one new object, and return its description."""
        return asyncio.run(self._rewrite(work))

    async def _rewrite(self, work: RewriteWork) -> Rewritten:
        written: list[RewrittenObject] = []

        async def next_id() -> int:
            return work.object_id

        async def keep(each: RewrittenObject) -> bool:
            written.append(each)
            return True

        with ThreadPoolExecutor(READS_AT_ONCE) as threads:
            store = ThrottledStore(_LoopStore(self.store, threads), Throttle(self.bytes_per_second))
            settings = RewriterSettings(work.keys, BY_A_PLAN, BY_A_PLAN, 0, 0)
            rewriter = Rewriter(store, settings, next_id=next_id, replace=keep)
            try:
                report = await rewriter.merge(work.sources)
            except StorageError as error:
                return Rewritten(None, (), 0, str(error))
            finally:
                await rewriter.close()
        found = written[0] if written else None
        return Rewritten(found, tuple(report.damages), report.read_bytes)


class _LoopStore:
    """A job's store for an event loop: requests run in threads, and nothing can be deleted."""

    def __init__(self, store: ObjectStore, threads: ThreadPoolExecutor) -> None:
        self._store = store
        self._threads = threads

    async def upload(self, key: str, parts: Sequence[Buffer], size_bytes: int) -> None:
        data = b"".join(parts)
        assert len(data) == size_bytes, f"{key}: {len(data)} bytes, {size_bytes} were announced"
        loop = asyncio.get_running_loop()
        if await loop.run_in_executor(self._threads, self._store.write_new, key, data):
            return
        stored = await loop.run_in_executor(self._threads, self._store.head, key)
        if stored is None or stored.size_bytes != size_bytes:
            raise ObjectExistsError(key)
        if bytes(await self.fetch(key, ByteRange(0, size_bytes))) != data:
            raise ObjectExistsError(key)

    async def fetch(self, key: str, byte_range: ByteRange) -> Buffer:
        loop = asyncio.get_running_loop()
        parts = []
        end = byte_range.offset + byte_range.size
        for start in range(byte_range.offset, end, MAX_READ_BYTES):
            size = min(MAX_READ_BYTES, end - start)
            read = loop.run_in_executor(self._threads, self._store.read, key, start, size)
            parts.append(await read)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def delete(self, keys: Collection[str]) -> None:
        raise AssertionError(f"a job deletes {len(keys)} objects")

    async def list_objects(self, prefix: str) -> AsyncIterator[StoredObject]:
        for stored in self._store.list(prefix):
            yield stored

    async def close(self) -> None:
        """Do nothing, because the caller owns the store and the threads."""
