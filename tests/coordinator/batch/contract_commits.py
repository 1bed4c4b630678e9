"""The contract about leases and commits.

Source: docs/design/batch-coordinator.md#object-leases,
docs/design/batch-coordinator.md#commits-are-idempotent-by-object-id.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.batch.decide.leases import MAX_OPEN_LEASES
from coordinator.batch.settings import MAX_BATCHES, MAX_OBJECT_BYTES
from records.kafka_errors import ErrorCode
from records.rpc.batch_coordinator import CommitBatchesRequest, DescribeDisklessProducersRequest
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
from tests.coordinator.batch.conformance import TABLE, run_table
from tests.coordinator.batch.contract_base import DAY_MS, Told
from tests.coordinator.batch.subjects import SETTINGS, World

BAD_FORMS = {
    "no topics": (),
    "no partitions": (CommitBatchesRequest.Topic(topic_id=TOPIC, partitions=()),),
    "no batches": groups(),
    "a negative place": groups(batch(-1)),
    "no bytes": groups(batch(0, size=0)),
    "negative bytes": groups(batch(0, size=-5)),
    "past the object": groups(batch(950)),
    "past the object, out of order": groups(batch(950), batch(0)),
    "far past the object": groups(batch(2**62)),
    "overlapping": groups(batch(0), batch(99)),
    "overlapping, out of order": groups(batch(500), batch(0), batch(450)),
    "the same bytes twice": groups(batch(0), batch(0)),
    "no records": groups(batch(0, 0)),
    "negative records": groups(batch(0, -3)),
    "too many records": groups(batch(0, 2**28 + 1)),
    "a last sequence that does not fit": groups(batch(0, 3, producer=4)._replace(last_sequence=7)),
    "an unknown timestamp type": groups(batch()._replace(message_timestamp_type=2)),
    "a topic twice": groups(batch(0)) + groups(batch(100), partition=1),
    "a partition twice": (
        CommitBatchesRequest.Topic(
            topic_id=TOPIC,
            partitions=(
                groups(batch(0))[0].partitions[0],
                groups(batch(100))[0].partitions[0],
            ),
        ),
    ),
}
"""Objects of 1,000 bytes that cannot be."""


class CommitStories(Told):
    """Leases, commits, retries."""

    # --- the conformance table

    def test_a_batch_coordinator_answers_as_the_conformance_table_says(self) -> None:
        async def story(world: World) -> None:
            assert await run_table(TABLE, world) == []

        self.tell(story)

    # --- leases

    def test_each_lease_has_higher_object_ids_than_all_earlier_leases(self) -> None:
        async def story(world: World) -> None:
            ends = 0
            for broker_id in (1, 2, 1, 3):
                granted = await Broker(world, broker_id).acquire(10)
                assert granted.first_object_id >= ends
                ends = granted.first_object_id + granted.object_count
                await world.restart()

        self.tell(story)

    @pytest.mark.parametrize("count", [0, -1, 10_001, 2**31 - 1])
    def test_the_coordinator_refuses_a_lease_request_with_an_invalid_number_of_object_ids(
        self, count: int
    ) -> None:
        async def story(world: World) -> None:
            before = await world.checkpoint()
            assert (await Broker(world).acquire(count)).error_code == 42
            assert await world.checkpoint() == before

        self.tell(story)

    def test_the_coordinator_refuses_a_commit_under_another_brokers_lease(self) -> None:
        async def story(world: World) -> None:
            await create(world)
            mine, other = Broker(world, 1), Broker(world, 2)
            await mine.acquire(10)
            await other.acquire(10)
            before = await world.checkpoint()
            assert (await mine.commit(lease_id=99, object_id=1)).error_code == 42
            assert (await mine.commit(lease_id=-1, object_id=1)).error_code == 42
            not_yet = other.lease_id + 1
            assert (await mine.commit(lease_id=not_yet, object_id=1)).error_code == 42
            assert (await mine.commit(lease_id=other.lease_id)).error_code == 42
            assert (await mine.commit(object_id=other.first)).error_code == 42
            assert (await mine.commit(object_id=mine.first - 1)).error_code == 42
            mine.epoch += 1
            assert (await mine.commit()).error_code == 42
            assert await world.checkpoint() == before

        self.tell(story)

    def test_the_coordinator_refuses_a_commit_of_an_object_id_below_the_brokers_last_committed_id(
        self,
    ) -> None:
        async def story(world: World) -> None:
            await create(world)
            broker = Broker(world)
            await broker.acquire()
            assert results(await broker.commit(object_id=broker.first + 5))[0][:2] == (0, 0)
            for step in (4, 0):
                refused = await broker.commit(object_id=broker.first + step)
                assert refused.error_code == 55
                await world.restart()
                assert (await broker.again()).error_code == 55
            assert results(await broker.commit(object_id=broker.first + 6))[0][:2] == (0, 1)

        self.tell(story)

    def test_the_coordinator_refuses_a_commit_of_an_object_id_of_a_released_lease(self) -> None:
        async def story(world: World) -> None:
            await create(world)
            broker = Broker(world)
            await broker.acquire()
            first = await broker.commit()
            assert await broker.release(end=broker.first) == 42  # what is committed was uploaded
            assert await broker.release(end=broker.first + 101) == 42
            assert await broker.release() == 0
            assert await broker.release() == 0
            committed = broker.last
            assert (await broker.commit()).error_code == 55
            assert await broker.again(committed) == first
            assert await broker.release(lease_id=77) == 42
            assert await Broker(world, 2).release(lease_id=broker.lease_id) == 42

        self.tell(story)

    def test_the_coordinator_limits_the_number_of_open_object_id_leases_of_each_broker_epoch(
        self,
    ) -> None:
        """However many the former process left open: else it could not serve until they expire."""

        async def story(world: World) -> None:
            old, new, other = Broker(world), Broker(world, epoch=2), Broker(world, 2)
            for _ in range(MAX_OPEN_LEASES):
                assert not (await old.acquire(1)).error_code
            before = await world.checkpoint()
            assert (await old.acquire(1)).error_code == 42
            assert await world.checkpoint() == before
            assert not (await other.acquire(1)).error_code
            assert not (await new.acquire(1)).error_code
            assert (await old.acquire(1)).error_code == 77
            assert await new.release() == 0

        self.tell(story)

    def test_a_lease_for_a_newer_broker_epoch_fences_commits_of_the_older_epoch(self) -> None:
        async def story(world: World) -> None:
            await create(world)
            old, new = Broker(world, epoch=1), Broker(world, epoch=2)
            await old.acquire()
            first = await old.commit()
            committed = old.last
            await new.acquire()
            assert (await old.commit()).error_code == 77
            assert await old.again(committed) == first
            await world.restart()
            assert (await old.commit()).error_code == 77
            assert (await old.acquire()).error_code == 77
            assert results(await new.commit())[0][:2] == (0, 1)

        self.tell(story)

    def test_a_lease_for_a_newer_broker_epoch_closes_leases_opened_before_a_coordinator_restart(
        self,
    ) -> None:
        """Whichever way the coordinator restarts: open leases are part of its state."""

        async def story(world: World) -> None:
            await create(world)
            old = Broker(world, epoch=1)
            await old.acquire()
            for epoch in range(2, 6):
                await world.restart()
                new = Broker(world, epoch=epoch)
                await new.acquire()
                assert (await old.commit()).error_code == 77
                assert results(await new.commit())[0][0] == 0
                old = new

        self.tell(story)

    def test_the_coordinator_refuses_a_lease_request_with_a_broker_epoch_below_the_registered_epoch(
        self,
    ) -> None:
        async def story(world: World) -> None:
            world.view.epochs[1] = 9
            assert (await Broker(world, epoch=8).acquire()).error_code == 77
            assert (await Broker(world, epoch=9).acquire()).error_code == 0

        self.tell(story)

    def test_a_jump_of_the_coordinators_wall_clock_does_not_expire_a_lease(self) -> None:
        async def story(world: World) -> None:
            await create(world)
            broker = Broker(world)
            await broker.acquire()
            world.jump(365 * DAY_MS)
            await world.restart()
            await world.advance(1_000)
            assert results(await broker.commit())[0][0] == 0
            await world.advance(SETTINGS.lease_timeout_ms)
            assert (await broker.commit()).error_code == 55

        self.tell(story)

    def test_a_jump_of_the_coordinators_wall_clock_does_not_expire_producer_state(self) -> None:
        """A machine that slept for two days wakes, and so do its clients, which send again what
        was committed and not answered: twice would be wrong."""

        async def story(world: World) -> None:
            await create(world)
            broker = Broker(world)
            await broker.acquire()
            await broker.commit(batch(0, 5, producer=7))
            world.jump(2 * SETTINGS.producer_expiration_ms)
            await world.advance(1_000)
            (again,) = results(await broker.commit(batch(0, 5, producer=7)))
            assert again.is_duplicate

        self.tell(story)

    def test_describing_the_producers_of_a_partition_returns_each_producers_last_batch(
        self,
    ) -> None:
        async def story(world: World) -> None:
            await create(world, partitions=2)
            broker = Broker(world)
            await broker.acquire()
            for producer_id in (9, 8):
                commit = await broker.commit(batch(0, 5, producer=producer_id, epoch=2))
                assert results(commit)[0].error_code == 0
            await broker.commit(batch(0, 3, producer=8, epoch=2, first=5))
            request = DescribeDisklessProducersRequest
            topics = tuple(
                request.Topic(topic_id=topic_id, partitions=(0, 1, 2, -1))
                for topic_id in (TOPIC, OTHER_TOPIC)
            )
            asked = request(coordinator_partition=0, topics=topics)
            known, unknown = (await world.coordinator.call(asked)).responses
            found = [
                [(one.producer_id, one.producer_epoch, one.last_sequence) for one in p.producers]
                for p in known.partitions
            ]
            assert found == [[(8, 2, 7), (9, 2, 4)], [], [], []]
            missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert [p.error_code for p in known.partitions] == [0, 0, missing, missing]
            assert {p.error_code for p in unknown.partitions} == {missing}
            many = (request.Topic(topic_id=TOPIC, partitions=(0,) * 1_001),)
            asked = request(coordinator_partition=0, topics=many)
            answer = await world.coordinator.call(asked)
            assert (answer.error_code, answer.responses) == (ErrorCode.INVALID_REQUEST, ())

        self.tell(story)

    def test_the_coordinator_requires_sequence_0_of_an_old_producer_id_if_no_state_has_ever_expired(
        self,
    ) -> None:
        async def story(world: World) -> None:
            world.view.raise_level(2)
            await create(world)
            broker = Broker(world)
            await broker.acquire()
            await world.advance(1_000)
            world.handed_out_ms(7, 2 * DAY_MS)
            (gap,) = results(await broker.commit(batch(0, 5, producer=7, first=5)))
            assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

        self.tell(story)

    def test_the_coordinator_refuses_a_producers_sequence_gap_after_the_deletion_of_another_topic(
        self,
    ) -> None:
        async def story(world: World) -> None:
            world.view.raise_level(2)
            await create(world)
            await create(world, OTHER_TOPIC, name="other", epoch=2)
            broker = Broker(world)
            await broker.acquire()
            await broker.commit(topics=groups(batch(producer=9), topic=OTHER_TOPIC))
            await delete(world, OTHER_TOPIC, epoch=3)
            await world.advance(1_000)
            (gap,) = results(await broker.commit(batch(0, 5, producer=9, first=1)))
            assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

        self.tell(story)

    # --- commits

    def test_a_repeated_commit_gets_the_response_of_its_first_attempt_despite_later_state_changes(
        self,
    ) -> None:
        async def story(world: World) -> None:
            await create(world)
            broker = Broker(world)
            await broker.acquire()
            await broker.commit(batch(0, 5))
            topics = groups(
                batch(0, 3, producer=7, append_time=True),
                batch(100, 2, producer=7, first=9),
                batch(200, 3, producer=7),
                batch(300, 1),
            )
            await delete_records(world, 2)
            first = await broker.commit(topics=topics)
            request = broker.last
            codes = [(r[0], r[1], r[3], r[4]) for r in results(first)]
            assert codes == [(0, 5, 2, 0), (45, -1, 2, 0), (0, 5, 2, 1), (0, 8, 2, 0)]
            assert results(first)[0][2] == world.now_ms()
            await broker.commit()
            assert await broker.again(request) == first
            await world.advance(1_000)
            await delete_records(world, -1)
            assert await broker.again(request) == first
            await world.restart()
            assert await broker.again(request) == first
            await delete(world)
            await world.advance(1_000)
            await world.restart()
            assert await broker.again(request) == first
            await broker.release()
            assert await broker.again(request) == first

        self.tell(story)

    def test_a_coordinator_keeps_commit_responses_of_a_former_broker_epoch(self) -> None:
        """64 are kept of each epoch: a restarted broker still retries its former commits."""

        async def story(world: World) -> None:
            await create(world)
            old, new = Broker(world), Broker(world, epoch=2)
            await old.acquire()
            first = await old.commit(batch(0, 3))
            await new.acquire()
            for _ in range(70):
                await new.commit()
            await world.restart()
            assert await old.again() == first

        self.tell(story)

    def test_a_coordinator_keeps_the_commit_responses_of_a_brokers_last_64_objects(self) -> None:
        async def story(world: World) -> None:
            await create(world)
            broker = Broker(world)
            await broker.acquire()
            told = []
            for _ in range(66):
                told.append((await broker.commit(), broker.last))
            await world.restart()
            for number, (answer, request) in enumerate(told):
                again = await broker.again(request)
                if number < 2:
                    assert again.error_code == 46
                else:
                    assert again == answer
            assert await offset_for(world, -1) == (0, 66)

        self.tell(story)

    def test_the_coordinator_drops_stored_commit_responses_ten_minutes_after_their_lease_closed(
        self,
    ) -> None:
        async def story(world: World) -> None:
            await create(world)
            broker = Broker(world)
            await broker.acquire()
            answer, request = await broker.commit(), broker.last
            skipped = await broker.commit(object_id=broker.next_id + 1)
            dead = replace_id(broker.last, broker.next_id)
            assert skipped.error_code == 0
            await broker.release(end=broker.next_id + 2)
            await world.advance(9 * 60_000)
            assert await broker.again(request) == answer
            assert (await broker.again(dead)).error_code == 55
            orphans = await broker.files()
            assert orphans == [broker.next_id]
            await broker.deleted(*orphans)
            await world.advance(60_001)
            assert (await broker.again(request)).error_code == 46
            assert (await broker.again(dead)).error_code == 55
            await world.restart()
            assert (await broker.again(request)).error_code == 46

        self.tell(story)

    @pytest.mark.parametrize("form", BAD_FORMS)
    def test_the_coordinator_refuses_a_malformed_commit_without_a_change_of_its_state(
        self, form: str
    ) -> None:
        async def story(world: World) -> None:
            await create(world)
            broker = Broker(world)
            await broker.acquire()
            before = await world.checkpoint()
            refused = await broker.commit(topics=BAD_FORMS[form])
            assert refused.error_code == 42, refused
            assert await world.checkpoint() == before
            object_id = broker.next_id - 1  # what is refused for its form may be corrected
            assert results(await broker.commit(object_id=object_id))[0][:2] == (0, 0)

        self.tell(story)

    def test_the_coordinator_refuses_a_commit_of_an_object_above_the_size_limit(self) -> None:
        """Sums of sizes are 64-bit numbers, here and in SQLite: one object may not fill them."""

        async def story(world: World) -> None:
            await create(world)
            broker = Broker(world)
            await broker.acquire()
            for size in (2**63 - 1, MAX_OBJECT_BYTES + 1, -1):
                assert (await broker.commit(object_id=broker.first, size=size)).error_code == 42
            answer = await broker.commit(object_id=broker.first, size=MAX_OBJECT_BYTES)
            assert results(answer)[0][:2] == (0, 0)

        self.tell(story)

    def test_a_coordinator_accepts_a_commit_of_batches_in_any_order_with_gaps_between_the_bytes(
        self,
    ) -> None:
        async def story(world: World) -> None:
            await create(world)
            broker = Broker(world)
            await broker.acquire()
            answer = await broker.commit(batch(500, 2), batch(0, 3), batch(100, 1), batch(300))
            assert [result[:2] for result in results(answer)] == [(0, 0), (0, 2), (0, 5), (0, 6)]
            runs = (await find(world, (0, 0)))[0].batches
            spans = [(run.byte_offset, run.size, run.base_offset, run.last_offset) for run in runs]
            assert spans == [(500, 100, 0, 1), (0, 200, 2, 5), (300, 100, 6, 6)]

        self.tell(story)

    def test_the_coordinator_refuses_a_commit_of_an_object_with_more_than_ten_thousand_batches(
        self,
    ) -> None:
        async def story(world: World) -> None:
            await create(world)
            broker = Broker(world)
            await broker.acquire()
            most = tuple(batch(place, size=1) for place in range(MAX_BATCHES))
            one_more = (*most, batch(MAX_BATCHES, size=1))
            before = await world.checkpoint()
            refused = await broker.commit(*one_more, size=10**6)
            assert refused.error_code == 10
            assert await world.checkpoint() == before
            answer = await broker.commit(*most, object_id=broker.first, size=10**6)
            assert results(answer)[-1][1] == MAX_BATCHES - 1

        self.tell(story)

    def test_the_coordinator_refuses_only_the_batches_of_an_unknown_topic_in_a_commit(self) -> None:
        async def story(world: World) -> None:
            await create(world)
            broker = Broker(world)
            await broker.acquire()
            topics = groups(batch(0)) + groups(batch(100), topic=OTHER_TOPIC)
            assert [r[:2] for r in results(await broker.commit(topics=topics))] == [
                (0, 0),
                (100, -1),
            ]

        self.tell(story)

    def test_the_coordinator_does_not_treat_a_batch_of_a_former_producer_epoch_as_a_duplicate(
        self,
    ) -> None:
        """Also where the new epoch begins in the very same object."""

        async def story(world: World) -> None:
            await create(world)
            broker = Broker(world)
            await broker.acquire()
            await broker.commit(batch(0, 5, producer=5))
            await broker.commit(batch(0, 5, producer=5, first=5))
            mixed = await broker.commit(
                batch(0, 1, producer=5, epoch=1),
                batch(100, 5, producer=5, epoch=1, first=5),
                batch(200, 1, producer=5, epoch=1),
            )
            assert [r[:2] + r[4:] for r in results(mixed)] == [
                (0, 10, False),
                (45, -1, False),
                (0, 10, True),
            ]

        self.tell(story)

    def test_a_coordinator_at_its_producer_limit_refuses_only_batches_of_new_producers(
        self,
    ) -> None:
        async def story(world: World) -> None:
            await create(world)
            broker = Broker(world)
            await broker.acquire()
            two = (batch(0, producer=3), batch(100, producer=4), batch(200, producer=5))
            committed = results(await broker.commit(*two))
            assert [result.error_code for result in committed] == [0, 0, ErrorCode.POLICY_VIOLATION]
            await world.advance(0)
            again = (batch(0, producer=3, first=1), batch(100, producer=5), batch(200))
            committed = results(await broker.commit(*again))
            assert [result.error_code for result in committed] == [0, ErrorCode.POLICY_VIOLATION, 0]
            await world.advance(2 * DAY_MS)
            await broker.acquire()
            assert results(await broker.commit(batch(0, producer=5)))[0].error_code == 0

        self.tell(story, replace(SETTINGS, max_producers=2))

    def test_a_duplicate_batch_gets_the_append_time_of_the_first_commit(self) -> None:
        async def story(world: World) -> None:
            await create(world)
            broker = Broker(world)
            await broker.acquire()
            then = world.now_ms()
            first = results(await broker.commit(batch(0, 2, producer=5, append_time=True, time=3)))
            assert first == [(0, 0, then, 0, False)]
            await world.advance(5_000)
            again = results(await broker.commit(batch(0, 2, producer=5, append_time=True)))
            assert again == [(0, 0, then, 0, True)]
            created = results(await broker.commit(batch(0, 1, producer=5, first=2, time=9)))
            assert created == [(0, 2, -1, 0, False)]
            late = results(await broker.commit(batch(0, 1, producer=5, first=2, append_time=True)))
            assert late == [(0, 2, -1, 0, True)]  # the topic's type was changed meanwhile
            run = (await find(world, (0, 0)))[0].batches[0]
            assert (run.log_append_timestamp, run.batch_max_timestamp) == (then, then)
            assert run.message_timestamp_type == 1

        self.tell(story)


def replace_id(request: CommitBatchesRequest | None, object_id: int) -> CommitBatchesRequest:
    """The same commit of another object."""
    assert request is not None
    fields = {name: getattr(request, name) for name in request.__struct_fields__}  # type: ignore[attr-defined]
    return CommitBatchesRequest(**{**fields, "object_id": object_id})


class LevelStories(Told):
    """Stories that raise the level and restart.

    The embedded coordinator has one level for good: a node that starts decides all commands again.
    """

    def test_a_producer_expired_too_early_by_a_wrong_clock_continues_at_its_next_sequence(
        self,
    ) -> None:
        """All voters' clocks are a day back and right again: the producer looks idle for a day."""

        async def story(world: World) -> None:
            world.view.raise_level(2)
            world.handed_out_ms(7, 0)
            await create(world)
            world.jump(-DAY_MS)
            await world.restart()
            broker = Broker(world)
            await broker.acquire()
            await broker.commit(batch(0, 5, producer=7))
            world.jump(DAY_MS)
            await world.restart()
            await world.advance(1_000)
            await world.restart()
            (next_batch,) = results(await broker.commit(batch(0, 5, producer=7, first=5)))
            assert next_batch.error_code == 0
            (gap,) = results(await broker.commit(batch(0, 5, producer=8, first=5)))
            assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

        self.tell(story)

    def test_a_coordinator_upgraded_from_an_older_release_expires_producers_by_the_age_of_their_ids(
        self,
    ) -> None:
        async def story(world: World) -> None:
            world.handed_out_ms(7, 2 * DAY_MS)
            world.handed_out_ms(8, 0)
            await create(world)
            broker = Broker(world)
            await broker.acquire()
            world.view.raise_level(2)
            await world.advance(1_000)
            await world.restart()
            for producer_id, code in ((7, 0), (8, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)):
                commit = await broker.commit(batch(0, 5, producer=producer_id, first=5))
                assert results(commit)[0].error_code == code

        self.tell(story)
