"""The rewriter on a store in memory: merged and compacted runs, bounds, damage.

Source: docs/design/compaction.md.
"""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any
from uuid import UUID

import pytest

from diskless.compaction import rewriter as rewriting
from diskless.compaction.rewriter import Rewriter
from diskless.compaction.tasks import (
    MERGED,
    CompactionTask,
    Report,
    RewriterSettings,
    RewrittenObject,
    Source,
)
from diskless.fetch import runs_reader
from diskless.fetch.object_cache import ObjectCache
from diskless.fetch.runs_reader import Run, read_runs
from diskless.stores import ByteRange, StorageError
from diskless.stores.memory import MemoryStore
from records.batch import TRANSACTIONAL, iter_batches, iter_records
from records.batch_writer import build_batch
from records.cleaning import Cleaned
from records.compression import Compression
from records.marker_batches import marker_batch
from records.object_keys import ObjectKeys
from records.rpc.rewriting import HORIZONS_SET, TOMBSTONES_REMOVED
from records.wal import FINAL, MARKER, PartitionBatches, build_object, read_footer, verify_partition
from tests.diskless.virtual_time import run as run_on_loop

KEYS = ObjectKeys(prefix="", cluster_id="Ck3xYzAAAAAAAAAAAAAAAA", coordinator_partition=0)
TOPICS = UUID(int=1), UUID(int=2)
NOW = 1_000_000


class World:
    """Partitions whose objects are in memory, and a coordinator that grants all replacements."""

    def __init__(self, *, object_bytes: int = 1 << 20, map_bytes: int = 1 << 20) -> None:
        self.store = MemoryStore(lambda: 0)
        self.runs: dict[tuple[UUID, int], list[Run]] = {}
        self.written: list[RewrittenObject] = []
        self.goes_on = True
        self._ids = iter(range(10_000))
        self.rewriter = Rewriter(
            self.store,
            RewriterSettings(KEYS, 1, 2, object_bytes, map_bytes),
            next_id=self._next_id,
            replace=self._replace,
        )

    async def _next_id(self) -> int:
        return next(self._ids)

    async def _replace(self, written: RewrittenObject) -> bool:
        self.written.append(written)
        key = KEYS.key(written.object_id)
        assert len(self.store.objects[key][0]) == written.size_bytes
        for each in written.ranges:
            live = self.runs[each.topic_id, each.partition]
            first = live.index(each.old_runs[0])
            assert tuple(live[first : first + len(each.old_runs)]) == each.old_runs
            new = [
                Run(
                    key,
                    position,
                    run.size_bytes,
                    run.base_offset,
                    run.last_offset,
                    run.timestamp_type,
                    run.append_time,
                    FINAL,
                )
                for run, position in zip(each.runs, each.byte_offsets, strict=True)
            ]
            assert new[0].base_offset == each.old_runs[0].base_offset
            assert new[-1].last_offset == each.old_runs[-1].last_offset
            assert all(b.base_offset == a.last_offset + 1 for a, b in pairwise(new))
            live[first : first + len(each.old_runs)] = new
        return self.goes_on

    def append(self, batches, *, append_time: int = -1, **form: int) -> None:
        """Write an object with a batch of (key, value) records for each partition of a dict.

        Args:    form: of each batch: producer and attributes.
        """
        object_id = next(self._ids)
        content = []
        for (topic_id, partition), records in sorted(batches.items()):
            rows = [(key, value, 5, ()) for key, value in records]
            data = build_batch(
                rows, base_offset=0, leader_epoch=-1, compression=Compression.LZ4, **form
            )
            content.append(PartitionBatches(topic_id, partition, [data], len(records)))
        owner = {"cluster_id": KEYS.cluster_id, "broker_id": 1, "broker_epoch": 2}
        parts, _ = build_object(content, object_id=object_id, **owner)
        key, position = KEYS.key(object_id), 0
        self.store.objects[key] = (b"".join(parts), 0)
        for topic_id, partition, (data,), count, _ in content:
            live = self.runs.setdefault((topic_id, partition), [])
            base = live[-1].last_offset + 1 if live else 0
            kind = int(append_time >= 0)
            live.append(Run(key, position, len(data), base, base + count - 1, kind, append_time))
            position += len(data)

    def mark(self, name) -> None:
        """Append a transaction marker, which lies in no object."""
        live = self.runs[name]
        base = live[-1].last_offset + 1
        control = marker_batch(
            base_offset=base, timestamp=5, producer_id=7, producer_epoch=0, outcome=0,
            coordinator_epoch=3,
        )  # fmt: skip
        live.append(Run("", 0, len(control), base, base, 0, 5, MARKER, 5, control))

    def sources(self) -> list[Source]:
        return [
            Source(topic_id, partition, tuple(runs))
            for (topic_id, partition), runs in self.runs.items()
        ]

    async def read(self, name: tuple[UUID, int], from_offset: int = 0):
        """Return what a consumer gets: offset, time, key and value; and the end offset."""
        runs = [run for run in self.runs[name] if run.last_offset >= from_offset]
        data = await read_runs(
            ObjectCache(self.store), runs, from_offset=from_offset, max_bytes=1 << 30
        )
        batches = list(iter_batches(data))
        rows = [
            (r.offset, r.timestamp, bytes(r.key or b""), r.value and bytes(r.value))
            for batch in batches
            for r in iter_records(batch)
        ]
        return rows, batches[-1].header.end_offset

    async def compact(
        self,
        name,
        *,
        first_dirty: int = 0,
        rewritten_until: int = 0,
        now_ms: int = NOW,
        **more: Any,
    ) -> Report:
        runs = tuple(self.runs[name])
        return await self.rewriter.compact(
            CompactionTask(
                source=Source(name[0], name[1], runs),
                bound=runs[-1].last_offset + 1,
                first_dirty=first_dirty,
                rewritten_until=rewritten_until,
                delete_retention_ms=100,
                now_ms=now_ms,
                last_sequences={},
                salt=bytes(16),
                **more,
            )
        )

    def damage(self, run: Run) -> None:
        data, stored = self.store.objects[run.object_key]
        broken = bytearray(data)
        broken[run.byte_offset + run.size_bytes - 1] ^= 1
        self.store.objects[run.object_key] = (bytes(broken), stored)


