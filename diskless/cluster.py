"""What a broker has of its cluster: replicas it reads without asking, and leaders it asks.

A broker keeps nothing of its own. What it knows is in the logs that it observes: the image of the
cluster log, and a read-only coordinator for each partition of `__diskless-metadata`. What it wants
decided goes to whoever leads. `Cluster` is all of that as one narrow seam, so that the same broker
runs in a process of its own, beside a controller, in a test on one loop, and in a simulation.

The surprise: an image is immutable and replaced as a whole. Who awaits must look again afterwards.

Source: KIP-1163, KIP-1164 (read-only coordinators); docs/design/README.md#the-picture,
docs/design/broker.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar
from uuid import UUID

from coordinator.batch.interface import BatchCoordinator, CallTarget
from coordinator.controller.image import MetadataImage
from coordinator.groups.state import Group
from records.rpc import batch_coordinator as rpc
from records.rpc.base import Request, Response
from records.types import Offset

R = TypeVar("R", bound=Response)


class CommitQueue(BatchCoordinator, Protocol):
    """The coordinator of one partition, wherever it leads (`coordinator.batch.client`)."""

    def submit(
        self, request: rpc.CommitBatchesRequest
    ) -> asyncio.Future[rpc.CommitBatchesResponse]:
        """Commit; the place in the order is taken by the call."""


class Replica(CallTarget, Protocol):
    """A read-only coordinator of this process (`coordinator.batch.replica`)."""

    @property
    def lag(self) -> int:
        """Committed records that it knows of and has not applied."""

    def ends(self, topic_id: UUID, partition: int) -> tuple[int, int] | None:
        """A partition's log start and high watermark as this replica has it; costs nothing."""


class Cluster(Protocol):
    """See the module. Belongs to the event loop."""

    @property
    def cluster_id(self) -> str: ...

    @property
    def broker_id(self) -> int: ...

    @property
    def image(self) -> MetadataImage:
        """The cluster log's state as this broker has it."""

    def image_age_ms(self) -> float | None:
        """How old at most the image is; None if it is not known to have been level.

        Before that it may be half of what there is: of topics that are not in it yet nobody may be
        told that they are not there.
        """

    def on_image(self, callback: Callable[[MetadataImage], None]) -> None:
        """Call back after each change of the image, in order."""

    async def image_where(
        self, holds: Callable[[MetadataImage], bool], timeout_s: float
    ) -> MetadataImage | None:
        """The first image, this one or a later, for which `holds`; None if there was none in time.

        How a broker waits until it sees what it has just had decided.
        """

    def replica(self, coordinator: int) -> Replica | None:
        """Of a partition of `__diskless-metadata`; None if there is none here yet."""

    def replica_age_ms(self, coordinator: int) -> float | None:
        """How old at most what that replica says is; None if it has never been level.

        Counts from when a leader last told, on a fetch that left nothing to fetch, where the log
        ends: so an idle log does not age, and a broker that is cut off from the quorum does.
        """

    def on_commit(self, callback: Callable[[int], None]) -> None:
        """Call back with the coordinator partition whose replica has applied something new."""

    def leader(self, coordinator: int) -> CommitQueue:
        """The coordinator itself, wherever it leads; the same object for the same partition."""

    async def ask_controller(self, request: Request, response: type[R]) -> R:
        """The active controller's answer; errors inside are the caller's to read.

        Raises:  CoordinatorError if no controller answered in time.
        """

    async def ask_groups(self, request: Request) -> Response | None:
        """Ask the leader of the log of groups once; None: nobody knows what became of it."""

    def groups(self) -> Iterable[tuple[str, Group]]:
        """All consumer groups, as a replica at hand has them."""

    def groups_age_ms(self) -> float | None:
        """How old at most they are; None if this replica has never been level."""

    def metadata_offset(self) -> Offset:
        """Of the last record of the cluster log in `image` (inclusive; -1: none yet)."""
