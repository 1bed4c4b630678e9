"""The controller on a quorum node: its state on the cluster log, its requests, its timers.

    parts = ControllerParts(settings)
    NodeConfig(node_service=lambda host: JoinedServices([parts.node_service(host), ...]),
    cluster=parts.cluster)

Every node has the state: it names the groups that live here, and answers the batch coordinators'
questions (`view`). The node that leads the cluster log is the active controller besides.

Source: docs/design/quorum.md#groups-come-from-the-cluster-log, docs/design/controller.md.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from prometheus_client.metrics_core import Metric

from coordinator.batch.client import ClientSettings, CoordinatorClient
from coordinator.controller.access import AccessSettings, AccessTable
from coordinator.controller.chunk_removal import ChunkRemoval
from coordinator.controller.client import ControllerClient
from coordinator.controller.cluster_view import ImageView
from coordinator.controller.coordinator_calls import ClientCalls
from coordinator.controller.handover import HandOver
from coordinator.controller.image import MetadataImage
from coordinator.controller.leader import Controller, ControllerConfig
from coordinator.controller.machine import ControllerMachine
from coordinator.controller.mutation_quotas import MutationQuotas, MutationWindow
from coordinator.controller.requests import Requests
from coordinator.controller.service import ControllerService, Endpoint
from esker.server.controller_metrics import ControllerCollector
from esker.server.controller_registration import ControllerJoining, registration
from raft.core.voters import Endpoint as VoterEndpoint
from raft.driver.config import QUORUM_TOPICS
from raft.driver.node_services import ClusterEvents, ServiceHost
from raft.interfaces import Frozen, ReplicatedLog
from raft.net.handlers import Served
from raft.wire.responses import Group
from records.batch import Batch
from records.internal_topics import BENCH_LOG, CLUSTER_METADATA, DISKLESS_METADATA
from records.types import NodeId, Offset, OffsetAndEpoch
from records.uuids import random_uuid

CALL_TIMEOUT_MS: Final = 10_000  # of a call to a coordinator, with all its attempts


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """The settings of a node's controller."""

    controller: ControllerConfig
    endpoints: Mapping[int, tuple[str, int]]  # of the voters
    listener_name: str = "CONTROLLER"
    protocol: int = 0  # Kafka's number of the listener's security protocol
    bench_log: bool = False
    topic_defaults: Mapping[str, str] = field(default_factory=dict)  # of the properties file
    access: AccessSettings | None = None  # of the authorizer; None: everything is allowed
    mutation_window: MutationWindow = field(default_factory=MutationWindow)


class ClusterMachine:
    """The controller's machine as the driver sees it: `raft.driver.node_services.ClusterState`."""

    def __init__(self, machine: ControllerMachine, events: ClusterEvents, served: set[str]) -> None:
        self._machine = machine
        self._events = events
        self._served = sorted(served)
        self.groups: Sequence[Group] = ()
        machine.listen(self._on_image)

    @property
    def applied(self) -> OffsetAndEpoch:
        return self._machine.applied

    @property
    def applied_offset(self) -> Offset:
        """Return the first offset of the cluster log that is not applied yet."""
        return self._machine.applied.offset

    @property
    def features(self) -> Mapping[str, int]:
        """Return the levels of the finalized features by feature name."""
        return self._machine.image.features.finalized

    @property
    def controllers(self) -> Mapping[NodeId, VoterEndpoint]:
        """Return the address of each registered controller's first listener."""
        return {
            NodeId(node_id): VoterEndpoint(listeners[0].name, listeners[0].host, listeners[0].port)
            for node_id, record in self._machine.image.controllers.items()
            if (listeners := record.end_points)
        }

    @property
    def last_timestamp(self) -> int:
        return self._machine.last_timestamp

    @property
    def changed_records(self) -> int:
        return self._machine.changed_records

    @property
    def total_records(self) -> int:
        return self._machine.total_records

    @property
    def checkpointable(self) -> bool:
        return self._machine.checkpointable

    def apply(self, batches: Iterable[Batch]) -> None:
        """Apply committed batches to the metadata image, and announce the applied offset."""
        self._machine.apply(batches)
        self._events.on_applied(self.applied_offset)

    def reset(self) -> None:
        """Empty the metadata image; Raft groups that run on this node continue to run.

        A running group ends only if the log, read anew, does not name it again.
        """
        self._machine.reset()

    def load(self, snapshot_id: OffsetAndEpoch, batches: Iterable[Batch]) -> Iterator[None]:
        """Load the metadata image from a checkpoint, and announce the applied offset."""
        yield from self._machine.load(snapshot_id, batches)
        self._events.on_applied(self.applied_offset)

    def freeze(self) -> Frozen:
        """Return a frozen copy of the metadata image to write a checkpoint from."""
        return self._machine.freeze()

    def checkpointed(self, snapshot_id: OffsetAndEpoch, record_count: int) -> None:
        """Record that a checkpoint of the metadata image has been written."""
        self._machine.checkpointed(snapshot_id, record_count)

    def _on_image(self, image: MetadataImage) -> None:
        """Start and stop Raft groups so that exactly those in the metadata image run."""
        if not image.offset:
            return  # nothing is known yet, or everything is read anew
        wanted = [
            Group(name, index, topic.topic_id)
            for name in self._served
            if (topic := image.topic(name)) is not None
            for index in sorted(topic.partitions)
        ]
        before, self.groups = self.groups, wanted
        for group in before:
            if group not in wanted:
                self._events.on_stop(group)
        for group in wanted:
            if group not in before:
                self._events.on_start(group)