P0 = TOPICS[0], 0
NAMES = [(topic, partition) for topic in TOPICS for partition in (0, 1)]


def random_world(random: Random, **bounds: int) -> World:
    world = World(**bounds)
    for _ in range(30):
        names = random.sample(NAMES, random.randint(1, 4))
        world.append(
            {
                name: [
                    (b"k%d" % random.randrange(12), random.choice((None, b"v" * 50)))
                    for _ in range(random.randint(1, 5))
                ]
                for name in names
            },
            append_time=random.choice((-1, random.randrange(1_000))),
        )
    return world


def test_merging_objects_writes_one_object_sorted_by_partition_and_changes_no_record() -> None:
    async def on_loop() -> None:
        world = random_world(Random(1))
        before = {name: await world.read(name) for name in NAMES}
        newest = {name: max(run.append_time for run in world.runs[name]) for name in NAMES}
        report = await world.rewriter.merge(world.sources())
        (written,) = world.written
        assert [(each.topic_id, each.partition) for each in written.ranges] == NAMES
        assert all(each.bound == MERGED and not each.flags for each in written.ranges)
        assert {name: await world.read(name) for name in NAMES} == before
        for name in NAMES:
            assert max(run.append_time for run in world.runs[name]) == newest[name]
            middle = before[name][1] // 2
            assert (await world.read(name, middle))[0][0][0] <= middle
        data = world.store.objects[KEYS.key(written.object_id)][0]
        footer = read_footer(data)
        assert footer.object_format == FINAL
        for row in footer.partitions:
            verify_partition(row, data[row.byte_offset : row.byte_offset + row.size_bytes])
        assert not report.damages
        await world.rewriter.merge(world.sources())  # merged objects merge, too
        assert {name: await world.read(name) for name in NAMES} == before

    run_on_loop(on_loop)


def test_a_merge_of_many_runs_reads_a_bounded_number_of_bytes_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rewriting, "WINDOW_RUNS", 3)
    under_way = most = 0

    async def read_stored(reader: ObjectCache, run: Run) -> memoryview:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            return await read_one(reader, run)
        finally:
            under_way -= 1

    read_one = runs_reader.read_stored
    monkeypatch.setattr(rewriting, "read_stored", read_stored)

    async def work() -> None:
        world = World()
        for number in range(5):
            world.append({(TOPICS[0], at): [(b"k", b"%d" % number)] for at in range(4)})
        rows = [await world.read((TOPICS[0], at)) for at in range(4)]
        await world.rewriter.merge(world.sources())
        assert [await world.read((TOPICS[0], at)) for at in range(4)] == rows
        assert most == 3

    run_on_loop(work)


