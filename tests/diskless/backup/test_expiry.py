"""Cuts past the retention go, and objects that a kept cut needs stay.

Source: docs/design/backup.md#deletion-waits-for-the-backup.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import diskless.backup.shipper
from diskless.backup.bucket import Bucket, ListedManifest
from diskless.backup.expiry import Expiry
from diskless.backup.hold import PAGE, DeletionHold
from tests.diskless.backup.backup_world import (
    BATCHES,
    CLUSTER,
    QUIET,
    WORK,
    BackupWorld,
    choose_by_image,
)
from tests.diskless.virtual_time import run

RETENTION_S = 600.0


@pytest.fixture(autouse=True)
def chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    choose_by_image(monkeypatch)


def claim(work: Callable[[BackupWorld], Awaitable[None]]) -> None:
    async def on_loop() -> None:
        await work(BackupWorld(retention_s=RETENTION_S))

    run(on_loop)


async def write_for(world: BackupWorld, seconds: int) -> None:
    for number in range(seconds // 10):
        world.logs[BATCHES].write(WORK)
        if number % 10 == 9:
            world.logs[BATCHES].cut_at_checkpoint(b"%d" % number)
        await asyncio.sleep(10)


def test_every_cut_is_kept_for_the_retention_after_a_newer_one_and_is_whole_until_then() -> None:
    async def work(world: BackupWorld) -> None:
        shipper = world.shipper()
        shipper.start()
        began = asyncio.get_running_loop().time()
        for _ in range(20):
            await write_for(world, 100)
            await world.check_restorable()
            listed = await world.bucket.list_manifests()
            age_s = asyncio.get_running_loop().time() - listed[0].modified_ms / 1_000
            passed_s = asyncio.get_running_loop().time() - began
            assert age_s >= min(RETENTION_S, passed_s - 20)
            assert age_s <= RETENTION_S * 1.1 + 60
        stored = len([key for key in world.memory.objects if "/data/" in key])
        assert stored < 100
        await shipper.close()

    claim(work)


def test_an_idle_cluster_lets_its_older_cuts_go_by_one_more_manifest() -> None:
    async def work(world: BackupWorld) -> None:
        shipper = world.shipper()
        shipper.start()
        await write_for(world, 200)
        await asyncio.sleep(20)
        puts = len(world.memory.puts)
        end = world.logs[BATCHES].end_offset
        assert not shipper.is_released(BATCHES, end)
        for _ in range(400):
            world.logs[CLUSTER].write(*QUIET)
            await asyncio.sleep(10)
        assert len(world.memory.puts) == puts + 1
        assert shipper.is_released(BATCHES, end)
        assert not shipper.is_released(BATCHES, end + 1)
        assert len(await world.bucket.list_manifests()) == 1
        await world.check_restorable()
        await shipper.close()

    claim(work)


def test_the_manifest_that_names_a_newer_oldest_cut_is_written_before_anything_is_deleted() -> None:
    async def work(world: BackupWorld) -> None:
        shipper = world.shipper()
        shipper.start()
        sweep, found = Bucket.sweep, []

        async def watched(self: Bucket, oldest) -> int:
            newest = await world.newest()
            assert newest.oldest.number == oldest.number
            found.append(oldest.number)
            return await sweep(self, oldest)

        Bucket.sweep = watched
        try:
            await write_for(world, 1_500)
        finally:
            Bucket.sweep = sweep
        assert found
        await shipper.close()

    claim(work)


def test_data_objects_of_manifests_that_were_never_written_are_deleted() -> None:
    async def work(world: BackupWorld) -> None:
        await world.shipper().turn()
        name = await world.bucket.write_data(1, [b"of a broker that was killed"])
        shipper = world.shipper()
        shipper.start()
        await write_for(world, 1_500)
        assert world.bucket.data_key(name) not in world.memory.objects
        await shipper.close()

    claim(work)


def test_a_released_backup_is_swept_by_the_next_shipper() -> None:
    async def work(world: BackupWorld) -> None:
        shipper = world.shipper()
        for _ in range(4):
            world.logs[BATCHES].write(WORK)
            await shipper.turn()
            await asyncio.sleep(20)
        newest = await world.newest()
        await world.bucket.write_manifest(newest.as_only_cut())
        world.logs[BATCHES].write(WORK)
        await shipper.turn()
        await shipper.turn()
        assert [one.number for one in await world.bucket.list_manifests()] == [4, 5]
        await world.check_restorable()

    claim(work)


def test_a_held_clock_expires_no_cut_and_the_newest_never_expires() -> None:
    now_s = [0.0]
    expiry = Expiry(100.0, lambda: now_s[0])
    expiry.note([ListedManifest(number, 1, 5_000) for number in range(5)])
    assert expiry.oldest().number == 0
    now_s[0] = 1_000_000.0
    assert expiry.oldest().number == 4
    assert expiry.is_newest_only()
    assert Expiry(100.0, lambda: 0.0).oldest() is None


# --- the hold of deletions ------------------------------------------------------------------------


class Marks:
    """A replica with marked objects."""

    def __init__(self) -> None:
        self.applied_offset = 10
        self.marks: dict[int, int] = {}  # id: time
        self.orphans: set[int] = set()

    def marked_objects(self, first_ms: int, limit: int) -> list[tuple[int, int]]:
        found = sorted((at, one) for one, at in self.marks.items() if at >= first_ms)
        return found[:limit]

    def is_orphan(self, object_id: int) -> bool:
        return object_id in self.orphans


class Released:
    def __init__(self) -> None:
        self.below = 0

    def is_released(self, log_name: str, applied_below: int) -> bool:
        assert log_name == "__diskless-metadata-0"
        return applied_below <= self.below


def test_an_object_is_held_until_the_oldest_cut_has_the_record_that_marked_it() -> None:
    async def work() -> None:
        marks, released = Marks(), Released()
        hold = DeletionHold(released, lambda _: marks)
        marks.marks[1] = 500
        assert hold.is_held(0, 1)  # never seen
        await hold.note(0)
        released.below = 9
        assert hold.is_held(0, 1)
        released.below = 10
        assert not hold.is_held(0, 1)

    run(work)


def test_a_mark_with_an_earlier_time_than_older_marks_is_held_all_the_same() -> None:
    """A new leader's clock is behind: the time of a mark proves no order."""

    async def work() -> None:
        marks, released = Marks(), Released()
        hold = DeletionHold(released, lambda _: marks)
        marks.marks[1] = 500
        await hold.note(0)
        released.below, marks.applied_offset = 15, 20
        marks.marks[2] = 400
        await hold.note(0)
        assert not hold.is_held(0, 1)
        assert hold.is_held(0, 2)
        for _ in range(10):
            await hold.note(0)
        released.below = 20
        assert not hold.is_held(0, 2)

    run(work)


