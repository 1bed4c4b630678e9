"""What do clients get of a broker: latency and throughput, through librdkafka and real processes?

    .venv/bin/python -m bench.bench_broker [latency] [lowest] [throughput] [kafka] [--tiny]
    .venv/bin/python -m bench.bench_broker --bootstrap-server HOST:PORT [--command-config FILE]

Without words, all four. Three quorum nodes, one broker and this client share the machine; objects
lie in a directory. With --bootstrap-server, lowest and throughput of a running cluster at its own
settings, in topics that are deleted afterwards; FILE has Kafka's client properties.

- latency: from produce() to the delivery report, at the seeds' settings (250 ms, 8 MiB) and on a
  store that takes 100 ms in the median and 400 ms at the 99th percentile (`bench.simulated_store`).
- lowest: commit interval 1 ms, one record at a time, from produce() until a consumer has it. Beside
  it, the time of the same with no broker in between: a write and fdatasync of one small object.
- throughput: records of 1 KiB, produced and then consumed, with batches of librdkafka's default
  size and of 1 MiB.
- kafka: the same throughput and lowest latency of Apache Kafka on this machine, one node, if a
  release is in .cache (`tests.interop` downloads it). It writes to the page cache, and says so.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.client_settings import librdkafka_settings
from bench.consuming import read_all
from esker.client.security import CommandConfigError
from tests.clients.apache_kafka import apache_kafka
from tests.clients.cluster import FIRST_BROKER, EskerCluster
from tests.interop.kafka_release import KafkaMissingError, KafkaSetupError, fetch
from tests.interop.kafka_run import Kafka

TINY: Final = "--tiny" in sys.argv
LATENCY_S: Final = 2 if TINY else 30
LATENCY_RATE: Final = 100  # records a second
LOWEST_RECORDS: Final = 20 if TINY else 500
THROUGHPUT_BYTES: Final = (4 if TINY else 200) * 1024 * 1024
RECORD_BYTES: Final = 1_024
PARTITIONS: Final = 4
BATCHES: Final = {"default": {}, "1 MiB": {"batch.size": 1_000_000, "linger.ms": 50}}
DELIVERED_S: Final = 120.0
PARTITION_UA: Final = -1  # librdkafka: the partitioner chooses
PLAINTEXT: Final[Mapping[str, Any]] = {}  # settings of librdkafka


def percentile(values: Sequence[float], share: float) -> float:
    """Return the percentile of the values at `share`, a number from 0 to 1."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def admin_of(bootstrap: str, security: Mapping[str, Any]) -> AdminClient:
    """Return a client that has its first token, if it authenticates by tokens."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **security})
    admin.poll(0)  # calls oauth_cb, for which the other calls of an AdminClient wait in vain
    return admin


def create(
    bootstrap: str, topic: str, partitions: int, security: Mapping[str, Any] = PLAINTEXT
) -> None:
    """Create a topic and wait for the broker's confirmation."""
    admin = admin_of(bootstrap, security)
    for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        future.result(30)


# --- latency --------------------------------------------------------------------------------------


