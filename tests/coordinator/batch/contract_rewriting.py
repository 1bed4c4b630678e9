"""The contract about rewriters' leases, and about runs of batches that they replace.

Source: docs/design/compaction.md.
"""

from __future__ import annotations

from uuid import UUID

from msgspec.structs import replace

from coordinator.batch.runs import digest_runs
from records.rpc.rewriting import HORIZONS_SET, TOMBSTONES_REMOVED, RewriteLeaseResponse
from tests.coordinator.batch.actors import (
    Broker,
    batch,
    create,
    delete,
    delete_records,
    find,
    groups,
    mark_orphans,
    offset_for,
    results,
)
from tests.coordinator.batch.contract_base import DELAY_MS, Told
from tests.coordinator.batch.rewriter_actor import (
    Range,
    Rewriter,
    cleaning,
    codes,
    describe,
    objects,
)
from tests.coordinator.batch.subjects import KEYS, SETTINGS, World

TIMEOUT_MS = SETTINGS.lease_timeout_ms

UNSUPPORTED, INVALID, NOT_ATTEMPTED = 35, 42, 55
OUT_OF_RANGE, FENCED, POLICY, TOO_LARGE, STALE = 1, 124, 44, 10, 77


async def begin(world: World, commits: int = 4) -> tuple[Broker, Rewriter]:
    """Two partitions with objects of 10 offsets each, and a rewriter with a lease."""
    world.view.raise_level(3)
    await create(world)
    broker = Broker(world)
    await broker.acquire()
    for number in range(commits):
        topics = (
            replace(
                groups(batch(0, 10, time=number * 100))[0],
                partitions=tuple(
                    groups(batch(place, 10, time=number * 100), partition=partition)[0].partitions[
                        0
                    ]
                    for partition, place in ((0, 0), (1, 100))
                ),
            ),
        )
        assert results(await broker.commit(topics=topics))[0].error_code == 0
    rewriter = Rewriter(world)
    assert (await rewriter.acquire()).error_code == 0
    await world.advance(1)
    return broker, rewriter


