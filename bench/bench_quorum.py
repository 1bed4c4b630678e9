"""How does the quorum compare with etcd, PySyncObj and the disk itself?

    python -m bench.bench_quorum [--tiny] [--runs 5]

Three processes each, fdatasync before every acknowledgement (but PySyncObj's: it has none), all on
this machine's cores together with the load. Ours and etcd's client is a process of its own,
PySyncObj's a thread in its leader. Closed loops; a second of warm-up; the median of the runs.
etcd needs Debian's etcd-server and nghttp2-client, Java KRaft the released jars: each is left out,
saying so, where it is missing.

The first rows load the product: `esker start` with a state that stores keys, as etcd does. The rows
after them load a bare log, without a state and without a node around it.

The floor of one commit at a time is a 4 KiB append and fdatasync by three processes at once, plus
one round trip over loopback.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from bench.peers import etcd, floor, kraft, pysyncobj_cluster
from tests.clients.cluster import EskerCluster
from tests.raft.driver.client import Client, ClientError
from tests.raft.driver.cluster import Cluster

RUNS: Final = 5
SECONDS: Final = 4.0
FAILOVERS: Final = 7
CATCH_UP_RECORDS: Final = 1_000_000
RESTART_RECORDS: Final = 100_000
BATCH: Final = 1_000

ROWS: Final = (  # name, connections, in flight, records a request
    ("1000 in flight, 1 record a request", 10, 1000, 1),
    ("100 in flight on one connection", 1, 100, 1),
    ("batches of 100, 64 in flight", 4, 64, 100),
    ("batches of 1000, 16 in flight", 4, 16, 1000),
    ("one at a time", 1, 1, 1),
)


PRODUCT_ROWS: Final = ROWS[:2]
PRODUCT_SETTINGS: Final = {"esker.bench.log.enable": "true", "esker.bench.log.state": "kv"}


def say(text: str) -> None:
    print(text, flush=True)


def ours(cluster: Cluster, connections: int, in_flight: int, records: int, seconds: float) -> Any:
    """Run the load once against the Raft leader of Esker's cluster; return its measurements."""
    port = cluster.ports[cluster.wait_for_leader()]
    return load(
        port=port, connections=connections, in_flight=in_flight, records=records, seconds=seconds
    )


