"""A running cluster turns the identity of peers on, node by node, and loses nothing."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from esker.settings.access import STANDARD_AUTHORIZER
from tests.clients.secured import PLAIN_MODULE
from tests.ports import free_ports
from tests.processes import run, start
from tests.quorum_processes import storage
from tests.waiting import wait_until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]

VOTERS: Final = (1, 2, 3)
BROKER: Final = 11
NODES: Final = (*VOTERS, BROKER)
TOPIC: Final = "orders"


def password(node: int) -> str:
    return f"secret-{node}"


class Cluster:
    """Three controllers and a broker, each with a user of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.ports = dict(zip(VOTERS, free_ports(3), strict=True))
        (self.client_port,) = free_ports(1)
        self.processes: dict[int, Any] = {}
        cluster_id = storage("random-uuid").strip()
        for node in NODES:
            self.write(node, "off")
            storage("format", "--config", str(self.file(node)), "--cluster-id", cluster_id)

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.client_port}"

    def file(self, node: int) -> Path:
        return self.home / f"node{node}.properties"

    def log(self, node: int) -> str:
        path = self.home / f"node{node}.log"
        return path.read_text() if path.exists() else ""

    def write(self, node: int, mode: str) -> None:
        own = f'username="node-{node}" password="{password(node)}"'
        users = " ".join(f'user_node-{other}="{password(other)}"' for other in NODES)
        names = ";".join(f"User:node-{other}" for other in NODES)
        voters = ",".join(f"{other}@127.0.0.1:{port}" for other, port in self.ports.items())
        if node in VOTERS:
            role = f"controller\nlisteners=CONTROLLER://127.0.0.1:{self.ports[node]}"
        else:
            role = f"broker\nlisteners=CLIENTS://{self.bootstrap}"
        self.file(node).write_text(
            f"process.roles={role}\nnode.id={node}\n"
            f"controller.quorum.voters={voters}\n"
            "controller.listener.names=CONTROLLER\n"
            "listener.security.protocol.map=CONTROLLER:SASL_PLAINTEXT,CLIENTS:PLAINTEXT\n"
            "listener.name.controller.sasl.enabled.mechanisms=PLAIN\n"
            f"listener.name.controller.plain.sasl.jaas.config={PLAIN_MODULE} required {own} "
            f"{users};\n"
            f"authorizer.class.name={STANDARD_AUTHORIZER}\n"
            f"super.users={names};User:ANONYMOUS\n"
            f"esker.controller.identity={mode}\n"
            f"log.dirs={self.home / str(node)}\n"
            f"esker.storage.directory.path={self.home / 'objects'}\n"
            "controller.quorum.election.timeout.ms=400\n"
        )
        self.file(node).chmod(0o600)

    def restart(self, node: int, mode: str) -> None:
        if node in self.processes:
            self.processes[node].terminate()
            self.processes[node].wait()
        self.write(node, mode)
        with (self.home / f"node{node}.log").open("ab") as log:
            self.processes[node] = start("esker", "start", str(self.file(node)), output=log)

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait()


class Load:
    """A producer that notes each acknowledged record and the longest time between two of them."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: list[int] = []
        self.failed: list[str] = []
        self.longest_gap_s = 0.0
        self._at = time.monotonic()
        self._ends = threading.Event()
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        number = 0
        while not self._ends.is_set():
            value = number
            self._producer.produce(
                TOPIC,
                str(value).encode(),
                partition=0,
                on_delivery=lambda error, _, value=value: self._on_delivery(error, value),
            )
            number += 1
            self._producer.poll(0.01)
        self._producer.flush(60)

    def _on_delivery(self, error: Any, value: int) -> None:
        if error is not None:
            self.failed.append(str(error))
            return
        now = time.monotonic()
        self.longest_gap_s = max(self.longest_gap_s, now - self._at)
        self._at = now
        self.acknowledged.append(value)

    def __enter__(self) -> Load:
        self._at = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()


def read_all(bootstrap: str, count: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "judge"})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    values: list[int] = []
    deadline = time.monotonic() + 60
    while len(values) < count and time.monotonic() < deadline:
        values += [int(m.value()) for m in consumer.consume(500, 1.0) if m.error() is None]
    consumer.close()
    return values


def test_a_cluster_turns_identity_on_under_load_and_loses_nothing(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    gaps = {}
    try:
        for node in NODES:
            cluster.restart(node, "off")
        wait_until(lambda: "is ready at" in cluster.log(BROKER), "the broker is ready")
        words = ("topics", "create", TOPIC, "--bootstrap-server", cluster.bootstrap)
        wait_until(lambda: run("esker", *words).returncode == 0, "the topic exists")
        with Load(cluster.bootstrap) as load:
            for mode in ("off", "log", "enforce"):  # off: restarts alone, to compare with
                load.longest_gap_s = 0.0
                for node in NODES:
                    before = len(load.acknowledged)
                    cluster.restart(node, mode)
                    wait_until(
                        lambda before=before: len(load.acknowledged) > before + 200,
                        f"records are acknowledged, {mode} at node {node}",
                    )
                gaps[mode] = load.longest_gap_s
        acknowledged, failed = load.acknowledged, load.failed
        print(f"acknowledged={len(acknowledged)} longest gaps in s: {gaps}")
        assert not failed
        assert read_all(cluster.bootstrap, len(acknowledged)) == acknowledged
        for node in VOTERS:
            assert not re.search(r"would_deny|decision=denied", cluster.log(node))
    finally:
        cluster.stop()