def produce_latencies(bootstrap: str, topic: str, seconds: float) -> list[float]:
    """Send records at a steady rate, and return each record's Produce latency in ms."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "acks": "all"})
    took: list[float] = []

    def delivered(begun: float) -> Callable[[Any, Any], None]:
        def report(error: Any, _: Any) -> None:
            assert error is None, error
            took.append((time.perf_counter() - begun) * 1_000)

        return report

    begin = time.perf_counter()
    for number in range(int(seconds * LATENCY_RATE)):
        while (wait := begin + number / LATENCY_RATE - time.perf_counter()) > 0:
            producer.poll(min(wait, 0.001))
        producer.produce(
            topic, os.urandom(100), partition=number % PARTITIONS,
            on_delivery=delivered(time.perf_counter()),
        )  # fmt: skip
    assert producer.flush(DELIVERED_S) == 0
    return took[len(took) // 10 :]  # the first ones meet a cold broker


def latency() -> None:
    """Measure and print Produce latency with a 250 ms commit interval and a slow store."""
    settings = {
        "diskless.append.commit.interval.ms": "250",
        "diskless.append.buffer.max.bytes": str(8 * 1024 * 1024),
        "diskless.storage.class.name": "bench.simulated_store.SimulatedStorage",
    }
    with tempfile.TemporaryDirectory() as home, esker(home, settings) as cluster:
        create(cluster.bootstrap, "latency", PARTITIONS)
        took = produce_latencies(cluster.bootstrap, "latency", LATENCY_S)
        line("produce latency, 250 ms, slow store", took, "must 500 / 1000, aim 400 / 900")


def line(what: str, took: Sequence[float], note: str) -> None:
    """Print a line with p50 and p99 of the latencies in `took`."""
    print(
        f"{what:<40} p50 {percentile(took, 0.5):7.1f} ms   p99 {percentile(took, 0.99):7.1f} ms"
        f"   n={len(took)}   {note}",
        flush=True,
    )


def end_to_end(
    bootstrap: str, topic: str, records: int, security: Mapping[str, Any] = PLAINTEXT
) -> list[float]:
    """Send one record at a time, and return each time in ms from produce() to the consumer."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": "all", **security})
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 500,
            **security,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    came = threading.Semaphore(0)
    stop = threading.Event()

    def consume() -> None:
        while not stop.is_set():
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                came.release()

    thread = threading.Thread(target=consume)
    thread.start()
    took = []
    try:
        for _ in range(records):
            begun = time.perf_counter()
            producer.produce(topic, b"x" * 100, partition=0)
            producer.poll(0)
            assert came.acquire(timeout=30), "a record did not arrive"
            took.append((time.perf_counter() - begun) * 1_000)
    finally:
        stop.set()
        thread.join()
        consumer.close()
        producer.flush(10)
    return took[len(took) // 10 :]


def fdatasync_latencies(home: str, count: int) -> list[float]:
    """Return the times in ms to write small files durably: the directory store's lower bound."""
    took = []
    for number in range(count):
        begun = time.perf_counter()
        with (Path(home) / f"probe-{number}").open("wb") as file:
            file.write(b"x" * 300)
            file.flush()
            os.fdatasync(file.fileno())
        took.append((time.perf_counter() - begun) * 1_000)
    return took


def lowest() -> None:
    """Measure and print end-to-end latency with a commit interval of 1 ms."""
    with (
        tempfile.TemporaryDirectory() as home,
        esker(home, {"diskless.append.commit.interval.ms": "1"}) as cluster,
    ):
        create(cluster.bootstrap, "lowest", 1)
        took = end_to_end(cluster.bootstrap, "lowest", LOWEST_RECORDS)
        line("end to end, 1 ms", took, "must 25, aim 8 (p50)")
        floor = fdatasync_latencies(home, min(100, LOWEST_RECORDS))
        line("  floor: one small file, fdatasync", floor, "")
        ratio = percentile(took, 0.5) / max(0.001, percentile(floor, 0.5))
        print(f"  end to end / floor: {ratio:.1f}", flush=True)


# --- throughput -----------------------------------------------------------------------------------


def throughput_of(
    name: str, bootstrap: str, security: Mapping[str, Any] = PLAINTEXT, prefix: str = ""
) -> dict[str, tuple[float, float]]:
    """Measure and return the produced and consumed MB/s for each kind of batch."""
    rates = {}
    value = os.urandom(RECORD_BYTES)
    records = THROUGHPUT_BYTES // RECORD_BYTES
    for kind, settings in BATCHES.items():
        topic = f"{prefix}throughput-{kind.replace(' ', '-')}"
        create(bootstrap, topic, PARTITIONS, security)
        own = {**settings, **security}
        produce_s = produce(bootstrap, topic, value, records, own, PARTITIONS)
        consume_s = read_all(bootstrap, topic, PARTITIONS, records, security)
        produced, consumed = (records * RECORD_BYTES / took for took in (produce_s, consume_s))
        rates[kind] = (produced / 1e6, consumed / 1e6)
        print(
            f"{name:<14} 1 KiB records, {kind:<8} batches: produced {produced / 1e6:7.1f} MB/s   "
            f"consumed {consumed / 1e6:7.1f} MB/s",
            flush=True,
        )
    return rates


def produce(
    bootstrap: str,
    topic: str,
    value: bytes,
    records: int,
    settings: dict[str, Any],
    partitions: int | None = None,
) -> float:
    """Return the seconds until librdkafka has all records acknowledged.

    Args:  partitions: write to each of so many in turn; None: as librdkafka's partitioner chooses.
    """
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 512 * 1024,
            **settings,
        }
    )
    failed: list[Any] = []

    def report(error: Any, _: Any) -> None:
        if error is not None:
            failed.append(error)

    begun = time.perf_counter()
    for number in range(records):
        while True:
            try:
                partition = number % partitions if partitions else PARTITION_UA
                producer.produce(topic, value, partition=partition, on_delivery=report)
                break
            except BufferError:
                producer.poll(0.05)
        if number % 1_000 == 0:
            producer.poll(0)
    assert producer.flush(DELIVERED_S) == 0, "not all was delivered in time"
    assert not failed, failed[0]
    return time.perf_counter() - begun