def load(**work: object) -> Any:
    """Run `bench.load` in a process of its own, and return what it measured."""
    ran = subprocess.run(
        [sys.executable, "-m", "bench.load", json.dumps(work)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return json.loads(ran.stdout)


def medians(run: Callable[[], dict[str, float]], times: int) -> dict[str, float]:
    """Call `run` several times, and return the median of each figure."""
    found = [run() for _ in range(times)]
    return {name: statistics.median(one[name] for one in found) for name in found[0]}


def failover_s(cluster: Cluster, *, frozen: bool = False) -> float:
    """Return the seconds from SIGKILL or SIGSTOP of the leader to a survivor's first commit."""
    leader = cluster.wait_for_leader()
    began = time.monotonic()
    if frozen:
        cluster.signal(leader, signal.SIGSTOP)
    else:
        cluster.kill(leader)
    while True:
        for node in [node for node in cluster.processes if node != leader]:
            try:
                with Client("127.0.0.1", cluster.ports[node], timeout_s=1) as client:
                    client.produce([b"first"])
            except (OSError, ClientError):
                continue
            elapsed = time.monotonic() - began
            if frozen:
                cluster.signal(leader, signal.SIGCONT)
            else:
                cluster.start(leader)
            wait_caught_up(cluster, leader)
            return elapsed
        assert time.monotonic() - began < 30, "no survivor was elected"


def wait_caught_up(cluster: Cluster, node: int) -> None:
    """Wait until a replica has all records of its leader's log."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            with cluster.client(cluster.wait_for_leader()) as client:
                group = client.describe("esker-bench-log")
        except (OSError, ClientError):
            continue
        ends = {state.replica_id: state.log_end_offset for state in group.current_voters}
        if ends.get(node) == max(ends.values()):
            return
        time.sleep(0.005)
    raise AssertionError(f"node {node} did not catch up")


def fill(cluster: Cluster, records: int) -> None:
    """Append `records` records of 100 B, in whole batches, to the benchmark log."""
    with cluster.client(cluster.wait_for_leader()) as client:
        values = [os.urandom(100) for _ in range(BATCH)]
        for _ in range(records // BATCH):
            client.produce(values)


def catch_up_records_per_s(directory: Path, records: int) -> float:
    """Start an empty third replica, and return its records per second until it has caught up."""
    with Cluster(directory) as cluster:
        cluster.start(1, 2)
        fill(cluster, records)
        cluster.start(3)
        while "role=follower" not in cluster.output(3):
            time.sleep(0.001)  # the interpreter starts: not what is measured
        began = time.monotonic()
        wait_caught_up(cluster, 3)
        return records / (time.monotonic() - began)


def restart_s(directory: Path, records: int) -> float:
    """Kill and start all three nodes, and return the seconds until the first commit."""
    with Cluster(directory) as cluster:
        cluster.start()
        fill(cluster, records)
        cluster.kill()
        began = time.monotonic()
        cluster.start()
        with cluster.client(cluster.wait_for_leader()) as client:
            client.produce([b"again"])
        return time.monotonic() - began


def line(name: str, own: str, peer: str, ratio: str) -> None:
    say(f"{name:<38}{own:>26}  {peer:<44}{ratio}")


def throughput(directory: Path, runs: int, seconds: float, *, java: bool) -> None:
    """Print the throughput rows of Esker's quorum and of the compared systems, in turn."""
    missing = etcd.available()
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(directory / "ours"))
        cluster.start()
        cluster.wait_for_leader()
        for name, connections, in_flight, records in ROWS:
            found = medians(lambda: ours(cluster, connections, in_flight, records, seconds), runs)  # noqa: B023
            if found["errors"]:
                say(f"  {found['errors']:.0f} answers with an error")
            if in_flight == 1:
                latency(directory, found, missing, runs, seconds)
                continue
            own = f"{found['records_per_s']:,.0f} records/s"
            line(name, own, f"p50 {found['p50_ms']:.2f} ms, p99 {found['p99_ms']:.2f} ms", "")
            for tuned in (False, True):
                peer = pysyncobj(directory, tuned, records, in_flight, seconds)
                against("PySyncObj" + " tuned" * tuned, found["records_per_s"], peer * records)
            if records == BATCH and java:
                figure = kraft.records_per_s(directory)
                if isinstance(figure, str):
                    say(f"  Java KRaft left out: {figure}")
                else:
                    against("Java KRaft, no client", found["records_per_s"], figure)
            if records == 1 and missing is None:
                shape = etcd_load(directory, connections, in_flight // connections, runs, seconds)
                against("etcd", found["records_per_s"], shape.per_s)
    if missing:
        say(f"  etcd left out: {missing}")


def product(directory: Path, runs: int, seconds: float) -> None:
    """Print the rows of `esker start` with a state that stores keys, and of etcd in turn."""
    missing = etcd.available()
    home = directory / "product"
    with EskerCluster(home, brokers=0, settings=PRODUCT_SETTINGS) as cluster:
        cluster.start()
        for name, connections, in_flight, records in PRODUCT_ROWS:
            found, peers = [], []
            for _ in range(runs):
                found.append(
                    load(
                        port=product_leader(cluster),
                        connections=connections,
                        in_flight=in_flight,
                        records=records,
                        seconds=seconds,
                        keyed=True,
                    )
                )
                if missing is None:
                    streams = in_flight // connections
                    peers.append(etcd_load(directory, connections, streams, 1, seconds).per_s)
            own = statistics.median(run["records_per_s"] for run in found)
            p99_ms = statistics.median(run["p99_ms"] for run in found)
            line(f"keys, {name}", f"{own:,.0f} records/s", f"p99 {p99_ms:.2f} ms", "")
            if peers:
                against("etcd", own, statistics.median(peers))


def product_leader(cluster: EskerCluster) -> int:
    """Return the port of the node that leads the bench log; wait until one does."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for host, port in cluster.controllers:
            try:
                with Client(host, port, timeout_s=5) as client:
                    client.produce_keyed([(b"k0000", b"first")])
            except (OSError, ClientError):
                continue
            return port
    raise AssertionError("no node leads the bench log")


def against(name: str, own: float, peer: float) -> None:
    line("", "", f"{name} {peer:,.0f}/s", f"ratio {own / peer:.2f}")


def etcd_load(
    directory: Path, connections: int, streams: int, runs: int, seconds: float
) -> etcd.Measured:
    """Load an etcd cluster several times, and return the run with the median rate."""
    with tempfile.TemporaryDirectory(dir=directory) as home, etcd.Etcd(Path(home)) as cluster:
        cluster.start()
        cluster.leader()
        found = [
            cluster.load(connections=connections, streams=streams, value_bytes=100, seconds=seconds)
            for _ in range(runs)
        ]
        return sorted(found, key=lambda one: one.per_s)[len(found) // 2]


def pysyncobj(directory: Path, tuned: bool, records: int, in_flight: int, seconds: float) -> float:
    """Return the commands per second of a PySyncObj cluster in one run."""
    with (
        tempfile.TemporaryDirectory(dir=directory) as home,
        pysyncobj_cluster.PySyncObj(Path(home), tuned=tuned) as cluster,
    ):
        return cluster.load(records=records, in_flight=in_flight, seconds=seconds)["per_s"]


def latency(
    directory: Path, found: dict[str, float], missing: str | None, runs: int, seconds: float
) -> None:
    """Print the latency of single commits beside the disk's lower bound and etcd's latency."""
    flush, trip = floor.parallel_flush_ms(directory), floor.round_trip_ms()
    line("one at a time", f"p50 {found['p50_ms']:.3f} ms", "", f"p99 {found['p99_ms']:.2f} ms")
    lowest = flush + trip
    line(
        "", "", f"floor {lowest:.3f} ms (flush {flush:.3f} + trip {trip:.3f})",
        f"ratio p50 {found['p50_ms'] / lowest:.2f}",
    )  # fmt: skip
    if missing is None:
        peer = etcd_load(directory, 1, 1, runs, seconds)
        line(
            "", "", f"etcd p50 {peer.p50_ms:.2f} ms, p99 {peer.p99_ms:.2f} ms",
            f"ratio p50 {found['p50_ms'] / peer.p50_ms:.2f}, "
            f"p99 {found['p99_ms'] / peer.p99_ms:.2f}",
        )  # fmt: skip


def recovery(directory: Path, failovers: int, catch_up: int, restart: int) -> None:
    """Print the rows on failover, catch-up of an empty replica, and restart."""
    with Cluster(directory / "failover") as cluster:
        cluster.start()
        times = [failover_s(cluster) for _ in range(failovers)]
        stops = [failover_s(cluster, frozen=True) for _ in range(failovers)]
    own = statistics.median(times)
    frozen = statistics.median(stops)
    line("leader frozen to first commit", f"{frozen:.3f} s", f"of {failovers}: {spread(stops)}", "")
    line("leader killed to first commit", f"{own:.3f} s", f"of {failovers}: {spread(times)}", "")
    if etcd.available() is None:
        home = directory / "etcd-failover"
        home.mkdir()
        with etcd.Etcd(home) as peer:
            peer.start()
            peers = [peer.failover_s() for _ in range(failovers)]
        line("", "", f"etcd {statistics.median(peers):.3f} s: {spread(peers)}",
             f"ratio {own / statistics.median(peers):.2f}")  # fmt: skip
    rate = catch_up_records_per_s(directory / "catch-up", catch_up)
    line("empty replica catches up by log", f"{rate:,.0f} records/s", f"{catch_up:,} records", "")
    seconds = restart_s(directory / "restart", restart)
    line("all restarted to first commit", f"{seconds:.2f} s", f"{restart:,} records", "")


def spread(times: list[float]) -> str:
    return f"{min(times):.2f} to {max(times):.2f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--tiny", action="store_true", help="seconds instead of minutes")
    parser.add_argument("--runs", type=int, default=RUNS, help="runs of each row")
    arguments = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    say(f"commit {commit}, Python {platform.python_version()}, {os.cpu_count()} cores")
    tiny = arguments.tiny
    with tempfile.TemporaryDirectory(prefix="esker-bench-") as name:
        directory = Path(name)
        product(directory, 1 if tiny else arguments.runs, 1.0 if tiny else SECONDS)
        throughput(
            directory, 1 if tiny else arguments.runs, 1.0 if tiny else SECONDS, java=not tiny
        )
        recovery(
            directory,
            failovers=1 if tiny else FAILOVERS,
            catch_up=20_000 if tiny else CATCH_UP_RECORDS,
            restart=10_000 if tiny else RESTART_RECORDS,
        )


if __name__ == "__main__":
    main()
