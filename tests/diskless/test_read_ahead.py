"""Reading ahead for sequential consumers, on a store that is slow in virtual time.

Source: docs/design/broker.md#fetch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any
from uuid import UUID

import pytest

from diskless.compaction.service import Rewriting, merging_broker
from diskless.fetch import read_ahead
from diskless.fetch.object_cache import ObjectCache
from diskless.fetch.read_ahead import IDLE_S, ReadAhead, ReadAheadSettings
from diskless.fetch.runs_reader import Run
from diskless.stores import ByteRange, StorageError
from diskless.stores.memory import MemoryStore
from records.batch import iter_batches
from records.batch_writer import build_batch
from records.compression import Buffer
from records.wal import FINAL
from tests.diskless.cluster_world import ClusterWorld
from tests.diskless.compaction.test_service import SETTINGS, InProcess
from tests.diskless.records_world import RecordsBroker, fetching
from tests.diskless.virtual_time import run

MIB = 1 << 20
FIRST_BYTE_S = 0.03
BYTES_PER_S = 100_000_000  # of one connection
P0 = (UUID(int=1), 0)


class SlowStore(MemoryStore):
    """A store in memory whose GETs take as long as those of a bucket; it counts them."""

    def __init__(self, source: MemoryStore) -> None:
        super().__init__(lambda: 0)
        self.objects = source.objects
        self.ranges: list[ByteRange] = []
        self.in_flight = self.most_in_flight = 0

    async def fetch(self, key: str, byte_range: ByteRange) -> Buffer:
        self.ranges.append(byte_range)
        self.in_flight += byte_range.size
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        await asyncio.sleep(FIRST_BYTE_S + byte_range.size / BYTES_PER_S)
        self.in_flight -= byte_range.size
        return await super().fetch(key, byte_range)


class Watched(ReadAhead):
    """Notes the most bytes that were ahead of their consumers."""

    most = 0

    async def _read(self, run: Run) -> None:
        self.most = max(self.most, self.pending_bytes)
        await super()._read(run)


async def consume(broker: RecordsBroker, partition: int = 0) -> tuple[int, float]:
    """Read a partition from its beginning; return the bytes, and the bytes per second."""
    loop = asyncio.get_running_loop()
    began, offset, size = loop.time(), 0, 0
    while True:
        answer = await broker.fetch("t", partition, offset)
        assert answer.error_code == 0, answer
        if offset >= answer.high_watermark:
            return size, size / max(1e-9, loop.time() - began)
        size += len(answer.records or b"")
        for batch in iter_batches(answer.records or b"", verify_crc=False):
            assert batch.header.base_offset == offset
            offset = batch.header.end_offset


async def fill(broker: RecordsBroker, batches: int, batch_bytes: int, partitions: int = 1) -> None:
    now = broker.world.wall_ms()
    for i in range(batches):
        value = Random(i).randbytes(16) * (batch_bytes // 16)
        data = bytes(build_batch([(None, value, now, ())], base_offset=0, leader_epoch=-1))
        for partition in range(partitions):
            answer = await broker.produce("t", partition, data)
            assert answer.error_code == 0, answer


async def merge(world: ClusterWorld, broker: RecordsBroker) -> None:
    await asyncio.sleep(700)
    rewriting = Rewriting(
        broker.cluster,
        InProcess(broker),
        SETTINGS._replace(object_bytes=256 * MIB),
        wall_ms=world.wall_ms,
        random=Random(1),
    )
    rewriting.begin(world.image.brokers[broker.cluster.broker_id].broker_epoch)
    await rewriting.run_pass()
    await rewriting.close()
    for state in (leader.state for leader in world.leaders):
        assert all(run.object_format == FINAL for runs in state.runs.values() for run in runs)


def merging(world: ClusterWorld) -> RecordsBroker:
    """Return the broker that merges the cluster's objects."""
    broker_id = merging_broker(0, world.image)
    assert broker_id is not None
    return RecordsBroker(world, broker_id)


