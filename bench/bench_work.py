"""How much CPU does a server process need for a GB or a commit, beside an earlier checkout?

    python -m bench.bench_work [ROW ...] [--before CHECKOUT] [--rounds 5] [--tiny]

Three quorum nodes and two brokers, `esker start`, with default settings and objects in a directory;
with --before a second cluster runs the code of another checkout of this repository. Loads take
turns on both, each server process has the same cores, and CPU time (user and system, of /proc) is
read before and after a load. Other programs disturb CPU time less than elapsed time, but they take
the caches away. So the ratio is the median of the rounds' ratios.

Before a producer's load the kernel forgets the cached files of earlier loads, and takes their pages
again. A page that a virtual machine touches for the first time costs more CPU than what the broker
does with the bytes in it.

Rows: java and librdkafka (records of 1 KiB by producers with default settings over 12 partitions:
CPU of the broker a GB), small (the same in records of 100 B), consume (one librdkafka consumer with
default settings reads them again, from the broker's memory), store (the same by a broker that keeps
nothing in memory), commits (`esker-bench-log` with a state that stores keys, 1,000 requests under
way over 10 connections: CPU of the leader's process a commit) and window (100 over one connection).
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from bench.bench_broker import WarmKafka, create, produce
from bench.bench_defaults import DEFAULT_INTERVAL, PERF
from bench.bench_quorum import PRODUCT_SETTINGS, load, product_leader
from tests.clients.cluster import FIRST_BROKER, EskerCluster
from tests.interop.kafka_release import fetch
from tests.processes import ROOT
from tests.raft.driver.client import Client

PARTITIONS: Final = 12
RECORD_BYTES: Final = 1_024
SMALL_RECORD_BYTES: Final = 100
IN_MEMORY: Final = FIRST_BROKER
"""The broker that keeps what it wrote in memory, as by default."""

UNCACHED: Final = FIRST_BROKER + 1
NO_MEMORY: Final = {"esker.fetch.cache.max.bytes": "0", "esker.fetch.read.ahead.max.bytes": "0"}
CALM: Final = {
    "controller.quorum.election.timeout.ms": "5000",
    "controller.quorum.fetch.timeout.ms": "10000",
    "broker.session.timeout.ms": "60000",
}
"""So that a busy machine moves no leader between two readings."""


class CheckoutCluster(EskerCluster):
    """A cluster whose nodes run the code of a checkout."""

    def __init__(self, home: Path, checkout: Path) -> None:
        self._checkout = checkout
        racks = {broker: {"broker.rack": f"r{broker}"} for broker in (IN_MEMORY, UNCACHED)}
        super().__init__(
            home,
            brokers=2,
            settings={**DEFAULT_INTERVAL, **PRODUCT_SETTINGS, **CALM},
            settings_of={**racks, UNCACHED: {**racks[UNCACHED], **NO_MEMORY}},
        )

    def launch(
        self,
        *nodes: int,
        environment: Mapping[str, str] | None = None,
        fresh: bool | None = None,  # noqa: ARG002 (every process imports all modules)
    ) -> None:
        for node in nodes:
            with (self.home / f"node{node}.log").open("ab") as log:
                self.processes[node] = subprocess.Popen(
                    [sys.executable, "-m", "esker", "start", str(self.properties(node))],
                    stdout=log,
                    stderr=log,
                    cwd=self._checkout,
                    env={**os.environ, **(environment or {}), "PYTHONPATH": str(self._checkout)},
                )


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that all threads of a process have used so far."""
    return sum(
        int(path.read_text().split()[0]) / 1e9
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat")
    )


def forget_files(home: Path) -> None:
    """Let the kernel drop the cached pages of all files below a directory, once on disk."""
    os.sync()
    for path in home.rglob("*"):
        with suppress(OSError):  # nodes delete files meanwhile
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


