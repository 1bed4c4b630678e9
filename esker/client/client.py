"""A small Kafka client for our own commands: it finds brokers and retries passing failures.

    async with KafkaClient(endpoints("127.0.0.1:9092", "--bootstrap-server")) as client:
        leaders = await client.leaders("orders")
        answer = await client.ask(leaders[0], request, response)

It speaks the public protocol, so that `esker produce` works against any Kafka. A machine without
kcat has a client this way, and the tests one that is neither librdkafka nor Java.

Requests that name topics are sent at the last version that does so by name (`most`): what a person
types are names. Connections are kept by (node, purpose): a Fetch that waits must not hold up a
heartbeat behind it.

Source: the Kafka protocol guide; KIP-35 (versions), KIP-516 (topic ids), KIP-699 (coordinators).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Sequence
from difflib import get_close_matches
from typing import Final, Self, TypeVar

from esker.settings.values import Endpoint
from raft.net.errors import NetError, Reason, RequestTimeoutError
from raft.net.rpc import Rpc, open_rpc
from records.kafka_errors import ErrorCode, error_name
from records.rpc.base import Request, Response
from records.rpc.cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataResponse,
)
from records.rpc.descriptions import DescribeBrokersRequest, DescribeBrokersResponse
from records.rpc.groups import ListGroupsRequest, ListGroupsResponse
from records.rpc.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from records.rpc.topics import FindCoordinatorRequest, FindCoordinatorResponse

T = TypeVar("T")
R = TypeVar("R", bound=Response)

CONNECT_MS: Final = 5_000
PAUSE_S: Final = 0.05  # after the first failure; each next one twice as long
PAUSE_MAX_S: Final = 1.0
QUORUM_AWAY_MS: Final = (
    4_000  # without news of the cluster log, of which a broker hears each second
)
SAY_AFTER_S: Final = 3.0  # of asking again in vain; a leader's death takes less

MAX_INT64: Final = 2**63 - 1  # of offsets and timestamps
EARLIEST: Final = -2
LATEST: Final = -1
GROUP: Final = 0  # FindCoordinator's key type
LIST_OFFSETS_VERSION: Final = 8  # later ones add kinds of timestamps that are not asked for

PASSING: Final = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
"""Errors that may be gone when the same is asked again, perhaps of another broker."""


class ClientError(Exception):
    """The cluster could not be reached, or refused; the message is one sentence.

    `code` is Kafka's, 0 if there is none; `passing`: it may be gone when asked again.
    """

    def __init__(self, message: str, code: int = 0, *, passing: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.passing = passing or code in PASSING


class KafkaClient:
    """Connections to the brokers of one cluster. Belongs to the event loop it is used on."""

    def __init__(
        self, bootstrap: Sequence[Endpoint], *, timeout_ms: int = 30_000, client_id: str = "esker"
    ) -> None:
        """Create a client of the brokers in `bootstrap` without opening a connection.

        `on_wait` is called once with each reason for a wait of seconds.

        Args:    timeout_ms: how long one question is asked again before it is given up.
        """
        self.timeout_ms = timeout_ms
        self.on_wait: Callable[[str], None] | None = None
        self._bootstrap = tuple(bootstrap)
        self._client_id = client_id
        self._nodes: dict[int, Endpoint] = {}
        self._connections: dict[tuple[int | Endpoint, str], Rpc] = {}
        self._opening: dict[tuple[int | Endpoint, str], asyncio.Lock] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections, which fails the requests in flight."""
        for rpc in self._connections.values():
            rpc.connection.close()
        self._connections.clear()

    # --- connections

    async def connection(self, node: int | Endpoint, purpose: str = "") -> Rpc:
        """Open or reuse a connection to a node, given by id or address. Raises NetError."""
        key = (node, purpose)
        async with self._opening.setdefault(key, asyncio.Lock()):
            rpc = self._connections.get(key)
            if rpc is None or rpc.connection.closed:
                at = self._nodes.get(node) if isinstance(node, int) else node
                if at is None:
                    raise NetError(Reason.UNRESOLVED, f"no address of broker {node} is known")
                timeout_ms = min(CONNECT_MS, self.timeout_ms)
                rpc = await open_rpc(
                    at.host, at.port, client_id=self._client_id, timeout_ms=timeout_ms
                )
                rpc.timeout_ms = max(self.timeout_ms, timeout_ms)
                self._connections[key] = rpc
            return rpc

    async def ask(
        self,
        node: int | Endpoint,
        request: Request,
        response: type[R],
        *,
        most: int | None = None,
        purpose: str = "",
    ) -> R:
        """Send a request in version `most` or lower; return the response. Raises NetError."""
        rpc = await self.connection(node, purpose)
        version = rpc.version_for(type(request))
        return await rpc.call(request, response, version if most is None else min(version, most))

    async def ask_any(self, request: Request, response: type[R], *, most: int | None = None) -> R:
        """Send a request to each broker in turn until a broker answers. Raises ClientError."""
        failures: dict[str, None] = {}
        unserved: NetError | None = None
        is_silent = False
        for node in self._all_nodes():
            try:
                return await self.ask(node, request, response, most=most)
            except NetError as error:
                failures[error.message] = None
                is_silent = is_silent or isinstance(error, RequestTimeoutError)
                if error.reason is Reason.UNSUPPORTED:
                    unserved = error
        if unserved is not None:
            raise ClientError(f"{unserved.message}: is that address a broker's?")
        reasons = "; ".join(failures)
        passing = bool(self._nodes)
        if is_silent and (away := await self._quorum_away()):
            raise ClientError(f"{away} ({reasons})", passing=passing)
        raise ClientError(f"no broker answers ({reasons}): is one running there?", passing=passing)

    def _all_nodes(self) -> tuple[int | Endpoint, ...]:
        return (*self._nodes, *self._bootstrap)

    async def _quorum_away(self) -> str | None:
        """Return a message if a broker has known no quorum leader for some seconds, else None.

        A broker of Esker knows that without asking the quorum.
        """
        age_ms = -1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_MS / 1_000):
                for node in self._all_nodes() if self._connections else ():
                    with contextlib.suppress(NetError):
                        request = DescribeBrokersRequest()
                        # On a connection of its own: answers come in the order of requests.
                        answer = await self.ask(
                            node, request, DescribeBrokersResponse, purpose="quorum"
                        )
                        age_ms = answer.image_age_ms
                        break
        if age_ms < QUORUM_AWAY_MS:
            return None
        return (
            "the brokers answer, but have heard of no leader of the quorum for "
            f"{age_ms / 1_000:.0f} s: are a majority of its voters running?"
        )

    async def patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Call `attempt` until it succeeds, fails permanently or times out, and return its result.

        Raises ClientError.

        A list where no broker answers is no such way at first: who mistyped an address wants to
        know at once. Once the cluster is known, its brokers are waited for.
        """
        if self.on_wait is None:
            return await self._try_until_timeout(attempt)
        watch = asyncio.get_running_loop().create_task(self._report_quorum_away(self.on_wait))
        try:
            return await self._try_until_timeout(attempt)
        finally:
            watch.cancel()

    async def _report_quorum_away(self, report: Callable[[str], None]) -> None:
        """Call `report` with a message once a broker has not known a quorum leader for a while."""
        await asyncio.sleep(SAY_AFTER_S)
        while (away := await self._quorum_away()) is None:
            await asyncio.sleep(SAY_AFTER_S)
        report(away)

    async def _try_until_timeout(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Call `attempt` with pauses until it succeeds, fails permanently or times out."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        deadline = started + self.timeout_ms / 1_000
        pause_s = PAUSE_S
        said: set[str] = set()
        while True:
            try:
                return await attempt()
            except NetError as error:
                failure = ClientError(error.message)
            except ClientError as error:
                if not error.passing:
                    raise
                failure = error
            now = loop.time()
            if now + pause_s >= deadline:
                if away := await self._quorum_away():
                    raise ClientError(f"{away} ({failure})", failure.code) from failure
                raise failure
            if (
                self.on_wait is not None
                and now - started > SAY_AFTER_S
                and str(failure) not in said
            ):
                said.add(str(failure))
                self.on_wait(str(failure))
            await asyncio.sleep(pause_s)
            pause_s = min(PAUSE_MAX_S, 2 * pause_s)

    # --- what every client asks

    async def metadata(
        self, topics: Sequence[str] | None, *, create: bool = False
    ) -> MetadataResponse:
        """Request brokers and topics (None: all topics) from any broker. Raises ClientError."""
        named = MetadataRequest.MetadataRequestTopic
        request = MetadataRequest(
            topics=None if topics is None else tuple(named(name=name) for name in topics),
            allow_auto_topic_creation=create,
        )
        answer = await self.ask_any(request, MetadataResponse)
        self._nodes = {node.node_id: Endpoint(node.host, node.port) for node in answer.brokers}
        return answer

    async def brokers(self) -> tuple[int, ...]:
        """Return the ids of all unfenced brokers, as a DescribeCluster response lists them.

        Metadata may list fenced brokers too.

        Raises ClientError.
        """
        request = DescribeClusterRequest(include_cluster_authorized_operations=False)
        answer = await self.ask_any(request, DescribeClusterResponse)
        self._nodes |= {node.broker_id: Endpoint(node.host, node.port) for node in answer.brokers}
        return tuple(node.broker_id for node in answer.brokers)

    async def groups(self) -> dict[str, ListGroupsResponse.ListedGroup]:
        """Return all consumer groups of the cluster, sorted by name. Raises ClientError."""

        async def attempt() -> dict[str, ListGroupsResponse.ListedGroup]:
            found = {}
            for node in await self.brokers():
                response = await self.ask(node, ListGroupsRequest(), ListGroupsResponse)
                if response.error_code:
                    name = error_name(response.error_code)
                    raise ClientError(f"broker {node}: {name}", response.error_code)
                found.update({group.group_id: group for group in response.groups})
            return dict(sorted(found.items()))

        return await self.patiently(attempt)  # a dead broker is listed until it is fenced

    async def leaders(self, topic: str, *, create: bool = False) -> dict[int, int]:
        """Return the leader of each partition of a topic, by partition number.

        Raises:  ClientError: there is no such topic (waited for, with `create`), or nobody answers.
        """

        async def attempt() -> dict[int, int]:
            (found,) = (await self.metadata((topic,), create=create)).topics
            codes = {found.error_code, *(one.error_code for one in found.partitions)} - {0}
            if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not create:
                raise ClientError(await self._no_such_topic(topic))
            if codes:
                code = min(codes)
                raise ClientError(f"{topic}: {error_name(code)}", code)
            if not found.partitions:
                raise ClientError(f"{topic} has no partitions yet", 5)
            ordered = sorted(found.partitions, key=lambda one: one.partition_index)
            return {one.partition_index: one.leader_id for one in ordered}

        return await self.patiently(attempt)

    async def _no_such_topic(self, topic: str) -> str:
        known = [one.name or "" for one in (await self.metadata(None)).topics]
        near = get_close_matches(topic, known, 1)
        at = ",".join(map(str, self._bootstrap))
        advice = f"`esker topics create {topic} --bootstrap-server {at}` creates it"
        return f"no such topic: {topic}; {f'there is {near[0]}, or ' if near else ''}{advice}"

    async def offsets(self, topic: str, timestamps: dict[int, int]) -> dict[int, int]:
        """Return each partition's first offset at or after a timestamp, or its start or end offset.

        A partition without such a record gives -1. Raises ClientError.
        """

        async def attempt() -> dict[int, int]:
            leaders = await self.leaders(topic)
            if missing := sorted(set(timestamps) - set(leaders)):
                raise ClientError(no_such_partition(topic, missing[0], leaders))
            asked: dict[int, list[int]] = {}
            for partition in timestamps:
                asked.setdefault(leaders[partition], []).append(partition)
            found: dict[int, int] = {}
            for node, partitions in asked.items():
                request = _list_offsets(topic, {p: timestamps[p] for p in partitions})
                answer = await self.ask(
                    node, request, ListOffsetsResponse, most=LIST_OFFSETS_VERSION
                )
                for one in answer.topics[0].partitions:
                    if one.error_code:
                        name = f"{topic}-{one.partition_index}"
                        raise ClientError(f"{name}: {error_name(one.error_code)}", one.error_code)
                    found[one.partition_index] = one.offset
            return found

        return await self.patiently(attempt)

    async def group_coordinator(self, group: str) -> int:
        """Return the id of a consumer group's coordinator broker. Raises ClientError."""

        async def attempt() -> int:
            request = FindCoordinatorRequest(key_type=GROUP, coordinator_keys=(group,))
            (found,) = (await self.ask_any(request, FindCoordinatorResponse)).coordinators
            if found.error_code:
                name = error_name(found.error_code)
                raise ClientError(f"group {group} has no coordinator: {name}", found.error_code)
            self._nodes[found.node_id] = Endpoint(found.host, found.port)
            return found.node_id

        return await self.patiently(attempt)


def no_such_partition(topic: str, partition: int, partitions: Collection[int]) -> str:
    """Return the error message for a partition that the topic does not have."""
    return f"{topic} has no partition {partition}: its partitions are 0 to {max(partitions)}"


def _list_offsets(topic: str, timestamps: dict[int, int]) -> ListOffsetsRequest:
    asked = ListOffsetsRequest.ListOffsetsTopic
    partitions = tuple(
        asked.ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
        for partition, timestamp in timestamps.items()
    )
    return ListOffsetsRequest(replica_id=-1, topics=(asked(name=topic, partitions=partitions),))
