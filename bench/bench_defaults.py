"""Clients at their default settings, on Esker and on a warm Apache Kafka in the same run.

    .venv/bin/python -m bench.bench_defaults [ROW ...] [--rounds 3] [--tiny]

Three quorum nodes and one broker at Esker's default settings, and one node of Apache Kafka with
the heap and compiler of its own scripts, both running all the time. Both are warmed first; then
each row runs on both in turn, the order changing from round to round, and the medians and their
ratio are printed. Esker's objects lie in a directory. Kafka answers from its page cache, without a
second copy.

Rows: java (the Java producer; beside it the throughput that its bytes in flight allow, with the
upload, commit and CPU times of that run), idempotent-12 and idempotent-100 (librdkafka with
idempotence, by partitions), librdkafka-12 and librdkafka-1000, consume, fan-out (five consumers at
once), small (CPU of the servers a GB in records of 100 B), single (one record at a time), idle (CPU
of the servers). Without a name all of them, and then s3 (Esker alone: the Java producer and three
loads of small requests on a store that takes 100 ms, 400 ms at the 99th percentile).
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

from confluent_kafka import Consumer, Producer
from prometheus_client.parser import text_string_to_metric_families

from bench.bench_broker import DELIVERED_S, WarmKafka, create, esker, percentile, produce
from bench.consuming import read_all
from diskless.produce.closing import ClosingSettings
from tests.clients.apache_kafka import apache_kafka_node
from tests.clients.cluster import FIRST_BROKER
from tests.interop.kafka_release import fetch
from tests.interop.kafka_run import Kafka
from tests.ports import free_port

PERF: Final = "org.apache.kafka.tools.ProducerPerformance"
RECORD_BYTES: Final = 1_024
SMALL_RECORD_BYTES: Final = 100
DEFAULT_INTERVAL: Final = {"diskless.append.commit.interval.ms": "250"}  # over that of tests
SIMULATED: Final = {
    **DEFAULT_INTERVAL,
    "diskless.storage.class.name": "bench.simulated_store.SimulatedStorage",
    "esker.append.objects.per.second": "8",  # S3's default, which a class of one's own lacks
}
PUT_S: Final = 0.119  # the mean of simulated_store's distribution
QUIET_S: Final = ClosingSettings().quiet_ms / 1_000
JAVA_IN_FLIGHT_BYTES: Final = 5 * 12 * 16_384  # five requests, a batch of each partition in each
CLOCK_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Size:
    """The amount of work of each row."""

    megabytes: int
    java_records: int
    single_records: int
    idle_s: float
    steady_s: float


FULL: Final = Size(200, 400_000, 300, 10.0, 10.0)
TINY: Final = Size(2, 2_000, 10, 0.5, 1.0)


@dataclass(frozen=True)
class Server:
    """A running system under test."""

    name: str
    bootstrap: str
    pids: tuple[int, ...]
    broker: tuple[str, int] | None = None  # of Esker: where it serves its metrics, and its process

    def cpu_s(self) -> float:
        """Return the CPU seconds that all processes of the server have used so far."""
        return sum(map(cpu_s, self.pids))


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


Row = Callable[[Server, str, Size], float]
"""Runs one row on one system, with a prefix for its topics; returns its figure."""


# --- producing --------------------------------------------------------------------------------


def java(server: Server, prefix: str, size: Size, kafka: Kafka) -> float:
    """Return MB/s of Kafka's producer performance tool with default settings, 12 partitions."""
    create(server.bootstrap, prefix, 12)
    warm_up = size.java_records // 4
    words = (
        "--topic", prefix, "--num-records", str(size.java_records + warm_up), "--record-size",
        str(RECORD_BYTES), "--throughput", "-1", "--bootstrap-server", server.bootstrap,
        "--warmup-records", str(warm_up),
    )  # fmt: skip
    said = kafka.run(PERF, *words, timeout_s=600).out
    found = re.findall(r"\(([\d.]+) MB/sec\)", said)
    assert found, said
    return float(found[-1]) * 1.048576