@dataclass
class Side:
    """One checkout's cluster, and what its rows gave."""

    name: str
    cluster: EskerCluster
    figures: dict[str, list[float]] = field(default_factory=dict)
    others: dict[str, list[float]] = field(default_factory=dict)

    def bootstrap(self, broker: int) -> str:
        return f"127.0.0.1:{self.cluster.ports[broker]}"

    @contextmanager
    def measured(self, row: str, node: int, units: Callable[[], float]) -> Iterator[None]:
        """Note the CPU seconds for a unit of work: of a node, and of all nodes together."""
        processes = self.cluster.processes
        before = {one: cpu_s(process.pid) for one, process in processes.items()}
        yield
        used = {one: cpu_s(process.pid) - before[one] for one, process in processes.items()}
        done = units()
        self.figures.setdefault(row, []).append(used[node] / done)
        self.others.setdefault(row, []).append(sum(used.values()) / done)


@dataclass(frozen=True)
class Size:
    """The amount of work of a row."""

    megabytes: int
    seconds: float


FULL: Final = Size(100, 3.0)
TINY: Final = Size(2, 1.0)


def java(side: Side, row: str, turn: int, size: Size, kafka: Callable[[], WarmKafka]) -> None:
    """Let Kafka's performance tool produce with its default settings."""
    topic = f"{row}-{turn}"
    create(side.bootstrap(IN_MEMORY), topic, PARTITIONS)
    records = size.megabytes * 1_000_000 // RECORD_BYTES
    settings = side.cluster.home / "producer.properties"
    bootstrap = side.bootstrap(IN_MEMORY)
    settings.write_text(f"bootstrap.servers={bootstrap}\nclient.id=bench,esker_rack=r{IN_MEMORY}\n")
    words = (
        "--topic", topic, "--num-records", str(records), "--record-size", str(RECORD_BYTES),
        "--throughput", "-1", "--command-config", str(settings),
    )  # fmt: skip
    forget_files(side.cluster.home.parent)
    with side.measured(row, IN_MEMORY, lambda: records * RECORD_BYTES / 1e9):
        kafka().run(PERF, *words, timeout_s=600)


def librdkafka(side: Side, row: str, turn: int, size: Size, record_bytes: int) -> None:
    """Let librdkafka produce with its default settings."""
    topic, bootstrap = f"{row}-{turn}", side.bootstrap(IN_MEMORY)
    create(bootstrap, topic, PARTITIONS)
    records = size.megabytes * 1_000_000 // RECORD_BYTES
    settings = {"client.id": f"bench,esker_rack=r{IN_MEMORY}"}
    forget_files(side.cluster.home.parent)
    with side.measured(row, IN_MEMORY, lambda: records * record_bytes / 1e9):
        produce(bootstrap, topic, os.urandom(record_bytes), records, settings, PARTITIONS)


def consume(side: Side, row: str, turn: int, size: Size, broker: int) -> None:
    """Let one consumer process read what was produced in the same turn.

    It is twice what the other rows have, and still fits into a broker's memory: while the process
    starts, for half a second, the broker has only its idle work, which counts.
    """
    records = 2 * size.megabytes * 1_000_000 // RECORD_BYTES
    if f"consumed-{turn}" not in side.others:
        side.others[f"consumed-{turn}"] = []
        bootstrap = side.bootstrap(IN_MEMORY)
        create(bootstrap, f"consumed-{turn}", PARTITIONS)
        settings = {"client.id": f"bench,esker_rack=r{IN_MEMORY}"}
        value = os.urandom(RECORD_BYTES)
        produce(bootstrap, f"consumed-{turn}", value, records, settings, PARTITIONS)
    words = (f"consumed-{turn}", str(records), f"r{broker}")
    with side.measured(row, broker, lambda: records * RECORD_BYTES / 1e9):
        subprocess.run(
            [sys.executable, "-m", "bench.bench_work", "--read", side.cluster.bootstrap, *words],
            check=True,
        )


def commits(
    side: Side,
    row: str,
    turn: int,  # noqa: ARG001 (a row's)
    size: Size,
    connections: int,
    in_flight: int,
) -> None:
    """Set keys through the product's quorum, and note the CPU in microseconds a commit."""
    port = product_leader(side.cluster)
    (leader,) = [node for node, its in side.cluster.ports.items() if its == port]
    before = committed(port)
    with side.measured(row, leader, lambda: (committed(port) - before) / 1e6):
        load(
            port=port, connections=connections, in_flight=in_flight, records=1,
            seconds=size.seconds, warm_up_s=0.1, keyed=True,
        )  # fmt: skip


