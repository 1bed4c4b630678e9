"""Producers spread over brokers again after restarts, in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import permutations
from typing import Any
from uuid import UUID

import pytest

from coordinator.controller.apply import ImageEdit
from coordinator.controller.decide.placement import new_partition
from coordinator.controller.guarding import replace
from coordinator.controller.image import MetadataImage
from coordinator.controller.placement import leader, preferred_brokers, unfenced_brokers
from coordinator.rendezvous import score
from diskless.produce import spreading as module
from diskless.produce.spreading import REFUSES_S, SETTLES_S, ProducerSpreading
from records.kafka_errors import ErrorCode
from records.metadata import BrokerRegistrationChangeRecord, RegisterBrokerRecord, TopicRecord
from records.rpc.produce import ProduceResponse
from records.types import Epoch, Offset
from tests.diskless.broker_world import ask_at, running_broker
from tests.diskless.cluster_world import ClusterWorld
from tests.diskless.test_broker import produce, run
from tests.diskless.virtual_time import run as run_virtually
from tests.waiting import wait_until_async

TOPIC = UUID(int=77)
CLIENTS = 60
BROKERS = (1, 2, 3)


def register(edit: ImageEdit, broker_id: int) -> None:
    edit.apply(
        RegisterBrokerRecord(
            broker_id=broker_id,
            incarnation_id=UUID(int=broker_id),
            broker_epoch=broker_id,
            end_points=(),
            features=(),
            rack=None,
            fenced=False,
        )
    )


class Producer:
    """A client with a partition of its own, which asks for Metadata only when it is refused."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._partition = number
        self.broker = world.leader(number)
        self._connection: object | None = None

    def send(self) -> int | None:
        """Send one request; return the broker that took it, or None if it was refused."""
        world, there = self._world, self.broker
        if there not in world.running:
            self._move()
            return None
        if self._connection is None:
            self._connection = object()
        spreading = world.running[there]
        destination = spreading.destination(self._connection, "app")
        if destination is not None and destination.broker_elsewhere(TOPIC, self._partition):
            self._move()
            return None
        return there

    def _move(self) -> None:
        found = self._world.leader(self._partition)
        if found != self.broker:
            self.broker, self._connection = found, None


class World:
    """Three brokers that restart, and sixty producers."""

    def __init__(self) -> None:
        self.image = MetadataImage()
        self._change(lambda edit: [register(edit, broker_id) for broker_id in BROKERS])
        self.running: dict[int, ProducerSpreading] = {}
        for broker_id in BROKERS:
            self._start(broker_id)
        self.producers = [Producer(self, number) for number in range(CLIENTS)]

    def _start(self, broker_id: int) -> None:
        clock = asyncio.get_running_loop().time
        self.running[broker_id] = ProducerSpreading(broker_id, clock=clock)
        self.running[broker_id].on_image(self.image)

    def _change(self, change: Any) -> None:
        edit = ImageEdit(self.image)
        change(edit)
        self.image = edit.publish(Offset(self.image.offset + 1), Epoch(1))
        for spreading in getattr(self, "running", {}).values():
            spreading.on_image(self.image)

    def change(self, broker_id: int, **fields: Any) -> None:
        self._change(
            lambda edit: edit.apply(
                BrokerRegistrationChangeRecord(
                    broker_id=broker_id, broker_epoch=broker_id, **fields
                )
            )
        )

    def leader(self, partition: int) -> int:
        found = leader(TOPIC, partition, None, preferred_brokers(unfenced_brokers(self.image)))
        assert found is not None
        return found

    async def pass_s(self, seconds: float) -> Counter[int]:
        """Let every producer send ten requests a second; count those that each broker took."""
        taken: Counter[int] = Counter()
        for _ in range(round(seconds * 10)):
            await asyncio.sleep(0.1)
            for producer in self.producers:
                found = producer.send()
                if found is not None:
                    taken[found] += 1
        return taken

    async def restart(self, broker_id: int) -> None:
        self.change(broker_id, fenced=1)
        del self.running[broker_id]
        await self.pass_s(5)
        self._start(broker_id)
        self.change(broker_id, fenced=-1)
        await self.pass_s(5)


def shares_after_restarts(order: tuple[int, ...]) -> Counter[int]:
    async def story() -> Counter[int]:
        world = World()
        await world.pass_s(2)
        for broker_id in order:
            await world.restart(broker_id)
        await world.pass_s(30)
        return await world.pass_s(10)

    return run_virtually(story)


@pytest.mark.parametrize("order", list(permutations(BROKERS)))
def test_after_broker_restarts_in_any_order_no_broker_serves_over_half_of_the_requests(
    order: tuple[int, ...],
) -> None:
    taken = shares_after_restarts(order)
    assert sum(taken.values()) == CLIENTS * 100, "nobody is refused any more"
    assert max(taken.values()) <= CLIENTS * 100 / 2, taken


