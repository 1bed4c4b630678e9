"""A running cluster under load moves from PLAINTEXT to SASL_SSL, and then renews its certificates.

Nothing is lost, no client is refused, and records are acknowledged nearly as steadily as when the
same nodes only restart.
"""

from __future__ import annotations

import re
import signal
import socket
import ssl
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, TopicPartition
from cryptography import x509

from esker.settings.access import STANDARD_AUTHORIZER
from raft.net.certificates import TlsContexts, TlsSettings
from raft.net.rpc import open_rpc
from raft.net.runner import run as run_async
from raft.net.sasl import PLAIN, Credentials
from raft.net.security import OutgoingSecurity, outgoing
from records.kafka_errors import ErrorCode
from records.rpc.group_log import CommitGroupOffsetsRequest, CommitGroupOffsetsResponse
from tests.clients.secured import PLAIN_MODULE
from tests.clients.steady_load import Load, read_all
from tests.pki import Authority
from tests.ports import free_ports
from tests.processes import Process, run, start
from tests.quorum_processes import storage
from tests.waiting import wait_until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

VOTERS: Final = (1, 2, 3)
BROKERS: Final = (11, 12)
NODES: Final = (*VOTERS, *BROKERS)
TOPIC: Final = "orders"
APP: Final = "app"
MOST_OWNERS: Final = 100  # ownership epochs that this test may reach
OLD: Final = ("OLD",)
NEW: Final = ("NEW",)


def secret(user: object) -> str:
    return f"secret-of-{user}"


