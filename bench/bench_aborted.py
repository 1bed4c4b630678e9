"""Measures what aborted transactions cost a consumer of committed records that catches up.

    .venv/bin/python -m bench.bench_aborted [--transactions 1000000] [--fetches 300] [--tiny]

Three quorum nodes and one broker with objects in a directory. Two partitions get the same batches
of 1 KiB, each a transaction of its own: those of one are aborted, those of the other are committed.
That is as much as consumers fetch, and a tenth more. The transactions behind it are aborted ones of
the first partition, whose batches have an empty value.

A second broker, which is played, writes the objects and commits them; the markers go straight to
the batch coordinator. Two sets of producers take turns: one's markers are written beside the
other's commit. Then a consumer with isolation.level=read_committed fetches both partitions
from their beginning, 1 MiB at a time and in turn; the times of its requests are printed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import platform
import statistics
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from bench.bench_broker import esker
from bench.bench_defaults import DEFAULT_INTERVAL
from coordinator.batch.client import CoordinatorClient
from coordinator.batch.transactions import ABORTED, COMMITTED
from raft.net.runner import run
from records.batch import TRANSACTIONAL
from records.batch_writer import build_batch
from records.object_keys import ObjectKeys
from records.rpc.batch_coordinator import CommitBatch, CommitBatchesRequest, TransactionalBatch
from records.rpc.fetch import FetchRequest, FetchResponse
from records.rpc.objects import AcquireObjectLeaseRequest
from records.rpc.transaction_markers import TransactionMarker, WriteTransactionMarkersRequest
from records.wal import APPENDED, PartitionBatches, build_object
from tests.clients.cluster import EskerCluster
from tests.coordinator.scripted_brokers import create_topic, register
from tests.raft.driver.client import Client

WRITER: Final = 99
TOPIC: Final = "ended"
OUTCOMES: Final = (ABORTED, COMMITTED)
"""The outcome of each partition's transactions; the partition is the index."""

IN_AN_OBJECT: Final = 1_000  # transactions of each partition, each of a producer of its own
SETS: Final = 2  # of producers, which take turns
READ: Final = bytes(950)  # the value in a batch that consumers fetch
UNREAD: Final = b""
FETCH_BYTES: Final = 1 << 20
FETCH_VERSION: Final = 12
READ_COMMITTED: Final = 1

Topic = CommitBatchesRequest.Topic


class Round(NamedTuple):
    """The transactions of one object: one of each producer of a set, in some partitions."""

    number: int  # of the producers' transaction, from 0
    producers: range
    value: bytes
    partitions: range


