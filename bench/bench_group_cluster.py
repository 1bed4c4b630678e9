"""How fast do members of groups work at real processes, beside Apache Kafka's one node?

    python -m bench.bench_group_cluster [--members 200] [--tiny]

Three quorum nodes and two brokers on loopback, each a process, disks as they are; then one node of
Apache Kafka where Java and the released jars are there. The members are our own connections, all of
one group, in one process: so the figures hold what that costs, for both alike. A commit waits for a
majority of the quorum's disks here, and for no disk at all in Kafka, which flushes later; that is
what the ratios compare. (Kafka's offsets topic has one partition and one replica.)

`at work` counts from the first JoinGroup until every member has its assignment in one generation.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, Final, NamedTuple

from raft.net import run
from raft.net.rpc import Rpc, open_rpc
from records.rpc.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from records.rpc.topics import FindCoordinatorRequest, FindCoordinatorResponse
from tests.clients.apache_kafka import apache_kafka
from tests.clients.cluster import EskerCluster
from tests.clients.world import World
from tests.interop.kafka_release import KafkaMissingError, KafkaSetupError, fetch
from tests.interop.kafka_run import Kafka, ToolFailedError

MEMBERS: Final = 200
BEATS: Final = 100  # of each member
ALONE: Final = 200  # commits, one after the other
TOGETHER: Final = 20  # commits of each member
GROUP: Final = "bench"
TIMEOUT_MS: Final = 60_000
SESSION_MS: Final = 45_000
REBALANCING: Final = 27
ID_REQUIRED: Final = 79
COMMIT_VERSION: Final = 9  # the last that names topics
RETRY_S: Final = 0.1


class Figures(NamedTuple):
    """What was measured of one cluster."""

    at_work_s: float
    beats_per_s: float
    commit_p50_ms: float
    commit_p99_ms: float
    commits_per_s: float


class Member:
    """One connection, and what its member is in the group."""

    def __init__(self, rpc: Rpc, topic: str) -> None:
        self.rpc = rpc
        self.topic = topic
        self.member_id = ""
        self.generation = -1

    async def work(self, members: list[Member], everybody: asyncio.Event) -> None:
        """Join again and again until all members are in one generation."""
        while not everybody.is_set():
            self.generation = -1
            self.generation = await self._join()
            generations = {member.generation for member in members}
            if len(generations) == 1 and generations != {-1}:
                everybody.set()
            while not everybody.is_set() and not await self.beat():
                await asyncio.sleep(RETRY_S)

    async def _join(self) -> int:
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"s" * 100)
        while True:
            joined = await self.rpc.call(
                JoinGroupRequest(
                    group_id=GROUP, session_timeout_ms=SESSION_MS, rebalance_timeout_ms=SESSION_MS,
                    member_id=self.member_id, protocol_type=GROUP, protocols=(protocol,),
                ),
                JoinGroupResponse,
            )  # fmt: skip
            self.member_id = joined.member_id
            if joined.error_code in (REBALANCING, ID_REQUIRED):
                continue
            assert not joined.error_code, joined
            assignment = SyncGroupRequest.SyncGroupRequestAssignment
            synced = await self.rpc.call(
                SyncGroupRequest(
                    group_id=GROUP, generation_id=joined.generation_id, member_id=self.member_id,
                    protocol_type=joined.protocol_type, protocol_name=joined.protocol_name,
                    assignments=tuple(
                        assignment(member_id=member.member_id, assignment=b"a" * 100)
                        for member in joined.members
                    ),
                ),
                SyncGroupResponse,
            )  # fmt: skip
            if not synced.error_code:
                return joined.generation_id
            assert synced.error_code == REBALANCING, synced

    async def beat(self) -> int:
        request = HeartbeatRequest(
            group_id=GROUP, generation_id=self.generation, member_id=self.member_id
        )
        return (await self.rpc.call(request, HeartbeatResponse)).error_code

    async def commit(self, offset: int) -> None:
        topic = OffsetCommitRequest.OffsetCommitRequestTopic
        partition = topic.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=""
        )
        answer = await self.rpc.call(
            OffsetCommitRequest(
                group_id=GROUP, generation_id_or_member_epoch=self.generation,
                member_id=self.member_id, topics=(topic(name=self.topic, partitions=(partition,)),),
            ),
            OffsetCommitResponse,
            COMMIT_VERSION,
        )  # fmt: skip
        assert not answer.topics[0].partitions[0].error_code, answer


async def coordinator(bootstrap: str) -> tuple[str, int]:
    """Return the host and port of the consumer group's coordinator, with retries."""
    host, _, port = bootstrap.split(",")[0].rpartition(":")
    async with await open_rpc(host, int(port), timeout_ms=TIMEOUT_MS) as rpc:
        while True:
            request = FindCoordinatorRequest(coordinator_keys=(GROUP,))
            answer = await rpc.call(request, FindCoordinatorResponse, 4)
            (found,) = answer.coordinators
            if not found.error_code:
                return found.host, found.port
            await asyncio.sleep(RETRY_S)


