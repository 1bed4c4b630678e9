"""The contract about objects, topics, and what is found.

Source: docs/design/batch-coordinator.md#deletion,
docs/design/controller.md#hand-over-between-groups, docs/design/batch-coordinator.md#retention.
"""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from coordinator.batch.cluster_view import Enforcer, TopicConfig
from coordinator.errors import CoordinatorError
from records.rpc.batch_coordinator import CommitBatchesRequest
from records.rpc.objects import DeleteFilesRequest, GetFilesToDeleteRequest
from tests.coordinator.batch.actors import (
    OTHER_TOPIC,
    TOPIC,
    Broker,
    batch,
    create,
    delete,
    delete_records,
    find,
    groups,
    offset_for,
    results,
)
from tests.coordinator.batch.contract_base import DAY_MS, DELAY_MS, HOUR_MS, Told
from tests.coordinator.batch.subjects import KEYS, SETTINGS, World


class ObjectStories(Told):
    """Objects, topics, retention, reads."""

    # --- objects

    def test_an_object_is_deleted_only_after_all_of_its_batches_are_deleted(self) -> None:
        async def story(world: World) -> None:
            await create(world)
            broker = Broker(world)
            await broker.acquire()
            two = (
                *groups(batch(0, 5))[0].partitions,
                *groups(batch(100, 5), partition=1)[0].partitions,
            )
            await broker.commit(
                topics=(CommitBatchesRequest.Topic(topic_id=TOPIC, partitions=two),)
            )
            await delete_records(world, -1)
            await world.advance(2 * DELAY_MS)
            assert await broker.files() == []
            await delete_records(world, 4, partition=1)
            await world.advance(2 * DELAY_MS)
            assert await broker.files() == []
            assert await broker.deleted(broker.first) == [42]
            await delete_records(world, -1, partition=1)
            await world.advance(0)
            assert await broker.files() == []
            assert await broker.deleted(broker.first) == [42]
            await world.advance(DELAY_MS - 1)
            assert await broker.files() == []
            await world.advance(1)
            assert await broker.files() == [broker.first]
            assert await broker.deleted(broker.first) == [0]
            assert await broker.deleted(broker.first) == [0]
            assert await broker.files() == []

        self.tell(story)

    def test_the_coordinators_offset_search_by_timestamp_can_start_at_any_offset(self) -> None:
        """A reader of the run knows that its newest record lies before the log start."""

        async def story(world: World) -> None:
            await create(world)
            broker = Broker(world)
            await broker.acquire()
            for time in (500, 100, 300):
                await broker.commit(batch(0, 10, time=time))
            await delete_records(world, 5)
            for timestamp in (200, -3):
                assert await offset_for(world, timestamp) == (0, 5)
                assert await offset_for(world, timestamp, from_offset=9) == (0, 9)
                assert await offset_for(world, timestamp, from_offset=10) == (0, 20)
                assert await offset_for(world, timestamp, from_offset=30) == (0, -1)
            assert await offset_for(world, 400, from_offset=10) == (0, -1)
            assert await offset_for(world, -2, from_offset=10) == (0, 5)

        self.tell(story)

    def test_a_committed_object_without_an_accepted_batch_is_deleted(self) -> None:
        async def story(world: World) -> None:
            await create(world)
            broker = Broker(world)
            await broker.acquire()
            await broker.commit(batch(0, producer=5, first=8))
            await world.advance(0)
            await world.advance(DELAY_MS)
            assert await broker.files() == [broker.first]

        self.tell(story)

    @pytest.mark.parametrize("step_ms", [10 * 365 * DAY_MS, -10 * 365 * DAY_MS])
    def test_a_clock_jump_at_an_election_does_not_shorten_the_delete_delay(
        self, step_ms: int
    ) -> None:
        async def story(world: World) -> None:
            await create(world)
            broker = Broker(world)
            await broker.acquire()
            await broker.commit()
            await delete_records(world, -1)
            await world.advance(0)
            world.jump(step_ms)
            await world.restart()
            await world.advance(1_000)
            assert await broker.files() == []
            assert await broker.deleted(broker.first) == [42]
            await world.advance(DELAY_MS)
            assert await broker.files() == [broker.first]
            assert await broker.deleted(broker.first) == [0]

        self.tell(story)

    def test_uncommitted_objects_are_listed_for_deletion_after_their_lease_closed(self) -> None:
        async def story(world: World) -> None:
            await create(world)
            broker = Broker(world)
            await broker.acquire(10)
            await broker.commit(object_id=broker.first + 2)
            await world.advance(2 * DELAY_MS)
            assert await broker.files() == []
            await broker.release(end=broker.first + 5)
            await world.restart()
            await world.advance(DELAY_MS - 1)
            assert await broker.files() == []
            await world.advance(1)
            orphans = [broker.first + step for step in (0, 1, 3, 4)]
            assert await broker.files() == orphans
            assert await broker.files(limit=2) == orphans[:2]
            assert await broker.deleted(*orphans[:3]) == [0, 0, 0]
            await world.restart()
            await world.advance(DAY_MS)  # a lease with orphans left is not forgotten
            assert await broker.files() == orphans[3:]
            assert await broker.deleted(*orphans) == [0] * 4
            assert await broker.files() == []

        self.tell(story)

    @pytest.mark.parametrize("step_ms", [DAY_MS, -DAY_MS])
    def test_a_clock_jump_during_a_leadership_does_not_shorten_the_delete_delay(
        self, step_ms: int
    ) -> None:
        async def story(world: World) -> None:
            await create(world)
            broker = Broker(world)
            await broker.acquire()
            await broker.commit()
            await delete_records(world, -1)
            await world.advance(0)
            world.jump(step_ms)
            await world.advance(1_000)
            assert await broker.files() == []
            assert await broker.deleted(broker.first) == [42]
            assert results(await broker.commit())[0][0] == 0  # its lease is no older for it
            await world.advance(DELAY_MS)
            assert await broker.files() == [broker.first]

        self.tell(story)

    def test_the_delete_delay_of_orphans_begins_when_their_lease_closes(self) -> None:
        """Not from the leader's election: an upload may be on its way when its lease is closed."""

        async def story(world: World) -> None:
            broker = Broker(world)
            await broker.acquire(2)
            await world.advance(10 * DELAY_MS)
            await broker.release()
            assert await broker.files() == []
            await world.advance(DELAY_MS - 1)
            assert await broker.files() == []
            await world.advance(1)
            assert await broker.files() == [broker.first, broker.first + 1]

        self.tell(story)

    def test_object_ids_that_a_broker_skipped_become_orphans_even_after_a_coordinator_restart(
        self,
    ) -> None:
        """It was never committed, never will be, and is an orphan once its lease is over."""

        async def story(world: World) -> None:
            await create(world)
            broker = Broker(world)
            await broker.acquire(10)
            first = broker.first
            await broker.commit(object_id=first + 1)
            await broker.commit(object_id=first + 4)
            await world.restart()
            for skipped in (0, 2, 3):
                assert (await broker.commit(object_id=first + skipped)).error_code == 55
                assert await broker.is_safe(first + skipped)
            await broker.release()
            await world.restart()
            await world.advance(world.settings.file_delete_delay_ms)
            gone = [first + k for k in (0, 2, 3, 5, 6, 7, 8, 9)]
            assert await broker.files() == gone

        self.tell(story)

    def test_the_coordinator_refuses_a_commit_of_an_object_reported_as_safe_to_delete(
        self,
    ) -> None:
        async def story(world: World) -> None:
            await create(world)
            broker = Broker(world)
            await broker.acquire(10)
            await broker.commit()
            first = broker.first
            assert not await broker.is_safe(first)
            assert await broker.is_safe(first + 3)
            assert await broker.is_safe(first + 3)
            await world.restart()
            before = await world.checkpoint()
            assert await broker.deleted(first + 3) == [0]  # as it was told it may
            assert await broker.deleted(first + 4) == [42]
            assert await world.checkpoint() == before
            assert (await broker.commit(object_id=first + 3)).error_code == 55
            assert results(await broker.commit(object_id=first + 2))[0][0] == 0
            assert (await broker.commit(object_id=first + 3)).error_code == 55, "still"
            assert results(await broker.commit(object_id=first + 4))[0][0] == 0
            assert await broker.is_safe(first + 1)  # dead already
            assert (await broker.commit(object_id=first + 3)).error_code == 55
            await broker.release()
            assert await broker.is_safe(first + 9)
            assert not await broker.is_safe(first + 4)

        self.tell(story)

    @pytest.mark.parametrize(
        "key", ["", "x", KEYS.key(5) + " ", KEYS.key(5).replace("testcluster", "other"),
                "esker/00/testcluster/0/-5", KEYS.key(5).replace("esker", "Esker")]
    )  # fmt: skip
    def test_the_coordinator_refuses_a_call_with_an_object_key_of_another_cluster(
        self, key: str
    ) -> None:
        async def story(world: World) -> None:
            broker = Broker(world)
            await broker.acquire(10)
            before = await world.checkpoint()
            assert (await broker.ask_safe(key)).error_code == 42
            assert await broker.deleted_keys(key, KEYS.key(10**6)) == [42, 42]
            assert (await broker.ask_safe(KEYS.key(10**6))).error_code == 42  # in no lease yet
            assert await world.checkpoint() == before

        self.tell(story)

    def test_the_coordinator_refuses_a_list_or_deletion_of_more_than_ten_thousand_objects(
        self,
    ) -> None:
        async def story(world: World) -> None:
            for limit in (0, -1, 10_001):
                asked = GetFilesToDeleteRequest(coordinator_partition=0, max_files=limit)
                answer = await world.coordinator.call(asked)
                assert answer.error_code == 42
            keys = DeleteFilesRequest(coordinator_partition=0, object_keys=("x",) * 10_001)
            assert (await world.coordinator.call(keys)).error_code == 10

        self.tell(story)

    # --- topics

    def test_creating_an_existing_topic_again_only_adds_its_missing_partitions(self) -> None:
        async def story(world: World) -> None:
            assert await create(world, partitions=2) == 0
            before = await world.checkpoint()
            assert await create(world, partitions=2) == 0
            assert await create(world, partitions=1) == 0
            assert await world.checkpoint() == before
            assert await offset_for(world, -1, partition=2) == (3, -1)
            assert await create(world, partitions=3) == 0
            assert await offset_for(world, -1, partition=2) == (0, 0)

        self.tell(story)

    def test_the_coordinator_refuses_to_create_a_topic_without_name_id_or_partitions(self) -> None:
        async def story(world: World) -> None:
            before = await world.checkpoint()
            assert await create(world, UUID(int=0), epoch=-1) == 42
            assert await create(world, name="", epoch=-1) == 42
            assert await create(world, name="x" * 250, epoch=-1) == 42
            assert await create(world, partitions=0, epoch=-1) == 37
            assert await create(world, partitions=10**6, epoch=-1) == 37
            assert await world.checkpoint() == before
            await create(world)
            assert await create(world, name="another") == 42

        self.tell(story)

    def test_a_coordinator_refuses_a_controllers_call_with_a_former_controller_epoch(self) -> None:
        async def story(world: World) -> None:
            await create(world, epoch=4)
            assert await create(world, OTHER_TOPIC, epoch=3) == 11
            assert await delete(world, epoch=3) == 11
            assert await create(world, epoch=5) == 0  # changes nothing, but was heard
            await world.restart()
            assert await delete(world, epoch=4) == 11
            assert await delete(world, epoch=5) == 0

        self.tell(story)

    def test_requests_for_a_deleted_topic_get_unknown_topic_id_and_its_objects_are_deleted(
        self,
    ) -> None:
        async def story(world: World) -> None:
            await create(world)
            await create(world, OTHER_TOPIC, name="others")
            broker = Broker(world)
            await broker.acquire()
            await broker.commit(batch(0, 5, producer=5))
            shared = groups(batch(0)) + groups(batch(100), topic=OTHER_TOPIC)
            await broker.commit(topics=shared)
            assert await delete(world) == 0
            assert await delete(world) == 0
            assert await offset_for(world, -1) == (100, -1)
            assert (await find(world, (0, 0)))[0].error_code == 100
            assert await delete_records(world, -1) == (100, -1)
            assert results(await broker.commit())[0][0] == 100
            await world.restart()
            assert await create(world) == 100  # a call that comes late
            await world.advance(0)
            await world.advance(DELAY_MS)
            assert await broker.files() == [broker.first, broker.first + 2]
            assert await offset_for(world, -1, OTHER_TOPIC) == (0, 1)
            await world.advance(DAY_MS)
            assert await create(world) == 0
            assert await offset_for(world, -1) == (0, 0)

        self.tell(story)

    def test_a_late_creation_of_a_topic_that_was_already_deleted_gets_unknown_topic_id(
        self,
    ) -> None:
        async def story(world: World) -> None:
            assert await delete(world) == 0
            await world.restart()
            assert await create(world) == 100
            await world.advance(DAY_MS)
            assert await create(world) == 0

        self.tell(story)

    def test_the_coordinator_removes_the_batches_of_a_large_deleted_topic_in_several_steps(
        self,
    ) -> None:
        async def story(world: World) -> None:
            await create(world)
            broker = Broker(world)
            await broker.acquire()
            for number in range(20):
                await broker.commit(batch(0, 3, producer=number))
            await delete(world)
            await world.advance(0)
            await world.advance(DELAY_MS)
            assert len(await broker.files()) == 20

        self.tell(story, replace(SETTINGS, maintenance_limit=3))

    # --- deleting records, retention, finding

    def test_the_coordinator_refuses_to_delete_records_of_an_unknown_partition(self) -> None:
        async def story(world: World) -> None:
            await create(world)
            before = await world.checkpoint()
            assert await delete_records(world, -1, partition=7) == (3, -1)
            assert await delete_records(world, -1, OTHER_TOPIC) == (100, -1)
            assert await world.checkpoint() == before

        self.tell(story)

    def test_retention_by_time_removes_only_whole_runs_of_old_batches(self) -> None:
        async def story(world: World) -> None:
            await create(world)
            broker = Broker(world)
            await broker.acquire()
            now_ms = world.now_ms()
            for age_ms in (3 * HOUR_MS, 2 * HOUR_MS, 0, 3 * HOUR_MS):
                await broker.commit(batch(0, 10, time=now_ms - age_ms))
            await world.advance(0)
            assert await offset_for(world, -2) == (0, 0)
            world.view.configs[TOPIC] = TopicConfig(retention_ms=HOUR_MS)
            await world.advance(0)
            assert await offset_for(world, -2) == (0, 20)

        self.tell(story)

    def test_a_retention_pass_by_size_keeps_at_least_retention_bytes(self) -> None:
        async def story(world: World) -> None:
            await create(world)
            broker = Broker(world)
            await broker.acquire()
            for _ in range(10):
                await broker.commit(batch(0, 10, time=world.now_ms()))
            world.view.configs[TOPIC] = TopicConfig(retention_ms=None, retention_bytes=350)
            await world.advance(0)
            assert await offset_for(world, -2) == (0, 60)
            world.view.configs[TOPIC] = TopicConfig(retention_ms=None, retention_bytes=300)
            await world.advance(0)
            assert await offset_for(world, -2) == (0, 70)  # just so much is left

        self.tell(story)

    def test_the_coordinator_does_not_enforce_retention_of_a_topic_with_an_external_enforcer(
        self,
    ) -> None:
        async def story(world: World) -> None:
            await create(world)
            broker = Broker(world)
            await broker.acquire()
            await broker.commit(batch(0, 10))
            external = TopicConfig(retention_ms=1, enforcer=Enforcer.EXTERNAL)
            world.view.configs[TOPIC] = external
            await world.advance(HOUR_MS)
            assert await offset_for(world, -2) == (0, 0)
            world.view.configs[TOPIC] = replace(external, enforcer=Enforcer.BOTH)
            await world.advance(0)
            assert await offset_for(world, -2) == (0, 10)

        self.tell(story)

    def test_a_find_batches_response_ends_at_the_requested_number_of_bytes(self) -> None:
        async def story(world: World) -> None:
            await create(world)
            broker = Broker(world)
            await broker.acquire()
            for partition in (0, 1, 0, 1):
                await broker.commit(topics=groups(batch(0, 10), partition=partition))
            found = await find(world, (0, 0), (1, 0), max_bytes=150)
            assert [len(answer.batches) for answer in found] == [2, 0]
            assert [answer.high_watermark for answer in found] == [20, 20]
            found = await find(world, (1, 0), (0, 0), partition_bytes=1)
            assert [len(answer.batches) for answer in found] == [1, 1]
            found = await find(world, (0, 20), (1, 5), max_bytes=0)
            assert [len(answer.batches) for answer in found] == [0, 1]
            assert found[1].batches[0].object_key == KEYS.key(broker.first + 1)

        self.tell(story)

    # --- the end

    def test_a_call_to_a_closed_coordinator_raises_coordinator_not_available(self) -> None:
        async def story(world: World) -> None:
            await world.coordinator.close()
            with pytest.raises(CoordinatorError):
                await Broker(world).acquire()

        self.tell(story)
