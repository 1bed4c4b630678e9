"""Transactions of the Java client, on Esker and on a warm Apache Kafka in the same run.

    .venv/bin/python -m bench.bench_transactions [ROW ...] [--rounds 3] [--tiny]

Three quorum nodes and one broker, objects in a directory, and one node of Apache Kafka at its own
transaction.version, 2, with the heap and compiler of its own scripts. Both run all the time, are
warmed, and take turns. Esker speaks the first protocol (TV1) in the first half of a run and, after
`esker features upgrade`, the second (TV2) in the other half, as the Java client chooses by it.

Rows: plain (one record at a time, ms, no transaction), loop (begin, send, commit, ms), rate (100
producers, each with transactions over three partitions, transactions a second), visible (from the
end of a commit until a reader of committed records has the record, ms), idempotent and throughput
(MB/s of Kafka's producer performance tool without, and with transactions of a second), and fast
(the loop on a second cluster whose upper interval is 5 ms; Esker alone).
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench.bench_broker import WarmKafka, create, esker
from bench.bench_defaults import DEFAULT_INTERVAL, PERF, RECORD_BYTES
from tests.clients.apache_kafka import apache_kafka_node
from tests.interop.kafka_release import fetch

PROGRAM: Final = Path(__file__).with_name("peers") / "Transactions.java"
PARTITIONS: Final = 12


class Size(NamedTuple):
    """The amount of work of each row."""

    loops: int
    producers: int
    loops_each: int  # of each of the producers
    records: int


FULL: Final = Size(300, 100, 40, 300_000)
TINY: Final = Size(5, 3, 5, 1_000)


class Times(NamedTuple):
    """What a load printed."""

    p50_ms: float
    p99_ms: float
    rate: float  # rounds a second of all producers


class System(NamedTuple):
    """A running system under test."""

    name: str
    bootstrap: str


class Bench:
    """Runs loads on systems, each with a topic and ids of its own."""

    def __init__(self, kafka: WarmKafka, size: Size) -> None:
        self._kafka = kafka
        self._size = size
        self._count = 0

    def _topic(self, system: System) -> str:
        self._count += 1
        name = f"load-{self._count}"
        create(system.bootstrap, name, PARTITIONS)
        return name

    def _load(self, system: System, mode: str, producers: int, partitions: int, n: int) -> Times:
        topic = self._topic(system)
        counts = [str(number) for number in (producers, partitions, n)]
        said = self._kafka.run(
            str(PROGRAM), system.bootstrap, topic, topic, mode, *counts, timeout_s=600
        )
        found = re.search(r"p50=([\d.]+) p99=([\d.]+) rate=([\d.]+)", said.out)
        assert found, said
        return Times(*map(float, found.groups()))

    def plain(self, system: System) -> Times:
        """Time records that are sent one at a time, without transactions."""
        return self._load(system, "plain", 1, 1, self._size.loops)

    def loop(self, system: System) -> Times:
        """Time transactions of one record, one after the other."""
        return self._load(system, "transactions", 1, 1, self._size.loops)

    def rate(self, system: System) -> Times:
        """Time transactions over three partitions of many producers at once."""
        return self._load(system, "transactions", self._size.producers, 3, self._size.loops_each)

    def visible(self, system: System) -> Times:
        """Time committed records on their way to a reader of committed records."""
        return self._load(system, "visible", 1, 1, self._size.loops)

    def _throughput(self, system: System, *words: str) -> Times:
        topic = self._topic(system)
        records = self._size.records
        said = self._kafka.run(
            PERF, "--topic", topic, "--num-records", str(records + records // 4),
            "--warmup-records", str(records // 4), "--record-size", str(RECORD_BYTES),
            "--throughput", "-1", "--bootstrap-server", system.bootstrap, *words,
            timeout_s=600,
        ).out  # fmt: skip
        found = re.findall(r"\(([\d.]+) MB/sec\)", said)
        assert found, said
        return Times(0, 0, float(found[-1]) * 1.048576)

    def idempotent(self, system: System) -> Times:
        """Measure MB/s of an idempotent producer."""
        return self._throughput(system)

    def throughput(self, system: System) -> Times:
        """Measure MB/s of a producer that commits a transaction every second."""
        words = ("--transaction-duration-ms", "1000", "--transactional-id", f"perf-{self._count}")
        return self._throughput(system, *words)


Row = Callable[[Bench, System], Times]

ROWS: Final[dict[str, tuple[str, Row]]] = {
    "plain": ("p50 ms", Bench.plain),
    "loop": ("p50 ms", Bench.loop),
    "visible": ("p50 ms", Bench.visible),
    "rate": ("/s", Bench.rate),
    "idempotent": ("MB/s", Bench.idempotent),
    "throughput": ("MB/s", Bench.throughput),
}
BOUNDS: Final = {
    "loop": "must: p50 at most 25 ms above plain",
    "visible": "must: p50 at most 25 ms",
    "rate": "must: 400 /s and 0.25 of Kafka",
    "throughput": "must: 0.9 of idempotent",
    "fast": "must: p50 40 ms, p99 120 ms",
}


def show(name: str, unit: str, ours: Sequence[Times], theirs: Sequence[Times] = ()) -> None:
    """Print the medians of a row."""

    def text(found: Sequence[Times]) -> str:
        p50, p99, rate = (statistics.median(values) for values in zip(*found, strict=True))
        return f"{p50:7.1f} p99 {p99:7.1f} ms" if unit == "p50 ms" else f"{rate:7.1f} {unit}"

    line = f"  {name:<11} Esker {text(ours)}"
    if theirs:
        at = 0 if unit == "p50 ms" else 2
        ratios = [mine[at] / other[at] for mine, other in zip(ours, theirs, strict=True)]
        each = " ".join(f"{ratio:.2f}" for ratio in ratios)
        line += f"   Kafka {text(theirs)}   ratio {statistics.median(ratios):5.2f} ({each})"
    print(f"{line}   {BOUNDS.get(name, '')}".rstrip(), flush=True)


def compare(names: Sequence[str], rounds: int, size: Size, levels: Sequence[int]) -> None:
    """Run rows on both systems in turn, at each level of Esker's transaction.version."""
    kafka = WarmKafka(fetch())
    bench = Bench(kafka, size)
    with tempfile.TemporaryDirectory() as home:
        fast_settings = {"diskless.append.commit.interval.ms": "5"}
        with (
            esker(f"{home}/default", DEFAULT_INTERVAL) as cluster,
            apache_kafka_node(kafka, Path(home) / "kafka") as node,
        ):
            systems = [
                System("Esker", cluster.bootstrap),
                System("Kafka", f"127.0.0.1:{node.ports['PLAINTEXT']}"),
            ]
            for level in levels:
                cluster.finalize_transactions(level)
                print(f"transaction.version {level} of Esker, 2 of Kafka", flush=True)
                for system in systems:
                    bench.rate(system)  # warms up
                for name in names:
                    if name in ROWS:
                        unit, row = ROWS[name]
                        found: dict[str, list[Times]] = {system.name: [] for system in systems}
                        for turn in range(rounds):
                            for system in systems if turn % 2 else systems[::-1]:
                                found[system.name].append(row(bench, system))
                        show(name, unit, found["Esker"], found["Kafka"])
        if "fast" in names:
            with esker(f"{home}/fast", fast_settings) as cluster:
                system = System("Esker", cluster.bootstrap)
                for level in levels:
                    cluster.finalize_transactions(level)
                    bench.loop(system)  # warms up
                    found_fast = [bench.loop(system) for _ in range(rounds)]
                    print(f"transaction.version {level}, upper interval 5 ms", flush=True)
                    show("fast", "p50 ms", found_fast)


def main() -> None:
    """Run the rows that the command line names, or all."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.bench_transactions", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    names = (*ROWS, "fast")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(names)}")
    parser.add_argument("--rounds", type=int, default=3, help="of each row; default: 3")
    parser.add_argument("--tiny", action="store_true", help="see that it runs")
    options = parser.parse_args()
    if unknown := set(options.rows) - set(names):
        parser.error(f"no such row: {', '.join(sorted(unknown))}; rows: {', '.join(names)}")
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    print(
        f"commit={commit} python={platform.python_version()} machine={platform.machine()} "
        f"cores={os.cpu_count()} load={os.getloadavg()[0]:.1f}",
        flush=True,
    )
    size = TINY if options.tiny else FULL
    compare(options.rows or names, options.rounds, size, (1, 2))


if __name__ == "__main__":
    main()
