"""Requests of the command line to a running quorum.

Any controller of the bootstrap list will do: it names the others (DescribeCluster) and, for a
question that only a leader answers, the leader. Nothing is cached; an election in mid-question is
asked again a few times.

Source: KIP-919 (controllers as bootstrap servers), KIP-595 and KIP-836 (DescribeQuorum).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from esker.client.client import ClientError, KafkaClient
from esker.settings.values import Endpoint
from raft.net.errors import NetError
from raft.net.rpc import Rpc, open_rpc
from records.kafka_errors import ErrorCode, error_name
from records.rpc.cluster import DescribeClusterRequest, DescribeClusterResponse
from records.rpc.quorum import DescribeQuorumRequest, DescribeQuorumResponse

T = TypeVar("T")

CONTROLLERS: Final = 2  # DescribeCluster's endpoint type
_ATTEMPTS: Final = 20
_PAUSE_S: Final = 0.25

PartitionData = DescribeQuorumResponse.TopicData.PartitionData


class AdminError(Exception):
    """The quorum could not be reached, or refused; the message names the next step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumDescription:
    """The leader's description of a group, and the cluster it belongs to."""

    cluster_id: str
    partition: PartitionData
    nodes: dict[int, tuple[Endpoint, ...]]  # the voters' endpoints, by node id


async def describe_quorum(
    bootstrap: tuple[Endpoint, ...], topic: str, partition: int, *, timeout_ms: int
) -> QuorumDescription:
    """Request the description of a partition's replicas from the partition's leader.

    Raises:  AdminError if no controller answers, or none leads within a few seconds.
    """
    request = _question(topic, partition)
    unheard = "no node leads"
    for attempt in range(_ATTEMPTS):
        if attempt:
            await asyncio.sleep(_PAUSE_S)
        cluster = await ask_first(bootstrap, timeout_ms)
        for endpoint in controllers(cluster):
            try:
                async with await open_rpc(
                    endpoint.host, endpoint.port, timeout_ms=timeout_ms
                ) as rpc:
                    answer = await rpc.call(request, DescribeQuorumResponse)
            except NetError as error:
                unheard = str(error)
                continue
            error_code, found = _understood(answer, cluster.cluster_id)
            if found is not None:
                return found
            if error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
                raise AdminError(_refusal(topic, partition, error_code))
    raise AdminError(
        f"{topic}-{partition} has no leader that answers ({unheard}): "
        "are a majority of the voters running?"
    )


async def describe_quorum_by_broker(
    bootstrap: tuple[Endpoint, ...], topic: str, partition: int, *, timeout_ms: int
) -> QuorumDescription:
    """Request the description of a partition's replicas from a broker. Raises AdminError."""
    async with KafkaClient(bootstrap, timeout_ms=timeout_ms) as client:

        async def attempt() -> QuorumDescription:
            cluster = await client.ask_any(
                DescribeClusterRequest(include_cluster_authorized_operations=False),
                DescribeClusterResponse,
            )
            answer = await client.ask_any(_question(topic, partition), DescribeQuorumResponse)
            error_code, found = _understood(answer, cluster.cluster_id)
            if found is None:
                passing = error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
                message = _refusal(topic, partition, error_code)
                if error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    message = (
                        f"a broker tells of __cluster_metadata-0 only, not of {topic}-{partition}: "
                        "ask with --bootstrap-controller"
                    )
                raise ClientError(message, passing=passing)
            return found

        try:
            return await client.patiently(attempt)
        except ClientError as error:
            raise AdminError(str(error)) from error


def _refusal(topic: str, partition: int, error_code: int) -> str:
    if error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return f"the quorum has no log {topic}-{partition}"
    return f"{topic}-{partition}: the quorum answers {error_name(error_code)}"


def _question(topic: str, partition: int) -> DescribeQuorumRequest:
    asked = DescribeQuorumRequest.TopicData
    partitions = (asked.PartitionData(partition_index=partition),)
    return DescribeQuorumRequest(topics=(asked(topic_name=topic, partitions=partitions),))


def _understood(
    answer: DescribeQuorumResponse, cluster_id: str
) -> tuple[int, QuorumDescription | None]:
    """Return a DescribeQuorum response's error code, or 0 with the described replicas."""
    found = answer.topics[0].partitions[0] if answer.topics else None
    error_code = answer.error_code or (found.error_code if found else 0)
    if found is None or error_code:
        return error_code, None
    nodes = {
        node.node_id: tuple(Endpoint(at.host, at.port) for at in node.listeners)
        for node in answer.nodes
    }
    return 0, QuorumDescription(cluster_id=cluster_id, partition=found, nodes=nodes)


async def _describe_cluster(rpc: Rpc) -> DescribeClusterResponse:
    return await rpc.call(
        DescribeClusterRequest(
            include_cluster_authorized_operations=False, endpoint_type=CONTROLLERS
        ),
        DescribeClusterResponse,
    )


async def ask_first(bootstrap: tuple[Endpoint, ...], timeout_ms: int) -> DescribeClusterResponse:
    """Request the cluster's description from the first reachable controller. Raises AdminError."""
    return await _first_answer(bootstrap, _describe_cluster, timeout_ms)


def controllers(cluster: DescribeClusterResponse) -> list[Endpoint]:
    """Return the addresses of the controllers, beginning with the presumed leader."""
    ordered = sorted(cluster.brokers, key=lambda node: node.broker_id != cluster.controller_id)
    return [Endpoint(node.host, node.port) for node in ordered]


async def _first_answer(
    bootstrap: tuple[Endpoint, ...], ask: Callable[[Rpc], Awaitable[T]], timeout_ms: int
) -> T:
    """Call `ask` on the first controller that can be reached, and return the response."""
    failures = []
    for endpoint in bootstrap:
        try:
            async with await open_rpc(endpoint.host, endpoint.port, timeout_ms=timeout_ms) as rpc:
                return await ask(rpc)
        except NetError as error:
            failures.append(error.message)
    raise AdminError(f"no controller answers ({'; '.join(failures)}): is a node running there?")
