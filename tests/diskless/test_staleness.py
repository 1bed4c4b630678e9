"""Staleness is bounded: each rule by itself. Source: docs/design/broker.md#staleness-is-bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from diskless.fetch.staleness import Staleness
from records.rpc.batch_coordinator import DeleteDisklessRecordsRequest
from tests.diskless.cluster_world import ClusterWorld
from tests.diskless.records_world import DELETE_DELAY_MS, RecordsBroker, batch, values
from tests.diskless.virtual_time import run

OFFSET_OUT_OF_RANGE = 1
NOT_LEADER_OR_FOLLOWER = 6
KAFKA_STORAGE_ERROR = 56
OFFSET_NOT_AVAILABLE = 78
HALF = DELETE_DELAY_MS / 2


class Scene(NamedTuple):
    """Two brokers of a cluster; a test cuts off the second."""

    world: ClusterWorld
    one: RecordsBroker
    two: RecordsBroker


def claim(work: Callable[[Scene], Awaitable[None]]) -> None:
    """Run with two brokers, one store, and a topic with 1 to 3 in its first partition."""

    async def on_loop() -> None:
        async with ClusterWorld(brokers=(1, 2)) as world:
            await world.create("t", partitions=2)
            one = RecordsBroker(world, 1)
            two = RecordsBroker(world, 2, one.memory)
            for number in (1, 2, 3):
                answer = await one.produce("t", 0, batch(number, now_ms=world.wall_ms()))
                assert answer.error_code == 0
            await work(Scene(world, one, two))
            await one.end()
            await two.end()

    run(on_loop)


def test_the_age_limit_of_a_brokers_replica_is_half_of_the_file_deletion_delay() -> None:
    age_ms: float | None = None
    staleness = Staleness(lambda _: age_ms, file_delete_delay_ms=60_000)
    assert not staleness.may_serve(0), "a replica that was never level serves nothing"
    for aged_ms, allowed in ((0, True), (30_000, True), (30_001, False), (29_999, True)):
        age_ms = aged_ms
        assert staleness.may_serve(0) is allowed
    assert staleness.refusals == 2


def test_a_broker_cut_off_from_the_quorum_stops_serving_and_resumes() -> None:
    async def work(scene: Scene) -> None:
        one = scene.one
        two = scene.two
        assert values((await two.fetch("t", 0, 0)).records) == [(0, 1), (1, 2), (2, 3)]
        two.cluster.ages_ms[0] = HALF
        assert (await two.fetch("t", 0, 0)).error_code == 0
        two.cluster.ages_ms[0] = HALF + 1
        found = await two.fetch("t", 0, 0)
        assert (found.error_code, found.records) == (NOT_LEADER_OR_FOLLOWER, b"")
        assert (await one.fetch("t", 0, 0)).error_code == 0, "the other broker is well"
        two.cluster.ages_ms[0] = 5.0
        assert (await two.fetch("t", 0, 0)).error_code == 0

    claim(work)


def test_a_waiting_fetch_fails_when_its_replica_becomes_stale() -> None:
    async def work(scene: Scene) -> None:
        two = scene.two
        waiting = asyncio.ensure_future(two.fetch("t", 0, 3, max_wait_ms=500))
        await asyncio.sleep(0.1)
        two.cluster.ages_ms[0] = HALF + 1
        assert (await waiting).error_code == NOT_LEADER_OR_FOLLOWER

    claim(work)


def test_a_broker_whose_replica_never_caught_up_serves_no_fetch() -> None:
    async def work(scene: Scene) -> None:
        two = scene.two
        two.cluster.ages_ms[0] = None
        assert (await two.fetch("t", 0, 0)).error_code == NOT_LEADER_OR_FOLLOWER

    claim(work)


def test_a_fetch_at_a_lagging_broker_does_not_get_offset_out_of_range() -> None:
    async def work(scene: Scene) -> None:
        world, one, two = scene
        two.cluster.replicas[0].paused = True
        for number in (4, 5):
            await one.produce("t", 0, batch(number, now_ms=world.wall_ms()))
        assert two.cluster.replicas[0].lag > 0
        assert values((await two.fetch("t", 0, 0)).records)[-1] == (2, 3), (
            "what it knows, it serves"
        )
        found = await two.fetch("t", 0, 5)
        assert (found.error_code, found.records) == (0, b"")
        waiting = asyncio.ensure_future(two.fetch("t", 0, 3, max_wait_ms=20_000))
        await asyncio.sleep(1)
        assert not waiting.done()
        assert two.fetch_service.counters.barriers == 1, "who waits asks nobody"
        two.cluster.replicas[0].paused = False
        two.cluster.replicas[0].go_on()
        assert values((await waiting).records) == [(3, 4), (4, 5)]
        assert (await two.fetch("t", 0, 6)).error_code == OFFSET_OUT_OF_RANGE

    claim(work)


def test_deleted_offsets_get_offset_out_of_range_only_after_the_coordinators_read_barrier() -> None:
    async def work(scene: Scene) -> None:
        world = scene.world
        two = scene.two
        await delete_to(world, 2)
        found = await two.fetch("t", 0, 0)
        assert (found.error_code, found.log_start_offset) == (OFFSET_OUT_OF_RANGE, 2)
        world.leaders[0].away = True
        assert (await two.fetch("t", 0, 0)).error_code == OFFSET_NOT_AVAILABLE
        assert (await two.fetch("t", 0, 9)).error_code == OFFSET_NOT_AVAILABLE

    claim(work)


def test_a_broker_serves_batches_without_a_quorum_leader_until_its_replica_is_stale() -> None:
    async def work(scene: Scene) -> None:
        world = scene.world
        two = scene.two
        world.leaders[0].away = world.controller_away = True
        for age_ms in (0.0, 1_000.0, HALF):
            two.cluster.ages_ms[0] = age_ms
            assert len(values((await two.fetch("t", 0, 0)).records)) == 3
        two.cluster.ages_ms[0] = HALF + 1
        assert (await two.fetch("t", 0, 0)).error_code == NOT_LEADER_OR_FOLLOWER
        world.leaders[0].away = False

    claim(work)


def test_a_fetch_whose_object_and_records_were_deleted_gets_offset_out_of_range() -> None:
    async def work(scene: Scene) -> None:
        world = scene.world
        two = scene.two
        two.cluster.replicas[0].paused = True  # it has not heard that they are deleted
        await delete_to(world, 3)
        two.memory.objects.clear()
        found = await two.fetch("t", 0, 0)
        assert (found.error_code, found.log_start_offset) == (OFFSET_OUT_OF_RANGE, 3)

    claim(work)


def test_a_fetch_of_a_missing_referenced_object_gets_a_storage_error_and_is_counted() -> None:
    async def work(scene: Scene) -> None:
        world = scene.world
        two = scene.two
        kept = dict(two.memory.objects)
        two.memory.objects.clear()
        assert (await two.fetch("t", 0, 0)).error_code == KAFKA_STORAGE_ERROR
        assert two.fetch_service.counters.missing_objects == 1
        world.leaders[0].away = True
        assert (await two.fetch("t", 0, 0)).error_code == OFFSET_NOT_AVAILABLE
        assert two.fetch_service.counters.missing_objects == 1
        world.leaders[0].away = False
        two.memory.objects.update(kept)
        assert (await two.fetch("t", 0, 0)).error_code == 0

    claim(work)


async def delete_to(world: ClusterWorld, offset: int) -> None:
    topic = DeleteDisklessRecordsRequest.Topic
    found = world.image.topic("t")
    assert found is not None
    partition = topic.Partition(partition_index=0, offset=offset)
    request = DeleteDisklessRecordsRequest(
        topics=(topic(topic_id=found.topic_id, partitions=(partition,)),)
    )
    answer = await world.leaders[0].call(request)
    assert answer.responses[0].partitions[0].error_code == 0
