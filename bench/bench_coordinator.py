"""How many batches does a replicated coordinator order, beside one PostgreSQL that is not?

    python -m bench.bench_coordinator [--seconds S] [--runs N] [--find-runs M] [--tiny]

Three `esker start` processes on this machine, fdatasync before every answer, the state in SQLite on
all three; uploaders outside, through the typed client, one object at a time each. Every row begins
from a state of `--runs` runs, and says how far the replicas' states lagged when it was over: else
backlog would count as speed. The peer is the plain coordinator of `bench.peers`: one PostgreSQL, no
replication, from as many runs. Three etcd nodes take transactions of as many puts of 100 B, with
nothing to decide. Either is left out, saying so, where Debian's postgresql or etcd is missing.

Besides: a checkpoint, and what it does to commits; a node whose state is lost; findBatches of one
run, at a thousand runs and at `--find-runs`, by RPC at the leader and in this process from the
state of a follower that is stopped for it, its cache empty and then as full as it gets; a restart
of all three; memory. Some ten minutes in all.

Reference (reference figures of Inkless's own SQL on such a machine): 50 x 4 batches, 4 uploaders
13.7 k batches/s, p50 54 ms; 50 x 1, one uploader p50 9.2 ms; 500 x 1, 2 uploaders 9 k, p50 108 ms.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from bench.coordinator_cluster import FILL_TOPIC, GROUP, Cluster, fill, result, say
from bench.coordinator_finds import find
from bench.peers import etcd
from bench.peers import postgres_coordinator as peer
from tests.quorum_processes import NODES

FEW_RUNS: Final = 1_000
MUST_LAG_S: Final = 1.0
MAX_PEER_S: Final = 10.0  # of each row of a peer, which does not slow down in a minute
COORDINATE_BYTES: Final = 100  # of one put to etcd


class Row(NamedTuple):
    """One shape of load, and the figures it is held to."""

    partitions: int
    batches_each: int
    uploaders: int
    must: str


ROWS: Final = (
    Row(50, 4, 4, "must 50 k batches/s, p50 16 ms; aim 100 k, 6 ms"),
    Row(50, 1, 1, "must p50 2 ms; aim 1 ms"),
    Row(500, 1, 2, "must 27 k batches/s, p50 36 ms; aim 54 k, 18 ms"),
)


class Figures(NamedTuple):
    """Of one run of a row; times in ms."""

    commits_per_s: float
    batches_per_s: float
    p50: float
    p99: float

    def __str__(self) -> str:
        return (
            f"{self.commits_per_s:8,.0f} commits/s {self.batches_per_s:10,.0f} batches/s"
            f"   p50 {self.p50:6.2f} ms  p99 {self.p99:6.2f} ms"
        )


def figures(times_ms: list[float], batches: int, seconds: float) -> Figures:
    ordered = sorted(times_ms)
    return Figures(
        len(ordered) / seconds,
        batches / seconds,
        ordered[len(ordered) // 2],
        ordered[int(len(ordered) * 0.99)],
    )


# --- our quorum ---------------------------------------------------------------------------------


def commit_rows(cluster: Cluster, seconds: float) -> dict[Row, Figures]:
    """Measure commits on Esker's cluster for each row of the table, and print the rows."""
    found = {}
    for topic, row in enumerate(ROWS, FILL_TOPIC + 1):
        cpu = cluster.cpu_s()
        load = cluster.load(
            topic=topic, uploaders=row.uploaders, partitions=row.partitions,
            batches_each=row.batches_each, seconds=seconds,
        )  # fmt: skip
        ran = result(load)
        lag_s = cluster.wait_until_applied()
        found[row] = figures(ran["times_ms"], ran["batches"], seconds)
        name = f"{row.partitions} x {row.batches_each}, {row.uploaders} uploaders"
        say(f"{name:<24}{found[row]}   {row.must}")
        leader, client = cluster.coordinator_leader(), ran["cpu_s"] / seconds
        spent = {node: cpu_s - cpu[node] for node, cpu_s in cluster.cpu_s().items()}
        followers = sum(spent.values()) - spent[leader]
        scale = 1e6 / max(1, ran["batches"])
        say(
            f"{'':<24}CPU a batch: leader {spent[leader] * scale:.1f} us, a follower "
            f"{followers / 2 * scale:.1f} us (with the warm-up's, which are not counted)"
        )
        say(f"{'':<24}applied everywhere {lag_s * 1e3:.0f} ms after the last commit "
            f"(must {MUST_LAG_S:.0f} s), client {client:.0%} of a core")  # fmt: skip
    return found


def checkpoint(cluster: Cluster, seconds: float) -> None:
    """Take a checkpoint on each node under load, then load it on a node with an empty disk."""
    shape = {"uploaders": 1, "partitions": 50, "batches_each": 1}
    quiet = result(cluster.load(topic=90, seconds=seconds, **shape))
    before = figures(quiet["times_ms"], quiet["batches"], seconds)
    load = cluster.load(topic=91, seconds=seconds + 20, **shape)
    time.sleep(3)
    began = time.perf_counter()
    leader = cluster.coordinator_leader()
    took, size = cluster.take_snapshot(leader)
    until = time.perf_counter() - began
    busy = result(load)
    meanwhile = [
        took_ms
        for at, took_ms in zip(busy["at_s"], busy["times_ms"], strict=True)
        if 2 <= at <= 3 + until
    ]
    after = figures(meanwhile, len(meanwhile), max(until, 0.1))
    say(f"checkpoint of the leader {took:.1f} s, {size / 2**20:.0f} MiB; commits' p99 "
        f"{before.p99:.2f} ms without, {after.p99:.2f} ms meanwhile "
        f"({after.p99 / before.p99:.1f} times; must 3, aim 1.5)")  # fmt: skip