def throughput() -> dict[str, tuple[float, float]]:
    """Return Esker's produced and consumed MB/s with a 250 ms commit interval."""
    settings = {"diskless.append.commit.interval.ms": "250"}
    with tempfile.TemporaryDirectory() as home, esker(home, settings) as cluster:
        return throughput_of("Esker", cluster.bootstrap)


class WarmKafka(Kafka):
    """With the compiler, collector and heap that its own scripts give it, not those of tests."""

    def command(self, main_class: str, *arguments: str | Path, heap_mib: int = 1024) -> list[str]:
        words = super().command(main_class, *arguments, heap_mib=heap_mib)
        quick = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
        return [word for word in words if word not in quick]


def kafka(ours: dict[str, tuple[float, float]] | None) -> None:
    """Measure Apache Kafka's throughput and latency, if Kafka can be run, and print them."""
    try:
        release = WarmKafka(fetch())
    except (KafkaMissingError, KafkaSetupError) as error:
        print(f"Apache Kafka: not compared: {error}")
        return
    with (
        tempfile.TemporaryDirectory() as home,
        apache_kafka(release, Path(home) / "kafka") as world,
    ):
        theirs = throughput_of("Apache Kafka", world.bootstrap)
        create(world.bootstrap, "lowest", 1)
        took = end_to_end(world.bootstrap, "lowest", LOWEST_RECORDS)
        line("Apache Kafka, end to end", took, "acks=all, one node, no fsync")
    for kind, (produced, consumed) in (ours or {}).items():
        print(
            f"Esker / Apache Kafka, {kind} batches: produced {produced / theirs[kind][0]:.2f}, "
            f"consumed {consumed / theirs[kind][1]:.2f}"
        )


def running(bootstrap: str, command_config: Path | None, words: Sequence[str]) -> None:
    """Measure and print end-to-end latency and throughput of a cluster that is already there."""
    if unknown := set(words) - {"lowest", "throughput"}:
        raise SystemExit(f"{min(unknown)}: of a running cluster only lowest and throughput")
    try:
        security = librdkafka_settings(command_config) if command_config else PLAINTEXT
    except CommandConfigError as error:
        raise SystemExit(str(error)) from None
    prefix = f"bench-{os.getpid()}-{int(time.time())}-"
    try:
        if "lowest" in words:
            create(bootstrap, f"{prefix}lowest", 1, security)
            took = end_to_end(bootstrap, f"{prefix}lowest", LOWEST_RECORDS, security)
            line(f"{bootstrap}, end to end", took, "")
        if "throughput" in words:
            throughput_of(bootstrap, bootstrap, security, prefix)
    finally:
        admin = admin_of(bootstrap, security)
        made = [topic for topic in admin.list_topics(timeout=30).topics if topic.startswith(prefix)]
        for future in admin.delete_topics(made).values() if made else ():
            future.result(30)


def esker(home: str, settings: dict[str, str], metrics: str | None = None) -> EskerCluster:
    """Start three quorum nodes and a broker; the returned context manager stops them.

    Args:  metrics: host and port at which the broker serves its metrics.
    """
    own = {FIRST_BROKER: {"esker.metrics.listener": metrics}} if metrics else None
    cluster = EskerCluster(Path(home) / "esker", brokers=1, settings=settings, settings_of=own)
    try:
        cluster.start()
    except BaseException:
        cluster.kill()
        raise
    return cluster


def main() -> None:
    """Run the benchmarks that the command line names, or all benchmarks."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ("latency", "lowest", "throughput", "kafka")
    parser.add_argument("words", nargs="*", metavar="WORD", help=f"of {', '.join(names)}")
    parser.add_argument("--bootstrap-server", metavar="HOST:PORT", help="a running cluster")
    parser.add_argument("--command-config", type=Path, metavar="FILE", help="of its clients")
    parser.add_argument("--tiny", action="store_true", help="see that it runs")
    options = parser.parse_args()
    if unknown := set(options.words) - set(names):
        parser.error(f"{min(unknown)}: is none of {', '.join(names)}")
    if options.command_config and not options.bootstrap_server:
        parser.error("--command-config needs --bootstrap-server: own clusters are PLAINTEXT")
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    print(
        f"commit={commit} python={platform.python_version()} machine={platform.machine()} "
        f"cores={os.cpu_count()} load={statistics.fmean(os.getloadavg()[:1]):.1f}"
    )
    if options.bootstrap_server:
        words = options.words or ["lowest", "throughput"]
        running(options.bootstrap_server, options.command_config, words)
        return
    ours = None
    for word in options.words or names:
        match word:
            case "latency":
                latency()
            case "lowest":
                lowest()
            case "throughput":
                ours = throughput()
            case "kafka":
                kafka(ours)


if __name__ == "__main__":
    main()
