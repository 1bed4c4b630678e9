"""WriteTxnMarkers: an administrator ends a hanging transaction, and no other."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from coordinator.transactions.decide import Decision
from coordinator.transactions.state import State
from diskless.apis import transaction_markers
from records.kafka_errors import ErrorCode as E
from records.rpc import transactions as rpc
from records.rpc.batch_coordinator import DescribeDisklessProducersRequest
from records.transactions import TransactionalIdRemovedRecord
from tests.diskless.calling import call
from tests.diskless.test_transactional_producers import ID, Broker, story

MARKER: Final = rpc.WriteTxnMarkersRequest.WritableTxnMarker


async def write(
    broker: Broker,
    *partitions: tuple[str, int],
    version: int = 1,
    **fields: Any,
) -> list[tuple[str, int, int]]:
    """Abort the producer's transactions at these partitions; return topic, partition and error."""
    producer_id, epoch = broker.producer
    topic = MARKER.WritableTxnMarkerTopic
    marker = MARKER(
        **{
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "transaction_result": False,
            "coordinator_epoch": 0,
            "topics": tuple(topic(name=n, partition_indexes=(p,)) for n, p in partitions),
            **fields,
        }
    )
    request = rpc.WriteTxnMarkersRequest(markers=(marker,))
    handlers = transaction_markers.handlers(broker.cluster)
    answer = await call(handlers, request, rpc.WriteTxnMarkersResponse, version)
    (result,) = answer.markers
    assert result.producer_id == marker.producer_id
    return [
        (topic_result.name, one.partition_index, one.error_code)
        for topic_result in result.topics
        for one in topic_result.partitions
    ]


async def begin(broker: Broker) -> None:
    """Begin a transaction with one record in t-0."""
    assert await broker.init() == 0
    assert await broker.add(("t", 0)) == {("t", 0): 0}
    assert await broker.produce(0) == 0


async def hang(broker: Broker) -> None:
    """Begin a transaction, and let the transaction log forget its transactional id."""
    await begin(broker)
    removed = TransactionalIdRemovedRecord(transactional_id=ID, reason=0)
    broker.world.transaction_log.submit(lambda _: Decision((removed,), None), lambda _: None)
    while ID in broker.world.transaction_machine.image.ids:
        await asyncio.sleep(0.01)


async def is_open(broker: Broker) -> bool:
    """Return whether a transaction is open in t-0."""
    topic = broker.world.image.topic("t")
    assert topic is not None
    asked = DescribeDisklessProducersRequest.Topic(topic_id=topic.topic_id, partitions=(0,))
    answer = await broker.cluster.leader(0).call(
        DescribeDisklessProducersRequest(coordinator_partition=0, topics=(asked,))
    )
    (partition,) = answer.responses[0].partitions
    return any(one.open_number >= 0 for one in partition.producers)


@pytest.mark.parametrize("version", [1, 2])
def test_a_broker_ends_a_hanging_transaction_for_an_administrator_once(version: int) -> None:
    async def told(broker: Broker) -> None:
        await hang(broker)
        for _ in range(2):  # the second time nothing is open
            assert await write(broker, ("t", 0), version=version) == [("t", 0, 0)]
            assert not await is_open(broker)
            assert broker.end_offset == 2  # the record and one marker

    story(told)


def test_a_broker_refuses_a_marker_for_a_transaction_that_is_open_in_the_log() -> None:
    async def told(broker: Broker) -> None:
        await begin(broker)
        for committed in (False, True):
            found = await write(broker, ("t", 0), transaction_result=committed)
            assert found == [("t", 0, E.INVALID_TXN_STATE)]
        assert await is_open(broker)
        assert await broker.end() == 0
        await broker.completed(State.COMPLETE_COMMIT)
        assert await write(broker, ("t", 0)) == [("t", 0, 0)]
        assert broker.end_offset == 2

    story(told)


