"""`ClusterWorld` behaves as a real `Cluster`."""

from __future__ import annotations

import pytest

from coordinator.controller.placement import PlacedBroker, unfenced_brokers
from coordinator.errors import CoordinatorError
from diskless.cluster import Cluster
from records.kafka_errors import ErrorCode
from records.rpc.batch_coordinator import FindBatchesRequest
from records.rpc.group_log import AcquireGroupOwnershipRequest
from records.rpc.topics import CreateTopicsResponse
from tests.coordinator.controller.world import creation
from tests.diskless.cluster_world import ClusterWorld
from tests.diskless.virtual_time import run


def test_in_the_test_cluster_a_new_topic_reaches_its_coordinator_and_every_broker() -> None:
    async def story() -> None:
        async with ClusterWorld(brokers=(1, 2), racks={1: "a"}, coordinators=2) as world:
            first: Cluster = world.cluster(1)
            seen: list[int] = []
            first.on_image(lambda image: seen.append(len(image.topics)))
            topic = await world.create("t", partitions=3)
            assert [len(leader.state.topics) for leader in world.leaders].count(0) <= 1
            assert seen[-1] == 3
            for broker_id in (1, 2):
                image = world.cluster(broker_id).image
                assert image.topic("t") == topic
                assert unfenced_brokers(image) == [PlacedBroker(1, "a"), PlacedBroker(2, None)]
            coordinator = topic.coordinator(0)
            replica = first.replica(coordinator)
            assert replica is not None
            asked = FindBatchesRequest.Topic(
                topic_id=topic.topic_id,
                partitions=(
                    FindBatchesRequest.Topic.Partition(partition_index=0, offset=0, max_bytes=1),
                ),
            )
            answer = await replica.call(
                FindBatchesRequest(coordinator_partition=coordinator, topics=(asked,), max_bytes=1)
            )
            assert answer.responses[0].partitions[0].error_code == 0

    run(story)


def test_a_test_cluster_broker_with_lagging_metadata_answers_after_it_has_caught_up() -> None:
    async def story() -> None:
        async with ClusterWorld() as world:
            cluster = world.cluster(1)
            cluster.pause()
            await cluster.ask_controller(creation("t"), CreateTopicsResponse)
            assert cluster.image.topic("t") is None
            assert await cluster.image_where(lambda i: i.topic("t") is not None, 5.0) is None
            cluster.go_on()
            assert await cluster.image_where(lambda i: i.topic("t") is not None, 5.0) is not None

    run(story)


def test_coordinator_calls_to_a_stopped_leader_in_the_test_cluster_raise_coordinator_errors() -> (
    None
):
    async def story() -> None:
        async with ClusterWorld() as world:
            cluster = world.cluster(1)
            owner = AcquireGroupOwnershipRequest(
                group_id="g", broker_id=1, broker_epoch=1, create=True
            )
            assert (await cluster.ask_groups(owner)) is not None
            assert [name for name, _ in cluster.groups()] == ["g"]
            world.controller_away = world.groups_away = True
            assert await cluster.ask_groups(owner) is None
            with pytest.raises(CoordinatorError) as raised:
                await cluster.ask_controller(creation("t"), CreateTopicsResponse)
            assert raised.value.code == ErrorCode.COORDINATOR_NOT_AVAILABLE

    run(story)
