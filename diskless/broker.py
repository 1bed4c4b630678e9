"""A broker's life: it reads the cluster, listens, becomes a member, serves, and leaves.

    broker = Broker(settings, cluster, store, wall_ms=..., random=...)
    await broker.start()          # returns when clients are sent here
    await broker.stop()           # clients are sent elsewhere, then what was promised is kept

The order matters. It listens before it is a member, since clients come the moment it is unfenced;
and it reads before it listens, since what it says comes from what it has read. It leaves the other
way round: first the cluster hears that it goes, so that clients are told of other brokers; then it
takes no more, writes what it has, answers, and gives its leases back.

The surprise: nothing is lost if it does not get that far. A broker keeps nothing of its own; one
that is killed leaves objects that were never committed, which the coordinator knows by their lease,
and producers that send again.

Source: KIP-631 (registration, fencing, controlled shutdown); KIP-1163; docs/design/broker.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final
from uuid import UUID

from prometheus_client.metrics_core import Metric

from coordinator.controller.decide.context import FEATURES
from coordinator.controller.image import MetadataImage
from coordinator.controller.registration import (
    BrokerListener,
    BrokerMembership,
    Registration,
    RegistrationRefusedError,
)
from diskless.apis.configs import OwnSetting
from diskless.broker_metrics import member_families
from diskless.cluster import Cluster
from diskless.dispatch import Dispatcher
from diskless.services import Services
from diskless.stores import BeginningStore, ObjectStorage, StorageError, StoreSettingError
from raft.net import Limits, Listener

log = logging.getLogger("diskless.broker")

LOOK_S: Final = 0.02  # between two looks at whether the replicas are level
SAY_S: Final = 2.0  # between two lines on what a starting broker waits for
LEAVE_S: Final = 5.0  # for the controller to let us go
WRITE_S: Final = 15.0  # for what is buffered to be written and answered
ALONE_S: Final = 2.0  # the same where no controller has answered: who would commit it?
DRAIN_MS: Final = 1_000  # for answers to be read


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientListener:
    """One address for clients."""

    name: str
    bind_host: str
    bind_port: int  # 0: any free one
    advertised_host: str
    advertised_port: int  # 0: as bound


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """What a broker must be told."""

    incarnation_id: UUID  # drawn anew by each process
    directory_id: UUID
    listeners: tuple[ClientListener, ...]
    values: Mapping[str, Any]  # settings, parsed, by their Kafka names
    own: tuple[OwnSetting, ...] = ()  # the same as text, for who asks
    limits: Limits = field(default_factory=Limits)


class NotStartedError(Exception):
    """The broker cannot be a member of its cluster. One sentence with the reason."""


class Broker:
    """See the module. Made on a running loop; `start`, then `stop`."""

    def __init__(
        self,
        settings: BrokerSettings,
        cluster: Cluster,
        store: ObjectStorage,
        *,
        wall_ms: Callable[[], int],
        random: Random,
        on_lost: Callable[[Exception], None],
    ) -> None:
        """Nothing is served yet.

        Args:    on_lost: told if it can be a member no more, ever.
        """
        self.listeners: dict[str, Listener] = {}
        self.dispatchers: dict[str, Dispatcher] = {}
        self._settings = settings
        self._cluster = cluster
        self._store = store
        self._on_lost = on_lost
        self._registration: Registration | None = None
        self._unfenced = asyncio.Event()
        cluster.on_image(self._on_image)  # before the services look at it
        self.services = Services(
            cluster,
            store,
            settings.values,
            own=settings.own,
            wall_ms=wall_ms,
            random=random,
            on_fenced=self._on_epoch_doubted,
        )

    @property
    def epoch(self) -> int | None:
        """Under which it is a member; None before it is one."""
        return None if self._registration is None else self._registration.epoch

    @property
    def is_fenced(self) -> bool:
        """Are clients sent elsewhere? As the controller said last, if not too long ago."""
        return self._registration is None or self._registration.is_fenced

    def advertised(self) -> list[BrokerListener]:
        """Where clients are told to connect to, once it listens."""
        return [
            BrokerListener(
                name=at.name,
                host=at.advertised_host,
                port=at.advertised_port or self.listeners[at.name].port,
            )
            for at in self._settings.listeners
        ]

    def metrics(self) -> Iterator[Metric]:
        """For Prometheus."""
        yield from member_families(self)
        yield from self.services.collector.collect()

    # --- beginning ------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read the cluster, listen, register, and wait until clients are sent here.

        Raises:  NotStartedError; OSError for a port.
        """
        timeout_ms = self._settings.values["initial.broker.registration.timeout.ms"]
        await self._read_cluster(timeout_ms)
        await self._begin_store()
        await self._listen()
        registration = self._registration = Registration(
            _Controllers(self._cluster),
            self._membership(timeout_ms),
            metadata_offset=self._cluster.metadata_offset,
            on_change=self._on_membership,
            on_lost=self._on_lost,
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
            ",".join(f"{at.name}://{at.host}:{at.port}" for at in self.advertised()),
        )

    async def _read_cluster(self, timeout_ms: int) -> None:
        """Wait until the image and all replicas are level with their leaders.

        Less is worse than nothing: half of a log denies the topics of its other half, and clients
        take such a word for the end.
        """
        loop = asyncio.get_running_loop()
        began, said = loop.time(), loop.time()
        while (missing := self._not_level(self._cluster.image)) is not None:
            now = loop.time()
            if (now - began) * 1_000 >= timeout_ms:
                raise NotStartedError(
                    f"broker {self._cluster.broker_id} read no {missing} within {timeout_ms} ms "
                    "(initial.broker.registration.timeout.ms): is a majority of "
                    f"controller.quorum.voters running, and of cluster {self._cluster.cluster_id}?"
                )
            if now - said >= SAY_S:
                said = now
                log.info("broker=%d waits_for=%r", self._cluster.broker_id, missing)
            await asyncio.sleep(LOOK_S)

    def _not_level(self, image: MetadataImage) -> str | None:
        """What of the cluster has not been read yet."""
        if self._cluster.image_age_ms() is None or not image.coordinator_count:
            return "__cluster_metadata-0"
        for coordinator in range(image.coordinator_count):
            if self._cluster.replica_age_ms(coordinator) is None:
                return f"__diskless-metadata-{coordinator}"
        if self._cluster.groups_age_ms() is None:
            return "__consumer_offsets-0"
        return None

    async def _begin_store(self) -> None:
        """A store that is new to a cluster that has records is not its store."""
        if not isinstance(self._store, BeginningStore):
            return
        try:
            await self._store.begin(is_empty=not await self._has_records())
        except (StoreSettingError, StorageError) as error:
            raise NotStartedError(str(error)) from None

    async def _has_records(self) -> bool:
        for topic in tuple(self._cluster.image.topics.values()):
            await asyncio.sleep(0)
            for partition in topic.partitions:
                replica = self._cluster.replica(topic.coordinator(partition))
                ends = None if replica is None else replica.ends(topic.topic_id, partition)
                if ends is not None and ends[0] < ends[1]:
                    return True
        return False

    async def _listen(self) -> None:
        for at in self._settings.listeners:
            handlers = self.services.handlers(at.name)
            dispatcher = self.dispatchers[at.name] = Dispatcher(
                handlers,
                cluster=self._cluster,
                listener_name=at.name,
                large=self.services.large,
            )
            listener = self.listeners[at.name] = Listener(
                dispatcher.handle,
                name=at.name,
                limits=self._settings.limits,
                on_close=self.services.connection_closed,
            )
            await listener.start(at.bind_host, at.bind_port)

    def _membership(self, timeout_ms: int) -> BrokerMembership:
        values = self._settings.values
        return BrokerMembership(
            cluster_id=self._cluster.cluster_id,
            broker_id=self._cluster.broker_id,
            incarnation_id=self._settings.incarnation_id,
            directory_id=self._settings.directory_id,
            listeners=tuple(self.advertised()),
            rack=values["broker.rack"] or None,
            features=tuple((name, *levels) for name, levels in sorted(FEATURES.items())),
            heartbeat_interval_ms=values["broker.heartbeat.interval.ms"],
            session_timeout_ms=values["broker.session.timeout.ms"],
            registration_timeout_ms=timeout_ms,
        )

    # --- living ---------------------------------------------------------------------------------

    def _on_membership(self) -> None:
        """The epoch, or what the controller says of us, is another one."""
        registration = self._registration
        assert registration is not None, "a member that never registered"
        if registration.epoch is None:
            self.services.no_member()
        else:
            self.services.member(registration.epoch, is_fenced=registration.is_fenced)
        log.info(
            "broker=%d epoch=%s fenced=%s",
            self._cluster.broker_id,
            registration.epoch,
            "yes" if registration.is_fenced else "no",
        )
        if not registration.is_fenced:
            self._unfenced.set()

    def _on_image(self, image: MetadataImage) -> None:
        """Has somebody else registered under our id? Then it acts for groups, and we do not."""
        own = image.brokers.get(self._cluster.broker_id)
        if own is None or self.epoch is None or own.broker_epoch <= self.epoch:
            return
        log.warning(
            "broker=%d epoch=%d newer_epoch=%d",
            self._cluster.broker_id, self.epoch, own.broker_epoch,
        )  # fmt: skip
        self.services.no_member()
        self._on_epoch_doubted()

    def _on_epoch_doubted(self) -> None:
        """A coordinator knows a newer epoch of this broker: ask the controller now."""
        if self._registration is not None:
            self._registration.hurry()

    # --- the end --------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Leave: send clients elsewhere, write what is buffered, answer, close.

        Each step has an end, and a near one where the quorum has stopped, too: what nobody can
        commit is told to its producers as what it is, of unknown outcome.
        """
        is_heard = True
        if self._registration is not None:
            is_heard = await self._registration.stop(LEAVE_S)
        await self.services.leave(WRITE_S if is_heard else ALONE_S)
        for listener in self.listeners.values():
            await listener.close(drain_ms=DRAIN_MS)
        await self.services.close()
        log.info("broker=%d stopped=clean", self._cluster.broker_id)


class _Controllers:
    """A cluster's controller, as a registration asks it."""

    def __init__(self, cluster: Cluster) -> None:
        self.call = cluster.ask_controller


__all__ = [
    "Broker",
    "BrokerSettings",
    "ClientListener",
    "NotStartedError",
]