@dataclass(frozen=True)
class BrokerTimes:
    """What an Esker broker has done since its start, and for how long."""

    bytes_in: float
    cpu_s: float
    objects: float
    upload_s: float
    commit_s: float

    @classmethod
    def now(cls, place: str, pid: int) -> BrokerTimes:
        """Read a broker's metrics, and the processor time of its process."""
        with urlopen(f"http://{place}/metrics") as page:
            families = text_string_to_metric_families(page.read().decode())
            values = {
                s.name: s.value for family in families for s in family.samples if not s.labels
            }
        return cls(
            values["esker_broker_bytes_in_total"],
            cpu_s(pid),
            values["esker_broker_objects_total"],
            values["esker_broker_upload_seconds_sum"],
            values["esker_broker_commit_seconds_sum"],
        )

    def write_s(self, earlier: BrokerTimes) -> float:
        """Return the mean time of an object's upload and commit since an earlier reading."""
        spent_s = self.upload_s + self.commit_s - earlier.upload_s - earlier.commit_s
        return spent_s / (self.objects - earlier.objects)

    def work_s(self, earlier: BrokerTimes) -> float:
        """Return the broker's processor time for as many bytes as a Java producer has in flight."""
        per_byte = (self.cpu_s - earlier.cpu_s) / (self.bytes_in - earlier.bytes_in)
        return per_byte * JAVA_IN_FLIGHT_BYTES


def java_bound(cycle_s: float) -> float:
    """Return the MB/s of a Java producer whose bytes in flight take `cycle_s` to be written.

    It can send none of the next bytes meanwhile.
    """
    return JAVA_IN_FLIGHT_BYTES / cycle_s / 1e6


def librdkafka(partitions: int, **settings: Any) -> Row:
    """Return a row that measures librdkafka's MB/s with these settings over some partitions."""

    def row(server: Server, prefix: str, size: Size) -> float:
        create(server.bootstrap, prefix, partitions)
        records = size.megabytes * 1_000_000 // RECORD_BYTES
        took_s = produce(server.bootstrap, prefix, os.urandom(RECORD_BYTES), records, settings)
        return records * RECORD_BYTES / took_s / 1e6

    return row


def small(server: Server, prefix: str, size: Size) -> float:
    """Return the servers' CPU seconds per GB of produced records of 100 B."""
    create(server.bootstrap, prefix, 12)
    records = size.megabytes * 250_000 // SMALL_RECORD_BYTES
    before = server.cpu_s()
    produce(server.bootstrap, prefix, os.urandom(SMALL_RECORD_BYTES), records, {})
    return (server.cpu_s() - before) / (records * SMALL_RECORD_BYTES / 1e9)


def single(server: Server, prefix: str, size: Size) -> float:
    """Return the median ms from produce() to the delivery report, one record at a time."""
    create(server.bootstrap, prefix, 1)
    producer = Producer({"bootstrap.servers": server.bootstrap})
    took: list[float] = []
    for _ in range(size.single_records):
        begun = time.perf_counter()
        producer.produce(prefix, b"x" * SMALL_RECORD_BYTES)
        assert producer.flush(DELIVERED_S) == 0
        took.append((time.perf_counter() - begun) * 1_000)
    return percentile(took[len(took) // 10 :], 0.5)


# --- consuming --------------------------------------------------------------------------------


def consume(readers: int) -> Row:
    """Return a row that measures the total MB/s of `readers` consumer processes on one topic."""

    def row(server: Server, prefix: str, size: Size) -> float:
        create(server.bootstrap, prefix, 12)
        records = size.megabytes * 1_000_000 // RECORD_BYTES
        produce(server.bootstrap, prefix, os.urandom(RECORD_BYTES), records, {})
        words = (sys.executable, "-m", "bench.bench_defaults", "--read", server.bootstrap, prefix)
        children = [
            subprocess.Popen([*words, str(records)], stdout=subprocess.PIPE, text=True)
            for _ in range(readers)
        ]
        took_s = [float(child.communicate()[0]) for child in children]
        return readers * records * RECORD_BYTES / max(took_s) / 1e6

    return row


def idle(server: Server, prefix: str, size: Size) -> float:
    """Return the percentage of a core that the servers take while one consumer waits."""
    create(server.bootstrap, prefix, 12)
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "idle"})
    consumer.subscribe([prefix])
    consumer.poll(2)
    before, begun = server.cpu_s(), time.perf_counter()
    consumer.poll(size.idle_s)
    share = (server.cpu_s() - before) / (time.perf_counter() - begun)
    consumer.close()
    return 100 * share


