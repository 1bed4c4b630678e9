"""How fast does the log become a DataFrame, and what is the most that could be hoped for?

    python -m bench.bench_spark_scan [--rows 2000000] [--seed 20261121]

A log of object commits, a hundred batches each, in segments as a coordinator writes them; each row
is one batch. `esker_log` reads them from the raw segments, and Spark takes every row with all the
columns of the table (and once with fifteen of them). Beside it, in the same run:

- *transport*: a source of Python's that yields the same Arrow batches again and again, which costs
  it nothing: what crossing from Python to the JVM allows, whatever the decoder does;
- *decode*: our decoder alone, on one core, no JVM;
- Spark on Parquet files of the same rows, pandas and DuckDB on the same files: those were decoded
  when somebody wrote them, so they tell what an archive (`--as parquet`) is good for.

The least of the rounds, after one that is thrown away, on local[2]; and the CPU seconds of that
round, of JVM and Python together, which say the same on a machine that does something else, too.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from bench.retention_log import SEED, make_world, write_world
from raft.segments.files import RealFileSystem
from raft.segments.high_watermarks import write_high_watermarks
from raft.segments.properties import MetaProperties, write_meta_properties
from records.types import NodeId
from records.uuids import random_uuid
from spark_jobs.readers.inputs import Inputs, open_logs
from spark_jobs.session.spark_session import start_session, stop_session
from spark_jobs.source.log_source import EskerLog, LogReader
from spark_jobs.source.options import parse_options

LOG: Final = "__diskless-metadata-0"
TABLE: Final = "object_commit"
ROUNDS: Final = 3
PARTITIONS: Final = 5_000
SEGMENT_BYTES: Final = 8 * 1024 * 1024
TASKS: Final = 2
PARQUET_FILES: Final = 8
FIFTEEN: Final = (
    "log_offset", "log_epoch", "log_timestamp_ms", "object_id", "broker_id", "topic_id",
    "partition", "byte_offset", "byte_size", "base_offset", "record_count", "max_timestamp",
    "producer_id", "producer_epoch", "base_sequence",
)  # fmt: skip


class Transport(DataSource):
    """Arrow batches that are there already: what comes after a decoder that takes no time."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the data source, for Spark's `format` method."""
        return "transport"

    def schema(self) -> StructType:
        """Return the schema of the Arrow batch in the file that the options name."""
        return from_arrow_schema(_one_batch(self.options["path"]).schema)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 (Spark's keyword)
        """Return a reader that yields the file's batch as often as the option `times` says."""
        return TransportReader(self.options["path"], int(self.options["times"]))


class TransportReader(DataSourceReader):
    """The same batch again and again."""

    def __init__(self, path: str, times: int) -> None:
        self.path = path
        self.times = times

    def partitions(self) -> list[InputPartition]:
        """Return one input partition for each of Spark's parallel tasks."""
        return [InputPartition(i) for i in range(TASKS)]

    def read(self, _: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batch as many times as one task's share requires."""
        batch = _one_batch(self.path)
        for _ in range(self.times // TASKS):
            yield batch


def _one_batch(path: str) -> pa.RecordBatch:
    with pa.ipc.open_file(path) as file:
        return file.get_batch(0)


class Measured(NamedTuple):
    """The least of some rounds."""

    seconds: float
    cpu_seconds: float


def least(work: Callable[[], object]) -> Measured:
    """Return the least time and CPU time of `work`, after one round that is not counted."""
    found = []
    for _ in range(ROUNDS + 1):
        gc.collect()
        cpu, began = cpu_seconds(), time.perf_counter()
        work()
        found.append(Measured(time.perf_counter() - began, cpu_seconds() - cpu))
    return min(found[1:])


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and its descendants, ended ones included."""
    own = os.getpid()
    parents, used = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            pid = int(path.parent.name)
            parents[pid] = int(fields[1])
            used[pid] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    total = 0.0
    for pid, seconds in used.items():
        above = pid
        while above not in (0, own):
            above = parents.get(above, 0)
        total += seconds if above == own else 0.0
    return total


def write_log(directory: Path, rows: int, seed: int) -> None:
    """Write a node's log directory with a generated coordinator log."""
    world = make_world(rows, PARTITIONS, seed)
    end = write_world(world, directory / LOG, segment_bytes=SEGMENT_BYTES)
    files = RealFileSystem()
    meta = MetaProperties(cluster_id="bench", node_id=NodeId(1), directory_id=random_uuid())
    write_meta_properties(files, directory, meta)
    write_high_watermarks(files, directory, {("__diskless-metadata", 0): end})


def arrow_batches(directory: Path) -> Iterator[pa.RecordBatch]:
    """Yield the Arrow batches that Spark's tasks would read, without Spark."""
    options = parse_options({"logDir": str(directory), "log": LOG, "table": TABLE})
    reader = LogReader(options)
    for partition in reader.partitions():
        yield from reader.read(partition)


def write_parquet(directory: Path, target: Path) -> int:
    """Write the log's decoded rows as Parquet files, and return the number of rows."""
    target.mkdir()
    table = pa.Table.from_batches(arrow_batches(directory))
    rows = -(-table.num_rows // PARQUET_FILES)
    for i in range(PARQUET_FILES):
        pq.write_table(table.slice(i * rows, rows), target / f"{i}.parquet", compression="zstd")
    return int(table.num_rows)


def to_nowhere(frame: DataFrame) -> None:
    """Make Spark compute every row and column of a data frame, and discard the result."""
    frame.write.format("noop").mode("overwrite").save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    print(f"commit {commit}, Python {platform.python_version()}, {platform.machine()}")
    with tempfile.TemporaryDirectory() as home:
        measure(Path(home), options.rows, options.seed)


def measure(home: Path, rows: int, seed: int) -> None:
    """Write the log, measure each reader of its rows, and print the results."""
    node, parquet, arrow = home / "node", home / "parquet", home / "batch.arrow"
    write_log(node, rows, seed)
    count = write_parquet(node, parquet)
    first = next(arrow_batches(node))
    with pa.ipc.new_file(arrow, first.schema) as file:
        file.write_batch(first)
    log = open_logs(Inputs(log_dir=node)).log(LOG)
    size = sum(path.stat().st_size for path in (node / LOG).glob("*.log"))
    pieces = len(log.spans(log.end_offset()))
    print(
        f"{count} rows of {first.num_columns} columns, {size / 1e6:.0f} MB of log, {pieces} spans"
    )

    print(f"{'':44} {'seconds':>8} {'M rows/s':>9} {'CPU s':>7}")

    def report(name: str, least: Measured, rows: int = count) -> None:
        rate = rows / least.seconds / 1e6
        print(f"{name:44} {least.seconds:8.2f} {rate:9.2f} {least.cpu_seconds:7.2f}", flush=True)

    report("decode alone, one core", least(lambda: [None for _ in arrow_batches(node)]))
    without_spark(parquet, report)
    spark = start_session(f"local[{TASKS}]", app="bench", memory="2g")
    try:
        spark.dataSource.register(EskerLog)
        spark.dataSource.register(Transport)

        def ours(**more: Any) -> DataFrame:
            read = spark.read.format("esker_log").option("log", LOG).option("table", TABLE)
            return read.options(**more).load(str(node))

        times = count // first.num_rows // TASKS * TASKS or TASKS
        transport = spark.read.format("transport").option("times", times).load(str(arrow))
        native = spark.read.parquet(str(parquet))
        report("esker_log, all columns", least(lambda: to_nowhere(ours())))
        report(
            "transport, all columns",
            least(lambda: to_nowhere(transport)),
            times * first.num_rows,
        )
        report("esker_log, 15 columns", least(lambda: to_nowhere(ours(columns=",".join(FIFTEEN)))))
        report("Spark on Parquet, all columns", least(lambda: to_nowhere(native)))
        keys = ("topic_id", "partition")
        few = ",".join((*keys, "byte_size"))
        report(
            "esker_log, bytes by partition",
            least(lambda: to_nowhere(ours(columns=few).groupBy(*keys).sum("byte_size"))),
        )
        report(
            "Spark on Parquet, bytes by partition",
            least(lambda: to_nowhere(native.groupBy(*keys).sum("byte_size"))),
        )
    finally:
        stop_session(spark)


def without_spark(parquet: Path, report: Callable[[str, Measured], None]) -> None:
    """Measure pandas and DuckDB on the same Parquet files, and report the results."""
    import duckdb
    import pandas as pd

    report("pandas on Parquet, all columns", least(lambda: pd.read_parquet(parquet)))
    connection = duckdb.connect()
    connection.execute(f"set threads = {TASKS}")
    files = f"'{parquet}/*.parquet'"
    report(
        "DuckDB on Parquet, all columns to Arrow",
        least(lambda: connection.sql(f"from {files}").to_arrow_table()),
    )
    query = f"select topic_id, partition, sum(byte_size) from {files} group by all"
    report("DuckDB on Parquet, bytes by partition", least(lambda: connection.sql(query).fetchall()))


if __name__ == "__main__":
    main()
