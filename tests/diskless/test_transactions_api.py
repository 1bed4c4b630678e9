"""The producers of partitions, and transactions, of which there are none.

The codes and texts are those of Apache Kafka 4.3.1 for the same requests.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from diskless.apis import transactions
from records.rpc import API
from records.rpc import transactions as rpc
from records.rpc.base import Request
from tests.diskless.calling import call
from tests.diskless.cluster_world import ClusterWorld
from tests.diskless.records_world import RecordsBroker, batch
from tests.diskless.virtual_time import run

TOO_MANY: Final = 100_000
NOT_HOSTED: Final = "This server does not host this topic-partition."


async def ask(world: ClusterWorld, request: Request, version: int | None = None) -> Any:
    """Send a request to its handler, in its newest version by default."""
    schema = request.schema()
    assert schema.key is not None
    version = schema.versions.last if version is None else version
    handlers = transactions.handlers(world.cluster(1))
    return await call(handlers, request, API[schema.key].response, version)


def tell(story: Callable[[ClusterWorld], Awaitable[None]]) -> None:
    async def told() -> None:
        async with ClusterWorld() as world:
            await world.create("t", 2)
            await story(world)

    run(told)


def answer_to(request: Request, version: int | None = None) -> Any:
    """Ask a broker of a new cluster."""
    answers = []

    async def story(world: ClusterWorld) -> None:
        answers.append(await ask(world, request, version))

    tell(story)
    return answers[0]


def about(*topics: tuple[str, tuple[int, ...]]) -> rpc.DescribeProducersRequest:
    """Build a DescribeProducers of (topic, partitions)."""
    topic = rpc.DescribeProducersRequest.TopicRequest
    return rpc.DescribeProducersRequest(
        topics=tuple(topic(name=name, partition_indexes=indexes) for name, indexes in topics)
    )


def test_describe_producers_returns_the_last_sequence_and_time_of_each_producer() -> None:
    async def story(world: ClusterWorld) -> None:
        broker = RecordsBroker(world, 1)
        for first, count in ((0, 3), (3, 2)):
            records = batch(
                *range(count), now_ms=world.wall_ms(), producer_id=7, producer_epoch=1,
                base_sequence=first,
            )  # fmt: skip
            assert (await broker.produce("t", 0, records)).error_code == 0
        (topic,) = (await ask(world, about(("t", (0, 1))))).topics
        (producer,) = topic.partitions[0].active_producers
        assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (7, 1, 4)
        assert (producer.coordinator_epoch, producer.current_txn_start_offset) == (-1, -1)
        assert abs(producer.last_timestamp - world.wall_ms()) < 10_000
        assert (topic.partitions[1].error_code, topic.partitions[1].active_producers) == (0, ())
        await broker.end()

    tell(story)


def test_describe_producers_returns_an_error_for_each_unknown_partition() -> None:
    topics = answer_to(about(("t", (0, 9)), ("none", (0,)), ("", (0,)), ("bad name", (0,)))).topics
    assert [
        (topic.name, one.partition_index, one.error_code)
        for topic in topics
        for one in topic.partitions
    ] == [("t", 0, 0), ("t", 9, 3), ("none", 0, 3), ("", 0, 17), ("bad name", 0, 17)]
    assert topics[1].partitions[0].error_message == NOT_HOSTED


def test_describe_producers_returns_not_leader_or_follower_if_the_coordinator_is_down() -> None:
    async def story(world: ClusterWorld) -> None:
        world.leaders[0].away = True
        (topic,) = (await ask(world, about(("t", (0,))))).topics
        assert topic.partitions[0].error_code == 6
        world.leaders[0].away = False

    tell(story)


def test_a_broker_refuses_describe_producers_of_100_000_partitions() -> None:
    topics = answer_to(about(("t", tuple(range(TOO_MANY))), ("none", (0,)))).topics
    assert {one.error_code for topic in topics for one in topic.partitions} == {44}
    topics = answer_to(about(*(("none", (0,)),) * 40_000)).topics
    assert {one.error_code for topic in topics for one in topic.partitions} == {44}


@pytest.mark.parametrize("version", [0, 1, 2])
def test_without_transactions_list_transactions_returns_none_and_names_unknown_state_filters(
    version: int,
) -> None:
    request = rpc.ListTransactionsRequest
    answer = answer_to(
        request(state_filters=("Ongoing", "Idle", "Idle"), producer_id_filters=(5,)), version
    )
    assert (answer.error_code, answer.unknown_state_filters) == (0, ("Idle",))
    assert answer.transaction_states == ()


@pytest.mark.parametrize("pattern", ["((", "x" * 5_000, "(" * 900, "a{99999999999999999999}"])
def test_list_transactions_refuses_a_pattern_that_is_no_regular_expression(pattern: str) -> None:
    request = rpc.ListTransactionsRequest
    answer = answer_to(
        request(state_filters=(), producer_id_filters=(), transactional_id_pattern=pattern)
    )
    assert answer.error_code == 128


def test_describe_transactions_returns_transactional_id_not_found_for_each_id() -> None:
    request = rpc.DescribeTransactionsRequest
    states = answer_to(request(transactional_ids=("a", "", "a"))).transaction_states
    assert [(one.transactional_id, one.error_code) for one in states] == [
        ("a", 105), ("", 42), ("a", 105),
    ]  # fmt: skip
    states = answer_to(request(transactional_ids=("a",) * TOO_MANY)).transaction_states
    assert {one.error_code for one in states} == {44}
    assert len(states) < TOO_MANY
