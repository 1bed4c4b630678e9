"""What stands on the groups: a room brings state machines and requests, and the node gives it life.

The quorum knows nothing of what its groups are for. The front door gives a node one `Room`, which
is told of every group that begins and ends here, and whose requests the listener serves beside the
quorum's own. Rooms above import neither this page nor the driver: these are shapes, and whatever
has them fits. A room of several is made by the front door.

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
    """Who leads with a state machine's state, or answers from it."""

    def applied(self, offset: Offset) -> None:
        """Everything below is in the state, and nothing is being loaded."""

    def lead(self, epoch: Epoch) -> None:
        """We lead, and the state holds everything before our epoch."""

    def step_down(self, epoch: Epoch) -> None:
        """We no longer do. Not told of epochs that `lead` was not told of."""


class RoomHost(Protocol):
    """What a room may ask of its node."""

    @property
    def cluster_id(self) -> str: ...

    @property
    def node_id(self) -> NodeId: ...

    @property
    def directory_id(self) -> UUID:
        """Of the log directory: a state kept beside a log of another directory is not its state."""

    def features(self) -> tuple[Mapping[str, int], Offset]:
        """Finalised features, and the offset they are as of (-1: nothing applied yet)."""

    def log(self, topic: str, partition: int) -> ReplicatedLog | None:
        """A group's log, if the group has begun here."""

    def host(
        self, log: ReplicatedLog, machine: StateMachine, listener: StateListener | None = None
    ) -> None:
        """Drive a state machine of this group: load it, feed it, take its checkpoints.

        From `Room.begin`, once a group. `listener` is told what may be answered from the state.
        """

    def call_soon(self, callback: Callable[[], None]) -> asyncio.Handle:
        """In the next turn of the loop."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Later; the handle cancels it."""

    def fail(self, error: BaseException) -> None:
        """A broken invariant or a disk that cannot be trusted: the node ends at once."""


class Room(Protocol):
    """What a node has on top of its groups."""

    @property
    def handlers(self) -> Mapping[int, Served]:
        """Requests served on the controller listener, by api key; asked for once, at the start.

        ApiVersions announces them. A key that the quorum serves itself cannot be taken.
        """

    def begin(self, log: ReplicatedLog, topic: str, partition: int, directory: Path) -> None:
        """A group was opened and is about to live: it may be watched from now on.

        `directory` is the group's own; a state kept there ends with it. Raises what ends the node.
        """

    async def end(self, topic: str, partition: int) -> None:
        """A group has ended here, or the node is about to stop: let go of it.

        Called before its log is closed. What was begun must be over when this returns.
        """


class ClusterState(StateMachine, Protocol):
    """The cluster log's state machine, as far as the driver looks at it."""

    @property
    def applied_offset(self) -> Offset:
        """Everything below is in the state."""

    @property
    def groups(self) -> Sequence[Group]:
        """Those that there are to be."""

    @property
    def features(self) -> Mapping[str, int]:
        """Finalised features and their levels."""

    @property
    def controllers(self) -> Mapping[NodeId, Endpoint]:
        """Where each controller that has registered listens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterEvents:
    """What the node wants to hear of a `ClusterState`."""

    on_start: Callable[[Group], None]  # a group is named
    on_stop: Callable[[Group], None]  # it no longer is
    on_applied: Callable[[Offset], None]


MakeClusterState = Callable[[RoomHost, ReplicatedLog, ClusterEvents], ClusterState]
"""Makes what reads the cluster log, and has it hosted (`RoomHost.host`): a controller's."""
