"""Brokers that merge and compact, on a cluster in memory: planned, leased, rewritten, replaced.

Source: docs/design/compaction.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any
from uuid import UUID

from diskless.compaction.service import COMPACTION, MERGE, Rewriting, RewritingSettings
from diskless.compaction.tasks import Report, RewriterSettings
from diskless.compaction.worker import Callbacks, Task, TaskFailedError, run_task
from diskless.stores import StorageError
from records.batch import iter_batches, iter_records
from records.batch_writer import build_batch
from records.rpc.batch_coordinator import DeleteDisklessRecordsRequest
from records.rpc.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from records.wal import FINAL
from tests.diskless.cluster_world import ClusterWorld
from tests.diskless.records_world import RecordsBroker
from tests.diskless.virtual_time import run

SETTINGS = RewritingSettings(
    is_enabled=True,
    interval_s=60,
    object_bytes=1 << 20,
    map_bytes=1 << 20,
    physical_max_ms=-1,
    key_prefix="",
)
REPLACED_S = 30
"""How long runs were replaced before a reader reads them: less than the objects' delete delay."""

COMPACT = {"cleanup.policy": "compact", "delete.retention.ms": "1000"}


class InProcess:
    """A worker that runs tasks on the test's loop, and dies after a number of steps."""

    def __init__(self, broker: RecordsBroker) -> None:
        self._broker = broker
        self.steps = 0
        self.dies_at = -1
        self.before_replace: Callable[[], Awaitable[Any]] | None = None

    async def run(self, task: Task, settings: RewriterSettings, callbacks: Callbacks) -> Report:
        async def next_id() -> int:
            self._step()
            return await callbacks.next_id()

        async def replace(written) -> bool:
            if self.before_replace is not None:
                await self.before_replace()
            self._step()
            goes_on = await callbacks.replace(written)
            self._step()
            return goes_on

        try:
            return await run_task(self._broker.store, task, settings, Callbacks(next_id, replace))
        except StorageError as error:
            raise TaskFailedError(str(error)) from error

    def _step(self) -> None:
        self.steps += 1
        if self.steps == self.dies_at:
            raise TaskFailedError("killed")

    async def close(self) -> None:
        """Do nothing: there is no process."""


class World:
    """A broker that rewrites, and a topic with one partition."""

    def __init__(self, cluster: ClusterWorld, **settings: Any) -> None:
        self.cluster = cluster
        self.broker = RecordsBroker(cluster, 1)
        self.worker = InProcess(self.broker)
        self.rewriting = Rewriting(
            self.broker.cluster,
            self.worker,
            SETTINGS._replace(**settings),
            wall_ms=cluster.wall_ms,
            random=Random(1),
        )
        self.rewriting.begin(cluster.image.brokers[1].broker_epoch)

    async def append(
        self, *pairs: tuple[bytes, bytes | None], topic: str = "t", partition: int = 0
    ) -> None:
        now = self.cluster.wall_ms()
        rows = [(key, value, now, ()) for key, value in pairs]
        data = bytes(build_batch(rows, base_offset=0, leader_epoch=-1))
        produced = await self.broker.produce(topic, partition, data)
        assert produced.error_code == 0, produced

    async def fill(self, count: int, topic: str = "t") -> None:
        """Append objects of one record each, which are old enough at the end."""
        for i in range(count):
            await self.append((b"k%d" % (i % 5), b"v%d" % i), topic=topic)
        await asyncio.sleep(700)

    async def read(
        self, topic: str = "t", offset: int = 0
    ) -> list[tuple[int, bytes, bytes | None]]:
        found: list[tuple[int, bytes, bytes | None]] = []
        first = offset
        while True:
            answer = await self.broker.fetch(topic, 0, offset)
            assert answer.error_code == 0, answer
            for batch in iter_batches(answer.records or b""):
                offset = batch.header.end_offset
                found += [
                    (r.offset, bytes(r.key or b""), None if r.value is None else bytes(r.value))
                    for r in iter_records(batch)
                    if r.offset >= first
                ]
            if offset >= answer.high_watermark:
                return found

    async def set_policy(self, value: str) -> None:
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource
        config = resource.AlterableConfig(name="cleanup.policy", config_operation=0, value=value)
        named = resource(resource_type=2, resource_name="t", configs=(config,))
        request = IncrementalAlterConfigsRequest(resources=(named,), validate_only=False)
        answer = await self.cluster.ask(request, IncrementalAlterConfigsResponse)
        assert not answer.responses[0].error_code, answer

    async def delete_records(self, offset: int) -> None:
        topic = DeleteDisklessRecordsRequest.Topic
        partition = topic.Partition(partition_index=0, offset=offset)
        topic_id = self.cluster.image.topic("t").topic_id
        topics = (topic(topic_id=topic_id, partitions=(partition,)),)
        await self.cluster.leaders[0].call(DeleteDisklessRecordsRequest(topics=topics))

    def object_ids(self) -> set[int]:
        """Return the ids of the objects in the store."""
        return {int(key.rpartition("/")[2]) for key in self.broker.memory.objects}

    def runs(self) -> list[Any]:
        """Return the live runs of all partitions."""
        state = self.cluster.leaders[0].state
        return [run for runs in state.runs.values() for run in runs]

    def runs_of(self, topic_id: UUID, partition: int) -> list[Any]:
        """Return the live runs of one partition."""
        state = self.cluster.leaders[0].state
        return state.runs.get(state.topics[topic_id].log_ids[partition], [])

    def markers_of_aborted(self, topic_id: UUID, partition: int) -> list[int]:
        """Return the offsets of the markers of a partition's aborted transactions."""
        state = self.cluster.leaders[0].state
        log_id = state.topics[topic_id].log_ids[partition]
        return [entry.last_offset for entry in state.aborted_from(log_id, 0)]

    def object(self, object_id: int) -> bytes:
        """Return the bytes of an object in the store."""
        ((data, *_),) = (
            stored
            for key, stored in self.broker.memory.objects.items()
            if key.endswith(f"/{object_id}")
        )
        return bytes(data)


