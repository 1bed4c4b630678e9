"""What does a broker's own code cost, for a megabyte produced and a megabyte fetched?

    .venv/bin/python -m bench.bench_produce [--tiny] [--profile]

One process, one loop, no sockets, no disks: requests go through the handlers as bytes, objects into
a dictionary, commits to a coordinator in memory. So this is what Python pays; it is measured in
CPU time, and the floor beside it is what cannot be left out: one checksum and one copy of the
bytes. Records are 1 KiB.
"""

from __future__ import annotations

import asyncio
import cProfile
import os
import platform
import pstats
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from crc32c import crc32c

from diskless.produce.object_writer import WriterSettings
from raft.net.frames import Frame
from raft.net.header import RequestKind, parse_request_header, request_header
from records.batch import iter_batches
from records.batch_writer import build_batch
from records.codec import decode_message, encode_message
from records.rpc.fetch import FetchResponse
from records.rpc.produce import ProduceRequest
from tests.diskless.calling import Caller
from tests.diskless.cluster_world import WALL_MS, ClusterWorld
from tests.diskless.records_world import RecordsBroker, fetching

TINY: Final = "--tiny" in sys.argv
TOTAL_BYTES: Final = (2 if TINY else 64) * 1024 * 1024
RECORD_BYTES: Final = 1_024
BATCH_RECORDS: Final = (1, 16, 1_000)  # 1 KiB, 16 KiB, 1 MB
PARTITIONS: Final = 4
IN_FLIGHT: Final = 8  # Produce requests
FETCH_BYTES: Final = 1024 * 1024  # of one partition, as clients' default
_sent = ProduceRequest.TopicProduceData


def a_frame(records: int, partition: int, version: int = 9) -> bytes:
    """Return the bytes of a client's Produce request with one batch of `records` records."""
    value = os.urandom(RECORD_BYTES)
    data = build_batch(
        [(None, value, WALL_MS, ()) for _ in range(records)], base_offset=0, leader_epoch=-1
    )
    request = ProduceRequest(
        acks=-1,
        timeout_ms=30_000,
        topic_data=(
            _sent(
                name="t",
                partition_data=(_sent.PartitionProduceData(index=partition, records=data),),
            ),
        ),
    )
    kind = RequestKind.of(0, version, 9)
    return request_header(kind, 1, "bench") + encode_message(request, version)


def serve(broker: RecordsBroker, frame: Frame) -> Awaitable[bytes | None]:
    """Pass a request to the broker's handler, and return the awaitable response."""
    header = parse_request_header(frame, {0: 9, 1: 12})
    caller: Any = Caller()
    promised = broker.handlers[header.api_key].serve(caller, header, frame[header.body_at :])
    return caller.answer(promised)  # type: ignore[no-any-return]


async def produce(broker: RecordsBroker, frames: list[memoryview], count: int) -> None:
    """Send `count` Produce requests, with a limited number in flight."""
    free = asyncio.Semaphore(IN_FLIGHT * (1 if len(frames[0]) > 100_000 else 20))

    async def one(number: int) -> None:
        answer = await serve(broker, frames[number % PARTITIONS])
        assert answer is not None
        free.release()

    tasks = []
    for number in range(count):
        await free.acquire()
        tasks.append(asyncio.ensure_future(one(number)))
    await asyncio.gather(*tasks)


async def consume(broker: RecordsBroker, end_offset: int) -> int:
    """Fetch every partition to its end, and return the size of all batches in bytes."""
    size_bytes = 0
    for partition in range(PARTITIONS):
        offset = 0
        while offset < end_offset:
            kind = RequestKind.of(1, 12, 12)
            request = fetching("t", [(partition, offset)], max_bytes=FETCH_BYTES)
            frame = request_header(kind, 1, "bench") + encode_message(request, 12)
            answer = await serve(broker, frame)
            assert answer is not None
            offset, size = ends_at(answer)
            size_bytes += size
    return size_bytes


def ends_at(answer: bytes) -> tuple[int, int]:
    """Return the end offset of a Fetch response's last batch, and the bytes of its batches."""
    found = decode_message(FetchResponse, memoryview(answer)[5:], 12)
    data = found.responses[0].partitions[0].records or b""
    headers = [batch.header for batch in iter_batches(data, verify_crc=False)]
    assert headers, "nothing was there"
    return headers[-1].end_offset, len(data)


async def measure(records: int, profile: Callable[[str], Any]) -> None:
    """Measure and print produces and fetches of batches of `records` records."""
    async with ClusterWorld() as world:
        await world.create("t", partitions=PARTITIONS)
        broker = RecordsBroker(world, 1, settings=WriterSettings(commit_interval_ms=5))
        frames = [memoryview(a_frame(records, partition)) for partition in range(PARTITIONS)]
        total_bytes = min(TOTAL_BYTES, 4_000 * len(frames[0]))
        count = max(PARTITIONS, total_bytes // len(frames[0]) // PARTITIONS * PARTITIONS)
        with profile(f"produce, batches of {records} records"):
            begun = time.process_time()
            await produce(broker, frames, count)
            produced_s = time.process_time() - begun
        with profile(f"fetch, batches of {records} records"):
            begun = time.process_time()
            read_bytes = await consume(broker, count // PARTITIONS * records)
            consumed_s = time.process_time() - begun
        sent_bytes = count * len(frames[0])
        floor_s = floor(sent_bytes)
        print(
            f"batches of {records:>5} records: produce {produced_s / sent_bytes * 1e9:7.2f} ms/MB "
            f"({produced_s / count * 1e6:7.0f} us a request)   "
            f"fetch {consumed_s / read_bytes * 1e9:7.2f} ms/MB   "
            f"floor {floor_s / sent_bytes * 1e9:5.2f} ms/MB   "
            f"produce / floor {produced_s / floor_s:6.1f}",
            flush=True,
        )
        await broker.end()


def floor(size_bytes: int) -> float:
    """Return the CPU seconds to checksum and copy `size_bytes` bytes once: the lower bound."""
    data = os.urandom(1024 * 1024)
    begun = time.process_time()
    for _ in range(max(1, size_bytes // len(data))):
        crc32c(data)
        bytearray(data)
    return max(time.process_time() - begun, 1e-6)


class Profiled:
    """Prints where the time went, if that is asked for."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._profile = cProfile.Profile() if "--profile" in sys.argv else None

    def __enter__(self) -> None:
        if self._profile is not None:
            self._profile.enable()

    def __exit__(self, *_: object) -> None:
        if self._profile is not None:
            self._profile.disable()
            print(f"--- {self._what}")
            pstats.Stats(self._profile).sort_stats("tottime").print_stats(18)


async def main() -> None:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    print(f"commit={commit} python={platform.python_version()} machine={platform.machine()}")
    for records in BATCH_RECORDS:
        await measure(records, Profiled)


if __name__ == "__main__":
    asyncio.run(main())
