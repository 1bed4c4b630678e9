"""Measures the rows/s of a topic into an Iceberg table, and the time of a commit after many.

    python -m bench.bench_tables [--tiny] [--records 1000000] [--commits 300]

Rows: a cluster of three controllers and one broker, objects in a directory, a topic of 4 partitions
filled by librdkafka with records of 100 B; `esker spark tables run` on Spark, local[2], after a
small batch that warms up; the catalogue is SQLite, in a directory.

Commits: a table without a cluster, to which commits add no file, as `run` makes them. Snapshots
expire on the way, as they do there, so that there are never more than 120: 300 commits show what
10,000 do, but for the manifests. Printed is the median of the last 20.

Musts: 0.2 M rows/s; 1 s for a commit after 10,000.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

from bench.bench_records import fill
from spark_jobs.readers.engines import SparkEngine
from spark_jobs.session.spark_session import session
from spark_jobs.topic_tables.catalogs import open_catalog
from spark_jobs.topic_tables.iceberg_table import IcebergTable
from spark_jobs.topic_tables.job import JobSettings, TopicJob
from spark_jobs.topic_tables.progress import RUN, Progress
from spark_jobs.topic_tables.rows import KAFKA_COLUMNS
from spark_jobs.topic_tables.schemas import RawValues
from tests.clients.cluster import EskerCluster

WARMING: Final = 10_000
LAST: Final = 20


def rows_per_second(home: Path, count: int) -> float:
    """Return the rows per second of a topic that becomes a table."""
    with (
        EskerCluster(home / "cluster", brokers=1) as cluster,
        session("local[2]", app="bench", memory="2g") as spark,
    ):
        cluster.start()
        catalog = open_catalog(str(home / "lake"), None, {})
        source = {"kafka.bootstrap.servers": cluster.bootstrap, "store": str(cluster.store)}
        settings = JobSettings(source=source, namespace=("kafka",), max_records=count)
        taken = 0.0
        for topic, size in (("warming", min(WARMING, count)), ("measured", count)):
            fill(cluster, topic, size, 100)
            job = TopicJob(settings, topic, catalog, SparkEngine(spark), RawValues())
            job.start()
            began, rows = time.monotonic(), 0
            while step := job.step().rows:
                rows += step
            taken = time.monotonic() - began
            assert rows == size, f"{rows} rows, not {size}"
    return count / taken


def commit_seconds(home: Path, count: int) -> list[float]:
    """Return the seconds of the first, and of each of the last commits of many."""
    table = IcebergTable(open_catalog(str(home), None, {}), ("kafka", "commits"), RUN)
    start = Progress(driver="", batch=0, offsets={0: 0})
    table.create(KAFKA_COLUMNS, partition_by="day", start=start)
    table.take_over()
    taken = []
    for number in range(count):
        began = time.monotonic()
        table.commit([], {0: number + 1}, newest_ms=number)
        taken.append(time.monotonic() - began)
    return [taken[0], *taken[-LAST:]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tiny", action="store_true", help="commits only, and few")
    parser.add_argument("--records", type=int, default=1_000_000, help="of 100 B; 0: none")
    parser.add_argument("--commits", type=int, default=300)
    arguments = parser.parse_args()
    records, commits = (0, 3) if arguments.tiny else (arguments.records, arguments.commits)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    print(
        f"commit {commit or '?'}, Python {platform.python_version()}, {os.cpu_count()} cores, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    with tempfile.TemporaryDirectory() as home:
        if records:
            rate = rows_per_second(Path(home), records)
            print(f"topic to Iceberg, {records:,} records: {rate / 1e3:.0f} k rows/s", flush=True)
        first, *last = commit_seconds(Path(home), commits)
        print(
            f"a commit after {commits:,}: {statistics.median(last):.3f} s, at most "
            f"{max(last):.3f} s; the first {first:.3f} s"
        )


if __name__ == "__main__":
    main()
