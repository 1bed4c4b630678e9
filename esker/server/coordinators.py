"""The batch coordinators of a node: one on every partition of `__diskless-metadata` it holds.

Which implementation is a setting, as KIP-1163 has it. A name that is not ours is imported: a class
with a class method `for_group(Group)` that returns a `Hosted`.

The surprise: nodes that do not lead have a coordinator as well. It decides nothing, and answers
what may be answered from a replica's state.

Source: KIP-1163, diskless.batch.coordinator.class.name; KIP-1164, Batch Coordinator.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from coordinator.batch.cluster_view import ClusterView
from coordinator.batch.interface import BatchCoordinator
from coordinator.batch.service import coordinator_handlers
from coordinator.batch.settings import CoordinatorSettings
from esker.settings.coordinator_options import (
    FORMER_NAMES,
    IN_MEMORY,
    QUORUM,
    CoordinatorOptions,
    find_for_group,
)
from raft.interfaces import Degradation, ReplicatedLog
from raft.net.handlers import Served
from records.internal_topics import DISKLESS_METADATA
from records.object_keys import Ancestors

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from coordinator.batch.leader import Leader
    from coordinator.batch.sqlite.machine import CoordinatorMachine
    from raft.driver.node_services import ServiceHost


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The arguments of an implementation: a replica of the log, its directory and settings."""

    host: ServiceHost
    log: ReplicatedLog
    directory: Path  # the group's own; what is kept there ends with it
    settings: CoordinatorSettings
    view: ClusterView


class Hosted(Protocol):
    """A coordinator that a node has created and will end."""

    @property
    def coordinator(self) -> BatchCoordinator: ...

    async def end(self) -> None:
        """Close the batch coordinator after its Raft group has ended on this node."""


class HostedInQuorum:
    """A coordinator on the group's log, with its state in SQLite."""

    def __init__(self, group: Group) -> None:
        # imported here: a command that only reads settings needs neither numpy nor SQLite
        from coordinator.batch.leader import QuorumCoordinator
        from coordinator.batch.sqlite.machine import CoordinatorMachine, Identity
        from coordinator.clocks import LoopClocks

        host = group.host
        self.machine = CoordinatorMachine(
            group.directory, Identity(host.cluster_id, host.directory_id.bytes, group.log.name)
        )
        self.machine.on_damage = host.fail
        host.host(group.log, self.machine)
        self.coordinator = QuorumCoordinator(
            group.log,
            self.machine,
            group.settings,
            group.view,
            LoopClocks(asyncio.get_running_loop(), _wall_clock_ms),
        )
        self.coordinator.start()

    async def end(self) -> None:
        """Close the batch coordinator and its SQLite state machine."""
        await self.coordinator.close()
        self.machine.close()


class HostedInMemory:
    """A coordinator in memory, neither replicated nor durable, for trials on one node."""

    def __init__(self, group: Group) -> None:
        from coordinator.batch.memory import InMemoryCoordinator

        coordinator: Any = InMemoryCoordinator(group.settings, group.view, _wall_clock_ms)
        self.coordinator = coordinator

    async def end(self) -> None:
        """Close the batch coordinator, whose state in memory is lost."""
        await self.coordinator.close()


_OURS: Final[Mapping[str, Callable[[Group], Hosted]]] = {
    QUORUM: HostedInQuorum,
    IN_MEMORY: HostedInMemory,
}


def find_implementation(class_name: str, *, voters: int) -> Callable[[Group], Hosted]:
    """Return the constructor of the batch coordinator class with this name.

    Raises:  as `esker.settings.coordinator_options.find_for_group`.
    """
    foreign = find_for_group(class_name, voters=voters)
    return foreign or _OURS[FORMER_NAMES.get(class_name, class_name)]


class CoordinatorNodeService:
    """A node's coordinators, and their requests on its listener."""

    def __init__(
        self,
        host: ServiceHost,
        options: CoordinatorOptions,
        view: ClusterView,
        ancestors: Ancestors,
        *,
        voters: int,
    ) -> None:
        """Prepare to host batch coordinators of the configured class.

        Args:  ancestors: of the cluster; filled once the cluster log has named them.
        Raises ValueError if there is no such class.
        """
        self._ancestors = ancestors
        self._host = host
        self._options = options
        self._view = view
        self._make = find_implementation(options.class_name, voters=voters)
        self._hosted: dict[int, Hosted] = {}
        self.handlers: Mapping[int, Served] = coordinator_handlers(self.find)

    def find(self, partition: int) -> BatchCoordinator | None:
        """Return this node's batch coordinator of a `__diskless-metadata` partition, or None."""
        hosted = self._hosted.get(partition)
        return hosted.coordinator if hosted is not None else None

    def machine(self, partition: int) -> CoordinatorMachine | None:
        """Return the state machine of a partition's coordinator; None if not replicated."""
        hosted = self._hosted.get(partition)
        return hosted.machine if isinstance(hosted, HostedInQuorum) else None

    def metrics(self) -> Iterable[Metric]:
        """Return the clock metrics of this node's batch coordinators."""
        from esker.server.coordinator_metrics import coordinator_metrics

        return coordinator_metrics(self._leaders())

    def degradations(self) -> Iterator[Degradation]:
        """Return a degradation for each batch coordinator of this node with a held clock."""
        from esker.server.coordinator_metrics import coordinator_degradations

        return coordinator_degradations(self._leaders())

    def _leaders(self) -> dict[int, Leader]:
        return {
            partition: hosted.coordinator.leader
            for partition, hosted in self._hosted.items()
            if isinstance(hosted, HostedInQuorum)
        }

    def begin(self, log: ReplicatedLog, topic: str, partition: int, directory: Path) -> None:
        """Create the batch coordinator of a started `__diskless-metadata` partition.

        Raises OSError, sqlite3.Error.
        """
        if topic == DISKLESS_METADATA:
            group = Group(
                host=self._host,
                log=log,
                directory=directory,
                settings=self._options.settings(self._host.cluster_id, partition, self._ancestors),
                view=self._view,
            )
            self._hosted[partition] = self._make(group)

    async def end(self, topic: str, partition: int) -> None:
        """Close the batch coordinator of an ended `__diskless-metadata` partition."""
        hosted = self._hosted.pop(partition, None) if topic == DISKLESS_METADATA else None
        if hosted is not None:
            await hosted.end()


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000
