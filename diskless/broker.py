"""Starts and stops a broker: reads the cluster, listens, registers, serves, and leaves.

    broker = Broker(settings, cluster, store, wall_ms=..., random=...)
    await broker.start()          # returns when clients are sent to this broker
    await broker.stop()           # sends clients elsewhere, then writes and answers what it has

The order matters. A broker listens before it registers, since clients connect the moment it is
unfenced; and it reads the logs before it listens, since its answers come from them. It stops in the
reverse order: first it tells the controller, so that clients learn of other brokers; then it
accepts nothing more, writes its buffers, answers, and releases its leases.

Nothing is lost if a broker does not get that far, because it stores nothing itself. A killed broker
leaves objects that were never committed, which the coordinator finds by their lease, and producers
that send again.

Source: KIP-631 (registration, fencing, controlled shutdown); KIP-1163; docs/design/broker.md.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final
from uuid import UUID

from prometheus_client.metrics_core import Metric

from coordinator.controller.access import AccessSettings, AccessTable
from coordinator.controller.image import MetadataImage
from coordinator.controller.preference import MAX_REASON, is_preferred, may_write_preference
from coordinator.controller.registration import (
    BrokerListener,
    BrokerMembership,
    Registration,
    RegistrationRefusedError,
)
from diskless.apis.configs import OwnSetting
from diskless.backup.cut import BackupLog
from diskless.broker_metrics import member_metrics
from diskless.cluster import Cluster
from diskless.dispatch import Dispatcher
from diskless.fetch.local_segments.directory import CacheDirectoryError
from diskless.health import BrokerHealth
from diskless.lineage import SupersededError
from diskless.services import Services
from diskless.stores import BeginningStore, ObjectStorage, StorageError, StoreSettingError
from diskless.stores.watched import WatchedStore, probe_key
from raft.interfaces import Degradation
from raft.net import Limits, Listener
from raft.net.security import PLAINTEXT, PROTOCOLS, ListenerSecurity
from records.features import SUPPORTED

log = logging.getLogger("diskless.broker")

POLL_S: Final = 0.02  # between two checks of whether the replicas have caught up
LOG_S: Final = 2.0  # between two log lines on what a starting broker waits for
LEAVE_S: Final = 5.0  # for the controller to confirm a controlled shutdown
WRITE_S: Final = 15.0  # for what is buffered to be written and answered
ALONE_S: Final = 2.0  # the same if no controller answered: then no coordinator will commit either
DRAIN_MS: Final = 1_000  # for clients to read their responses


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientListener:
    """A listener for clients: the address it binds, and the one it advertises."""

    name: str
    bind_host: str
    bind_port: int  # 0: any free one
    advertised_host: str
    advertised_port: int  # 0: as bound
    protocol: str = PLAINTEXT
    security: ListenerSecurity | None = None  # None: PLAINTEXT
    inherited: tuple[socket.socket, ...] = ()  # sockets that listen already, to accept from as well


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """The identity, listeners and settings of a broker."""

    incarnation_id: UUID  # a new random one for each process
    directory_id: UUID
    listeners: tuple[ClientListener, ...]
    values: Mapping[str, Any]  # settings, parsed, by their Kafka names
    own: tuple[OwnSetting, ...] = ()  # the same as text, for DescribeConfigs
    limits: Limits = field(default_factory=Limits)
    access: AccessSettings | None = None  # of the authorizer; None: everything is allowed


class NotStartedError(Exception):
    """The broker cannot join its cluster; the message is one sentence with the reason."""


class Broker:
    """A broker of one process. Create it on a running loop; call `start`, then `stop`."""

    def __init__(
        self,
        settings: BrokerSettings,
        cluster: Cluster,
        store: ObjectStorage,
        *,
        wall_ms: Callable[[], int],
        random: Random,
        on_lost: Callable[[Exception], None],
        node_faults: Callable[[], Iterable[Degradation]] = tuple,
        logs: Callable[[], Iterable[BackupLog]] = tuple,
    ) -> None:
        """Create the broker's services without starting any service.

        Args:    on_lost: called if the broker can never be a member of the cluster again.
                 node_faults: gives the faults of the node's disks, logs and clock, for which
                     clients should be sent to other brokers.
                 logs: gives the open logs of the quorum on this node, for backups.
        """
        self.listeners: dict[str, Listener] = {}
        self.dispatchers: dict[str, Dispatcher] = {}
        self._settings = settings
        self._cluster = cluster
        self._store = store
        clock = asyncio.get_running_loop().time
        key = probe_key(
            settings.values["esker.object.key.prefix"], cluster.cluster_id, cluster.broker_id
        )
        self._watched = WatchedStore(store, key, clock=clock)
        self._on_lost = on_lost
        self._registration: Registration | None = None
        self._unfenced = asyncio.Event()
        self._wall_ms = wall_ms
        cluster.on_image(self._on_image)  # before the services look at it
        self.services = Services(
            cluster,
            self._watched,
            settings.values,
            own=settings.own,
            wall_ms=wall_ms,
            random=random,
            on_fenced=self._on_epoch_doubted,
            on_superseded=on_lost,
            received_at=self._received_at,
            access=self._make_access(),
            logs=logs,
        )
        self.health = BrokerHealth(
            cluster=cluster,
            store=self._watched,
            fetch=self.services.fetch,
            age_limit_ms=self.services.staleness.limit_ms,
            node_faults=node_faults,
            clock=clock,
            clock_ahead_ms=self._clock_ahead_ms,
        )

    def _make_access(self) -> AccessTable | None:
        """Build the access control of clients, or return None without an authorizer."""
        settings, cluster = self._settings.access, self._cluster
        if settings is None:
            return None
        return AccessTable(
            settings, lambda: cluster.image, lambda: cluster.image_age_ms() is not None
        )

    def _received_at(self) -> float:
        """Return the loop's time when a part of a large request last arrived at a listener."""
        return max((each.received_at for each in self.listeners.values()), default=0.0)

    @property
    def epoch(self) -> int | None:
        """Return the broker epoch of this broker's registration, or None before registration."""
        return None if self._registration is None else self._registration.epoch

    @property
    def is_fenced(self) -> bool:
        """Return whether the controller fences this broker, or the broker's session has expired."""
        return self._registration is None or self._registration.is_fenced

    def _clock_ahead_ms(self) -> int:
        """Return the ms that this broker's wall clock is ahead of the controller's clock."""
        return 0 if self._registration is None else self._registration.clock_ahead_ms

    def degradations(self) -> Iterator[Degradation]:
        """Yield the reason for which clients are redirected now, and the broker's own faults."""
        if not self._unfenced.is_set():
            yield Degradation("starting", f"broker {self._cluster.broker_id} is starting")
        elif self.is_fenced:
            text = f"the controller fences broker {self._cluster.broker_id}, or its session is over"
            yield Degradation("fenced", text)
        own = self._cluster.image.brokers.get(self._cluster.broker_id)
        if own is not None and own.unpreferred_reason:
            text = f"clients are sent to other brokers: {own.unpreferred_reason}"
            yield Degradation("not_preferred", text, unready=False)
        lineage = self.services.lineage
        if lineage.fault is not None and not lineage.is_proved and self._watched.fault is None:
            text = f"nothing is acknowledged or deleted: {lineage.fault}"
            yield Degradation("lineage", text)
        segments = self.services.segments
        if segments is not None and segments.fault is not None:
            yield Degradation("local_segments", segments.fault, unready=False)
        yield from self._backup_faults()
        yield from self.health.faults()

    def _backup_faults(self) -> Iterator[Degradation]:
        backup = self.services.backup
        if backup is None:
            return
        if backup.contradiction is not None:
            text = f"nothing is acknowledged or deleted: {backup.contradiction}"
            yield Degradation("backup_contradicted", text)
        elif backup.late_reason is not None:
            yield Degradation("backup", backup.late_reason, unready=False)

    def _unready_reason(self) -> str | None:
        """Return the reason why clients should avoid this broker, or None without a reason.

        Also None while the finalized features do not allow a heartbeat to carry a reason.
        """
        if not may_write_preference(self._cluster.image):
            return None
        reason = self.health.unready_reason()
        return None if reason is None else reason[:MAX_REASON]

    @property
    def is_preferred(self) -> bool:
        """Return whether placement sends clients to this broker unless the broker is fenced."""
        own = self._cluster.image.brokers.get(self._cluster.broker_id)
        return own is None or is_preferred(own)

    def advertised_listeners(self) -> list[BrokerListener]:
        """Return the advertised addresses of the listeners, which must be bound already."""
        return [
            BrokerListener(
                name=listener.name,
                host=listener.advertised_host,
                port=listener.advertised_port or self.listeners[listener.name].port,
                protocol=PROTOCOLS.index(listener.protocol),
            )
            for listener in self._settings.listeners
        ]

    def metrics(self) -> Iterator[Metric]:
        """Yield all of the broker's Prometheus metrics."""
        yield from member_metrics(self)
        yield from self.services.collector.collect()

    # --- starting -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read the cluster's state, listen, register, and wait until the broker is unfenced.

        Raises:  NotStartedError; OSError for a port.
        """
        timeout_ms = self._settings.values["initial.broker.registration.timeout.ms"]
        await self._read_cluster(timeout_ms)
        await self._begin_store()
        await self._begin_lineage()
        await self._begin_segments()
        await self._watched.probe()
        self._watched.start()
        await self._listen()
        registration = self._registration = Registration(
            _Controllers(self._cluster),
            self._membership(timeout_ms),
            metadata_offset=self._cluster.metadata_offset,
            on_change=self._on_membership,
            on_lost=self._on_lost,
            unready_reason=self._unready_reason,
            wall_ms=self._wall_ms,
        )
        try:
            await registration.start()
        except RegistrationRefusedError as error:
            raise NotStartedError(str(error)) from None
        self.services.start()
        await self._unfenced.wait()
        log.info(
            "broker=%d epoch=%s ready=yes listeners=%s",
            self._cluster.broker_id,
            registration.epoch,
            ",".join(f"{end.name}://{end.host}:{end.port}" for end in self.advertised_listeners()),
        )

    async def _read_cluster(self, timeout_ms: int) -> None:
        """Wait until the cluster image and all replicas have caught up with their leaders.

        With half of a log the broker would deny topics that exist, and clients take that as final.
        """
        loop = asyncio.get_running_loop()
        began, logged = loop.time(), loop.time()
        while (missing := self._lagging_log(self._cluster.image)) is not None:
            now = loop.time()
            if (now - began) * 1_000 >= timeout_ms:
                raise NotStartedError(
                    f"broker {self._cluster.broker_id} read no {missing} within {timeout_ms} ms "
                    "(initial.broker.registration.timeout.ms): is a majority of "
                    f"controller.quorum.voters running, and of cluster {self._cluster.cluster_id}?"
                )
            if now - logged >= LOG_S:
                logged = now
                log.info("broker=%d waits_for=%r", self._cluster.broker_id, missing)
            await asyncio.sleep(POLL_S)

    def _lagging_log(self, image: MetadataImage) -> str | None:
        """Return the name of a log whose replica has not caught up, or None if all have."""
        if self._cluster.image_age_ms() is None or not image.coordinator_count:
            return "__cluster_metadata-0"
        for coordinator in range(image.coordinator_count):
            if self._cluster.replica_age_ms(coordinator) is None:
                return f"__diskless-metadata-{coordinator}"
        if self._cluster.groups_age_ms() is None:
            return "__consumer_offsets-0"
        return None

    async def _begin_store(self) -> None:
        """Start the object store; refuse an empty store if the cluster has records."""
        if not isinstance(self._store, BeginningStore):
            return
        try:
            await self._store.begin(is_empty=not await self._has_records())
        except (StoreSettingError, StorageError) as error:
            raise NotStartedError(str(error)) from None

    async def _begin_lineage(self) -> None:
        """Prove that this cluster is the living one of its lineage."""
        try:
            await self.services.lineage.begin()
        except SupersededError as error:
            raise NotStartedError(str(error)) from None

    async def _begin_segments(self) -> None:
        """Claim the directory of local segments."""
        try:
            await self.services.begin_segments()
        except CacheDirectoryError as error:
            raise NotStartedError(str(error)) from None

    async def _has_records(self) -> bool:
        """Return whether any partition of the cluster has records."""
        for topic in tuple(self._cluster.image.topics.values()):
            await asyncio.sleep(0)
            for partition in topic.partitions:
                replica = self._cluster.replica(topic.coordinator(partition))
                ends = None if replica is None else replica.ends(topic.topic_id, partition)
                if ends is not None and ends[0] < ends[1]:
                    return True
        return False

    async def _listen(self) -> None:
        """Open all of the broker's listeners for connections."""
        for configured in self._settings.listeners:
            name = configured.name
            dispatcher = self.dispatchers[name] = Dispatcher(
                self.services.handlers(name),
                cluster=self._cluster,
                listener_name=name,
                large=self.services.large,
            )
            self.services.throttling.watch(dispatcher.routes)
            listener = self.listeners[name] = Listener(
                dispatcher.handle,
                name=name,
                limits=self._settings.limits,
                on_close=self.services.connection_closed,
                hold_ms=self.services.throttling.connections.hold_ms,
                security=configured.security,
            )
            await listener.start(
                configured.bind_host, configured.bind_port, inherited=configured.inherited
            )

    def _membership(self, timeout_ms: int) -> BrokerMembership:
        values = self._settings.values
        return BrokerMembership(
            cluster_id=self._cluster.cluster_id,
            broker_id=self._cluster.broker_id,
            incarnation_id=self._settings.incarnation_id,
            directory_id=self._settings.directory_id,
            listeners=tuple(self.advertised_listeners()),
            rack=values["broker.rack"] or None,
            features=tuple((name, *levels) for name, levels in sorted(SUPPORTED.items())),
            heartbeat_interval_ms=values["broker.heartbeat.interval.ms"],
            session_timeout_ms=values["broker.session.timeout.ms"],
            registration_timeout_ms=timeout_ms,
        )

    # --- membership -----------------------------------------------------------------------------

    def _on_membership(self) -> None:
        """Apply a new broker epoch, or a change of whether the broker is fenced."""
        registration = self._registration
        assert registration is not None, "a member that never registered"
        if registration.epoch is None:
            self.services.end_epoch()
        else:
            self.services.begin_epoch(registration.epoch, is_fenced=registration.is_fenced)
        log.info(
            "broker=%d epoch=%s fenced=%s",
            self._cluster.broker_id,
            registration.epoch,
            "yes" if registration.is_fenced else "no",
        )
        if not registration.is_fenced:
            self._unfenced.set()

    def _on_image(self, image: MetadataImage) -> None:
        """Stop writing and coordinating groups if another process has registered this broker id."""
        own = image.brokers.get(self._cluster.broker_id)
        if own is None or self.epoch is None or own.broker_epoch <= self.epoch:
            return
        log.warning(
            "broker=%d epoch=%d newer_epoch=%d",
            self._cluster.broker_id, self.epoch, own.broker_epoch,
        )  # fmt: skip
        self.services.end_epoch()
        self._on_epoch_doubted()

    def _on_epoch_doubted(self) -> None:
        """Send a heartbeat at once, because a coordinator has seen a newer epoch of this broker."""
        if self._registration is not None:
            self._registration.heartbeat_now()

    # --- stopping -------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop the broker: redirect clients, write buffered batches, answer, close listeners.

        Each step has a timeout, and a short one if the quorum has stopped, too: producers are told
        that the outcome of a batch that could not be committed is unknown.
        """
        has_controller = True
        if self._registration is not None:
            has_controller = await self._registration.stop(LEAVE_S)
        await self.services.leave(WRITE_S if has_controller else ALONE_S)
        for listener in self.listeners.values():
            await listener.close(drain_ms=DRAIN_MS)
        await self.services.close()
        log.info("broker=%d stopped=clean", self._cluster.broker_id)


class _Controllers:
    """Gives a registration its calls to the cluster's controller."""

    def __init__(self, cluster: Cluster) -> None:
        self.call = cluster.ask_controller


__all__ = [
    "Broker",
    "BrokerSettings",
    "ClientListener",
    "NotStartedError",
]
