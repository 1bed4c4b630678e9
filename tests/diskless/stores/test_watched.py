"""A watched store notices within seconds that it takes no objects, in virtual time."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from diskless.stores import ByteRange, StorageError
from diskless.stores.directory import DirectoryStorage
from diskless.stores.faults import Fault, FaultRule, FaultyStore
from diskless.stores.memory import MemoryStore
from diskless.stores.watched import MAX_REASON, WatchedStore, probe_key
from raft.segments.files import File, Mode, RealFileSystem
from records.object_keys import ForeignKeyError, ObjectKeys
from tests.diskless.virtual_time import run

KEY = probe_key("esker", "c-1", 101)
TOLD_S = 5.0  # a fault is told within this time


class World:
    """A watched store in memory, whose faults a test decides."""

    def __init__(self) -> None:
        self.memory = MemoryStore(lambda: 0)
        self.faulty = FaultyStore(self.memory, Random(1), asyncio.sleep)
        self.watched = WatchedStore(self.faulty, KEY, clock=asyncio.get_running_loop().time)

    def fail(self, *rules: FaultRule) -> None:
        self.faulty.rules = rules


def story(tell: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        world = World()
        await world.watched.probe()
        world.watched.start()
        try:
            await tell(world)
        finally:
            await world.watched.close()

    run(whole)


@pytest.mark.parametrize("operation", ["upload", "fetch", "delete"])
@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.ERROR, Fault.THROTTLED, Fault.LOST_ANSWER])
def test_an_idle_store_that_refuses_an_operation_is_reported_as_a_fault_within_five_seconds(
    fault: Fault, operation: str
) -> None:
    async def tell(world: World) -> None:
        for phase_s in range(5):
            assert world.watched.fault is None
            await asyncio.sleep(phase_s)
            world.fail(FaultRule(fault=fault, operations=frozenset({operation})))
            await asyncio.sleep(TOLD_S)
            assert world.watched.fault is not None, f"{phase_s} s after a probe"
            world.fail()
            await asyncio.sleep(2)

    story(tell)


def test_an_object_store_that_hangs_is_reported_as_a_fault_within_eight_seconds() -> None:
    async def tell(world: World) -> None:
        world.fail(FaultRule(fault=Fault.SLOW, delay_s=3_600))
        await asyncio.sleep(8.6)
        assert "no answer" in (world.watched.fault or "")
        world.fail()
        await asyncio.sleep(6)  # a probe that began before hangs until its timeout
        assert world.watched.fault is None

    story(tell)


def test_a_failed_upload_stays_a_store_fault_until_an_upload_succeeds_even_if_probes_succeed() -> (
    None
):
    async def tell(world: World) -> None:
        world.fail(FaultRule(fault=Fault.ERROR, operations=frozenset({"upload"})))
        with pytest.raises(StorageError):
            await world.watched.upload("large", [b"x"], 1)
        world.fail()
        await asyncio.sleep(5)
        assert world.watched.fault == "large: 500 InternalError", "a probe is smaller"
        await world.watched.upload("other", [b"y"], 1)
        assert world.watched.fault is None

    story(tell)


def test_a_failed_upload_is_no_longer_reported_as_a_store_fault_after_ten_seconds() -> None:
    async def tell(world: World) -> None:
        world.fail(FaultRule(fault=Fault.ERROR, operations=frozenset({"upload"})))
        with pytest.raises(StorageError):
            await world.watched.upload("large", [b"x"], 1)
        world.fail()
        await asyncio.sleep(10.1)
        assert world.watched.fault is None
        await asyncio.sleep(5)
        before = world.watched.probes
        await asyncio.sleep(9)
        assert world.watched.probes - before <= 3, "probes are as seldom as before"

    story(tell)


def test_a_broker_does_not_probe_a_store_while_its_uploads_succeed() -> None:
    async def tell(world: World) -> None:
        before = world.watched.probes
        for number in range(30):
            await asyncio.sleep(1)
            await world.watched.upload(f"object-{number}", [b"x"], 1)
        assert world.watched.probes == before

    story(tell)


def test_a_store_reports_no_fault_for_an_upload_whose_object_id_is_in_use() -> None:
    async def tell(world: World) -> None:
        await world.watched.upload("object", [b"x"], 1)
        with pytest.raises(StorageError):
            await world.watched.upload("object", [b"y"], 1)
        assert world.watched.fault is None

    story(tell)


def test_a_store_probe_leaves_no_object_and_uses_a_key_that_is_no_object_id() -> None:
    async def tell(world: World) -> None:
        await asyncio.sleep(20)
        assert not world.memory.objects
        for prefix in ("esker", ""):
            keys = ObjectKeys(prefix=prefix, cluster_id="c-1", coordinator_partition=0)
            with pytest.raises(ForeignKeyError):
                keys.object_id(probe_key(prefix, "c-1", 101))

    story(tell)


def test_an_object_store_that_returns_bytes_that_were_not_uploaded_is_reported_as_a_fault() -> None:
    async def tell(world: World) -> None:
        world.fail(FaultRule(fault=Fault.DAMAGED, operations=frozenset({"fetch"})))
        await asyncio.sleep(TOLD_S)
        assert "other bytes" in (world.watched.fault or "")

    story(tell)


def test_the_reason_of_a_reported_store_fault_has_a_bounded_length() -> None:
    class Wordy(MemoryStore):
        async def upload(self, key: str, parts: Any, size_bytes: int) -> None:  # noqa: ARG002
            raise StorageError(key, "no " * 10_000)

    async def whole() -> None:
        store = WatchedStore(Wordy(lambda: 0), KEY, clock=asyncio.get_running_loop().time)
        await store.probe()
        assert len(store.fault or "") == MAX_REASON

    run(whole)


def test_a_store_that_raises_an_unknown_error_is_reported_as_a_fault_and_probed_again() -> None:
    class Broken(MemoryStore):
        works = False

        async def fetch(self, key: str, byte_range: ByteRange) -> Any:
            if not self.works:
                raise KeyError("a defect of somebody's store")
            return await super().fetch(key, byte_range)

    async def whole() -> None:
        broken = Broken(lambda: 0)
        store = WatchedStore(broken, KEY, clock=asyncio.get_running_loop().time)
        await store.probe()
        store.start()
        assert (store.fault or "").startswith("KeyError")
        broken.works = True
        await asyncio.sleep(2)
        assert store.fault is None
        await store.close()

    run(whole)


# --- a directory ---------------------------------------------------------------------------------


class Full(RealFileSystem):
    """A file system that has no room for new files."""

    def open(self, path: Path, mode: Mode) -> File:
        if mode is Mode.CREATE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().open(path, mode)


async def fault_of(store: DirectoryStorage) -> str:
    watched = WatchedStore(store, KEY, clock=asyncio.get_running_loop().time)
    try:
        await watched.probe()
        return watched.fault or ""
    finally:
        await watched.close()


@pytest.mark.parametrize("inodes", [0, 100])
def test_a_full_object_directory_is_reported_as_a_fault_with_its_path(
    tmp_path: Path, inodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DirectoryStorage(tmp_path, Full())
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_files=1_000, f_favail=inodes))
    (tmp_path / ".esker-objects").write_text("store.id=1\n")
    fault = asyncio.run(fault_of(store))
    assert f"No space left on device in {tmp_path}" in fault
    assert ("no inodes left" in fault) == (inodes == 0)


def test_a_missing_object_directory_is_reported_as_a_fault(tmp_path: Path) -> None:
    directory = tmp_path / "objects"

    async def whole() -> None:
        store = DirectoryStorage(directory)
        await store.begin(is_empty=True)
        directory.rename(tmp_path / "elsewhere")
        assert "is away" in await fault_of(store)

    asyncio.run(whole())
