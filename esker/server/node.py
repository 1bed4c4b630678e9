"""Builds a running quorum node from its settings and its formatted directory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client.metrics_core import Metric

import coordinator.batch.leader  # here, not when a group opens: it takes a tenth of a second
import coordinator.batch.sqlite.machine  # noqa: F401
from coordinator.controller.decide import Limits as DecisionLimits
from coordinator.controller.image import MetadataImage
from coordinator.controller.leader import ControllerConfig as Deciding
from coordinator.controller.mutation_quotas import MutationWindow
from coordinator.features import Features
from coordinator.groups.settings import LogSettings
from coordinator.transactions.settings import TransactionSettings
from esker.server.controllers import ClusterMachine, ControllerParts, ControllerSettings
from esker.server.coordinators import CoordinatorNodeService
from esker.server.feature_metrics import feature_metrics
from esker.server.groups import GroupLogNodeService
from esker.server.listener_gate import ListenerGate
from esker.server.node_services import BenchState, JoinedServices
from esker.server.open_files import connections_allowed
from esker.server.peer_identity import IdentityMode, Owner, PeerIdentities
from esker.server.replica_set import (
    Machines,
    ObservedCluster,
    ObserverSettings,
    OwnMachines,
    SharedMachines,
)
from esker.server.security import access_settings, listener_security
from esker.server.snapshot_hosting import SnapshotKeeping
from esker.server.storage import open_storage
from esker.server.transaction_metrics import transaction_metrics
from esker.server.transactions import TransactionLogNodeService
from esker.settings.access import IDENTITY, NODE_PRINCIPALS
from esker.settings.addresses import BROKER, CONTROLLER
from esker.settings.config import Endpoint as Address
from esker.settings.config import NodeSettings
from raft.core.config import QuorumConfig
from raft.core.voters import Endpoint, ReplicaKey, Voter
from raft.driver.config import FurtherListener, NodeConfig
from raft.driver.node_services import ClusterEvents, NodeService, ServiceHost
from raft.interfaces import Degradation, ReplicatedLog
from raft.net import Frame, Limits, Payload, RequestHeader, ServerConnection
from raft.net.principal import parse_principal
from raft.net.scram import SCRAM, ScramCredential
from raft.net.security import PROTOCOLS
from raft.segments.log import LogConfig
from records.internal_topics import DISKLESS_METADATA
from records.object_keys import Ancestors
from records.schema import MetadataRecord
from records.types import ZERO_UUID

TICK_MS: Final = 100
"""How often the active controller looks at its sessions and at an idle log."""

APPLY_DELAY_MS: Final = 10.0
"""Delay between learning that a commit of batches is committed and applying it, on a node that only
votes: several commits are then applied together. A read, or becoming leader, applies at once."""


class NodeParts:
    """The parts of a node by its roles; `config` builds a `raft.driver.node.Node` from them.

    A controller has the states of all logs and decides on those that it leads. A broker has the
    same states to read: its own, or, with both roles, those of the controller.
    """

    def __init__(self, settings: NodeSettings) -> None:
        """Open the node's storage and build the configuration of the node's parts.

        Raises:  as `esker.server.storage.open_storage`; ConfigError for a key or certificate.
        """
        self.settings = settings
        self.meta, bootstrap = open_storage(settings)
        self._observed: ObservedCluster | None = None
        self._own: OwnMachines | None = None
        self._controllers: ControllerParts | None = None
        self._groups: GroupLogNodeService | None = None  # of a controller
        self._transactions: TransactionLogNodeService | None = None
        self._ancestors = Ancestors()
        if CONTROLLER in settings.roles:
            parts = controller_settings(settings, self.meta.cluster_id, bootstrap)
            self._controllers = ControllerParts(parts)
        self.degradations: list[Callable[[], Iterable[Degradation]]] = []
        self.collectors: list[Callable[[], Iterable[Metric]]] = [
            lambda: feature_metrics(self._features())
        ]
        if self._controllers is not None:
            self.collectors.append(self._controllers.metrics)
        self._identities: PeerIdentities | None = None
        if self._controllers is not None and access_settings(settings) is not None:
            self._identities = self._peer_identities(self._controllers)
            self.collectors.append(self._identities.metrics)
        self.limits = limits_of(settings)
        self.config = self._config(bootstrap)

    @property
    def controllers(self) -> ControllerParts | None:
        """Return this node's controller, or None on a broker."""
        return self._controllers

    @property
    def cluster(self) -> ObservedCluster:
        """Return the broker's view of its cluster, once the node is built."""
        assert self._observed is not None, "no broker, or a node that is not made yet"
        return self._observed

    def find_credential(self, user: str, mechanism: str) -> ScramCredential | None:
        """Return a user's SCRAM verifier in this broker's copy of the cluster log, if any."""
        found = self.cluster.image.security.scrams.get((user, SCRAM[mechanism].number))
        if found is None:
            return None
        return ScramCredential(
            salt=bytes(found.salt),
            iterations=found.iterations,
            stored_key=bytes(found.stored_key),
            server_key=bytes(found.server_key),
        )

    def _config(self, bootstrap: tuple[MetadataRecord, ...]) -> NodeConfig:
        """Return the Raft driver's configuration of this node.

        The directory ids of other voters stay unknown: kraft.version 0 has static voters by id.
        """
        config, place = self.settings, self.settings.addresses.controller
        directory_id = self.meta.directory_id or ZERO_UUID
        return NodeConfig(
            node_id=config.node_id,
            cluster_id=self.meta.cluster_id,
            directory_id=directory_id,
            log_dir=config.log_dir,
            voters=tuple(
                Voter(
                    key=ReplicaKey(node, directory_id if node == config.node_id else ZERO_UUID),
                    endpoints=(self._endpoint(address),),
                )
                for node, address in sorted(config.voters.items())
            ),
            bind_host=place.bind.host if place else None,
            bind_port=place.bind.port if place else 0,
            advertised=self._endpoint(place.advertised) if place else None,
            quorum=QuorumConfig(
                election_timeout_ms=config.election_timeout_ms,
                fetch_timeout_ms=config.fetch_timeout_ms,
                election_backoff_max_ms=config.election_backoff_max_ms,
                request_timeout_ms=config.request_timeout_ms,
                retry_backoff_ms=config.retry_backoff_ms,
            ),
            log=LogConfig(segment_bytes=config.segment_bytes, segment_ms=config.segment_ms),
            limits=self.limits,
            security=listener_security(config, place.name) if place else None,
            further_listeners=tuple(
                FurtherListener(
                    name=further.name,
                    host=further.bind.host,
                    port=further.bind.port,
                    security=listener_security(config, further.name),
                )
                for further in config.addresses.further_controllers
            ),
            bootstrap=bootstrap,
            snapshot_hosting=SnapshotKeeping(
                node_id=config.node_id,
                snapshots=config.snapshots,
                log_starts=config.log_start,
                apply_delay_ms={}
                if BROKER in config.roles
                else {DISKLESS_METADATA: APPLY_DELAY_MS},
            ),
            node_service=self._node_service,
            refuse=self._refuse if access_settings(config) is not None else None,
            cluster=self._cluster_state,
            metrics=self._metrics,
            degradations=self._degradations,
            ends_on_lost_records=config.values[IDENTITY] == IdentityMode.ENFORCE,
            bench_log=config.bench_log,
            max_idle_interval_ms=config.max_idle_interval_ms,
            metrics_host=config.metrics.host if config.metrics else None,
            metrics_port=config.metrics.port if config.metrics else 0,
        )

    def _refuse(
        self, connection: ServerConnection, header: RequestHeader, body: Frame
    ) -> Payload | None:
        """Refuse a request on a controller listener that its peer may not send."""
        assert self._controllers is not None, "a controller listener without a controller"
        table = self._controllers.access
        assert table is not None, "access control without a table"
        return ListenerGate(table, self._identities).refuse(connection, header, body)

    def _peer_identities(self, controllers: ControllerParts) -> PeerIdentities:
        values = self.settings.values
        return PeerIdentities(
            IdentityMode(values[IDENTITY]),
            parse_principal(values[NODE_PRINCIPALS]),
            {int(node): place.host for node, place in self.settings.voters.items()},
            lambda: controllers.machine.image.brokers,
            self._find_owner,
        )

    def _find_owner(self, field: str, name: str) -> Owner | None:
        """Return the owner of a group or transactional id in this node's replica of its log."""
        if field == "group_id":
            groups = None if self._groups is None else self._groups.machine
            return None if groups is None else groups.image.groups.get(name)
        transactions = None if self._transactions is None else self._transactions.machine
        return None if transactions is None else transactions.image.ids.get(name)

    def _endpoint(self, address: Address) -> Endpoint:
        return Endpoint(self.settings.addresses.controller_name, address.host, address.port)

    def _node_service(self, host: ServiceHost) -> JoinedServices:
        config, controllers = self.settings, self._controllers
        services: list[NodeService] = [BenchState(host, config.bench_log_state)]
        machines: Machines
        if controllers is None:
            machines = self._own = OwnMachines(host, config.topic_defaults)
            machines.controller.listen(self._note_ancestors)
        else:
            coordinators = CoordinatorNodeService(
                host,
                config.coordinators,
                controllers.view,
                self._ancestors,
                voters=len(config.voters),
            )
            controllers_node = controllers.node_service(host)
            controllers.listen(self._note_ancestors)
            groups = self._groups = GroupLogNodeService(
                host, LogSettings.of(config.values), controllers.listen
            )
            transactions = self._transactions = TransactionLogNodeService(
                host,
                TransactionSettings.of(config.values),
                controllers.listen,
                [(place.host, place.port) for place in config.voters.values()],
            )
            self.collectors.append(coordinators.metrics)
            self.collectors.append(lambda: transaction_metrics(transactions.log))
            self.degradations.append(coordinators.degradations)
            services += [coordinators, controllers_node, groups, transactions]
            machines = SharedMachines(controllers, coordinators, groups, transactions)
        if BROKER in config.roles:
            voters = [(place.host, place.port) for place in config.voters.values()]
            observing = ObserverSettings(
                voters=voters, coordinators=config.coordinators, ancestors=self._ancestors
            )
            self._observed = ObservedCluster(host, machines, observing)
            services.append(self._observed)
        return JoinedServices(services)

    def _cluster_state(
        self, host: ServiceHost, log: ReplicatedLog, events: ClusterEvents
    ) -> ClusterMachine:
        if self._controllers is not None:
            return self._controllers.cluster(host, log, events)
        assert self._own is not None, "a cluster log before its node"
        return self._own.begin_cluster(host, log, events)

    def _note_ancestors(self, image: MetadataImage) -> None:
        """Let all keys of this node know the ancestors that the cluster log names."""
        if image.timeline is not None:
            self._ancestors.clusters = image.ancestors.clusters

    def _features(self) -> Features:
        """Return the finalized feature levels in this node's copy of the cluster log."""
        if self._controllers is not None:
            return self._controllers.machine.image.features
        assert self._own is not None, "a scrape before the node is made"
        return self._own.controller.image.features

    def _degradations(self) -> Iterable[Degradation]:
        for find in self.degradations:
            yield from find()

    def _metrics(self) -> Iterable[Metric]:
        for collect in self.collectors:
            yield from collect()


