"""The demo's cluster: `esker dev` as a newcomer starts it, and kill -9 for its processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from esker.dev.cluster import QUORUM, QUORUM_PORTS_FROM, is_free

SHOWN = "esker-data"
"""What the demo calls its directory."""
CLUSTER_LOG = "__cluster_metadata-0"
COORDINATOR_LOG = "__diskless-metadata-0"
PATIENCE_S = 60
SETTINGS = (
    "--set", "diskless.file.delete.delay.ms=10000",  # instead of a minute
    "--set", "esker.file.delete.interval.ms=500",
)  # fmt: skip
ROOT = Path(__file__).parents[1]


class DemoFailedError(Exception):
    """Something that the demo was about to claim is not so."""


class Cluster:
    """`esker dev` with two brokers, on ports that are free."""

    def __init__(self, home: Path) -> None:
        self.directory = home / SHOWN
        self.port = _port(29_092 + os.getpid() % 50 * 2 * QUORUM_PORTS_FROM)
        self.brokers = [self.port, self.port + 1]
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in self.brokers)
        self._process: subprocess.Popen[str] | None = None
        self._said: list[str] = []
        self._controllers = ""

    def start(self) -> list[str]:
        """Start `esker dev`, and return the lines that the command prints until it is ready.

        Raises:  DemoFailedError.
        """
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-m", "esker", "dev", "--dir", str(self.directory),
             "--port", str(self.port), "--brokers", str(len(self.brokers)), *SETTINGS],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
        )  # fmt: skip
        assert self._process.stdout is not None, "it is a pipe"
        for line in self._process.stdout:
            self._said.append(line.rstrip().replace(str(self.directory), SHOWN))
            if "controllers:" in line:
                self._controllers = line.split()[-1]
            if line.startswith("Ctrl-C"):
                break
        else:
            raise DemoFailedError(f"esker dev starts: {self._said}")
        said = list(self._said)
        threading.Thread(target=self._listen, daemon=True).start()
        return said

    def run(self, *words: str) -> str:
        """Run an `esker` command with the brokers as bootstrap servers, and return its output.

        Raises:  DemoFailedError.
        """
        local = words[0] == "dump-log"
        at = () if local else ("--bootstrap-server", self.bootstrap)
        return self._run(*words, *at)

    def local(self, *words: str) -> str:
        """Run an `esker` command on files below `esker-data`, and return its output.

        Raises:  DemoFailedError.
        """
        home = str(self.directory)
        said = self._run(*(word.replace(SHOWN, home) for word in words))
        return said.replace(home, SHOWN)

    @property
    def controllers(self) -> str:
        """Return the bootstrap addresses of the quorum's nodes, as `esker dev` printed them."""
        return self._controllers

    def kill(self, group: str) -> tuple[str, int]:
        """Kill (SIGKILL) a replicated log's leader; return the node's name and leader epoch."""
        found = self._quorum(group)
        name = f"quorum-{found['leaderId']}"
        pid = int((self.directory / "output" / f"{name}.pid").read_text())
        os.kill(pid, signal.SIGKILL)
        return name, found["leaderEpoch"]

    def epoch(self, group: str) -> int:
        """Return the current leader epoch of a replicated log."""
        return int(self._quorum(group)["leaderEpoch"])

    def wait_until_whole(self) -> None:
        """Wait until every quorum node is running and has caught up with the leaders' logs."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            with contextlib.suppress(DemoFailedError):
                if all(self._is_whole(group) for group in (CLUSTER_LOG, COORDINATOR_LOG)):
                    return
            time.sleep(0.1)
        raise DemoFailedError(f"the nodes that were killed are back within {PATIENCE_S} s")

    def objects(self) -> list[Path]:
        """Return the sorted paths of all objects in the cluster's object store."""
        files = (self.directory / "objects").rglob("[0-9]*")  # beside them is the store's own mark
        return sorted(path for path in files if path.is_file())

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _is_whole(self, group: str) -> bool:
        """Return whether all voters of a log fetched lately and lag by less than 50 records."""
        now_ms = time.time() * 1000
        voters = [one for one in self._quorum(group)["replicas"] if one["status"] != "Observer"]
        return len(voters) == len(QUORUM) and all(
            one["lag"] < 50 and now_ms - one["lastFetchTimestamp"] < 3_000 for one in voters
        )

    def _quorum(self, group: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            self._run(
                "quorum", "describe", "--group", group, "--json", "--replication",
                "--bootstrap-controller", self._controllers,
            )
        )  # fmt: skip
        return found

    def _run(self, *words: str) -> str:
        ran = subprocess.run(
            [sys.executable, "-m", "esker", *words],
            capture_output=True, text=True, check=False, cwd=ROOT,
        )  # fmt: skip
        if ran.returncode:
            raise DemoFailedError(f"esker {' '.join(words)}: {ran.stderr.strip()}")
        return ran.stdout

    def _listen(self) -> None:
        """Read the output of `esker dev`, so that a full pipe never blocks the command."""
        assert self._process is not None, "started"
        assert self._process.stdout is not None, "it is a pipe"
        with contextlib.suppress(ValueError):  # closed, when all is over
            for line in self._process.stdout:
                self._said.append(line.rstrip())


def _port(first: int) -> int:
    """Return the first port, from `first` on, where two ports in a row are free for brokers.

    Raises:  DemoFailedError.
    """
    for port in range(first, first + 2000, 2 * QUORUM_PORTS_FROM):
        if is_free(port) and is_free(port + 1):
            return port
    raise DemoFailedError(f"there are free ports from {first} on")