def test_more_marks_than_a_page_are_noted_also_with_one_time() -> None:
    async def work() -> None:
        marks, released = Marks(), Released()
        marks.marks = dict.fromkeys(range(3 * PAGE + 1), 7) | {10**6: 8}
        released.below = 10
        hold = DeletionHold(released, lambda _: marks)
        await hold.note(0)
        assert not any(hold.is_held(0, one) for one in marks.marks)

    run(work)


def test_uncommitted_ids_of_closed_leases_are_not_held() -> None:
    async def work() -> None:
        marks = Marks()
        hold = DeletionHold(Released(), lambda _: marks)
        assert hold.is_held(0, 5)
        marks.orphans.add(5)
        assert not hold.is_held(0, 5)

    run(work)


def test_without_a_manifest_nothing_is_released() -> None:
    async def work(world: BackupWorld) -> None:
        shipper = world.shipper()
        assert not shipper.is_released(BATCHES, 0)
        await shipper.turn()
        assert shipper.is_released(BATCHES, 2)
        shipper.contradiction = "lost"
        assert not shipper.is_released(BATCHES, 2)

    claim(work)


def test_a_broker_that_does_not_ship_reads_the_newest_manifest_for_its_deletions() -> None:
    async def work(world: BackupWorld) -> None:
        await world.shipper(101).turn()
        reader = world.shipper(102)
        await reader.turn()
        assert reader.is_released(BATCHES, 2)
        assert diskless.backup.shipper.backup_broker(world.image) == 101

    claim(work)
