"""What one findBatches costs among so many runs: by RPC at the leader, and in this process from the
file of a follower that is stopped for it.
"""

from __future__ import annotations

import random
import sqlite3
import time
from contextlib import closing
from typing import Final, NamedTuple
from uuid import UUID

import msgpack

from bench.commits import BATCH_BYTES, RECORDS, topic_name
from bench.coordinator_cluster import FILL_PARTITIONS, FILL_TOPIC, GROUP, Cluster, say
from coordinator.batch.client import CoordinatorClient
from coordinator.batch.reads import find_batches
from coordinator.batch.settings import CoordinatorSettings
from coordinator.batch.sqlite.machine import FILE_NAME, CoordinatorMachine, Identity
from raft.net.runner import run
from records.object_keys import ObjectKeys
from records.rpc.batch_coordinator import FindBatchesRequest
from tests.coordinator.scripted_brokers import create_topic
from tests.quorum_processes import NODES

FINDS: Final = 2_000
WARM_UP_FINDS: Final = 40_000  # in process: what a replica has been asked before
SEED: Final = 20_240_501  # of the offsets that are looked for


def questions(
    topic_id: UUID, runs: int, count: int = FINDS, seed: int = SEED
) -> list[FindBatchesRequest]:
    """Return requests that each find one run at a random offset of the topic that `fill` made."""
    partitions = min(FILL_PARTITIONS, runs)
    records = runs // partitions * RECORDS
    rng, asked = random.Random(seed), FindBatchesRequest.Topic
    return [
        FindBatchesRequest(
            topics=(
                asked(
                    topic_id=topic_id,
                    partitions=(
                        asked.Partition(
                            partition_index=rng.randrange(partitions),
                            offset=rng.randrange(records),
                            max_bytes=BATCH_BYTES,
                        ),
                    ),
                ),
            ),
            max_bytes=2**20,
        )
        for _ in range(count)
    ]


class Found(NamedTuple):
    """Medians of one look-up, in ms."""

    by_rpc: float
    cold: float  # in process, and nothing in its cache
    in_process: float


def find(cluster: Cluster, runs: int) -> Found:
    """Measure and print FindBatches by RPC, and on a replica's state in this process."""
    addresses = [(host, port) for host, port in cluster.addresses]
    topic_id = run(create_topic(addresses, topic_name(FILL_TOPIC), partitions=1))  # it exists
    asked = questions(topic_id, runs)

    async def by_rpc() -> list[float]:
        client = CoordinatorClient(addresses)
        times = []
        for request in asked:
            began = time.perf_counter()
            answer = await client.call(request)
            times.append((time.perf_counter() - began) * 1e3)
            assert len(answer.responses[0].partitions[0].batches) == 1, answer
        await client.close()
        return sorted(times)

    leader = cluster.coordinator_leader()
    follower = next(node for node in NODES if node != leader)
    told = {"by RPC": run(by_rpc())}
    told["in process, cold"], told["in process"] = in_process(cluster, follower, topic_id, runs)
    for way, times in told.items():
        say(f"findBatches {way} at {runs:,} runs: p50 {times[len(times) // 2]:.3f} ms, "
            f"p99 {times[int(len(times) * 0.99)]:.3f} ms")  # fmt: skip
    return Found(*(times[len(times) // 2] for times in told.values()))


def in_process(
    cluster: Cluster, node: int, topic_id: UUID, runs: int
) -> tuple[list[float], list[float]]:
    """Return sorted lookup times in ms on a replica's state, with a cold and a warm cache.

    The node is stopped, and started afterwards.
    """
    cluster.wait_until_applied()
    cluster.stop(node)
    directory = cluster.home / str(node) / f"{GROUP}-0"
    with closing(sqlite3.connect(directory / FILE_NAME)) as connection:
        query = "SELECT value FROM meta WHERE name = 'identity'"
        identity = Identity(*msgpack.unpackb(connection.execute(query).fetchone()[0]))
    machine = CoordinatorMachine(directory, identity)
    assert not machine.rebuilds, "a state of somebody else"
    keys = ObjectKeys(prefix="", cluster_id=identity.cluster_id, coordinator_partition=0)
    settings = CoordinatorSettings(keys=keys)

    def timed(requests: list[FindBatchesRequest]) -> list[float]:
        times = []
        for request in requests:
            began = time.perf_counter()
            answer = find_batches(request, machine.store, machine.store, settings)
            times.append((time.perf_counter() - began) * 1e3)
            assert len(answer.responses[0].partitions[0].batches) == 1, answer
        return sorted(times)

    cold = timed(questions(topic_id, runs))
    timed(questions(topic_id, runs, WARM_UP_FINDS, SEED + 1))
    warm = timed(questions(topic_id, runs, FINDS, SEED + 2))
    machine.close()
    cluster.start(node)
    cluster.wait_until_it_answers(node)
    return cold, warm
