"""A running cluster goes from the previous release to this one, back, and forth, under load.

The previous release is built from the repository's own history: its wheel is installed beside the
tests' own packages, and its nodes import from there. A producer and a consumer of a group run all
the while. Each acknowledged record is read exactly once in the log, in its producer's order.

The longest time without an acknowledgement is printed for each stage, beside those of restarts of
one release and of plain failovers in the same run: kill -9 of the node that leads the log of
batches, and of a broker.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Producer

from tests.clients.client import EARLIEST
from tests.clients.cluster import EskerCluster
from tests.clients.confluent import QUICK, Confluent
from tests.processes import ROOT, run
from tests.waiting import wait_until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(2_400)]

PREVIOUS: Final = "f5f2fcf6"
"""The last commit of Esker 0.1: it knows no feature levels beyond `esker.version` 1."""
PACKAGES: Final = ("records", "raft", "snapshot", "coordinator", "diskless", "spark_jobs", "esker")

BATCHES: Final = "__diskless-metadata-0"
LOGS: Final = ("__cluster_metadata-0", BATCHES, "__consumer_offsets-0")
ELECTIONS: Final = {
    "controller.quorum.election.timeout.ms": "1000",
    "controller.quorum.fetch.timeout.ms": "2000",
}
"""The defaults, as a gap in acknowledgements is mostly an election."""

TOPIC, PARTITIONS, GROUP = "upgraded", 4, "readers"
AT_ONCE: Final = 500  # records that are sent and not acknowledged yet
PAUSE_S: Final = 0.002


@pytest.fixture(scope="module")
def previous_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of the previous release; return the directory that it is installed in."""
    home = tmp_path_factory.mktemp("previous")
    source, target = home / "source", home / "site"
    archive = subprocess.run(
        ["git", "archive", PREVIOUS], cwd=ROOT, capture_output=True, check=False
    )
    assert archive.returncode == 0, (
        f"commit {PREVIOUS} is not in this clone; fetch the whole history: "
        f"git fetch --unshallow ({archive.stderr.decode().strip()})"
    )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(source, filter="data")
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", home, source], check=True)
    (wheel,) = home.glob("esker-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", target, wheel], check=True)
    assert all((target / name).is_dir() for name in PACKAGES)
    return target


class MixedCluster(EskerCluster):
    """A cluster whose nodes run one of two releases; the previous one formats their disks."""

    def __init__(self, home: Path, previous: Path) -> None:
        self.previous = {"PYTHONPATH": str(previous)}
        super().__init__(home, settings=ELECTIONS)

    def format(self, node: int, *options: str) -> None:
        self.run_previous(
            "storage", "format", "--config", str(self.properties(node)),
            "--cluster-id", self.cluster_id, *options,
        )  # fmt: skip

    def run_previous(self, *words: str) -> str:
        """Run a command of the previous release; return its standard output."""
        return subprocess.run(
            [sys.executable, "-m", "esker", *words],
            cwd=self.home, env={**os.environ, **self.previous}, check=True, text=True,
            stdout=subprocess.PIPE,
        ).stdout  # fmt: skip

    def launch_previous(self, *nodes: int) -> None:
        """Begin processes of the previous release."""
        for node in nodes:
            with (self.home / f"node{node}.log").open("ab") as log:
                self.processes[node] = subprocess.Popen(
                    [sys.executable, "-m", "esker", "start", self.properties(node)],
                    cwd=self.home, env={**os.environ, **self.previous}, stdin=subprocess.DEVNULL,
                    stdout=log, stderr=subprocess.STDOUT,
                )  # fmt: skip

    def restart(self, node: int, *, previous: bool) -> None:
        """Stop one node in order, start it at a release, and wait until it is served."""
        before = self.output(node).count("is ready at")
        self.stop(node)
        if previous:
            self.launch_previous(node)
        else:
            self.launch(node)
        if node in self.broker_ids:
            wait_until(
                lambda: self.output(node).count("is ready at") > before,
                f"broker {node} is ready again",
                state=lambda: self.output(node)[-500:],
            )
            self.wait_until_ready()
        else:
            began_ms = time.time() * 1_000
            wait_until(lambda: self._is_followed_since(began_ms), f"node {node} follows")

    def leader_of_batches(self) -> int:
        """Return the node that leads the log of batches."""
        return int(wait_until(lambda: self._describe(BATCHES), "the log is described")["leaderId"])

    def _describe(self, log: str) -> dict[str, Any]:
        """Return the leader and replicas of a log, or nothing if no leader answers."""
        addresses = ",".join(f"{host}:{port}" for host, port in self.controllers)
        words = ("quorum", "describe", log, "--bootstrap-controller", addresses)
        ran = run("esker", *words, "--replication", "--json")
        found: dict[str, Any] = {} if ran.returncode else json.loads(ran.stdout)
        return found

    def _is_followed_since(self, began_ms: float) -> bool:
        """Return whether every voter has caught up with the leader of each log since then."""
        for log in LOGS:
            found = self._describe(log)
            if not found:
                return False
            replicas = found["replicas"]
            voters = [one for one in replicas if one["nodeId"] in self.quorum_ids]
            if any(one["lastCaughtUpTimestamp"] < began_ms for one in voters):
                return False
        return True


