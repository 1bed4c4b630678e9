"""Commits a second of the quorum with 30 brokers that follow its log, against one such broker.

    python -m bench.bench_observers [--observers 30] [--rounds 5] [--tiny]

Three quorum nodes, `esker start`, with `esker-bench-log` and a state that stores keys; 1,000
requests under way over 10 connections, each a commit of its own. Loads with one observer and with
many take turns. Observers are connections of one process that fetch as a broker does: each sends
its next Fetch `FLUSH_S` after an answer, for as long as a broker would write and flush the records.
They store nothing: 30 real brokers would take this machine's cores, and in a cluster each has its
own. Beside commits a second the rows show the leader's CPU for a commit, which is what bounds the
rate where load, followers and observers run elsewhere; and the answers an observer got.

Must (issue 21): 0.7 times as many commits a second with 30 observers as with one.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from uuid import UUID

from bench.bench_quorum import PRODUCT_SETTINGS, load, product_leader
from bench.bench_work import CALM, committed, cpu_s
from esker.server.bootstrap import topic_id
from raft.core.messages import FetchRequest
from raft.core.voters import ReplicaKey
from raft.net import run
from raft.net.rpc import open_rpc
from raft.wire.common import Group
from raft.wire.fetch import write_fetch
from records.batch import parse_header
from records.internal_topics import BENCH_LOG
from records.rpc import fetch
from records.types import Epoch, NodeId, Offset
from tests.clients.cluster import EskerCluster
from tests.raft.driver.client import Client
from tests.waiting import wait_until

FLUSH_S: Final = 0.002
WAIT_MS: Final = 500
FIRST_OBSERVER: Final = 1_000
ANSWERS: Final = "answers"


async def observe(
    port: int, replica: ReplicaKey, group: Group, epoch: Epoch, end: Offset, answers: Counter[str]
) -> None:
    """Fetch the group's log from `end` on until the connection ends, and count the answers."""
    high_watermark = Offset(0)
    async with await open_rpc("127.0.0.1", port, timeout_ms=60_000) as rpc:
        version = rpc.version_for(fetch.FetchRequest)
        while True:
            request = FetchRequest(
                cluster_id=None,
                replica=replica,
                epoch=epoch,
                fetch_offset=end,
                last_fetched_epoch=epoch,
                high_watermark=high_watermark,
                max_wait_ms=WAIT_MS,
            )
            answer = await rpc.call(write_fetch(group, request, version), fetch.FetchResponse)
            answers[ANSWERS] += 1
            partition = answer.responses[0].partitions[0]
            assert partition.error_code == 0, partition.error_code
            assert partition.diverging_epoch.epoch < 0, partition.diverging_epoch
            if partition.records:
                end = end_offset(partition.records)
                await asyncio.sleep(FLUSH_S)
            high_watermark = Offset(min(partition.high_watermark, end))


def end_offset(records: bytes | memoryview) -> Offset:
    """Return the end of the load's batches, which are equally long and hold one record each.

    Brokers find it batch by batch, with checksums; thirty of them would need this machine's cores.
    """
    header = parse_header(records)
    count, rest = divmod(len(records), header.size_bytes)
    assert not rest, f"batches of different lengths: {len(records)}, {header}"
    return Offset(header.base_offset + count)


async def observe_all(port: int, cluster_id: str, epoch: int, end: int, count: int) -> None:
    """Let `count` observers fetch until standard input ends; then print their number of answers."""
    group = Group(BENCH_LOG, 0, topic_id(cluster_id, BENCH_LOG))
    answers: Counter[str] = Counter()
    observers = [
        asyncio.ensure_future(
            observe(
                port,
                ReplicaKey(NodeId(FIRST_OBSERVER + number), UUID(int=number + 1)),
                group,
                Epoch(epoch),
                Offset(end),
                answers,
            )
        )
        for number in range(count)
    ]
    until = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))
    done, _ = await asyncio.wait((*observers, until), return_when=asyncio.FIRST_COMPLETED)
    if until not in done:
        await next(iter(done))  # an observer failed: raise its error
    print(answers[ANSWERS])
    os._exit(0)  # the connections need no farewell


@contextmanager
def observers(cluster: EskerCluster, port: int, count: int, answers: list[int]) -> Iterator[None]:
    """Let `count` observers follow the bench log; append the number of their answers at the end."""
    with Client("127.0.0.1", port, timeout_s=60) as client:
        group = client.describe(BENCH_LOG)
    words = (port, cluster.cluster_id, group.leader_epoch, group.high_watermark, count)
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.bench_observers", "--observe", *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: observed(port) >= count, "the observers fetch")
        yield
        printed, _ = process.communicate("")
        answers.append(int(printed))
    finally:
        process.kill()
        process.wait()


def observed(port: int) -> int:
    """Return how many observers the leader of the bench log has heard within its session time."""
    with Client("127.0.0.1", port, timeout_s=60) as client:
        group = client.describe(BENCH_LOG)
    return len(group.observers)


def measure(cluster: EskerCluster, count: int, seconds: float) -> tuple[float, float, float]:
    """Return commits/s, the leader's CPU in us a commit, and answers/s of each observer."""
    port = product_leader(cluster)
    (leader,) = [node for node, its in cluster.ports.items() if its == port]
    answers: list[int] = []
    with observers(cluster, port, count, answers):
        before, used = committed(port), cpu_s(cluster.processes[leader].pid)
        began = time.monotonic()
        found = load(
            port=port, connections=10, in_flight=1_000, records=1, seconds=seconds,
            warm_up_s=0.5, keyed=True,
        )  # fmt: skip
        used = cpu_s(cluster.processes[leader].pid) - used
        commits, elapsed = committed(port) - before, time.monotonic() - began
    return found["records_per_s"], used / commits * 1e6, answers[0] / count / elapsed


def main() -> None:
    """Measure one observer and many in turn, and print the medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--observers", type=int, default=30, help="default: 30")
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--tiny", action="store_true", help="see that it runs")
    parser.add_argument("--observe", nargs=5, help=argparse.SUPPRESS)  # the observers' own process
    options = parser.parse_args()
    if options.observe:
        port, cluster_id, epoch, end, count = options.observe
        run(observe_all(int(port), cluster_id, int(epoch), int(end), int(count)))
        return
    rounds, seconds = (1, 1.0) if options.tiny else (options.rounds, 4.0)
    counts = (1, options.observers)
    print(
        f"python={platform.python_version()} machine={platform.machine()} cores={os.cpu_count()} "
        f"load={os.getloadavg()[0]:.1f}"
    )
    found: dict[int, list[tuple[float, float, float]]] = {count: [] for count in counts}
    with tempfile.TemporaryDirectory() as home:
        settings = {**PRODUCT_SETTINGS, **CALM}
        with EskerCluster(Path(home), brokers=0, settings=settings, fresh=True) as cluster:
            cluster.start()
            measure(cluster, 1, seconds)  # warms up
            for turn in range(rounds):
                for count in counts if turn % 2 else counts[::-1]:
                    found[count].append(measure(cluster, count, seconds))
    rates = {}
    for count in counts:
        rate, cpu_us, answers = (
            statistics.median(column) for column in zip(*found[count], strict=True)
        )
        rates[count] = rate
        print(
            f"{count:>3} observers {rate:>8,.0f} commits/s   leader's CPU {cpu_us:6.1f} us/commit"
            f"   {answers:6.0f} answers/s an observer"
        )
    ratios = sorted(
        many[0] / one[0] for one, many in zip(found[counts[0]], found[counts[1]], strict=True)
    )
    print(f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f}), must 0.7")


if __name__ == "__main__":
    main()
