"""Three `esker start` processes on loopback, by the commands that a person would type.

For tests and benchmarks of the quorum alone; `esker dev` starts brokers as well.
"""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from typer.testing import CliRunner

from esker.cli import app
from tests.ports import free_ports
from tests.processes import Process, run, start
from tests.raft.driver.client import Client, ClientError
from tests.waiting import wait_until

NODES = (1, 2, 3)


class QuorumFailedError(Exception):
    """The quorum did not come up."""


def storage(*words: str) -> str:
    """What `esker storage` says, in this process: four more would be a second of work."""
    ran = CliRunner().invoke(app, ["storage", *words])
    if ran.exit_code:
        raise QuorumFailedError(f"esker storage {' '.join(words)}: {ran.stderr.strip()}")
    return ran.stdout


class Quorum:
    """Three `esker start` processes on loopback."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.ports = dict(zip(NODES, free_ports(len(NODES)), strict=True))
        self.processes: dict[int, Process] = {}
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in self.ports.items())
        cluster_id = storage("random-uuid").strip()
        for node, port in self.ports.items():
            file = self.properties(node)
            file.write_text(
                "process.roles=controller\n"
                f"node.id={node}\n"
                f"controller.quorum.voters={voters}\n"
                f"listeners=CONTROLLER://127.0.0.1:{port}\n"
                f"log.dirs={home / str(node)}\n"
                "esker.bench.log.enable=true\n"
            )
            storage("format", "--config", str(file), "--cluster-id", cluster_id)

    def properties(self, node: int) -> Path:
        return self.home / f"node{node}.properties"

    def run(self, *words: str) -> str:
        """An `esker` command's output."""
        ran = run("esker", *words)
        if ran.returncode:
            raise QuorumFailedError(f"esker {' '.join(words)}: {ran.stderr.strip()}")
        return ran.stdout

    def start(self, *nodes: int) -> None:
        for node in nodes:
            with (self.home / f"node{node}.log").open("ab") as log:
                self.processes[node] = start(
                    "esker", "start", str(self.properties(node)), output=log
                )

    def ready(self) -> int:
        """Wait until all that were started listen, and one leads: that one.

        A majority is enough for a leader; another node may be an interpreter that only begins.
        """
        wait_until(
            lambda: all(map(self.listens, self.processes)),
            f"all nodes listen; see {self.home}/node*.log",
        )
        return self.leader()

    def listens(self, node: int) -> bool:
        """Does it take connections?"""
        try:
            socket.create_connection(("127.0.0.1", self.ports[node]), timeout=1).close()
        except OSError:
            return False
        return True

    def kill(self, node: int) -> None:
        process = self.processes.pop(node)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    def leader(self) -> int:
        """The node that answers linearizable reads of the group; waits for one."""

        def leading() -> int | None:
            for node in self.processes:
                with (
                    suppress(OSError, ClientError),
                    Client("127.0.0.1", self.ports[node]) as client,
                ):
                    client.end_offset()
                    return node
            return None

        return int(wait_until(leading, f"a node leads; see {self.home}/node*.log"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for node in tuple(self.processes):
            self.kill(node)