class ControllerParts:
    """One node's controller, built in two steps: its service first, its state with the group."""

    def __init__(self, settings: ControllerSettings) -> None:
        self._settings = settings
        self._node_service: ControllerNodeService | None = None
        self._collector: ControllerCollector | None = None
        self.view = ImageView(self._image)

    def _image(self) -> MetadataImage:
        return (
            self._node_service.machine.image if self._node_service is not None else MetadataImage()
        )

    @property
    def machine(self) -> ControllerMachine:
        """Return this node's state machine of the cluster log, once the service is built."""
        assert self._node_service is not None, "a machine before its node"
        return self._node_service.machine

    def node_service(self, host: ServiceHost) -> ControllerNodeService:
        """Build the node service that runs the controller on this node's logs."""
        self._node_service = ControllerNodeService(host, self._settings)
        self._collector = ControllerCollector(self._node_service)
        return self._node_service

    @property
    def access(self) -> AccessTable | None:
        """Return the access control of this node's controller, or None without an authorizer."""
        return None if self._node_service is None else self._node_service.access

    def is_image_complete(self) -> bool:
        """Return whether this node's image has reached the high watermark of the cluster log."""
        return self._node_service is not None and self._node_service.is_image_complete()

    def listen(self, listener: Callable[[MetadataImage], None]) -> None:
        """Call `listener` with the current metadata image and with each later image."""
        assert self._node_service is not None, "a listener before its node"
        self._node_service.machine.listen(listener)

    def metrics(self) -> Iterable[Metric]:
        """Return the controller's metrics, or none before the controller is built."""
        return self._collector.collect() if self._collector is not None else ()

    def cluster(
        self, host: ServiceHost, log: ReplicatedLog, events: ClusterEvents
    ) -> ClusterMachine:
        """Build the controller, and return its state machine of the cluster log."""
        assert self._node_service is not None, "a cluster log before its node"
        return self._node_service.begin_cluster(host, log, events)


