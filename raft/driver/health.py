"""Decides whether this node is ready, and collects the reasons why it is not.

An open port proves nothing: a leader without a majority has one, too. So every second the node
proves that the quorum works *as seen from here*: a leader by a read barrier of its own on the
cluster log, another node by requesting a linearizable end offset from the leader, which runs the
same barrier. Faults of disks and logs are read from the groups when someone asks, and faults of the
services from the services (`NodeConfig.degradations`).

Source: docs/design/health.md, docs/design/quorum.md#linearizable-reads.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, Protocol

from raft.core.voters import Endpoint
from raft.driver.config import METADATA_GROUP, NodeConfig
from raft.driver.forks import describe_report
from raft.driver.group import GroupDriver
from raft.driver.peers import kind_of
from raft.interfaces import Degradation, NotLeaderError
from raft.net import ClientConnection, NetError, connect
from raft.wire.responses import Group
from records.codec import decode_message, encode_message
from records.errors import RecordError
from records.rpc.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from records.types import NodeId

log = logging.getLogger("raft.driver")

PROBE_INTERVAL_MS: Final = 1_000
PROBE_TIMEOUT_MS: Final = 1_000
HANGS_AFTER_S: Final = 4.0
"""A disk's job of this length is a fault: a flush takes milliseconds."""

LOGGED_AFTER_S: Final = 2.0  # a start or an election is no fault worth a line
LOGGED_EVERY_S: Final = 10.0  # at most one line for each name, while its reason changes

_LIST_OFFSETS: Final = (2, 6)  # api key, and a version that every node of ours serves


