"""What no quorum on this machine can beat: three disks' flush at once, and a round trip.

`python -m bench.peers.floor DIRECTORY SECONDS` is one of the three flushing processes.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from raft.net import loop_factory

BLOCK: Final = bytes(4096)
PING: Final = bytes(104)


def flushes(directory: Path, seconds: float) -> float:
    """Return the median milliseconds of a 4 KiB append followed by fdatasync."""
    times = []
    fd = os.open(directory / f"floor-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        os.write(fd, BLOCK)
        os.fdatasync(fd)
        times.append(time.perf_counter() - began)
    os.close(fd)
    return statistics.median(times) * 1e3


def parallel_flush_ms(directory: Path, *, processes: int = 3, seconds: float = 1.0) -> float:
    """Return the median milliseconds of an append and fdatasync in concurrent processes."""
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "bench.peers.floor", str(directory), str(seconds)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(processes)
    ]
    return statistics.median(float(process.communicate()[0]) for process in running)


def round_trip_ms(*, count: int = 3_000) -> float:
    """Return the median ms of a small request and its echo over loopback in this process."""
    factory = loop_factory() or asyncio.new_event_loop
    loop = factory()
    try:
        return loop.run_until_complete(_round_trips(count))
    finally:
        loop.close()


class _Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)  # type: ignore[attr-defined]


class _Ping(asyncio.Protocol):
    def __init__(self, count: int, done: asyncio.Future[list[float]]) -> None:
        self.times: list[float] = []
        self.count, self.done = count, done

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._send()

    def _send(self) -> None:
        self.began = time.perf_counter()
        self.transport.write(PING)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:  # noqa: ARG002
        self.times.append(time.perf_counter() - self.began)
        if len(self.times) < self.count:
            self._send()
        else:
            self.done.set_result(self.times)


async def _round_trips(count: int) -> float:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    done: asyncio.Future[list[float]] = loop.create_future()
    await loop.create_connection(lambda: _Ping(count, done), "127.0.0.1", port)
    times = await done
    server.close()
    return statistics.median(times) * 1e3


if __name__ == "__main__":
    print(flushes(Path(sys.argv[1]), float(sys.argv[2])))
