"""A disk that hangs delays neither Fetches nor the start and shutdown of a broker for long."""

from __future__ import annotations

import asyncio
import errno
import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from diskless.fetch.local_segments import cache, segment, segment_disk, write_behind
from diskless.fetch.local_segments.cache import LocalSegments, LocalSegmentsSettings
from diskless.fetch.local_segments.directory import CacheDirectoryError
from diskless.fetch.local_segments.disk_threads import DiskThreads
from diskless.fetch.local_segments.format import TopicPartition
from diskless.fetch.runs_reader import FinalBatches, Run
from records.batch_writer import build_batch
from tests.waiting import wait_until, wait_until_async

PARTITION = TopicPartition(UUID(int=5), 0)
HANGS_S = 1.0


class Disk:
    """Holds calls of one function until `resume`."""

    def __init__(self) -> None:
        self.is_held = threading.Event()
        self.resume = threading.Event()

    def hold(self, monkeypatch: pytest.MonkeyPatch, module: object, name: str) -> None:
        call = getattr(module, name)

        def held(*args: object) -> object:
            self.is_held.set()
            self.resume.wait(60)
            return call(*args)

        monkeypatch.setattr(module, name, held)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    monkeypatch.setattr(segment_disk, "HANGS_S", HANGS_S)
    monkeypatch.setattr(cache, "HANGS_S", HANGS_S)
    monkeypatch.setattr(segment_disk, "BEGIN_S", HANGS_S)
    monkeypatch.setattr(write_behind, "FREE_BYTES", 0)
    found = Disk()
    yield found
    found.resume.set()


def made(directory: Path) -> LocalSegments:
    settings = LocalSegmentsSettings(directory / "cache", "c-1", 1)
    return LocalSegments(settings, wall_ms=lambda: 0)


def with_segments(directory: Path, work: Callable[[LocalSegments], Awaitable[None]]) -> float:
    """Run `work` with local segments whose threads are real; return the seconds of their close."""

    async def main() -> float:
        segments = made(directory)
        await segments.begin()
        await work(segments)
        began = time.monotonic()
        await segments.close()
        return time.monotonic() - began

    return asyncio.run(main())


def a_run() -> FinalBatches:
    data = bytes(build_batch([(None, b"value", 1, ())], base_offset=0, leader_epoch=0))
    run = Run("t/1", 0, len(data), 0, 0, 0, -1)
    return FinalBatches(run, 0, [(1, len(data))], memoryview(data))


async def filled(segments: LocalSegments) -> FinalBatches:
    found = a_run()
    segments.fill(PARTITION, [found], is_tail=True)
    await wait_until_async(lambda: segments.counters.written_bytes)
    return found


