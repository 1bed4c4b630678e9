"""Administrative requests forwarded by any broker. KIP-590, KIP-584, KIP-836."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from diskless.apis import forwarded
from diskless.apis.metadata import ClientView, describe
from raft.net.handlers import Served
from records.rpc.base import Request
from records.rpc.batch_coordinator import ApplyRetentionRequest, ApplyRetentionResponse
from records.rpc.brokers import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from records.rpc.cluster import MetadataRequest
from records.rpc.descriptions import (
    DescribeBrokersRequest,
    DescribeBrokersResponse,
    DescribeTopicsRequest,
    DescribeTopicsResponse,
)
from records.rpc.objects import (
    DescribeDisklessObjectRequest,
    DescribeDisklessObjectResponse,
    DescribeDisklessTopicsRequest,
    DescribeDisklessTopicsResponse,
)
from records.rpc.quorum import DescribeQuorumRequest, DescribeQuorumResponse, ReplicaState
from tests.diskless.calling import call
from tests.diskless.cluster_world import ClusterWorld
from tests.diskless.stored import Stored, batch
from tests.diskless.virtual_time import run

Story = Callable[[ClusterWorld, dict[int, Served]], Awaitable[None]]

_Update = UpdateFeaturesRequest.FeatureUpdateKey
_Topic = DescribeQuorumRequest.TopicData


def tell(story: Story) -> None:
    async def told() -> None:
        async with ClusterWorld(brokers=(1, 2), coordinators=2) as world:
            await story(world, forwarded.handlers(world.cluster(1)))

    run(told)


def quorum(topic: str = "__cluster_metadata", *partitions: int) -> DescribeQuorumRequest:
    return DescribeQuorumRequest(
        topics=(
            _Topic(
                topic_name=topic,
                partitions=tuple(
                    _Topic.PartitionData(partition_index=index) for index in partitions or (0,)
                ),
            ),
        )
    )


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_broker_answers_describe_quorum_in_the_version_of_the_request(version: int) -> None:
    answered = DescribeQuorumResponse.TopicData
    voter = ReplicaState(replica_id=101, replica_directory_id=UUID(int=7), log_end_offset=9)
    node = DescribeQuorumResponse.Node

    async def story(world: ClusterWorld, handlers: dict[int, Served]) -> None:
        async def controller(request: Request, response: type[Any]) -> Any:
            assert (request, response) == (quorum(), DescribeQuorumResponse)
            return DescribeQuorumResponse(
                topics=(
                    answered(
                        topic_name="__cluster_metadata",
                        partitions=(
                            answered.PartitionData(
                                partition_index=0,
                                leader_id=101,
                                leader_epoch=3,
                                high_watermark=9,
                                current_voters=(voter,),
                                observers=(voter,),
                            ),
                        ),
                    ),
                ),
                nodes=(node(node_id=101, listeners=()),),
            )

        world.cluster(1).ask_controller = controller  # type: ignore[method-assign]
        answer = await call(handlers, quorum(), DescribeQuorumResponse, version)
        partition = answer.topics[0].partitions[0]
        assert (partition.leader_id, partition.current_voters[0].replica_id) == (101, 101)
        directory = partition.observers[0].replica_directory_id
        assert (directory.int, len(answer.nodes)) == ((7, 1) if version >= 2 else (0, 0))

    tell(story)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_broker_refuses_describe_quorum_of_a_log_other_than_the_cluster_log(version: int) -> None:
    async def story(world: ClusterWorld, handlers: dict[int, Served]) -> None:
        for asked in (quorum("__diskless-metadata", 1), quorum("__cluster_metadata", 0, 1)):
            answer = await call(handlers, asked, DescribeQuorumResponse, version)
            assert {p.error_code for p in answer.topics[0].partitions} == {3}
        empty = DescribeQuorumRequest(topics=())
        assert (await call(handlers, empty, DescribeQuorumResponse, version)).topics == ()
        assert world.image.brokers

    tell(story)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_broker_forwards_update_features_in_every_version(version: int) -> None:
    async def story(world: ClusterWorld, handlers: dict[int, Served]) -> None:
        down = _Update(feature="metadata.version", max_version_level=26, upgrade_type=2)
        if version == 0:
            down = _Update(feature="metadata.version", max_version_level=26, allow_downgrade=True)
        request = UpdateFeaturesRequest(feature_updates=(down,))
        answer = await call(handlers, request, UpdateFeaturesResponse, version)
        assert answer.error_code == 0, answer
        assert world.image.features.level("metadata.version") == 26
        told = [(r.feature, r.error_code) for r in answer.results]
        assert told == ([("metadata.version", 0)] if version <= 1 else [])
        up = _Update(feature="metadata.version", max_version_level=99)
        answer = await call(
            handlers, UpdateFeaturesRequest(feature_updates=(up,)), UpdateFeaturesResponse, version
        )
        assert answer.error_code == 95

    tell(story)


def test_a_broker_forwards_the_unregistration_of_another_broker() -> None:
    async def story(world: ClusterWorld, handlers: dict[int, Served]) -> None:
        for code in (42, 0, 102):
            request = UnregisterBrokerRequest(broker_id=2)
            if code == 0:  # it stops
                while not (await world.beat(2, want_shut_down=True)).should_shut_down:
                    await world.beat(1)
            answer = await call(handlers, request, UnregisterBrokerResponse, 0)
            assert answer.error_code == code
        assert list(world.image.brokers) == [1]

    tell(story)


def test_a_broker_describes_topics_and_brokers_from_its_own_metadata_image() -> None:
    async def story(world: ClusterWorld, handlers: dict[int, Served]) -> None:
        await world.create("t", partitions=3)
        world.controller_away = True
        topics = await call(handlers, DescribeTopicsRequest(), DescribeTopicsResponse, 0)
        assert [(t.topic_name, len(t.partitions)) for t in topics.topics][-1] == ("t", 3)
        assert topics.image_offset == world.cluster(1).image.offset
        brokers = await call(handlers, DescribeBrokersRequest(), DescribeBrokersResponse, 0)
        assert (topics.image_age_ms, brokers.image_age_ms) == (0, 0)
        world.cluster(1).image_age = 12_345.6
        brokers = await call(handlers, DescribeBrokersRequest(), DescribeBrokersResponse, 0)
        assert brokers.image_age_ms == 12_345
        assert [(b.broker_id, b.is_fenced) for b in brokers.brokers] == [(1, False), (2, False)]

    tell(story)


def test_describe_topics_returns_the_same_leaders_and_replicas_as_metadata() -> None:
    """Also once a broker has left, of which the stored leaders know nothing."""

    async def story(world: ClusterWorld, handlers: dict[int, Served]) -> None:
        await world.create("t", partitions=20, factor=2)
        for expected in ({1, 2}, {1}, {-1}):
            answer = await call(handlers, DescribeTopicsRequest(), DescribeTopicsResponse, 0)
            view = ClientView(world.cluster(1).cluster_id, "PLAIN", None)
            named = await describe(MetadataRequest(topics=None), 12, world.image, view)
            assert {
                (topic.topic_name, one.partition_index): (one.leader_id, one.replicas, one.isr)
                for topic in answer.topics
                for one in topic.partitions
            } == {
                (topic.name, one.partition_index): (
                    one.leader_id,
                    one.replica_nodes,
                    one.isr_nodes,
                )
                for topic in named.topics
                for one in topic.partitions
            }
            assert {one.leader_id for one in answer.topics[-1].partitions} == expected
            if expected != {-1}:
                await world.fence(max(expected))

    tell(story)


def test_a_broker_forwards_requests_for_descriptions_to_the_named_coordinator() -> None:
    async def story(world: ClusterWorld, handlers: dict[int, Served]) -> None:
        topic = await world.create("t")
        stored = Stored(world)
        await stored.commit("t", [batch(1, 2)])
        for coordinator in (0, 1):
            asked = DescribeDisklessTopicsRequest(coordinator_partition=coordinator)
            answer = await call(handlers, asked, DescribeDisklessTopicsResponse, 0)
            names = [one.topic_name for one in answer.topics]
            assert names == (["t"] if coordinator == topic.coordinator(0) else [])
        asked_object = DescribeDisklessObjectRequest(
            coordinator_partition=topic.coordinator(0), object_key=stored.keys[0]
        )
        found = await call(handlers, asked_object, DescribeDisklessObjectResponse, 0)
        assert [owner.topic_name for owner in found.owners] == ["t"]

    tell(story)


def plan(
    world: ClusterWorld, topic_id: UUID, log_start: int, coordinator: int
) -> ApplyRetentionRequest:
    topic = ApplyRetentionRequest.Topic
    row = topic.Partition(
        partition_index=0, log_start_offset=log_start, reason=1, limit=604_800_000
    )
    return ApplyRetentionRequest(
        cluster_id="c-1",
        expires_at_ms=world.wall_ms() + 1_000,
        topics=(topic(topic_id=topic_id, partitions=(row,)),),
        coordinator_partition=coordinator,
    )


def test_a_broker_forwards_a_retention_plan_to_the_coordinator_that_the_plan_names() -> None:
    async def story(world: ClusterWorld, handlers: dict[int, Served]) -> None:
        settings = {"esker.retention.enforcer": "both"}
        topic = await world.create("t", configs=settings)
        stored = Stored(world)
        await stored.commit("t", [batch(1)])
        await stored.commit("t", [batch(2)])
        for coordinator, expected in (
            (topic.coordinator(0), (0, 1)),
            (1 - topic.coordinator(0), (100, -1)),
            (7, (3, -1)),
        ):
            asked = plan(world, topic.topic_id, 1, coordinator)
            answer = await call(handlers, asked, ApplyRetentionResponse, 0)
            row = answer.responses[0].partitions[0]
            assert (row.error_code, row.low_watermark) == expected
        for leader in world.leaders:
            leader.away = True
        asked = plan(world, topic.topic_id, 2, topic.coordinator(0))
        answer = await call(handlers, asked, ApplyRetentionResponse, 0)
        assert answer.responses[0].partitions[0].error_code == 15

    tell(story)


@pytest.mark.parametrize("coordinator", [-1, 2, 2**31 - 1])
def test_a_broker_refuses_a_request_that_names_a_nonexistent_coordinator(
    coordinator: int,
) -> None:
    async def story(world: ClusterWorld, handlers: dict[int, Served]) -> None:
        topics = DescribeDisklessTopicsRequest(coordinator_partition=coordinator)
        answer = await call(handlers, topics, DescribeDisklessTopicsResponse, 0)
        assert answer.error_code == 3
        one = DescribeDisklessObjectRequest(coordinator_partition=coordinator, object_key="k")
        assert (await call(handlers, one, DescribeDisklessObjectResponse, 0)).error_code == 3
        assert world.image.coordinator_count == 2

    tell(story)


def test_a_forwarded_request_gets_a_retriable_error_if_no_coordinator_is_available() -> None:
    async def story(world: ClusterWorld, handlers: dict[int, Served]) -> None:
        world.controller_away = True
        for leader in world.leaders:
            leader.away = True
        answers: list[Any] = [
            await call(handlers, quorum(), DescribeQuorumResponse, 2),
            await call(
                handlers, UpdateFeaturesRequest(feature_updates=()), UpdateFeaturesResponse, 2
            ),
            await call(
                handlers,
                UpdateFeaturesRequest(feature_updates=(), timeout_ms=1_000),
                UpdateFeaturesResponse,
                0,
            ),
            await call(handlers, UnregisterBrokerRequest(broker_id=2), UnregisterBrokerResponse, 0),
            await call(
                handlers,
                DescribeDisklessTopicsRequest(coordinator_partition=0),
                DescribeDisklessTopicsResponse,
                0,
            ),
            await call(
                handlers,
                DescribeDisklessObjectRequest(coordinator_partition=0, object_key="k"),
                DescribeDisklessObjectResponse,
                0,
            ),
        ]
        assert [answer.error_code for answer in answers] == [7, 7, 7, 7, 15, 15]

    tell(story)


def test_a_broker_forwards_no_client_request_that_could_damage_the_cluster() -> None:
    """IsSafeToDeleteFile fences an object, AllocateProducerIds spends ids: brokers' own calls."""

    async def story(world: ClusterWorld, handlers: dict[int, Served]) -> None:
        of_coordinators = [1097, 1105, 1106, 1108, 1109, 1112, 1113, 1115, 1116, 1117, 1118, 1119]
        assert sorted(handlers) == [55, 57, 64, *of_coordinators]
        assert world.image.brokers

    tell(story)
