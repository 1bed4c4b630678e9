"""GETs and speed of one consumer that reads 1,000 partitions from their beginning.

    .venv/bin/python -m bench.bench_catch_up [--json] [--tiny]

A broker writes objects in which each partition has one batch, and merges them as the product does:
its planner, rewriter and coordinator run in this process. A second broker, with an empty cache,
serves the consumer before and after merging. Its store takes 30 ms to the first byte of each GET
and then sends 100 MB/s on each connection; that time is virtual. The consumer asks for all
partitions in each Fetch, as Kafka's consumer does at its default sizes: 1 MiB of a partition, 50
MiB of a response; partitions with records in a response go to the end of the next request.

The columns: GETs per MB served; bytes read from the store per byte served; MB/s in virtual time,
which is the store's; and MB/s if the CPU time of one core is added to that, with nothing running
beside: broker, consumer and simulation.
"""

from __future__ import annotations

import asyncio
import json
import platform
import time
from argparse import ArgumentParser
from random import Random
from typing import Final, NamedTuple

from records.batch import parse_header
from records.batch_writer import build_batch
from records.rpc.fetch import FetchRequest
from records.rpc.produce import ProduceRequest, ProduceResponse
from tests.diskless.calling import call
from tests.diskless.cluster_world import ClusterWorld
from tests.diskless.records_world import RecordsBroker
from tests.diskless.test_read_ahead import merge, merging, slow_broker
from tests.diskless.virtual_time import run

PARTITION_BYTES: Final = 1 << 20  # max.partition.fetch.bytes
RESPONSE_BYTES: Final = 50 << 20  # fetch.max.bytes
WRITE_BYTES: Final = 4 << 20  # of one Produce request


class Row(NamedTuple):
    """What one consumer's reading of all partitions cost."""

    partitions: int
    batch_bytes: int
    objects: int  # that hold the partitions' batches
    merged: bool
    served_mb: float
    gets_per_mb: float
    store_bytes_per_byte: float
    store_mb_s: float
    total_mb_s: float


async def write(broker: RecordsBroker, partitions: int, objects: int, batch_bytes: int) -> None:
    """Write objects that have one batch of each partition."""
    sent, random = ProduceRequest.TopicProduceData, Random(1)
    now_ms = broker.world.wall_ms()
    at_once = max(1, WRITE_BYTES // batch_bytes)
    for _ in range(objects):
        value = random.randbytes(batch_bytes)
        data = bytes(build_batch([(None, value, now_ms, ())], base_offset=0, leader_epoch=-1))
        chunks = [
            range(first, min(partitions, first + at_once))
            for first in range(0, partitions, at_once)
        ]
        requests = [
            ProduceRequest(
                transactional_id=None,
                acks=-1,
                timeout_ms=30_000,
                topic_data=(
                    sent(
                        name="t",
                        partition_data=tuple(
                            sent.PartitionProduceData(index=index, records=data) for index in chunk
                        ),
                    ),
                ),
            )
            for chunk in chunks
        ]
        answers = await asyncio.gather(
            *(call(broker.handlers, each, ProduceResponse, version=12) for each in requests)
        )
        for answer in answers:
            for one in answer.responses[0].partition_responses:
                assert one.error_code == 0, one


def end_offset(records: bytes | memoryview) -> int:
    """Return the offset behind the last whole batch, from the batches' headers alone."""
    position, end = 0, 0
    while position < len(records):
        header = parse_header(records, position)
        position, end = position + header.size_bytes, header.end_offset
    return end


async def consume(broker: RecordsBroker, partitions: int) -> int:
    """Read all partitions from their beginning; return the bytes that the broker served."""
    asked = FetchRequest.FetchTopic
    offsets, order, served = dict.fromkeys(range(partitions), 0), list(range(partitions)), 0
    while order:
        request = FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=RESPONSE_BYTES,
            topics=(
                asked(
                    topic="t",
                    partitions=tuple(
                        asked.FetchPartition(
                            partition=index,
                            fetch_offset=offsets[index],
                            partition_max_bytes=PARTITION_BYTES,
                        )
                        for index in order
                    ),
                ),
            ),
        )
        answer = await broker.fetch_all(request)
        read, ended = [], set()
        for found in answer.responses[0].partitions:
            assert found.error_code == 0, found
            if found.records:
                served += len(found.records)
                offsets[found.partition_index] = end_offset(found.records)
                read.append(found.partition_index)
            if offsets[found.partition_index] >= found.high_watermark:
                ended.add(found.partition_index)
        served_now = set(read)
        unread = [index for index in order if index not in served_now]
        order = [index for index in unread + read if index not in ended]
    return served


async def measure(
    world: ClusterWorld, writer: RecordsBroker, partitions: int, batch_bytes: int, merged: bool
) -> Row:
    """Let a consumer read all partitions from a second broker whose cache is empty."""
    reader, _ = slow_broker(world, writer)
    loop, counters = asyncio.get_running_loop(), reader.cache.counters
    began_s, began_cpu_s = loop.time(), time.process_time()
    served = await consume(reader, partitions)
    took_s, took_cpu_s = loop.time() - began_s, time.process_time() - began_cpu_s
    keys = {
        run.object_id
        for leader in world.leaders
        for runs in leader.state.runs.values()
        for run in runs
    }
    row = Row(
        partitions, batch_bytes, len(keys), merged, served / 1e6,
        counters.gets / (served / 1e6), counters.get_bytes / served, served / 1e6 / took_s,
        served / 1e6 / (took_s + took_cpu_s),
    )  # fmt: skip
    await reader.end()
    return row


async def rows(partitions: int, objects: int, batch_bytes: int) -> list[Row]:
    """Measure one shape of topic before and after merging."""
    async with ClusterWorld(brokers=(1, 2), esker_version=3) as world:
        writer = merging(world)
        await world.create("t", partitions)
        await write(writer, partitions, objects, batch_bytes)
        found = [await measure(world, writer, partitions, batch_bytes, False)]
        await merge(world, writer)
        found.append(await measure(world, writer, partitions, batch_bytes, True))
        await writer.end()
    return found


SHAPES: Final = ((1_000, 100, 1_000), (1_000, 50, 4_000), (1_000, 60, 16_000))
TINY: Final = ((8, 5, 2_000),)


def main() -> None:
    words = ArgumentParser(prog="python -m bench.bench_catch_up", description=__doc__)
    words.add_argument("--json", action="store_true", help="print the rows as JSON")
    words.add_argument("--tiny", action="store_true", help="use little data; ends in seconds")
    chosen = words.parse_args()
    found = []
    if not chosen.json:
        print(f"Python {platform.python_version()}, {platform.machine()}")
        print(
            "partitions  batch B  objects  merged  served MB  GET/MB  store B/B  store MB/s  MB/s"
        )
    for shape in TINY if chosen.tiny else SHAPES:
        for row in run(lambda shape=shape: rows(*shape)):
            found.append(row._asdict())
            if not chosen.json:
                print(
                    f"{row.partitions:10}  {row.batch_bytes:7}  {row.objects:7}  "
                    f"{'yes' if row.merged else 'no':>6}  {row.served_mb:9.1f}  "
                    f"{row.gets_per_mb:6.2f}  {row.store_bytes_per_byte:9.2f}  "
                    f"{row.store_mb_s:10.1f}  {row.total_mb_s:4.0f}",
                    flush=True,
                )
    if chosen.json:
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
