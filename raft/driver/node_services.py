"""Interfaces between a node and the services on top of its groups.

The quorum does not know the purpose of its groups. The front door gives a node one `NodeService`,
which is
notified of every group that starts and ends here, and whose requests the listener serves beside the
quorum's own. Services import neither this module nor the driver: these are protocols. The front
door combines several services into one.

All calls are made on the event loop.

Source: docs/design/README.md#rooms-and-imports, docs/design/state-machines.md#decide-and-apply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from uuid import UUID

from raft.core.voters import Endpoint
from raft.interfaces import ReplicatedLog, StateMachine
from raft.net.handlers import Served
from raft.wire.responses import Group
from records.types import Epoch, NodeId, Offset


class StateListener(Protocol):
    """Leads with a state machine's state, or answers requests from it."""

    def applied(self, offset: Offset) -> None:
        """React to the state machine having applied all records below `offset`."""

    def lead(self, epoch: Epoch) -> None:
        """React to this node's leadership of `epoch`, after all earlier records are applied."""

    def step_down(self, epoch: Epoch) -> None:
        """React to the end of this node's leadership of `epoch`, whose start `lead` reported."""


class ServiceHost(Protocol):
    """The part of a node that its services use."""

    @property
    def cluster_id(self) -> str: ...

    @property
    def node_id(self) -> NodeId: ...

    @property
    def directory_id(self) -> UUID:
        """Return the id of the log directory, in which services keep state outside the log."""

    def features(self) -> tuple[Mapping[str, int], Offset]:
        """Return the levels of the finalized features, and the log offset as of which they hold.

        The offset is -1 if nothing has been applied yet.
        """

    def log(self, topic: str, partition: int) -> ReplicatedLog | None:
        """Return the log of a group, or None if the group has not started on this node."""

    def host(
        self, log: ReplicatedLog, machine: StateMachine, listener: StateListener | None = None
    ) -> None:
        """Host the state machine of a group: load its state, apply records, take checkpoints.

        Called once per group, from `NodeService.begin`. `listener` is notified of applied offsets
        and leadership.
        """

    def call_soon(self, callback: Callable[[], None]) -> asyncio.Handle:
        """Call `callback` in the next turn of the event loop."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Call `callback` after `delay_s` seconds; return a handle that can cancel the call."""

    def fail(self, error: BaseException) -> None:
        """End the node at once, because an invariant is broken or the disk is not reliable."""


class NodeService(Protocol):
    """The services of a node on top of its groups."""

    @property
    def handlers(self) -> Mapping[int, Served]:
        """Return the service's request handlers by api key, for the controller listener.

        ApiVersions announces them. An api key that the quorum itself serves is not allowed.
        """

    def begin(self, log: ReplicatedLog, topic: str, partition: int, directory: Path) -> None:
        """Prepare the service for a group that was opened and is about to start.

        `directory` is the group's own; state kept there ends with the group. Errors end the node.
        """

    async def end(self, topic: str, partition: int) -> None:
        """Release the resources of a group that has ended, or whose node is about to stop.

        Called before its log is closed. All work on the group must be over when this returns.
        """


class ClusterState(StateMachine, Protocol):
    """The part of the cluster log's state machine that the driver reads."""

    @property
    def applied_offset(self) -> Offset:
        """Return the first offset of the cluster log that is not applied to the state yet."""

    @property
    def groups(self) -> Sequence[Group]:
        """Return the groups that the cluster log names, which this node should run."""

    @property
    def features(self) -> Mapping[str, int]:
        """Return the levels of the finalized features by feature name."""

    @property
    def controllers(self) -> Mapping[NodeId, Endpoint]:
        """Return the endpoints of the registered controllers by node id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterEvents:
    """Callbacks of a `ClusterState` to its node."""

    on_start: Callable[[Group], None]  # a group is named
    on_stop: Callable[[Group], None]  # it no longer is
    on_applied: Callable[[Offset], None]


MakeClusterState = Callable[[ServiceHost, ReplicatedLog, ClusterEvents], ClusterState]
"""Makes a controller's state machine of the cluster log, and has it hosted (`ServiceHost.host`)."""