def committed(port: int) -> int:
    """Return the high watermark of the bench log: each record is a commit of its own."""
    with Client("127.0.0.1", port, timeout_s=60) as client:
        return client.describe("esker-bench-log").high_watermark


def rows(kafka: Callable[[], WarmKafka]) -> dict[str, tuple[str, Callable[..., None]]]:
    """Return the unit and the function of each row."""
    return {
        "java": ("s/GB", partial(java, kafka=kafka)),
        "librdkafka": ("s/GB", partial(librdkafka, record_bytes=RECORD_BYTES)),
        "small": ("s/GB", partial(librdkafka, record_bytes=SMALL_RECORD_BYTES)),
        "consume": ("s/GB", partial(consume, broker=IN_MEMORY)),
        "store": ("s/GB", partial(consume, broker=UNCACHED)),
        "commits": ("us", partial(commits, connections=10, in_flight=1_000)),
        "window": ("us", partial(commits, connections=1, in_flight=100)),
    }


def report(row: str, unit: str, sides: Sequence[Side]) -> None:
    """Print a row: the medians of each side, and the median of the rounds' ratios."""
    text = f"{row:<12}"
    for side in sides:
        own, together = (statistics.median(of[row]) for of in (side.figures, side.others))
        text += f"{side.name} {own:7.2f} {unit} (all nodes {together:7.2f})   "
    if len(sides) > 1:
        for figures in ("figures", "others"):
            before, now = (getattr(side, figures)[row] for side in sides)
            ratios = sorted(b / a for a, b in zip(before, now, strict=True))
            text += f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})  "
    print(text, flush=True)


def main() -> None:
    """Run the rows that the command line names, or all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", metavar="ROW")
    parser.add_argument("--before", type=Path, help="another checkout; default: only this one")
    parser.add_argument("--rounds", type=int, default=5, help="of each row; default: 5")
    parser.add_argument("--tiny", action="store_true", help="see that it runs")
    parser.add_argument("--read", nargs=4, help=argparse.SUPPRESS)  # a consumer's own process
    options = parser.parse_args()
    if options.read:
        from bench.consuming import read_all

        bootstrap, topic, records, rack = options.read
        of_rack = {"client.id": f"bench,esker_rack={rack}", "client.rack": rack}
        read_all(bootstrap, topic, PARTITIONS, int(records), of_rack)
        return
    kept: list[WarmKafka] = []

    def kafka() -> WarmKafka:
        if not kept:
            kept.append(WarmKafka(fetch()))
        return kept[0]

    all_rows = rows(kafka)
    if unknown := set(options.rows) - set(all_rows):
        parser.error(f"no such row: {', '.join(sorted(unknown))}; rows: {', '.join(all_rows)}")
    size, rounds = (TINY, 1) if options.tiny else (FULL, options.rounds)
    print(
        f"python={platform.python_version()} machine={platform.machine()} cores={os.cpu_count()} "
        f"load={os.getloadavg()[0]:.1f}"
    )
    checkouts = {"now": ROOT}
    if options.before:
        checkouts = {"before": options.before.resolve(), **checkouts}
    with tempfile.TemporaryDirectory() as home, ExitStack() as stack:
        sides = []
        for name, checkout in checkouts.items():
            cluster = stack.enter_context(CheckoutCluster(Path(home) / name, checkout))
            cluster.start()
            sides.append(Side(name, cluster))
        for name in options.rows or all_rows:
            unit, run = all_rows[name]
            for turn in range(-1, rounds):  # the first one warms up
                for side in sides if turn % 2 else sides[::-1]:
                    run(side, name, turn, size)
                    if turn < 0:
                        side.figures[name].clear()
                        side.others[name].clear()
            report(name, unit, sides)


if __name__ == "__main__":
    main()
