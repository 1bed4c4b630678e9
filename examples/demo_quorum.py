"""The second half of `make demo`: a quorum of three processes, and its leader killed at work.

Three nodes are formatted and started by the commands of the README. The Python standard library's
own sources, line by line, are committed to the group `esker-bench-log`; when half of them are in,
the leader gets kill -9. What was not answered is sent again, so a line may stand twice, but none
that was acknowledged may be missing or out of order. Then the killed node comes back and catches
up.
"""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from tests.driver.client import Client, ClientError
from tests.driver.cluster import free_ports

NODES = (1, 2, 3)
LINES_PER_REQUEST = 100
PATIENCE_S = 30


class QuorumFailedError(Exception):
    """The quorum did not do what the demo was about to claim."""


class Quorum:
    """Three `esker start` processes on loopback."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.ports = dict(zip(NODES, free_ports(len(NODES)), strict=True))
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in self.ports.items())
        cluster_id = self.run("storage", "random-uuid").strip()
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
            self.run("storage", "format", "--config", str(file), "--cluster-id", cluster_id)

    def properties(self, node: int) -> Path:
        return self.home / f"node{node}.properties"

    def run(self, *words: str) -> str:
        """An `esker` command's output."""
        ran = subprocess.run(
            [sys.executable, "-m", "esker", *words], capture_output=True, text=True, check=False
        )
        if ran.returncode:
            raise QuorumFailedError(f"esker {' '.join(words)}: {ran.stderr.strip()}")
        return ran.stdout

    def start(self, *nodes: int) -> None:
        for node in nodes:
            with (self.home / f"node{node}.log").open("ab") as log:
                self.processes[node] = subprocess.Popen(
                    [sys.executable, "-m", "esker", "start", str(self.properties(node))],
                    stdout=log,
                    stderr=log,
                )

    def kill(self, node: int) -> None:
        process = self.processes.pop(node)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    def leader(self) -> int:
        """The node that answers linearizable reads of the group; waits for one."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for node in self.processes:
                try:
                    with Client("127.0.0.1", self.ports[node]) as client:
                        client.end_offset()
                        return node
                except (OSError, ClientError):
                    pass
            time.sleep(0.01)
        raise QuorumFailedError(f"no leader within {PATIENCE_S} s; see {self.home}/node*.log")

    def describe(self) -> dict[str, object]:
        """What `esker quorum describe --json` says of the group."""
        addresses = ",".join(f"127.0.0.1:{self.ports[node]}" for node in self.processes)
        text = self.run(
            "quorum", "describe", "--bootstrap-controller", addresses,
            "--group", "esker-bench-log-0", "--json",
        )  # fmt: skip
        described: dict[str, object] = json.loads(text)
        return described

    def table(self) -> str:
        """What `esker quorum describe --replication` prints of the group."""
        addresses = ",".join(f"127.0.0.1:{self.ports[node]}" for node in self.processes)
        return self.run(
            "quorum", "describe", "--bootstrap-controller", addresses,
            "--group", "esker-bench-log-0", "--replication",
        )  # fmt: skip

    def __enter__(self) -> Quorum:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for node in tuple(self.processes):
            self.kill(node)


def real_lines(most: int) -> list[bytes]:
    """Non-empty lines of the standard library's own sources."""
    lines: list[bytes] = []
    for path in sorted(Path(ast.__file__).parent.glob("*.py")):
        lines += [line for line in path.read_bytes().splitlines() if line.strip()]
        if len(lines) >= most:
            break
    return lines[:most]


def commit(quorum: Quorum, lines: list[bytes], *, kill_at: int) -> tuple[int, float]:
    """Commit all lines in order, kill -9 the leader after `kill_at` of them.

    Returns: the node that was killed, and the seconds from its death to the next acknowledgement.
    """
    killed, died_at, silence_s = 0, 0.0, 0.0
    done = 0
    client: Client | None = None
    leader = quorum.leader()
    while done < len(lines):
        if not killed and done >= kill_at:
            killed, died_at = leader, time.monotonic()
            quorum.kill(leader)
        try:
            if client is None:
                leader = quorum.leader()
                client = Client("127.0.0.1", quorum.ports[leader])
            client.produce(lines[done : done + LINES_PER_REQUEST])
        except (OSError, ClientError):
            client = None
            continue
        if killed and not silence_s:
            silence_s = time.monotonic() - died_at
        done += LINES_PER_REQUEST
    if client is not None:
        client.close()
    return killed, silence_s


def read_back(quorum: Quorum) -> Iterator[bytes]:
    """Every committed record, in order."""
    with Client("127.0.0.1", quorum.ports[quorum.leader()]) as client:
        end, next_offset = client.end_offset(), 0
        while next_offset < end:
            records = client.read(next_offset)
            yield from (value for _, value in records)
            # nothing to consume there: a control record
            next_offset = records[-1][0] + 1 if records else next_offset + 1


def in_order(expected: list[bytes], found: list[bytes]) -> bool:
    """Is every expected line there, in order? A request that was sent twice may stand twice."""
    rest = iter(found)
    return all(any(line == other for other in rest) for line in expected)


def wait_until_equal(quorum: Quorum, node: int) -> None:
    """Wait until this node holds all that the leader holds."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        replicas = quorum.describe()["replicas"]
        assert isinstance(replicas, list), "describe --json lists replicas"
        if all(replica["lag"] == 0 for replica in replicas if replica["nodeId"] == node):
            return
        time.sleep(0.2)
    raise QuorumFailedError(f"node {node} did not catch up within {PATIENCE_S} s")
