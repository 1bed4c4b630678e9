"""Only unreferenced objects are deleted.

Source: docs/design/batch-coordinator.md#deletion; invariant 7 (docs/design/invariants.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from coordinator.errors import CoordinatorError
from coordinator.rendezvous import choose
from diskless.object_deletion import BULK, Cleaner, cleaning_broker
from diskless.stores.faults import Fault, FaultRule, FaultyStore
from diskless.stores.memory import MemoryStore
from records.kafka_errors import ErrorCode
from records.object_keys import ObjectKeys
from records.rpc import objects as rpc
from tests.coordinator.controller.world import CLUSTER_ID
from tests.diskless.cluster_world import ClusterWorld
from tests.diskless.virtual_time import run

KEYS = ObjectKeys(prefix="p", cluster_id=CLUSTER_ID, coordinator_partition=0)
DELETE = frozenset({"delete"})
_file = rpc.GetFilesToDeleteResponse.File


class Coordinator:
    """A coordinator that lists deletable objects and records reported deletions."""

    def __init__(self, object_ids: range) -> None:
        self.to_delete = [KEYS.key(object_id) for object_id in object_ids]
        self.away_in = -1  # calls; at 0 nobody leads
        self.lists: list[int] = []

    def _count(self) -> None:
        if self.away_in == 0:
            raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "nobody leads")
        self.away_in -= 1

    async def call(self, request: Any) -> Any:
        self._count()
        if isinstance(request, rpc.DeleteFilesRequest):
            deleted = set(request.object_keys)
            self.to_delete = [key for key in self.to_delete if key not in deleted]
            return rpc.DeleteFilesResponse(key_error_codes=(0,) * len(request.object_keys))
        assert isinstance(request, rpc.GetFilesToDeleteRequest), request
        files = self.to_delete[: request.max_files]
        self.lists.append(len(files))
        return rpc.GetFilesToDeleteResponse(
            files=tuple(_file(object_key=key, marked_for_deletion_at=1) for key in files)
        )


class EveryOther:
    """A hold of every object with an odd id, until it is over."""

    def __init__(self) -> None:
        self.is_over = False
        self.noted: list[int] = []

    async def note(self, coordinator: int) -> None:
        self.noted.append(coordinator)

    def is_held(self, coordinator: int, object_id: int) -> bool:
        assert coordinator == 0
        return not self.is_over and object_id % 2 == 1


class Scene:
    """A store with a hundred live objects and some deletable ones, and one cleaning broker."""

    def __init__(
        self, world: ClusterWorld, dead: int, broker_id: int = 1, hold: EveryOther | None = None
    ) -> None:
        self.memory = MemoryStore(lambda: 0)
        self.coordinator = Coordinator(range(100, 100 + dead))
        for object_id in range(100 + dead):
            self.memory.objects[KEYS.key(object_id)] = (b"x", 0)
        self.store = FaultyStore(self.memory, Random(1), asyncio.sleep)
        self.forgotten: list[str] = []
        cluster = world.cluster(broker_id)
        cluster.leader = lambda _: self.coordinator  # type: ignore[method-assign,assignment,return-value]
        self.cleaner = Cleaner(
            cluster,
            self.store,
            key_prefix=KEYS.prefix,
            random=Random(1),
            interval_s=10.0,
            forget=self.forgotten.append,
            hold=hold,
        )

    def check(self, left: int = 0) -> None:
        """Assert that all but `left` deletable objects are gone, and no live one."""
        assert len(self.coordinator.to_delete) == left
        alive = {KEYS.key(object_id) for object_id in range(100)}
        assert alive <= set(self.memory.objects), "a live object was deleted"
        assert len(self.memory.objects) - len(alive) <= left


def claim(work: Callable[[Scene], Awaitable[None]], dead: int = 50) -> None:
    async def on_loop() -> None:
        async with ClusterWorld() as world:
            await work(Scene(world, dead))

    run(on_loop)


def test_the_object_cleaner_deletes_in_bulk_only_the_objects_that_the_coordinator_lists() -> None:
    async def work(scene: Scene) -> None:
        assert await scene.cleaner.clean()
        scene.check()
        assert scene.coordinator.lists == [BULK, BULK, 500, 0]
        assert scene.cleaner.counters.deleted == len(scene.forgotten) == 2 * BULK + 500
        assert await scene.cleaner.clean()

    claim(work, dead=2 * BULK + 500)


def test_objects_that_a_backup_may_need_are_left_and_others_behind_them_are_deleted() -> None:
    async def on_loop() -> None:
        async with ClusterWorld() as world:
            hold = EveryOther()
            scene = Scene(world, 3 * BULK, hold=hold)
            scene.coordinator.to_delete.sort(key=lambda key: -(KEYS.object_id(key) % 2))
            assert await scene.cleaner.clean()
            scene.check(left=3 * BULK // 2)
            assert all(KEYS.object_id(key) % 2 for key in scene.coordinator.to_delete)
            assert scene.cleaner.counters.held == 3 * BULK // 2
            assert hold.noted == [0]
            hold.is_over = True
            assert await scene.cleaner.clean()
            scene.check()
            assert scene.cleaner.counters.held == 0

    run(on_loop)


def test_the_object_cleaner_runs_periodically_and_stops_when_closed() -> None:
    async def work(scene: Scene) -> None:
        scene.cleaner.start()
        await asyncio.sleep(5)
        scene.check(left=50)
        await asyncio.sleep(20)
        scene.check()
        await scene.cleaner.close()

    claim(work)


def test_the_object_cleaner_completes_a_partly_failed_bulk_deletion_in_later_passes() -> None:
    async def work(scene: Scene) -> None:
        scene.store.rules = (FaultRule(fault=Fault.HALF, operations=DELETE),)
        passes = 0
        while scene.coordinator.to_delete and passes < 20:
            await scene.cleaner.clean()
            passes += 1
            scene.store.rules = () if passes > 3 else scene.store.rules
        scene.check()
        assert scene.cleaner.counters.failed > 0

    claim(work)


def test_the_object_cleaner_retries_throttled_deletions_with_growing_pauses() -> None:
    async def work(scene: Scene) -> None:
        scene.store.rules = (FaultRule(fault=Fault.THROTTLED, operations=DELETE),)
        scene.cleaner.start()
        await asyncio.sleep(600)
        struck = scene.store.struck[("delete", Fault.THROTTLED)]
        assert 4 <= struck <= 10, f"{struck} tries in ten minutes: pauses do not grow"
        scene.check(left=50)
        scene.store.rules = ()
        await asyncio.sleep(600)
        scene.check()
        await scene.cleaner.close()

    claim(work)


@pytest.mark.parametrize("step", range(4))
def test_the_object_cleaner_completes_an_interrupted_deletion_in_a_later_pass(step: int) -> None:
    """Steps: listed, deleted, reported, listed again. A successor has no state."""

    async def work(scene: Scene) -> None:
        scene.coordinator.away_in = step
        await scene.cleaner.clean()
        scene.coordinator.away_in = -1
        await scene.cleaner.clean()
        scene.check()

    claim(work)


@pytest.mark.parametrize("steps", range(1, 12))
def test_the_broker_that_replaces_a_killed_object_cleaner_completes_its_deletions(
    steps: int,
) -> None:
    async def work(scene: Scene) -> None:
        task = asyncio.ensure_future(scene.cleaner.clean())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await scene.cleaner.clean()
        scene.check()

    claim(work)


def test_the_object_cleaner_repeats_a_deletion_whose_response_was_lost() -> None:
    async def work(scene: Scene) -> None:
        scene.store.rules = (FaultRule(fault=Fault.LOST_ANSWER, operations=DELETE),)
        assert not await scene.cleaner.clean()
        assert len(scene.coordinator.to_delete) == 50  # gone, and nobody knows
        scene.store.rules = ()
        assert await scene.cleaner.clean()
        scene.check()

    claim(work)


def test_the_object_cleaner_never_deletes_an_object_key_of_another_cluster() -> None:
    async def work(scene: Scene) -> None:
        other = ObjectKeys(prefix="p", cluster_id="another", coordinator_partition=0).key(100)
        scene.memory.objects[other] = (b"theirs", 0)
        scene.coordinator.to_delete.insert(0, other)
        await scene.cleaner.clean()
        assert scene.memory.objects[other] == (b"theirs", 0)
        assert scene.coordinator.to_delete == [other]
        assert scene.cleaner.counters.foreign > 0

    claim(work)


def test_only_one_broker_at_a_time_deletes_the_objects_of_a_coordinator_partition() -> None:
    async def on_loop() -> None:
        async with ClusterWorld(brokers=(1, 2, 3), coordinators=8) as world:
            first = [cleaning_broker(number, world.image) for number in range(8)]
            assert len(set(first)) > 1
            for broker_id in (1, 2, 3):
                image = world.cluster(broker_id).image
                assert [cleaning_broker(number, image) for number in range(8)] == first
            scenes = {broker_id: Scene(world, 5, broker_id) for broker_id in (1, 2, 3)}
            for broker_id, scene in scenes.items():
                await scene.cleaner.clean()
                scene.check(left=0 if broker_id == first[0] else 5)  # keys of coordinator 0
            await world.fence(1)
            second = [cleaning_broker(number, world.image) for number in range(8)]
            assert 1 not in second
            assert all(now == then for now, then in zip(second, first, strict=True) if then != 1)
            name = b"cleaning-" + bytes(4)
            assert second[0] == choose(name, (2, 3))

    run(on_loop)
