"""How fast does Spark read a topic from the object store, beside its own Kafka source?

    python -m bench.bench_records [--tiny] [--records 1000000] [--rounds 3]

A cluster of three controllers and one broker, objects in a directory, topics of 4 partitions filled
by librdkafka with records of 100 B and 1 KiB; PySpark on local[2] in a session without settings of
ours. Each read goes to a sink that drops its rows: `esker_records`, and Spark's Kafka source 4.2.0
with kafka.max.poll.records=100000 and at its defaults. They take turns; medians of the rounds after
one that warms up. CPU seconds per million records are those of Spark with its Python workers, and
of the broker and the controllers.

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


class Taken(NamedTuple):
    """What one read took."""

    wall_s: float
    spark_s: float  # CPU
    cluster_s: float  # CPU


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
    nodes = [process.pid for process in cluster.processes.values()]
    tree = set(process_tree(os.getpid())) - {pid for node in nodes for pid in process_tree(node)}
    before = time.monotonic(), cpu_seconds(tree), cpu_seconds(nodes)
    frame.load().write.format("noop").mode("overwrite").save()
    tree = set(process_tree(os.getpid())) - {pid for node in nodes for pid in process_tree(node)}
    after = time.monotonic(), cpu_seconds(tree), cpu_seconds(nodes)
    return Taken(*(end - begin for begin, end in zip(before, after, strict=True)))


def compare(spark: Any, cluster: EskerCluster, topic: str, count: int, rounds: int) -> None:
    """Print what each source takes for a topic."""
    sources: dict[str, tuple[str, dict[str, str]]] = {
        "esker_records": ("esker_records", {"store": str(cluster.store)}),
        "kafka, tuned": ("kafka", {"kafka.max.poll.records": "100000"}),
        "kafka": ("kafka", {}),
    }
    taken: dict[str, list[Taken]] = {name: [] for name in sources}
    for number in range(rounds + 1):
        for name, (source, options) in sources.items():
            one = read(spark, cluster, topic, source, **options)
            if number:
                taken[name].append(one)
    ours = statistics.median(one.wall_s for one in taken["esker_records"])
    for name, some in taken.items():
        wall, of_spark, of_cluster = (
            statistics.median(column) for column in zip(*some, strict=True)
        )
        print(
            f"{topic:10}{name:16}{count / wall / 1e3:10.0f} k/s{wall / ours:8.2f}"
            f"{of_spark / count * 1e6:12.2f}{of_cluster / count * 1e6:12.2f}",
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
        print(
            f"{'topic':10}{'source':16}{'records':>14}{'wall':>8}{'Spark s/M':>12}{'cluster':>12}"
        )
        compare(spark, cluster, "100B", count, rounds)
        compare(spark, cluster, "1KiB", count // 4, rounds)
        spark.stop()


if __name__ == "__main__":
    main()