class Cluster:
    """Three controllers and two brokers; each has an old listener, a new one, or both."""

    def __init__(self, home: Path) -> None:
        self.home = home
        ports = free_ports(2 * len(NODES))
        self.ports = {
            "OLD": dict(zip(NODES, ports[: len(NODES)], strict=True)),
            "NEW": dict(zip(NODES, ports[len(NODES) :], strict=True)),
        }
        self.processes: dict[int, Process] = {}
        self.identity = ""  # without an authorizer
        self.ca = Authority("first CA")
        self.trust(self.ca)
        for node in NODES:
            self.renew(node)
        cluster_id = storage("random-uuid").strip()
        for node in NODES:
            self.write(node, OLD, OLD)
            storage("format", "--config", str(self.file(node)), "--cluster-id", cluster_id)

    # --- certificates -----------------------------------------------------------------------

    @property
    def ca_file(self) -> Path:
        return self.home / "ca.pem"

    def trust(self, *authorities: Authority) -> None:
        """Replace the certificates that nodes and new clients trust."""
        parts = [each.write(self.home / "one.pem").read_bytes() for each in authorities]
        new = self.home / "ca.new"
        new.write_bytes(b"".join(parts))
        new.replace(self.ca_file)

    def renew(self, node: int) -> None:
        """Replace a node's key and certificate."""
        hosts = ("localhost", "127.0.0.1", f"esker:node:{node}")
        new = self.ca.issue(f"node-{node}", hosts=hosts).write(self.home / "node.new")
        new.replace(self.home / f"node{node}.pem")

    def serial(self, node: int) -> int:
        """Return the serial number of the certificate that a node shows now, once it listens."""
        address = ("127.0.0.1", self.ports["NEW"][node])
        shown = wait_until(
            lambda: ssl.get_server_certificate(address, timeout=10), retry_on=(OSError,)
        )
        return x509.load_pem_x509_certificate(shown.encode()).serial_number

    # --- nodes ------------------------------------------------------------------------------

    def file(self, node: int) -> Path:
        return self.home / f"node{node}.properties"

    def log(self, node: int) -> str:
        path = self.home / f"node{node}.log"
        return path.read_text() if path.exists() else ""

    def write(self, node: int, controllers: tuple[str, ...], own: tuple[str, ...]) -> None:
        """Write a node's settings.

        Args:  controllers: the listeners of controllers; nodes connect to the first one.
               own: the listeners of this node: of a controller, or for clients.
        """
        kind = "CONTROLLER" if node in VOTERS else "CLIENTS"
        voters = self.ports[controllers[0]]
        users = " ".join(f'user_{user}="{secret(user)}"' for user in (*names(), APP))
        jaas = (
            f'{PLAIN_MODULE} required username="node-{node}" '
            f'password="{secret(f"node-{node}")}" {users};'
        )
        listeners = ",".join(f"{kind}_{each}://127.0.0.1:{self.ports[each][node]}" for each in own)
        lines = [
            f"process.roles={'controller' if node in VOTERS else 'broker'}",
            f"node.id={node}",
            "controller.quorum.voters="
            + ",".join(f"{voter}@127.0.0.1:{voters[voter]}" for voter in VOTERS),
            f"listeners={listeners}",
            "controller.listener.names=" + ",".join(f"CONTROLLER_{each}" for each in controllers),
            "listener.security.protocol.map=CONTROLLER_OLD:PLAINTEXT,CLIENTS_OLD:PLAINTEXT,"
            "CONTROLLER_NEW:SASL_SSL,CLIENTS_NEW:SASL_SSL",
            f"ssl.keystore.location={self.home / f'node{node}.pem'}",
            f"ssl.truststore.location={self.ca_file}",
            "sasl.enabled.mechanisms=PLAIN",
            f"listener.name.controller_new.plain.sasl.jaas.config={jaas}",
            f"listener.name.clients_new.plain.sasl.jaas.config={jaas}",
            f"log.dirs={self.home / str(node)}",
            f"esker.storage.directory.path={self.home / 'objects'}",
            "controller.quorum.election.timeout.ms=400",
        ]
        if self.identity:
            lines += [
                f"authorizer.class.name={STANDARD_AUTHORIZER}",
                f"super.users={';'.join(f'User:{user}' for user in (*names(), APP))}",
                f"esker.controller.identity={self.identity}",
            ]
        self.file(node).write_text("\n".join(lines) + "\n")
        self.file(node).chmod(0o600)

    def restart(self, node: int, controllers: tuple[str, ...], own: tuple[str, ...]) -> None:
        if node in self.processes:
            self.processes[node].terminate()
            self.processes[node].wait()
        self.write(node, controllers, own)
        self.start(node)

    def start(self, node: int) -> None:
        with (self.home / f"node{node}.log").open("ab") as log:
            self.processes[node] = start("esker", "start", str(self.file(node)), output=log)

    def kill(self, node: int) -> None:
        self.processes[node].send_signal(signal.SIGKILL)
        self.processes[node].wait()

    def leader(self, controllers: str) -> int:
        """Return the leader of the cluster's log."""

        def found() -> int | None:
            addresses = ",".join(f"127.0.0.1:{self.ports[controllers][node]}" for node in VOTERS)
            config = self.command_config() if controllers == "NEW" else ()
            words = ("quorum", "describe", "--json", "--bootstrap-controller", addresses)
            leads = re.search(r'"leaderId":\s*(\d+)', run("esker", *words, *config).stdout)
            return int(leads[1]) if leads else None

        return int(wait_until(found, "a leader"))

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait()

    # --- clients ----------------------------------------------------------------------------

    def client(self, listener: str) -> dict[str, Any]:
        """Return the settings of a client of the old or of the new listeners."""
        ports = self.ports[listener]
        settings: dict[str, Any] = {
            "bootstrap.servers": ",".join(f"127.0.0.1:{ports[node]}" for node in BROKERS)
        }
        if listener == "NEW":
            settings |= {
                "security.protocol": "SASL_SSL",
                "ssl.ca.location": str(self.ca_file),
                "sasl.mechanism": "PLAIN",
                "sasl.username": APP,
                "sasl.password": secret(APP),
            }
        return settings

    def secured(self) -> tuple[str, ...]:
        """Return the options of a command that asks the brokers by SASL_SSL."""
        bootstrap = self.client("NEW")["bootstrap.servers"]
        return ("--bootstrap-server", bootstrap, *self.command_config())

    def command_config(self) -> tuple[str, str]:
        file = self.home / "client.properties"
        file.write_text(
            f"security.protocol=SASL_SSL\nssl.truststore.location={self.ca_file}\n"
            "sasl.mechanism=PLAIN\n"
            f'sasl.jaas.config={PLAIN_MODULE} required username="{APP}" password="{secret(APP)}";\n'
        )
        return "--command-config", str(file)


def names() -> list[str]:
    """Return the users of the nodes."""
    return [f"node-{node}" for node in NODES]