def limits_of(settings: NodeSettings) -> Limits:
    """Return the limits on the connections and memory of each listener."""
    places = settings.addresses
    send_buffer_bytes = settings.values["socket.send.buffer.bytes"]
    allowed = connections_allowed(settings.values["max.connections"], len(places.places))
    return Limits(
        max_connections=allowed,
        max_connections_per_ip=settings.values["max.connections.per.ip"],
        max_connections_per_ip_overrides=settings.values["max.connections.per.ip.overrides"],
        max_frame_bytes=settings.request_max_bytes,
        send_buffer_bytes=send_buffer_bytes if send_buffer_bytes > 0 else None,
        idle_ms=settings.connections_max_idle_ms,
        max_handshakes_per_second=settings.values["esker.listener.max.handshakes.per.second"],
        max_unauthenticated_frame_bytes=settings.values["sasl.server.max.receive.size"],
    )


def controller_settings(
    config: NodeSettings, cluster_id: str, bootstrap: tuple[MetadataRecord, ...]
) -> ControllerSettings:
    """Return the controller's settings, taken from the node's settings."""
    endpoints = {int(node): (place.host, place.port) for node, place in config.voters.items()}
    return ControllerSettings(
        controller=Deciding(
            cluster_id=cluster_id,
            session_timeout_ms=config.session_timeout_ms,
            max_idle_interval_ms=config.max_idle_interval_ms,
            tick_interval_ms=TICK_MS,
            bootstrap=bootstrap,
            node_id=config.node_id,
            voters=frozenset(endpoints),
            limits=DecisionLimits(
                default_partitions=config.default_partitions,
                default_replication_factor=config.default_replication_factor,
                max_topics=config.values["esker.max.topics"],
                max_partitions=config.values["esker.max.partitions"],
            ),
        ),
        endpoints=endpoints,
        listener_name=config.addresses.controller_name,
        protocol=PROTOCOLS.index(config.addresses.controller_protocol),
        bench_log=config.bench_log,
        topic_defaults=config.topic_defaults,
        access=access_settings(config),
        mutation_window=MutationWindow(
            config.values["controller.quota.window.num"],
            config.values["controller.quota.window.size.seconds"],
        ),
    )
