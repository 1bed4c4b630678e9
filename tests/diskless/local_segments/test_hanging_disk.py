"""A disk that hangs: nobody waits for it, neither consumers nor the broker's start and end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest

from diskless.fetch.local_segments import cache, segment, write_behind
from diskless.fetch.local_segments.cache import LocalSegments, LocalSegmentsSettings
from diskless.fetch.local_segments.format import TopicPartition
from diskless.fetch.runs_reader import FinalBatches, Run
from records.batch_writer import build_batch
from tests.waiting import wait_until_async

PARTITION = TopicPartition(UUID(int=5), 0)
HANGS_S = 0.3


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
    monkeypatch.setattr(cache, "HANGS_S", HANGS_S)
    monkeypatch.setattr(cache, "BEGIN_S", HANGS_S)
    monkeypatch.setattr(write_behind, "FREE_BYTES", 0)
    found = Disk()
    yield found
    found.resume.set()


def with_segments(directory: Path, work: Callable[[LocalSegments], Awaitable[None]]) -> float:
    """Run `work` with local segments whose threads are real; return the seconds of their close."""

    async def main() -> float:
        settings = LocalSegmentsSettings(directory / "cache", "c-1", 1)
        segments = LocalSegments(settings, wall_ms=lambda: 0)
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


def test_a_read_that_hangs_is_answered_from_the_store_and_the_next_one_at_once(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def work(segments: LocalSegments) -> None:
        found = await filled(segments)

        async def read() -> bool:
            answer = await segments.read(PARTITION, [found.run], from_offset=0, max_bytes=1_000)
            assert answer.is_missing or bytes(answer.data) == bytes(found.data)
            return not answer.is_missing

        assert await read()
        monkeypatch.setattr(cache, "read_cached", lambda *_: 0)  # not in the page cache
        disk.hold(monkeypatch, cache, "read_fully")
        assert not await read()
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


def test_a_start_at_a_disk_that_hangs_goes_on_without_local_segments(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    disk.hold(monkeypatch, cache, "load")
    segment_file = tmp_path / "cache" / f"{PARTITION.directory_name}" / f"{0:020d}.runs"

    async def work(segments: LocalSegments) -> None:
        expected = f"local segments are off, {tmp_path / 'cache'}: the disk takes longer than"
        assert segments.fault is not None
        assert segments.fault.startswith(expected)
        answer = await segments.read(PARTITION, [a_run().run], from_offset=0, max_bytes=1_000)
        assert answer.is_missing

    with monkeypatch.context() as later:
        later.setattr(cache, "load", segment.load)
        with_segments(tmp_path, filled)  # type: ignore[arg-type]
    assert segment_file.exists()
    assert with_segments(tmp_path, work) < 10


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
