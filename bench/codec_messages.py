"""The RPCs that `bench.bench_codec` encodes and decodes: small ones, many-partitioned ones, 1 MiB.

Records are random bytes: a codec hands them through, and nothing of it may depend on what they are.
"""

from __future__ import annotations

import os
from uuid import UUID

from records.rpc.cluster import MetadataResponse
from records.rpc.fetch import FetchRequest, FetchResponse
from records.rpc.produce import ProduceRequest, ProduceResponse
from records.rpc.quorum import VoteRequest
from records.schema import Message


def rpc_messages() -> list[tuple[str, Message, int]]:
    """Return Kafka messages to measure, each with a title and the version to encode with."""
    return [
        ("Produce request 1 x 1 KiB", _produce(1, 1024), 9),
        ("Produce request 10 x 1 KiB", _produce(10, 1024), 9),
        ("Produce request 1 x 1 MiB", _produce(1, 2**20), 9),
        ("Produce response 10", _produced(10), 9),
        ("Fetch request 10", _fetch(10), 12),
        ("Fetch response 10 x 1 KiB", _fetched(10, 1024), 12),
        ("Fetch response 1 x 1 MiB", _fetched(1, 2**20), 12),
        ("Metadata response 10 x 10", _metadata(10, 10), 12),
        ("Vote request", _vote(), 2),
    ]


def _produce(partitions: int, size: int) -> ProduceRequest:
    topic = ProduceRequest.TopicProduceData
    data = tuple(
        topic.PartitionProduceData(index=index, records=os.urandom(size))
        for index in range(partitions)
    )
    topics = (topic(name="orders", partition_data=data),)
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topics)


def _produced(partitions: int) -> ProduceResponse:
    topic = ProduceResponse.TopicProduceResponse
    answers = tuple(
        topic.PartitionProduceResponse(index=index, base_offset=10**9)
        for index in range(partitions)
    )
    return ProduceResponse(responses=(topic(name="orders", partition_responses=answers),))


def _fetch(partitions: int) -> FetchRequest:
    topic = FetchRequest.FetchTopic
    asked = tuple(
        topic.FetchPartition(partition=index, fetch_offset=10**9, partition_max_bytes=2**20)
        for index in range(partitions)
    )
    topics = (topic(topic="orders", partitions=asked),)
    return FetchRequest(max_wait_ms=500, min_bytes=1, topics=topics)


def _fetched(partitions: int, size: int) -> FetchResponse:
    topic = FetchResponse.FetchableTopicResponse
    data = tuple(
        topic.PartitionData(
            partition_index=index,
            high_watermark=10**6,
            last_stable_offset=10**6,
            log_start_offset=0,
            aborted_transactions=None,
            records=os.urandom(size),
        )
        for index in range(partitions)
    )
    return FetchResponse(responses=(topic(topic="orders", partitions=data),))


def _metadata(topics: int, partitions: int) -> MetadataResponse:
    topic = MetadataResponse.MetadataResponseTopic
    described = tuple(
        topic.MetadataResponsePartition(
            partition_index=index,
            leader_id=1,
            leader_epoch=5,
            replica_nodes=(1, 2, 3),
            isr_nodes=(1, 2, 3),
        )
        for index in range(partitions)
    )
    return MetadataResponse(
        brokers=tuple(
            MetadataResponse.MetadataResponseBroker(
                node_id=broker, host=f"broker-{broker}.example", port=9092
            )
            for broker in range(3)
        ),
        topics=tuple(
            topic(name=f"topic-{number}", topic_id=UUID(int=number + 1), partitions=described)
            for number in range(topics)
        ),
    )


def _vote() -> VoteRequest:
    topic = VoteRequest.TopicData
    partition = topic.PartitionData(
        partition_index=0, replica_epoch=7, replica_id=1, last_offset_epoch=6, last_offset=10**6
    )
    topics = (topic(topic_name="__cluster_metadata", partitions=(partition,)),)
    return VoteRequest(cluster_id="4L6g3nShT-eMCtK--X86sw", topics=topics)