def test_merging_objects_reads_each_source_object_once() -> None:
    async def on_loop() -> None:
        world = random_world(Random(2))
        await world.rewriter.merge(world.sources())
        assert world.rewriter._reader.counters.gets == 30

    run_on_loop(on_loop)


@pytest.mark.parametrize("object_bytes", [1 << 20, 300])
def test_compaction_keeps_the_newest_record_of_each_key_and_the_end_offset(
    object_bytes: int,
) -> None:
    async def on_loop() -> None:
        for seed in range(6):
            world = random_world(Random(seed), object_bytes=object_bytes)
            for name in NAMES:
                rows, end = await world.read(name)
                newest = {row[2]: row[0] for row in rows}
                left = [row for row in rows if newest[row[2]] == row[0]]
                first_dirty = 0
                for _ in range(2):
                    report = await world.compact(name, first_dirty=first_dirty)
                    assert await world.read(name) == (left, end), f"seed {seed}"
                    first_dirty = end
                assert report.bound == end
                assert report.kept_records == len(left)
            flags = {each.flags for written in world.written for each in written.ranges}
            assert HORIZONS_SET in flags

    run_on_loop(on_loop)


def test_a_compaction_round_with_a_full_key_map_ends_early_and_the_next_round_continues() -> None:
    async def on_loop() -> None:
        world = World(map_bytes=24 * 4)
        for i in range(20):
            world.append({P0: [(b"k%d" % (i % 7), b"%d" % i)]})
        rows, end = await world.read(P0)
        newest = {row[2]: row[0] for row in rows}
        bounds, first_dirty = [], 0
        while first_dirty < end:
            report = await world.compact(P0, first_dirty=first_dirty)
            assert report.bound > first_dirty
            bounds.append(report.bound)
            first_dirty = report.bound
        assert len(bounds) > 2
        assert await world.read(P0) == ([r for r in rows if newest[r[2]] == r[0]], end)

    run_on_loop(on_loop)


def test_a_resumed_compaction_round_rewrites_only_the_runs_that_were_not_rewritten_before() -> None:
    async def on_loop() -> None:
        world = World(object_bytes=1)
        for i in range(6):
            world.append({P0: [(b"k%d" % (i % 3), b"%d" % i)]})
        rows, end = await world.read(P0)
        world.goes_on = False
        assert (await world.compact(P0)).is_abandoned
        done = world.written[-1].ranges[0].runs[-1].last_offset + 1
        assert 0 < done < end
        world.goes_on = True
        await world.compact(P0, first_dirty=done, rewritten_until=done)
        assert world.written[1].ranges[0].old_runs[0].base_offset == done
        assert await world.read(P0) == (rows[3:], end)

    run_on_loop(on_loop)


def test_a_merge_writes_the_control_batch_of_a_marker_between_the_runs_around_it() -> None:
    async def on_loop() -> None:
        world = World()
        for i in range(2):
            world.append({P0: [(b"k", b"%d" % i)]})
            world.mark(P0)
        before = await world.read(P0)
        await world.rewriter.merge(world.sources())
        (run,) = world.runs[P0]
        assert run.object_format == FINAL
        assert await world.read(P0) == before
        batches = iter_batches(
            await read_runs(ObjectCache(world.store), [run], from_offset=0, max_bytes=1 << 20)
        )
        assert [batch.header.is_control for batch in batches] == [False, True, False, True]

    run_on_loop(on_loop)


def test_compaction_removes_an_aborted_record_and_keeps_the_committed_record_of_its_key() -> None:
    async def on_loop() -> None:
        world = World()
        world.append({P0: [(b"k", b"committed")]})
        producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
        world.append({P0: [(b"k", b"aborted")]}, attributes=TRANSACTIONAL, **producer)
        world.mark(P0)
        report = await world.compact(P0, aborted={0: [(7, 1)]})
        assert (report.bound, report.removed_records) == (3, 1)
        rows, end = await world.read(P0)
        assert ([row[0] for row in rows], end) == ([0, 2], 3)

    run_on_loop(on_loop)


