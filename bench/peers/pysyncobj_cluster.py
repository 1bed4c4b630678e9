"""Three PySyncObj processes (`bench.peers.pysyncobj_node`), asked for figures over a pipe."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.raft.driver.cluster import free_ports


class PySyncObj:
    """A cluster, by default as PySyncObj comes, or `tuned` to the best settings known."""

    def __init__(self, directory: Path, *, tuned: bool = False) -> None:
        hosts = [f"127.0.0.1:{port}" for port in free_ports(3)]
        self.processes = [
            subprocess.Popen(
                [
                    sys.executable, "-m", "bench.peers.pysyncobj_node",
                    json.dumps(
                        {"self": host, "others": [h for h in hosts if h != host],
                         "directory": str(directory), "tuned": tuned}
                    ),
                ],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            )
            for host in hosts
        ]  # fmt: skip
        for process in self.processes:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == "ready", "PySyncObj did not start"

    def load(self, **work: float) -> dict[str, float]:
        """Send the work to all nodes, and return the figures that the leader measured."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(work) + "\n")
            process.stdin.flush()
        answers: list[Any] = []
        for process in self.processes:
            assert process.stdout is not None
            answers.append(json.loads(process.stdout.readline()))
        measured: dict[str, float] = next(answer for answer in answers if answer is not None)
        return measured

    def __enter__(self) -> PySyncObj:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
