"""A quorum of three moves from PLAINTEXT to SASL_SSL, node by node, and has a leader throughout."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.clients.secured import PLAIN_MODULE
from tests.pki import Authority
from tests.ports import free_ports
from tests.processes import run, start
from tests.quorum_processes import storage
from tests.waiting import wait_until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]

NODES: Final = (1, 2, 3)
PASSWORD: Final = "node-secret"


class Quorum:
    """Three controllers, each with an old and a new listener in one of three stages."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.old = dict(zip(NODES, free_ports(3), strict=True))
        self.new = dict(zip(NODES, free_ports(3), strict=True))
        ca = Authority()
        self.ca_file = ca.write(home / "ca.pem")
        ca.issue("node").write(home / "node.pem")
        self.processes = {}
        cluster_id = storage("random-uuid").strip()
        for node in NODES:
            self.write(node, ("OLD",))
            storage("format", "--config", str(self.file(node)), "--cluster-id", cluster_id)

    def file(self, node: int) -> Path:
        return self.home / f"node{node}.properties"

    def write(self, node: int, names: tuple[str, ...]) -> None:
        """Write a node's settings; it connects to others' first listener of `names`."""
        ports = self.old if names[0] == "OLD" else self.new
        bound = {"OLD": self.old[node], "NEW": self.new[node]}
        user = f'username="node" password="{PASSWORD}" user_node="{PASSWORD}"'
        self.file(node).write_text(
            f"process.roles=controller\nnode.id={node}\n"
            "controller.quorum.voters="
            + ",".join(f"{other}@127.0.0.1:{port}" for other, port in ports.items())
            + "\nlisteners="
            + ",".join(f"{name}://127.0.0.1:{bound[name]}" for name in names)
            + f"\ncontroller.listener.names={','.join(names)}\n"
            "listener.security.protocol.map=OLD:PLAINTEXT,NEW:SASL_SSL\n"
            f"ssl.keystore.location={self.home / 'node.pem'}\n"
            f"ssl.truststore.location={self.ca_file}\n"
            "listener.name.new.sasl.enabled.mechanisms=PLAIN\n"
            f"listener.name.new.plain.sasl.jaas.config={PLAIN_MODULE} required {user};\n"
            f"log.dirs={self.home / str(node)}\n"
        )
        self.file(node).chmod(0o600)

    def restart(self, node: int, names: tuple[str, ...]) -> None:
        if node in self.processes:
            self.processes[node].terminate()
            self.processes[node].wait()
        self.write(node, names)
        with (self.home / f"node{node}.log").open("ab") as log:
            self.processes[node] = start("esker", "start", str(self.file(node)), output=log)

    def describe(self, ports: dict[int, int], *more: str) -> str:
        addresses = ",".join(f"127.0.0.1:{port}" for port in ports.values())
        words = ("quorum", "describe", "--bootstrap-controller", addresses, "--json", *more)
        ran = run("esker", *words)
        return ran.stdout if ran.returncode == 0 else ""


def test_a_quorum_changes_its_listeners_from_plaintext_to_sasl_ssl_node_by_node(tmp_path):
    quorum = Quorum(tmp_path)
    config = tmp_path / "client.properties"
    config.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
        f"ssl.truststore.location={quorum.ca_file}\n"
        f'sasl.jaas.config={PLAIN_MODULE} required username="node" password="{PASSWORD}";\n'
    )
    secured = ("--command-config", str(config))
    try:
        for node in NODES:
            quorum.restart(node, ("OLD",))
        wait_until(lambda: quorum.describe(quorum.old), "the quorum has a leader")
        for names in (("OLD", "NEW"), ("NEW", "OLD"), ("NEW",)):
            for node in NODES:
                quorum.restart(node, names)
                # The leader's registered address is of the old or of the new kind meanwhile.
                wait_until(
                    lambda: quorum.describe(quorum.old) or quorum.describe(quorum.new, *secured),
                    f"a leader, {names} at node {node}",
                )
        assert quorum.describe(quorum.new, *secured)
        assert not quorum.describe(quorum.old)
        assert not quorum.describe(quorum.new)
    finally:
        for process in quorum.processes.values():
            process.terminate()
            process.wait()
