"""Metadata, DescribeCluster, DescribeTopicPartitions and FindCoordinator, as clients send them.

Source: docs/design/broker.md#a-broker-names-itself-and-always-somebody; KIP-487, KIP-699, KIP-700,
KIP-966.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from random import Random
from typing import Any
from uuid import UUID

import pytest

from coordinator.controller.access import Client
from coordinator.controller.placement import unfenced_brokers
from coordinator.rendezvous import group_broker
from diskless.apis import auto_creation
from diskless.apis.auto_creation import MAX_UNDER_WAY
from diskless.apis.cluster import MAX_UNKNOWN_RACKS, ClusterApis
from diskless.apis.topics import Topics
from raft.net.handlers import Served
from records.rpc import cluster as rpc
from records.rpc import topics
from records.rpc.base import Request
from records.rpc.partitions import DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse
from tests.diskless.calling import call
from tests.diskless.cluster_world import ClusterWorld
from tests.diskless.virtual_time import run
from tests.examples import seeds

_named = rpc.MetadataRequest.MetadataRequestTopic
_Topic = rpc.MetadataResponse.MetadataResponseTopic


class Front:
    """The cluster requests of one broker, with a count of calls to the controller."""

    def __init__(
        self, world: ClusterWorld, broker_id: int = 1, *, auto_create: bool = True
    ) -> None:
        self.world = world
        self.cluster = world.cluster(broker_id)
        self.created: list[topics.CreateTopicsRequest] = []
        self.apis = ClusterApis(
            self.cluster,
            create=self._create,
            auto_create=auto_create,
            num_partitions=3,
        )
        self._topics = Topics(self.cluster)
        self.handlers: dict[int, Served] = self.apis.handlers("PLAIN")

    async def _create(
        self, request: topics.CreateTopicsRequest, _: Client | None
    ) -> topics.CreateTopicsResponse:
        self.created.append(request)
        return await self._topics.create(request)

    async def metadata(
        self, *names: str, version: int = 12, client_id: str | None = "test", **more: Any
    ) -> rpc.MetadataResponse:
        request = rpc.MetadataRequest(topics=tuple(_named(name=name) for name in names), **more)
        return await call(
            self.handlers, request, rpc.MetadataResponse, version, client_id=client_id
        )

    async def codes(self, *names: str, **more: Any) -> dict[str | None, int]:
        answer = await self.metadata(*names, **more)
        return {topic.name: topic.error_code for topic in answer.topics}

    async def find(
        self, key_type: int, *keys: str, version: int = 6
    ) -> tuple[topics.FindCoordinatorResponse.Coordinator, ...]:
        request = topics.FindCoordinatorRequest(key_type=key_type, coordinator_keys=keys)
        if version < 4:
            request = topics.FindCoordinatorRequest(key_type=key_type, key=keys[0])
        answer = await call(self.handlers, request, topics.FindCoordinatorResponse, version)
        if version >= 4:
            return answer.coordinators
        one = topics.FindCoordinatorResponse.Coordinator(
            key=keys[0],
            node_id=answer.node_id,
            host=answer.host,
            port=answer.port,
            error_code=answer.error_code,
            error_message=answer.error_message,
        )
        return (one,)


def with_front(
    story: Callable[[Front], Awaitable[None]], *, auto_create: bool = True, **more: Any
) -> None:
    async def main() -> None:
        async with ClusterWorld(**more) as world:
            front = Front(world, auto_create=auto_create)
            await story(front)
            await front.apis.close()

    run(main)


# --- topics that are made by asking ---------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 3, 4, 9, 13])
def test_a_metadata_request_creates_a_missing_topic_that_then_accepts_records(version: int) -> None:
    """The answer waits for coordinator and broker, so that the client need not retry."""

    async def story(front: Front) -> None:
        answer = await front.metadata("fresh", version=version)
        (topic,) = answer.topics
        assert (topic.error_code, len(topic.partitions)) == (0, 3)
        assert {partition.leader_id for partition in topic.partitions} == {1}
        image = front.cluster.image.topic("fresh")
        assert image is not None
        leader = front.world.leaders[image.coordinator(0)]
        assert image.topic_id in leader.state.topics
        assert len(front.created) == 1
        assert front.apis.creation.created == 1

    with_front(story)


def test_a_metadata_request_creates_no_topic_if_automatic_creation_is_disabled() -> None:
    """Neither the broker's setting nor the request's own flag alone is enough. KIP-487."""

    async def not_the_client(front: Front) -> None:
        assert await front.codes("t", allow_auto_topic_creation=False) == {"t": 3}
        assert front.created == []

    async def not_the_broker(front: Front) -> None:
        assert await front.codes("t", "a b") == {"t": 3, "a b": 17}
        assert front.created == []

    with_front(not_the_client)
    with_front(not_the_broker, auto_create=False)


def test_a_metadata_request_for_all_topics_creates_no_topic() -> None:
    async def story(front: Front) -> None:
        answer = await call(
            front.handlers, rpc.MetadataRequest(topics=None), rpc.MetadataResponse, 12
        )
        assert {topic.name for topic in answer.topics} == {
            "__diskless-metadata",
            "__consumer_offsets",
        }
        assert front.created == []

    with_front(story)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ä", "x" * 250, "a\x00b"])
def test_a_metadata_request_with_an_invalid_topic_name_creates_no_topic(name: str) -> None:
    async def story(front: Front) -> None:
        assert await front.codes(name) == {name: 17}
        assert front.created == []

    with_front(story)


@pytest.mark.parametrize("name", ["__transaction_state", "__share_group_state", "esker-bench-log"])
def test_a_metadata_request_for_an_internal_topic_creates_no_topic(name: str) -> None:
    async def story(front: Front) -> None:
        assert (await front.codes(name))[name] != 0
        assert front.created == []
        assert front.world.image.topic(name) is None

    with_front(story)


def test_a_broker_returns_the_controllers_error_for_a_new_topic_with_a_colliding_name() -> None:
    """`a.b` and `a_b` would be one name to metrics."""

    async def story(front: Front) -> None:
        await front.world.create("a.b")
        assert await front.codes("a_b") == {"a_b": 17}

    with_front(story)


def test_a_thousand_requests_for_one_missing_topic_cause_one_creation_request() -> None:
    async def story(front: Front) -> None:
        answers = await asyncio.gather(*(front.codes("fresh") for _ in range(1_000)))
        assert answers == [{"fresh": 0}] * 1_000
        assert len(front.created) == 1

    with_front(story)


def test_concurrent_automatic_creations_of_a_topic_at_two_brokers_create_one_topic() -> None:
    async def story(front: Front) -> None:
        other = Front(front.world, 2)
        answers = await asyncio.gather(front.metadata("fresh"), other.metadata("fresh"))
        assert answers[0].topics == answers[1].topics
        assert answers[0].topics[0].error_code == 0
        assert [answer.controller_id for answer in answers] == [1, 2]  # each names itself

    with_front(story, brokers=(1, 2))


def test_metadata_of_a_missing_topic_without_a_controller_soon_returns_a_retriable_error() -> None:
    """The topic is created once there is a controller."""

    async def story(front: Front) -> None:
        loop = asyncio.get_running_loop()
        front.world.controller_away = True
        begun = loop.time()
        assert await front.codes("t") == {"t": 5}
        assert loop.time() - begun == pytest.approx(auto_creation.WAIT_S)
        front.world.controller_away = False
        await asyncio.sleep(60)
        assert await front.codes("t") == {"t": 0}

    with_front(story)


def test_metadata_of_a_topic_that_a_lagging_broker_lacks_returns_leader_not_available() -> None:
    async def story(front: Front) -> None:
        front.cluster.pause()
        assert await front.codes("t") == {"t": 5}
        assert front.world.image.topic("t") is not None
        front.cluster.go_on()
        assert await front.codes("t") == {"t": 0}
        assert len(front.created) == 1

    with_front(story)


def test_a_broker_creates_many_missing_topics_by_several_controller_requests() -> None:
    """Clients choose the names, so one request creates only a limited number."""

    async def story(front: Front) -> None:
        names = [f"t{number:04}" for number in range(MAX_UNDER_WAY + 50)]
        codes = await front.codes(*names)
        assert sum(1 for code in codes.values() if code == 0) == MAX_UNDER_WAY
        assert {code for code in codes.values() if code} == {5}
        assert len(front.created[0].topics) == MAX_UNDER_WAY
        assert set((await front.codes(*names)).values()) == {0}

    with_front(story)


# --- racks ----------------------------------------------------------------------------------------


def test_metadata_names_partition_leaders_in_the_rack_of_the_requesting_client() -> None:
    async def story(front: Front) -> None:
        await front.world.create("t", 8)
        for rack, brokers in (("a", {1}), ("b", {2, 3})):
            for hint in (f"app,diskless_az={rack}", f"esker_rack={rack}"):
                (topic,) = (await front.metadata("t", client_id=hint)).topics
                led = {partition.leader_id for partition in topic.partitions}
                assert led == brokers
        (topic,) = (await front.metadata("t")).topics
        for partition in topic.partitions:
            assert 1 in partition.replica_nodes
            assert len(partition.replica_nodes) == 2

    with_front(story, brokers=(1, 2, 3), racks={1: "a", 2: "b", 3: "b"})


def test_a_broker_counts_each_client_with_an_unknown_rack_and_logs_the_rack_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "diskless.cluster")

    async def story(front: Front) -> None:
        for _ in range(3):
            plain = await front.metadata(client_id="app")
            assert plain == await front.metadata(client_id="app,diskless_az=misspelt")
        assert front.apis.unknown_racks == {"misspelt": 3}
        assert [record.getMessage() for record in caplog.records] == [
            "rack='misspelt' reason=unknown client_id='app,diskless_az=misspelt' "
            "peer=10.0.0.7:4711: no unfenced broker is there"
        ]
        for number in range(MAX_UNKNOWN_RACKS + 50):
            await front.metadata(client_id=f"esker_rack=r{number}")
        assert len(front.apis.unknown_racks) == MAX_UNKNOWN_RACKS + 1
        assert len(caplog.records) == MAX_UNKNOWN_RACKS + 1

    with_front(story, racks={1: "a"})


# --- brokers --------------------------------------------------------------------------------------


async def described(front: Front, version: int, **more: Any) -> rpc.DescribeClusterResponse:
    request = rpc.DescribeClusterRequest(**{"include_cluster_authorized_operations": False} | more)
    return await call(front.handlers, request, rpc.DescribeClusterResponse, version)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_describe_cluster_lists_the_unfenced_brokers(version: int) -> None:
    async def story(front: Front) -> None:
        answer = await described(front, version, include_cluster_authorized_operations=True)
        assert (answer.error_code, answer.cluster_id, answer.controller_id) == (0, "c-1", 1)
        assert [(b.broker_id, b.host, b.port, b.rack) for b in answer.brokers] == [
            (1, "b1", 9092, "a"),
            (2, "b2", 9092, None),
        ]
        assert answer.cluster_authorized_operations == 0b1_1111_1010_0000
        await front.world.fence(1)
        answer = await described(front, version)
        assert (answer.controller_id, [b.broker_id for b in answer.brokers]) == (2, [2])
        assert answer.cluster_authorized_operations == -(2**31)

    with_front(story, brokers=(1, 2), racks={1: "a"})


def test_describe_cluster_lists_fenced_brokers_only_on_request() -> None:
    async def story(front: Front) -> None:
        await front.world.fence(2)
        answer = await described(front, 2, include_fenced_brokers=True)
        assert [(b.broker_id, b.is_fenced) for b in answer.brokers] == [(1, False), (2, True)]

    with_front(story, brokers=(1, 2))


@pytest.mark.parametrize(("endpoint_type", "code"), [(2, 114), (3, 115), (0, 115)])
def test_a_broker_refuses_to_describe_the_cluster_for_controllers(
    endpoint_type: int, code: int
) -> None:
    """KIP-919."""

    async def story(front: Front) -> None:
        answer = await described(front, 1, endpoint_type=endpoint_type)
        assert answer.error_code == code
        assert "endpoint type 1" in (answer.error_message or "")

    with_front(story)


def test_metadata_names_the_brokers_addresses_at_the_listener_of_the_request() -> None:
    async def story(front: Front) -> None:
        listeners = {"PLAIN": ("inside", 9092), "OUT": ("example.org", 19092)}
        await front.world.register(7, listeners=listeners)
        await front.world.unfence(7)
        request = rpc.MetadataRequest(topics=())
        outside = front.apis.handlers("OUT")
        answer = await call(outside, request, rpc.MetadataResponse, 12)
        assert [(b.node_id, b.host, b.port) for b in answer.brokers] == [(7, "example.org", 19092)]
        assert answer.controller_id == 7
        inside = await front.metadata()
        assert [(b.node_id, b.host) for b in inside.brokers] == [(1, "b1"), (7, "inside")]

    with_front(story)


# --- who acts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
def test_all_brokers_name_the_same_coordinator_for_a_group(version: int) -> None:
    async def story(front: Front) -> None:
        other = Front(front.world, 3)
        for group in ("orders", "", "ä", "x" * 1_000):
            (found,) = await front.find(0, group, version=version)
            expected = group_broker(group, [1, 2, 3])
            assert (found.error_code, found.node_id) == (0, expected)
            assert (found.host, found.port) == (f"b{expected}", 9092)
            assert (found,) == await other.find(0, group, version=version)

    with_front(story, brokers=(1, 2, 3))


def test_find_coordinator_names_no_fenced_broker_as_a_group_coordinator() -> None:
    async def story(front: Front) -> None:
        groups = [f"g{number}" for number in range(40)]
        before = {one.key: one.node_id for one in await front.find(0, *groups)}
        await front.world.fence(2)
        after = {one.key: one.node_id for one in await front.find(0, *groups)}
        moved = {group for group in groups if before[group] != after[group]}
        assert moved == {group for group in groups if before[group] == 2} != set()
        await front.world.fence(1)
        (found,) = await front.find(0, "g1")
        assert (found.error_code, found.node_id, found.port) == (15, -1, -1)

    with_front(story, brokers=(1, 2))


@pytest.mark.parametrize("version", range(1, 7))
def test_a_broker_refuses_find_coordinator_for_a_transactional_id_at_once(version: int) -> None:
    """53 is fatal to the Java client and to librdkafka: initTransactions() does not try again."""

    async def story(front: Front) -> None:
        (found,) = await front.find(1, "tx", version=version)
        assert found.error_code == 53
        assert "transactions are not supported" in (found.error_message or "")

    with_front(story)


@pytest.mark.parametrize(("key_type", "version"), [(2, 6), (4, 6), (-1, 5), (3, 3)])
def test_find_coordinator_refuses_unknown_coordinator_types(key_type: int, version: int) -> None:
    async def story(front: Front) -> None:
        (found,) = await front.find(key_type, "k", version=version)
        assert found.error_code == 42

    with_front(story)


@pytest.mark.parametrize("version", [4, 5, 6])
def test_find_coordinator_names_the_answering_broker_for_reads_and_the_leader_for_writes(
    version: int,
) -> None:
    """Source: KIP-1164; docs/design/numbers.md#findcoordinator-for-batch-coordinators."""

    async def story(front: Front) -> None:
        topic = await front.world.create("t", 2)
        keys = [f"{what}:{topic.topic_id}:1" for what in ("write", "read")]
        wrong = ["write:t:1", f"append:{topic.topic_id}:1", ""]
        unknown = [f"read:{topic.topic_id}:2", f"write:{UUID(int=9)}:0"]
        found = await front.find(3, *keys, *wrong, *unknown, version=version)
        assert [(one.error_code, one.host) for one in found] == [
            (0, "q1"),
            (0, "b1"),
            *[(42, "")] * 3,
            *[(3, "")] * 2,
        ]
        assert [one.key for one in found] == [*keys, *wrong, *unknown]
        front.world.controller_away = True
        away = await front.find(3, *keys, version=version)
        assert [one.error_code for one in away] == [15, 0]

    with_front(story)