def story(
    work: Callable[[World], Awaitable[None]], *, esker_version: int = 3, **settings: Any
) -> None:
    async def on_loop() -> None:
        async with ClusterWorld(esker_version=esker_version) as cluster:
            world = World(cluster, **settings)
            await work(world)
            await world.rewriting.close()
            await world.broker.end()

    run(on_loop)


def newest(rows):
    last = {key: offset for offset, key, _ in rows}
    return [row for row in rows if last[row[1]] == row[0]]


def test_a_broker_merges_small_runs_and_consumers_read_the_same_records() -> None:
    async def work(world: World) -> None:
        await world.cluster.create("t")
        await world.fill(40)
        rows = await world.read()
        await world.rewriting.run_pass()
        (merged,) = world.runs()
        assert merged.object_format == FINAL
        assert await world.read() == rows
        counts = world.rewriting.counters.kinds[MERGE]
        assert (counts.tasks, counts.old_runs, counts.new_runs) == (1, 40, 1)
        assert world.rewriting.success_ages_s()[MERGE] == 0
        await world.rewriting.run_pass()
        assert counts.tasks == 1

    story(work)


def test_a_broker_merges_the_runs_of_several_partitions_of_one_topic() -> None:
    async def work(world: World) -> None:
        await world.cluster.create("t", 3)
        for i in range(40):
            await world.append((b"k", b"v%d" % i), partition=i % 3)
        await asyncio.sleep(700)
        await world.rewriting.run_pass()
        counts = world.rewriting.counters.kinds[MERGE]
        assert (counts.failures, counts.refused_ranges) == (0, 0)
        assert (counts.tasks, counts.old_runs, counts.new_runs) == (1, 40, 3)
        assert [run.object_format for run in world.runs()] == [FINAL] * 3

    story(work)


def test_a_broker_compacts_only_topics_with_the_cleanup_policy_compact() -> None:
    async def work(world: World) -> None:
        await world.cluster.create("t", configs=COMPACT)
        await world.cluster.create("other")
        await world.fill(40)
        await world.fill(40, topic="other")
        rows, others = await world.read(), await world.read("other")
        await world.rewriting.run_pass()
        assert await world.read() == newest(rows)
        assert await world.read("other") == others
        assert world.rewriting.counters.removed_records == 35
        tasks = world.rewriting.counters.kinds[COMPACTION].tasks
        await world.rewriting.run_pass()
        assert world.rewriting.counters.kinds[COMPACTION].tasks == tasks  # it is clean

    story(work)


def test_compaction_removes_a_tombstone_in_the_first_round_after_its_delete_horizon() -> None:
    async def work(world: World) -> None:
        await world.cluster.create("t", configs=COMPACT)
        await world.append((b"a", b"1"), (b"b", b"1"))
        await world.append((b"a", None))
        await world.rewriting.run_pass()
        assert await world.read() == [(1, b"b", b"1"), (2, b"a", None)]
        await asyncio.sleep(2)
        await world.append((b"c", b"1"), (b"d", b"2" * 500))
        await world.rewriting.run_pass()
        assert [row[0] for row in await world.read()] == [1, 3, 4]

    story(work)


