"""Tests that missing objects are reported with exactly the offsets that are lost.

Source: docs/design/pipeline.md#dangling-references; invariant 7 (docs/design/invariants.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from diskless.stores.interface import StoredObject
from records.object_keys import Ancestor
from records.uuids import encode_uuid
from spark_jobs.orphans.dangling import Dangling, find_dangling
from spark_jobs.orphans.listing import Naming, take_listing
from spark_jobs.orphans.scan import OrphansError
from spark_jobs.readers.object_store import DirectoryStore
from tests.coordinator.batch.actors import delete_records
from tests.coordinator.batch.subjects import KEYS
from tests.spark_jobs.orphans_world import NAMING, FileSet, MemoryLogs, RecordedLife, now


class Stored(RecordedLife):
    """A random history whose objects are files of their committed size; some get lost."""

    def __init__(self, directory: Path) -> None:
        super().__init__(7)
        self.directory = directory
        self.store = FileSet(directory / "objects", self.world.now_ms)  # type: ignore[assignment]
        self.objects = DirectoryStore(directory / "objects")

    async def live_for(self, steps: int) -> None:
        await self.begin()
        for _ in range(steps):
            actions = [self.commit] * 4 + [self.delete_some, self.pass_time, self.clean]
            await self.random.choice(actions)()
            await self.check()
        for object_id, stored in self.world.coordinator.state.objects.items():
            os.truncate(self.path(object_id), stored.size_bytes)

    def path(self, object_id: int) -> Path:
        return self.directory / "objects" / KEYS.key(object_id)

    def used(self) -> list[int]:
        """Return the objects with live runs."""
        objects = self.world.coordinator.state.objects
        return [object_id for object_id, stored in objects.items() if stored.used_bytes]

    def offsets_in(self, object_ids: set[int]) -> dict[tuple[str, int], set[int]]:
        """Return the live offsets in these objects, by partition, according to the model."""
        return {
            (encode_uuid(topic), partition): {
                offset
                for offset, (object_id, _, _) in enumerate(log)
                if object_id in object_ids and offset >= self.starts[topic, partition]
            }
            for (topic, partition), log in self.logs.items()
        }

    def look(
        self,
        before_listing: Callable[[], None] = lambda: None,
        store: DirectoryStore | None = None,
        naming: Naming = NAMING,
    ) -> Dangling:
        scratch = self.directory / "scratch"
        scratch.mkdir(exist_ok=True)

        def listing() -> object:
            before_listing()
            for old in scratch.iterdir():
                old.unlink()
            return take_listing(self.objects, naming, scratch, self.world.now_ms)

        logs = MemoryLogs(self.records, naming.cluster_id)
        return find_dangling(logs, store or self.objects, naming, listing)  # type: ignore[arg-type]


@pytest.fixture
def life(tmp_path: Path) -> Stored:
    """Return a history with some hundred objects in use."""
    stored = Stored(tmp_path)
    now(stored.live_for(150))
    return stored


def told(found: Dangling) -> dict[tuple[str, int], set[int]]:
    return {
        (one.topic_id, one.partition): {
            offset for first, last in one.ranges for offset in range(first, last + 1)
        }
        for one in found.affected
    }


def test_the_search_for_lost_objects_finds_none_in_a_complete_store(life: Stored) -> None:
    found = life.look()
    assert (found.lost, found.affected, found.looked_for) == ([], [], 0)
    assert found.live >= len(life.used()) > 20


def test_the_search_finds_the_objects_that_a_restored_cluster_has_from_its_ancestor(
    life: Stored,
) -> None:
    ancestor = Ancestor(KEYS.cluster_id, (1 << 40,))
    restored = Naming(KEYS.prefix, "restored", (ancestor,))
    found = life.look(naming=restored)
    assert (found.lost, found.looked_for) == ([], 0)
    life.path(gone := life.used()[3]).unlink()
    assert [one.object_id for one in life.look(naming=restored).lost] == [gone]


def test_the_search_for_lost_objects_reports_only_missing_objects_and_their_offsets(
    life: Stored,
) -> None:
    gone, cut, longer, *_ = used = life.used()[3:9]
    for object_id in used:
        if object_id not in (cut, longer):
            life.path(object_id).unlink()
    os.truncate(life.path(cut), 5)
    with life.path(longer).open("ab") as file:
        file.write(b"x")
    found = life.look()
    assert sorted(one.object_id for one in found.lost) == sorted(used)
    by_id = {one.object_id: one for one in found.lost}
    size_bytes = life.world.coordinator.state.objects[longer].size_bytes
    assert (by_id[gone].stored_bytes, by_id[cut].stored_bytes) == (None, 5)
    assert by_id[longer].stored_bytes == size_bytes + 1
    expected = {place: some for place, some in life.offsets_in(set(used)).items() if some}
    assert told(found) == expected
    assert {one.offsets for one in found.affected} == {len(some) for some in expected.values()}
    assert {one.topic for one in found.affected} <= {"t1", "t2"}


def test_the_search_reports_no_loss_of_an_object_deleted_between_log_reading_and_listing(
    life: Stored,
) -> None:
    used = life.used()

    def retire() -> None:
        """Delete all records and then their objects, as brokers do."""
        for topic, partition in life.logs:
            now(delete_records(life.world, -1, topic, partition))
        now(life.world.advance(0))
        for object_id in used:
            life.path(object_id).unlink()
        life.gather()

    found = life.look(retire)
    assert (found.lost, found.affected) == ([], [])
    assert (found.looked_for, found.retired) == (len(used), len(used))


def test_the_search_reports_no_loss_of_an_object_that_is_missing_only_in_the_listing(
    life: Stored,
) -> None:
    hidden = life.used()[0]
    aside = life.directory / "aside"
    life.path(hidden).rename(aside)

    class ComesBack(DirectoryStore):
        def head(self, key: str) -> StoredObject | None:
            if aside.exists():
                aside.rename(life.path(hidden))
            return super().head(key)

    found = life.look(store=ComesBack(life.directory / "objects"))
    assert (found.looked_for, found.lost) == (1, [])


def test_the_search_for_lost_objects_refuses_a_store_without_any_object_of_the_cluster(
    life: Stored,
) -> None:
    (life.directory / "other").mkdir()
    life.objects = DirectoryStore(life.directory / "other")
    with pytest.raises(OrphansError, match="is this the cluster's store and prefix"):
        life.look()
