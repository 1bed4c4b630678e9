"""The transaction log on a node, which leads it or reads its replica.

    JoinedServices([..., TransactionLogNodeService(host, settings, controllers)])   of a voter
    OwnMachines(host, {})                      of an observer: it has a TransactionReplica

Every voter of the quorum has the whole: a state machine of `__transaction_state-0`, decisions if
the node leads it, its requests on the listener, timers for timeouts and expiry, and clients of all
that markers go to. A broker observes the log and needs the state alone, to prove batches.

Source: docs/design/transactions.md.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final
from uuid import UUID

from coordinator.batch.client import ClientSettings, CoordinatorClient
from coordinator.controller.image import MetadataImage
from coordinator.controller.placement import unfenced_brokers
from coordinator.errors import CoordinatorError
from coordinator.groups.client import GroupLogClient
from coordinator.leader_client import Address
from coordinator.transactions.leader import TransactionLog
from coordinator.transactions.machine import TransactionMachine
from coordinator.transactions.markers import (
    GROUP_LOG,
    Answered,
    MarkerDelivery,
    Row,
    coordinator_request,
)
from coordinator.transactions.service import transaction_log_handlers
from coordinator.transactions.settings import TransactionSettings
from raft.driver.node_services import ServiceHost
from raft.interfaces import ReplicatedLog
from raft.net.handlers import Served
from records.internal_topics import TRANSACTION_STATE
from records.kafka_errors import ErrorCode
from records.rpc import group_log

log: Final = logging.getLogger("coordinator.transactions")

ATTEMPT_TIMEOUT_MS: Final = 5_000  # of one request with markers; it is repeated for ever

Listen = Callable[[Callable[[MetadataImage], None]], None]
"""Calls a function with the present image of the cluster, and with every later image."""


class ClusterPlaces:
    """The part of the cluster log that transactions need: brokers, and homes of partitions."""

    def __init__(self) -> None:
        self.image = MetadataImage()
        self.on_change: Callable[[], None] = lambda: None

    def on_image(self, image: MetadataImage) -> None:
        """Store a cluster image, unless the stored image is newer."""
        if image.offset > self.image.offset:
            self.image = image
            self.on_change()

    def brokers(self) -> tuple[int, ...] | None:
        """Return the ids of the unfenced brokers, or None before the first cluster image."""
        if not self.image.offset:
            return None
        return tuple(broker.broker_id for broker in unfenced_brokers(self.image))

    def broker_epochs(self) -> Mapping[int, int]:
        """Return the epochs of the registered brokers, fenced or not."""
        return {broker_id: broker.broker_epoch for broker_id, broker in self.image.brokers.items()}

    def coordinator(self, topic_id: UUID, partition: int) -> int | None:
        """Return the batch coordinator of a partition, or None if the image lacks the partition."""
        topic = self.image.topics.get(topic_id)
        if topic is None or partition not in topic.partitions:
            return None
        return int(topic.coordinator(partition))

    def offset(self) -> int:
        """Return the exclusive end offset of the cluster image."""
        return self.image.offset


class TransactionReplica:
    """The transactions as a replica of their log has them, a service of a node.

    Source: `raft.driver.node_services.NodeService`.
    """

    def __init__(self, host: ServiceHost) -> None:
        self.handlers: Mapping[int, Served] = {}
        self.machine: TransactionMachine | None = None
        self._host = host

    def begin(self, log: ReplicatedLog, topic: str, partition: int, directory: Path) -> None:  # noqa: ARG002
        """Create and host the state machine of the transaction log when the log starts."""
        if (topic, partition) == (TRANSACTION_STATE, 0):
            self.machine = TransactionMachine()
            self._host.host(log, self.machine)
            self._begun(log, self.machine)

    def _begun(self, log: ReplicatedLog, machine: TransactionMachine) -> None:
        """Do nothing when the log starts, because a plain replica never leads the log."""

    async def end(self, topic: str, partition: int) -> None:
        """Drop the state machine of the transactions when their log ends."""
        if (topic, partition) == (TRANSACTION_STATE, 0):
            self.machine = None


class MarkerClients:
    """Sends markers to the leaders of batch coordinators and of the group log, once each."""

    def __init__(
        self, voters: Iterable[Address], client_id: str, coordinator_epoch: Callable[[], int]
    ) -> None:
        self._voters = list(voters)
        self._client_id = client_id
        self._coordinator_epoch = coordinator_epoch
        self._coordinators: dict[int, CoordinatorClient] = {}
        self._groups: GroupLogClient | None = None
        self._calls: set[asyncio.Task[None]] = set()

    def send(self, destination: int, rows: Sequence[Row], answered: Answered) -> None:
        """Send markers to a destination, and call `answered` with the outcome."""
        call = asyncio.get_running_loop().create_task(self._send(destination, rows, answered))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _send(self, destination: int, rows: Sequence[Row], answered: Answered) -> None:
        try:
            if destination == GROUP_LOG:
                codes = await self._to_groups(rows)
            else:
                codes = await self._to_coordinator(destination, rows)
        except CoordinatorError as error:
            log.info("destination=%d markers=%d reason=%r", destination, len(rows), str(error))
            codes = None
        answered(codes)

    async def _to_coordinator(self, destination: int, rows: Sequence[Row]) -> Sequence[int] | None:
        client = self._coordinators.get(destination)
        if client is None:
            client = self._coordinators[destination] = CoordinatorClient(
                self._voters,
                partition=destination,
                settings=ClientSettings(timeout_ms=ATTEMPT_TIMEOUT_MS, client_id=self._client_id),
            )
        response = await client.call(
            coordinator_request(destination, rows, self._coordinator_epoch())
        )
        if response.error_code:
            log.info("coordinator=%d markers refused=%d", destination, response.error_code)
            return None
        return response.marker_error_codes

    async def _to_groups(self, rows: Sequence[Row]) -> Sequence[int] | None:
        if self._groups is None:
            self._groups = GroupLogClient(
                self._voters, client_id=self._client_id, attempt_timeout_ms=ATTEMPT_TIMEOUT_MS
            )
        response = await self._groups.call(
            group_log.WriteGroupMarkersRequest(
                producer_ids=tuple(row.producer_id for row in rows),
                transaction_numbers=tuple(row.number for row in rows),
                committed=tuple(row.is_committed for row in rows),
            )
        )
        is_done = (
            isinstance(response, group_log.WriteGroupMarkersResponse) and not response.error_code
        )
        return [int(ErrorCode.NONE)] * len(rows) if is_done else None

    async def close(self) -> None:
        """Close all clients; calls in flight end with an error."""
        for call in self._calls:
            call.cancel()
        for client in self._coordinators.values():
            await client.close()
        if self._groups is not None:
            self._groups.close()


class TransactionLogNodeService(TransactionReplica):
    """The transaction log on a voter, which decides where it leads and answers brokers."""

    def __init__(
        self,
        host: ServiceHost,
        settings: TransactionSettings,
        listen: Listen,
        voters: Iterable[Address],
    ) -> None:
        """Prepare to host the transaction log on a voter.

        Args:  listen: to this node's replica of the cluster log; called when the log begins.
               voters: addresses of the quorum's voters, for clients of the other logs' leaders.
        """
        super().__init__(host)
        self.handlers = transaction_log_handlers(lambda: self.log)
        self.log: TransactionLog | None = None
        self._settings = settings
        self._listen = listen
        self._voters = list(voters)
        self._places: ClusterPlaces | None = None
        self._clients: MarkerClients | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def _begun(self, log: ReplicatedLog, machine: TransactionMachine) -> None:
        if self._places is None:  # a listener cannot be removed, so this is done once
            self._places = ClusterPlaces()
            self._listen(self._places.on_image)
        places = self._places
        clients = self._clients = MarkerClients(
            self._voters, f"transactions-{self._host.node_id}", lambda: log.leading_epoch or 0
        )
        transactions = self.log = TransactionLog(
            log,
            machine,
            self._settings,
            call_soon=self._host.call_soon,
            wall_ms=lambda: time.time_ns() // 1_000_000,
            brokers=places.brokers,
            broker_epochs=places.broker_epochs,
            make_delivery=lambda complete: MarkerDelivery(
                places,
                send=clients.send,
                call_later=lambda ms, call: self._host.call_later(ms / 1_000, call),
                complete=complete,
            ),
        )
        places.on_change = transactions.delivery.places_changed
        log.watch(transactions)
        self._repeat("abort", self._settings.abort_interval_ms, transactions.abort_timed_out)
        self._repeat("expire", self._settings.expiry_interval_ms, transactions.remove_expired)

    def _repeat(self, name: str, interval_ms: int, act: Callable[[], None]) -> None:
        """Call `act`, which expires transactions, at each interval until their log ends."""

        def run() -> None:
            act()
            self._repeat(name, interval_ms, act)

        self._timers[name] = self._host.call_later(interval_ms / 1_000, run)

    async def end(self, topic: str, partition: int) -> None:
        """Stop timers and clients, and drop the state, when the transaction log ends."""
        await super().end(topic, partition)
        if self.machine is not None:
            return
        self.log = None
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self._places is not None:
            self._places.on_change = lambda: None
        if self._clients is not None:
            await self._clients.close()
            self._clients = None
