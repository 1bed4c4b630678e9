"""The rewriting process: it runs tasks, and a task fails if it dies; the next one has another.

Source: docs/design/compaction.md.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from uuid import UUID

import pytest

from diskless.compaction.child import ChildWorker
from diskless.compaction.tasks import CompactionTask, RewriterSettings, RewrittenObject, Source
from diskless.compaction.worker import Callbacks, TaskFailedError, Throttle
from diskless.fetch.runs_reader import Run
from diskless.stores.directory import PATH, DirectoryStorage
from diskless.stores.opening import CLASS_NAME, DIRECTORY
from records.batch_writer import build_batch
from records.object_keys import ObjectKeys
from tests.diskless.virtual_time import run as run_in_virtual_time

pytestmark = pytest.mark.slow

KEYS = ObjectKeys(prefix="", cluster_id="Ck3xYzAAAAAAAAAAAAAAAA", coordinator_partition=0)
TOPIC = UUID(int=1)
OWNER = RewriterSettings(KEYS, 1, 2, 1 << 20, 1 << 20)
NO_SUCH_OBJECT = Source(TOPIC, 0, (Run("missing", 0, 70, 0, 0, 0, -1),))


async def filled(store: DirectoryStorage) -> Source:
    """Return the runs of a partition with two objects in the store; both have the same key."""
    runs = []
    for offset in range(2):
        data = build_batch([(b"k", b"%d" % offset, 1, ())], base_offset=0, leader_epoch=0)
        key = KEYS.key(offset)
        await store.upload(key, [bytes(data)], len(data))
        runs.append(Run(key, 0, len(data), offset, offset, 0, -1))
    return Source(TOPIC, 0, tuple(runs))


def test_the_child_process_of_compaction_runs_tasks_and_is_replaced_after_a_kill(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        values = {CLASS_NAME: DIRECTORY, PATH: str(tmp_path), "esker.log.format": "text"}
        worker = ChildWorker(values, max_bytes_per_second=0)
        store = DirectoryStorage.configured(values)
        source = await filled(store)
        written: list[RewrittenObject] = []
        ids = iter(range(10, 20))

        async def next_id() -> int:
            return next(ids)

        async def replace(each: RewrittenObject) -> bool:
            written.append(each)
            return True

        async def taken_id() -> int:
            return 1

        async def kill() -> int:
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGKILL)
            return next(ids)

        try:
            report = await worker.run((source,), OWNER, Callbacks(next_id, replace))
            assert [run.record_count for run in written[0].ranges[0].runs] == [2]
            assert report.read_bytes == sum(run.size_bytes for run in source.runs)
            report = await worker.run((NO_SUCH_OBJECT,), OWNER, Callbacks(next_id, replace))
            assert [damage.reason for damage in report.damages] == ["missing: no such object"]
            with pytest.raises(TaskFailedError, match="holds other bytes"):
                await worker.run((source,), OWNER, Callbacks(taken_id, replace))
            assert worker.started == 1
            with pytest.raises(TaskFailedError, match="process ended"):
                await worker.run((source,), OWNER, Callbacks(kill, replace))
            task = CompactionTask(source, 2, 0, 0, 0, 0, {}, bytes(16))
            report = await worker.run(task, OWNER, Callbacks(next_id, replace))
            assert worker.started == 2
            assert report.removed_records == 1
            assert written[1].ranges[0].bound == 2
            assert len(written) == 2
        finally:
            await worker.close()
            await store.close()
        assert worker.pid is None

    asyncio.run(work())


def test_a_compaction_throttle_delays_requests_for_bytes_above_its_rate() -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        throttle, began = Throttle(100), loop.time()
        for _ in range(4):
            await throttle.take(50)
        assert loop.time() - began == pytest.approx(1.5)
        await asyncio.sleep(10)
        again = loop.time()
        await throttle.take(50)
        assert loop.time() == again
        await Throttle(0).take(1 << 40)
        assert loop.time() == again

    run_in_virtual_time(work)
