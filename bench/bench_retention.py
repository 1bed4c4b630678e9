"""How long does a retention plan over ten million batches take, and what would a database take?

    python -m bench.bench_retention [--batches 10000000] [--partitions 5000] [--no-spark]

Ours begins with the log: records are walked, checksums checked, columns decoded. Once that is done
its digests are kept, and the next plan begins with them. The peers begin with Parquet files that
somebody made of the same runs: DuckDB with two threads, in a form with windows over all runs and in
one with digests as ours; pandas; and the coordinator's planner over all runs at once. Everybody
comes to the same log starts, or the benchmark fails.

A plan of ours says too what it frees and who pins the rest; DuckDB's is given the query for that.
Wall clock, the least of the rounds; `cold` is a whole process, from the command to the plan.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.retention_log import (
    NOW_MS,
    PARTITIONS_OF_TOPIC,
    World,
    make_world,
    topic_ids,
    write_parquet,
    write_world,
)
from bench.retention_peers import Limits, Starts, duckdb_effect, duckdb_starts, pandas_starts
from bench.retention_peers import planner_starts as numpy_starts
from raft.segments.files import RealFileSystem
from records.metadata import ConfigRecord, TopicRecord
from spark_jobs.plans.retention_plan import Plan
from spark_jobs.readers.engines import Engine, LocalEngine, SparkEngine
from spark_jobs.readers.log_files import LogFiles
from spark_jobs.retention import sweep
from spark_jobs.retention.digest_cache import DigestCache
from spark_jobs.tables.topics import TopicSettings, topics_at

ROUNDS: Final = 3
SEGMENT_BYTES: Final = 256 * 1024 * 1024
MEMORY: Final = "1g"  # Spark's heap; the goal allows two
CLUSTER: Final = "bench"


class OneLog:
    """A cluster of one coordinator."""

    cluster_id = CLUSTER

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def names(self) -> list[str]:
        return ["__cluster_metadata-0", "__diskless-metadata-0"]

    def log(self, name: str) -> LogFiles:
        return LogFiles(self._directory / name)


def prepare(directory: Path, batches: int, partitions: int) -> World:
    """Write the log and the Parquet files, unless a run before has written them."""
    world = make_world(batches, partitions)
    done = directory / f"{batches}-{partitions}"
    if not done.exists():
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        write_world(world, directory / "__diskless-metadata-0", segment_bytes=SEGMENT_BYTES)
        write_settings(world, directory / "__cluster_metadata-0")
        write_parquet(world, directory / "runs")
        done.touch()
    return world


def write_settings(world: World, directory: Path) -> None:
    """Write the cluster's log with the topics and their retention settings."""
    from raft.segments.log import Log, LogConfig
    from records.batch_writer import build_value_batch
    from records.frame import encode_record

    directory.mkdir()
    log = Log.create(RealFileSystem(), directory, LogConfig(), start_offset=0)
    values = []
    for number, topic in enumerate(world.topics):
        name = f"topic-{number}"
        values.append(encode_record(TopicRecord(name=name, topic_id=topic)))
        for setting, value in (
            ("retention.ms", world.retention_ms[number]),
            ("retention.bytes", world.retention_bytes[number]),
            ("esker.retention.enforcer", "external"),
        ):
            values.append(
                encode_record(
                    ConfigRecord(
                        resource_type=2, resource_name=name, name=setting, value=str(value)
                    )
                )
            )
    log.append(build_value_batch(values, base_offset=0, leader_epoch=1, timestamp=NOW_MS))
    log.close()


def plan(directory: Path, engine: Engine, digests: Path | None) -> Plan:
    """Return Esker's retention plan for the logs in a directory."""
    return sweep.make_plan(
        OneLog(directory), now_ms=NOW_MS, engine=engine, digest_cache=DigestCache(digests)
    )


def starts_of(made: Plan, world: World) -> Starts:
    """Return the plan's new log start of each partition, by the partition's number."""
    number = {topic_id: i for i, topic_id in enumerate(topic_ids(world))}
    found = np.zeros(world.partitions, np.int64)
    for row in made.rows:
        found[number[row.topic_id] * PARTITIONS_OF_TOPIC + row.partition] = row.new_log_start
    return found


def least(work: Callable[[], Any], rounds: int = ROUNDS) -> tuple[float, Any]:
    """Return the least seconds of `work` over the rounds, and its last result."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        found = work()
        times.append(time.perf_counter() - began)
    return min(times), found


class Table:
    """What was measured, printed as it comes."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._expected: Starts | None = None
        self.seconds: dict[str, float] = {}

    def row(self, name: str, seconds: float, starts: Starts) -> None:
        if self._expected is None:
            self._expected = starts
        assert np.array_equal(self._expected, starts), f"{name} plans something else"
        self.seconds[name] = seconds
        rate = len(self._world.partition) / seconds / 1e6
        print(f"{name:42} {seconds:8.2f} s  {rate:7.1f} M batches/s", flush=True)

    def ours(self, name: str, work: Callable[[], Plan], rounds: int = ROUNDS) -> Plan:
        seconds, made = least(work, rounds)
        self.row(name, seconds, starts_of(made, self._world))
        found: Plan = made
        return found