@pytest.mark.parametrize(
    ("fields", "version", "code"),
    [
        ({"producer_epoch": 0}, 1, E.INVALID_PRODUCER_EPOCH),
        ({"producer_epoch": 1, "transaction_version": 2}, 2, E.INVALID_PRODUCER_EPOCH),
        ({"producer_epoch": 1, "transaction_version": 1}, 2, E.NONE),
        ({"producer_epoch": 2, "transaction_version": 2}, 2, E.NONE),
        ({"coordinator_epoch": -2}, 1, E.TRANSACTION_COORDINATOR_FENCED),
        ({"producer_id": 999_999}, 1, E.NONE),  # nothing of that producer is open
        ({"producer_id": -1}, 1, E.INVALID_REQUEST),
        ({"producer_epoch": -1}, 1, E.INVALID_REQUEST),
    ],
)
def test_a_broker_answers_a_marker_with_kafkas_codes_for_its_epochs(
    fields: dict[str, int], version: int, code: E
) -> None:
    async def told(broker: Broker) -> None:
        await broker.init()
        await hang(broker)  # at epoch 1
        assert broker.producer[1] == 1
        assert await write(broker, ("t", 0), version=version, **fields) == [("t", 0, code)]
        ends = code is E.NONE and "producer_id" not in fields
        assert await is_open(broker) is not ends

    story(told)


def test_a_broker_answers_a_marker_for_unknown_and_internal_partitions_with_errors() -> None:
    async def told(broker: Broker) -> None:
        await hang(broker)
        named = (("t", 9), ("absent", 0), ("__consumer_offsets", 0), ("t", 0))
        assert await write(broker, *named) == [
            ("t", 9, E.UNKNOWN_TOPIC_OR_PARTITION),
            ("absent", 0, E.UNKNOWN_TOPIC_OR_PARTITION),
            ("__consumer_offsets", 0, E.INVALID_TOPIC_EXCEPTION),
            ("t", 0, 0),
        ]

    story(told)


def test_a_broker_answers_a_marker_not_leader_if_a_log_has_no_leader() -> None:
    async def told(broker: Broker) -> None:
        await hang(broker)
        refused = [("t", 0, E.NOT_LEADER_OR_FOLLOWER)]
        broker.world.transactions_away = True
        assert await write(broker, ("t", 0)) == refused
        broker.world.transactions_away = False
        broker.world.leaders[0].away = True
        assert await write(broker, ("t", 0)) == refused
        broker.world.leaders[0].away = False
        assert await is_open(broker)

    story(told)


def test_a_broker_refuses_markers_while_the_formats_of_transactions_are_not_finalized() -> None:
    async def told(broker: Broker) -> None:
        broker.producer = (5, 0)
        assert await write(broker, ("t", 0)) == [("t", 0, E.UNSUPPORTED_VERSION)]

    story(told, has_transactions=False)


def test_a_broker_refuses_a_marker_for_100_000_partitions_with_one_error() -> None:
    async def told(broker: Broker) -> None:
        broker.producer = (5, 0)
        many = MARKER.WritableTxnMarkerTopic(name="t", partition_indexes=tuple(range(100_000)))
        found = await write(broker, topics=(many,))
        assert found == [("t", 0, E.POLICY_VIOLATION)]

    story(told)


MUTANTS: Final = {
    "_check_ended": test_a_broker_refuses_a_marker_for_a_transaction_that_is_open_in_the_log,
    "_refuse_epochs": lambda: test_a_broker_answers_a_marker_with_kafkas_codes_for_its_epochs(
        {"producer_epoch": 0}, 1, E.INVALID_PRODUCER_EPOCH
    ),
}
"""Rules, and a test that fails without each."""


@pytest.mark.parametrize("rule", MUTANTS)
def test_a_broker_mutant_that_skips_a_check_of_markers_is_caught(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def pass_all(*_: Any) -> E:
        return E.NONE

    skipped = pass_all if rule == "_check_ended" else lambda *_: E.NONE
    monkeypatch.setattr(transaction_markers, rule, skipped)
    with pytest.raises(AssertionError):
        MUTANTS[rule]()
