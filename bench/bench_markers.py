"""How many transaction markers does a replicated coordinator write, and what do commits feel of it?

    .venv/bin/python -m bench.bench_markers [--seconds 6] [--rounds 3] [--tiny]

Three `esker start` processes on this machine, fdatasync before every answer. Markers go in requests
as large as the transaction log's, two requests at a time, each with new transaction numbers. Then
an uploader commits objects of 50 partitions with 4 batches each, alone and beside markers at half
of the measured maximum, in turn; the ratio of the 99th percentiles is printed. So is that beside a
second uploader in the markers' place, which tells what any other load does to commits.
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
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from bench.coordinator_cluster import Cluster, result, say
from coordinator.batch.client import CoordinatorClient
from coordinator.transactions.markers import MAX_ROWS
from raft.net.runner import run
from records.rpc.transaction_markers import TransactionMarker, WriteTransactionMarkersRequest
from tests.coordinator.scripted_brokers import create_topic, register
from tests.quorum_processes import NODES

AT_ONCE: Final = 2
BROKER: Final = 99
COMMITTED: Final = 1
LOAD: Final[dict[str, Any]] = {"uploaders": 1, "partitions": 50, "batches_each": 4}


class Markers:
    """Writes markers of ever new transactions of one producer for each partition of a topic."""

    def __init__(self, addresses: list[tuple[str, int]], topic_id: UUID) -> None:
        self._addresses = addresses
        self._topic_id = topic_id
        self._numbers = itertools.count(1)

    async def write(self, seconds: float, rate: float | None = None) -> float:
        """Write markers for some time, at most `rate` a second; return how many a second."""
        began = time.perf_counter()
        written = await asyncio.gather(
            *(self._write(began, seconds, rate and rate / AT_ONCE) for _ in range(AT_ONCE))
        )
        return sum(written) / (time.perf_counter() - began)

    async def _write(self, began: float, seconds: float, rate: float | None) -> int:
        client = CoordinatorClient(self._addresses)
        written = 0
        try:
            while time.perf_counter() - began < seconds:
                if rate is not None:
                    await asyncio.sleep(max(0.0, began + written / rate - time.perf_counter()))
                number = next(self._numbers)
                answer = await client.call(
                    WriteTransactionMarkersRequest(
                        coordinator_partition=0,
                        topic_ids=(self._topic_id,),
                        markers=tuple(
                            TransactionMarker(0, index, index, 0, number, COMMITTED, 1)
                            for index in range(MAX_ROWS)
                        ),
                    )
                )
                assert not answer.error_code, answer
                assert not any(answer.marker_error_codes), answer
                written += MAX_ROWS
        finally:
            await client.close()
        return written


def percentile_99(times_ms: list[float]) -> float:
    """Return the 99th percentile."""
    return sorted(times_ms)[int(len(times_ms) * 0.99)]


def commit_times_ms(cluster: Cluster, topic: int, seconds: float) -> list[float]:
    """Return how long each commit of one uploader takes, which has one under way."""
    times: list[float] = result(cluster.load(topic=topic, seconds=seconds, **LOAD))["times_ms"]
    return times


def measure(home: Path, seconds: float, rounds: int) -> None:
    """Print the markers a second, and the latency of commits without and beside them."""
    topics = itertools.count(1)
    with Cluster(home) as cluster:
        cluster.start(*NODES)
        cluster.ready()
        addresses = [(host, port) for host, port in cluster.addresses]
        run(register(addresses, BROKER))
        topic_id = run(create_topic(addresses, "marked", partitions=MAX_ROWS))
        markers = Markers(addresses, topic_id)
        run(markers.write(seconds / 3))  # warms up
        rates = [run(markers.write(seconds)) for _ in range(rounds)]
        applied_s = cluster.wait_until_applied()
        most = statistics.median(rates)
        say(f"markers, {MAX_ROWS} in a request: {most:,.0f} a second (must 20,000); "
            f"the replicas applied the last {applied_s:.1f} s later")  # fmt: skip
        ratios: dict[str, list[float]] = {"markers": [], "commits": []}
        for _ in range(rounds):
            alone_ms = percentile_99(commit_times_ms(cluster, next(topics), seconds))
            load = cluster.load(topic=next(topics), seconds=seconds, **LOAD)
            beside = run(markers.write(seconds + 2, most / 2))
            markers_ms = percentile_99(result(load)["times_ms"])
            load = cluster.load(topic=next(topics), seconds=seconds, **LOAD)
            commits_ms = percentile_99(commit_times_ms(cluster, next(topics), seconds))
            result(load)
            ratios["markers"].append(markers_ms / alone_ms)
            ratios["commits"].append(commits_ms / alone_ms)
            say(
                f"commits of 200 batches: p99 {alone_ms:.1f} ms alone; {markers_ms:.1f} ms beside "
                f"{beside:,.0f} markers a second, ratio {ratios['markers'][-1]:.2f}; "
                f"{commits_ms:.1f} ms beside a second uploader, {ratios['commits'][-1]:.2f}"
            )
        say(
            f"median ratio beside markers {statistics.median(ratios['markers']):.2f} (must 1.2), "
            f"beside a second uploader {statistics.median(ratios['commits']):.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.bench_markers", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, default=6.0, help="of each load; default: 6")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds; default: 3")
    parser.add_argument("--tiny", action="store_true", help="see that it runs")
    options = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    print(f"commit={commit} python={platform.python_version()} machine={platform.machine()}")
    with tempfile.TemporaryDirectory() as home:
        if options.tiny:
            measure(Path(home), 0.5, 1)
        else:
            measure(Path(home), options.seconds, options.rounds)


if __name__ == "__main__":
    main()