class Health(NamedTuple):
    """The content of an answer to `/health`."""

    healthy: bool  # no degradation makes the node unready
    barrier_age_ms: int | None  # since the last successful barrier; None if there was none yet
    leader_id: NodeId | None
    epoch: int
    degradations: tuple[Degradation, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the JSON body of `/health`: the node's state and all current degradations."""
        return self._asdict() | {
            "ready": self.healthy,
            "reasons": [fault.reason for fault in self.degradations if fault.unready],
            "degradations": [fault._asdict() for fault in self.degradations],
        }

    def readiness_as_json(self) -> dict[str, Any]:
        """Return the body of `/health/ready`: whether the node is ready, or else the reasons."""
        reasons = [
            {"name": fault.name, "reason": fault.reason}
            for fault in self.degradations
            if fault.unready
        ]
        return {"ready": self.healthy, "reasons": reasons}


class DegradationLog:
    """Logs each degradation that lasts, once when it begins and once when it is over."""

    def __init__(self, node_id: NodeId) -> None:
        self._node_id = node_id
        self._since: dict[str, float] = {}  # by name: first noticed
        self._logged: dict[str, tuple[float, str]] = {}  # by name: when, and the reason

    def note(self, degradations: Iterable[Degradation], now_s: float) -> None:
        """Log each degradation that has persisted, has ended or has a new reason."""
        present = {degradation.name: degradation.reason for degradation in degradations}
        for name in tuple(self._since):
            if name not in present:
                del self._since[name]
                if self._logged.pop(name, None) is not None:
                    log.info("node=%d degradation=%s over=yes", self._node_id, name)
        for name, reason in present.items():
            since_s = self._since.setdefault(name, now_s)
            logged_at_s, logged_reason = self._logged.get(name, (-math.inf, ""))
            if (
                reason != logged_reason
                and now_s - since_s >= LOGGED_AFTER_S
                and now_s - logged_at_s >= LOGGED_EVERY_S
            ):
                self._logged[name] = (now_s, reason)
                log.warning("node=%d degradation=%s reason=%r", self._node_id, name, reason)


class _Host(Protocol):
    config: NodeConfig
    node_id: NodeId
    groups: dict[Group, GroupDriver]

    def endpoint(self, node_id: NodeId) -> Endpoint | None: ...


class HealthMonitor:
    """Probes the quorum once a second, from `start` to `stop`."""

    def __init__(self, host: _Host) -> None:
        self.watches: list[Callable[[], Iterable[Degradation]]] = []  # e.g. of the node's clock
        self._host = host
        self._succeeded_at: float | None = None
        self._task: asyncio.Task[None] | None = None
        self._connection: ClientConnection | None = None
        self._connected_to: NodeId | None = None
        self._log = DegradationLog(host.node_id)

    def start(self) -> None:
        """Start to check the health of this node periodically."""
        self._task = asyncio.get_running_loop().create_task(self._probe_for_ever())

    def stop(self) -> None:
        """Stop the health checks and close the connection to the leader."""
        if self._task is not None:
            self._task.cancel()
        if self._connection is not None:
            self._connection.close()

    def __call__(self) -> Health:
        """Return this node's health: degradations, and ms since the last linearizable read."""
        group = self._host.groups.get(METADATA_GROUP)
        age_ms = None
        if self._succeeded_at is not None:
            age_ms = int((time.monotonic() - self._succeeded_at) * 1_000)
        leader_id = group.leader_id if group is not None else None
        faults = (
            *self._barrier_faults(age_ms, leader_id),
            *self.faults(),
            *self._host.config.degradations(),
        )
        healthy = not any(fault.unready for fault in faults)
        epoch = group.quorum.epoch if group is not None else 0
        return Health(healthy, age_ms, leader_id, epoch, faults)

    def _barrier_faults(
        self, age_ms: int | None, leader_id: NodeId | None
    ) -> Iterator[Degradation]:
        """Yield a degradation if no linearizable read of the cluster log succeeded lately."""
        window_ms = self._host.config.health_window_ms
        if age_ms is None or age_ms > window_ms:
            leader = "no leader is known" if leader_id is None else f"node {leader_id} leads"
            since = "yet" if age_ms is None else f"for {age_ms} ms"
            text = f"no read barrier of {METADATA_GROUP.name} has succeeded {since}: {leader}"
            yield Degradation("quorum", text)

    def faults(self) -> Iterator[Degradation]:
        """Yield the degradations of this node's own disks and logs."""
        for find in self.watches:
            yield from find()
        for driver in tuple(self._host.groups.values()):
            job_s = driver.disk.job_s
            if job_s >= HANGS_AFTER_S:
                text = f"the disk of {driver.name} has not finished a flush for {job_s:.0f} s"
                yield Degradation("flush", text)
            if driver.doubt is not None:
                yield Degradation("doubt", driver.doubt)
            for report in driver.quorum.reported_forks:
                text = f"{driver.name}: {describe_report(report, driver.quorum)}"
                yield Degradation("fork", text)
            waiting = driver.quorum.recovering_reason
            if waiting is not None:
                yield Degradation("recovering", f"{driver.name}: {waiting}")

    async def _probe_for_ever(self) -> None:
        while True:
            if await self._probe():
                self._succeeded_at = time.monotonic()
            self._log.note(self().degradations, time.monotonic())
            await asyncio.sleep(PROBE_INTERVAL_MS / 1_000)

    async def _probe(self) -> bool:
        group = self._host.groups.get(METADATA_GROUP)
        if group is None:
            return False
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_MS / 1_000):
                if group.leading_epoch is not None:
                    await group.barrier()
                    return True
                leader_id = group.leader_id
                return leader_id is not None and await self._probe_leader(leader_id)
        except (TimeoutError, NotLeaderError, NetError, RecordError, OSError):
            return False

    async def _probe_leader(self, leader_id: NodeId) -> bool:
        """Return whether the leader answers a ListOffsets request.

        Raises NetError, RecordError.
        """
        connection = await self._connect(leader_id)
        if connection is None:
            return False
        topic = ListOffsetsRequest.ListOffsetsTopic
        partition = topic.ListOffsetsPartition(
            partition_index=METADATA_GROUP.partition, timestamp=-1
        )
        request = ListOffsetsRequest(
            replica_id=-1, topics=(topic(name=METADATA_GROUP.topic, partitions=(partition,)),)
        )
        key, version = _LIST_OFFSETS
        answer = await connection.request(
            kind_of(key, version), encode_message(request, version), timeout_ms=PROBE_TIMEOUT_MS
        )
        response = decode_message(ListOffsetsResponse, answer, version)
        errors = [part.error_code for topic in response.topics for part in topic.partitions]
        return errors == [0]

    async def _connect(self, leader_id: NodeId) -> ClientConnection | None:
        if self._connection is not None:
            if not self._connection.closed and self._connected_to == leader_id:
                return self._connection
            self._connection.close()
        endpoint = self._host.endpoint(leader_id)
        if endpoint is None:
            return None
        self._connection = await connect(
            endpoint.host, endpoint.port, client_id="health", timeout_ms=PROBE_TIMEOUT_MS
        )
        self._connected_to = leader_id
        return self._connection