def test_a_cluster_moves_to_sasl_ssl_and_renews_its_certificates_under_load(
    tmp_path: Path,
) -> None:
    cluster = Cluster(tmp_path)
    gaps: dict[str, float] = {}

    def roll(label: str, load: Load, nodes: tuple[int, ...], controllers: Any, own: Any) -> None:
        """Restart nodes one by one with other listeners."""
        load.gap_s()
        for node in nodes:
            cluster.restart(node, controllers, own)
            wait_until(
                lambda node=node: (
                    cluster.processes[node].poll() is None and answers(cluster.ports[own[0]][node])
                ),
                f"node {node} listens, {label}",
            )
            load.wait_for_more(f"{label} at node {node}")
        gaps[label] = load.gap_s()

    try:
        for node in NODES:
            cluster.restart(node, OLD, OLD)
        bootstrap = ("--bootstrap-server", cluster.client("OLD")["bootstrap.servers"])
        created = ("topics", "create", TOPIC, *bootstrap)
        wait_until(lambda: run("esker", *created).returncode == 0, "the topic exists")

        with Load(TOPIC, cluster.client("OLD")) as old:
            old.wait_for_more("at first")
            roll("plain restarts", old, NODES, OLD, OLD)
            cluster.kill(cluster.leader("OLD"))
            old.wait_for_more("after a failover")
            gaps["plain failover"] = old.gap_s()
            for node in NODES:
                if cluster.processes[node].poll() is not None:
                    cluster.start(node)
            roll("a second listener of controllers", old, VOTERS, (*OLD, *NEW), (*OLD, *NEW))
            roll("a second listener for clients", old, BROKERS, OLD, (*OLD, *NEW))
            roll("the new listener first", old, VOTERS, (*NEW, *OLD), (*NEW, *OLD))
            roll("brokers connect to it", old, BROKERS, NEW, (*OLD, *NEW))
            roll("controllers without the old one", old, VOTERS, NEW, NEW)
            with Load(TOPIC, cluster.client("NEW"), first=10**9) as new:
                new.wait_for_more("over SASL_SSL")  # clients move while both listeners are there
                before = len(old.acknowledged)
                assert before > 1_000
                old.stop()
                roll("brokers without the old one", new, BROKERS, NEW, NEW)
                roll("plain restarts with SASL_SSL", new, NODES, NEW, NEW)
                for cluster.identity in ("off", "log", "enforce"):
                    roll(f"identity {cluster.identity}", new, NODES, NEW, NEW)
                only_its_owner_may_write_a_group(cluster)
                renew_certificates(cluster, new, gaps)
        acknowledged = old.acknowledged, new.acknowledged
        for label, gap in gaps.items():
            print(f"longest gap {gap:.2f} s: {label}")
        assert not old.failed + new.failed
        assert not old.refused + new.refused
        count = sum(map(len, acknowledged))
        read = read_all(TOPIC, cluster.client("NEW"), count)
        assert len(read) == count
        assert [value for value in read if value < 10**9] == acknowledged[0]
        assert [value for value in read if value >= 10**9] == acknowledged[1]
        assert not any(answers(cluster.ports["OLD"][node]) for node in NODES)
        for node in VOTERS:
            denied = re.findall(r"(?:would_deny|decision=denied).*", cluster.log(node))
            assert not [line for line in denied if "api_key=1121 " not in line]
    finally:
        cluster.stop()


def only_its_owner_may_write_a_group(cluster: Cluster) -> None:
    """Ask a controller as each broker to commit offsets of a group that one of them owns."""
    consumer = Consumer(cluster.client("NEW") | {"group.id": "readers"})
    consumer.commit(offsets=[TopicPartition(TOPIC, 0, 1)], asynchronous=False)
    consumer.close()
    tls = TlsContexts(
        TlsSettings.of({"ssl.truststore.location": str(cluster.ca_file)}), server=False
    )

    async def codes() -> set[int]:
        async with await open_rpc("127.0.0.1", cluster.ports["NEW"][VOTERS[0]]) as rpc:
            return {
                (
                    await rpc.call(
                        CommitGroupOffsetsRequest(
                            group_id="readers", ownership_epoch=epoch, sequence=-1, commits=()
                        ),
                        CommitGroupOffsetsResponse,
                    )
                ).error_code
                for epoch in range(MOST_OWNERS)  # one of them is the owner's
            }

    denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    refused = []
    for broker in BROKERS:
        user = f"node-{broker}"
        with outgoing(OutgoingSecurity(tls=tls, sasl=Credentials(PLAIN, user, secret(user)))):
            refused.append(denied in run_async(codes()))
    assert sorted(refused) == [False, True]


def renew_certificates(cluster: Cluster, load: Load, gaps: dict[str, float]) -> None:
    """Renew all nodes' certificates, and then the CA, without a restart of any node.

    After each step the leader is killed, so that connections between nodes are made anew; a new
    client connects; each node shows its new certificate.
    """
    first = cluster.ca
    second = Authority("second CA")
    steps: tuple[tuple[str, Authority, tuple[Authority, ...]], ...] = (
        ("certificates of the same CA", first, (first,)),
        ("a second CA is trusted", first, (first, second)),
        ("certificates of the second CA", second, (first, second)),
        ("the first CA is not trusted", second, (second,)),
    )
    for label, cluster.ca, trusted in steps:
        cluster.trust(*trusted)
        before = {node: cluster.serial(node) for node in NODES}
        for node in NODES:
            cluster.renew(node)
            wait_until(
                lambda node=node, before=before: cluster.serial(node) != before[node],
                f"node {node} shows its new certificate, {label}",
            )
        load.gap_s()
        leader = cluster.leader("NEW")
        cluster.kill(leader)
        load.wait_for_more(f"{label}, after a failover")
        cluster.start(leader)
        listed = run("esker", "topics", "list", *cluster.secured())
        assert TOPIC in listed.stdout, f"a new client, {label}: {listed.stderr}"
        gaps[f"failover, {label}"] = load.gap_s()


def answers(port: int) -> bool:
    """Return whether a port takes connections."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