def test_compaction_goes_past_markers_and_keeps_them() -> None:
    async def on_loop() -> None:
        world = World()
        for i in range(3):
            world.append({P0: [(b"k", b"%d" % i)]})
        world.mark(P0)
        world.append({P0: [(b"k", b"3")]})
        report = await world.compact(P0)
        assert (report.bound, report.damages) == (5, [])
        rows, end = await world.read(P0)
        assert ([row[0] for row in rows], end) == ([3, 4], 5)

    run_on_loop(on_loop)


async def aborted_then_compacted(world: World, *times_ms: int, **more: Any) -> list[int]:
    """Abort a transaction and compact at these times; return how many control batches are left.

    The transaction's record has offset 1, its marker offset 2.
    """
    world.append({P0: [(b"k", b"committed")]})
    producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    world.append({P0: [(b"k", b"aborted")]}, attributes=TRANSACTIONAL, **producer)
    world.mark(P0)
    world.append({P0: [(b"later", b"v")]})
    left = []
    for now_ms in times_ms:
        await world.compact(P0, now_ms=now_ms, aborted={0: [(7, 1)], 2: [(7, 1)]}, **more)
        runs = world.runs[P0]
        data = await read_runs(ObjectCache(world.store), runs, from_offset=0, max_bytes=1 << 30)
        left.append(sum(batch.header.is_control for batch in iter_batches(data)))
    return left


def test_a_marker_goes_after_its_batches_and_its_horizon_and_ends_its_aborted_entry() -> None:
    async def on_loop() -> None:
        world = World()
        # Rounds: the batch goes; the marker gets its horizon, 100 ms later; before it; at it.
        times_ms = (NOW, NOW + 1, NOW + 100, NOW + 101)
        assert await aborted_then_compacted(world, *times_ms) == [1, 1, 1, 0]
        ranges = [each for written in world.written for each in written.ranges]
        assert [each.ended_aborted for each in ranges] == [(), (), (), ((7, 1),)]
        assert [each.flags for each in ranges] == [0, HORIZONS_SET, 0, TOMBSTONES_REMOVED]
        rows, end = await world.read(P0)
        assert ([row[0] for row in rows], end) == ([0, 3], 4)

    run_on_loop(on_loop)


def test_an_attempt_that_resumes_a_round_keeps_markers_whose_batches_it_has_not_read() -> None:
    async def on_loop() -> None:
        world = World()
        times_ms = (NOW, NOW + 1, NOW + 200, NOW + 400)
        left = await aborted_then_compacted(world, *times_ms, rewritten_until=2)
        assert left == [1, 1, 1, 1]

    run_on_loop(on_loop)


def test_a_compaction_round_ends_before_a_damaged_run_and_reports_the_damage() -> None:
    async def on_loop() -> None:
        world = World()
        for i in range(6):
            world.append({P0: [(b"k", b"%d" % i)]})
        world.damage(world.runs[P0][3])
        report = await world.compact(P0)
        assert [damage.offset for damage in report.damages] == [3]
        assert report.bound == 3
        (written,) = world.written
        assert written.ranges[0].bound == 3
        assert [run.base_offset for run in written.ranges[0].old_runs] == [0, 1, 2]
        assert (await world.read(P0))[0] == [(2, 5, b"k", b"2")]  # behind it nothing is removed
        assert (await world.read(P0, 4))[0] == [(4, 5, b"k", b"4"), (5, 5, b"k", b"5")]

    run_on_loop(on_loop)


def test_a_merge_of_objects_includes_each_partitions_runs_before_the_first_damaged_run() -> None:
    async def on_loop() -> None:
        world = World()
        for i in range(4):
            world.append({name: [(b"k", b"%d" % i)] for name in NAMES})
        world.damage(world.runs[P0][2])
        world.damage(world.runs[NAMES[1]][0])
        report = await world.rewriter.merge(world.sources())
        assert [(d.topic_id, d.partition, d.offset) for d in report.damages] == [
            (*P0, 2),
            (*NAMES[1], 0),
        ]
        (written,) = world.written
        assert [len(each.old_runs) for each in written.ranges] == [2, 4, 4]

    run_on_loop(on_loop)