# --- partitions, page by page ---------------------------------------------------------------------


async def page(
    front: Front, *names: str, limit: int = 2_000, cursor: tuple[str, int] | None = None
) -> DescribeTopicPartitionsResponse:
    kind = DescribeTopicPartitionsRequest
    request: Request = kind(
        topics=tuple(kind.TopicRequest(name=name) for name in names),
        response_partition_limit=limit,
        cursor=None
        if cursor is None
        else kind.Cursor(topic_name=cursor[0], partition_index=cursor[1]),
    )
    return await call(front.handlers, request, DescribeTopicPartitionsResponse, 0)


def listed(answer: DescribeTopicPartitionsResponse) -> Iterable[tuple[str | None, int]]:
    return [(t.name, p.partition_index) for t in answer.topics for p in t.partitions]


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 2_000])
def test_all_pages_of_describe_topic_partitions_together_have_each_partition_once(
    limit: int,
) -> None:
    async def story(front: Front) -> None:
        for name, partitions in (("b", 3), ("a", 4), ("c", 1)):
            await front.world.create(name, partitions)
        seen: list[tuple[str | None, int]] = []
        cursor = None
        for _ in range(20):
            answer = await page(front, "c", "a", "b", limit=limit, cursor=cursor)
            assert len(list(listed(answer))) <= limit
            seen += listed(answer)
            if answer.next_cursor is None:
                break
            cursor = (answer.next_cursor.topic_name, answer.next_cursor.partition_index)
        assert seen == [*(("a", i) for i in range(4)), *(("b", i) for i in range(3)), ("c", 0)]
        assert limit < 8 or cursor is None

    with_front(story)


