"""How fast does Spark read a topic from the object store, beside its own Kafka source?

    python -m bench.bench_records [--tiny] [--records 1000000] [--rounds 3]

A cluster of three controllers and one broker, objects in a directory, topics of 4 partitions filled
by librdkafka with records of 100 B and 1 KiB; PySpark on local[2] in a session without settings of
ours. Each read goes to a sink that drops its rows: `esker_records`, and Spark's Kafka source 4.2.0
with kafka.max.poll.records=100000 and at its defaults. They take turns; medians of the rounds after
two that warm up. CPU seconds per million records are those of the JVM, of its Python workers with
this process, and of the broker and the controllers: all, and without what these take in the same
time when no client asks for anything.

The trap: a read starts processes, and the JVM compiles for seconds. Of fewer than some millions of
records that is most of the figure.

Musts: 1.5 times as fast as the tuned source, 4 times as fast as the other; CPU of all 2.0 s a
million at 100 B and 6 at 1 KiB; of broker and controllers 0.2 at 100 B.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from spark_jobs.topics.records_source import EskerRecords
from tests.clients.cluster import EskerCluster
from tests.interop.kafka_release import KafkaMissingError, fetch

POM: Final = Path(__file__).parents[1] / "tests" / "spark_jobs" / "spark_kafka.xml"
PARTITIONS: Final = 4
TICKS: Final = os.sysconf("SC_CLK_TCK")
SEED: Final = 5
WARMING_ROUNDS: Final = 2
IDLE_S: Final = 10.0


class Taken(NamedTuple):
    """What one read took."""

    wall_s: float
    jvm_s: float  # CPU, as all that follow
    python_s: float
    cluster_s: float


class Counters(NamedTuple):
    """A moment, and the CPU seconds that processes have taken until then."""

    now_s: float
    jvm_s: float
    python_s: float
    cluster_s: float

    @classmethod
    def read(cls, cluster: EskerCluster) -> Counters:
        """Read the counters of this process, of all below it, and of a cluster's nodes."""
        nodes = [process.pid for process in cluster.processes.values()]
        tree = set(process_tree(os.getpid())) - {
            pid for node in nodes for pid in process_tree(node)
        }
        jvms = {pid for pid in tree if program(pid).startswith("java")}
        return cls(
            time.monotonic(), cpu_seconds(jvms), cpu_seconds(tree - jvms), cpu_seconds(nodes)
        )

    def since(self, before: Counters) -> Taken:
        """Return what was taken since then."""
        return Taken(*(end - begin for begin, end in zip(before, self, strict=True)))


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the CPU seconds of processes, and of their children that have ended."""
    total = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
    return total / TICKS


def process_tree(root: int) -> list[int]:
    """Return a process and all below it."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def program(pid: int) -> str:
    """Return the name of a process's program, empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def fill(cluster: EskerCluster, topic: str, count: int, size: int) -> None:
    """Create a topic and write its records; the values are half random text."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result()
    random_ = random.Random(SEED)
    text = random_.randbytes(1 << 16).hex().encode()
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 20})
    for number in range(count):
        at = random_.randrange(len(text) - size)
        value = text[at : at + size // 2] + b"," * (size - size // 2)
        while True:
            try:
                producer.produce(topic, value, b"%08d" % number, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


def read(spark: Any, cluster: EskerCluster, topic: str, source: str, **options: str) -> Taken:
    """Read a topic to a sink that drops its rows."""
    frame = spark.read.format(source).options(
        **{"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic, **options}
    )
    before = Counters.read(cluster)
    frame.load().write.format("noop").mode("overwrite").save()
    return Counters.read(cluster).since(before)


def compare(
    spark: Any, cluster: EskerCluster, topic: str, count: int, rounds: int, idle: float
) -> None:
    """Print what each source takes for a topic.

    Args:    idle: CPU seconds a second of the cluster without clients.
    """
    sources: dict[str, tuple[str, dict[str, str]]] = {
        "esker_records": ("esker_records", {"store": str(cluster.store)}),
        "kafka, tuned": ("kafka", {"kafka.max.poll.records": "100000"}),
        "kafka": ("kafka", {}),
    }
    taken: dict[str, list[Taken]] = {name: [] for name in sources}
    for number in range(WARMING_ROUNDS + rounds):
        for name, (source, options) in sources.items():
            one = read(spark, cluster, topic, source, **options)
            if number >= WARMING_ROUNDS:
                taken[name].append(one)
    ours = statistics.median(one.wall_s for one in taken["esker_records"])
    for name, some in taken.items():
        wall, *cpu = (statistics.median(column) for column in zip(*some, strict=True))
        jvm, python, nodes = (seconds / count * 1e6 for seconds in cpu)
        print(
            f"{topic:10}{name:16}{count / wall / 1e3:10.0f} k/s{wall / ours:8.2f}{jvm:10.2f}"
            f"{python:10.2f}{nodes:10.2f}{max(0.0, nodes - idle * wall / count * 1e6):12.2f}"
            f"{jvm + python + nodes:10.2f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tiny", action="store_true", help="a few of each, to see that it runs")
    parser.add_argument(
        "--records", type=int, default=1_000_000, help="of 100 B; a quarter of 1 KiB"
    )
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    count, rounds = (2_000, 1) if arguments.tiny else (arguments.records, arguments.rounds)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    load = os.getloadavg()[0]
    print(
        f"commit {commit or '?'}, Python {platform.python_version()}, {os.cpu_count()} cores, "
        f"load {load:.1f}"
    )
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    try:
        jars = ",".join(str(path) for path in fetch("spark-kafka", POM).glob("*.jar"))
    except KafkaMissingError as error:
        print(f"nothing to compare with: {error}")
        return
    with tempfile.TemporaryDirectory() as home, EskerCluster(Path(home), brokers=1) as cluster:
        cluster.start()
        fill(cluster, "100B", count, 100)
        fill(cluster, "1KiB", count // 4, 1024)
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.jars", jars)
            .config("spark.driver.memory", "2g")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
        spark.dataSource.register(EskerRecords)
        before = Counters.read(cluster)
        time.sleep(IDLE_S)
        taken = Counters.read(cluster).since(before)
        idle = taken.cluster_s / taken.wall_s
        print(f"the cluster without clients takes {idle:.3f} CPU s a second")
        print(
            f"{'topic':10}{'source':16}{'records':>14}{'wall':>8}{'JVM s/M':>10}{'Python':>10}"
            f"{'cluster':>10}{'above idle':>12}{'all':>10}"
        )
        compare(spark, cluster, "100B", count, rounds, idle)
        compare(spark, cluster, "1KiB", count // 4, rounds, idle)
        spark.stop()


if __name__ == "__main__":
    main()
