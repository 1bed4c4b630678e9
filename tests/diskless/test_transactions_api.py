"""The producers of partitions, and lists of transactions.

The codes and texts are those of Apache Kafka 4.3.1 for the same requests.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from diskless.apis import transactions
from records.kafka_errors import ErrorCode
from records.rpc import API
from records.rpc import transaction_log as log_rpc
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
    handlers = transactions.handlers(world.cluster(1), world.wall_ms)
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


@pytest.mark.parametrize(
    "pattern",
    ["((", "x" * 5_000, "(" * 900, "a{99999999999999999999}", "(a+)+b", "(a|a)*b", "a*" * 20],
)
def test_list_transactions_refuses_a_pattern_that_is_invalid_or_takes_long_to_match(
    pattern: str,
) -> None:
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


ID: Final = "payments-1"


def in_transaction(story: Callable[[ClusterWorld], Awaitable[None]]) -> None:
    """Tell a story of two brokers, whose cluster has a transaction over t-0 and t-1."""

    async def told() -> None:
        async with ClusterWorld(brokers=(1, 2)) as world:
            await world.finalize(esker_version=4, transaction_version=1)
            await world.create("t", 2)
            topic = world.image.topic("t")
            assert topic is not None
            ask_log = world.ask_transactions
            owner: Any = None
            for broker_id in (1, 2):
                answer: Any = await ask_log(
                    log_rpc.AcquireTransactionalIdRequest(
                        transactional_id=ID,
                        broker_id=broker_id,
                        broker_epoch=world.image.brokers[broker_id].broker_epoch,
                        create=True,
                    )
                )
                owner = owner or (not answer.error_code and answer.ownership_epoch)
            await ask_log(
                log_rpc.InitTransactionalIdRequest(
                    transactional_id=ID,
                    ownership_epoch=owner,
                    timeout_ms=60_000,
                    spare_producer_id=7,
                )
            )
            await ask_log(
                log_rpc.AddTransactionPartitionsRequest(
                    transactional_id=ID,
                    ownership_epoch=owner,
                    producer_id=7,
                    producer_epoch=0,
                    topics=(
                        log_rpc.TransactionTopic(
                            topic_id=topic.topic_id, topic_name="t", partitions=(0, 1)
                        ),
                    ),
                    metadata_offset=0,
                )
            )
            await story(world)

    run(told)


async def listed(world: ClusterWorld, **filters: Any) -> list[list[tuple[str, int, str]]]:
    """List transactions at both brokers."""
    request = rpc.ListTransactionsRequest(
        **{"state_filters": (), "producer_id_filters": (), **filters}
    )
    schema = request.schema()
    found = []
    for broker_id in (1, 2):
        handlers = transactions.handlers(world.cluster(broker_id), world.wall_ms)
        answer = await call(handlers, request, rpc.ListTransactionsResponse, schema.versions.last)
        assert answer.error_code == 0
        found.append(
            [
                (one.transactional_id, one.producer_id, one.transaction_state)
                for one in answer.transaction_states
            ]
        )
    return found


def test_list_transactions_returns_each_transaction_at_the_broker_that_owns_its_id() -> None:
    async def story(world: ClusterWorld) -> None:
        assert sorted(await listed(world)) == [[], [(ID, 7, "Ongoing")]]

    in_transaction(story)


@pytest.mark.parametrize(
    ("filters", "is_found"),
    [
        ({"state_filters": ("Ongoing", "Empty")}, True),
        ({"state_filters": ("Idle",)}, False),
        ({"producer_id_filters": (7, 8)}, True),
        ({"producer_id_filters": (8,)}, False),
        ({"duration_filter": 10**9}, False),
        ({"transactional_id_pattern": "pay.*"}, True),
        ({"transactional_id_pattern": "pay"}, False),
    ],
)
def test_list_transactions_returns_only_transactions_that_match_each_filter(
    filters: dict[str, Any], is_found: bool
) -> None:
    async def story(world: ClusterWorld) -> None:
        assert sum(map(len, await listed(world, **filters))) == is_found

    in_transaction(story)


def test_describe_transactions_returns_the_state_at_the_broker_that_owns_the_id() -> None:
    async def story(world: ClusterWorld) -> None:
        request = rpc.DescribeTransactionsRequest(transactional_ids=(ID, "absent"))
        states = []
        for broker_id in (1, 2):
            handlers = transactions.handlers(world.cluster(broker_id), world.wall_ms)
            answer = await call(handlers, request, rpc.DescribeTransactionsResponse, 0)
            states.append({one.transactional_id: one for one in answer.transaction_states})
        codes = sorted(found[ID].error_code for found in states)
        assert codes == [0, ErrorCode.NOT_COORDINATOR]
        (found,) = (found[ID] for found in states if not found[ID].error_code)
        assert (found.transaction_state, found.producer_id, found.producer_epoch) == (
            "Ongoing", 7, 0,
        )  # fmt: skip
        assert [(one.topic, one.partitions) for one in found.topics] == [("t", (0, 1))]
        assert found.transaction_timeout_ms == 60_000
        assert abs(found.transaction_start_time_ms - world.wall_ms()) < 10_000
        absent = sorted(found["absent"].error_code for found in states)
        assert absent == [ErrorCode.NOT_COORDINATOR, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND]
        world.transactions_away = True
        broker_id = 1 + [found[ID].error_code for found in states].index(0)
        handlers = transactions.handlers(world.cluster(broker_id), world.wall_ms)
        answer = await call(handlers, request, rpc.DescribeTransactionsResponse, 0)
        assert answer.transaction_states[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE

    in_transaction(story)