class Load:
    """An idempotent producer and a consumer group; records are numbered by partition."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: dict[int, list[int]] = defaultdict(list)  # by partition
        self.failures: list[str] = []
        self.consumed: set[tuple[int, int]] = set()
        self._acknowledged_at = time.monotonic()
        self._longest_s = 0.0
        self._stop = threading.Event()
        self._bootstrap = bootstrap
        self._threads = [threading.Thread(target=each) for each in (self._produce, self._consume)]

    def _produce(self) -> None:
        producer = Producer(
            QUICK
            | {
                "bootstrap.servers": self._bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "delivery.timeout.ms": 120_000,
            }
        )
        number = 0
        while not self._stop.is_set():
            if len(producer) < AT_ONCE:
                partition = number % PARTITIONS
                producer.produce(
                    TOPIC, b"%d" % number, partition=partition, on_delivery=self._note_delivery
                )
                number += 1
            producer.poll(PAUSE_S)
        left = producer.flush(120)
        if left:
            self.failures.append(f"{left} records have no answer")

    def _note_delivery(self, error: object, message: Any) -> None:
        if error is not None:
            self.failures.append(str(error))
            return
        now = time.monotonic()
        self._longest_s = max(self._longest_s, now - self._acknowledged_at)
        self._acknowledged_at = now
        self.acknowledged[message.partition()].append(int(message.value()))

    def _consume(self) -> None:
        consumer = Consumer(
            QUICK
            | {
                "bootstrap.servers": self._bootstrap,
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 500,
            }
        )
        consumer.subscribe([TOPIC])
        while not self._stop.is_set():
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                self.consumed.add((message.partition(), message.offset()))
        consumer.close()

    @contextmanager
    def running(self) -> Iterator[Load]:
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()

    def count(self) -> int:
        return sum(map(len, list(self.acknowledged.values())))

    def wait_for_more(self, count: int = 500) -> None:
        """Wait until so many more records are acknowledged and the consumer has read on."""
        goal, seen = self.count() + count, len(self.consumed)
        wait_until(
            lambda: self.count() >= goal and len(self.consumed) > seen,
            f"{count} more records are acknowledged, and the group reads on",
            state=lambda: (self.count(), len(self.consumed), self.failures[:3]),
        )

    def longest_gap_s(self) -> float:
        """Return the longest time without an acknowledgement since the last call."""
        longest, self._longest_s = self._longest_s, 0.0
        return longest


def test_a_cluster_is_upgraded_and_downgraded_node_by_node_under_load(
    tmp_path: Path, previous_release: Path
) -> None:
    with MixedCluster(tmp_path, previous_release) as cluster:
        cluster.launch_previous(*cluster.ports)
        cluster.wait_until_ready()
        client = Confluent(cluster.bootstrap)
        client.create_topic(TOPIC, PARTITIONS, {})
        load = Load(cluster.bootstrap)
        gaps_s: dict[str, float] = {}
        with load.running():
            load.wait_for_more()
            load.longest_gap_s()
            for node in (*cluster.quorum_ids, *cluster.broker_ids):
                cluster.restart(node, previous=True)
            load.wait_for_more()
            gaps_s["restarts of the previous release"] = load.longest_gap_s()
            for stage, previous in (
                ("upgrade", False),
                ("downgrade", True),
                ("upgrade again", False),
            ):
                for node in (*cluster.quorum_ids, *cluster.broker_ids):
                    cluster.restart(node, previous=previous)
                load.wait_for_more()
                gaps_s[stage] = load.longest_gap_s()
            for level in (2, 3, 4, 5):
                upgrade = ("features", "upgrade", "--feature", f"esker.version={level}")
                cluster._esker(*upgrade, "--bootstrap-server", cluster.bootstrap)
                load.wait_for_more()
            gaps_s["finalized levels"] = load.longest_gap_s()
            for name, node in (
                ("kill -9 of the leader of batches", cluster.leader_of_batches()),
                ("kill -9 of a broker", cluster.broker_ids[0]),
            ):
                cluster.kill(node)
                load.wait_for_more()
                cluster.launch(node)
                load.wait_for_more()
                gaps_s[name] = load.longest_gap_s()
        print({stage: f"{gap_s:.2f} s" for stage, gap_s in gaps_s.items()}, load.count(), "records")
        assert load.failures == []
        for partition in range(PARTITIONS):
            sent = load.acknowledged[partition]
            read = client.read(TOPIC, len(sent), EARLIEST, partition)
            assert [int(message.value or b"") for message in read] == sent, f"partition {partition}"