def peers(table: Table, directory: Path, limits: Limits) -> None:
    """Measure other implementations, such as DuckDB and pandas, and add their rows."""
    runs, objects = directory / "runs", directory / "objects.parquet"
    for form in ("windows", "digests"):
        seconds, found = least(lambda form=form: duckdb_starts(runs, limits, form))  # type: ignore[misc]
        table.row(f"DuckDB, {form}", seconds, found)
        effect, _ = least(lambda found=found: duckdb_effect(runs, objects, found))  # type: ignore[misc]
        table.row(f"DuckDB, {form}, and objects", seconds + effect, found)
    seconds, found = least(lambda: numpy_starts(runs, limits))
    table.row("planner over all runs, in memory", seconds, found)
    seconds, found = least(lambda: pandas_starts(runs, limits), 1)
    table.row("pandas", seconds, found)


def local(table: Table, directory: Path) -> Plan:
    """Measure plans by the local engine, add their rows to the table, and return the plan."""
    with tempfile.TemporaryDirectory() as name:
        kept = Path(name)

        def fresh() -> Plan:
            shutil.rmtree(kept / CLUSTER, ignore_errors=True)
            return plan(directory, LocalEngine(helper=True), kept)

        table.ours("local, from the log", fresh, 2)
        return table.ours(
            "local, from kept digests", lambda: plan(directory, LocalEngine(helper=True), kept)
        )


def spark(table: Table, directory: Path) -> None:
    """Measure plans in a used Spark session and in new processes, and add their rows."""
    from spark_jobs.session.spark_session import start_session, stop_session

    with tempfile.TemporaryDirectory() as name:
        kept = Path(name)
        session = start_session(app="bench", memory=MEMORY)
        try:
            engine = SparkEngine(session)

            def fresh() -> Plan:
                shutil.rmtree(kept / CLUSTER, ignore_errors=True)
                return plan(directory, engine, kept)

            fresh()
            table.ours("Spark, from the log, warm", fresh, 2)
            table.ours("Spark, from kept digests, warm", lambda: plan(directory, engine, kept))
        finally:
            stop_session(session)
        for what, digests in (("the log", Path(name) / "none"), ("kept digests", kept)):
            began = time.perf_counter()
            command = [sys.executable, "-m", "bench.bench_retention", "--cold", str(digests)]
            told = subprocess.run(
                [*command, "--directory", str(directory)], check=True, capture_output=True
            )
            seconds = time.perf_counter() - began
            found = np.array(json.loads(told.stdout.splitlines()[-1]), np.int64)
            table.row(f"Spark, from {what}, cold process", seconds, found)


def cold(directory: Path, digests: Path) -> None:
    """Start a Spark session and make one plan: the work of a new process."""
    from spark_jobs.session.spark_session import start_session, stop_session

    session = start_session(app="bench", memory=MEMORY)
    try:
        made = plan(directory, SparkEngine(session), digests)
    finally:
        stop_session(session)
    topics: Mapping[str, TopicSettings] = topics_at(
        LogFiles(directory / "__cluster_metadata-0"),
        LogFiles(directory / "__cluster_metadata-0").end_offset(),
    )
    number = {topic_id: i for i, topic_id in enumerate(topics)}
    found = [0] * (len(topics) * PARTITIONS_OF_TOPIC)
    for row in made.rows:
        found[number[row.topic_id] * PARTITIONS_OF_TOPIC + row.partition] = row.new_log_start
    print(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=10_000_000)
    parser.add_argument("--partitions", type=int, default=5_000)
    parser.add_argument("--directory", type=Path, help="kept, and used again; default: temporary")
    parser.add_argument("--no-spark", action="store_true")
    parser.add_argument("--cold", type=Path, metavar="DIGESTS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cold is not None:
        cold(options.directory, options.cold)
        return
    with tempfile.TemporaryDirectory() as name:
        directory = options.directory or Path(name) / "data"
        run(directory, options)


def run(directory: Path, options: argparse.Namespace) -> None:
    """Measure and print all rows of the table, then the ratios."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    print(f"commit {commit}, Python {platform.python_version()}, {platform.machine()}")
    world = prepare(directory, options.batches, options.partitions)
    limits = Limits(world)
    table = Table(world)
    print(f"{len(world.partition):,} batches, {world.partitions:,} partitions")
    made = local(table, directory)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if not options.no_spark:
        spark(table, directory)
    peers(table, directory, limits)
    effect = made.effects[0]
    share = effect.removed_bytes / effect.live_bytes
    print(f"{len(made.rows):,} partitions are trimmed, {share:.0%} of all bytes go")
    print(f"peak of this process before Spark {peak:.0f} MiB; Spark's heap {MEMORY}")
    duck = min(
        table.seconds["DuckDB, windows, and objects"], table.seconds["DuckDB, digests, and objects"]
    )
    for name, seconds in table.seconds.items():
        if name.startswith(("local", "Spark")):
            print(f"{name:42} {seconds / duck:6.2f} x DuckDB")


if __name__ == "__main__":
    main()
