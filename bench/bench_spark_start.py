"""How long from `esker spark ...` to Spark's first job, and how long would PySpark take by itself?

    python -m bench.bench_spark_start [--rounds 3]

Each round starts processes, one after the other, each with a JVM of its own: PySpark's defaults
(on two threads, without its web page), and a session as the commands of `esker spark` start it,
with the command line's own imports before it. Seconds since the process was started, until the
session is there, until the first job's answer (a count in the JVM), and the second's (a task in
Python). `CPU` is what all processes of a row computed: on a busy machine it tells more than the
clock. `first ever` is ours without a class archive; it writes one, in a directory of this run's.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

HEADING: Final = f"{'':12}{'session':>9}{'first job':>11}{'second job':>12}{'end':>8}{'CPU':>8}"


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches unchanged: the smallest task that runs Python."""
    yield from batches


def jobs(session: SparkSession) -> None:
    """Run a JVM job and a Python job in the session, and print the times around each job."""
    tell()
    session.range(10).count()
    tell()
    session.range(1_000).mapInArrow(same, "id long").groupBy("id").count().count()
    tell()


def tell() -> None:
    """Print the monotonic time, which the parent process can compare with its own."""
    print(time.monotonic(), flush=True)


def child(kind: str) -> None:
    """Start Spark with PySpark's or Esker's settings, and run the jobs."""
    if kind == "default":
        from pyspark.sql import SparkSession

        settings = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        session = settings.getOrCreate()
        jobs(session)
        gateway: Any = session.sparkContext._gateway
        session.stop()
        gateway.proc.stdin.close()  # as PySpark ends it; waited for, since its CPU time counts
        gateway.proc.wait()
        return
    import esker.cli
    import esker.commands.spark  # noqa: F401 (what the command line imports)
    from esker.commands.spark.session import spark_session

    with spark_session("bench", "local[2]", "1g", None, heavy=kind == "ours, heavy") as session:
        jobs(session)


def measure(kind: str, cache: str) -> list[float]:
    """Run a child that starts Spark; return seconds to each printed time, total and CPU seconds."""
    command = [sys.executable, "-m", "bench.bench_spark_start", "--child", kind]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True,
        env=os.environ | {"XDG_CACHE_HOME": cache, "PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip
    times = [float(line) for line in done.stdout.split()]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return [*(at - began for at in (*times, time.monotonic())), cpu]


def show(kind: str, times: list[float]) -> None:
    """Print a row with the times of one kind of start."""
    session, first, second, end, cpu = times
    print(
        f"{kind:12}{session:8.1f}s{first:10.1f}s{second:11.1f}s{end:7.1f}s{cpu:7.1f}s", flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child)
        return
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    cores = os.cpu_count()
    print(
        f"commit {commit}, Python {platform.python_version()}, {platform.machine()}, {cores} cores"
    )
    kinds = ("default", "ours", "ours, heavy")
    found: dict[str, list[list[float]]] = {kind: [] for kind in kinds}
    print(HEADING)
    with tempfile.TemporaryDirectory() as cache:
        show("first ever", measure("ours", cache))
        for _ in range(options.rounds):
            for kind in kinds:
                found[kind].append(measure(kind, cache))
                show(kind, found[kind][-1])
    print("medians")
    medians = {
        kind: [statistics.median(column) for column in zip(*rows, strict=True)]
        for kind, rows in found.items()
    }
    for kind, times in medians.items():
        show(kind, times)
    ratio = medians["ours"][1] / medians["default"][1]
    print(f"first job: ours / default = {ratio:.2f}; must be within 9 s, aim 6 s")


if __name__ == "__main__":
    main()