def test_a_broker_rewrites_no_object_below_esker_version_3() -> None:
    async def work(world: World) -> None:
        await world.cluster.create("t", configs=COMPACT)
        await world.fill(40)
        await world.rewriting.run_pass()
        assert world.rewriting.counters.passes == 0
        assert len(world.runs()) == 40
        assert world.worker.steps == 0

    story(work, esker_version=2)


def test_a_rewriting_process_that_dies_at_any_step_loses_no_record_and_leaks_no_object() -> None:
    for dies_at in range(1, 14):

        async def work(world: World, dies_at: int = dies_at) -> None:
            await world.cluster.create("t", configs=COMPACT)
            await world.fill(40)
            rows = await world.read()
            world.worker.dies_at = dies_at
            await world.rewriting.run_pass()
            assert newest(await world.read()) == newest(rows)
            world.worker.dies_at = -1
            await world.rewriting.run_pass()
            assert await world.read() == newest(rows)
            await world.rewriting.close()
            await clean_up(world)

        story(work, object_bytes=1 << 20 if dies_at % 2 else 40)


async def clean_up(world: World) -> None:
    """Have unused objects marked and deleted; no object may be left that no run refers to."""
    for _ in range(5):
        await asyncio.sleep(300)
        world.cluster.leaders[0].run_maintenance()
        await world.broker.cleaner.clean()
    assert world.object_ids() == {run.object_id for run in world.runs() if run.marker is None}


def test_removing_compact_from_the_cleanup_policy_ends_compaction_before_its_next_replacement() -> (
    None
):
    async def work(world: World) -> None:
        await world.cluster.create("t", configs=COMPACT)
        await world.append((b"a", b"1"))
        await world.append((b"a", b"2"))
        rows = await world.read()

        async def flip() -> None:
            await world.set_policy("delete")

        world.worker.before_replace = flip
        await world.rewriting.run_pass()
        assert await world.read() == rows
        assert world.rewriting.counters.kinds[COMPACTION].old_runs == 0

    story(work)


def stored_bytes(world: World) -> bytes:
    return b"".join(bytes(data) for data, *_ in world.broker.memory.objects.values())


async def keep_deadline(world: World) -> None:
    """Let half of the deadline pass, rewrite, and have unused objects deleted."""
    await asyncio.sleep(200)
    await world.rewriting.run_pass()
    await clean_up(world)


def test_brokers_rewrite_an_object_with_live_batches_to_remove_bytes_of_deleted_records() -> None:
    async def work(world: World) -> None:
        await world.cluster.create("t", 2)
        secret = asyncio.create_task(world.append((b"a", b"secret")))
        await asyncio.gather(secret, world.append((b"b", b"public" * 99), partition=1))
        await world.append((b"c", b"public"))
        await world.rewriting.run_pass()  # the coordinator notes deletions from its first lease on
        world.cluster.leaders[0].run_maintenance()  # which stamps steady time
        await asyncio.sleep(60)
        await world.delete_records(1)
        await asyncio.sleep(10)
        await world.rewriting.run_pass()
        assert b"secret" in stored_bytes(world)
        assert world.rewriting.counters.overdue_objects == 0
        await keep_deadline(world)
        assert b"secret" not in stored_bytes(world)
        assert world.rewriting.counters.overdue_objects == 1
        assert world.rewriting.counters.overdue_age_ms >= 150_000
        assert world.rewriting.counters.overdue_runs == 1
        assert [row[2] for row in await world.read(offset=1)] == [b"public"]
        await world.rewriting.run_pass()
        assert world.rewriting.counters.overdue_objects == 0

    story(work, physical_max_ms=300_000)


def test_brokers_keep_deleted_bytes_without_a_deadline_in_an_object_with_live_batches() -> None:
    async def work(world: World) -> None:
        await world.cluster.create("t", 2)
        secret = asyncio.create_task(world.append((b"a", b"secret")))
        await asyncio.gather(secret, world.append((b"b", b"public" * 99), partition=1))
        await world.rewriting.run_pass()
        await world.delete_records(1)
        await keep_deadline(world)
        assert b"secret" in stored_bytes(world)

    story(work)


def test_a_merge_removes_deleted_records_from_the_run_and_the_batch_at_the_log_start() -> None:
    async def work(world: World) -> None:
        await world.cluster.create("t")
        await world.append(*((b"k", b"secret%d" % i) for i in range(3)))
        await world.append(
            *((b"k", b"%s%d" % (b"public" if i else b"secret", i)) for i in range(3))
        )
        await world.fill(17)
        await world.rewriting.run_pass()
        assert len(world.runs()) == 1
        await world.delete_records(4)
        rows = await world.read(offset=4)
        await world.rewriting.run_pass()
        assert b"secret" in stored_bytes(world)
        await keep_deadline(world)
        assert b"secret" not in stored_bytes(world)
        assert await world.read(offset=4) == rows
        assert rows[0] == (4, b"k", b"public1")
        (run,) = world.runs()
        assert (run.base_offset, run.record_count) == (4, len(rows))
        tasks = world.rewriting.counters.kinds[MERGE].tasks
        await keep_deadline(world)
        assert world.rewriting.counters.kinds[MERGE].tasks == tasks

    story(work, physical_max_ms=300_000)


