"""A broker ships the logs: one cut at a time, cheaply, and never on top of another's.

Source: docs/design/backup.md.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

import diskless.backup.shipper
from diskless.stores.faults import Fault, FaultRule
from tests.diskless.backup.backup_world import (
    BATCHES,
    CLUSTER,
    GROUPS,
    QUIET,
    TRANSACTIONS,
    WORK,
    BackupWorld,
    choose_by_image,
)
from tests.diskless.virtual_time import run

UPLOADS = frozenset({"upload"})


@pytest.fixture(autouse=True)
def chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    choose_by_image(monkeypatch)


def claim(work: Callable[[BackupWorld], Awaitable[None]], **options: float) -> None:
    async def on_loop() -> None:
        await work(BackupWorld(**options))

    run(on_loop)


def test_a_cut_has_the_bytes_of_all_logs_and_later_cuts_add_only_what_is_new() -> None:
    async def work(world: BackupWorld) -> None:
        shipper = world.shipper()
        await shipper.turn()
        first = await world.newest()
        await world.check(first)
        world.logs[BATCHES].write(WORK, WORK)
        await asyncio.sleep(20)
        await shipper.turn()
        second = await world.newest()
        await world.check(second)
        assert (first.number, second.number) == (0, 1)
        assert second.log(CLUSTER) == first.log(CLUSTER)
        assert len(second.log(BATCHES).ranges) == 2
        assert len(second.objects - first.objects) == 1

    claim(work)


def test_an_idle_cluster_writes_nothing_and_its_backup_does_not_age() -> None:
    async def work(world: BackupWorld) -> None:
        shipper = world.shipper()
        shipper.start()
        await asyncio.sleep(60)
        puts = len(world.memory.puts)
        for _ in range(600):
            for log in (world.logs[CLUSTER], world.logs[BATCHES]):
                log.write(*QUIET)
            await asyncio.sleep(1)
        assert len(world.memory.puts) == puts
        assert shipper.age_s < 30
        world.logs[GROUPS].write(WORK)
        await asyncio.sleep(30)
        assert len(world.memory.puts) == puts + 2
        await world.check(await world.newest())
        await shipper.close()

    claim(work, retention_s=24 * 3600)


def test_a_thousand_commits_a_second_cost_six_puts_a_minute() -> None:
    async def work(world: BackupWorld) -> None:
        shipper = world.shipper()
        shipper.start()
        await asyncio.sleep(10)
        puts = len(world.memory.puts)
        for _ in range(60):
            for _ in range(10):
                world.logs[BATCHES].write(*[WORK] * 100)
            world.logs[GROUPS].write(WORK)
            world.logs[TRANSACTIONS].write(WORK)
            await asyncio.sleep(1)
        assert len(world.memory.puts) - puts <= 6
        await world.check(await world.newest())
        await shipper.close()

    claim(work)


def test_a_log_begins_anew_from_a_checkpoint_when_its_records_are_gone() -> None:
    async def work(world: BackupWorld) -> None:
        shipper = world.shipper()
        await shipper.turn()
        log = world.logs[BATCHES]
        log.write(WORK)
        log.cut_at_checkpoint()
        log.write(WORK)
        await asyncio.sleep(20)
        await shipper.turn()
        newest = await world.newest()
        await world.check(newest)
        assert newest.log(BATCHES).checkpoint is not None
        assert len(newest.log(BATCHES).ranges) == 1

    claim(work)


def test_a_manifest_has_a_bounded_number_of_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diskless.backup.shipper, "MAX_RANGES", 4)

    async def work(world: BackupWorld) -> None:
        shipper = world.shipper()
        for _ in range(10):
            world.logs[BATCHES].write(WORK)
            await shipper.turn()
            newest = await world.newest()
            await world.check(newest)
            assert len(newest.log(BATCHES).ranges) <= 4
            await asyncio.sleep(20)

    claim(work)


def test_the_ends_of_a_cut_are_taken_from_the_groups_to_the_cluster() -> None:
    """While the cut waits for the batch coordinator, its data and an offset of it are committed."""

    async def work(world: BackupWorld) -> None:
        world.logs[BATCHES].is_away = True
        shipper = world.shipper()
        turn = asyncio.create_task(shipper.turn())
        await asyncio.sleep(1)
        world.logs[CLUSTER].write(WORK)  # a topic
        world.logs[BATCHES].write(WORK)  # its data
        world.logs[GROUPS].write(WORK)  # an offset behind the data
        world.logs[BATCHES].is_away = False
        await turn
        newest = await world.newest()
        assert newest.log(GROUPS).end == world.logs[GROUPS].end_offset - 1
        assert newest.log(BATCHES).end == world.logs[BATCHES].end_offset
        assert newest.log(CLUSTER).end == world.logs[CLUSTER].end_offset

    claim(work)


def test_no_cut_is_taken_while_a_leader_does_not_answer() -> None:
    async def work(world: BackupWorld) -> None:
        world.logs[TRANSACTIONS].is_away = True
        shipper = world.shipper()
        await shipper.turn()
        assert not await world.bucket.list_manifests()
        assert shipper.fault == f"the leader of {TRANSACTIONS} did not answer for 10 s"
        await asyncio.sleep(60)
        assert shipper.late_reason is not None
        world.logs[TRANSACTIONS].is_away = False
        await shipper.turn()
        assert (shipper.fault, shipper.late_reason) == (None, None)

    claim(work)


def test_a_log_that_this_broker_has_not_opened_is_waited_for() -> None:
    async def work(world: BackupWorld) -> None:
        shipper = world.shipper()
        gone = world.logs.pop(GROUPS)
        await shipper.turn()
        assert shipper.fault == f"this broker has not opened {GROUPS} yet"
        world.logs[GROUPS] = gone
        await shipper.turn()
        await world.check(await world.newest())

    claim(work)


def test_of_two_brokers_that_ship_at_once_one_wins_and_the_other_goes_on_from_its_cut() -> None:
    async def work(world: BackupWorld) -> None:
        one, other = world.shipper(101), world.shipper(101)
        await one.turn()
        await other.turn()
        for _ in range(6):
            world.logs[BATCHES].write(WORK)
            await asyncio.sleep(20)
            await asyncio.gather(one.turn(), other.turn())
            await asyncio.gather(one.turn(), other.turn())
        listed = await world.bucket.list_manifests()
        assert [each.number for each in listed] == list(range(len(listed)))
        ends = 0
        for each in listed:
            manifest = await world.bucket.read_manifest(each)
            await world.check(manifest)
            assert manifest.log(BATCHES).end >= ends
            ends = manifest.log(BATCHES).end
        assert ends == world.logs[BATCHES].end_offset

    claim(work)


def test_a_paused_broker_cannot_write_on_top_of_an_old_manifest() -> None:
    async def work(world: BackupWorld) -> None:
        paused, other = world.shipper(101), world.shipper(102)
        await paused.turn()
        world.image.chosen = 102
        for _ in range(3):
            world.logs[BATCHES].write(WORK)
            await asyncio.sleep(20)
            await other.turn()
        before = dict(world.memory.objects)
        world.image.chosen = 101  # as the paused broker still believes
        await paused.turn()
        manifests = {key for key in world.memory.objects if "/manifest/" in key}
        assert manifests == {key for key in before if "/manifest/" in key}
        assert all(world.memory.objects[key] == before[key] for key in manifests)
        await paused.turn()
        await world.check(await world.newest())
        assert (await world.newest()).log(BATCHES).end == world.logs[BATCHES].end_offset

    claim(work)


def test_a_broker_that_is_chosen_again_reads_the_newest_manifest_first() -> None:
    async def work(world: BackupWorld) -> None:
        first, second = world.shipper(101), world.shipper(102)
        await first.turn()
        world.image.chosen = 102
        await first.turn()
        world.logs[BATCHES].write(WORK)
        await second.turn()
        assert first.age_s is None
        world.image.chosen = 101
        world.logs[BATCHES].write(WORK)
        await asyncio.sleep(20)
        await first.turn()
        assert [each.number for each in await world.bucket.list_manifests()] == [0, 1, 2]
        await world.check(await world.newest())

    claim(work)


@pytest.mark.parametrize("puts", range(5))
def test_a_broker_that_is_killed_in_the_middle_leaves_a_backup_from_which_the_next_goes_on(
    puts: int,
) -> None:
    async def work(world: BackupWorld) -> None:
        await world.shipper().turn()
        world.logs[BATCHES].write(WORK)
        world.logs[CLUSTER].cut_at_checkpoint()
        world.logs[CLUSTER].write(WORK)
        await asyncio.sleep(20)
        killed = world.shipper()
        world.store.rules = ()
        task = asyncio.create_task(killed.turn())
        before = len(world.memory.puts)
        while len(world.memory.puts) < before + puts and not task.done():
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await world.check_restorable()
        await world.shipper().turn()
        await world.check(await world.newest())
        assert (await world.newest()).log(BATCHES).end == world.logs[BATCHES].end_offset

    claim(work)


def test_lost_answers_and_refused_uploads_leave_every_manifest_sound() -> None:
    async def work(world: BackupWorld) -> None:
        shipper = world.shipper()
        world.store.rules = (
            FaultRule(fault=Fault.LOST_ANSWER, operations=UPLOADS, probability=0.3),
            FaultRule(fault=Fault.ERROR, operations=UPLOADS, probability=0.2),
        )
        shipper.start()
        for _ in range(200):
            world.logs[BATCHES].write(WORK)
            await asyncio.sleep(5)
        world.store.rules = ()
        await asyncio.sleep(30)
        for listed in await world.bucket.list_manifests():
            await world.check(await world.bucket.read_manifest(listed))
        assert (await world.newest()).log(BATCHES).end == world.logs[BATCHES].end_offset
        await shipper.close()

    claim(work, retention_s=24 * 3600)


def test_ten_minutes_of_a_failing_store_are_reported_and_made_up_for() -> None:
    async def work(world: BackupWorld) -> None:
        shipper = world.shipper()
        shipper.start()
        await asyncio.sleep(30)
        world.store.rules = (FaultRule(fault=Fault.REFUSED, operations=UPLOADS),)
        for _ in range(60):
            world.logs[BATCHES].write(WORK)
            await asyncio.sleep(10)
        assert "403 AccessDenied" in shipper.late_reason
        assert shipper.age_s > 570
        world.store.rules = ()
        await asyncio.sleep(10)
        assert shipper.late_reason is None
        await world.check(await world.newest())
        assert (await world.newest()).log(BATCHES).end == world.logs[BATCHES].end_offset
        await shipper.close()

    claim(work)


def test_a_store_that_overwrites_objects_gets_no_backup_and_a_sentence() -> None:
    async def work(world: BackupWorld) -> None:
        world.memory.overwrites = True
        shipper = world.shipper()
        await shipper.turn()
        assert not await world.bucket.list_manifests()
        assert "If-None-Match" in (shipper.fault or "")

    claim(work)


def test_nothing_is_shipped_without_a_proof_that_the_cluster_is_the_living_one() -> None:
    async def work(world: BackupWorld) -> None:
        world.is_living = False
        shipper = world.shipper()
        await shipper.turn()
        assert not await world.bucket.list_manifests()
        assert "restored elsewhere" in (shipper.fault or "")

    claim(work)


def test_a_requested_cut_is_written_although_nothing_is_new() -> None:
    async def work(world: BackupWorld) -> None:
        shipper = world.shipper()
        shipper.start()
        await asyncio.sleep(10)
        await world.bucket.request(1)
        await world.bucket.request(2)
        await asyncio.sleep(15)
        newest = await world.newest()
        assert (newest.number, newest.cut) == (2, 2)
        await world.check(newest)
        await asyncio.sleep(60)
        assert (await world.newest()).number == 2
        await shipper.close()

    claim(work)


def test_a_damaged_newest_manifest_does_not_end_the_backups() -> None:
    async def work(world: BackupWorld) -> None:
        await world.shipper().turn()
        world.logs[BATCHES].write(WORK)
        second = world.shipper()
        await second.turn()
        key = world.bucket.manifest_key(1)
        data, at = world.memory.objects[key]
        world.memory.objects[key] = (data[:-20], at)
        await asyncio.sleep(20)
        await world.shipper().turn()
        newest = await world.newest()
        assert newest.number == 2
        await world.check(newest)
        assert newest.log(BATCHES).end == world.logs[BATCHES].end_offset

    claim(work)


@pytest.mark.parametrize("chosen_id", [101, 102])
def test_a_log_that_has_lost_backed_up_records_is_a_contradiction(chosen_id: int) -> None:
    async def work(world: BackupWorld) -> None:
        world.logs[BATCHES].write(WORK, WORK)
        await world.shipper().turn()
        old, world.logs[BATCHES] = (
            world.logs[BATCHES],
            type(world.logs[BATCHES])(BATCHES, world.logs[BATCHES].checkpoints),
        )
        world.logs[BATCHES].write(WORK)
        assert world.logs[BATCHES].end_offset < old.end_offset
        world.image.chosen = chosen_id
        again = world.shipper(101)
        before = dict(world.memory.objects)
        await again.turn()
        assert again.contradiction is None  # a deposed leader may have said so
        await asyncio.sleep(30)
        await again.turn()
        assert again.contradiction is not None
        assert f"{BATCHES} ends at 2, and its backup at 4" in again.contradiction
        assert set(before) == {key for key in world.memory.objects if "/manifest/" in key} | {
            key for key in world.memory.objects if "/data/" in key
        }
        assert not again.is_released(BATCHES, 0)

    claim(work)


def test_the_leader_of_a_log_that_lost_records_is_told_every_five_seconds() -> None:
    async def work(world: BackupWorld) -> None:
        world.logs[BATCHES].write(WORK, WORK)
        await world.shipper().turn()
        log = world.logs[BATCHES]
        world.logs[BATCHES] = type(log)(BATCHES, log.checkpoints)
        world.logs[BATCHES].write(WORK)
        again = world.shipper()
        again.start()
        await asyncio.sleep(29)
        assert not world.reports  # a deposed leader may have said so
        await asyncio.sleep(21)
        assert again.contradiction is not None
        assert len(world.reports) in (3, 4)
        assert set(world.reports) == {("__diskless-metadata", 0, 4, 1)}
        await again.close()

    claim(work)


def test_a_leader_that_was_deposed_and_does_not_know_it_is_no_contradiction() -> None:
    async def work(world: BackupWorld) -> None:
        shipper = world.shipper()
        shipper.start()
        await asyncio.sleep(30)
        new = world.logs[BATCHES]
        old = world.logs[BATCHES] = type(new)(BATCHES, new.checkpoints)
        old.elect()
        await asyncio.sleep(25)
        assert "ends at 1, and its backup at 2" in (shipper.fault or "")
        world.logs[BATCHES] = new
        await asyncio.sleep(60)
        assert (shipper.contradiction, shipper.fault) == (None, None)
        await shipper.close()

    claim(work)


def test_records_that_a_checkpoint_replaces_while_they_are_read_are_no_end_of_the_task() -> None:
    async def work(world: BackupWorld) -> None:
        shipper = world.shipper()
        await shipper.turn()
        log = world.logs[CLUSTER]
        log.write(WORK)
        world.logs[BATCHES].write(WORK)
        read = log.read

        def replaced(*words: int) -> bytes:
            del log.read
            log.cut_at_checkpoint()
            return bytes(read(*words))

        log.read = replaced  # type: ignore[method-assign]
        await asyncio.sleep(20)
        await shipper.turn()
        assert shipper.fault is not None
        await shipper.turn()
        assert shipper.fault is None
        await world.check(await world.newest())

    claim(work)


def test_another_epoch_before_the_end_of_the_backup_is_a_contradiction() -> None:
    async def work(world: BackupWorld) -> None:
        await world.shipper().turn()
        log = world.logs[BATCHES]
        other = world.logs[BATCHES] = type(log)(BATCHES, world.logs[BATCHES].checkpoints)
        other.elect()
        other.depose()
        other.elect()
        other.write(WORK)
        again = world.shipper()
        await again.turn()
        await asyncio.sleep(30)
        await again.turn()
        assert "has epoch" in (again.contradiction or "")

    claim(work)


def test_a_checkpoint_is_shipped_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diskless.backup.packing.OBJECT_BYTES", 1_000)
    monkeypatch.setattr("diskless.backup.packing._CHECKPOINT_BYTES", 300)
    monkeypatch.setattr("diskless.backup.packing.Packer.__init__.__defaults__", (1_000,))

    async def work(world: BackupWorld) -> None:
        log = world.logs[CLUSTER]
        log.cut_at_checkpoint(bytes(range(256)) * 20)
        for _ in range(20):
            log.write(*[WORK] * 10)
        await world.shipper().turn()
        newest = await world.newest()
        await world.check(newest)
        assert len(newest.log(CLUSTER).checkpoint.parts) == 5
        assert len(newest.log(CLUSTER).ranges) > 1

    claim(work)
