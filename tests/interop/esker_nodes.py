"""A quorum of Esker's own nodes, each a process started as a user starts it.

with EskerQuorum(directory) as quorum:
    leader = quorum.wait_for_leader()
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from typer.testing import CliRunner

from esker.cli import app
from esker.server.storage import format_storage
from esker.settings.config import load_config
from records.features import ESKER_VERSION
from tests.interop.kafka_rpc import Connection, RpcError
from tests.interop.kafka_run import stop_process
from tests.interop.kafka_scenario import CLUSTER_ID
from tests.ports import free_port
from tests.processes import Process, start
from tests.raft.driver.client import Client, ClientError
from tests.waiting import wait_until

METADATA_TOPIC: Final = "__cluster_metadata"
LEVELS_OF_KAFKA: Final = {ESKER_VERSION: 1}
"""Java nodes do not know the feature: level 2 refuses their brokers and stops their controllers."""


class EskerQuorum:
    """Controllers with static voters, formatted and started; stopped at the end of the block."""

    def __init__(
        self,
        directory: Path,
        node_ids: Sequence[int] = (1, 2, 3),
        *,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self._settings = dict(settings or {})
        self.ports = {node: free_port() for node in node_ids}
        self._processes: dict[int, Process] = {}
        for node in node_ids:
            self._configure(node)

    @property
    def bootstrap(self) -> str:
        """The controllers' addresses, as Kafka's tools take them."""
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    @property
    def voters(self) -> str:
        """The value of `controller.quorum.voters`."""
        return ",".join(f"{node}@127.0.0.1:{port}" for node, port in self.ports.items())

    def metadata_log(self, node: int) -> Path:
        return self.group_log(node, f"{METADATA_TOPIC}-0")

    def group_log(self, node: int, group: str) -> Path:
        return self.directory / str(node) / group

    def esker(self, *words: str) -> str:
        """The output of an `esker` command that is to succeed, run in this process."""
        ran = CliRunner().invoke(app, words)
        assert ran.exit_code == 0, f"{words}: {ran.stderr}{self.said()}"
        return ran.stdout

    def describe(self, node: int) -> Any:
        """A node's answer to DescribeQuorum on the metadata log, or None if it has none yet."""
        topics = [{"topic_name": METADATA_TOPIC, "partitions": [{"partition_index": 0}]}]
        try:
            with Connection(self.ports[node]) as connection:
                return connection.call("describe_quorum", 2, topics=topics).topics[0].partitions[0]
        except (OSError, RpcError):
            return None

    def observers(self, leader: int) -> list[int]:
        """Who follows the metadata log without a vote, as its leader sees it."""
        answer = self.describe(leader)
        return [] if answer is None else [one.replica_id for one in answer.observers]

    def wait_for_leader_of(self, topic: str) -> int:
        """The node that answers linearizable reads of partition 0 of a group for clients."""
        leaders: list[int] = []

        def one_leads() -> bool:
            for node in self._processes:
                with (
                    contextlib.suppress(OSError, ClientError),
                    Client("127.0.0.1", self.ports[node], timeout_s=3) as client,
                ):
                    client.end_offset(topic)
                    leaders.append(node)
            return bool(leaders)

        wait_until(one_leads, state=self.said)
        return leaders[0]

    def wait_for_leader(self) -> int:
        """The node that leads the metadata log and has committed in its epoch; all listen."""
        wait_until(lambda: all(map(self.listens, self._processes)), state=self.said)
        leaders: list[int] = []

        def one_leads() -> bool:
            for node in self._processes:
                answer = self.describe(node)
                if answer is not None and answer.leader_id == node and answer.high_watermark > 0:
                    leaders.append(node)
            return bool(leaders)

        wait_until(one_leads, state=self.said)
        return leaders[0]

    def listens(self, node: int) -> bool:
        """Does it take connections? Two of three are a quorum, while the third only begins."""
        try:
            socket.create_connection(("127.0.0.1", self.ports[node]), timeout=1).close()
        except OSError:
            return False
        return True

    def said(self) -> str:
        """What the nodes have logged last."""
        logs = [self.directory / f"{node}.log" for node in self.ports]
        return "\n".join(f"--- {log.name}\n{log.read_text()[-3000:]}" for log in logs)

    def stop(self, node: int) -> None:
        """SIGTERM, and wait until the node is gone."""
        process = self._processes.pop(node)
        stop_process(process)
        assert process.returncode == 0, f"node {node}: {self.said()}"

    def __enter__(self) -> EskerQuorum:
        for node in self.ports:
            with (self.directory / f"{node}.log").open("wb") as log:
                self._processes[node] = start(
                    "esker", "start", str(self._properties(node)), output=log
                )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in self._processes.values():
            process.terminate()  # together, for each waits a while for the others
        for process in self._processes.values():
            stop_process(process)
        if error is not None:
            error.add_note(self.said())

    def _properties(self, node: int) -> Path:
        return self.directory / f"{node}.properties"

    def _configure(self, node: int) -> None:
        lines = {
            "process.roles": "controller",
            "node.id": node,
            "controller.listener.names": "CONTROLLER",
            "listeners": f"CONTROLLER://127.0.0.1:{self.ports[node]}",
            "controller.quorum.voters": self.voters,
            "log.dirs": self.directory / str(node),
            **self._settings,
        }
        self._properties(node).write_text("".join(f"{k}={v}\n" for k, v in lines.items()))
        format_storage(load_config(self._properties(node)), CLUSTER_ID, features=LEVELS_OF_KAFKA)
