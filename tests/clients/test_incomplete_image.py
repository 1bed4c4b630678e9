"""Nodes without a complete copy of the cluster log let in super users only.

Without an entry everybody may do everything here (allow.everyone.if.no.acl.found), so an empty copy
would be an open door.
"""

from __future__ import annotations

import os
import signal
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from esker.settings.access import STANDARD_AUTHORIZER
from raft.net.errors import NetError
from raft.net.rpc import open_rpc
from raft.net.runner import run
from raft.net.sasl import PLAIN, Credentials
from raft.net.security import OutgoingSecurity, outgoing
from records.kafka_errors import ErrorCode
from records.rpc import cluster, security, topics
from tests.clients.secured import PLAIN_MODULE
from tests.ports import free_ports
from tests.processes import Process, start
from tests.quorum_processes import storage
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

VOTERS: Final = (1, 2)
BROKER: Final = 11
SUPER, ANN = "node", "ann"
USERS: Final = f'user_{SUPER}="{SUPER}-secret" user_{ANN}="{ANN}-secret"'
DENIED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class Cluster:
    """Two controllers and a broker; old records of the cluster's log are soon deleted."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.ports = dict(zip((*VOTERS, BROKER), free_ports(3), strict=True))
        self.processes: dict[int, Process] = {}
        self.cluster_id = storage("random-uuid").strip()
        for node in self.ports:
            self.format(node)

    def format(self, node: int, directory: str = "") -> None:
        """Write a node's settings, and format its directory, another one if that is named."""
        voters = ",".join(f"{voter}@127.0.0.1:{self.ports[voter]}" for voter in VOTERS)
        role = "broker" if node == BROKER else "controller"
        file = self.file(node)
        file.write_text(
            f"process.roles={role}\nnode.id={node}\ncontroller.quorum.voters={voters}\n"
            f"listeners={role.upper()}://127.0.0.1:{self.ports[node]}\n"
            "controller.listener.names=CONTROLLER\n"
            "listener.security.protocol.map=CONTROLLER:SASL_PLAINTEXT,BROKER:SASL_PLAINTEXT\n"
            "sasl.enabled.mechanisms=PLAIN\n"
            f"listener.name.controller.plain.sasl.jaas.config={PLAIN_MODULE} required "
            f'username="{SUPER}" password="{SUPER}-secret" {USERS};\n'
            f"listener.name.broker.plain.sasl.jaas.config={PLAIN_MODULE} required {USERS};\n"
            f"authorizer.class.name={STANDARD_AUTHORIZER}\nsuper.users=User:{SUPER}\n"
            "allow.everyone.if.no.acl.found=true\n"
            f"log.dirs={self.home / (directory or str(node))}\n"
            f"esker.storage.directory.path={self.home / 'objects'}\n"
            "controller.quorum.election.timeout.ms=400\n"
            "metadata.max.idle.interval.ms=20\nmetadata.log.max.record.bytes.between.snapshots=1\n"
            "metadata.snapshot.min.changed_records.ratio=0\nmetadata.max.retention.bytes=0\n"
        )
        file.chmod(0o600)
        storage("format", "--config", str(file), "--cluster-id", self.cluster_id)

    def file(self, node: int) -> Path:
        return self.home / f"node{node}.properties"

    def log(self, node: int) -> str:
        return (self.home / f"node{node}.log").read_text()

    def start(self, *nodes: int) -> None:
        for node in nodes:
            with (self.home / f"node{node}.log").open("ab") as log:
                self.processes[node] = start("esker", "start", str(self.file(node)), output=log)

    def stop(self, node: int) -> None:
        process = self.processes.pop(node)
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait()

    def stop_all(self) -> None:
        for node in (*self.processes,):
            self.stop(node)

    def listens(self, node: int) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.ports[node]), timeout=1).close()
        except OSError:
            return False
        return True

    def ask(self, user: str, node: int, request: Any, response: Any) -> Any:
        """Return a node's answer to a user, or None if there is no answer."""

        async def asked() -> Any:
            async with await open_rpc("127.0.0.1", self.ports[node], timeout_ms=2_000) as rpc:
                return await rpc.call(request, response)

        with outgoing(OutgoingSecurity(sasl=Credentials(PLAIN, user, f"{user}-secret"))):
            try:
                return run(asked())
            except NetError:
                return None

    def describes(self, user: str, node: int) -> int | None:
        """Return the error of DescribeCluster at a controller, which needs ALTER."""
        request = cluster.DescribeClusterRequest(
            include_cluster_authorized_operations=False, endpoint_type=2
        )
        answer = self.ask(user, node, request, cluster.DescribeClusterResponse)
        return None if answer is None else answer.error_code

    def sees(self, user: str, topic: str) -> int | None:
        """Return the error of a topic in the broker's Metadata."""
        named = cluster.MetadataRequest.MetadataRequestTopic(name=topic)
        request = cluster.MetadataRequest(topics=(named,), allow_auto_topic_creation=False)
        answer = self.ask(user, BROKER, request, cluster.MetadataResponse)
        return None if answer is None else answer.topics[0].error_code