def slow_broker(world: ClusterWorld, source: RecordsBroker) -> tuple[RecordsBroker, SlowStore]:
    store = SlowStore(source.memory)
    return RecordsBroker(world, 3 - source.cluster.broker_id, store), store


def test_a_consumer_of_merged_objects_reads_60_mb_per_second_with_one_get_per_4_mb() -> None:
    async def story() -> None:
        async with ClusterWorld(brokers=(1, 2), esker_version=3) as world:
            writer = merging(world)
            await world.create("t", 1)
            await fill(writer, 160, 256 * 1024)
            reader, store = slow_broker(world, writer)
            _, slow = await consume(reader)
            assert len(store.ranges) == 160
            await merge(world, writer)
            store.ranges.clear()
            reader.cache.forget("")
            size, rate = await consume(reader)
            assert size > 40_000_000
            assert len(store.ranges) / size <= 0.25e-6
            assert rate >= 60_000_000
            assert rate > slow
            ahead = reader.fetch_service.read_ahead
            assert ahead.counters.used_bytes > size // 2
            assert ahead.pending_bytes == 0
            for broker in (reader, writer):
                await broker.end()

    run(story)


def test_read_ahead_for_many_partitions_stays_within_its_limit_of_bytes() -> None:
    async def story() -> None:
        async with ClusterWorld(brokers=(1, 2), esker_version=3) as world:
            writer = merging(world)
            await world.create("t", 6)
            await fill(writer, 62, 128 * 1024, partitions=6)
            await merge(world, writer)
            reader, store = slow_broker(world, writer)
            bound = 26 * MIB
            ahead = reader.fetch_service.read_ahead = Watched(
                reader.cache, ReadAheadSettings(max_bytes=bound)
            )
            found = await asyncio.gather(*(consume(reader, index) for index in range(6)))
            size = sum(each[0] for each in found)
            assert 0 < ahead.most <= bound
            assert len(store.ranges) / size <= 0.3e-6
            for broker in (reader, writer):
                await broker.end()

    run(story)


def test_batches_in_memory_are_read_before_a_fetch_waits_for_those_of_another_partition() -> None:
    """They may leave the cache meanwhile, and would be read one after the other then."""

    async def story() -> None:
        async with ClusterWorld(brokers=(1, 2)) as world:
            writer = RecordsBroker(world, 1)
            await world.create("t", 12)
            await fill(writer, 1, 64 * 1024, partitions=12)
            reader, store = slow_broker(world, writer)
            for partition in range(1, 12):
                await reader.fetch("t", partition, 0)
            loop, gets = asyncio.get_running_loop(), len(store.ranges)
            began = loop.time()
            request = fetching("t", [(partition, 0) for partition in range(12)], max_bytes=1 << 22)
            fetch = asyncio.ensure_future(reader.fetch_all(request))
            await asyncio.sleep(FIRST_BYTE_S / 2)
            for key in store.objects:
                reader.cache.forget(key)
            answer = await fetch
            assert [len(one.records) > 65_536 for one in answer.responses[0].partitions] == [
                True
            ] * 12
            assert len(store.ranges) == gets + 1
            assert loop.time() - began < 2 * FIRST_BYTE_S
            for broker in (reader, writer):
                await broker.end()

    run(story)


