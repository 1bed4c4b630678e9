"""The interface between a broker and its cluster: local replicas to read, and leaders to call.

A broker stores nothing itself. It knows what is in the logs that it observes: the image of the
cluster log, and a read-only coordinator for each partition of `__diskless-metadata`. Changes are
requested from the leaders. `Cluster` is all of that as one narrow interface, so that the same
broker runs in a process of its own, beside a controller, in a test on one loop, and in a
simulation.

The trap: an image is immutable and replaced as a whole. Code that awaits must read it again
afterwards.

Source: KIP-1163, KIP-1164 (read-only coordinators); docs/design/README.md#the-picture,
docs/design/broker.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar
from uuid import UUID

from coordinator.batch.interface import BatchCoordinator, CallTarget
from coordinator.controller.access import Client
from coordinator.controller.image import MetadataImage
from coordinator.groups.state import Group
from coordinator.leader_client import Failure
from coordinator.transactions.state import TransactionsImage
from records.rpc import batch_coordinator as rpc
from records.rpc.base import Request, Response
from records.types import Offset

R = TypeVar("R", bound=Response)


class CommitQueue(BatchCoordinator, Protocol):
    """A client of one partition's batch coordinator (`coordinator.batch.client`)."""

    def submit(
        self, request: rpc.CommitBatchesRequest
    ) -> asyncio.Future[rpc.CommitBatchesResponse]:
        """Submit a commit; the coordinator decides commits in the order of submission."""


class Replica(CallTarget, Protocol):
    """A read-only coordinator of this process (`coordinator.batch.replica`)."""

    @property
    def applied_offset(self) -> int:
        """Return the exclusive end of the log's records that the replica has applied."""

    def marked_objects(self, first_ms: int, limit: int) -> list[tuple[int, int]]:
        """Return the times and ids of objects marked at or after a time, the oldest first."""

    def is_orphan(self, object_id: int) -> bool:
        """Return whether an id was never committed, and never can be: its lease is closed."""

    @property
    def lag(self) -> int:
        """Return the number of committed records that the replica has not applied yet."""

    def ends(self, topic_id: UUID, partition: int) -> tuple[int, int] | None:
        """Return a partition's log start and high watermark in this replica, from memory."""

    def stable_ends(self, topic_id: UUID, partition: int) -> tuple[int, int] | None:
        """Return a partition's log start and last stable offset in this replica, from memory."""


class ClusterMember(Protocol):
    """A broker's place in its cluster."""

    @property
    def cluster_id(self) -> str: ...

    @property
    def broker_id(self) -> int: ...

    @property
    def image(self) -> MetadataImage:
        """Return the latest image of the cluster's metadata on this broker."""


class Cluster(ClusterMember, Protocol):
    """A broker's view of its cluster, and its clients of other nodes. Belongs to the event loop."""

    def image_age_ms(self) -> float | None:
        """Return an upper bound of the cluster image's age in ms, or None if unknown.

        Until it has caught up it may be half of the log: the broker must not deny a topic because
        the image does not have it.
        """

    def on_image(self, callback: Callable[[MetadataImage], None]) -> None:
        """Register a callback that gets each new cluster image, in order."""

    async def image_where(
        self, holds: Callable[[MetadataImage], bool], timeout_s: float
    ) -> MetadataImage | None:
        """Return the first cluster image that satisfies `holds`, or None at the timeout.

        So a broker waits until it sees a change that it has just requested.
        """

    def replica(self, coordinator: int) -> Replica | None:
        """Return the local replica of a batch coordinator; None if this broker lacks it."""

    def replica_age_ms(self, coordinator: int) -> float | None:
        """Return an upper bound of a coordinator replica's age in ms, or None if unknown.

        Counts from the last fetch that left nothing to fetch: so an idle log does not age, and a
        broker that is cut off from the quorum does.
        """

    def on_commit(self, callback: Callable[[int], None]) -> None:
        """Register a callback for the number of each batch coordinator whose log advances."""

    def leader(self, coordinator: int) -> CommitQueue:
        """Return the client of a batch coordinator's leader, always the same object."""

    async def ask_controller(
        self, request: Request, response: type[R], client: Client | None = None
    ) -> R:
        """Send a request to the active controller and return the response with its error codes.

        Args:    client: for whom it is sent, if the controller decides by that; None: this node.
        Raises:  CoordinatorError if no controller answered in time.
        """

    async def ask_groups(self, request: Request) -> Response | None:
        """Send a request once to the groups' log leader; return None if the outcome is unknown."""

    def groups(self) -> Iterable[tuple[str, Group]]:
        """Return all consumer groups in the local replica of the groups' log."""

    def groups_age_ms(self) -> float | None:
        """Return by how many ms the replica of the group log may lag; None if unknown."""

    async def ask_transactions(self, request: Request) -> Response | Failure:
        """Send a request once to the transaction log's leader; return a response or a Failure."""

    def transactions(self) -> tuple[TransactionsImage, Offset]:
        """Return the transactions in the local replica of their log, and the replica's offset."""

    def metadata_offset(self) -> Offset:
        """Return the offset of the last record in the cluster image; -1 before any record."""

    async def report_lost_records(self, topic: str, partition: int, end: int, epoch: int) -> None:
        """Tell the leader of a quorum's log where its backup ends; without an answer do nothing.

        Args:  end: exclusive, of committed records. epoch: of the record before `end`.
        """