class ControllerNodeService:
    """A node's controller and its requests (`raft.driver.node_services.NodeService`)."""

    def __init__(self, host: ServiceHost, settings: ControllerSettings) -> None:
        self._host = host
        self._settings = settings
        self.machine = ControllerMachine(settings.topic_defaults)
        self.controller: Controller | None = None
        self._requests: Requests | None = None
        self._coordinators: dict[int, CoordinatorClient] = {}
        self._calls = ClientCalls(self._client)
        self.handover: HandOver | None = None
        self.served: Counter[int] = Counter()  # requests, by api key
        self._chunk_removal: ChunkRemoval | None = None
        self._joining = self._make_joining()
        self.access: AccessTable | None = None
        if settings.access is not None:
            self.access = AccessTable(
                settings.access, lambda: self.machine.image, self.is_image_complete
            )
        self._timer: asyncio.TimerHandle | None = None
        self._service = ControllerService(
            lambda *words: self._requests_now().ask(*words),
            image=lambda: self.machine.image,
            find_log=host.log,
            endpoint=self._endpoint,
            node_id=host.node_id,
            access=self.access,
            mutations=MutationQuotas(
                settings.mutation_window,
                image=lambda: self.machine.image,
                monotonic_ms=_monotonic_ms,
            ),
        )
        self.handlers: Mapping[int, Served] = self._service.handlers

    def is_image_complete(self) -> bool:
        """Return whether this node's image has reached the high watermark of the cluster log."""
        log = self._host.log(CLUSTER_METADATA, 0)
        if log is None or not log.high_watermark or log.leader_id is None:
            return False
        return self.machine.applied.offset >= log.high_watermark

    def _make_joining(self) -> ControllerJoining | None:
        """Build the registration of this node's controller, or return None on a non-voter."""
        node_id, settings = self._host.node_id, self._settings
        place = settings.endpoints.get(node_id)
        if place is None:
            return None
        request = registration(
            node_id,
            random_uuid(),
            (settings.listener_name, *place),
            settings.controller.features,
            protocol=settings.protocol,
        )
        return ControllerJoining(
            lambda: ControllerClient(
                list(settings.endpoints.values()),
                timeout_ms=CALL_TIMEOUT_MS,
                client_id=f"controller-{node_id}",
            ),
            request,
            lambda: self.machine.image,
        )

    def _requests_now(self) -> Requests:
        assert self._requests is not None, "a request before the cluster log was opened"
        return self._requests

    def begin_cluster(
        self, host: ServiceHost, log: ReplicatedLog, events: ClusterEvents
    ) -> ClusterMachine:
        """Build the controller on the opened cluster log, and host its state machine."""
        machine = self.machine
        controller = self.controller = Controller(
            log,
            machine,
            self._settings.controller,
            call_soon=host.call_soon,
            wall_ms=lambda: time.time_ns() // 1_000_000,
            monotonic_ms=_monotonic_ms,
            new_id=random_uuid,
        )
        handover = self.handover = HandOver(
            self._calls,
            image=lambda: machine.image,
            is_settled=lambda: machine.applied.offset == (log.high_watermark or 0),
            call_later=host.call_later,
        )
        controller.subscribe(handover.begin, handover.end)
        machine.listen(handover.on_image)
        self._chunk_removal = ChunkRemoval(controller, handover)
        self._requests = Requests(
            controller,
            handover,
            call_later=host.call_later,
            monotonic_ms=_monotonic_ms,
            barrier=lambda on_done: _behind(log, on_done),
            served=self.served,
            leader_name=lambda: "unknown" if log.leader_id is None else f"node {log.leader_id}",
        )
        served = set(QUORUM_TOPICS) | ({BENCH_LOG} if self._settings.bench_log else set())
        state = ClusterMachine(machine, events, served)
        host.host(log, state)
        log.watch(controller)
        self._tick()
        return state

    def begin(self, log: ReplicatedLog, topic: str, partition: int, directory: Path) -> None:
        """Do nothing when a Raft group starts, as `begin_cluster` alone starts the controller.

        The cluster log is begun by `begin_cluster`; other groups are others'.
        """

    async def end(self, topic: str, partition: int) -> None:  # noqa: ARG002 (a NodeService's)
        """Stop the controller's timer and clients when the cluster log ends."""
        if topic == CLUSTER_METADATA:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._joining is not None:
                await self._joining.close()
            await self._calls.close()

    def _tick(self) -> None:
        assert self.controller is not None
        assert self._chunk_removal is not None
        self.controller.tick()
        self._chunk_removal.tick(_monotonic_ms())
        self._pass_leaders_to_clients()
        if self._joining is not None:
            self._joining.tick(_monotonic_ms())
        delay_s = self._settings.controller.tick_interval_ms / 1_000
        self._timer = self._host.call_later(delay_s, self._tick)

    def _pass_leaders_to_clients(self) -> None:
        """Pass the known leader of each coordinator partition to that coordinator's client."""
        for coordinator, client in self._coordinators.items():
            log = self._host.log(DISKLESS_METADATA, coordinator)
            if log is not None and log.leader_id is not None:
                client.note_leader(log.leader_id)

    def _client(self, coordinator: int) -> CoordinatorClient:
        client = self._coordinators[coordinator] = CoordinatorClient(
            list(self._settings.endpoints.values()),
            partition=coordinator,
            settings=ClientSettings(
                timeout_ms=CALL_TIMEOUT_MS, client_id=f"controller-{self._host.node_id}"
            ),
        )
        return client

    def _endpoint(self, node_id: int) -> Endpoint | None:
        place = self._settings.endpoints.get(node_id)
        return None if place is None else (node_id, *place)


def _behind(log: ReplicatedLog, on_done: Callable[[BaseException | None], None]) -> None:
    """Call `on_done` once a linearizable read of the log has been confirmed or has failed."""

    def on_barrier(barrier: asyncio.Future[Offset]) -> None:
        on_done(asyncio.CancelledError() if barrier.cancelled() else barrier.exception())

    asyncio.ensure_future(log.barrier()).add_done_callback(on_barrier)


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
