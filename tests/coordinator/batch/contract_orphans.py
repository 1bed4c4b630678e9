"""The contract about objects that a listing of the store found, and the metadata does not know.

Source: docs/design/batch-coordinator.md#object-leases,
docs/design/pipeline.md#spark-deletes-nothing.
"""

from __future__ import annotations

from tests.coordinator.batch.actors import Broker, create, delete_records, mark_orphans, results
from tests.coordinator.batch.contract_base import DELAY_MS, Told
from tests.coordinator.batch.subjects import KEYS, SETTINGS, World

LONG_MS = SETTINGS.answer_retention_ms


async def cleaned(world: World, *, forgotten: bool) -> Broker:
    """A broker whose lease of ten is over, its second object committed, the orphans deleted."""
    await create(world)
    broker = Broker(world)
    await broker.acquire(10)
    await broker.commit(object_id=broker.first + 1)
    await broker.release(end=broker.first + 5)
    await world.advance(DELAY_MS)
    orphans = await broker.files()
    assert await broker.deleted(*orphans) == [0] * 4
    if forgotten:
        await world.advance(LONG_MS)
    return broker


class OrphanStories(Told):
    """Objects that are marked as orphans, and those that are not."""

    def test_an_orphan_found_in_a_store_listing_is_deleted_after_the_delete_delay(
        self,
    ) -> None:
        for forgotten in (False, True):

            async def story(world: World, forgotten: bool = forgotten) -> None:
                broker = await cleaned(world, forgotten=forgotten)
                late = broker.first + 3
                before = await world.checkpoint()
                assert await mark_orphans(world, late) == [0]
                assert await mark_orphans(world, late) == [0]
                assert await broker.files() == []
                await world.restart()
                await world.advance(DELAY_MS - 1)
                assert await broker.files() == []
                assert await broker.deleted(late) == [42]
                await world.advance(1)
                assert await broker.files() == [late]
                assert await broker.deleted(late) == [0]
                assert await broker.files() == []
                assert await world.checkpoint() == before

            self.tell(story)

    def test_an_orphan_with_an_object_id_beyond_the_released_part_of_a_lease_is_deleted(
        self,
    ) -> None:
        async def story(world: World) -> None:
            broker = await cleaned(world, forgotten=False)
            assert await mark_orphans(world, broker.first + 9) == [0]
            await world.advance(DELAY_MS)
            assert await broker.files() == [broker.first + 9]

        self.tell(story)

    def test_an_object_with_undeleted_batches_is_never_marked_as_an_orphan(self) -> None:
        for forgotten in (False, True):

            async def story(world: World, forgotten: bool = forgotten) -> None:
                broker = await cleaned(world, forgotten=forgotten)
                before = await world.checkpoint()
                assert await mark_orphans(world, broker.first + 1) == [44]
                assert await world.checkpoint() == before
                await world.advance(DELAY_MS)
                assert await broker.files() == []

            self.tell(story)

    def test_the_coordinator_refuses_to_mark_an_object_that_can_still_be_committed_as_an_orphan(
        self,
    ) -> None:
        async def story(world: World) -> None:
            await create(world)
            broker = Broker(world)
            await broker.acquire(10)
            assert await mark_orphans(world, broker.first) == [44]
            assert results(await broker.commit(object_id=broker.first))[0].error_code == 0
            assert await mark_orphans(world, broker.first) == [44]
            await world.advance(2 * DELAY_MS)
            assert await broker.files() == []

        self.tell(story)

    def test_an_object_marked_for_deletion_is_not_marked_again_as_an_orphan(self) -> None:
        async def story(world: World) -> None:
            await create(world)
            broker = Broker(world)
            await broker.acquire(10)
            await broker.commit(object_id=broker.first + 1)
            first = broker.first
            assert await broker.is_safe(first + 2)
            before = await world.checkpoint()
            assert await mark_orphans(world, first, first + 2) == [0, 0]  # passed by; fenced
            assert await world.checkpoint() == before
            await delete_records(world, -1)
            await world.advance(0)  # marked
            await broker.release(end=first + 4)
            before = await world.checkpoint()
            assert await mark_orphans(world, first, first + 1, first + 2, first + 3) == [0] * 4
            assert await world.checkpoint() == before
            await world.advance(DELAY_MS)
            assert sorted(await broker.files()) == [first, first + 1, first + 2, first + 3]

        self.tell(story)

    def test_an_object_that_reappears_in_the_store_is_deleted_again(self) -> None:
        """A second attempt of an upload that ended after the object was removed."""

        async def story(world: World) -> None:
            broker = await cleaned(world, forgotten=False)
            back = broker.first + 1
            await delete_records(world, -1)
            await world.advance(0)
            await world.advance(DELAY_MS)
            assert await broker.deleted(back) == [0]
            assert await mark_orphans(world, back) == [44]  # committed, for all its lease knows
            await world.advance(LONG_MS)
            assert await mark_orphans(world, back) == [0]
            await world.advance(DELAY_MS)
            assert await broker.files() == [back]

        self.tell(story)

    def test_an_object_marked_as_an_orphan_can_no_longer_be_committed(self) -> None:
        async def story(world: World) -> None:
            broker = await cleaned(world, forgotten=True)
            late = broker.first + 3
            assert await mark_orphans(world, late) == [0]
            assert (await broker.commit(object_id=late)).error_code == 55
            assert await broker.is_safe(late)
            assert (await broker.commit(object_id=broker.first + 1)).error_code == 46
            assert not await broker.is_safe(broker.first + 1)

        self.tell(story)

    def test_the_coordinator_refuses_to_mark_keys_of_other_clusters_and_never_leased_ids_as_orphans(
        self,
    ) -> None:
        async def story(world: World) -> None:
            broker = await cleaned(world, forgotten=True)
            before = await world.checkpoint()
            foreign = KEYS.key(broker.first + 3).replace("testcluster", "other")
            keys = ("", "x", foreign, KEYS.key(10**6))
            assert await mark_orphans(world, keys=keys) == [42] * 4
            assert await world.checkpoint() == before

        self.tell(story)

    def test_the_coordinator_refuses_expired_oversized_or_other_clusters_requests_to_mark_orphans(
        self,
    ) -> None:
        async def story(world: World) -> None:
            broker = await cleaned(world, forgotten=True)
            late = broker.first + 3
            before = await world.checkpoint()
            assert await mark_orphans(world, late, cluster_id="other") == 104
            assert await mark_orphans(world, late, expires_in_ms=-1) == 32
            assert await mark_orphans(world, keys=("x",) * 1_001) == 10
            assert await world.checkpoint() == before
            assert await mark_orphans(world, late, expires_in_ms=0) == [0]

        self.tell(story)
