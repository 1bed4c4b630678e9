"""An Esker cluster as an operator starts it: properties files, `storage format`, `esker start`.

    with EskerCluster(directory, brokers=2) as cluster:
        cluster.start()
        client = Confluent(cluster.bootstrap)
        cluster.kill(cluster.broker_ids[0])

Three quorum nodes (1, 2, 3) and some brokers (101, ...), each a process with free ports of its own;
objects lie in a directory that all brokers share. Leaving the block kills what still runs.

`start` returns when every broker tells of every other, and a topic could be created at once.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from typer.testing import CliRunner

from esker.cli import app
from records.rpc.cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from tests.ports import free_port
from tests.processes import Process, start
from tests.raft.driver.client import Client as Wire
from tests.waiting import DEADLINE_S, wait_until

NODES: Final = (1, 2, 3)
FIRST_BROKER: Final = 101
DESCRIBE_CLUSTER_VERSION: Final = 0
SHOWN_BYTES: Final = 4_000
PROGRAM: Final = ("esker", "start")

QUICK: Final = {
    "controller.quorum.election.timeout.ms": "300",
    "controller.quorum.fetch.timeout.ms": "1000",
    "diskless.append.commit.interval.ms": "5",
    "group.initial.rebalance.delay.ms": "0",
}
"""So that tests wait for nothing that they are not about."""


class EskerCluster:
    """Processes by node id; brokers begin at 101."""

    def __init__(
        self,
        home: Path,
        *,
        brokers: int = 2,
        quorum: Sequence[int] = NODES,
        settings: Mapping[str, str] | None = None,
        settings_of: Mapping[int, Mapping[str, str]] | None = None,
        program: Sequence[str] = PROGRAM,
        fresh: bool = False,
        format_options: Sequence[str] = (),
        store: Path | None = None,
    ) -> None:
        """
        Args:  settings: of all nodes, over `QUICK`. settings_of: of single nodes, over those.
               program: a module and its words; the properties file comes last.
               fresh: every process imports all modules anew (`tests.processes.start`).
               format_options: of `storage format`, for every node.
               store: another cluster's, instead of one of its own.
        """
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        self.quorum_ids = tuple(quorum)
        self.broker_ids = tuple(range(FIRST_BROKER, FIRST_BROKER + brokers))
        self.ports = {node: free_port() for node in (*self.quorum_ids, *self.broker_ids)}
        self.processes: dict[int, Process] = {}
        self.store = store or home / "store"
        self.cluster_id = self._esker("storage", "random-uuid").strip()
        self._program = tuple(program)
        self._fresh = fresh
        for node in self.ports:
            own = (settings_of or {}).get(node, {})
            self._configure(node, {**QUICK, **(settings or {}), **own})
            self.format(node, *format_options)

    # --- addresses ----------------------------------------------------------------------------

    @property
    def brokers(self) -> list[tuple[str, int]]:
        return [("127.0.0.1", self.ports[broker]) for broker in self.broker_ids]

    @property
    def bootstrap(self) -> str:
        """The brokers, as clients take them."""
        return ",".join(f"{host}:{port}" for host, port in self.brokers)

    @property
    def controllers(self) -> list[tuple[str, int]]:
        return [("127.0.0.1", self.ports[node]) for node in self.quorum_ids]

    # --- files --------------------------------------------------------------------------------

    def log_dir(self, node: int) -> Path:
        return self.home / str(node)

    def properties(self, node: int) -> Path:
        return self.home / f"node{node}.properties"

    def output(self, node: int) -> str:
        """What a node has logged, over all its lives."""
        path = self.home / f"node{node}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _configure(self, node: int, settings: Mapping[str, str]) -> None:
        is_broker = node in self.broker_ids
        name = "PLAINTEXT" if is_broker else "CONTROLLER"
        voters = ",".join(f"{one}@127.0.0.1:{self.ports[one]}" for one in self.quorum_ids)
        lines = {
            "process.roles": "broker" if is_broker else "controller",
            "node.id": str(node),
            "controller.quorum.voters": voters,
            "controller.listener.names": "CONTROLLER",
            "listeners": f"{name}://127.0.0.1:{self.ports[node]}",
            "log.dirs": str(self.log_dir(node)),
            "esker.storage.directory.path": str(self.store),
            **settings,
        }
        text = "".join(f"{key}={value}\n" for key, value in lines.items())
        self.properties(node).write_text(text)
        self.properties(node).chmod(0o600)  # settings may have secrets

    def format(self, node: int, *options: str) -> None:
        """`esker storage format`."""
        config = ("--config", str(self.properties(node)))
        self._esker("storage", "format", *config, "--cluster-id", self.cluster_id, *options)

    @staticmethod
    def _esker(*words: str) -> str:
        ran = CliRunner().invoke(app, list(words))
        assert not ran.exit_code, f"esker {' '.join(words)}: {ran.stderr.strip() or ran.exception}"
        return ran.stdout

    def wipe(self, broker: int) -> None:
        """A stopped broker gets an empty directory: it keeps nothing that matters."""
        assert broker in self.broker_ids, f"{broker} is no broker"
        shutil.rmtree(self.log_dir(broker))
        self.format(broker)

    # --- lives --------------------------------------------------------------------------------

    def start(self) -> None:
        """All of them, and wait until they are ready."""
        self.launch(*self.ports)
        self.wait_until_ready()

    def launch(
        self,
        *nodes: int,
        environment: Mapping[str, str] | None = None,
        fresh: bool | None = None,
    ) -> None:
        """Begin processes, without waiting for them.

        Args:  fresh: import all modules anew; None: as this cluster does.
        """
        for node in nodes:
            assert node not in self.processes, f"node {node} runs"
            with (self.home / f"node{node}.log").open("ab") as log:
                self.processes[node] = start(
                    *self._program,
                    str(self.properties(node)),
                    output=log,
                    environment=environment,
                    fresh=self._fresh if fresh is None else fresh,
                )

    def wait_until_ready(self, *brokers: int) -> None:
        """Until each of these brokers (or all that run) tells of all that run."""
        running = self.running_brokers()
        for broker in brokers or running:
            wait_until(
                lambda broker=broker: self.knows(broker) >= set(running),  # type: ignore[misc]
                f"broker {broker} tells of {running}",
            )

    def running_brokers(self) -> list[int]:
        """The brokers that were started and not stopped."""
        return [broker for broker in self.broker_ids if broker in self.processes]

    def knows(self, broker: int) -> set[int]:
        """The brokers that serve, as a broker tells. (Metadata names others, too, at times.)"""
        self.check_alive()
        try:
            with Wire("127.0.0.1", self.ports[broker], timeout_s=2) as wire:
                request = DescribeClusterRequest(include_cluster_authorized_operations=False)
                answer = wire.ask(request, DescribeClusterResponse, DESCRIBE_CLUSTER_VERSION)
        except OSError:
            return set()
        return {one.broker_id for one in answer.brokers}

    def finalize_transactions(self, level: int) -> None:
        """Finalize this level of transaction.version, and wait until running brokers show it."""
        running = self.running_brokers()
        if all(self._transaction_version(broker) == level for broker in running):
            return
        rises = level > self._transaction_version(running[0])
        direction = "upgrade" if rises else "downgrade"
        at = ("--bootstrap-server", f"127.0.0.1:{self.ports[running[0]]}")
        self._esker("features", direction, "--feature", f"transaction.version={level}", *at)
        for broker in running:
            wait_until(
                lambda broker=broker: self._transaction_version(broker) == level,  # type: ignore[misc]
                f"broker {broker} shows transaction.version {level}",
            )

    def _transaction_version(self, broker: int) -> int:
        request = ApiVersionsRequest(client_software_name="t", client_software_version="1")
        with Wire("127.0.0.1", self.ports[broker]) as wire:
            answer = wire.ask(request, ApiVersionsResponse, 4)
        levels = {one.name: one.max_version_level for one in answer.finalized_features}
        return levels.get("transaction.version", 0)

    def listens(self, node: int) -> bool:
        """Does it take connections? Two of three are a quorum, while the third only begins."""
        try:
            socket.create_connection(("127.0.0.1", self.ports[node]), timeout=1).close()
        except OSError:
            return False
        return True

    def check_alive(self) -> None:
        """No node has ended by itself: nothing that clients or peers send may do that."""
        for node, process in self.processes.items():
            assert process.poll() is None, (
                f"node {node} ended with {process.returncode}: {self.output(node)[-SHOWN_BYTES:]}"
            )

    def signal(self, node: int, number: signal.Signals) -> None:
        os.kill(self.processes[node].pid, number)

    def kill(self, *nodes: int) -> None:
        """kill -9, of these nodes or all, and wait until they are gone."""
        chosen = nodes or tuple(self.processes)
        for node in chosen:
            self.processes[node].kill()
        for node in chosen:
            self.processes.pop(node).wait()

    def stop(self, *nodes: int) -> None:
        """SIGTERM: an orderly end, in time and with exit code 0."""
        for node in nodes:
            self.processes[node].terminate()
        for node in nodes:
            process = self.processes.pop(node)
            try:
                code = process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise AssertionError(
                    f"node {node} did not stop: {self.output(node)[-SHOWN_BYTES:]}"
                ) from None
            assert code == 0, f"node {node} ended with {code}: {self.output(node)[-SHOWN_BYTES:]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
        self.kill()
        if error is not None:
            for node in self.ports:
                error.add_note(f"--- node {node}\n{self.output(node)[-SHOWN_BYTES:]}")