ROWS: Final[dict[str, tuple[str, str, Row]]] = {
    "idempotent-12": ("MB/s", "must 0.5", librdkafka(12, **{"enable.idempotence": True})),
    "idempotent-100": ("MB/s", "must 0.5", librdkafka(100, **{"enable.idempotence": True})),
    "librdkafka-12": ("MB/s", "must 0.8", librdkafka(12)),
    "librdkafka-1000": ("MB/s", "must 3", librdkafka(1_000)),
    "consume": ("MB/s", "must 0.9", consume(1)),
    "fan-out": ("MB/s", "must 0.9", consume(5)),
    "small": ("CPU s/GB", "must 2 at most", small),
    "single": ("ms", "must 20 ms at most", single),
    "idle": ("% of a core", "", idle),
}


# --- both systems -----------------------------------------------------------------------------


@contextmanager
def both(home: str) -> Iterator[tuple[Kafka, list[Server]]]:
    """Run Esker and Apache Kafka at the same time."""
    kafka = WarmKafka(fetch())
    with (
        esker(home, DEFAULT_INTERVAL, place := f"127.0.0.1:{free_port()}") as cluster,
        apache_kafka_node(kafka, Path(home) / "kafka") as node,
    ):
        pids = tuple(process.pid for process in cluster.processes.values())
        theirs = f"127.0.0.1:{node.ports['PLAINTEXT']}"
        broker = (place, cluster.processes[FIRST_BROKER].pid)
        yield (
            kafka,
            [
                Server("Esker", cluster.bootstrap, pids, broker),
                Server("Kafka", theirs, (node.process.pid,)),
            ],
        )


def compare(words: Sequence[str], rounds: int, size: Size) -> None:
    """Print for each row both servers' medians, the ratio per round and the median ratio."""
    with tempfile.TemporaryDirectory() as home, both(home) as (kafka, servers):
        shares: list[tuple[float, float]] = []  # of the Java producer's bound, with quiet and not

        def java_row(server: Server, prefix: str, size: Size) -> float:
            if server.broker is None:
                return java(server, prefix, size, kafka)
            before = BrokerTimes.now(*server.broker)
            reached = java(server, prefix, size, kafka)
            after = BrokerTimes.now(*server.broker)
            least_s = after.write_s(before) + after.work_s(before)
            with_quiet = reached / java_bound(least_s + QUIET_S)
            shares.append((with_quiet, reached / java_bound(least_s)))
            return reached

        rows: dict[str, tuple[str, str, Row]] = {"java": ("MB/s", "must 0.6", java_row), **ROWS}
        for server in servers:  # compiles what the rows run
            for name in ("java", "librdkafka-12"):
                rows[name][2](server, f"warm-up-{name}", size)
        shares.clear()
        for name in words or rows:
            unit, bound, row = rows[name]
            figures: dict[str, list[float]] = {server.name: [] for server in servers}
            for turn in range(rounds):
                for server in servers if turn % 2 else servers[::-1]:
                    figures[server.name].append(row(server, f"{name}-{turn}", size))
            ratios = [ours / theirs for ours, theirs in zip(*figures.values(), strict=True)]
            ours, theirs = (statistics.median(values) for values in figures.values())
            each = " ".join(f"{ratio:.2f}" for ratio in ratios)
            print(
                f"{name:<16} Esker {ours:8.1f} {unit}   Kafka {theirs:8.1f} {unit}   "
                f"ratio {statistics.median(ratios):5.2f}   ({each})   {bound}",
                flush=True,
            )
            if name == "java":
                with_quiet, without = (statistics.median(of) for of in zip(*shares, strict=True))
                print(
                    f"  of in-flight bytes / (PUT + commit + quiet + CPU): {with_quiet:.2f}   "
                    f"must 0.8; without quiet {without:.2f}",
                    flush=True,
                )


