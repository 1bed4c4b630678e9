"""What does a checkpoint cost the node that takes it, and how fast is one taken over?

    python -m bench.bench_checkpoint [--tiny]

In one process, on its own event loop, without a network. Generation: the key-value machine's state
is frozen and written by `MachineHost`, first while nothing else happens, then while a thread pokes
the loop every 2 ms and notes how long it takes to answer; beside it the same poking of an idle
loop, and how much the process grew. Taking over: the checkpoint is downloaded (from the file beside
it), verified, published, and loaded into an empty machine; beside it the floor, the same bytes
written and flushed once.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import secrets
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from raft.interfaces import draft_values
from raft.segments.files import Mode, RealFileSystem
from records.types import OffsetAndEpoch
from snapshot.host import MachineHost
from snapshot.kv import KeyValueMachine
from snapshot.policy import SnapshotPolicy, SnapshotSettings
from snapshot.store import SnapshotStore
from tests.doubles.memory_log import MemoryLog, SilentTicket

SIZES: Final = ((1_000_000, 40), (1_000_000, 1_000))  # records, bytes of a value
TINY: Final = ((2_000, 40),)
POKE_EVERY_S: Final = 0.002
PIECE_BYTES: Final = 1024 * 1024
NEVER: Final = SnapshotPolicy(SnapshotSettings(max_bytes_between=1 << 60, max_interval_ms=0))


class AsyncioLoop:
    """A `snapshot.generation.Loop`."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.call_soon = self.loop.call_soon
        self.call_later = self.loop.call_later
        self._jobs: SimpleQueue[tuple[Callable[[], None], Callable[[], None]]] = SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()

    def now_ms(self) -> float:
        return time.perf_counter() * 1_000

    def offload(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        self._jobs.put((job, done))

    def fail(self, error: BaseException) -> None:
        raise error

    def _work(self) -> None:
        while True:
            job, done = self._jobs.get()
            job()
            self.loop.call_soon_threadsafe(done)


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 1e6


async def poked(loop: asyncio.AbstractEventLoop, work: Awaitable[object]) -> tuple[float, float]:
    """Return p50 and p99 in ms of the event loop's response times while `work` runs."""
    delays: list[float] = []
    over = threading.Event()

    def answer(asked: float, answered: threading.Event) -> None:
        delays.append(time.perf_counter() - asked)
        answered.set()

    def poke() -> None:
        while not over.is_set():
            answered = threading.Event()
            loop.call_soon_threadsafe(answer, time.perf_counter(), answered)
            answered.wait()
            time.sleep(POKE_EVERY_S)

    poking = loop.run_in_executor(None, poke)
    await work
    over.set()
    await poking
    delays.sort()
    return delays[len(delays) // 2] * 1e3, delays[int(len(delays) * 0.99)] * 1e3


async def generate(host: MachineHost) -> OffsetAndEpoch:
    future: asyncio.Future[OffsetAndEpoch | Exception] = asyncio.get_running_loop().create_future()
    host.take_now(future.set_result)
    answer = await future
    if isinstance(answer, Exception):
        raise answer
    return answer


def take_over(store: SnapshotStore, source: SnapshotStore, snapshot_id: OffsetAndEpoch) -> float:
    """Return the seconds to download, verify and publish a checkpoint of another store."""
    began = time.perf_counter()
    download = store.receive(snapshot_id)
    complete = False
    while not complete:
        piece = source.read(snapshot_id, download.position, PIECE_BYTES)
        assert piece is not None, "the checkpoint is gone"
        complete = download.take(download.position, piece)
    download.publish()
    store.added(snapshot_id)
    return time.perf_counter() - began


def floor(directory: Path, size_bytes: int) -> float:
    """Return the seconds to write `size_bytes` to a file and flush them: the lower bound."""
    piece = os.urandom(PIECE_BYTES)
    began = time.perf_counter()
    file = RealFileSystem().open(directory / "floor", Mode.CREATE)
    for position in range(0, size_bytes, PIECE_BYTES):
        file.write(position, piece)
    file.fdatasync()
    file.close()
    return time.perf_counter() - began


async def measure(directory: Path, count: int, value_bytes: int) -> None:
    loop = AsyncioLoop()
    store = SnapshotStore(RealFileSystem(), directory, now_ms=loop.now_ms)
    machine, log = KeyValueMachine(), MemoryLog(snapshots=store)
    values = {b"key-%09d" % i: os.urandom(8) * (value_bytes // 8) for i in range(count)}
    machine.fill(values)
    epoch = log.elect()
    host = MachineHost(log, machine, store, policy=NEVER, loop=loop, unique=draw)
    host.start()
    idle = await poked(loop.loop, asyncio.sleep(0.5))
    began = time.perf_counter()
    await generate(host)
    quiet_s = time.perf_counter() - began
    log.propose(SilentTicket(), epoch, draft_values([b"one more"], timestamp_ms=0))
    before_mb, began = resident_mb(), time.perf_counter()
    busy = await poked(loop.loop, generate(host))
    busy_s, grown_mb = time.perf_counter() - began, resident_mb() - before_mb
    print(
        f"{count} values of {value_bytes} bytes: generated in {quiet_s / count * 1e6:.1f} s per "
        f"million, poked {busy_s / count * 1e6:.1f}; the loop answers in p50 {busy[0]:.2f} ms, "
        f"p99 {busy[1]:.2f} ms (idle {idle[0]:.2f}, {idle[1]:.2f}); grown by {grown_mb:.1f} MB"
    )
    host.stop()
    newest = store.newest
    assert newest is not None, "nothing was generated"
    size_bytes = store.size_bytes(newest) or 0
    machine.reset()
    values.clear()
    there = directory / "there"
    there.mkdir()
    other = SnapshotStore(RealFileSystem(), there, now_ms=loop.now_ms)
    taken_s = await loop.loop.run_in_executor(None, take_over, other, store, newest)
    follower = MachineHost(
        MemoryLog(snapshots=other), KeyValueMachine(), other, policy=NEVER, loop=loop, unique=draw
    )
    began = time.perf_counter()
    follower.start()
    while not follower.loaded:
        await asyncio.sleep(0)
    load_s = time.perf_counter() - began
    follower.stop()
    floor_s = floor(there, size_bytes)
    mb = size_bytes / 1e6
    print(
        f"  {mb:.0f} MB: downloaded, verified, published {mb / taken_s:.0f} MB/s, loaded "
        f"{mb / load_s:.0f} MB/s, together {mb / (taken_s + load_s):.0f} MB/s; floor (write, "
        f"flush) {mb / floor_s:.0f} MB/s, ratio {floor_s / (taken_s + load_s):.2f}"
    )


def draw() -> int:
    return 1 + secrets.randbits(62)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tiny", action="store_true", help="a small state, to see that it runs")
    sizes = TINY if parser.parse_args().tiny else SIZES
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    print(f"commit {commit or '?'}, Python {platform.python_version()}, {os.cpu_count()} cores")
    for count, value_bytes in sizes:
        directory = Path(tempfile.mkdtemp(prefix="bench-checkpoint-", dir=Path.cwd()))
        try:
            asyncio.run(measure(directory, count, value_bytes))
        finally:
            shutil.rmtree(directory)


if __name__ == "__main__":
    main()