def test_a_fetch_that_is_cancelled_or_fails_while_it_waits_for_the_store_leaves_no_task() -> None:
    async def story() -> None:
        async with ClusterWorld(brokers=(1, 2)) as world:
            writer = RecordsBroker(world, 1)
            await world.create("t", 2)
            await fill(writer, 1, 64 * 1024, partitions=2)
            reader, store = slow_broker(world, writer)
            before = asyncio.all_tasks()
            request = fetching("t", [(0, 0), (1, 0)], max_bytes=1 << 22)
            fetch = asyncio.ensure_future(reader.fetch_service.fetch(request, 12))
            await asyncio.sleep(FIRST_BYTE_S / 2)
            fetch.cancel()
            await asyncio.sleep(2 * FIRST_BYTE_S)
            assert fetch.cancelled()
            assert asyncio.all_tasks() <= before
            await reader.fetch("t", 1, 0)
            reader.cache.forget(next(iter(store.objects)))  # partition 0 waits, and 1 fails

            def fail(*_: Any, **__: Any) -> None:
                raise RuntimeError("a fault")

            reader.fetch_service._response = fail  # type: ignore[method-assign]
            with pytest.raises(RuntimeError, match="a fault"):
                await reader.fetch_service.fetch(request, 12)
            reads = {task for task in asyncio.all_tasks() - before if "FetchService" in repr(task)}
            await asyncio.sleep(0)
            assert all(task.cancelled() for task in reads)
            for broker in (reader, writer):
                await broker.end()

    run(story)


# --- the class by itself ------------------------------------------------------------------------


