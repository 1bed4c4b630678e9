"""Kill -9 of each process behind `esker spark tables run`, at each step: each record is there once.

The run works on a standalone Spark cluster. Its steps are seen from outside, by the files that they
leave: a task has begun a data file, the driver has written a manifest, the metadata of a commit, or
nothing yet. Some milliseconds after that one process dies: the driver, its JVM, an executor, a
Python worker of an executor, a Spark worker with its executor, a broker, or a node of the quorum.

    ESKER_KILLS=20 pytest -m soak -s tests/spark_jobs/test_tables_kills.py

Source: docs/design/tables.md#one-loop-and-the-table-is-its-memory.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Final

import pytest
from pyiceberg.exceptions import NoSuchTableError

from bench.bench_records import process_tree
from esker.commands.spark.common import ENVIRONMENT
from spark_jobs.topic_tables.catalogs import open_catalog
from tests.clients.cluster import EskerCluster
from tests.examples import first_seed
from tests.spark_jobs.standalone import StandaloneCluster, standalone_cluster
from tests.spark_jobs.topics_world import TopicsWorld
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(7_200)]

KILLS: Final = int(os.environ.get("ESKER_KILLS", "50"))
RECORDS: Final = 60  # of each codec before a kill: some batches of --max-records
DELAY_S: Final = 0.04  # after the step was seen, at most
AWAITED_S: Final = 600.0

STEPS: Final = {  # what a step leaves
    "begin": None,
    "data file": ("data", ".parquet"),
    "manifest": ("metadata", ".avro"),
    "metadata": ("metadata", ".metadata.json"),
}
VICTIMS: Final = (
    "driver", "JVM", "executor", "Python worker", "Spark worker", "broker", "controller",
)  # fmt: skip


class Run:
    """`esker spark tables run` on a cluster, which is killed and started again."""

    def __init__(self, world: TopicsWorld, spark: StandaloneCluster, home: Path) -> None:
        self.world = world
        self.spark = spark
        self.lake = home / "lake"
        self.output = home / "run.log"
        self.catalog = open_catalog(str(self.lake), None, {})
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the command, which runs until it is killed."""
        command = [
            sys.executable, "-m", "esker", "spark", "tables", "run", "random",
            "--bootstrap-server", self.world.cluster.bootstrap,
            "--store", str(self.world.cluster.store), "--warehouse", str(self.lake),
            "--interval", "0.2", "--max-records", "100",
            "--master", self.spark.url, "--memory", "512m",
            "--spark-log", f"{self.output}.spark",
        ]  # fmt: skip
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
        with self.output.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def end(self) -> None:
        """Kill the command and its JVM."""
        if self.process is not None:
            for pid in self.drivers_jvm():
                _kill(pid)
            self.process.kill()
            self.process.wait()
            self.process = None

    def drivers_jvm(self) -> list[int]:
        """Return the JVM that the command has started."""
        return [] if self.process is None else _below(self.process.pid, "java")

    def executors(self) -> list[int]:
        """Return the JVMs of executors, which the Spark workers have started."""
        workers = [one for name, one in self.spark.processes.items() if name.startswith("worker")]
        return [pid for one in workers for pid in _below(one.pid, "java")]

    def files(self, kind: tuple[str, str] | None) -> set[Path]:
        """Return the files of the table that a step leaves."""
        if kind is None:
            return set()
        folder, suffix = kind
        return set((self.lake / "kafka" / "random" / folder).rglob(f"*{suffix}"))

    def rows(self) -> list[tuple[int, int, bytes | None, bytes | None]]:
        """Return the rows of the table as PyIceberg reads them."""
        try:
            found = self.catalog.load_table(("kafka", "random")).scan().to_arrow().to_pylist()
        except NoSuchTableError:
            return []
        names = ("partition", "offset", "key", "value")
        return sorted(tuple(row[name] for name in names) for row in found)


