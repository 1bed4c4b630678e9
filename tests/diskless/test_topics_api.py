"""Creating, growing and deleting topics through a broker.

Source: KIP-4, KIP-195, KIP-516; docs/design/broker.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from diskless.apis import topics
from raft.net.handlers import Served
from records.rpc import topics as rpc
from records.types import ZERO_UUID
from tests.diskless.calling import call
from tests.diskless.cluster_world import ClusterWorld
from tests.diskless.virtual_time import run

Handlers = dict[int, Served]
Story = Callable[[ClusterWorld, Handlers], Awaitable[None]]

_Topic = rpc.CreateTopicsRequest.CreatableTopic


def tell(story: Story, *, coordinators: int = 2) -> None:
    """Run a story on a cluster whose broker 1 serves."""

    async def told() -> None:
        async with ClusterWorld(brokers=(1, 2), coordinators=coordinators) as made:
            await story(made, topics.handlers(made.cluster(1)))

    run(told)


def creating(*names: str, partitions: int = 2, **more: Any) -> rpc.CreateTopicsRequest:
    configs = tuple(
        _Topic.CreatableTopicConfig(name=name, value=value)
        for name, value in more.pop("configs", {}).items()
    )
    return rpc.CreateTopicsRequest(
        topics=tuple(
            _Topic(
                name=name,
                num_partitions=partitions,
                replication_factor=more.get("factor", -1),
                assignments=(),
                configs=configs,
            )
            for name in names
        ),
        timeout_ms=more.get("timeout_ms", 5_000),
        validate_only=more.get("validate_only", False),
    )


def deleting(*names: str, ids: tuple[UUID, ...] = (), timeout_ms: int = 5_000) -> Any:
    state = rpc.DeleteTopicsRequest.DeleteTopicState
    return rpc.DeleteTopicsRequest(
        topics=(*(state(name=n) for n in names), *(state(topic_id=i) for i in ids)),
        timeout_ms=timeout_ms,
    )


def growing(name: str, count: int, **more: Any) -> rpc.CreatePartitionsRequest:
    asked = rpc.CreatePartitionsRequest.CreatePartitionsTopic(
        name=name, count=count, assignments=None
    )
    return rpc.CreatePartitionsRequest(
        topics=(asked,),
        timeout_ms=more.get("timeout_ms", 5_000),
        validate_only=more.get("validate_only", False),
    )


async def create(handlers: Handlers, *names: str, version: int = 7, **more: Any) -> list[int]:
    answer = await call(handlers, creating(*names, **more), rpc.CreateTopicsResponse, version)
    return [topic.error_code for topic in answer.topics]


async def delete(handlers: Handlers, request: Any, version: int = 6) -> list[int]:
    answer = await call(handlers, request, rpc.DeleteTopicsResponse, version)
    return [topic.error_code for topic in answer.responses]


@pytest.mark.parametrize("version", range(2, 8))
def test_a_created_topic_is_in_the_image_and_the_replica_of_the_answering_broker(
    version: int,
) -> None:
    async def story(world: ClusterWorld, handlers: Handlers) -> None:
        answer = await call(handlers, creating("a", "b"), rpc.CreateTopicsResponse, version)
        assert [(t.name, t.error_code) for t in answer.topics] == [("a", 0), ("b", 0)]
        for name in ("a", "b"):
            topic = world.cluster(1).image.topic(name)
            assert topic is not None
            assert len(topic.partitions) == 2
            replica = world.cluster(1).replicas[topic.coordinator(0)]
            assert topic.topic_id in replica.state.topics
        if version >= 7:
            assert answer.topics[0].topic_id == world.image.topic_ids["a"]

    tell(story)


def test_a_broker_answers_create_topics_after_its_image_has_the_topic() -> None:
    async def story(world: ClusterWorld, handlers: Handlers) -> None:
        world.cluster(1).pause()
        asked = asyncio.ensure_future(create(handlers, "a"))
        await asyncio.sleep(1)
        assert world.image.topic("a") is not None, "the controller has it"
        assert not asked.done(), "this broker has not"
        world.cluster(1).go_on()
        assert await asked == [0]

    tell(story)


def test_a_broker_answers_create_topics_after_its_replica_has_the_topic() -> None:
    async def story(world: ClusterWorld, handlers: Handlers) -> None:
        for replica in world.cluster(1).replicas.values():
            replica.paused = True
        asked = asyncio.ensure_future(create(handlers, "a"))
        await asyncio.sleep(1)
        assert world.cluster(1).image.topic("a") is not None
        assert not asked.done(), "who produces now would be told that there is no such partition"
        for replica in world.cluster(1).replicas.values():
            replica.paused = False
            replica.go_on()
        assert await asked == [0]

    tell(story)


def test_a_create_topics_request_that_times_out_still_creates_the_topic() -> None:
    async def story(world: ClusterWorld, handlers: Handlers) -> None:
        await world.create("old")
        world.cluster(1).pause()
        started = asyncio.get_running_loop().time()
        codes = await create(handlers, "old", "a", timeout_ms=2_000)
        assert codes == [36, 7], "what was refused is still told"
        assert asyncio.get_running_loop().time() - started == pytest.approx(2, abs=0.2)
        assert world.image.topic("a") is not None

    tell(story)


def test_topic_requests_without_a_controller_return_a_timeout_for_every_topic() -> None:
    async def story(world: ClusterWorld, handlers: Handlers) -> None:
        world.controller_away = True
        started = asyncio.get_running_loop().time()
        assert await create(handlers, "a", "b", timeout_ms=1_000) == [7, 7]
        assert await delete(handlers, deleting("a", timeout_ms=1_000)) == [7]
        grown = await call(
            handlers, growing("a", 3, timeout_ms=1_000), rpc.CreatePartitionsResponse, 3
        )
        assert [result.error_code for result in grown.results] == [7]
        assert asyncio.get_running_loop().time() - started == pytest.approx(3, abs=0.1)
        world.controller_away = False
        assert await create(handlers, "a", timeout_ms=2**31 - 1) == [0]

    tell(story)


def test_create_topics_with_a_timeout_of_zero_creates_the_topic() -> None:
    async def story(world: ClusterWorld, handlers: Handlers) -> None:
        assert await create(handlers, "a", timeout_ms=0) == [7]
        await asyncio.sleep(1)
        assert world.image.topic("a") is not None
        assert await create(handlers, "b", timeout_ms=-5) == [7]
        await asyncio.sleep(1)
        assert world.image.topic("b") is not None

    tell(story)


def test_a_validate_only_create_topics_creates_no_topic() -> None:
    async def story(world: ClusterWorld, handlers: Handlers) -> None:
        assert await create(handlers, "a", validate_only=True) == [0]
        assert world.image.topic("a") is None
        assert await create(handlers, "a") == [0]
        grown = await call(
            handlers, growing("a", 5, validate_only=True), rpc.CreatePartitionsResponse, 3
        )
        assert grown.results[0].error_code == 0
        assert await create(handlers, "a", validate_only=True) == [36]
        topic = world.image.topic("a")
        assert topic is not None
        assert len(topic.partitions) == 2

    tell(story)


@pytest.mark.parametrize("version", range(4))
def test_a_broker_answers_create_partitions_after_it_has_the_partitions(
    version: int,
) -> None:
    async def story(world: ClusterWorld, handlers: Handlers) -> None:
        await create(handlers, "a")
        topic = world.image.topic("a")
        assert topic is not None
        replica = world.cluster(1).replicas[topic.coordinator(0)]
        replica.paused = True
        asked = asyncio.ensure_future(
            call(handlers, growing("a", 5), rpc.CreatePartitionsResponse, version)
        )
        await asyncio.sleep(1)
        assert not asked.done()
        replica.paused = False
        replica.go_on()
        answer = await asked
        assert answer.results[0].error_code == 0
        assert len(replica.state.topics[topic.topic_id].log_ids) == 5

    tell(story)


@pytest.mark.parametrize("version", range(1, 7))
def test_delete_topics_deletes_topics_by_name_at_every_version(version: int) -> None:
    async def story(world: ClusterWorld, handlers: Handlers) -> None:
        await create(handlers, "a", "b")
        request = deleting("a", "none", "b")
        if version < 6:
            request = rpc.DeleteTopicsRequest(topic_names=("a", "none", "b"), timeout_ms=5_000)
        answer = await call(handlers, request, rpc.DeleteTopicsResponse, version)
        told = {r.name: r.error_code for r in answer.responses}
        assert told == {"a": 0, "none": 3, "b": 0}
        assert world.cluster(1).image.topic("a") is None

    tell(story)


def test_create_partitions_refuses_the_second_entry_of_a_topic_named_twice() -> None:
    """The second entry is refused, and its count is not awaited."""

    async def story(world: ClusterWorld, handlers: Handlers) -> None:
        await world.create("a")
        started = asyncio.get_running_loop().time()
        asked = rpc.CreatePartitionsRequest(
            topics=(*growing("a", 3).topics, *growing("a", 5).topics),
            timeout_ms=5_000,
            validate_only=False,
        )
        answer = await call(handlers, asked, rpc.CreatePartitionsResponse, 3)
        assert [result.error_code for result in answer.results] == [0, 42]
        assert asyncio.get_running_loop().time() - started < 1

    tell(story)


def test_a_broker_answers_create_partitions_for_coordinators_before_the_partitions_exist() -> None:
    """`__diskless-metadata` grows like a topic, and no coordinator has any batches of it."""

    async def story(_world: ClusterWorld, handlers: Handlers) -> None:
        started = asyncio.get_running_loop().time()
        request = growing("__diskless-metadata", 3)
        answer = await call(handlers, request, rpc.CreatePartitionsResponse, 3)
        assert answer.results[0].error_code == 0, answer.results[0].error_message
        assert asyncio.get_running_loop().time() - started < 1

    tell(story)


def test_delete_topics_deletes_topics_by_id() -> None:
    async def story(world: ClusterWorld, handlers: Handlers) -> None:
        topic = await world.create("a")
        answer = await call(
            handlers, deleting(ids=(topic.topic_id, UUID(int=99))), rpc.DeleteTopicsResponse, 6
        )
        assert [(r.name, r.error_code) for r in answer.responses] == [("a", 0), (None, 100)]
        both = rpc.DeleteTopicsRequest.DeleteTopicState(name="a", topic_id=topic.topic_id)
        request = rpc.DeleteTopicsRequest(topics=(both,), timeout_ms=5_000)
        assert await delete(handlers, request) == [42]

    tell(story)


def test_delete_topics_waits_until_the_answering_brokers_image_lacks_the_topic_or_times_out() -> (
    None
):
    async def story(world: ClusterWorld, handlers: Handlers) -> None:
        await create(handlers, "a", "b")
        world.cluster(1).pause()
        assert await delete(handlers, deleting("a", timeout_ms=1_000)) == [7]
        assert world.image.topic("a") is None
        asked = asyncio.ensure_future(delete(handlers, deleting("b")))
        await asyncio.sleep(1)
        assert not asked.done()
        world.cluster(1).go_on()
        assert await asked == [0]

    tell(story)


def test_clients_can_neither_create_nor_delete_internal_topics() -> None:
    async def story(world: ClusterWorld, handlers: Handlers) -> None:
        internal = ("__consumer_offsets", "__diskless-metadata", "__cluster_metadata")
        assert await delete(handlers, deleting(*internal)) == [17, 17, 17]
        assert await create(handlers, "__cluster_metadata") == [17]
        assert world.image.topic("__consumer_offsets") is not None

    tell(story)


def test_a_topic_that_is_deleted_and_created_again_has_a_new_topic_id() -> None:
    async def story(world: ClusterWorld, handlers: Handlers) -> None:
        first = await call(handlers, creating("a"), rpc.CreateTopicsResponse, 7)
        assert await delete(handlers, deleting("a")) == [0]
        again = await call(handlers, creating("a", partitions=1), rpc.CreateTopicsResponse, 7)
        old, new = first.topics[0].topic_id, again.topics[0].topic_id
        assert old != new
        assert new != ZERO_UUID
        image = world.cluster(1).image
        assert (image.topic_ids["a"], old in image.topics) == (new, False)
        assert len(image.topics[new].partitions) == 1
        await asyncio.sleep(1)
        assert any(
            old in replica.state.topics and replica.state.topics[old].deleted_at_ms >= 0
            for replica in world.cluster(1).replicas.values()
        ), "its coordinator has heard that the first is deleted"

    tell(story)


def test_a_broker_answers_a_waiting_create_topics_request_when_its_topic_is_deleted() -> None:
    async def story(world: ClusterWorld, handlers: Handlers) -> None:
        for replica in world.cluster(1).replicas.values():
            replica.paused = True
        asked = asyncio.ensure_future(create(handlers, "a", timeout_ms=60_000))
        await asyncio.sleep(1)
        await world.ask(deleting("a"), rpc.DeleteTopicsResponse)
        started = asyncio.get_running_loop().time()
        assert await asked == [0]
        assert asyncio.get_running_loop().time() - started < 1

    tell(story)


def test_create_topics_times_out_while_the_topics_coordinator_is_unavailable() -> None:
    async def story(world: ClusterWorld, handlers: Handlers) -> None:
        for leader in world.leaders:
            leader.away = True
        answer = await call(handlers, creating("a", timeout_ms=3_000), rpc.CreateTopicsResponse, 7)
        assert answer.topics[0].error_code == 7
        assert "coordinator" in (answer.topics[0].error_message or "")

    tell(story, coordinators=1)


def test_create_topics_refuses_invalid_names_and_counts_with_kafkas_errors() -> None:
    async def story(world: ClusterWorld, handlers: Handlers) -> None:
        await create(handlers, "a.b")
        assert await create(handlers, "a_b", "a b", "", "x" * 250, ".") == [17, 17, 17, 17, 17]
        assert await create(handlers, "n", partitions=0) == [37]
        assert await create(handlers, "n", factor=0) == [38]
        assert await create(handlers, "n", factor=9) == [0], "any replication factor will do"
        assert await create(handlers, "twice", "twice") == [42]
        down = await call(handlers, growing("n", 1), rpc.CreatePartitionsResponse, 3)
        assert down.results[0].error_code == 37
        none = await call(handlers, growing("none", 1), rpc.CreatePartitionsResponse, 3)
        assert none.results[0].error_code == 3
        assert sorted(world.image.topic_ids)[2:] == ["a.b", "n"]

    tell(story)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("diskless.enable", "false"),
        ("cleanup.policy", "compressed"),
        ("remote.storage.enable", "true"),
        ("compression.type", "zip"),
        ("message.timestamp.type", "Whenever"),
        ("max.message.bytes", "-1"),
        ("retention.ms", "soon"),
        ("no.such.setting", "1"),
    ],
)
def test_create_topics_refuses_a_setting_without_effect_with_a_reason(
    setting: str, value: str
) -> None:
    async def story(world: ClusterWorld, handlers: Handlers) -> None:
        request = creating("a", configs={setting: value})
        answer = await call(handlers, request, rpc.CreateTopicsResponse, 7)
        assert answer.topics[0].error_code == 40
        message = answer.topics[0].error_message or ""
        assert setting in message or "remote log storage" in message
        assert world.image.topic("a") is None

    tell(story)


def test_the_create_topics_response_has_the_settings_of_the_topic() -> None:
    async def story(world: ClusterWorld, handlers: Handlers) -> None:
        kept = {
            "diskless.enable": "true",
            "cleanup.policy": "delete",
            "retention.ms": "60000",
            "retention.bytes": "1000",
            "message.timestamp.type": "LogAppendTime",
            "message.timestamp.before.max.ms": "5",
            "message.timestamp.after.max.ms": "6",
            "max.message.bytes": "100",
            "compression.type": "producer",
        }
        request = creating("a", configs=kept)
        answer = await call(handlers, request, rpc.CreateTopicsResponse, 7)
        assert answer.topics[0].error_code == 0
        told = {c.name: (c.value, c.config_source) for c in answer.topics[0].configs or ()}
        assert {name: told[name] for name in kept} == {n: (v, 1) for n, v in kept.items()}
        assert world.image.topic("a") is not None
        assert told["segment.bytes"] == ("1073741824", 5)
        assert answer.topics[0].num_partitions == 2

    tell(story)
