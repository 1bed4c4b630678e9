"""How fast is a log archived, what of it is Avro, and how fast does the archive come back?

    python -m bench.bench_archive [--batches 400000] [--records 200000] [--tiny] [--spark]

Two logs: a coordinator's, with object commits of a hundred batches each (one row a batch once they
are decoded), and a cluster's, with small records of two types. Beside ours, in the same run:
walking the log with every checksum and nothing else, which everything must do; fastavro given ready
rows of the tables (what Avro alone costs, without the envelope); and Parquet, written by pyarrow
from ready columns.

One process; the least of the rounds. Seconds are wall clock, rates and ratios are of processor
time, which says the same on a machine that has other work to do; `--spark` adds executors,
local[2], and tells seconds alone, for their work is done elsewhere.
"""

from __future__ import annotations

import argparse
import gc
import io
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final
from uuid import UUID

import pyarrow.parquet as pq

from bench.retention_log import make_world, write_world
from raft.segments.files import RealFileSystem
from raft.segments.log import Log, LogConfig
from records.batch_writer import build_value_batch
from records.frame import encode_record
from records.metadata import PartitionRecord, TopicRecord
from spark_jobs.archive.avro_schemas import avro_schema
from spark_jobs.archive.check import check_archive
from spark_jobs.archive.engines import ArchiveEngine, LocalArchiveEngine
from spark_jobs.archive.job import archive, open_archive
from spark_jobs.readers.archived_logs import ArchivedLogs
from spark_jobs.readers.avro_files import AvroWriter
from spark_jobs.readers.log_files import LogFiles
from spark_jobs.readers.object_store import open_store
from spark_jobs.tables.arrow_batches import read_table

COMMITS: Final = "__diskless-metadata-0"
SMALL: Final = "__cluster_metadata-0"
PARTITIONS: Final = 5_000
SEGMENT_BYTES: Final = 64 * 1024 * 1024
RECORDS_OF_BATCH: Final = 100
ROUNDS: Final = 3


class OneLog:
    """A cluster with one log, all of it committed."""

    cluster_id = "bench"

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self.name = name

    def names(self) -> list[str]:
        """Return the name of the only log."""
        return [self.name]

    def log(self, name: str) -> LogFiles:
        """Open a log by name as files of the directory."""
        return LogFiles(self._directory / name)


