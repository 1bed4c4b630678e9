"""An upload of a killed broker that ended after all was over: found, handed over, and deleted.

Through real processes: the sweep that is killed in the middle of its apply is one, too. Its other
commands run in this process.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from esker.cli import app
from tests.clients.cluster import EskerCluster
from tests.clients.test_cleaning import (
    SETTINGS,
    die_while_uploading,
    objects,
)
from tests.clients.world import World, numbered, values
from tests.waiting import wait_until

GRACE_S = 1.0
ORPHANS = ("spark", "orphans")
SHORT = ("--grace", "1s", "--dangerously-short-grace")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EskerCluster]:
    with EskerCluster(tmp_path / "cluster", quorum=(1,), settings=SETTINGS) as running:
        running.start()
        yield running
        running.check_alive()


class Sweep:
    """`esker spark orphans`, as people and programs call it."""

    def __init__(self, cluster: EskerCluster) -> None:
        self.cluster = cluster
        self.plan_file = cluster.home / "plan.jsonl"
        self.controllers = ",".join(f"{host}:{port}" for host, port in cluster.controllers)

    def run(self, *words: str, code: int = 0) -> Any:
        """The JSON that it prints."""
        ran = CliRunner().invoke(app, [*ORPHANS, *words, "--json"])
        assert ran.exit_code == code, f"{words}: {ran.exit_code}\n{ran.stdout}{ran.stderr}"
        return json.loads(ran.stdout) if ran.stdout else None

    def plan(self, *more: str, code: int = 0) -> Any:
        return self.run(
            "plan", "--store", str(self.cluster.store),
            "--listings", str(self.cluster.home / "listings"), "--out", str(self.plan_file),
            "--bootstrap-controller", self.controllers, *more, code=code,
        )  # fmt: skip

    def apply(self, code: int = 0) -> Any:
        return self.run(*self._apply(), code=code)

    def apply_killed_after(self, seconds: float) -> None:
        """Nothing can be said of how far it came."""
        command = [sys.executable, "-m", "esker", *ORPHANS, *self._apply(), "--json"]
        started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(seconds)  # anywhere will do
        started.send_signal(signal.SIGKILL)
        started.communicate()

    def dangling(self, code: int = 0) -> Any:
        return self.run(
            "dangling", "--store", str(self.cluster.store),
            "--bootstrap-controller", self.controllers, code=code,
        )  # fmt: skip

    def _apply(self) -> list[str]:
        at = ["--bootstrap-server", self.cluster.bootstrap]
        return ["apply", str(self.plan_file), "--allow-large", *at]


def test_the_orphans_command_plans_and_deletes_a_late_upload_of_a_killed_broker(
    cluster: EskerCluster,
) -> None:
    world, sweep = World(cluster.brokers), Sweep(cluster)
    topic = world.topic()
    world.other.send(topic, numbered(20, "kept"))
    before = objects(cluster)
    orphans = die_while_uploading(cluster, world, topic) - before
    assert orphans, "an object that nobody committed"
    wait_until(lambda: not orphans & objects(cluster), "the orphans of leases go")
    live = objects(cluster)
    for path in orphans:
        path.write_bytes(b"late")  # the request of a process that is dead ends after all
    keys = sorted(str(path.relative_to(cluster.store)) for path in orphans)
    first = sweep.plan(*SHORT)
    assert (first["planned"]["objects"], first["waiting"]["objects"]) == (0, len(keys))
    time.sleep(GRACE_S)  # of real clocks
    sweep.plan("--grace", "1s", code=2)
    planned = sweep.plan(*SHORT)
    assert sorted(row["key"] for row in planned["sample"]) == keys
    assert planned["listed"]["objects"] == len(objects(cluster))
    sweep.apply_killed_after(0.7)
    applied = sweep.apply()
    assert (applied["taken"], applied["refused"], applied["left"]) == (len(keys), {}, 0)
    wait_until(lambda: not orphans & objects(cluster), "the files disappear")
    assert live <= objects(cluster)
    assert sweep.plan(*SHORT)["of_them"]["orphan"]["objects"] == 0
    sent = [one.value for one in numbered(20, "kept")]
    assert values(world.other.read(topic, 20))[:20] == sent
    found = sweep.dangling()
    assert (found["lost"], found["live"]) == (0, len(objects(cluster)))
    next(iter(live)).unlink()
    lost = sweep.dangling(code=6)
    assert lost["lost"] == 1
    assert lost["affected"][0]["topic"] == topic
