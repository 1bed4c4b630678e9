"""A broker's replicas of the quorum's logs, on a node that observes them.

    observed = ObservedCluster(host, machines, settings)  # also a NodeService

The node keeps the logs, and a machine on each is fed from it. Where those machines are from is the
one thing that differs between a broker alone (`OwnMachines`) and one beside a controller, whose
machines it reads (`SharedMachines`): the state is the same.

The surprise: every kind of request to the controller has a client of its own. Answers come in the
order of the questions, so behind one CreateTopics that waits a heartbeat would be late, and this
broker fenced. And those clients are told who leads as soon as this node's logs know it: a leader
that stands still closes no connection, and whoever waits for its answer hears of it last.

Source: KIP-1164 (read-only coordinators); docs/design/README.md#the-picture, docs/design/broker.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, TypeVar

from coordinator.batch.client import ClientSettings, CoordinatorClient
from coordinator.batch.freshness import Freshness
from coordinator.batch.replica import ReadOnlyCoordinator
from coordinator.batch.sqlite.machine import CoordinatorMachine, Identity
from coordinator.controller.access import Client
from coordinator.controller.client import ControllerClient
from coordinator.controller.image import MetadataImage
from coordinator.controller.machine import ControllerMachine
from coordinator.groups.client import GroupLogClient
from coordinator.groups.machine import GroupMachine
from coordinator.groups.state import Group
from coordinator.leader_client import Address, Failure, LeaderClient
from coordinator.transactions.client import TransactionLogClient
from coordinator.transactions.machine import TransactionMachine
from coordinator.transactions.state import TransactionsImage
from diskless.backup.cut import ORDER, BackupLog
from diskless.latest_image import LatestImage
from esker.server.controllers import ClusterMachine, ControllerParts
from esker.server.coordinators import CoordinatorNodeService
from esker.server.groups import GroupLogNodeService, GroupReplica
from esker.server.transactions import TransactionLogNodeService, TransactionReplica
from esker.settings.coordinator_options import CoordinatorOptions
from raft.driver.config import QUORUM_TOPICS
from raft.driver.node_services import ClusterEvents, ServiceHost
from raft.interfaces import ReplicatedLog
from raft.net.handlers import Served
from raft.segments.files import RealFileSystem
from raft.segments.properties import read_partition_metadata
from records.internal_topics import (
    CLUSTER_METADATA,
    CONSUMER_OFFSETS,
    DISKLESS_METADATA,
    TRANSACTION_STATE,
)
from records.object_keys import Ancestors
from records.rpc.backup import ReportLostRecordsRequest, ReportLostRecordsResponse
from records.rpc.base import Request, Response
from records.rpc.brokers import BrokerHeartbeatRequest
from records.types import Offset

R = TypeVar("R", bound=Response)

CALL_TIMEOUT_MS: Final = 30_000  # of a call to a controller, with all its attempts
ATTEMPT_TIMEOUT_MS: Final = 10_000  # a controller may wait for a coordinator before it answers
HEARTBEAT_TIMEOUT_MS: Final = 2_000  # a session is a few seconds long
REPORT_TIMEOUT_MS: Final = 2_000  # of each answer while a loss is reported
ALONE_MS: Final = 1_000  # of a heartbeat where no controller runs; there will be another


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverSettings:
    """The settings of the observed quorum."""

    voters: Sequence[Address]
    coordinators: CoordinatorOptions = field(default_factory=CoordinatorOptions)
    ancestors: Ancestors = field(default_factory=Ancestors)  # filled by the cluster log


class Machines(Protocol):
    """The state machines of the observed logs."""

    @property
    def controller(self) -> ControllerMachine:
        """Return the state machine of the cluster log."""

    def begin(self, log: ReplicatedLog, topic: str, partition: int, directory: Path) -> None:
        """Build the state machine of a Raft group that was opened on this node."""

    async def end(self, topic: str, partition: int) -> None:
        """Close the state machine of a Raft group that has ended on this node."""

    def coordinator(self, partition: int) -> CoordinatorMachine | None:
        """Return a `__diskless-metadata` partition's state machine, or None before it starts."""

    def groups(self) -> Iterable[tuple[str, Group]]:
        """Return all consumer groups in the local replica."""

    def group_machine(self) -> GroupMachine | None:
        """Return the state machine of the consumer groups' log, or None before the log starts."""

    def transaction_machine(self) -> TransactionMachine | None:
        """Return the state machine of the transaction log, or None before the log starts."""


