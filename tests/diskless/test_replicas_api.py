"""Elections, reassignments and log directories, as a Kafka cluster at rest answers them.

The codes and texts are those of Apache Kafka 4.3.1 for the same requests.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from diskless.apis import replicas
from records.rpc import replicas as rpc
from tests.diskless.calling import call
from tests.diskless.cluster_world import ClusterWorld
from tests.diskless.stored import Stored, batch
from tests.diskless.virtual_time import run

TOO_MANY: Final = 100_000

ELECT: Final = rpc.ElectLeadersRequest
TOPIC: Final = rpc.AlterPartitionReassignmentsRequest.ReassignableTopic
DIRS: Final = rpc.DescribeLogDirsRequest


def tell(story: Callable[[ClusterWorld], Awaitable[None]]) -> None:
    async def told() -> None:
        async with ClusterWorld(brokers=(1, 2)) as world:
            await world.create("t", 2)
            await story(world)

    run(told)


async def elect(
    world: ClusterWorld, election_type: int, *topics: tuple[str, tuple[int, ...]], version: int = 2
) -> tuple[int, list[tuple[str, int, int, str]]]:
    request = ELECT(
        election_type=election_type,
        topic_partitions=tuple(ELECT.TopicPartitions(topic=n, partitions=ps) for n, ps in topics),
    )
    handlers = replicas.handlers(world.cluster(1))
    answer = await call(handlers, request, rpc.ElectLeadersResponse, version)
    return answer.error_code, [
        (topic.topic, one.partition_id, one.error_code, one.error_message or "")
        for topic in answer.replica_election_results
        for one in topic.partition_result
    ]


@pytest.mark.parametrize("election_type", [0, 1])
def test_elect_leaders_returns_election_not_needed_for_each_existing_partition(
    election_type: int,
) -> None:
    async def story(world: ClusterWorld) -> None:
        needless = "Leader election not needed for topic partition."
        assert await elect(world, election_type, ("t", (0, 9, 0)), ("none", (0,))) == (
            0,
            [
                ("t", 0, 84, needless),
                ("t", 9, 3, "No such partition as t-9"),
                ("t", 0, 84, needless),
                ("none", 0, 3, "No such topic as none"),
            ],
        )

    tell(story)


def test_elect_leaders_refuses_an_unknown_election_type_for_each_partition() -> None:
    async def story(world: ClusterWorld) -> None:
        assert await elect(world, 7, ("t", (0,))) == (
            42, [("t", 0, 42, "Unknown election type 7")],
        )  # fmt: skip

    tell(story)


def test_elect_leaders_for_all_partitions_returns_every_topic_with_no_partition_result() -> None:
    async def story(world: ClusterWorld) -> None:
        handlers = replicas.handlers(world.cluster(1))
        answer = await call(handlers, ELECT(topic_partitions=None), rpc.ElectLeadersResponse, 2)
        assert ("t", ()) in [(r.topic, r.partition_result) for r in answer.replica_election_results]

    tell(story)


def test_elect_leaders_fails_for_each_partition_if_every_broker_is_fenced() -> None:
    async def story(world: ClusterWorld) -> None:
        await world.fence(1)
        await world.fence(2)
        assert (await elect(world, 0, ("t", (0,))))[1][0][2] == 80
        assert (await elect(world, 1, ("t", (0,))))[1][0][2] == 83

    tell(story)


async def reassign(
    world: ClusterWorld,
    *moves: tuple[int, tuple[int, ...] | None],
    topic: str = "t",
    times: int = 1,
) -> tuple[int, list[tuple[int, int, str | None]]]:
    partition = TOPIC.ReassignablePartition
    request = rpc.AlterPartitionReassignmentsRequest(
        topics=(
            TOPIC(
                name=topic,
                partitions=tuple(
                    partition(partition_index=index, replicas=brokers) for index, brokers in moves
                )
                * times,
            ),
        )
    )
    handlers = replicas.handlers(world.cluster(1))
    answer = await call(handlers, request, rpc.AlterPartitionReassignmentsResponse, 1)
    return answer.error_code, [
        (one.partition_index, one.error_code, one.error_message)
        for topic in answer.responses
        for one in topic.partitions
    ]


def test_a_broker_refuses_an_invalid_partition_reassignment_with_kafkas_error_code() -> None:
    async def story(world: ClusterWorld) -> None:
        includes = "The manual partition assignment includes"
        assert await reassign(world, (9, (1,)), (0, None), (0, ()), (0, (7,)), (0, (1, 1))) == (
            0,
            [
                (9, 3, "Unable to find partition t:9."),
                (0, 85, None),
                (0, 39, f"{includes} an empty replica list."),
                (0, 39, f"{includes} broker 7, but no such broker is registered."),
                (0, 39, f"{includes} the broker 1 more than once."),
            ],
        )
        assert await reassign(world, (0, None), topic="none") == (
            0, [(0, 3, "Unable to find a topic named none.")],
        )  # fmt: skip

    tell(story)


def test_a_broker_refuses_to_reassign_a_partition_to_another_broker_than_the_leader() -> None:
    async def story(world: ClusterWorld) -> None:
        _, results = await reassign(world, (0, (1,)), (0, (2,)), (0, (1, 2)))
        codes = [code for _, code, _ in results]
        assert sorted(codes[:2]) == [0, 39]
        assert codes[2] == 39
        assert "no replicas to move" in str(results[2][2])

    tell(story)


def test_list_partition_reassignments_never_returns_a_partition() -> None:
    async def story(world: ClusterWorld) -> None:
        ask = rpc.ListPartitionReassignmentsRequest
        named = ask.ListPartitionReassignmentsTopics(name="t", partition_indexes=(0, 9))
        for topics, code in ((None, 0), ((), 0), ((named,), 0), ((named,) * TOO_MANY, 44)):
            answer = await call(
                replicas.handlers(world.cluster(1)),
                ask(topics=topics),
                rpc.ListPartitionReassignmentsResponse,
                0,
            )
            assert (answer.error_code, answer.topics) == (code, ())

    tell(story)


async def sizes(
    world: ClusterWorld, broker: int, *topics: tuple[str, tuple[int, ...]], version: int = 5
) -> tuple[int, dict[tuple[str, int], int]]:
    """Return the directory's error, and the size of each partition; of all without topics."""
    asked = tuple(DIRS.DescribableLogDirTopic(topic=name, partitions=ps) for name, ps in topics)
    handlers = replicas.handlers(world.cluster(broker))
    answer = await call(handlers, DIRS(topics=asked or None), rpc.DescribeLogDirsResponse, version)
    (directory,) = answer.results
    assert directory.log_dir == "object-store"
    return directory.error_code, {
        (topic.name, one.partition_index): one.partition_size
        for topic in directory.topics
        for one in topic.partitions
    }


