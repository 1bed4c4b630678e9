"""A real Spark cluster on the loopback address: a master and workers, each a process of its own.

The package that pip installs has no script that starts a master; its classes are there.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

import pyspark

from spark_jobs.session.java import find_java, home_for_spark
from tests.waiting import wait_until

HOST: Final = "127.0.0.1"
START_S: Final = 600.0
OPTIONS: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


class StandaloneCluster:
    """A standalone Spark cluster's processes and logs. Made by `standalone_cluster`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: list[IO[bytes]] = []
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.url = ""
        self._pages = ""

    def start(self, workers: int) -> None:
        """Start the processes, and wait until the master knows all workers."""
        deploy = "org.apache.spark.deploy"
        ports = ("--host", HOST, "--port", "0", "--webui-port", "0")
        self._spawn("master", f"{deploy}.master.Master", *ports)
        self.url = self._said("master", r"Starting Spark master at (spark://\S+)")
        self._pages = self._said("master", r"MasterWebUI to \S+, and started at (http://\S+)")
        for number in range(workers):
            self.start_worker(number)
        wait_until(
            lambda: self.alive() == workers,
            f"{workers} workers at {self._pages}",
            retry_on=(OSError,),
            deadline_s=START_S,
        )

    def start_worker(self, number: int) -> None:
        """Start a worker, for the first time or after it was killed."""
        work = self._directory / f"work-{number}"
        sizes = ("--cores", "1", "--memory", "600m", "--work-dir", str(work))
        ports = ("--host", HOST, "--port", "0", "--webui-port", "0")
        name = f"worker-{number}"
        self._spawn(name, "org.apache.spark.deploy.worker.Worker", *sizes, *ports, self.url)

    def alive(self) -> int:
        """Return the number of workers that the master considers alive."""
        with urllib.request.urlopen(f"{self._pages}/json/", timeout=10) as answer:
            return int(json.load(answer)["aliveworkers"])

    def kill(self, name: str) -> None:
        """Kill a worker and its executors."""
        process = self.processes[name]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """Stop all processes."""
        for name in self.processes:
            self.kill(name)
        for file in self._files:
            file.close()

    def _spawn(self, name: str, *command: str) -> None:
        home = pyspark.__path__[0]
        log = (self._directory / f"{name}.log").open("ab")
        self._files.append(log)
        environment = os.environ | {
            "JAVA_HOME": str(home_for_spark(find_java(), self._directory)),
            "JDK_JAVA_OPTIONS": OPTIONS,  # of executors, too: they compile less than they run
            "SPARK_DAEMON_JAVA_OPTS": "-Dspark.master.rest.enabled=false",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_HOME": home,
            "SPARK_LOCAL_DIRS": str(self._directory / "spill"),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_NO_DAEMONIZE": "1",
        }
        self.processes[name] = subprocess.Popen(
            [f"{home}/bin/spark-class", *command],
            stdout=log, stderr=log, cwd=self._directory, env=environment, process_group=0,
        )  # fmt: skip

    def _said(self, name: str, pattern: str) -> str:
        path = self._directory / f"{name}.log"
        found: list[str] = []

        def said() -> bool:
            assert self.processes[name].poll() is None, path.read_text()
            found[:] = re.findall(pattern, path.read_text(errors="replace"))
            return bool(found)

        wait_until(said, pattern)
        return found[0]


@contextlib.contextmanager
def standalone_cluster(directory: Path, workers: int = 2) -> Iterator[StandaloneCluster]:
    """Run a cluster for the length of a block."""
    cluster = StandaloneCluster(directory)
    try:
        cluster.start(workers)
        yield cluster
    finally:
        cluster.stop()
