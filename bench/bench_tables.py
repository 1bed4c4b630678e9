"""Measures the rows/s of a topic into an Iceberg table, and the time of a commit after many.

    python -m bench.bench_tables [--tiny] [--records 1000000] [--commits 10000] [--lag 0]

Rows: a cluster of three controllers and one broker, objects in a directory, a topic of 4 partitions
filled by librdkafka with records of 100 B; `esker spark tables run` on Spark, local[2], after a
small batch that warms up; the catalogue is SQLite, in a directory.

Commits: a table without a cluster, in a directory, that has the files of 10,000 commits in
manifests as full as merges leave them. The files are names; none is read. Then 220 commits of one
real file each, as `run` makes them: snapshots reach the number at which they expire, and manifests
merge. Printed are the median of the last 100 commits and the longest of all, CPU and wall; and the
same after a tenth of the commits, for the slope.

Lag, with --lag SECONDS: the longest age of the table's newest record, looked at twice a second,
while 10,000 records a second are produced for so long and `esker spark tables run` commits every
30 s.

Musts: 0.2 M rows/s; 1 s for a commit after 10,000; a lag of 45 s.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyiceberg.io.pyarrow import parquet_file_to_data_file

from bench.bench_records import fill
from spark_jobs.readers.engines import SparkEngine
from spark_jobs.session.spark_session import session
from spark_jobs.topic_tables.catalogs import open_catalog
from spark_jobs.topic_tables.iceberg_table import DataFile, IcebergTable, plain_type
from spark_jobs.topic_tables.job import JobSettings, TopicJob
from spark_jobs.topic_tables.progress import RUN, Progress
from spark_jobs.topic_tables.rows import KAFKA_COLUMNS
from spark_jobs.topic_tables.schemas import RawValues
from tests.clients.cluster import EskerCluster

WARMING: Final = 10_000
MEASURED: Final = 220  # the snapshots that expire, and two merges of manifests
LAST: Final = 100
IN_MANIFEST: Final = 650  # entries in 128 KiB
LAG_RATE: Final = 10_000  # records a second
FILE_PATH: Final = 1  # the index of the path in a manifest's data file
NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)


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


def longest_lag(home: Path, seconds: int) -> float:
    """Return the longest age of the newest record of a table, in seconds."""
    with EskerCluster(home / "cluster", brokers=1) as cluster:
        cluster.start()
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic("measured", 4)])["measured"].result()
        end = time.monotonic() + seconds
        producing = threading.Thread(target=produce, args=(cluster.bootstrap, end))
        producing.start()
        command = [
            sys.executable, "-m", "esker", "spark", "tables", "run", "measured",
            "--bootstrap-server", cluster.bootstrap, "--store", str(cluster.store),
            "--warehouse", str(home / "lag"), "--interval", "30",
        ]  # fmt: skip
        run = subprocess.Popen(command)
        try:
            catalog = open_catalog(str(home / "lag"), None, {})
            longest = 0.0
            while time.monotonic() < end:
                time.sleep(0.5)
                if catalog.table_exists(("kafka", "measured")):
                    text = catalog.load_table(("kafka", "measured")).properties[RUN]
                    newest = json.loads(text).get("newest_ms")
                    longest = max(longest, time.time() - newest / 1000 if newest else 0.0)
        finally:
            run.terminate()
            run.wait()
            producing.join()
    return longest


def produce(bootstrap: str, end: float) -> None:
    """Write records of 100 B at a steady rate until a moment of the monotonic clock."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20})
    began, count = time.monotonic(), 0
    while (now := time.monotonic()) < end:
        for number in range(count, int((now - began) * LAG_RATE)):
            producer.produce("measured", b"," * 100, b"%08d" % number, partition=number % 4)
            count = number + 1
        producer.poll(0.01)
    producer.flush()


class Taken(NamedTuple):
    """The seconds of a commit."""

    cpu_s: float
    wall_s: float


def commit_seconds(home: Path, count: int, measured: int) -> list[Taken]:
    """Return what each commit takes on a table that has the files of `count` commits."""
    table = new_table(home, {})
    files = [write_file(table, number) for number in range(measured)]
    add_names(table, files[0], count)
    taken = []
    for number, file in enumerate(files):
        began = time.process_time(), time.monotonic()
        table.commit([file], {0: number + 1}, newest_ms=number)
        taken.append(Taken(time.process_time() - began[0], time.monotonic() - began[1]))
    return taken


def new_table(home: Path, properties: Mapping[str, str]) -> IcebergTable:
    """Create a table in a directory, and take it over."""
    table = IcebergTable(open_catalog(str(home), None, {}), ("kafka", "commits"), RUN)
    start = Progress(driver="", batch=0, offsets={0: 0})
    table.create(KAFKA_COLUMNS, partition_by="day", start=start, properties=properties)
    table.take_over()
    return table


def write_file(table: IcebergTable, offset: int) -> DataFile:
    """Write a Parquet file of one row."""
    fields = [pa.field(one.name, plain_type(one.type)) for one in table.table.schema().as_arrow()]
    row = {"key": b"key", "partition": 0, "offset": offset, "timestamp": NOW, "headers": None}
    path = f"{table.data_location}/{offset}.parquet"
    with table.table.io.new_output(path).create() as stream:
        pq.write_table(pa.Table.from_pylist([row], schema=pa.schema(fields)), stream)
    return DataFile(path, len(table.table.io.new_input(path)), 1)


def add_names(table: IcebergTable, file: DataFile, count: int) -> None:
    """Add names of `count` files to the table, in manifests of the size at which merges stop."""
    entry = parquet_file_to_data_file(table.table.io, table.table.metadata, file.path)
    summary = {RUN: table.progress.to_json()}
    for first in range(0, count, IN_MANIFEST):
        with (
            table.table.transaction() as transaction,
            transaction.update_snapshot(snapshot_properties=summary).fast_append() as update,
        ):
            for number in range(first, min(count, first + IN_MANIFEST)):
                named = copy.copy(entry)
                named._data = [*entry._data]
                named._data[FILE_PATH] = f"{table.data_location}/{number:016x}.parquet"
                update.append_data_file(named)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tiny", action="store_true", help="commits only, and few")
    parser.add_argument("--records", type=int, default=1_000_000, help="of 100 B; 0: none")
    parser.add_argument("--commits", type=int, default=10_000)
    parser.add_argument("--lag", type=int, default=0, help="seconds; 0: none")
    arguments = parser.parse_args()
    records, commits = (0, 3) if arguments.tiny else (arguments.records, arguments.commits)
    measured = 2 if arguments.tiny else MEASURED
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    print(
        f"commit {commit or '?'}, Python {platform.python_version()}, {os.cpu_count()} cores, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    with tempfile.TemporaryDirectory() as home:
        if records:
            rate = rows_per_second(Path(home) / "rows", records)
            print(f"topic to Iceberg, {records:,} records: {rate / 1e3:.0f} k rows/s", flush=True)
        if arguments.lag:
            print(
                f"a lag of at most {longest_lag(Path(home) / 'lag', arguments.lag):.1f} s",
                flush=True,
            )
        for after in sorted({commits // 10, commits}):
            taken = commit_seconds(Path(home) / str(after), after, measured)
            last = [statistics.median(column) for column in zip(*taken[-LAST:], strict=True)]
            most = [max(column) for column in zip(*taken, strict=True)]
            print(
                f"a commit after {after:,}: CPU {last[0]:.3f} s, wall {last[1]:.3f} s; of "
                f"{measured} at most {most[0]:.3f} s, {most[1]:.3f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