class OwnMachines:
    """The state machines of a node whose only role is broker."""

    def __init__(self, host: ServiceHost, topic_defaults: Mapping[str, str]) -> None:
        self.controller = ControllerMachine(topic_defaults)
        self._host = host
        self._coordinators: dict[int, CoordinatorMachine] = {}
        self._groups = GroupReplica(host)
        self._transactions = TransactionReplica(host)
        self.groups = self._groups.groups

    def begin_cluster(
        self, host: ServiceHost, log: ReplicatedLog, events: ClusterEvents
    ) -> ClusterMachine:
        """Build and host the state machine of the cluster log when that log is opened."""
        state = ClusterMachine(self.controller, events, set(QUORUM_TOPICS))
        host.host(log, state)
        return state

    def begin(self, log: ReplicatedLog, topic: str, partition: int, directory: Path) -> None:
        """Build and host the state machine of a started coordinator log or groups' log.

        Raises OSError, sqlite3.Error.
        """
        if topic == DISKLESS_METADATA:
            host = self._host
            identity = Identity(host.cluster_id, host.directory_id.bytes, log.name)
            machine = self._coordinators[partition] = CoordinatorMachine(directory, identity)
            host.host(log, machine)
        self._groups.begin(log, topic, partition, directory)
        self._transactions.begin(log, topic, partition, directory)

    async def end(self, topic: str, partition: int) -> None:
        """Close the state machine of an ended coordinator log or groups' log."""
        if topic == DISKLESS_METADATA:
            machine = self._coordinators.pop(partition, None)
            if machine is not None:
                machine.close()
        await self._groups.end(topic, partition)
        await self._transactions.end(topic, partition)

    def coordinator(self, partition: int) -> CoordinatorMachine | None:
        """Return this broker's state machine of a coordinator partition, or None."""
        return self._coordinators.get(partition)

    def group_machine(self) -> GroupMachine | None:
        """Return this broker's state machine of the groups' log, or None before its start."""
        return self._groups.machine

    def transaction_machine(self) -> TransactionMachine | None:
        """Return this broker's state machine of the transaction log, or None before its start."""
        return self._transactions.machine


class SharedMachines:
    """The state machines of the controller in this process, which begins and ends them."""

    def __init__(
        self,
        controllers: ControllerParts,
        coordinators: CoordinatorNodeService,
        groups: GroupLogNodeService,
        transactions: TransactionLogNodeService,
    ) -> None:
        self._controllers = controllers
        self._groups = groups
        self._transactions = transactions
        self.coordinator = coordinators.machine
        self.groups = groups.groups

    @property
    def controller(self) -> ControllerMachine:
        """Return the controller's state machine of the cluster log."""
        return self._controllers.machine

    def group_machine(self) -> GroupMachine | None:
        """Return the state machine of the consumer groups' log, or None before that log starts."""
        return self._groups.machine

    def transaction_machine(self) -> TransactionMachine | None:
        """Return the state machine of the transaction log, or None before that log starts."""
        return self._transactions.machine

    def begin(self, log: ReplicatedLog, topic: str, partition: int, directory: Path) -> None:
        """Do nothing, because the controller in this process builds the state machine."""

    async def end(self, topic: str, partition: int) -> None:
        """Do nothing, because the controller in this process closes the state machine."""