def test_a_mutant_without_producer_redirects_concentrates_requests_on_one_broker_after_restarts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The mutant: the cluster as it was."""
    monkeypatch.setattr(ProducerSpreading, "destination", lambda *_: None)
    taken = shares_after_restarts((1, 2, 3))
    assert max(taken.values()) > CLIENTS * 100 / 2, taken
    assert taken[3] == 0, "the last one that came back has no producer"


def test_producers_move_from_a_broker_that_is_no_longer_preferred_to_other_brokers() -> None:
    async def story() -> None:
        world = World()
        await world.pass_s(2)
        world.change(2, unpreferred_reason="full")
        await world.pass_s(SETTLES_S + REFUSES_S)
        assert (await world.pass_s(5))[2] == 0
        world.change(2, unpreferred_reason="")
        await world.pass_s(SETTLES_S + REFUSES_S)
        assert (await world.pass_s(5))[2] > 0

    run_virtually(story)


def test_a_broker_serves_a_producer_that_ignores_its_redirect_after_a_short_refusal() -> None:
    async def story() -> None:
        world = World()
        stubborn, connection = world.running[1], object()
        partition = next(number for number in range(CLIENTS) if world.leader(number) == 2)

        def refuses() -> bool:
            destination = stubborn.destination(connection, "app")
            return (
                destination is not None
                and destination.broker_elsewhere(TOPIC, partition) is not None
            )

        assert not refuses(), "any broker takes any batch"
        await world.restart(2)
        assert refuses(), "at once and for a moment, so that no later request overtakes it"
        await asyncio.sleep(REFUSES_S / 2)
        assert refuses()
        await asyncio.sleep(REFUSES_S)
        assert not refuses()
        await asyncio.sleep(60)
        assert not refuses()
        stubborn.forget(connection)
        assert not stubborn._producers.get(connection)
        assert not refuses(), "a connection from after the change"

    run_virtually(story)


def test_a_connected_producer_is_redirected_to_a_broker_that_joins_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over real sockets: the answer is Kafka's, and the batch is not written."""
    monkeypatch.setattr(module, "SETTLES_S", 0.0)

    async def story() -> None:
        async with ClusterWorld(brokers=()) as world, running_broker(world) as broker:
            topic = await world.create("t")
            port = broker.listeners["PLAIN"].port
            answers: list[int] = []

            async def send() -> int:
                response = await ask_at(port, produce(b"x"), ProduceResponse, 9)
                (partition,) = response.responses[0].partition_responses
                answers.append(partition.error_code)
                return partition.error_code

            assert await send() == ErrorCode.NONE
            spreading = broker.services.spreading
            connection = object()
            spreading.destination(connection, None)
            monkeypatch.setattr(
                spreading, "forget", lambda _: None
            )  # all requests are of one connection here
            destination = spreading.destination
            monkeypatch.setattr(
                spreading, "destination", lambda _, client_id: destination(connection, client_id)
            )
            others = range(2, 30)
            winner = max(others, key=lambda other: score(topic.topic_id.bytes + bytes(4), other))
            await world.register(winner)
            await world.unfence(winner)
            image = world.image
            assert leader(topic.topic_id, 0, None, unfenced_brokers(image)) == winner
            await wait_until_async(lambda: len(broker._cluster.image.brokers) > 1)
            assert await send() == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(story)


def test_producers_of_a_chunk_stay_with_its_replica_and_others_are_sent_there() -> None:
    async def story() -> None:
        clock = asyncio.get_running_loop().time
        edit = ImageEdit(MetadataImage())
        register(edit, 1)
        register(edit, 2)
        edit.apply(TopicRecord(name="t", topic_id=TOPIC))
        for index in range(16):
            record = new_partition(TOPIC, index, (1,))
            edit.apply(replace(record, start_offset=10))
        image = edit.publish(Offset(1), Epoch(1))
        spreading = {one: ProducerSpreading(one, clock=clock) for one in (1, 2)}
        for each in spreading.values():
            each.on_image(image)
            assert each.destination("connection", "app") is None
        await asyncio.sleep(1)
        edit = ImageEdit(image)
        register(edit, 3)
        image = edit.publish(Offset(2), Epoch(1))
        for each in spreading.values():
            each.on_image(image)
        await asyncio.sleep(SETTLES_S + 0.1)
        for broker_id, expected in ((1, None), (2, 1)):
            found = spreading[broker_id].destination("connection", "app")
            assert found is not None
            assert {found.broker_elsewhere(TOPIC, index) for index in range(16)} == {expected}

    run_virtually(story)
