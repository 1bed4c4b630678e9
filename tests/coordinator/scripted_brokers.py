"""Members and topics of a running quorum, for scripts that commit objects without being brokers.

    epochs = await register(addresses, 1, 2)
    topic_id = await create_topic(addresses, "orders", partitions=2)

A batch coordinator grants leases to registered brokers only, and a topic that the controller does
not know is deleted by the next one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

from coordinator.controller.client import ControllerClient
from coordinator.leader_client import Address
from records.kafka_errors import ErrorCode
from records.rpc.brokers import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationResponse,
)
from records.rpc.cluster import DescribeClusterRequest, DescribeClusterResponse
from records.rpc.descriptions import DescribeTopicsRequest, DescribeTopicsResponse
from records.rpc.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsResponse,
)
from tests.coordinator.controller.world import creation, registration


@asynccontextmanager
async def _controller(addresses: Sequence[Address]) -> AsyncIterator[ControllerClient]:
    client = ControllerClient(addresses)
    try:
        yield client
    finally:
        await client.close()


async def register(addresses: Sequence[Address], *broker_ids: int) -> dict[int, int]:
    """Register brokers, unfenced until their session ends; return the epoch of each."""
    epochs = {}
    async with _controller(addresses) as client:
        cluster = await client.call(
            DescribeClusterRequest(include_cluster_authorized_operations=False, endpoint_type=2),
            DescribeClusterResponse,
        )
        for broker_id in broker_ids:
            request = registration(broker_id, cluster_id=cluster.cluster_id)
            registered = await client.call(request, BrokerRegistrationResponse)
            assert not registered.error_code, registered
            epoch = epochs[broker_id] = registered.broker_epoch
            beat = BrokerHeartbeatRequest(
                broker_id=broker_id,
                broker_epoch=epoch,
                current_metadata_offset=epoch,
                want_fence=False,
                want_shut_down=False,
            )
            answer = await client.call(beat, BrokerHeartbeatResponse)
            assert (answer.error_code, answer.is_fenced) == (0, False), answer
    return epochs


async def create_topic(addresses: Sequence[Address], name: str, *, partitions: int) -> UUID:
    """Create a topic, or grow it if it has fewer partitions; return its id."""
    async with _controller(addresses) as client:
        created = await client.call(creation(name, partitions), CreateTopicsResponse)
        (topic,) = created.topics
        if topic.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
            more = CreatePartitionsRequest.CreatePartitionsTopic(
                name=name, count=partitions, assignments=None
            )
            grown = await client.call(
                CreatePartitionsRequest(topics=(more,), timeout_ms=30_000, validate_only=False),
                CreatePartitionsResponse,
            )
            code = grown.results[0].error_code  # INVALID_PARTITIONS: it has as many, or more
            assert code in (ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS), grown
            asked = DescribeTopicsRequest(topic_names=(name,))
            described = await client.call(asked, DescribeTopicsResponse)
            return described.topics[0].topic_id
        assert not topic.error_code, topic
        return topic.topic_id