def rounds(transactions: int, fetches: int) -> list[Round]:
    """Plan the objects: first what consumers fetch, then aborted transactions up to the number."""
    read = min(transactions, fetches * FETCH_BYTES * 11 // 10 // len(READ))
    planned = []
    for at in range(-(-transactions // IN_AN_OBJECT)):
        number, first = at // SETS, at % SETS * IN_AN_OBJECT
        producers = range(first, first + IN_AN_OBJECT)
        is_read = at * IN_AN_OBJECT < read
        planned.append(
            Round(number, producers, READ, range(len(OUTCOMES)))
            if is_read
            else Round(number, producers, UNREAD, range(1))
        )
    return planned


async def write(cluster: EskerCluster, planned: Sequence[Round]) -> None:
    """Write the rounds' objects in order, commit them, and end their transactions."""
    addresses = cluster.controllers
    epoch = (await register(addresses, WRITER))[WRITER]
    topic_id = await create_topic(addresses, TOPIC, partitions=len(OUTCOMES))
    client = CoordinatorClient(addresses)
    ends: deque[asyncio.Task[None]] = deque()
    try:
        lease = await client.call(
            AcquireObjectLeaseRequest(
                coordinator_partition=0, broker_id=WRITER, broker_epoch=epoch,
                object_count=len(planned),
            )
        )  # fmt: skip
        assert not lease.error_code, lease
        for at, one in enumerate(planned):
            if len(ends) == SETS:  # this set's former transactions
                await ends.popleft()
            request = store(
                cluster, one, topic_id, lease.first_object_id + at, lease.lease_id, epoch
            )
            answer = await client.call(request)
            assert not answer.error_code, answer
            failed = {
                one.error_code for part in answer.topics[0].partitions for one in part.results
            }
            assert failed == {0}, failed
            ends.append(asyncio.create_task(end(client, topic_id, one)))
        await asyncio.gather(*ends)
    finally:
        await client.close()


def store(
    cluster: EskerCluster, one: Round, topic_id: UUID, object_id: int, lease_id: int, epoch: int
) -> CommitBatchesRequest:
    """Write a round's object into the directory; return the request that commits it."""
    now_ms = time.time_ns() // 1_000_000
    batches = [
        bytes(build_batch([(None, one.value, now_ms, ())], base_offset=0, leader_epoch=-1,
                          attributes=TRANSACTIONAL, producer_id=producer, producer_epoch=0,
                          base_sequence=one.number))
        for producer in one.producers
    ]  # fmt: skip
    keys = ObjectKeys(prefix="", cluster_id=cluster.cluster_id, coordinator_partition=0)
    parts, size_bytes = build_object(
        [PartitionBatches(topic_id, index, batches, len(batches)) for index in one.partitions],
        cluster_id=cluster.cluster_id, object_id=object_id, broker_id=WRITER, broker_epoch=epoch,
    )  # fmt: skip
    path = cluster.store / keys.key(object_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(parts))
    described = tuple(describe(one, [len(batch) for batch in batches], now_ms))
    return CommitBatchesRequest(
        broker_id=WRITER, broker_epoch=epoch, lease_id=lease_id, object_id=object_id,
        object_format=APPENDED, object_size=size_bytes,
        topics=(Topic(topic_id=topic_id, partitions=described),),
        transactional=tuple(
            TransactionalBatch(index, one.number, 1, now_ms)
            for index in range(len(batches) * len(one.partitions))
        ),
    )  # fmt: skip


def describe(one: Round, sizes: Sequence[int], now_ms: int) -> Iterator[Topic.Partition]:
    """Describe the batches of a round's object, partition by partition."""
    places = itertools.accumulate((size for _ in one.partitions for size in sizes), initial=0)
    for index in one.partitions:
        yield Topic.Partition(
            partition_index=index,
            batches=tuple(
                CommitBatch(
                    next(places), size, 0, 0, now_ms, 0, producer, 0, one.number, one.number
                )
                for producer, size in zip(one.producers, sizes, strict=True)
            ),
        )


async def end(client: CoordinatorClient, topic_id: UUID, one: Round) -> None:
    """End the transactions of a round."""
    answer = await client.call(
        WriteTransactionMarkersRequest(
            coordinator_partition=0,
            topic_ids=(topic_id,),
            markers=tuple(
                TransactionMarker(0, index, producer, 0, one.number, OUTCOMES[index], 1)
                for index in one.partitions
                for producer in one.producers
            ),
        )
    )
    assert not answer.error_code, answer
    assert not any(answer.marker_error_codes), set(answer.marker_error_codes)


class Reader:
    """Fetches one partition from its beginning, over a connection of its own."""

    def __init__(self, address: tuple[str, int], partition: int) -> None:
        self._wire = Client(*address, timeout_s=60)
        self._partition = partition
        self._offset = 0
        self.times_ms: list[float] = []
        self.aborted = self.bytes = 0

    def fetch(self) -> None:
        """Fetch the next MiB, and note the time until the response is there."""
        asked = FetchRequest.FetchTopic
        place = asked.FetchPartition(
            partition=self._partition, fetch_offset=self._offset, partition_max_bytes=FETCH_BYTES
        )
        request = FetchRequest(
            max_wait_ms=500, min_bytes=1, max_bytes=FETCH_BYTES, isolation_level=READ_COMMITTED,
            topics=(asked(topic=TOPIC, partitions=(place,)),),
        )  # fmt: skip
        began = time.perf_counter()
        answer = self._wire.ask(request, FetchResponse, FETCH_VERSION)
        self.times_ms.append((time.perf_counter() - began) * 1e3)
        (found,) = answer.responses[0].partitions
        assert not found.error_code, found
        assert found.records, "the partition has no more records: fewer fetches, or more of them"
        self.aborted += len(found.aborted_transactions or ())
        self.bytes += len(found.records)
        self._offset = last_offset(found.records) + 1

    def say(self, name: str) -> float:
        """Print the times of the requests; return their 99th percentile in ms."""
        times = sorted(self.times_ms)
        p99_ms = times[int(len(times) * 0.99)]
        print(f"{name}: p50 {times[len(times) // 2]:.1f} ms, p99 {p99_ms:.1f} ms; "
              f"{self.aborted:,} aborted transactions in {len(times)} responses of "
              f"{self.bytes / len(times) / 1e6:.2f} MB", flush=True)  # fmt: skip
        return p99_ms


def last_offset(records: bytes | memoryview) -> int:
    """Return the offset of the last batch, each of which has one record."""
    position = offset = 0
    while position < len(records):
        offset = int.from_bytes(records[position : position + 8], "big")
        position += 12 + int.from_bytes(records[position + 8 : position + 12], "big")
    return offset


def measure(transactions: int, fetches: int) -> None:
    """Print the times of both consumers' requests, and the ratio of the 99th percentiles."""
    with tempfile.TemporaryDirectory() as home, esker(home, DEFAULT_INTERVAL) as cluster:
        began = time.perf_counter()
        planned = rounds(transactions, fetches)
        run(write(cluster, planned))
        print(f"{IN_AN_OBJECT * len(planned):,} transactions, written in "
              f"{time.perf_counter() - began:.0f} s", flush=True)  # fmt: skip
        address = cluster.brokers[0]
        readers = [Reader(address, partition) for partition in range(len(OUTCOMES))]
        for number in range(fetches):
            for reader in readers if number % 2 else readers[::-1]:
                reader.fetch()
        aborted, committed = (
            reader.say(name) for reader, name in zip(readers, ("aborted", "committed"), strict=True)
        )
        p50 = [statistics.median(reader.times_ms) for reader in readers]
        print(f"ratio of p50 {p50[0] / p50[1]:.2f}, of p99 {aborted / committed:.2f} (must 1.5)",
              flush=True)  # fmt: skip


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.bench_aborted", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "--transactions",
        type=int,
        default=1_000_000,
        help="aborted ones of the first partition; default: 1,000,000",
    )
    parser.add_argument("--fetches", type=int, default=300, help="of each consumer; default: 300")
    parser.add_argument("--tiny", action="store_true", help="see that it runs")
    options = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    print(f"commit={commit} python={platform.python_version()} machine={platform.machine()}")
    if options.tiny:
        measure(4_000, 3)
    else:
        measure(options.transactions, options.fetches)


if __name__ == "__main__":
    main()