def test_only_super_users_get_in_before_an_image_is_complete_and_an_older_image_stays(
    tmp_path: Path,
) -> None:
    nodes = Cluster(tmp_path)
    with ExitStack() as ending:
        ending.callback(nodes.stop_all)
        nodes.start(VOTERS[0], BROKER)
        wait_until(lambda: nodes.listens(1), "a controller without a leader listens")
        wait_until(lambda: nodes.describes(SUPER, 1) is not None, "an answer")
        assert nodes.describes(SUPER, 1) != ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert nodes.describes(ANN, 1) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert not nodes.listens(BROKER)

        nodes.start(VOTERS[1])
        wait_until(lambda: nodes.listens(BROKER), "a broker with a complete image listens")
        wait_until(lambda: nodes.describes(ANN, 1) == 0, "everybody gets in without an entry")
        create(nodes, "secret")
        create(nodes, "open")
        deny(nodes, "secret")
        wait_until(lambda: nodes.sees(ANN, "secret") == DENIED, "the entry is applied")
        assert nodes.sees(ANN, "open") == 0

        # While the broker stands still, the log is cut; so it goes on from a checkpoint.
        os.kill(nodes.processes[BROKER].pid, signal.SIGSTOP)
        wait_for_cut_log(nodes)
        os.kill(nodes.processes[BROKER].pid, signal.SIGCONT)
        found = set()
        while "__cluster_metadata-0 action=install_snapshot" not in nodes.log(BROKER):
            found.add(nodes.sees(ANN, "secret"))
        wait_until(lambda: nodes.sees(SUPER, "secret") == 0, "the broker has caught up")
        found.add(nodes.sees(ANN, "secret"))
        assert found <= {DENIED, None}

        # A broker that begins anew, without its directory, does not listen before it knows.
        nodes.stop(BROKER)
        nodes.format(BROKER, "new")
        nodes.start(BROKER)
        first = wait_until(lambda: nodes.sees(ANN, "secret"), "an answer of the new broker")
        assert first == DENIED
        assert nodes.sees(ANN, "open") == 0


def create(nodes: Cluster, topic: str) -> None:
    """Create a topic of one partition at the broker."""
    created = topics.CreateTopicsRequest.CreatableTopic(
        name=topic, num_partitions=1, replication_factor=1, assignments=(), configs=()
    )
    request = topics.CreateTopicsRequest(topics=(created,))
    answer = nodes.ask(SUPER, BROKER, request, topics.CreateTopicsResponse)
    assert answer.topics[0].error_code == 0, answer


def deny(nodes: Cluster, topic: str) -> None:
    """Deny everything on a topic to everybody."""
    entry = security.CreateAclsRequest.AclCreation(
        resource_type=2,
        resource_name=topic,
        resource_pattern_type=3,
        principal="User:*",
        host="*",
        operation=2,
        permission_type=2,
    )
    request = security.CreateAclsRequest(creations=(entry,))
    answer = nodes.ask(SUPER, BROKER, request, security.CreateAclsResponse)
    assert answer.results[0].error_code == 0, answer


def wait_for_cut_log(nodes: Cluster) -> None:
    """Wait until each controller has deleted its present checkpoints: its log begins later."""

    def checkpoints(node: int) -> set[str]:
        files = (nodes.home / str(node) / "__cluster_metadata-0").glob("*.checkpoint")
        return {file.name for file in files}

    for node in VOTERS:
        before = checkpoints(node)
        wait_until(
            lambda node=node, before=before: checkpoints(node) and not checkpoints(node) & before,
            "a log that begins later",
        )
