"""Uploaders of objects that do not exist, their own process: `python -m bench.commits '<json>'`.

Each uploader commits one object after the other through the typed client, to partitions of its own,
as an idempotent producer would have written them. One JSON object is printed: how many, how long
each took, and at which second.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final
from uuid import UUID

from coordinator.batch.client import CoordinatorClient
from raft.net.runner import run
from records.rpc.batch_coordinator import (
    CommitBatch,
    CommitBatchesRequest,
)
from records.rpc.objects import AcquireObjectLeaseRequest
from tests.coordinator.scripted_brokers import create_topic, register

LEASE_IDS: Final = 10_000
RECORDS: Final = 10  # of a batch
BATCH_BYTES: Final = 1_000

Topic = CommitBatchesRequest.Topic


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What to commit. One topic, partitions divided among the uploaders."""

    addresses: list[list[Any]]
    topic: int  # a number; the topic is created if it is new
    uploaders: int
    partitions: int  # of each object
    batches_each: int  # of a partition in an object
    seconds: float
    warm_up_s: float = 1.0
    idempotent: bool = True
    objects: int = 0  # stop after so many of each uploader; 0: when the time is over


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """The broker that an uploader plays, and the topic that it commits to."""

    topic_id: UUID
    broker_id: int
    broker_epoch: int


def topic_name(number: int) -> str:
    """Return the name of a load's topic."""
    return f"bench-{number}"


async def uploader(
    load: Load, index: int, sender: Sender, times: list[tuple[float, float]]
) -> None:
    """Commit objects one after the other until the load ends, and add their times to `times`."""
    client = CoordinatorClient([(host, port) for host, port in load.addresses])
    began = time.perf_counter()
    end = began + load.warm_up_s + load.seconds
    count = 0
    try:
        while not count or not _over(load, count, end):
            lease = await client.call(
                AcquireObjectLeaseRequest(
                    coordinator_partition=0, broker_id=sender.broker_id,
                    broker_epoch=sender.broker_epoch, object_count=LEASE_IDS,
                )
            )  # fmt: skip
            assert not lease.error_code, lease
            for object_id in range(lease.first_object_id, lease.first_object_id + LEASE_IDS):
                request = _object(load, index, sender, lease.lease_id, object_id, count)
                started = time.perf_counter()
                if _over(load, count, end):
                    break
                answer = await client.call(request)
                assert not answer.error_code, answer
                assert not answer.topics[0].partitions[0].results[0].error_code, answer
                if started >= began + load.warm_up_s or load.objects:
                    times.append((started - began, time.perf_counter() - started))
                count += 1
    finally:
        await client.close()


def _over(load: Load, count: int, end: float) -> bool:
    return count >= load.objects if load.objects else time.perf_counter() >= end


def _object(
    load: Load, index: int, sender: Sender, lease_id: int, object_id: int, count: int
) -> CommitBatchesRequest:
    """Build the commit request of an uploader's `count`th object."""
    first = index * load.partitions
    now_ms = time.time_ns() // 1_000_000
    producer = sender.broker_id * 100_000 if load.idempotent else -1
    sequences = [(count * load.batches_each + i) * RECORDS for i in range(load.batches_each)]
    places: Iterator[int] = iter(range(0, load.partitions * load.batches_each * BATCH_BYTES, 1000))
    epoch = 0 if load.idempotent else -1
    rows = [
        tuple(
            CommitBatch(
                next(places), BATCH_BYTES, 0, RECORDS - 1, now_ms, 0,
                producer + partition if load.idempotent else -1, epoch,
                sequence if load.idempotent else -1,
                sequence + RECORDS - 1 if load.idempotent else -1,
            )
            for sequence in sequences
        )
        for partition in range(load.partitions)
    ]  # fmt: skip
    return CommitBatchesRequest(
        broker_id=sender.broker_id,
        broker_epoch=sender.broker_epoch,
        lease_id=lease_id,
        object_id=object_id,
        object_format=1,
        object_size=load.partitions * load.batches_each * BATCH_BYTES,
        topics=(
            Topic(
                topic_id=sender.topic_id,
                partitions=tuple(
                    Topic.Partition(partition_index=first + i, batches=batches)
                    for i, batches in enumerate(rows)
                ),
            ),
        ),
    )


async def work(load: Load) -> dict[str, Any]:
    """Run all uploaders of the load concurrently, and return their times and CPU seconds."""
    addresses = [(host, port) for host, port in load.addresses]
    brokers = await register(addresses, *(load.topic * 100 + i for i in range(load.uploaders)))
    name, partitions = topic_name(load.topic), load.uploaders * load.partitions
    topic_id = await create_topic(addresses, name, partitions=partitions)
    senders = [
        Sender(topic_id=topic_id, broker_id=broker_id, broker_epoch=epoch)
        for broker_id, epoch in brokers.items()
    ]
    times: list[tuple[float, float]] = []
    cpu = time.process_time()
    await asyncio.gather(
        *(uploader(load, index, sender, times) for index, sender in enumerate(senders))
    )
    return {
        "commits": len(times),
        "batches": len(times) * load.partitions * load.batches_each,
        "cpu_s": time.process_time() - cpu,
        "times_ms": [round(took * 1e3, 3) for _, took in times],
        "at_s": [round(at, 2) for at, _ in times],
    }


def as_json(load: Load) -> str:
    """Return the load as the JSON argument of this module's command."""
    return json.dumps(asdict(load))


if __name__ == "__main__":
    print(json.dumps(run(work(Load(**json.loads(sys.argv[1]))))))
