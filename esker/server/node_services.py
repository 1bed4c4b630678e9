"""Runs several services on a node's groups as one; no service knows of the others.

JoinedServices([BenchState(host, "kv"), CoordinatorNodeService(host, ...)])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from raft.driver.node_services import NodeService, ServiceHost
from raft.interfaces import ReplicatedLog
from raft.net.handlers import Served
from records.internal_topics import BENCH_LOG
from snapshot.kv import KeyValueMachine


class JoinedServices:
    """Passes each call to every service, in the order given; ends them in reverse order."""

    def __init__(self, services: Sequence[NodeService]) -> None:
        self._services = services
        self.handlers: Mapping[int, Served] = _together(services)

    def begin(self, log: ReplicatedLog, topic: str, partition: int, directory: Path) -> None:
        """Start every node service on a Raft group when the group's log is opened."""
        for node_service in self._services:
            node_service.begin(log, topic, partition, directory)

    async def end(self, topic: str, partition: int) -> None:
        """End every node service on a Raft group despite failures; then raise the first failure."""
        failures = []
        for node_service in reversed(self._services):
            try:
                await node_service.end(topic, partition)
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]


class BenchState:
    """The state machine of `esker-bench-log`, if `esker.bench.log.state` names one."""

    def __init__(self, host: ServiceHost, state: str) -> None:
        """Prepare to host the key-value machine if `state` is `kv`, or none if it is `none`."""
        self.handlers: Mapping[int, Served] = {}
        self._host = host
        self._state = state

    def begin(self, log: ReplicatedLog, topic: str, partition: int, directory: Path) -> None:  # noqa: ARG002
        """Host the key-value state machine on the benchmark log, if `kv` is configured."""
        if topic == BENCH_LOG and self._state == "kv":
            self._host.host(log, KeyValueMachine())

    async def end(self, topic: str, partition: int) -> None:
        """Do nothing when the benchmark log ends, because the node stops the state machine."""


def _together(services: Sequence[NodeService]) -> Mapping[int, Served]:
    handlers: dict[int, Served] = {}
    for node_service in services:
        for key, served in node_service.handlers.items():
            assert key not in handlers, f"two services serve api key {key}"
            handlers[key] = served
    return handlers