def write_small(directory: Path, records: int) -> None:
    """Write a log of topics with one partition each, two records per topic."""
    directory.mkdir()
    log = Log.create(RealFileSystem(), directory, LogConfig())
    for base in range(0, records, RECORDS_OF_BATCH):
        values: list[bytes] = []
        for number in range(base // 2, (base + RECORDS_OF_BATCH) // 2):
            topic_id = UUID(int=number + 1)
            values += (
                encode_record(TopicRecord(name=f"topic-{number}", topic_id=topic_id)),
                encode_record(
                    PartitionRecord(
                        partition_id=0, topic_id=topic_id, replicas=(1, 2, 3), isr=(1, 2, 3),
                        removing_replicas=(), adding_replicas=(), leader=1, leader_epoch=0,
                        partition_epoch=0,
                    )
                ),
            )  # fmt: skip
        log.append(build_value_batch(values, base_offset=base, leader_epoch=1, timestamp=base))
    log.close()


def least(work: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Return the least wall-clock and CPU seconds of `work` over all rounds."""
    times = []
    for _ in range(rounds):
        gc.collect()
        began, busy = time.perf_counter(), time.process_time()
        work()
        times.append((time.perf_counter() - began, time.process_time() - busy))
    return min(wall for wall, _ in times), min(busy for _, busy in times)


class Bench:
    """One log's rows of the table."""

    def __init__(self, directory: Path, logs: OneLog, tables: tuple[str, ...], rounds: int) -> None:
        self._directory = directory
        self._logs = logs
        self._tables = tables
        self._rounds = rounds
        log = logs.log(logs.name)
        self._end = log.end_offset()
        self._spans = log.spans(self._end)
        self._bytes = sum(path.stat().st_size for path in log.directory.glob("*.log"))

    def run(self, spark: ArchiveEngine | None) -> None:
        """Measure all rows of the table for this log, and print each row when it is measured."""
        batches = [
            one for table in self._tables for s in self._spans for one in read_table(table, s)
        ]
        rows = sum(batch.num_rows for batch in batches)
        print(f"\n{self._logs.name}: {self._end} records, {rows} rows, {self._bytes / 1e6:.0f} MB")
        print(f"{'':40}{'s':>8}{'cpu s':>8}{'records/s':>12}{'rows/s':>12}{'MB/s':>8}{'x walk':>8}")
        walk = self._report("walk the log, checksums only", self._walk, rows)
        for tables in ("avro", "parquet"):
            self._report(f"archive, {tables}", partial(self._archive, tables), rows, walk)
        if spark is not None:
            self._report(
                "archive, avro, Spark local[2]", lambda: self._archive("avro", spark), rows, walk
            )
        self._archive("avro")
        size = sum(path.stat().st_size for path in self._out.rglob("*.avro"))
        self._report("read the archive back", self._read, rows, walk)
        self._report("verify the archive", self._verify, rows, walk)
        ready = [(batch, batch.to_pylist()) for batch in batches]
        self._report(
            "fastavro alone, ready rows", lambda: _fastavro(self._tables, ready), rows, walk
        )
        self._report("pyarrow Parquet alone, ready columns", lambda: _parquet(batches), rows, walk)
        print(f"Avro files: {size / 1e6:.1f} MB, {size / self._bytes:.2f} of the log")

    def _report(
        self, what: str, work: Callable[[], object], rows: int, walk: float | None = None
    ) -> float:
        wall, seconds = least(work, self._rounds)
        if what.endswith("local[2]"):
            print(f"{what:40}{wall:8.2f}")
            return wall
        ratio = f"{seconds / walk:.1f}" if walk else ""
        print(
            f"{what:40}{wall:8.2f}{seconds:8.2f}{self._end / seconds:12,.0f}"
            f"{rows / seconds:12,.0f}{self._bytes / 1e6 / seconds:8.1f}{ratio:>8}"
        )
        return seconds

    @property
    def _out(self) -> Path:
        return self._directory / "archive"

    def _walk(self) -> int:
        return sum(1 for span in self._spans for _ in span.values())

    def _archive(self, tables: str, engine: ArchiveEngine | None = None) -> None:
        shutil.rmtree(self._out, ignore_errors=True)
        self._out.mkdir()
        store = open_store(str(self._out))
        about = open_archive(store, "bench", tables)
        archive(self._logs, store, about=about, engine=engine or LocalArchiveEngine())

    def _read(self) -> int:
        log = ArchivedLogs(open_store(str(self._out))).log(self._logs.name)
        return sum(1 for span in log.spans(self._end) for _ in span.values())

    def _verify(self) -> None:
        found = check_archive(open_store(str(self._out)), engine=LocalArchiveEngine())
        assert not found.faults, found.faults


def _fastavro(tables: tuple[str, ...], ready: list[tuple]) -> None:  # type: ignore[type-arg]
    for table in tables:
        names = {field["name"] for field in avro_schema(table)["fields"]}
        writer = AvroWriter(avro_schema(table), {})
        for batch, rows in ready:
            if set(batch.schema.names) == names:
                writer.write(rows)
        writer.finish()


def _parquet(batches: list) -> None:  # type: ignore[type-arg]
    writers = {}
    for batch in batches:
        key = tuple(batch.schema.names)
        if key not in writers:
            writers[key] = pq.ParquetWriter(io.BytesIO(), batch.schema, compression="zstd")
        writers[key].write_batch(batch)
    for writer in writers.values():
        writer.close()


def main() -> None:
    """Parse the options, run the benchmark and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=400_000)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--spark", action="store_true")
    options = parser.parse_args()
    if options.tiny:
        options.batches, options.records = 2_000, 1_000
    rounds = 1 if options.tiny else ROUNDS
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    print(f"commit {commit}, Python {platform.python_version()}, {platform.machine()}")
    session = engine = None
    if options.spark:
        from spark_jobs.archive.engines import SparkArchiveEngine
        from spark_jobs.session.spark_session import start_session

        session = start_session(app="bench-archive")
        engine = SparkArchiveEngine(session)
    try:
        with tempfile.TemporaryDirectory(prefix="esker-bench-") as name:
            directory = Path(name)
            write_world(
                make_world(options.batches, PARTITIONS),
                directory / COMMITS,
                segment_bytes=SEGMENT_BYTES,
            )
            write_small(directory / SMALL, options.records)
            for log, tables in ((COMMITS, ("object_commit",)), (SMALL, ("topic", "partition"))):
                Bench(directory, OneLog(directory, log), tables, rounds).run(engine)
    finally:
        if session is not None:
            from spark_jobs.session.spark_session import stop_session

            stop_session(session)


if __name__ == "__main__":
    main()