class RewritingStories(Told):
    """Rewrite leases, replaced runs, and how far partitions are cleaned."""

    def test_find_batches_returns_rewritten_runs_at_the_offsets_of_the_runs_that_they_replaced(
        self,
    ) -> None:
        async def story(world: World) -> None:
            broker, rewriter = await begin(world)
            wanted = (Range(10, 30, parts=2), Range(0, 40, partition=1))
            assert [one.error_code for one in await rewriter.replace(*wanted)] == [0, 0]
            await world.restart()
            first, second = await find(world, (0, 0), (1, 15))
            key = KEYS.key(rewriter.object_id)
            bounds = [(run.base_offset, run.last_offset) for run in first.batches]
            assert bounds == [(0, 9), (10, 19), (20, 29), (30, 39)]
            assert [run.object_format for run in first.batches] == [1, 2, 2, 1]
            assert [run.record_count for run in first.batches] == [-1, 10, 10, -1]
            assert [run.object_key == key for run in first.batches] == [False, True, True, False]
            assert [(run.base_offset, run.record_count) for run in second.batches] == [(0, 40)]
            uses = await objects(world)
            used = {one: (uses[one].used_bytes, uses[one].marked_at_ms) for one in uses}
            first_id = broker.first
            assert used == {
                first_id: (100, -1),
                first_id + 1: (0, -1),
                first_id + 2: (0, -1),
                first_id + 3: (100, -1),
                rewriter.object_id: (30, -2),
            }
            await world.advance(DELAY_MS)
            await world.advance(DELAY_MS)
            assert await broker.files() == [first_id + 1, first_id + 2]

        self.tell(story)

    def test_a_rewritten_run_has_the_append_time_of_its_newest_source_run(self) -> None:
        async def story(world: World) -> None:
            _, rewriter = await begin(world)
            (found,) = await find(world, (0, 0))
            times = [run.log_append_timestamp for run in found.batches]
            await world.advance(5_000)
            await rewriter.replace(Range(0, 40))
            await world.restart()
            (found,) = await find(world, (0, 0))
            assert [run.log_append_timestamp for run in found.batches] == [max(times)]

        self.tell(story)

    def test_the_coordinators_search_by_timestamp_finds_rewritten_runs(self) -> None:
        async def story(world: World) -> None:
            _, rewriter = await begin(world, commits=12)  # times 0, 100, 200, ... 1100
            await rewriter.replace(Range(20, 50))
            await rewriter.replace(Range(60, 70, parts=2), Range(0, 120, partition=1, parts=5))
            assert await offset_for(world, 150) == (0, 20)
            assert await offset_for(world, 400) == (0, 20)
            assert await offset_for(world, 401) == (0, 50)
            assert await offset_for(world, 600) == (0, 60)
            assert await offset_for(world, 1_100) == (0, 110)
            assert await offset_for(world, -3) == (0, 110)  # the greatest timestamp
            assert await offset_for(world, 1_101) == (0, -1)
            assert await offset_for(world, 700, partition=1) == (0, 0)

        self.tell(story)

    def test_a_repeated_replacement_of_runs_gets_the_first_response_even_after_its_lease_has_ended(
        self,
    ) -> None:
        async def story(world: World) -> None:
            _, rewriter = await begin(world)
            response = await rewriter.send(
                await rewriter.plan(Range(0, 20), Range(10, 20, 40, 1, 1))
            )
            before = await world.checkpoint()
            assert codes(response) == codes(await rewriter.again()) == [0, POLICY]
            assert await world.checkpoint() == before
            sent = rewriter.last
            await rewriter.send((), closes=True)
            await rewriter.release()
            await world.advance(DELAY_MS)
            await world.restart()
            rewriter.last = sent
            assert codes(await rewriter.again()) == [0, POLICY]
            assert sent is not None
            done = replace(sent.topics[0], partitions=sent.topics[0].partitions[:1])
            rewriter.last = replace(sent, topics=(done,), closes_object=True)
            assert codes(await rewriter.again()) == [0]
            await delete_records(world, 20)
            assert codes(await rewriter.again()) == [OUT_OF_RANGE]

        self.tell(story)

    def test_the_coordinator_refuses_requests_to_rewrite_objects_below_esker_version_3(
        self,
    ) -> None:
        async def story(world: World) -> None:
            _, rewriter = await begin(world)
            rows = await rewriter.plan(Range(0, 20))
            world.view.raise_level(2)
            before = await world.checkpoint()
            assert (await rewriter.send(rows)).error_code == UNSUPPORTED
            assert (await rewriter.acquire()).error_code == UNSUPPORTED
            assert await rewriter.renew() == UNSUPPORTED
            assert await world.checkpoint() == before

        self.tell(story)

    def test_the_coordinator_accepts_or_refuses_each_partition_of_a_run_replacement_separately(
        self,
    ) -> None:
        async def story(world: World) -> None:
            _, rewriter = await begin(world)
            rows = await rewriter.plan(Range(0, 20), Range(0, 20, partition=1))
            await delete_records(world, 15, partition=1)
            elsewhere = tuple(run._replace(byte_offset=500) for run in rows[0].runs)
            missing = replace(rows[0], partition_index=7, runs=elsewhere)
            response = await rewriter.send((*rows, missing))
            assert codes(response) == [0, OUT_OF_RANGE, 3]
            first, second = await find(world, (0, 0), (1, 15))
            assert [run.last_offset for run in first.batches] == [19, 29, 39]
            assert [run.last_offset for run in second.batches] == [19, 29, 39]

        self.tell(story)

    def test_the_coordinator_refuses_a_replacement_of_runs_that_differ_from_the_live_runs(
        self,
    ) -> None:
        async def story(world: World) -> None:
            _, rewriter = await begin(world)
            (row,) = await rewriter.plan(Range(10, 30))
            before = await world.checkpoint()
            for wrong in (
                replace(row, old_runs_digest=row.old_runs_digest ^ 1),
                replace(row, old_run_count=1),
                replace(row, old_run_count=3),
                replace(row, first_offset=11, runs=(row.runs[0]._replace(record_count=19),)),
                replace(row, end_offset=29, runs=(row.runs[0]._replace(last_offset=28),)),
            ):
                assert codes(await rewriter.send((wrong,))) in ([FENCED], [INVALID]), wrong
            assert await world.checkpoint() == before
            zombie = Rewriter(world)
            await zombie.acquire()
            stale = await zombie.plan(Range(10, 20), Range(0, 40, partition=1))
            assert codes(await rewriter.send((row,))) == [0]
            assert codes(await zombie.send(stale)) == [FENCED, 0]

        self.tell(story)

    def test_the_coordinator_replaces_only_live_runs_below_the_high_watermark(self) -> None:
        async def story(world: World) -> None:
            broker, rewriter = await begin(world)
            (row,) = await rewriter.plan(Range(0, 40))
            run = row.runs[0]
            above = replace(row, end_offset=41, runs=(run._replace(last_offset=40),))
            assert codes(await rewriter.send((above,))) == [OUT_OF_RANGE]
            (early,) = await rewriter.plan(Range(0, 20))
            await delete_records(world, 5)  # inside of the first run, which is live
            assert codes(await rewriter.send((early,))) == [0]
            (live,) = await rewriter.plan(Range(0, 40))
            await delete_records(world, 20)
            assert codes(await rewriter.send((live,))) == [OUT_OF_RANGE]
            await world.advance(DELAY_MS)
            assert codes(await rewriter.send(await rewriter.plan(Range(20, 40)))) == [0]
            await world.restart()
            assert broker.first + 1 in await objects(world)

        self.tell(story)

    def test_a_rewritten_run_below_the_log_start_does_not_count_as_used_bytes_of_its_object(
        self,
    ) -> None:
        async def story(world: World) -> None:
            _, rewriter = await begin(world)
            (row,) = await rewriter.plan(Range(0, 40, parts=4))
            (merged,) = await rewriter.plan(Range(0, 40))
            assert codes(await rewriter.send((merged,))) == [0]
            await delete_records(world, 25)
            rewriter.next_object()
            (row,) = await rewriter.plan(Range(0, 40, parts=4))
            (whole,) = (await find(world, (0, 25)))[0].batches
            row = replace(row, old_run_count=1, old_runs_digest=digest_of(whole))
            row = replace(row, runs=tuple(run._replace(record_count=10) for run in row.runs))
            assert codes(await rewriter.send((row,))) == [0]
            await world.restart()
            (found,) = await find(world, (0, 25))
            assert [run.base_offset for run in found.batches] == [20, 30]
            assert (await objects(world))[rewriter.object_id].used_bytes == 20

        self.tell(story)

    def test_the_coordinator_does_not_mark_an_open_rewritten_object_without_live_runs_for_deletion(
        self,
    ) -> None:
        async def story(world: World) -> None:
            broker, rewriter = await begin(world)
            await rewriter.replace(Range(0, 20))
            await delete_records(world, 20)
            await world.advance(DELAY_MS)
            await world.restart()
            await world.advance(DELAY_MS)
            files = await broker.files()
            assert rewriter.object_id not in files
            assert await broker.deleted(rewriter.object_id) == [INVALID]
            assert await mark_orphans(world, rewriter.object_id) == [POLICY]
            assert not await broker.is_safe(rewriter.object_id)
            assert [one.error_code for one in await rewriter.replace(Range(20, 40))] == [0]
            await delete_records(world, 40)
            assert (await rewriter.send((), closes=True)).error_code == 0
            await world.advance(DELAY_MS)
            await world.advance(DELAY_MS)
            assert rewriter.object_id in await broker.files()
            assert await broker.deleted(rewriter.object_id) == [0]

        self.tell(story)

    def test_the_coordinator_refuses_further_runs_in_a_closed_rewritten_object(self) -> None:
        async def story(world: World) -> None:
            _, rewriter = await begin(world)
            await rewriter.replace(Range(0, 20), closes=True)
            rows = await rewriter.plan(Range(20, 40))
            assert (await rewriter.send(rows)).error_code == NOT_ATTEMPTED
            assert (await rewriter.send((), closes=True)).error_code == 0  # closed before
            rewriter.next_object()
            assert (await rewriter.send((), closes=True)).error_code == INVALID  # never opened
            assert codes(await rewriter.send(rows)) == [0]

        self.tell(story)

    def test_the_end_of_a_rewrite_lease_closes_its_objects_and_makes_its_unused_object_ids_orphans(
        self,
    ) -> None:
        for expires in (False, True):

            async def story(world: World, expires: bool = expires) -> None:
                broker, rewriter = await begin(world)
                await rewriter.replace(Range(0, 20))
                third = rewriter.next_object() + 1
                rewriter.next_object()
                await rewriter.replace(Range(20, 40))
                await delete_records(world, 40)
                if expires:
                    await world.advance(TIMEOUT_MS)
                else:
                    assert await rewriter.release() == 0
                    assert await rewriter.release() == 0
                (row,) = await rewriter.plan(Range(0, 20, partition=1))
                assert (await rewriter.send((row,))).error_code == NOT_ATTEMPTED
                assert await rewriter.renew() == NOT_ATTEMPTED
                await world.restart()
                await world.advance(DELAY_MS)
                await world.advance(DELAY_MS)
                files = await broker.files()
                end = rewriter.first + 10
                assert {rewriter.first, third} <= set(files)  # used, and of no use any more
                orphans = [
                    one for one in range(rewriter.first, end) if one not in (third - 2, third)
                ]
                assert set(orphans) <= set(files)
                assert await broker.deleted(*files) == [0] * len(files)
                assert not [one for one in await broker.files() if one >= rewriter.first]

            self.tell(story)

    def test_a_rewrite_lease_that_is_renewed_before_its_timeout_does_not_expire(self) -> None:
        async def story(world: World) -> None:
            _, rewriter = await begin(world)
            for _ in range(3):
                await world.advance(TIMEOUT_MS - 10)
                assert await rewriter.renew() == 0
            assert [one.error_code for one in await rewriter.replace(Range(0, 20))] == [0]
            await world.advance(TIMEOUT_MS)
            assert await rewriter.renew() == NOT_ATTEMPTED

        self.tell(story)

    def test_the_coordinator_accepts_rewrite_lease_requests_only_from_the_owner_of_the_lease(
        self,
    ) -> None:
        async def story(world: World) -> None:
            broker, rewriter = await begin(world)
            stranger = Rewriter(world, broker_id=2)
            stranger.lease_id = rewriter.lease_id
            assert await stranger.renew() == await stranger.release() == INVALID
            plan = Rewriter(world, -1, -1, UUID(int=5))
            assert (await plan.acquire()).timeout_ms == TIMEOUT_MS
            nobody, both = Rewriter(world, -1, -1), Rewriter(world, 1, 1, UUID(int=5))
            assert (await nobody.acquire()).error_code == INVALID
            assert (await both.acquire()).error_code == INVALID
            stale, newer = Rewriter(world, epoch=0), Rewriter(world, epoch=2)
            assert (await stale.acquire()).error_code == STALE
            assert (await newer.acquire()).error_code == 0
            assert await rewriter.renew() == NOT_ATTEMPTED  # fenced by the newer epoch
            assert [one.error_code for one in await newer.replace(Range(0, 20))] == [0]
            assert [one.error_code for one in await plan.replace(Range(20, 40))] == [0]
            assert await broker.release(plan.lease_id) == INVALID
            commit = await broker.commit(object_id=plan.first + 1, lease_id=plan.lease_id)
            assert commit.error_code == INVALID

        self.tell(story)

    def test_the_coordinator_refuses_a_malformed_rewrite_lease_request(self) -> None:
        async def story(world: World) -> None:
            _, rewriter = await begin(world)
            refused: list[RewriteLeaseResponse] = [
                await rewriter.ask_lease(object_count=0),
                await rewriter.ask_lease(object_count=1_001),
                await rewriter.ask_lease(releases=True),
                await rewriter.ask_lease(lease_id=10**6),
            ]
            assert [one.error_code for one in refused] == [INVALID] * 4

        self.tell(story)

    def test_the_coordinator_refuses_a_malformed_run_replacement_without_a_change_of_its_state(
        self,
    ) -> None:
        async def story(world: World) -> None:
            _, rewriter = await begin(world)
            (row,) = await rewriter.plan(Range(0, 40, parts=2))
            one, two = row.runs
            before = await world.checkpoint()
            for wrong in (
                replace(row, runs=()),
                replace(row, runs=(one,)),
                replace(row, runs=(one, two._replace(last_offset=40))),
                replace(row, runs=(one._replace(record_count=21), two._replace(record_count=19))),
                replace(row, runs=(one._replace(record_count=19), two)),  # merged, and one is lost
                replace(row, runs=(one._replace(timestamp_type=2), two)),
                replace(row, runs=(one._replace(append_time=-1), two)),
                replace(row, old_run_count=0),
                replace(row, flags=1),  # without a bound
                replace(row, bound=40, flags=4),
                replace(row, bound=39),
                replace(row, bound=-2),
                replace(row, first_offset=40),
            ):
                assert codes(await rewriter.send((wrong,))) == [INVALID], wrong
            overlapping = two._replace(byte_offset=one.byte_offset + 1)
            for whole in (
                replace(row, runs=(one, overlapping)),
                replace(row, runs=(one, two._replace(size=0))),
                replace(row, runs=(one, two._replace(byte_offset=995))),
            ):
                assert (await rewriter.send((whole,))).error_code == INVALID
            assert (await rewriter.send((row, row))).error_code == INVALID
            assert (await rewriter.send((row,), size=19)).error_code == INVALID
            many = replace(row, old_run_count=2_001)
            assert (await rewriter.send((many,))).error_code == TOO_LARGE
            rewriter.object_id = 10**6
            assert (await rewriter.send((row,))).error_code == INVALID
            assert await world.checkpoint() == before

        self.tell(story)

    def test_the_coordinator_refuses_runs_in_a_rewritten_object_beyond_the_objects_size(
        self,
    ) -> None:
        async def story(world: World) -> None:
            _, rewriter = await begin(world)
            assert codes(await rewriter.send(await rewriter.plan(Range(0, 20)), size=25)) == [0]
            rows = await rewriter.plan(Range(20, 40))
            assert codes(await rewriter.send(rows, size=25)) == [0]
            await delete_records(world, 40)  # what was claimed stays claimed
            rewriter.place = 0
            rows = await rewriter.plan(Range(0, 20, partition=1))
            assert (await rewriter.send(rows, size=25)).error_code == INVALID
            assert (await rewriter.send(rows, size=26)).error_code == INVALID  # another size

        self.tell(story)

    def test_compaction_progress_advances_only_by_ranges_that_continue_it_from_the_log_start(
        self,
    ) -> None:
        async def story(world: World) -> None:
            _, rewriter = await begin(world)

            async def compact(first: int, end: int, bound: int, flags: int = 0) -> int:
                (answer,) = await rewriter.replace(Range(first, end, bound, flags, removed=1))
                return answer.error_code

            assert await cleaning(world) == (0, -1, 0)
            assert await compact(10, 20, 40) == 0  # replaced; the round has not begun
            assert await cleaning(world) == (0, -1, 0)
            assert await compact(0, 10, 40) == 0
            assert await cleaning(world) == (10, 40, 10)
            assert await compact(20, 30, 40) == 0  # not contiguous
            assert await cleaning(world) == (10, 40, 10)
            assert await compact(10, 30, 40) == 0
            assert await cleaning(world) == (30, 40, 30)
            assert await compact(30, 40, 41 - 1) == 0
            assert await cleaning(world) == (40, 40, 40)
            await world.restart()
            broker = Broker(world, epoch=2)
            await broker.acquire()
            await broker.commit(batch(0, 10))
            newer = Rewriter(world, epoch=2)
            await newer.acquire()
            (answer,) = await newer.replace(Range(30, 50, 50, removed=1))
            assert (answer.error_code, await cleaning(world)) == (0, (40, 40, 40))
            (answer,) = await newer.replace(Range(0, 30, 50, removed=1))
            assert answer == replace(answer, cleaned_until=40, bound=50, rewritten_until=30)
            await delete_records(world, 35)
            assert await cleaning(world) == (40, 50, 35)
            described = await describe(world)
            assert (described.log_start_offset, described.last_stable_offset) == (35, 50)
            (answer,) = await newer.replace(Range(30, 50, 50, removed=1))
            assert (answer.error_code, await cleaning(world)) == (0, (50, 50, 50))
            await world.restart()
            assert await cleaning(world) == (50, 50, 50)

        self.tell(story)

    def test_a_merge_of_runs_does_not_advance_the_compaction_progress_of_its_partition(
        self,
    ) -> None:
        async def story(world: World) -> None:
            _, rewriter = await begin(world)
            await rewriter.replace(Range(0, 40))
            assert await cleaning(world) == (0, -1, 0)

        self.tell(story)

    def test_a_coordinator_accepts_delete_horizons_and_removed_tombstones_only_in_compacted_offsets(
        self,
    ) -> None:
        async def story(world: World) -> None:
            _, rewriter = await begin(world)
            for flags in (HORIZONS_SET, TOMBSTONES_REMOVED, 3):
                (answer,) = await rewriter.replace(Range(10, 20, 40, flags, removed=1))
                assert answer.error_code == POLICY
            (answer,) = await rewriter.replace(Range(0, 10, 40, HORIZONS_SET, removed=1))
            assert (answer.error_code, answer.cleaned_until) == (0, 10)
            (answer,) = await rewriter.replace(Range(20, 30, 40, TOMBSTONES_REMOVED))
            assert answer.error_code == POLICY
            (answer,) = await rewriter.replace(Range(10, 20, 40, 3))
            assert (answer.error_code, answer.cleaned_until) == (0, 20)
            (answer,) = await rewriter.replace(Range(10, 20, 30, TOMBSTONES_REMOVED, removed=1))
            assert answer.error_code == 0  # another bound, and cleaned before
            assert await cleaning(world) == (20, 40, 20)

        self.tell(story)

    def test_the_coordinator_records_when_the_first_run_of_an_object_was_deleted(self) -> None:
        async def story(world: World) -> None:
            broker, rewriter = await begin(world)
            await world.advance(40_000)  # a stamp of steady time
            died_ms = world.now_ms()
            await delete_records(world, 10)
            await world.restart()
            await world.advance(40_000)
            await delete_records(world, 10, partition=1)
            await delete_records(world, 20)
            uses = await objects(world)
            noted = {one: uses[one].first_deletion_ms for one in uses}
            assert died_ms - 31_000 <= noted[broker.first] <= died_ms
            assert died_ms < noted[broker.first + 1]
            assert noted[broker.first + 3] == -1
            held = await objects(world, deleted_before_ms=world.now_ms() + 1)
            assert list(held) == [broker.first + 1]  # nothing of the first is used
            assert not await objects(world, deleted_before_ms=died_ms)
            assert [
                one.error_code for one in await rewriter.replace(Range(10, 20, partition=1))
            ] == [0]
            assert not await objects(world, deleted_before_ms=world.now_ms() + 60_000)

        self.tell(story)

    def test_deleting_a_topic_deletes_the_rewritten_objects_of_the_topic(self) -> None:
        async def story(world: World) -> None:
            broker, rewriter = await begin(world)
            (compacted,) = await rewriter.replace(Range(0, 40, 40, removed=3))
            assert compacted.error_code == 0
            rows = await rewriter.plan(Range(0, 40, partition=1))
            await delete(world)
            assert codes(await rewriter.send(rows)) == [100]
            await world.advance(DELAY_MS)
            await rewriter.release()
            await world.restart()
            await world.advance(DELAY_MS)
            await world.advance(DELAY_MS)
            files = set(await broker.files())
            assert {*range(broker.first, broker.first + 4), rewriter.object_id} <= files

        self.tell(story)

    def test_the_coordinator_refuses_runs_under_a_leased_object_id_reported_as_safe_to_delete(
        self,
    ) -> None:
        async def story(world: World) -> None:
            broker, rewriter = await begin(world)
            assert await broker.is_safe(rewriter.object_id)
            rows = await rewriter.plan(Range(0, 20))
            assert (await rewriter.send(rows)).error_code == NOT_ATTEMPTED
            await world.restart()
            assert (await rewriter.send(rows)).error_code == NOT_ATTEMPTED

        self.tell(story)


def digest_of(run: object) -> int:
    """The digest of one run that FindBatches found."""
    key, place, size = run.object_key, run.byte_offset, run.size  # type: ignore[attr-defined]
    return digest_runs([(KEYS.object_id(key), place, size)])
