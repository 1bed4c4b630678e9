"""Decides whether this node is healthy: whether a read barrier succeeded within the last seconds.

An open port proves nothing: a leader without a majority has one, too. So every second the node
proves that the quorum works *as seen from here*: a leader by a read barrier of its own on the
cluster log, another node by requesting a linearizable end offset from the leader, which runs the
same barrier.

Source: docs/design/quorum.md#linearizable-reads, docs/design/running.md#commands.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from raft.core.voters import Endpoint
from raft.driver.config import METADATA_GROUP, NodeConfig
from raft.driver.forks import describe_report
from raft.driver.group import GroupDriver
from raft.driver.peers import kind_of
from raft.interfaces import NotLeaderError
from raft.net import ClientConnection, NetError, connect
from raft.wire.responses import Group
from records.codec import decode_message, encode_message
from records.errors import RecordError
from records.rpc.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from records.types import NodeId

PROBE_INTERVAL_MS: Final = 1_000
PROBE_TIMEOUT_MS: Final = 1_000
_LIST_OFFSETS: Final = (2, 6)  # api key, and a version that every node of ours serves


class Health(NamedTuple):
    """The content of an answer to `/health`."""

    healthy: bool
    barrier_age_ms: int | None  # since the last successful barrier; None if there was none yet
    leader_id: NodeId | None
    epoch: int
    reasons: tuple[str, ...] = ()  # why it is not healthy, where more is known than the barrier


class _Host(Protocol):
    config: NodeConfig
    node_id: NodeId
    groups: dict[Group, GroupDriver]

    def endpoint(self, node_id: NodeId) -> Endpoint | None: ...


def fork_reasons(groups: Iterable[GroupDriver]) -> tuple[str, ...]:
    """Return a sentence for each group in doubt, and each replica that reported a fork to us."""
    reasons = []
    for group in groups:
        if group.doubt is not None:
            reasons.append(group.doubt)
        for report in group.quorum.reported_forks:
            reasons.append(f"{group.name}: {describe_report(report, group.quorum)}")
    return tuple(reasons)


class HealthMonitor:
    """Probes the quorum once a second, from `start` to `stop`."""

    def __init__(self, host: _Host) -> None:
        self._host = host
        self._succeeded_at: float | None = None
        self._task: asyncio.Task[None] | None = None
        self._connection: ClientConnection | None = None
        self._connected_to: NodeId | None = None

    def start(self) -> None:
        """Start to probe the health of this node periodically."""
        self._task = asyncio.get_running_loop().create_task(self._probe_for_ever())

    def stop(self) -> None:
        """Stop the health probes and close the connection to the leader."""
        if self._task is not None:
            self._task.cancel()
        if self._connection is not None:
            self._connection.close()

    def __call__(self) -> Health:
        """Return this node's health as of the last probe."""
        group = self._host.groups.get(METADATA_GROUP)
        age_ms = None
        if self._succeeded_at is not None:
            age_ms = int((time.monotonic() - self._succeeded_at) * 1_000)
        config = self._host.config
        reasons = fork_reasons(self._host.groups.values())
        fresh = age_ms is not None and age_ms <= config.health_window_ms
        healthy = fresh and config.healthy() and not reasons
        leader_id = group.leader_id if group is not None else None
        epoch = group.quorum.epoch if group is not None else 0
        return Health(healthy, age_ms, leader_id, epoch, reasons)

    async def _probe_for_ever(self) -> None:
        while True:
            if await self._probe():
                self._succeeded_at = time.monotonic()
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