class Partition:
    """Runs of one size, a cache over a store that never answers before it is told to."""

    def __init__(self, count: int = 100, size: int = 10, **settings: int) -> None:
        self.runs = [Run("o", i * size, size, i, i, 0, 0, FINAL) for i in range(count)]
        self.store = MemoryStore(lambda: 0)
        self.store.objects["o"] = (bytes(count * size), 0)
        self.cache = ObjectCache(self.store)
        self.ahead = ReadAhead(self.cache, ReadAheadSettings(**settings))
        self.looked_up: list[int] = []

    async def look_up(self, offset: int, max_bytes: int) -> Sequence[Run]:
        self.looked_up.append(offset)
        found = self.runs[offset:]
        return found[: max(1, max_bytes // found[0].size_bytes)] if found else []

    async def fetch(
        self,
        offset: int,
        partition: tuple[UUID, int] = P0,
        count: int = 1,
        *,
        waits: bool = True,
    ) -> None:
        runs = self.runs[offset : offset + count]
        self.ahead.note(partition, offset, runs, len(self.runs), self.look_up, waits=waits)
        await asyncio.sleep(1)


def on_loop(work: Callable[[Partition], Awaitable[None]], **settings: Any) -> None:
    async def story() -> None:
        partition = Partition(**settings)
        await work(partition)
        await partition.ahead.close()
        assert partition.ahead.pending_bytes == 0
        assert not partition.ahead._by_partition
        await partition.cache.close()

    run(story)


def test_a_broker_does_not_read_ahead_for_single_random_or_repeated_fetches() -> None:
    async def work(partition: Partition) -> None:
        for offset in (50, 50, 3, 80, 20):
            await partition.fetch(offset)
        assert partition.looked_up == []
        await partition.fetch(21)
        assert partition.looked_up == [22]

    on_loop(work, max_bytes=100, stream_bytes=50)


def test_a_broker_reads_runs_ahead_for_a_sequential_consumer_up_to_a_limit_of_bytes() -> None:
    async def work(partition: Partition) -> None:
        await partition.fetch(0)
        await partition.fetch(1)
        assert partition.ahead.pending_bytes == 50
        assert partition.cache.counters.gets == 1  # neighbours are one GET
        await partition.fetch(2)
        assert partition.looked_up == [2]  # enough is there
        for offset in range(3, 7):
            await partition.fetch(offset)
        assert partition.looked_up == [2, 7]
        assert partition.ahead.counters.used_bytes == 50

    on_loop(work, max_bytes=100, stream_bytes=50)


def test_a_broker_reads_ahead_for_a_consumer_only_once_it_had_to_wait_for_the_store() -> None:
    async def work(partition: Partition) -> None:
        for offset in range(10):
            await partition.fetch(offset, waits=False)
        assert partition.looked_up == []
        await partition.fetch(10)
        assert partition.looked_up == [11]
        for offset in range(11, 16):  # what was read ahead is in memory
            await partition.fetch(offset, waits=False)
        assert partition.looked_up == [11, 16]
        assert partition.ahead.counters.used_bytes == 50
        await partition.cache.read("o", ByteRange(0, 1_000))  # all of it
        for offset in range(16, 60):
            await partition.fetch(offset, waits=False)
        assert partition.looked_up == [11, 16, 19], "what was found ahead was in memory"

    on_loop(work, max_bytes=100, stream_bytes=50)


def test_a_consumer_of_what_a_broker_just_wrote_reads_without_look_ups_ahead() -> None:
    async def story() -> None:
        async with ClusterWorld(brokers=(1,)) as world:
            broker = RecordsBroker(world, 1)
            await world.create("t", 1)
            await fill(broker, 10, 256 * 1024)
            size, _ = await consume(broker)
            assert size > 2_500_000
            assert broker.fetch_service.read_ahead.counters.runs == 0
            await broker.end()

    run(story)


def test_two_consumers_of_one_partition_share_the_limit_of_read_ahead() -> None:
    async def work(partition: Partition) -> None:
        for offset in (0, 50, 1, 51, 2, 52, 3, 53, 4, 54, 5, 55):
            await partition.fetch(offset)
            assert partition.ahead.pending_bytes <= 100
        assert partition.ahead.counters.used_bytes > 0
        assert len(partition.ahead._by_partition[P0]) == 2

    on_loop(work, max_bytes=100, stream_bytes=100)


def test_a_consumer_that_stopped_fetching_loses_its_share_of_read_ahead() -> None:
    async def work(partition: Partition) -> None:
        await partition.fetch(0)
        await partition.fetch(1)
        assert partition.ahead.pending_bytes == 100
        await asyncio.sleep(IDLE_S)
        await partition.fetch(60, partition=(UUID(int=2), 0))
        assert partition.ahead.pending_bytes == 0
        await partition.fetch(61, partition=(UUID(int=2), 0))
        assert partition.ahead.pending_bytes == 100

    on_loop(work, max_bytes=100, stream_bytes=100)


def test_read_ahead_has_a_bounded_number_of_streams_per_partition_and_runs_per_stream() -> None:
    async def work(partition: Partition) -> None:
        for offset in range(0, 90, 3):
            partition.ahead.note(
                P0, offset, partition.runs[offset : offset + 1], 100, partition.look_up
            )
        assert len(partition.ahead._by_partition[P0]) == read_ahead.STREAMS_OF_PARTITION
        await partition.fetch(88)
        assert partition.ahead.counters.runs == 11
        await partition.fetch(0, partition=(UUID(int=2), 0))
        await partition.fetch(1, partition=(UUID(int=2), 0))
        assert partition.ahead.counters.runs == 11 + read_ahead.MAX_RUNS

    on_loop(work, max_bytes=10_000, stream_bytes=10_000)


def test_a_broker_counts_a_failed_read_ahead_and_repeats_the_read_for_the_next_fetch() -> None:
    async def work(partition: Partition) -> None:
        async def fail(key: str, _: ByteRange) -> bytes:
            raise StorageError(key, "throttled")

        partition.store.fetch = fail  # type: ignore[method-assign]
        await partition.fetch(0)
        await partition.fetch(1)
        assert partition.ahead.counters.failures == 5
        await partition.fetch(2)

    on_loop(work, max_bytes=100, stream_bytes=50)


def test_a_broker_does_not_read_ahead_with_a_limit_of_0_bytes_or_at_the_partitions_end() -> None:
    async def work(partition: Partition) -> None:
        await partition.fetch(0)
        await partition.fetch(1)
        assert partition.looked_up == []

    on_loop(work, max_bytes=0)

    async def at_the_end(partition: Partition) -> None:
        for offset in (97, 98, 99):
            await partition.fetch(offset, count=3)
        assert not partition.ahead._streams

    on_loop(at_the_end)