def test_a_missing_or_truncated_source_object_ends_only_the_merge_of_its_own_partition() -> None:
    async def on_loop() -> None:
        world = World()
        for i in range(3):
            for name in NAMES:  # an object of its own for each batch
                world.append({name: [(b"k", b"%d" % i)]})
        del world.store.objects[world.runs[P0][1].object_key]
        short = world.runs[NAMES[1]][0].object_key
        world.store.objects[short] = (world.store.objects[short][0][:20], 0)
        report = await world.rewriter.merge(world.sources())
        assert [(d.partition, d.offset) for d in report.damages] == [(P0[1], 1), (NAMES[1][1], 0)]
        assert "no such object" in report.damages[0].reason
        assert "in an object of 20 bytes" in report.damages[1].reason
        (written,) = world.written
        assert [len(each.old_runs) for each in written.ranges] == [1, 3, 3]

    run_on_loop(on_loop)


def test_a_compaction_round_ends_before_a_run_whose_object_is_missing_in_the_store() -> None:
    async def on_loop() -> None:
        world = World()
        for i in range(4):
            world.append({P0: [(b"k", b"%d" % i)]})
        del world.store.objects[world.runs[P0][2].object_key]
        report = await world.compact(P0)
        assert [damage.offset for damage in report.damages] == [2]
        assert report.bound == 2
        (written,) = world.written
        assert [len(each.old_runs) for each in written.ranges] == [2]

    run_on_loop(on_loop)


def test_a_rewriting_task_fails_if_the_store_fails() -> None:
    async def on_loop() -> None:
        world = World()
        world.append({P0: [(b"k", b"1")]})

        async def fail(key: str, _: ByteRange) -> bytes:
            raise StorageError(key, "throttled")

        world.store.fetch = fail  # type: ignore[method-assign]
        with pytest.raises(StorageError):
            await world.rewriter.merge(world.sources())
        with pytest.raises(StorageError):
            await world.compact(P0)
        assert not world.written

    run_on_loop(on_loop)


def test_compaction_of_keys_of_a_megabyte_keeps_the_newest_record_of_each_key() -> None:
    async def on_loop() -> None:
        world = World()
        keys = [bytes([i]) * (1 << 20) for i in range(3)]
        for key in keys + keys[:2]:
            world.append({P0: [(key, b"v"), (b"small", key[:3])]})
        rows, end = await world.read(P0)
        newest = {row[2]: row[0] for row in rows}
        await world.compact(P0)
        assert await world.read(P0) == ([r for r in rows if newest[r[2]] == r[0]], end)

    run_on_loop(on_loop)


def test_the_rewriter_copies_a_small_remaining_batch_so_that_the_memory_of_its_run_is_freed() -> (
    None
):
    data = bytearray(1000)
    batch = next(iter_batches(build_batch([(b"k", b"v", 1, ())], base_offset=0, leader_epoch=0)))
    run = Run("o", 0, len(data), 0, 0, 0, -1)
    (kept,) = rewriting._kept_batches([Cleaned([batch], False, False)], run)
    assert kept.view.obj is not batch.view.obj
    assert kept.view == batch.view


def test_compaction_keeps_the_last_batch_of_a_range_without_records_if_it_removes_them_all() -> (
    None
):
    """Consumers that read to the end wait for that offset; records without a key go."""

    async def on_loop() -> None:
        world = World()
        world.append({P0: [(b"k", b"1")]})
        world.append({P0: [(None, b"old"), (None, b"older")]})
        await world.compact(P0)
        assert await world.read(P0) == ([(0, 5, b"k", b"1")], 3)
        world.append({P0: [(b"k", b"2")]})
        await world.compact(P0, first_dirty=3)
        assert await world.read(P0) == ([(3, 5, b"k", b"2")], 4)

    run_on_loop(on_loop)


def test_the_rewriter_reads_batches_that_together_expand_beyond_a_block_one_by_one() -> None:
    rows = [(b"k", bytes(1 << 20), NOW, ())]
    batch = build_batch(rows, base_offset=0, leader_epoch=-1, compression=Compression.ZSTD)
    batches = list(iter_batches(bytes(batch) * 20))
    assert sum(len(each.view) for each in batches) < rewriting.BLOCK_BYTES
    blocks = list(rewriting._blocks(batches))
    assert [len(block.batches) for block in blocks] == [1] * 20
    assert [len(block.batches) for block in rewriting._blocks(batches[:10])] == [10]
