"""When a log is flushed, what a follower keeps of it in memory, and that closing flushes once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import pytest

from raft.core.effects import Append
from raft.core.messages import Batch
from raft.driver import disk_work
from raft.driver.counters import Counters
from raft.driver.disk_thread import DiskThread
from raft.driver.disk_work import KEPT_BYTES, DiskWork
from raft.driver.storage import Storage
from raft.segments.files import RealFileSystem
from raft.segments.log import LogConfig
from raft.wire.responses import Group
from records.batch_writer import build_value_batch
from records.types import Epoch, NodeId, Offset
from tests.waiting import wait_until_async

GROUP = Group("t", 0, UUID(int=5))


class World:
    """One group's log on disk with its `DiskWork`."""

    def __init__(self, log_dir: Path, *, acknowledges: bool = True) -> None:
        files, self.failures = RealFileSystem(), list[BaseException]()
        Storage.create(files, log_dir, GROUP, LogConfig(), recovering=False)
        self.storage = Storage.open(files, log_dir, GROUP, LogConfig(), (NodeId(1),))
        disk = DiskThread("test", asyncio.get_running_loop(), self.failures.append)
        self.work = DiskWork(
            name="t-0", storage=self.storage, disk=disk, counters=Counters(), generation=0,
            acknowledges=lambda: acknowledges, post=lambda _: None, resume=lambda: None,
            on_appended=lambda: None,
        )  # fmt: skip

    def fetched(self, offset: int, value_bytes: int, epoch: int = 1) -> bytes:
        """Append one batch as a follower does."""
        values = [bytes(value_bytes)]
        data = bytes(build_value_batch(values, base_offset=offset, leader_epoch=epoch, timestamp=0))
        end = Offset(offset + 1)
        batch = Batch(Offset(offset), end, Epoch(epoch), len(data), memoryview(data))
        self.work.append(Append((batch,), 0))
        return data


def test_the_log_cache_holds_small_fetched_batches_and_no_large_fetched_batches(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        world, written = World(tmp_path), b""
        storage, most = world.storage, 1 << 20
        for offset, (value_bytes, is_kept) in enumerate(
            [(100, True), (100, True), (KEPT_BYTES, False), (100, True)]
        ):
            data = world.fetched(offset, value_bytes)
            begin, end = Offset(offset), Offset(offset + 1)
            assert (storage._from_tail(begin, end, most) == data) is is_kept
            written += data
            assert bytes(storage.read_bytes(begin, end, most)) == data
        assert bytes(storage.read_bytes(Offset(0), Offset(4), most)) == written
        await world.work.close()

    asyncio.run(story())


def test_closing_a_raft_group_flushes_its_pending_appends(tmp_path: Path) -> None:
    """They are flushed as the log is closed; a flush of its own would come after that, and fail."""

    async def story() -> None:
        world = World(tmp_path)
        world.fetched(0, 100)  # is being flushed
        world.fetched(1, 100)  # waits for the next flush
        await world.work.close()
        assert not world.failures
        assert world.storage.log.flushed_end_offset == 2

    asyncio.run(story())


def flushes_of(world: World, patch: pytest.MonkeyPatch) -> list[Offset]:
    """Note the end offset after each flush of the world's log from now on."""
    ends: list[Offset] = []
    flush = world.storage.flush

    def noted() -> Offset:
        ends.append(flush())
        return ends[-1]

    patch.setattr(world.storage, "flush", noted)
    return ends


def test_an_observer_flushes_the_records_of_half_a_second_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        world = World(tmp_path, acknowledges=False)
        ends = flushes_of(world, monkeypatch)
        world.fetched(0, 100)
        await wait_until_async(lambda: ends == [1], "the first record of the epoch is flushed")
        for offset in range(1, 50):
            world.fetched(offset, 100)
        await wait_until_async(lambda: ends == [1, 50], "the others are flushed together")
        await world.work.close()
        assert not world.failures

    asyncio.run(story())


def test_an_observer_flushes_the_first_records_of_an_epoch_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power failure its log knows each epoch that its state may know."""

    async def story() -> None:
        monkeypatch.setattr(disk_work, "FLUSH_LATE_S", 3_600.0)
        world = World(tmp_path, acknowledges=False)
        ends = flushes_of(world, monkeypatch)
        world.fetched(0, 100)
        await wait_until_async(lambda: ends == [1], "the first record is flushed")
        world.fetched(1, 100)
        world.fetched(2, 100, epoch=2)
        await wait_until_async(lambda: ends == [1, 3], "the new epoch is flushed")
        world.fetched(3, 100, epoch=2)
        await world.work.close()
        assert world.storage.log.flushed_end_offset == 4
        assert not world.failures

    asyncio.run(story())
