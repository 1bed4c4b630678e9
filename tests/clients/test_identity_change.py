"""A running cluster turns the identity of peers on, node by node, and loses nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest

from esker.settings.access import STANDARD_AUTHORIZER
from tests.clients.secured import PLAIN_MODULE
from tests.clients.steady_load import Load, read_all
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


def test_a_cluster_turns_identity_on_under_load_and_loses_nothing(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    gaps = {}
    try:
        for node in NODES:
            cluster.restart(node, "off")
        wait_until(lambda: "is ready at" in cluster.log(BROKER), "the broker is ready")
        words = ("topics", "create", TOPIC, "--bootstrap-server", cluster.bootstrap)
        wait_until(lambda: run("esker", *words).returncode == 0, "the topic exists")
        settings = {"bootstrap.servers": cluster.bootstrap}
        with Load(TOPIC, settings) as load:
            for mode in ("off", "log", "enforce"):  # off: restarts alone, to compare with
                load.gap_s()
                for node in NODES:
                    cluster.restart(node, mode)
                    load.wait_for_more(f"{mode} at node {node}")
                gaps[mode] = load.gap_s()
        acknowledged, failed = load.acknowledged, load.failed
        print(f"acknowledged={len(acknowledged)} longest gaps in s: {gaps}")
        assert not failed
        assert not load.refused
        assert read_all(TOPIC, settings, len(acknowledged)) == acknowledged
        for node in VOTERS:
            assert not re.search(r"would_deny|decision=denied", cluster.log(node))
    finally:
        cluster.stop()