def test_describe_topic_partitions_without_names_describes_all_topics_as_metadata_does() -> None:
    async def story(front: Front) -> None:
        await front.world.create("t", 2)
        answer = await page(front)
        assert [topic.name for topic in answer.topics] == [
            "__consumer_offsets",
            "__diskless-metadata",
            "t",
        ]
        assert [topic.is_internal for topic in answer.topics] == [True, True, False]
        told = (await front.metadata("t")).topics[0]
        for here, there in zip(answer.topics[2].partitions, told.partitions, strict=True):
            assert (here.leader_id, here.leader_epoch, here.isr_nodes) == (
                there.leader_id,
                0,
                there.isr_nodes,
            )
        assert answer.topics[2].topic_id == told.topic_id

    with_front(story, brokers=(1, 2, 3), racks={1: "a", 2: "b"})


def test_describe_partitions_returns_an_error_for_each_missing_topic() -> None:
    async def story(front: Front) -> None:
        answer = await page(front, "nowhere", "a b")
        assert [(t.name, t.error_code) for t in answer.topics] == [("a b", 17), ("nowhere", 3)]
        assert front.created == []

    with_front(story)


@pytest.mark.parametrize("cursor", [("t", -1), ("u", 0)])
def test_a_broker_refuses_describe_topic_partitions_with_an_invalid_cursor(
    cursor: tuple[str, int],
) -> None:
    async def story(front: Front) -> None:
        await front.world.create("t", 2)
        answer = await page(front, "t", cursor=cursor)
        assert [(t.name, t.error_code) for t in answer.topics] == [("t", 42)]

    with_front(story)