class ObservedCluster(LatestImage):
    """The quorum logs that a broker observes: a node service and its `diskless.cluster.Cluster`."""

    def __init__(self, host: ServiceHost, machines: Machines, settings: ObserverSettings) -> None:
        super().__init__(MetadataImage())
        self.handlers: Mapping[int, Served] = {}
        self._host = host
        self._machines = machines
        self._settings = settings
        self._replicas: dict[int, ReadOnlyCoordinator] = {}
        self._on_commit_told: list[Callable[[int], None]] = []
        self._cluster_age: Freshness | None = None
        self._groups_age: Freshness | None = None
        self._backup_logs: dict[tuple[str, int], BackupLog] = {}
        self._logs: dict[int | None, ReplicatedLog] = {}  # of coordinators; None: the cluster's
        client_id = self._client_id = f"broker-{host.node_id}"
        self._controllers: dict[type[Request], ControllerClient] = {}
        self._leaders: dict[int, CoordinatorClient] = {}
        self._groups = GroupLogClient(settings.voters, client_id=client_id)
        self._transactions = TransactionLogClient(settings.voters, client_id=client_id)

    # --- a NodeService ------------------------------------------------------------------------

    def begin(self, log: ReplicatedLog, topic: str, partition: int, directory: Path) -> None:
        """Build this broker's replica of a started log, and follow the replica's changes.

        Raises OSError, sqlite3.Error.
        """
        self._machines.begin(log, topic, partition, directory)
        if topic in ORDER:
            topic_id = read_partition_metadata(RealFileSystem(), directory)
            self._backup_logs[topic, partition] = BackupLog(topic, partition, topic_id, log)
        if topic == CLUSTER_METADATA:
            machine = self._machines.controller
            self._logs[None] = log
            self._cluster_age = Freshness(log, lambda: machine.applied.offset)
            machine.listen(self._take_image)
        elif topic == DISKLESS_METADATA:
            self._begin_replica(log, partition)
        elif (topic, partition) == (CONSUMER_OFFSETS, 0):
            groups = self._machines.group_machine()
            assert groups is not None, f"{log.name} has begun without a state"
            age = self._groups_age = Freshness(log, lambda: groups.applied.offset)
            groups.listen(lambda _: age.note())
        elif (topic, partition) == (TRANSACTION_STATE, 0):
            self._begin_transactions(log)

    def _begin_transactions(self, log: ReplicatedLog) -> None:
        machine = self._machines.transaction_machine()
        assert machine is not None, f"{log.name} has begun without a state"

        def note_leader(_: TransactionsImage) -> None:
            if log.leader_id is not None:
                self._transactions.note_leader(log.leader_id)

        machine.listen(note_leader)

    def _begin_replica(self, log: ReplicatedLog, partition: int) -> None:
        machine = self._machines.coordinator(partition)
        assert machine is not None, f"{log.name} has begun without a state"
        replica = self._replicas[partition] = ReadOnlyCoordinator(
            log,
            machine,
            self._settings.coordinators.settings(
                self._host.cluster_id, partition, self._settings.ancestors
            ),
            monotonic=asyncio.get_running_loop().time,
        )
        self._logs[partition] = log
        machine.watch(lambda: self._committed(partition))
        replica.start()

    async def end(self, topic: str, partition: int) -> None:
        """Close the replica of an ended log."""
        self._backup_logs.pop((topic, partition), None)
        if (topic, partition) == (CONSUMER_OFFSETS, 0):
            self._groups_age = None
        replica = self._replicas.pop(partition, None) if topic == DISKLESS_METADATA else None
        if replica is not None:
            await replica.close()
        await self._machines.end(topic, partition)

    async def close(self) -> None:
        """Close all clients of controllers and coordinators, ending their requests."""
        for controller in self._controllers.values():
            await controller.close()
        for leader in self._leaders.values():
            await leader.close()
        self._groups.close()
        self._transactions.close()

    # --- what is known here ---------------------------------------------------------------------

    @property
    def cluster_id(self) -> str:
        """Return the id of the cluster to which this node belongs."""
        return self._host.cluster_id

    @property
    def broker_id(self) -> int:
        """Return the broker id of this node, which is its node id."""
        return self._host.node_id

    def backup_logs(self) -> Iterable[BackupLog]:
        """Return the open logs of which a backup consists."""
        return self._backup_logs.values()

    def image_age_ms(self) -> float | None:
        """Return the metadata image's maximum age in ms, or None if unknown."""
        return _age_ms(self._cluster_age)

    async def report_lost_records(self, topic: str, partition: int, end: int, epoch: int) -> None:
        """Tell the leader of a log where the log's backup ends; without an answer do nothing."""
        leader = LeaderClient(
            self._settings.voters,
            partition,
            client_id=self._client_id,
            timeout_ms=REPORT_TIMEOUT_MS,
            topic=topic,
        )
        request = ReportLostRecordsRequest(
            topic_name=topic, partition_index=partition, end_offset=end, epoch=epoch
        )
        try:
            await leader.attempt(request, ReportLostRecordsResponse, lambda _: None)
        finally:
            leader.close()

    def metadata_offset(self) -> Offset:
        """Return the last offset in the metadata image, or -1 for an empty image."""
        return Offset(self._image.offset - 1)

    def replica(self, coordinator: int) -> ReadOnlyCoordinator | None:
        """Return this broker's replica of a coordinator partition, or None without one."""
        return self._replicas.get(coordinator)

    def replica_age_ms(self, coordinator: int) -> float | None:
        """Return the maximum age in ms of a coordinator partition's replica; None if unknown."""
        replica = self._replicas.get(coordinator)
        return None if replica is None else replica.age_ms

    def on_commit(self, callback: Callable[[int], None]) -> None:
        """Call `callback` with a coordinator partition's number after each of its new commits."""
        self._on_commit_told.append(callback)

    def groups(self) -> Iterable[tuple[str, Group]]:
        """Return all consumer groups in this broker's replica of the groups' log."""
        return self._machines.groups()

    def groups_age_ms(self) -> float | None:
        """Return by how many ms the consumer groups' replica may lag; None if unknown."""
        return _age_ms(self._groups_age)

    def _take_image(self, image: MetadataImage) -> None:
        """Publish a metadata image unless the published image is as new or newer."""
        if image.offset <= self._image.offset:
            return
        if self._cluster_age is not None:
            self._cluster_age.note()
        leader_id = self._logs[None].leader_id
        if leader_id is not None:
            for client in self._controllers.values():
                client.note_leader(leader_id)
        self._publish(image)

    def _committed(self, coordinator: int) -> None:
        leader_id = self._logs[coordinator].leader_id
        if leader_id is not None and coordinator in self._leaders:
            self._leaders[coordinator].note_leader(leader_id)
        for callback in self._on_commit_told:
            callback(coordinator)

    # --- who is asked ---------------------------------------------------------------------------

    def leader(self, coordinator: int) -> CoordinatorClient:
        """Return the client of a coordinator partition's leader, created on first use."""
        client = self._leaders.get(coordinator)
        if client is None:
            assert 0 <= coordinator < self._image.coordinator_count, f"coordinator {coordinator}"
            client = self._leaders[coordinator] = CoordinatorClient(
                self._settings.voters,
                partition=coordinator,
                settings=ClientSettings(client_id=self._client_id),
            )
        return client

    async def ask_controller(
        self, request: Request, response: type[R], client: Client | None = None
    ) -> R:
        """Send a request to the active controller, with one connection per type of request."""
        controller = self._controllers.get(type(request))
        if controller is None:
            beats = isinstance(request, BrokerHeartbeatRequest)
            controller = self._controllers[type(request)] = ControllerClient(
                self._settings.voters,
                timeout_ms=2 * HEARTBEAT_TIMEOUT_MS if beats else CALL_TIMEOUT_MS,
                attempt_timeout_ms=HEARTBEAT_TIMEOUT_MS if beats else ATTEMPT_TIMEOUT_MS,
                alone_ms=ALONE_MS if beats else None,
                client_id=self._client_id,
            )
        return await controller.call(request, response, client)

    async def ask_groups(self, request: Request) -> Response | None:
        """Send a request once to the groups' log leader; return None if the outcome is unknown."""
        return await self._groups.call(request)

    async def ask_transactions(self, request: Request) -> Response | Failure:
        """Send a request once to the transaction log's leader; return a response or a Failure."""
        return await self._transactions.call(request)

    def transactions(self) -> tuple[TransactionsImage, Offset]:
        """Return the transactions in this broker's replica, and the replica's offset."""
        machine = self._machines.transaction_machine()
        if machine is None:
            return TransactionsImage(), Offset(0)
        return machine.image, machine.applied.offset


def _age_ms(age: Freshness | None) -> float | None:
    """Return a replica's current maximum age in ms, or None if the age is unknown."""
    return None if age is None else age.age_ms(asyncio.get_running_loop().time())
