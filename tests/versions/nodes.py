"""A cluster in this process, to be asked everything: a node with both roles, and a second voter.

    async with Nodes(directory) as nodes:
        answer = await nodes.ask(LEADER, MetadataRequest(topics=None), 12)

Whole nodes as `esker start` runs them, on one loop: what would end a process ends its node here,
and is told of as `nodes.faults`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from esker.server.process import run_node
from esker.server.storage import format_storage
from esker.settings.config import NodeSettings, parse_config
from raft.net import NetError, connect
from raft.net.client import ClientConnection
from raft.net.rpc import request_kind
from records.codec import decode_message, encode_message
from records.rpc import API
from records.rpc.base import Request, Response
from records.rpc.cluster import ApiVersionsRequest, ApiVersionsResponse
from records.rpc.descriptions import DescribeBrokersRequest
from records.rpc.quorum import DescribeQuorumRequest, DescribeQuorumResponse
from tests.ports import free_ports
from tests.versions.judge import objection
from tests.waiting import DEADLINE_S, Deadline, wait_until_async

BROKER, LEADER, FOLLOWER = "broker", "leader", "follower"
LISTENERS: Final = (BROKER, LEADER, FOLLOWER)
CLUSTER_ID: Final = "QFqbzYkRRZ-Rf2EQpZ0lNQ"
BROKER_ID: Final = 1  # and a voter; the other voter is 2
ANSWER_MS: Final = 60_000

QUICK: Final = {
    "esker.bench.log.enable": "true",
    "diskless.append.commit.interval.ms": "1",
    "group.initial.rebalance.delay.ms": "0",
    "controller.quorum.election.timeout.ms": "200",
    # Both nodes and everybody who asks share a loop, on a machine that others use.
    "controller.quorum.fetch.timeout.ms": "30000",
    "broker.session.timeout.ms": "60000",
}


class MisreadError(Exception):
    """An answer that we read in one way, and others in another."""


class Nodes:
    """See the module."""

    def __init__(self, home: Path) -> None:
        self.faults: list[str] = []
        self.ports: dict[str, int] = {}  # by listener
        self.leader_epoch = -1
        self._connections: dict[str, ClientConnection] = {}
        first, second, self._broker_port = free_ports(3)
        self._controllers = {1: first, 2: second}
        self._settings = [self._of(home, node) for node in self._controllers]
        self._stops = [asyncio.Event() for _ in self._settings]
        self._running: list[asyncio.Task[None]] = []

    def _of(self, home: Path, node: int) -> NodeSettings:
        both = node == BROKER_ID
        places = [f"CONTROLLER://127.0.0.1:{self._controllers[node]}"]
        if both:
            places.append(f"PLAINTEXT://127.0.0.1:{self._broker_port}")
        voters = [f"{one}@127.0.0.1:{port}" for one, port in self._controllers.items()]
        settings = {
            "process.roles": "broker,controller" if both else "controller",
            "node.id": str(node),
            "controller.quorum.voters": ",".join(voters),
            "controller.listener.names": "CONTROLLER",
            "listeners": ",".join(places),
            "log.dirs": str(home / str(node)),
            "esker.storage.directory.path": str(home / "objects"),
        }
        return parse_config(settings | QUICK)

    async def __aenter__(self) -> Self:
        """Begin both and wait until there is a leader and the broker is served."""
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: self.faults.append(repr(context.get("exception") or context))
        )
        for settings, stop in zip(self._settings, self._stops, strict=True):
            format_storage(settings, CLUSTER_ID)
            task = asyncio.create_task(run_node(settings, stop))
            self._running.append(task)
        async with asyncio.timeout(DEADLINE_S):
            leader = await self._leader()
            self.ports = {
                BROKER: self._broker_port,
                LEADER: self._controllers[leader],
                FOLLOWER: self._controllers[3 - leader],
            }
            await wait_until_async(self._is_served, "the broker is served")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for connection in self._connections.values():
            connection.close()
        for stop, task in zip(self._stops, self._running, strict=True):
            stop.set()  # the broker's first, which says farewell to a quorum that is there
            await asyncio.wait((task,))

    async def _leader(self) -> int:
        topic = DescribeQuorumRequest.TopicData
        partition = topic.PartitionData(partition_index=0)
        request = DescribeQuorumRequest(
            topics=(topic(topic_name="__cluster_metadata", partitions=(partition,)),)
        )
        deadline = Deadline("a controller leads")
        while True:
            for port in self._controllers.values():
                try:
                    connection = await connect("127.0.0.1", port)
                except NetError:
                    continue
                answer = await exchange(connection, request, 2)
                connection.close()
                assert isinstance(answer, DescribeQuorumResponse)
                found = answer.topics[0].partitions[0]
                if not found.error_code and found.leader_id in self._controllers:
                    self.leader_epoch = found.leader_epoch
                    return found.leader_id
            await asyncio.sleep(deadline.pause_s())

    async def _is_served(self) -> bool:
        """Is the broker a member that clients are sent to?"""
        assert not self.dead(), self.dead()
        found = await self.ask(LEADER, DescribeBrokersRequest(), 0)
        return [one.is_fenced for one in found.brokers] == [False]

    def dead(self) -> str:
        """What ended a node, or would have; empty while all live."""
        ended = [repr(one.exception()) for one in self._running if one.done()]
        return "; ".join((*ended, *self.faults))

    async def ask(self, listener: str, request: Request, version: int) -> Any:
        """The answer, over a connection that is kept.

        Raises:  NetError if there is none; RecordError, MisreadError.
        """
        if listener not in self._connections:
            self._connections[listener] = await connect("127.0.0.1", self.ports[listener])
        connection = self._connections[listener]
        try:
            return await exchange(connection, request, version)
        except NetError:
            connection.close()
            del self._connections[listener]
            raise

    def forget(self, listener: str) -> None:
        """Close the connection that is kept: a request on it has no answer yet."""
        if listener in self._connections:
            self._connections.pop(listener).close()

    async def announced(self, listener: str) -> dict[int, range]:
        """Versions by api key, as ApiVersions says."""
        answer: ApiVersionsResponse = await self.ask(listener, ApiVersionsRequest(), 0)
        return {one.api_key: range(one.min_version, one.max_version + 1) for one in answer.api_keys}


async def exchange(connection: ClientConnection, request: Request, version: int) -> Response:
    """An answer that we and kio read. Raises NetError, RecordError, MisreadError."""
    kind = request_kind(type(request), version)
    body = encode_message(request, version)
    answer = await connection.request(kind, body, timeout_ms=ANSWER_MS)
    response: type[Response] = API[kind.api_key].response
    decoded: Response = decode_message(response, answer, version)
    if against := objection(response, decoded, bytes(answer), version):
        raise MisreadError(against)
    return decoded