def test_describe_topic_partitions_treats_a_partition_limit_below_1_as_a_limit_of_1() -> None:
    async def story(front: Front) -> None:
        await front.world.create("t", 2)
        for limit in (0, -5):
            answer = await page(front, "t", limit=limit)
            assert listed(answer) == [("t", 0)]

    with_front(story)


# --- all of it together ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", seeds(4))
def test_all_brokers_give_the_same_metadata_after_random_changes(seed: int) -> None:
    """Brokers and topics come and go at random, and one broker lags at times.

    Once all have read everything, the answers are equal, whoever is asked, for whichever rack, but
    that each names itself; and from one answer to the next a partition changes hands only if its
    broker went, or to one that came.
    """
    random = Random(seed)
    print(f"reproduce: pytest {__file__} -k random_changes with seed {seed}")
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}  # 5 says none

    async def answers(fronts: dict[int, Front], rack: str) -> dict[int, Any]:
        request = rpc.MetadataRequest(topics=None)
        hint = f"app,diskless_az={rack}"
        return {
            asked: await call(front.handlers, request, rpc.MetadataResponse, 12, client_id=hint)
            for asked, front in fronts.items()
        }

    async def story(front: Front) -> None:
        world = front.world
        fronts = {broker_id: Front(world, broker_id) for broker_id in range(1, 6)}
        before: dict[str, tuple[set[int], dict[Any, int]]] = {}
        for number in range(25):
            late = fronts[random.randint(1, 5)].cluster
            late.pause()
            await something(world, random, number)
            late.go_on()
            for rack in ("a", "b", "", "nowhere"):
                told = await answers(fronts, rack)
                first = told[1]
                members = world.image.brokers.keys()
                alive = {broker.broker_id for broker in unfenced_brokers(world.image)}
                for asked, answer in told.items():
                    named = {broker.node_id for broker in answer.brokers}
                    assert named == ((alive | {asked}) & members if alive else set(members))
                    assert answer.topics == first.topics
                    assert answer.controller_id == (
                        asked if asked in named & (alive or named) else min(alive or named)
                    )
                led = {
                    (topic.topic_id, partition.partition_index): partition.leader_id
                    for topic in first.topics
                    for partition in topic.partitions
                }
                assert set(led.values()) <= alive | {-1}
                if rack in before:
                    was_alive, had_led = before[rack]
                    for place in led.keys() & had_led.keys():
                        moved = led[place] != had_led[place]
                        assert not moved or (
                            had_led[place] not in alive or led[place] not in was_alive
                        ), f"{place}: {had_led[place]} -> {led[place]} for nothing"
                before[rack] = alive, led

    with_front(story, brokers=range(1, 6), racks=racks)


async def something(world: ClusterWorld, random: Random, number: int) -> None:
    """Make one random change of brokers or topics."""
    broker_id = random.randint(1, 5)
    match random.choice(("fence", "unfence", "create", "create", "delete")):
        case "fence":
            await world.fence(broker_id)
        case "unfence":
            await world.unfence(broker_id)
        case "create":
            await world.create(f"t{number}", random.randint(1, 9))
        case _:
            names = [name for name in world.image.topic_ids if name.startswith("t")]
            if names:
                name = random.choice(sorted(names))
                state = topics.DeleteTopicsRequest.DeleteTopicState(name=name)
                request = topics.DeleteTopicsRequest(topics=(state,), timeout_ms=1_000)
                answer = await world.ask(request, topics.DeleteTopicsResponse)
                assert not answer.responses[0].error_code