def test_the_describe_log_dirs_responses_of_all_brokers_have_each_partition_once() -> None:
    async def story(world: ClusterWorld) -> None:
        stored = batch(1, 2, 3)
        await Stored(world).commit("t", [stored])
        both = [await sizes(world, broker) for broker in (1, 2)]
        assert [code for code, _ in both] == [0, 0]
        assert not both[0][1].keys() & both[1][1].keys()
        assert both[0][1] | both[1][1] == {("t", 0): len(stored), ("t", 1): 0}
        for version in range(1, 6):
            found = [
                await sizes(world, broker, ("t", (0, 9)), version=version) for broker in (1, 2)
            ]
            assert found[0][1] | found[1][1] == {("t", 0): len(stored)}
        assert await sizes(world, 1, ("t", ()), ("none", (0,))) == (0, {})

    tell(story)


def test_a_broker_without_a_replica_reports_its_directory_as_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(world: ClusterWorld) -> None:
        monkeypatch.setattr(type(world.cluster(1)), "replica", lambda *_: None)
        assert await sizes(world, 1) == (56, {})

    tell(story)


def test_a_broker_refuses_election_reassignment_and_log_dir_requests_of_100_000_partitions() -> (
    None
):
    async def story(world: ClusterWorld) -> None:
        indexes = tuple(range(TOO_MANY))
        code, results = await elect(world, 0, ("t", indexes))
        assert (code, {one[2] for one in results}) == (44, {44})
        assert len(results) <= replicas.MAX_PARTITIONS
        assert {one[2] for one in (await elect(world, 0, ("t", indexes), version=0))[1]} == {44}
        assert await reassign(world, (0, (1,)), times=TOO_MANY) == (44, [])
        assert await sizes(world, 1, ("t", indexes)) == (44, {})

    tell(story)
