"""A cluster whose brokers are the processes of one properties file.

    with HostedCluster(directory, brokers=2) as cluster:
        cluster.start()
        cluster.kill_process(102)       # the supervisor starts it again

The quorum's nodes are processes as in `EskerCluster`. All brokers are one entry of `processes`: the
supervisor, under `HOST`.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from tests.clients.cluster import EskerCluster
from tests.ports import free_port, free_row

HOST: Final = 100  # the supervisor, among node ids
_STARTED: Final = re.compile(r"broker=(\d+) state=starting pid=(\d+)")


class HostedCluster(EskerCluster):
    """Three quorum nodes, and a supervisor of some brokers (101, ...)."""

    def __init__(self, home: Path, *, brokers: int = 2, **more: Any) -> None:
        self._settings: Mapping[str, str] = more.get("settings") or {}
        self.host_port = free_port()
        self.first_port = free_row(range(brokers))
        super().__init__(home, brokers=brokers, **more)

    @property
    def host_bootstrap(self) -> str:
        """The bootstrap port that all brokers share."""
        return f"127.0.0.1:{self.host_port}"

    def _configure(self, node: int, settings: Mapping[str, str]) -> None:
        if node in self.quorum_ids:
            super()._configure(node, settings)
            return
        for place, broker in enumerate(self.broker_ids):
            self.ports[broker] = self.first_port + place
        voters = ",".join(f"{one}@127.0.0.1:{self.ports[one]}" for one in self.quorum_ids)
        lines = {
            "process.roles": "broker",
            "esker.broker.processes": str(len(self.broker_ids)),
            "esker.broker.ids": f"{self.broker_ids[0]}-{self.broker_ids[-1]}",
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.host_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{{{self.first_port}+i}}",
            "log.dirs": str(self.log_dir(HOST)),
            "esker.storage.directory.path": str(self.store),
            **settings,
        }
        text = "".join(f"{key}={value}\n" for key, value in lines.items())
        self.properties(HOST).write_text(text)

    def format(self, node: int, *options: str) -> None:
        """`esker storage format`: of all brokers at once."""
        if node in self.quorum_ids:
            super().format(node, *options)
        elif node == self.broker_ids[0]:
            super().format(HOST, *options)

    def start(self) -> None:
        """The quorum and the supervisor, and wait until all brokers are ready."""
        self.launch(*self.quorum_ids, HOST)
        self.wait_until_ready(*self.broker_ids)

    def running_brokers(self) -> list[int]:
        """All brokers, while their supervisor runs."""
        return list(self.broker_ids) if HOST in self.processes else []

    def output(self, node: int) -> str:
        """What the supervisor and its brokers have logged, for any of them."""
        return super().output(HOST if node in self.broker_ids else node)

    def pid(self, broker: int) -> int:
        """The process that the supervisor started last for this broker."""
        found = [int(pid) for one, pid in _STARTED.findall(self.output(HOST)) if int(one) == broker]
        assert found, f"broker {broker} was never started"
        return found[-1]

    def kill_process(self, broker: int, number: signal.Signals = signal.SIGKILL) -> int:
        """Signal a broker's process; return its pid."""
        pid = self.pid(broker)
        os.kill(pid, number)
        return pid

    def starts(self, broker: int) -> int:
        """How often the supervisor has started this broker."""
        return sum(int(one) == broker for one, _ in _STARTED.findall(self.output(HOST)))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pids = {self.pid(broker) for broker in self.broker_ids if self.starts(broker)}
        is_running = HOST in self.processes
        super().__exit__(kind, error, traceback)
        for pid in pids if is_running else ():  # orphans would drain, and there is no quorum
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
