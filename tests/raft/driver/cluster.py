"""Three nodes as three processes on loopback, for tests and benchmarks.

    with Cluster(directory) as cluster:
        cluster.start()
        leader = cluster.wait_for_leader("esker-bench-log")
        cluster.kill(leader)

A node's ports are free when the cluster is made; its output goes to `<directory>/<id>.log`. Leaving
the block kills what still runs.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import UUID, uuid4

from raft.segments.files import RealFileSystem
from raft.segments.properties import MetaProperties, write_meta_properties
from records.types import NodeId
from tests.ports import free_ports
from tests.processes import Process, start
from tests.raft.driver.client import Client, ClientError
from tests.waiting import wait_until

CLUSTER_ID = "xBIbbGYlSzqHPEyzl9QSWw"


class Cluster:
    """Processes 1 to `size`, the first `voters` of which vote."""

    node_main = "tests.raft.driver.node_main"

    def __init__(
        self,
        directory: Path,
        *,
        size: int = 3,
        voters: int | None = None,
        topics: tuple[str, ...] = ("esker-bench-log",),
        quorum: dict | None = None,
        log: dict | None = None,
        metrics: bool = False,
        profile: int | None = None,
        **shared: object,
    ) -> None:
        self.directory = directory
        self.ids = list(range(1, size + 1))
        self.voters = self.ids[: voters or size]
        self.topics = topics
        ports = free_ports(2 * size)
        self.ports = dict(zip(self.ids, ports[:size], strict=True))
        self.metrics_ports = dict(zip(self.ids, ports[size:], strict=True)) if metrics else {}
        self.quorum = quorum or {}
        self.log = log or {}
        self.profile = profile
        self.shared = shared  # further settings of `node_main`, of every node
        self.extra: dict[int, dict] = {}  # by node: further settings of `node_main`
        self.processes: dict[int, Process] = {}
        self.directory_ids: dict[int, UUID] = {}
        for node in self.ids:
            self.format(node)

    def format(self, node: int) -> None:
        """Make a node's log directory, as `storage format` does."""
        directory_id = self.directory_ids[node] = uuid4()
        log_dir = self.log_dir(node)
        log_dir.mkdir(parents=True, exist_ok=True)
        meta = MetaProperties(
            cluster_id=CLUSTER_ID, node_id=NodeId(node), directory_id=directory_id
        )
        write_meta_properties(RealFileSystem(), log_dir, meta)

    def log_dir(self, node: int) -> Path:
        return self.directory / str(node)

    def output(self, node: int) -> str:
        """What a node has logged."""
        return (self.directory / f"{node}.log").read_text()

    def settings(self, node: int) -> dict:
        settings = {
            "node_id": node,
            "cluster_id": CLUSTER_ID,
            "directory_id": str(self.directory_ids[node]),
            "log_dir": str(self.log_dir(node)),
            "port": self.ports[node],
            "voters": {voter: ("127.0.0.1", self.ports[voter]) for voter in self.voters},
            "topics": list(self.topics),
            "quorum": self.quorum,
            "log": self.log,
        }
        if self.metrics_ports:
            settings["metrics_port"] = self.metrics_ports[node]
        settings |= self.shared | self.extra.get(node, {})
        if self.profile == node:
            settings["profile"] = str(self.directory / f"{node}.prof")
        return settings

    def start(self, *nodes: int) -> None:
        """Start these nodes, or all."""
        for node in nodes or self.ids:
            assert node not in self.processes, f"node {node} runs"
            with (self.directory / f"{node}.log").open("ab") as output:
                settings = json.dumps(self.settings(node))
                self.processes[node] = start(self.node_main, settings, output=output)

    def kill(self, *nodes: int) -> None:
        """kill -9, and wait until they are gone."""
        for node in nodes or tuple(self.processes):
            self.processes[node].kill()
        for node in nodes or tuple(self.processes):
            self.processes.pop(node).wait()

    def stop(self, *nodes: int, timeout_s: float = 60) -> dict[int, int]:
        """SIGTERM, and wait: the exit codes."""
        chosen = nodes or tuple(self.processes)
        for node in chosen:
            self.processes[node].terminate()
        return {node: self.processes.pop(node).wait(timeout_s) for node in chosen}

    def signal(self, node: int, number: signal.Signals) -> None:
        """SIGSTOP and SIGCONT, for instance."""
        os.kill(self.processes[node].pid, number)

    def client(self, node: int) -> Client:
        """A blocking client of one node."""
        return Client("127.0.0.1", self.ports[node], timeout_s=30)

    def wait_for_leader(self, topic: str = "esker-bench-log") -> int:
        """The node that leads a group, once it answers a linearizable read."""

        def leading() -> int | None:
            voters = (node for node in tuple(self.processes) if node in self.voters)
            return next((node for node in voters if self.leads(node, topic)), None)

        return int(wait_until(leading, f"a node leads {topic}"))

    def leads(self, node: int, topic: str = "esker-bench-log") -> bool:
        """Does this node answer linearizable reads now?"""
        try:
            with Client("127.0.0.1", self.ports[node], timeout_s=3) as client:  # it may stand still
                return client.end_offset(topic) is not None
        except (OSError, ClientError):
            return False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.processes:
            for process in self.processes.values():
                process.send_signal(signal.SIGCONT)
            self.kill()
        if error is not None:
            for node in self.ids:
                path = self.directory / f"{node}.log"
                if path.exists():
                    error.add_note(f"--- node {node}\n{path.read_text()[-4000:]}")