def test_a_write_that_hangs_is_a_fault_and_the_close_does_not_wait_for_it(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def work(segments: LocalSegments) -> None:
        disk.hold(monkeypatch, write_behind, "write")
        segments.fill(PARTITION, [a_run()], is_tail=True)
        assert segments.fault is None
        await wait_until_async(lambda: segments.fault)
        assert segments.fault == f"the disk of local segments hangs, {tmp_path / 'cache'}"

    assert with_segments(tmp_path, work) < 10


@pytest.mark.parametrize("is_one_call", [True, False], ids=["one call", "many short calls"])
def test_a_read_that_hangs_is_answered_from_the_store_and_the_next_one_at_once(
    is_one_call: bool, disk: Disk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if not is_one_call:  # behind which the read waits for a thread
        monkeypatch.setattr(DiskThreads, "longest_running_s", 0.0)

    async def work(segments: LocalSegments) -> None:
        found = await filled(segments)

        async def read() -> bool:
            answer = await segments.read(PARTITION, [found.run], from_offset=0, max_bytes=1_000)
            assert answer.is_missing or bytes(answer.data) == bytes(found.data)
            return not answer.is_missing

        assert await read()
        assert segments.holds(PARTITION, found.run)
        monkeypatch.setattr(segment_disk, "read_cached", lambda *_: 0)  # not in the page cache
        disk.hold(monkeypatch, segment_disk, "read_fully")
        assert not await read()
        assert not segments.holds(PARTITION, found.run)  # a Fetch reads all runs from the store
        calls = disk.is_held
        calls.clear()
        assert not await read()
        assert not calls.is_set()  # it did not try
        assert segments.fault
        assert len(segments) == 1  # it is not discarded
        disk.resume.set()
        await wait_until_async(lambda: segments.fault is None)
        assert await read()

    with_segments(tmp_path, work)


@pytest.mark.usefixtures("disk")
def test_an_error_of_the_disk_that_says_timed_out_discards_the_segment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ETIMEDOUT, "Connection timed out")

    async def work(segments: LocalSegments) -> None:
        found = await filled(segments)
        monkeypatch.setattr(segment_disk, "open_and_read", refuse)
        answer = await segments.read(PARTITION, [found.run], from_offset=0, max_bytes=1_000)
        assert answer.is_missing
        assert segments.fault is None
        assert not len(segments)

    with_segments(tmp_path, work)


def test_a_start_at_a_disk_that_hangs_goes_on_and_keeps_the_directory_until_its_call_ends(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with_segments(tmp_path, filled)  # type: ignore[arg-type]
    (segment_file,) = (tmp_path / "cache").glob(f"{PARTITION.directory_name}/*.runs")
    held = monkeypatch.context()
    disk.hold(held.__enter__(), segment_disk, "load")

    async def work(segments: LocalSegments) -> None:
        expected = f"local segments are off, {tmp_path / 'cache'}: the disk has not answered for"
        assert segments.fault is not None
        assert segments.fault.startswith(expected)
        answer = await segments.read(PARTITION, [a_run().run], from_offset=0, max_bytes=1_000)
        assert answer.is_missing
        held.__exit__(None, None, None)
        with pytest.raises(CacheDirectoryError, match="used by another process"):
            await made(tmp_path).begin()
        disk.resume.set()
        later = made(tmp_path)
        while True:
            try:
                await later.begin()
            except CacheDirectoryError:
                later = made(tmp_path)
                await asyncio.sleep(0.01)
            else:
                break
        assert len(later) == 1
        await later.close()

    assert with_segments(tmp_path, work) < 10
    assert segment_file.exists()


def test_a_start_waits_as_long_as_segments_are_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(segment_disk, "BEGIN_S", 1.5)
    monkeypatch.setattr(write_behind, "FREE_BYTES", 0)
    partitions = [TopicPartition(UUID(int=5), index) for index in range(3)]

    async def fill(segments: LocalSegments) -> None:
        for partition in partitions:
            segments.fill(partition, [a_run()], is_tail=True)

    with_segments(tmp_path, fill)

    def load_slowly(*args: Any) -> Any:
        time.sleep(0.6)
        return segment.load(*args)

    monkeypatch.setattr(segment_disk, "load", load_slowly)

    async def work(segments: LocalSegments) -> None:
        assert segments.fault is None
        assert len(segments) == 3

    with_segments(tmp_path, work)


class Thing:
    """Can be referred to weakly."""


def test_an_idle_thread_keeps_nothing_of_its_last_call_alive() -> None:
    threads = DiskThreads("test", 1)
    thing = Thing()
    assert threads.submit(id, thing).result() == id(thing)
    known = weakref.ref(thing)
    del thing
    wait_until(lambda: gc.collect() >= 0 and known() is None, "the call is forgotten")
    threads.shutdown()
    with pytest.raises(RuntimeError, match="after the shutdown"):
        threads.submit(int)


def test_a_thread_that_cannot_be_started_is_started_by_the_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threads = DiskThreads("test", 1)
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            threads.submit(int)
    assert threads.submit(int, "7").result(60) == 7
    threads.shutdown()


def test_a_process_does_not_wait_for_a_call_that_hangs_at_its_end() -> None:
    program = """
import time
from diskless.fetch.local_segments.disk_threads import DiskThreads
threads = DiskThreads("test", 1)
assert threads.submit(int, "7").result() == 7
threads.submit(time.sleep, 300)
threads.shutdown()
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    assert done.returncode == 0
