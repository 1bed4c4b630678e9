"""What do checkpoints cost: taking one, serving one, and coming up by one?

    python -m bench.bench_snapshot [--tiny] [--records 1000000] [--value-bytes 1000] [--no-peer]

Two nodes hold a key-value state of RECORDS values; checkpoints are taken on request only. In turn:
the leader generates one, alone and while clients commit; a third, empty node comes up by it, alone
and while clients commit. References: writing the same bytes to this disk, with fdatasync every
8 MiB, and PySyncObj, in the same run (smaller, as it is slow; it has no fsync).

`p99` is of one commit at a time and of 100 in flight over one connection, each 100 B, measured by a
process of its own. All share this machine's cores: nodes, load, and the downloader.
Memory is anonymous memory (RssAnon), sampled every 10 ms: its highest minus what it was before; of
the node that installs, minus what its state takes afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench.bench_quorum import line, say
from bench.peers import pysyncobj_snapshots
from tests.raft.driver.client import Client, ClientError
from tests.raft.driver.cluster import Cluster

RECORDS: Final = 1_000_000
VALUE_BYTES: Final = 1_000
SMALL_BYTES: Final = 100  # of the small entries that generation is also measured with
PEER_ENTRIES: Final = 100_000  # small ones
BATCH_BYTES: Final = 1_000_000
TOPIC: Final = "esker-bench-log"
NEVER: Final = {"max_bytes_between": 1 << 40, "max_interval_ms": 0}  # on request only
SOON: Final = {"live_ms": 1_000}  # the third node is no reason to keep the log
LOADS: Final = (("one at a time", 1), ("100 in flight", 100))
SECONDS: Final = 3.0
WARM_UP_S: Final = 0.3


# --- the cluster ---------------------------------------------------------------------------------


class BenchCluster(Cluster):
    """Three voters, of which the third has nothing and starts when it is told to."""

    def __init__(self, directory: Path) -> None:
        self.wiped = 0
        super().__init__(directory, state="kv", snapshots=NEVER, log_starts=SOON)

    def empty(self, node: int) -> None:
        """Format a new, empty log directory for a stopped node."""
        self.wiped += 1
        self.format(node)

    def log_dir(self, node: int) -> Path:
        return self.directory / (f"{node}-{self.wiped}" if node == 3 else str(node))

    def said(self, node: int) -> Any:
        """Return a node's description of its log and checkpoints, or None if the request fails."""
        try:
            with Client("127.0.0.1", self.ports[node], timeout_s=30) as client:
                group = client.snapshots(TOPIC)
        except (OSError, ClientError):
            return None
        return None if group.error_code else group


def fill(cluster: Cluster, records: int, value_bytes: int) -> None:
    """Append keyed records of random bytes until the state has `records` keys."""
    each = max(1, BATCH_BYTES // value_bytes)
    with Client("127.0.0.1", cluster.ports[cluster.wait_for_leader()], timeout_s=60) as client:
        for first in range(0, records, each):
            numbers = range(first, min(records, first + each))
            pool = os.urandom(value_bytes + len(numbers))  # a window of it each: no two alike
            client.produce_keyed(
                [(b"key-%d" % n, pool[n - first : n - first + value_bytes]) for n in numbers]
            )


def until(condition: Callable[[], bool], what: str, *, timeout_s: float = 300) -> None:
    """Wait until a condition holds, and check it every 50 ms."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.05)


# --- what is measured ----------------------------------------------------------------------------


def rss_bytes(pid: int) -> int:
    """Return a process's anonymous memory in bytes, or 0 if the process has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next(
        (int(row.split()[1]) * 1024 for row in status.splitlines() if row.startswith("RssAnon")), 0
    )


@contextmanager
def highest(pid: int) -> Iterator[list[int]]:
    """Sample a process's memory in a `with` block; yield a list of first and highest value."""
    found = [rss_bytes(pid), 0]
    stop = threading.Event()

    def sample() -> None:
        while not stop.wait(0.01):
            found[1] = max(found[1], rss_bytes(pid))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()


def start_load(port: int, in_flight: int, seconds: float) -> subprocess.Popen[str]:
    """Start a process that commits records of 100 B, and prints its figures at the end."""
    work = {"port": port, "connections": 1, "in_flight": in_flight, "records": 1}
    work |= {"seconds": seconds, "warm_up_s": WARM_UP_S}  # type: ignore[dict-item]
    return subprocess.Popen(
        [sys.executable, "-m", "bench.load", json.dumps(work)], stdout=subprocess.PIPE, text=True
    )