# --- a slow store -----------------------------------------------------------------------------


def steady(bootstrap: str, topic: str, producers: int, rate: float, value: bytes, s: float) -> None:
    """Send single records from several producers, each at `rate` records per second."""

    def one() -> None:
        producer = Producer({"bootstrap.servers": bootstrap})
        begun = time.perf_counter()
        for number in range(int(rate * s)):
            while (wait := begun + number / rate - time.perf_counter()) > 0:
                producer.poll(min(wait, 0.05))
            producer.produce(topic, value)
        assert producer.flush(DELIVERED_S) == 0

    threads = [threading.Thread(target=one) for _ in range(producers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def slow_store(size: Size) -> None:
    """Print the Java producer's share of its bound, and objects per second of three small loads."""
    kafka = WarmKafka(fetch())
    place = f"127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory() as home, esker(home, SIMULATED, place) as cluster:
        pids = tuple(process.pid for process in cluster.processes.values())
        server = Server("Esker", cluster.bootstrap, pids)
        before = BrokerTimes.now(place, pids[-1])
        reached = java(server, "s3-java", size, kafka)
        after = BrokerTimes.now(place, pids[-1])
        bound = java_bound(after.write_s(before))
        print(
            f"s3 java          Esker {reached:8.1f} MB/s  in-flight bytes / (PUT + commit) "
            f"{bound:.1f} MB/s   ratio {reached / bound:5.2f}   must 0.7   "
            f"(of in-flight bytes / {PUT_S * 1_000:.0f} ms: {reached / java_bound(PUT_S):.2f})",
            flush=True,
        )
        create(server.bootstrap, "s3-small", 200)
        loads = (
            ("one producer of 2 MB/s over 200 partitions", 1, 2_000.0, 1_000),
            ("200 clients of 10 requests/s", 200, 10.0, 100),
            ("100 clients of 1 request/s", 100, 1.0, 100),
        )
        for what, producers, rate, record_bytes in loads:
            before = objects_in(cluster.store)
            begun = time.perf_counter()
            value = os.urandom(record_bytes)
            steady(server.bootstrap, "s3-small", producers, rate, value, size.steady_s)
            rate_seen = (objects_in(cluster.store) - before) / (time.perf_counter() - begun)
            print(f"s3 objects       {what}: {rate_seen:.1f}/s   must 9 at most", flush=True)


def objects_in(store: Path) -> int:
    """Return the number of files below a directory."""
    return sum(len(files) for _, _, files in os.walk(store))


def main() -> None:
    """Run the benchmark rows that the command line names, or all rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ("java", *ROWS, "s3")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(names)}")
    parser.add_argument("--rounds", type=int, default=3, help="of each row; default: 3")
    parser.add_argument("--tiny", action="store_true", help="see that it runs")
    parser.add_argument("--read", nargs=3, help=argparse.SUPPRESS)  # a consumer's own process
    options = parser.parse_args()
    if options.read:
        bootstrap, topic, records = options.read
        print(read_all(bootstrap, topic, 12, int(records)))
        return
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
    compared = [name for name in options.rows if name != "s3"]
    if compared or not options.rows:
        compare(compared, options.rounds, size)
    if not options.rows or "s3" in options.rows:
        slow_store(size)


if __name__ == "__main__":
    main()
