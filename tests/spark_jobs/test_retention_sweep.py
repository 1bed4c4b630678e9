"""Tests a sweep on a running cluster that is killed between its steps and during the last.

The driver is a process of its own, as an operator's would be; what it leaves are files, and from
those the next one goes on.

Source: docs/design/pipeline.md#plans.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from esker.cli import app
from spark_jobs.plans.retention_plan import Plan, read_plan, write_plan
from spark_jobs.readers.inputs import Inputs, open_logs
from spark_jobs.readers.logs import Logs
from spark_jobs.tables.log_state import state_at
from tests.clients.client import Message
from tests.clients.cluster import EskerCluster
from tests.clients.world import World
from tests.processes import ROOT
from tests.waiting import Deadline, wait_until

PARTITIONS = 30
APPLIED = 3  # rows, when the one who applies them is killed
WITHIN_S = 600.0  # a JVM and its Python workers may be starting beside many others
EXTERNAL = {"esker.retention.enforcer": "external"}
SETTINGS = {"diskless.file.delete.delay.ms": "2000", "esker.file.delete.interval.ms": "200"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EskerCluster]:
    with EskerCluster(tmp_path / "cluster", quorum=(1,), brokers=1, settings=SETTINGS) as running:
        running.start()
        yield running
        running.check_alive()


class Sweep:
    """The command, run against a cluster."""

    def __init__(self, cluster: EskerCluster, directory: Path) -> None:
        self._directory = directory
        host, port = cluster.controllers[0]
        self.quorum = (host, port)
        self.at = ("--bootstrap-controller", f"{host}:{port}")

    def start(self, *words: str, program: tuple[str, ...] = ("esker",)) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", *program, "spark", "retention", *words],
            cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, *words: str) -> tuple[int, str]:
        """Run the command in this process; return the exit code and the output."""
        ran = CliRunner().invoke(app, ["spark", "retention", *words])
        return ran.exit_code, ran.stdout + ran.stderr

    def plan(self, name: str, *words: str, engine: str = "local") -> Plan:
        out = self._directory / name
        digests = ("--digests", str(self._directory / "digests"))
        code, said = self.run(
            "plan", "--out", str(out), "--engine", engine, *digests, *self.at, *words
        )
        assert code == 0, said
        return read_plan(out)

    def apply(self, name: str, *words: str) -> tuple[int, str]:
        return self.run("apply", str(self._directory / name), "--allow-large", *self.at, *words)

    def logs(self) -> Logs:
        return open_logs(Inputs(controllers=(self.quorum,)))

    def kill_once(self, process: subprocess.Popen[str], there: Callable[[], bool]) -> None:
        """Send SIGKILL as soon as the condition holds."""
        with process:
            try:
                deadline = Deadline(
                    f"{process.args!r} comes so far", WITHIN_S, longest_pause_s=0.0005
                )
                while not there():
                    assert process.poll() is None or there(), process.communicate()
                    time.sleep(deadline.pause_s())
            finally:
                process.send_signal(signal.SIGKILL)
            process.communicate()


def log_starts(sweep: Sweep) -> dict[tuple[str, int], int]:
    rows = state_at(sweep.logs().log("__diskless-metadata-0")).partitions.to_pylist()
    return {(row["topic"], row["partition"]): row["log_start_offset"] for row in rows}


def killed_and_gone_on(cluster: EskerCluster, tmp_path: Path, engine: str) -> None:
    sweep, world = Sweep(cluster, tmp_path), World(cluster.brokers)
    clicks = world.topic(PARTITIONS, EXTERNAL | {"retention.ms": "1"})
    keep = world.topic(1, EXTERNAL)
    keys = [Message(b"x" * 100, key=str(number).encode()) for number in range(300)]
    world.other.send(clicks, keys)
    world.other.send(keep, keys[:3])
    whole = tmp_path / "plan"
    planning = sweep.start(
        "plan", "--out", str(whole), "--engine", engine, "--digests", str(tmp_path / "d"), *sweep.at
    )
    sweep.kill_once(planning, whole.exists)
    plan = read_plan(whole)
    assert {row.topic for row in plan.rows} == {clicks}
    assert len(plan.rows) == PARTITIONS
    code, said = sweep.run("apply", str(whole), *sweep.at)
    assert (code, "removes more than 25 %" in said) == (2, True)
    journal = tmp_path / f"plan.{plan.plan_id}.journal"
    applying = sweep.start(
        "apply", str(whole), "--allow-large", "--rows-per-request", "1", *sweep.at,
        program=("tests.spark_jobs.halting", str(APPLIED)),
    )  # fmt: skip
    sweep.kill_once(
        applying, lambda: journal.exists() and journal.read_text().count("\n") >= APPLIED
    )
    assert journal.read_text().count("\n") == APPLIED, "killed in the middle"
    files = sum(path.is_file() for path in cluster.store.rglob("*"))
    assert sweep.apply("plan") == (0, f"{PARTITIONS} of {PARTITIONS} rows applied\n")
    starts = log_starts(sweep)
    for row in plan.rows:
        assert starts[row.topic, row.partition] == row.new_log_start
    assert not sweep.plan("next").rows, "a second sweep finds nothing"
    assert sweep.apply("plan")[0] == 0, "and the first may be applied again"
    assert len(world.other.read(keep, 3)) == 3
    wait_until(
        lambda: sum(path.is_file() for path in cluster.store.rglob("*")) < files,
        "an object's file is deleted",
    )


def test_a_killed_retention_sweep_continues_after_its_last_answered_row(
    cluster: EskerCluster, tmp_path: Path
) -> None:
    killed_and_gone_on(cluster, tmp_path, "local")


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_killed_retention_sweep_in_spark_continues_after_its_last_answered_row(
    cluster: EskerCluster, tmp_path: Path
) -> None:
    killed_and_gone_on(cluster, tmp_path, "spark")


def test_the_coordinator_refuses_an_outdated_retention_plan_with_a_reason(
    cluster: EskerCluster, tmp_path: Path
) -> None:
    sweep, world = Sweep(cluster, tmp_path), World(cluster.brokers)
    topic = world.topic(1, EXTERNAL | {"retention.bytes": "0", "retention.ms": "-1"})
    other = world.topic(1, EXTERNAL | {"retention.bytes": "0", "retention.ms": "-1"})
    world.other.send(topic, [Message(b"x" * 100)] * 3)
    world.other.send(other, [Message(b"x" * 100)] * 3)
    before = log_starts(sweep)
    two_hours_ago = str(int(time.time() * 1000) - 7_200_000)
    assert len(sweep.plan("expired", "--now", two_hours_ago).rows) == 2
    code, said = sweep.apply("expired")
    assert (code, "the plan has expired: make a new one" in said) == (4, True), said
    plan = sweep.plan("plan")
    write_plan(replace(plan, cluster_id="someone-elses"), tmp_path / "foreign")
    code, said = sweep.apply("foreign")
    assert (code, "the plan is another cluster's" in said) == (4, True), said
    (tmp_path / "edited").write_text((tmp_path / "plan").read_text().replace('"old', '"new'))
    code, said = sweep.apply("edited")
    assert (code, "was changed after it was written" in said) == (4, True), said
    assert log_starts(sweep) == before, "and nothing is removed"
    world.other.alter_topic(topic, "retention.bytes", "1000000")
    code, said = sweep.apply("plan")
    assert (code, "1 of 2 rows applied" in said) == (5, True), said
    assert f"{topic}-0 refused: the topic's settings now keep it" in said
    after = log_starts(sweep)
    assert (after[topic, 0], after[other, 0]) == (0, 3)
    code, said = sweep.run("show", str(tmp_path / "plan"), "--json")
    assert (code, json.loads(said)["prices"]["gb_month"]) == (0, 0.023)