def _below(root: int, program: str) -> list[int]:
    """Return the processes of one program below another process."""
    found = []
    for pid in process_tree(root)[1:]:
        with suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().startswith(program):
                found.append(pid)
    return found


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill(run: Run, victim: str, random_: random.Random) -> bool:
    """Kill one process, and start again what does not start itself; return False for none there."""
    cluster = run.world.cluster
    if victim == "Spark worker":
        number = random_.randrange(2)
        run.spark.kill(f"worker-{number}")
        run.spark.start_worker(number)
    elif victim in ("broker", "controller"):
        nodes = cluster.broker_ids if victim == "broker" else cluster.quorum_ids
        node = random_.choice(nodes)
        cluster.kill(node)
        cluster.launch(node)
    elif victim == "driver":
        assert run.process is not None
        jvms = run.drivers_jvm()
        run.process.kill()
        run.process.wait()
        for pid in jvms:  # it ends by itself, but later than the next driver begins
            _kill(pid)
    else:
        chosen = run.drivers_jvm() if victim == "JVM" else run.executors()
        if victim == "Python worker":
            chosen = [pid for executor in chosen for pid in _below(executor, "python")]
        if not chosen:
            return False
        _kill(random_.choice(chosen))
    return True


def await_step(run: Run, step: str, before: set[Path], random_: random.Random) -> bool:
    """Wait until a step was reached; return False if the run ended before that."""
    if STEPS[step] is None:
        time.sleep(random_.uniform(0, 3))  # between the imports and the first task
        return True
    deadline = time.monotonic() + AWAITED_S
    while run.files(STEPS[step]) <= before:
        assert run.process is not None
        if run.process.poll() is not None:
            return False
        assert time.monotonic() < deadline, f"{step}: not reached; {run.output.read_text()[-2000:]}"
        time.sleep(0.001)
    time.sleep(random_.uniform(0, DELAY_S))
    return True


def test_whatever_is_killed_at_whatever_step_each_record_is_in_the_table_once(
    tmp_path: Path,
) -> None:
    seed = first_seed()
    print(f"\nESKER_FIRST_SEED={seed}")
    random_ = random.Random(seed)
    cases = list(product(VICTIMS, STEPS))
    random_.shuffle(cases)
    killed = 0
    with (
        EskerCluster(tmp_path / "cluster", brokers=2) as cluster,
        standalone_cluster(tmp_path) as spark,
    ):
        cluster.start()
        world = TopicsWorld(cluster)
        world.create("random")
        run = Run(world, spark, tmp_path)
        try:
            for number in range(3 * KILLS):
                if killed == KILLS:
                    break
                victim, step = cases[number % len(cases)]
                before = run.files(STEPS[step])
                world.fill("random", seed=number, count=RECORDS)
                if run.process is None or run.process.poll() is not None:
                    run.start()
                reached = await_step(run, step, before, random_)
                hit = reached and kill(run, victim, random_)
                killed += hit
                if victim == "JVM" and hit:
                    assert run.process is not None
                    code = run.process.wait(AWAITED_S)
                    assert code == ENVIRONMENT, run.output.read_text()[-2000:]
                rows = run.rows()
                assert len({row[:2] for row in rows}) == len(rows), f"kill {number}: rows twice"
                told = "killed" if hit else "nothing to kill"
                print(f"{number}: {victim} at {step}: {told}; {len(rows)} rows", flush=True)
            assert killed == KILLS, f"only {killed} of {KILLS} kills met a process"
            cluster.wait_until_ready()
            if run.process is None or run.process.poll() is not None:
                run.start()
            expected = sorted((row[1], row[2], row[5], row[6]) for row in world.consume("random"))
            wait_until(
                lambda: len(run.rows()) >= len(expected), "the table has the topic",
                deadline_s=AWAITED_S, state=lambda: run.output.read_text()[-2000:],
            )  # fmt: skip
            assert run.rows() == expected
            print(f"{killed} kills; {len(expected)} records, each once")
        finally:
            run.end()