async def measure(bootstrap: str, topic: str, members: int, scale: float) -> Figures:
    """Measure the join, heartbeats and commits of one cluster's consumer group."""
    host, port = await coordinator(bootstrap)
    rpcs = [
        await open_rpc(host, port, client_id=f"m{number}", timeout_ms=TIMEOUT_MS)
        for number in range(members)
    ]
    group = [Member(rpc, topic) for rpc in rpcs]
    everybody = asyncio.Event()
    begun = perf_counter()
    await asyncio.gather(*(member.work(group, everybody) for member in group))
    at_work_s = perf_counter() - begun

    async def again(count: int, act: Any) -> None:
        for number in range(count):
            await act(number)

    beats, together = max(1, int(BEATS * scale)), max(1, int(TOGETHER * scale))
    begun = perf_counter()
    await asyncio.gather(*(again(beats, lambda _, m=member: m.beat()) for member in group))
    beats_per_s = members * beats / (perf_counter() - begun)
    alone = []
    for offset in range(max(10, int(ALONE * scale))):
        begun = perf_counter()
        await group[0].commit(offset)
        alone.append((perf_counter() - begun) * 1_000)
    begun = perf_counter()
    await asyncio.gather(*(again(together, member.commit) for member in group))
    commits_per_s = members * together / (perf_counter() - begun)
    for rpc in rpcs:
        rpc.connection.close()
    p99 = statistics.quantiles(alone, n=100)[98]
    return Figures(at_work_s, beats_per_s, statistics.median(alone), p99, commits_per_s)


@contextmanager
def esker(home: Path) -> Iterator[World]:
    """Start an Esker cluster, and yield its addresses."""
    with EskerCluster(home) as cluster:
        cluster.start()
        yield World(cluster.brokers)


@contextmanager
def kafka(home: Path) -> Iterator[World]:
    """Start an Apache Kafka node, and yield its addresses."""
    with apache_kafka(Kafka(fetch()), home / "node") as world:
        yield world


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=MEMBERS)
    parser.add_argument("--tiny", action="store_true", help="to see that it runs; without Java")
    options = parser.parse_args()
    members, scale = (4, 0.02) if options.tiny else (options.members, 1.0)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    print(f"commit {commit or 'unknown'}, Python {platform.python_version()}, {platform.machine()}")
    figures: dict[str, Figures] = {}
    for name, cluster in (("Esker", esker), ("Kafka", kafka)):
        if name == "Kafka" and options.tiny:
            continue
        with tempfile.TemporaryDirectory() as home, ExitStack() as stack:
            try:
                world = stack.enter_context(cluster(Path(home)))
            except (KafkaMissingError, KafkaSetupError, ToolFailedError) as error:
                print(f"{name} left out: {error}")
                continue
            found = run(measure(world.bootstrap, world.topic(), members, scale))
            figures[name] = found
            print(
                f"{name} {members} members at work in {found.at_work_s:.2f} s; "
                f"{found.beats_per_s:,.0f} heartbeats/s; a commit p50 {found.commit_p50_ms:.1f}, "
                f"p99 {found.commit_p99_ms:.1f} ms; {found.commits_per_s:,.0f} commits/s together"
            )
    if len(figures) == 2:
        ours, theirs = figures["Esker"], figures["Kafka"]
        print(
            f"beside Kafka: heartbeats {ours.beats_per_s / theirs.beats_per_s:.2f}x, "
            f"commits together {ours.commits_per_s / theirs.commits_per_s:.2f}x"
        )


if __name__ == "__main__":
    main()