def p99_ms(load: subprocess.Popen[str]) -> float:
    out, _ = load.communicate(timeout=120)
    found = json.loads(out)
    assert not found["errors"], f"{found['errors']} answers with an error"
    return float(found["p99_ms"])


def disk_mb_per_s(directory: Path, size_bytes: int) -> float:
    """Return the MB/s of sequential writes with an fdatasync every 8 MiB."""
    block = os.urandom(8 * 1024 * 1024)
    path = directory / "disk"
    began = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(max(1, size_bytes // len(block))):
            file.write(block)
            os.fdatasync(file.fileno())
    elapsed = time.perf_counter() - began
    written = path.stat().st_size
    path.unlink()
    return written / 1e6 / elapsed


# --- the rows ------------------------------------------------------------------------------------


def generate(cluster: BenchCluster, leader: int) -> tuple[float, int]:
    """Take a checkpoint on the leader, and return the seconds taken and the checkpoint's bytes."""
    with Client("127.0.0.1", cluster.ports[leader], timeout_s=300) as client:
        began = time.perf_counter()
        taken = client.take_snapshot(TOPIC, 300_000)
        elapsed = time.perf_counter() - began
    assert taken.error_code == 0, taken
    return elapsed, taken.size


def under_load(
    cluster: BenchCluster, leader: int, seconds: float, work: Callable[[Callable[[], None]], object]
) -> dict[str, float]:
    """Return the p99 of commits for each load while `work` runs, which starts the load."""
    found = {}
    for name, in_flight in LOADS:
        loads: list[subprocess.Popen[str]] = []

        def begin(in_flight: int = in_flight) -> None:
            loads.append(start_load(cluster.ports[leader], in_flight, seconds))  # noqa: B023

        work(begin)
        found[name] = p99_ms(loads[0])
    return found


def come_up(
    cluster: BenchCluster, leader: int, begin: Callable[[], None] = lambda: None
) -> tuple[float, list[int], int]:
    """Start node 3 empty; return seconds until caught up, memory meanwhile, and memory after."""
    cluster.empty(3)
    end_offset = cluster.said(leader).high_watermark
    installed = cluster.output(3).count("action=install_snapshot") if cluster.wiped > 1 else 0
    cluster.start(3)
    pid = cluster.processes[3].pid
    until(lambda: cluster.said(3) is not None, "node 3 answers")  # the interpreter starts
    begin()
    began = time.perf_counter()
    with highest(pid) as memory:
        until(lambda: applied(cluster, 3) >= end_offset, "node 3 has the state")
        elapsed = time.perf_counter() - began
    time.sleep(0.3)
    afterwards = rss_bytes(pid)
    assert cluster.output(3).count("action=install_snapshot") > installed, "it came by the log"
    cluster.kill(3)
    return elapsed, memory, afterwards


def applied(cluster: BenchCluster, node: int) -> int:
    said = cluster.said(node)
    return -1 if said is None else int(said.applied_offset)


def run(directory: Path, records: int, value_bytes: int, seconds: float, peer: int) -> None:
    """Measure and print all rows of the checkpoint benchmark."""
    small_entries(directory / "small", records)
    with BenchCluster(directory / "large") as cluster:
        cluster.start(1, 2)
        began = time.perf_counter()
        fill(cluster, records, value_bytes)
        leader = cluster.wait_for_leader()
        follower = 3 - leader
        say(f"filled with {records:,} records in {time.perf_counter() - began:.1f} s")
        idle = under_load(cluster, leader, seconds, lambda begin: begin())
        rows_of_generation(cluster, leader, follower, seconds, idle, records)
        rows_of_serving(cluster, leader, seconds, idle, directory)
    if peer:
        found = pysyncobj_snapshots.measure(peer, SMALL_BYTES)
        line(
            "PySyncObj, no fsync", f"{found['mb_per_s']:.1f} MB/s",
            f"{peer:,} values of {SMALL_BYTES} B to an empty node",
            f"generation {found['generation_s'] / peer * 1e6:.1f} s per million",
        )  # fmt: skip


def small_entries(directory: Path, records: int) -> None:
    """Measure and print how fast a checkpoint of many small records is generated."""
    with BenchCluster(directory) as cluster:
        cluster.start(1, 2)
        fill(cluster, records, SMALL_BYTES)
        leader = cluster.wait_for_leader()
        until(lambda: applied(cluster, leader) >= records, "everything is applied")
        elapsed, size = generate(cluster, leader)
        per_million = elapsed / records * 1e6
        line(f"generation, values of {SMALL_BYTES} B", f"{per_million:.2f} s per million",
             f"{size / 1e6:.0f} MB", "must 5, aim 2; PySyncObj below")  # fmt: skip


def rows_of_generation(
    cluster: BenchCluster,
    leader: int,
    follower: int,
    seconds: float,
    idle: dict[str, float],
    records: int,
) -> None:
    pid = cluster.processes[leader].pid
    with highest(pid) as memory:
        alone_s, size = generate(cluster, leader)
    per_million = alone_s / records * 1e6
    line("generation, no other load", f"{per_million:.2f} s per million",
         f"{size / 1e6:.0f} MB, {size / 1e6 / alone_s:.0f} MB/s", "must 5, aim 2")  # fmt: skip
    times: list[float] = []

    def generate_again(begin: Callable[[], None]) -> None:
        before = cluster.said(leader).log_end_offset
        begin()
        until(lambda: cluster.said(leader).log_end_offset > before, "the load commits")
        time.sleep(WARM_UP_S)
        times.append(generate(cluster, leader)[0])

    busy = under_load(cluster, leader, seconds, generate_again)
    say(f"  generation took {', '.join(f'{one:.2f} s' for one in times)} beside the load")
    rows_of_p99("generating", idle, busy)
    row_of_memory("generating", memory[1] - memory[0])
    generate(cluster, follower)
    until(lambda: cluster.said(leader).log_start_offset > 0, "the leader's log is cut")


def rows_of_serving(
    cluster: BenchCluster, leader: int, seconds: float, idle: dict[str, float], directory: Path
) -> None:
    size = cluster.said(leader).snapshots[-1].size
    disk = disk_mb_per_s(directory, size)
    with highest(cluster.processes[leader].pid) as serving:
        elapsed, installing, afterwards = come_up(cluster, leader)
    rate = size / 1e6 / elapsed
    line("empty replica to state loaded", f"{rate:.0f} MB/s",
         f"{size / 1e6:.0f} MB in {elapsed:.2f} s; disk {disk:.0f} MB/s",
         f"of disk {rate / disk:.2f}; must 100, aim 200")  # fmt: skip
    log_of_fetch(cluster)
    times: list[float] = []
    busy = under_load(
        cluster, leader, seconds, lambda begin: times.append(come_up(cluster, leader, begin)[0])
    )
    say(f"  a node came up in {', '.join(f'{one:.2f} s' for one in times)} beside the load")
    rows_of_p99("serving", idle, busy)
    row_of_memory("serving", serving[1] - serving[0])
    row_of_memory("installing", installing[1] - afterwards)


def log_of_fetch(cluster: BenchCluster) -> None:
    """Print the part of the catch-up that node 3 logged as its snapshot fetch."""
    for text in cluster.output(3).splitlines():
        if "action=fetched_snapshot" in text and f"group={TOPIC}" in text:
            say(f"  of that {text.partition('action=')[2]}")


def rows_of_p99(what: str, idle: dict[str, float], busy: dict[str, float]) -> None:
    for name in idle:
        line(f"p99 while {what}, {name}", f"{busy[name]:.2f} ms", f"idle {idle[name]:.2f} ms",
             f"ratio {busy[name] / idle[name]:.2f}; must 2, aim 1.2")  # fmt: skip


def row_of_memory(what: str, grown_bytes: int) -> None:
    line(f"memory while {what}", f"{grown_bytes / 2**20:+.1f} MiB", "", "must 64, aim 16")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--tiny", action="store_true", help="seconds instead of minutes")
    parser.add_argument("--records", type=int, default=RECORDS, help="values in the state")
    parser.add_argument("--value-bytes", type=int, default=VALUE_BYTES, help="bytes of each")
    parser.add_argument("--no-peer", action="store_true", help="without PySyncObj")
    arguments = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    say(f"commit {commit}, Python {platform.python_version()}, {os.cpu_count()} cores")
    records, peer, seconds = arguments.records, PEER_ENTRIES, SECONDS
    if arguments.tiny:
        records, peer, seconds = 3_000, 0, 0.2
    with tempfile.TemporaryDirectory(prefix="esker-bench-") as name:
        run(Path(name), records, arguments.value_bytes, seconds, 0 if arguments.no_peer else peer)


if __name__ == "__main__":
    main()