def test_an_object_that_replaced_nothing_is_deleted_although_its_broker_goes_on() -> None:
    async def work(world: World) -> None:
        await world.cluster.create("t", configs=COMPACT)
        await world.append((b"a", b"1"))
        await world.append((b"a", b"2"))

        async def flip() -> None:
            await world.set_policy("delete")

        world.worker.before_replace = flip
        await world.rewriting.run_pass()
        for _ in range(10):
            await asyncio.sleep(200)
            await world.rewriting.run_pass()  # which would renew the lease
            world.cluster.leaders[0].run_maintenance()
            await world.broker.cleaner.clean()
        assert world.object_ids() == {run.object_id for run in world.runs()}

    story(work)


def test_the_coordinator_refuses_a_merge_whose_first_records_were_deleted_meanwhile() -> None:
    async def work(world: World) -> None:
        await world.cluster.create("t")
        await world.fill(40)
        trimmed = False

        async def trim() -> None:
            nonlocal trimmed
            if not trimmed:
                trimmed = True
                await world.delete_records(3)

        world.worker.before_replace = trim
        await world.rewriting.run_pass()
        counts = world.rewriting.counters.kinds[MERGE]
        assert (counts.refused_ranges, counts.old_runs) == (1, 0)
        await world.rewriting.run_pass()
        assert counts.old_runs == 37

    story(work)


def test_a_broker_merges_the_other_partitions_and_the_runs_around_a_missing_object() -> None:
    async def work(world: World) -> None:
        await world.cluster.create("t", 2)
        for i in range(60):
            await world.append((b"k", b"v%d" % i), partition=i % 2)
        await asyncio.sleep(700)
        lost = world.runs()[10].object_id  # of partition 0
        (key,) = [key for key in world.broker.memory.objects if key.endswith(f"/{lost}")]
        del world.broker.memory.objects[key]
        await world.rewriting.run_pass()
        counts = world.rewriting.counters.kinds[MERGE]
        assert (counts.failures, counts.old_runs) == (0, 40)
        assert world.rewriting.counters.damaged_runs == 1
        await world.rewriting.run_pass()
        assert counts.old_runs == 59
        assert world.rewriting.counters.damaged_runs == 1
        assert sorted(run.object_id == lost for run in world.runs()) == [False] * 3 + [True]
        await world.rewriting.run_pass()
        assert counts.tasks == 2

    story(work)


def test_a_fetch_reads_the_same_records_if_its_runs_are_replaced_before_the_read() -> None:
    async def work(world: World) -> None:
        await world.cluster.create("t")
        await world.fill(40)
        rows = await world.read()
        cache = world.broker.cache
        for key in world.broker.memory.objects:
            cache.forget(key)
        read = cache.read_noted
        replaced: list[int] = []

        async def read_later(*words: Any) -> Any:
            if not replaced:
                replaced.append(len(world.runs()))
                await world.rewriting.run_pass()
                assert len(world.runs()) == 1
                world.cluster.leaders[0].run_maintenance()
                await asyncio.sleep(REPLACED_S)
                world.cluster.leaders[0].run_maintenance()
                await world.broker.cleaner.clean()
            return await read(*words)

        cache.read_noted = read_later  # type: ignore[method-assign]
        assert await world.read() == rows
        assert replaced == [40]

    story(work)


def test_a_deleted_key_does_not_come_back_if_the_clock_of_the_rewriting_broker_jumps() -> None:
    async def work(world: World) -> None:
        day_ms = 86_400_000
        jumps = ((30, True), (0, True), (-30, True), (29, True), (31, False), (0, False))
        await world.cluster.create("t", configs=COMPACT | {"min.cleanable.dirty.ratio": "0"})
        await world.append((b"a", b"1"), (b"b", b"1"))
        await world.append((b"a", None))
        for days, has_tombstone in jumps:
            world.rewriting._wall_ms = lambda days=days: (  # type: ignore[misc]
                world.cluster.wall_ms() + days * day_ms
            )
            await world.rewriting.run_pass()
            rows = await world.read()
            assert (1, b"b", b"1") in rows
            assert ((2, b"a", None) in rows) == has_tombstone, (days, rows)
            assert not any(key == b"a" and value for _, key, value in rows)
            await world.append((b"c", b"%d" % days), (b"d", b"1" * 500))

    story(work)
