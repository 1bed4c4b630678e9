"""A broker tells its faults: the store, missing objects, old replicas, and its membership."""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from diskless.health import MISSING_S, BrokerHealth
from diskless.stores.faults import Fault, FaultRule, FaultyStore
from diskless.stores.memory import MemoryStore
from diskless.stores.watched import WatchedStore
from raft.interfaces import Degradation
from records.kafka_errors import ErrorCode
from records.rpc.produce import ProduceResponse
from tests.diskless.broker_world import ask_at, running_broker
from tests.diskless.cluster_world import ClusterWorld
from tests.diskless.test_broker import produce, run
from tests.diskless.virtual_time import run as run_virtually
from tests.waiting import wait_until_async


class Parts:
    """The parts of a broker whose faults are collected."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.faulty = FaultyStore(MemoryStore(lambda: 0), Random(1), asyncio.sleep)
        self.store = WatchedStore(self.faulty, "probe", clock=loop.time)
        self.ages: dict[int, float | None] = {0: 100.0, 1: 100.0}
        self.image_age: float | None = 100.0
        self.cluster: Any = SimpleNamespace(
            image=SimpleNamespace(coordinator_count=2),
            image_age_ms=lambda: self.image_age,
            replica_age_ms=lambda coordinator: self.ages[coordinator],
        )
        self.fetch = SimpleNamespace(last_missing=None)
        self.node_faults: list[Degradation] = []
        self.clock_ahead_ms = 0
        self.health = BrokerHealth(
            cluster=self.cluster,
            store=self.store,
            fetch=self.fetch,
            age_limit_ms=30_000,
            node_faults=lambda: self.node_faults,
            clock=loop.time,
            clock_ahead_ms=lambda: self.clock_ahead_ms,
        )

    @property
    def names(self) -> list[str]:
        return [fault.name for fault in self.health.faults()]


def test_a_broker_without_faults_reports_no_health_fault() -> None:
    async def story() -> None:
        parts = Parts()
        await parts.store.probe()
        assert parts.names == []
        assert parts.health.unready_reason() is None

    run_virtually(story)


def test_a_broker_reports_a_replica_past_its_age_limit_as_a_health_fault() -> None:
    async def story() -> None:
        parts = Parts()
        parts.ages[1] = 4_100.0
        (fault,) = parts.health.faults()
        assert fault == Degradation("replica", "the replica of __diskless-metadata-1 is 4 s old")
        parts.ages[1], parts.image_age = 100.0, None
        assert "__cluster_metadata-0" in (parts.health.unready_reason() or "")

    run_virtually(story)


def test_a_broker_reports_a_missing_object_as_a_health_fault_for_one_minute() -> None:
    async def story() -> None:
        parts = Parts()
        parts.fetch.last_missing = ("ce/c-1/0/4711", asyncio.get_running_loop().time())
        assert parts.names == ["missing_object"]
        assert "ce/c-1/0/4711" in (parts.health.unready_reason() or "")
        await asyncio.sleep(MISSING_S + 1)
        assert parts.names == []

    run_virtually(story)


@pytest.mark.parametrize(
    ("ahead_ms", "reason"),
    [
        (59_000, None),
        (7_200_000, "the wall clock is 7200 s ahead of the controller's"),
        (-90_000, "the wall clock is 90 s behind the controller's"),
    ],
)
def test_a_broker_whose_wall_clock_differs_from_the_controllers_reports_a_health_fault(
    ahead_ms: int, reason: str | None
) -> None:
    async def story() -> None:
        parts = Parts()
        parts.clock_ahead_ms = ahead_ms
        assert parts.health.unready_reason() == reason
        assert parts.names == ["clock"] * (reason is not None)

    run_virtually(story)


def test_a_broker_reports_a_clock_fault_if_heartbeat_responses_show_another_wall_clock() -> None:
    async def story() -> None:
        async with ClusterWorld(brokers=()) as world:
            for number, ahead_ms, faults in ((1, 0, []), (2, 7_200_000, ["clock"])):
                async with running_broker(world, number, ahead_ms=ahead_ms) as broker:
                    assert [fault.name for fault in broker.degradations()] == faults

    run(story)


def test_a_brokers_unready_reason_includes_only_node_faults_that_make_the_node_unready() -> None:
    async def story() -> None:
        parts = Parts()
        parts.node_faults.append(Degradation("clock", "deletion is held", unready=False))
        assert parts.health.unready_reason() is None
        parts.node_faults.append(Degradation("flush", "a flush hangs"))
        assert parts.health.unready_reason() == "a flush hangs"
        assert parts.names == [], "the node tells them itself"

    run_virtually(story)


REFUSES = FaultRule(fault=Fault.REFUSED, operations=frozenset({"upload"}))


def test_a_broker_with_a_refusing_store_reports_the_reason_to_producers_and_in_its_health() -> None:
    async def story() -> None:
        async with ClusterWorld(brokers=()) as world:
            store = FaultyStore(MemoryStore(world.wall_ms), Random(1), asyncio.sleep)
            async with running_broker(world, store=store) as broker:
                await world.create("t")
                assert [fault.name for fault in broker.degradations()] == []
                store.rules = (REFUSES,)
                port = broker.listeners["PLAIN"].port
                response = await ask_at(port, produce(b"x"), ProduceResponse, 9)
                (partition,) = response.responses[0].partition_responses
                assert partition.error_code == ErrorCode.KAFKA_STORAGE_ERROR
                assert partition.error_message is not None
                assert "403 AccessDenied" in partition.error_message
                (fault,) = broker.degradations()
                assert fault.name == "object_store"
                assert "403 AccessDenied" in fault.reason

    run(story)


def test_a_produce_request_that_times_out_names_the_reason_of_the_store_failure() -> None:
    async def story() -> None:
        async with ClusterWorld(brokers=()) as world:
            store = FaultyStore(MemoryStore(world.wall_ms), Random(1), asyncio.sleep)
            async with running_broker(world, store=store) as broker:
                await world.create("t")
                store.rules = (FaultRule(fault=Fault.ERROR, operations=frozenset({"upload"})),)
                port = broker.listeners["PLAIN"].port
                request = produce(b"x", timeout_ms=300)
                response = await ask_at(port, request, ProduceResponse, 9)
                (partition,) = response.responses[0].partition_responses
                assert partition.error_code == ErrorCode.REQUEST_TIMED_OUT
                assert "500 InternalError" in (partition.error_message or "")
                store.rules = ()

    run(story)


def test_a_broker_with_a_failing_store_starts_and_reports_the_fault() -> None:
    async def story() -> None:
        async with ClusterWorld(brokers=()) as world:
            store = FaultyStore(MemoryStore(world.wall_ms), Random(1), asyncio.sleep, (REFUSES,))
            async with running_broker(world, store=store) as broker:
                assert [fault.name for fault in broker.degradations()] == ["object_store"]
                store.rules = ()
                await wait_until_async(lambda: not list(broker.degradations()))

    run(story)


def test_a_fenced_broker_is_unready_and_reports_no_unready_reason_to_the_controller() -> None:
    async def story() -> None:
        async with ClusterWorld(brokers=()) as world, running_broker(world) as broker:
            registration = broker._registration
            assert registration is not None
            registration.is_fenced = True
            assert [fault.name for fault in broker.degradations()] == ["fenced"]
            assert broker.health.unready_reason() is None
            registration.is_fenced = False

    run(story)


def test_an_unready_broker_reports_its_reason_to_the_controller_from_esker_version_2_on() -> None:
    async def story(level: int) -> None:
        async with ClusterWorld(brokers=(), esker_version=level) as world:
            store = FaultyStore(MemoryStore(world.wall_ms), Random(1), asyncio.sleep, (REFUSES,))
            settings = {"broker_heartbeat_interval_ms": 20}
            async with running_broker(world, store=store, **settings) as broker:
                if level == 1:
                    assert broker._unready_reason() is None
                    return
                reports = world.controller.preferences._reports
                assert "403 AccessDenied" in (reports[1].reason or "")
                store.rules = ()
                await wait_until_async(lambda: reports[1].reason is None)

    run(lambda: story(1))
    run(lambda: story(2))