def lost_disk(cluster: Cluster) -> None:
    """Delete a replica's state, and measure its rebuild from a checkpoint."""
    leader = cluster.coordinator_leader()
    node = next(node for node in NODES if node != leader)
    cluster.take_snapshot(node)
    cluster.kill(node)
    for leftover in (cluster.home / str(node) / f"{GROUP}-0").glob("coordinator.db*"):
        leftover.unlink()
    began = time.perf_counter()
    cluster.start(node)
    committed = cluster.group(leader).high_watermark
    while True:
        try:
            if cluster.group(node).applied_offset >= committed:
                break
        except Exception:  # it starts
            pass
        time.sleep(0.01)
    say(f"state deleted, loaded from a checkpoint {time.perf_counter() - began:.1f} s after start "
        f"(must 10 s, aim 5 s)")  # fmt: skip


def restart(cluster: Cluster) -> None:
    """Kill and start all three nodes, and print the seconds until the first commit."""
    for node in NODES:
        cluster.kill(node)
    began = time.perf_counter()
    cluster.start(*NODES)
    load = cluster.load(
        topic=92, uploaders=1, partitions=1, batches_each=1, seconds=0, objects=1
    )  # fmt: skip
    result(load)
    say(f"kill -9 of all three, start, first commit {time.perf_counter() - began:.1f} s "
        f"(interpreters' start included; must 3 s, aim 1 s)")  # fmt: skip


# --- the peer -----------------------------------------------------------------------------------


def postgres_rows(directory: Path, seconds: float, runs: int, ours: dict[Row, Figures]) -> None:
    """Measure the commit rows on one PostgreSQL server, and print them beside Esker's."""
    missing = peer.available()
    if missing:
        say(f"PostgreSQL left out: {missing}")
        return
    with peer.Postgres(directory / "postgres") as server:
        server.create_partitions(2_000)
        server.fill(runs, 2_000)
        for number, row in enumerate(ROWS, 1):
            uploaders = [
                peer.Uploader(
                    run=number * 10 + i, first_partition=i * row.partitions,
                    partitions=row.partitions, batches_each=row.batches_each, seconds=seconds,
                )
                for i in range(row.uploaders)
            ]  # fmt: skip
            ran = server.load(uploaders)
            times = [one for load in ran for one in load["times_ms"]]
            found = figures(times, sum(int(load["batches"]) for load in ran), seconds)
            name = f"{row.partitions} x {row.batches_each}, {row.uploaders} uploaders"
            ratio = ours[row].batches_per_s / found.batches_per_s
            say(f"{name:<24}{found}   ours / PostgreSQL's {ratio:.2f}")


def etcd_rows(directory: Path, seconds: float, ours: dict[Row, Figures]) -> None:
    """Measure etcd transactions with one put per batch of an object, and print the rows."""
    missing = etcd.available()
    if missing:
        say(f"etcd left out: {missing}")
        return
    (directory / "etcd").mkdir()
    with etcd.Etcd(directory / "etcd") as cluster:
        cluster.start()
        for row in ROWS:
            puts = row.partitions * row.batches_each
            found = cluster.load(
                connections=row.uploaders, streams=1, value_bytes=COORDINATE_BYTES,
                seconds=seconds, puts=puts,
            )  # fmt: skip
            told = Figures(found.per_s, found.per_s * puts, found.p50_ms, found.p99_ms)
            name = f"{row.partitions} x {row.batches_each}, {row.uploaders} clients"
            ratio = ours[row].batches_per_s / told.batches_per_s
            say(f"{name:<24}{told}   ours / etcd's transactions {ratio:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="of each row; default 60")
    parser.add_argument("--runs", type=int, default=1_000_000, help="before each row")
    parser.add_argument(
        "--find-runs", type=int, default=10_000_000, help="before findBatches is timed again"
    )
    parser.add_argument("--tiny", action="store_true", help="a second, 20,000 runs, then 40,000")
    options = parser.parse_args()
    seconds, runs, find_runs = options.seconds, options.runs, options.find_runs
    if options.tiny:
        seconds, runs, find_runs = 1.0, 20_000, 40_000
    peer_seconds = min(seconds, MAX_PEER_S)
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    say(f"commit {commit}, Python {platform.python_version()}, {os.cpu_count()} cores, "
        f"{seconds:g} s a row")  # fmt: skip
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(Cluster(directory))
        cluster.start(*NODES)
        fill(cluster, FEW_RUNS)
        few = find(cluster, FEW_RUNS)
        fill(cluster, runs)
        checkpoint(cluster, min(seconds, 10))
        lost_disk(cluster)
        ours = commit_rows(cluster, seconds)
        if find_runs > runs:
            fill(cluster, find_runs - runs)
        many = find(cluster, find_runs)
        say(f"findBatches at {find_runs:,} runs / at {FEW_RUNS:,}: by RPC "
            f"{many.by_rpc / few.by_rpc:.2f}, in process {many.in_process / few.in_process:.2f} "
            f"(must 1.5), with an empty cache {many.cold / few.cold:.2f}")  # fmt: skip
        restart(cluster)
        memory = [cluster.memory_mb(node, "VmHWM") for node in NODES]
        say(f"memory at most {max(memory):.0f} MB a process since the restart")
        for node in NODES:
            cluster.kill(node)
        shutil.rmtree(directory / "1", ignore_errors=True)
        postgres_rows(directory, peer_seconds, runs, ours)
        etcd_rows(directory, max(peer_seconds, 2), ours)


if __name__ == "__main__":
    main()
