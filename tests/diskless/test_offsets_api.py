"""ListOffsets, DeleteRecords, OffsetForLeaderEpoch. KIP-79, KIP-107, KIP-207, KIP-320, KIP-734."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from random import Random
from typing import Any
from uuid import UUID

import pytest
from crc32c import crc32c

from coordinator.batch.reads import list_offsets
from diskless.apis import offsets
from diskless.apis.partition_offsets import ListedOffset
from diskless.fetch import timestamps
from diskless.fetch.object_cache import ObjectCache
from diskless.fetch.runs_reader import Run
from diskless.loop_turns import INLINE_BYTES
from diskless.stores.memory import MemoryStore
from raft.net.handlers import Served
from records.batch import Batch, Record, iter_records
from records.batch_writer import build_batch
from records.compression import MAX_DECOMPRESSED_BYTES, Compression
from records.rpc.batch_coordinator import DeleteDisklessRecordsRequest, ListDisklessOffsetsRequest
from records.rpc.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from records.rpc.partitions import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from records.rpc.topics import DeleteTopicsRequest, DeleteTopicsResponse
from tests.diskless.calling import call
from tests.diskless.cluster_world import ClusterWorld
from tests.diskless.stored import Stored, batch
from tests.diskless.virtual_time import run
from tests.doubles.intercepted_call import intercept
from tests.examples import seeds

NEWEST = 11
_Asked = ListOffsetsRequest.ListOffsetsTopic
_Partition = _Asked.ListOffsetsPartition


class Story:
    """A cluster, a store, and the requests of broker 1."""

    def __init__(self, world: ClusterWorld) -> None:
        self.world = world
        self.stored = Stored(world)
        self.cache = ObjectCache(self.stored.store)
        self.handlers: dict[int, Served] = offsets.handlers(world.cluster(1), self.cache)

    async def ask(self, *asked: _Partition, topic: str = "t", version: int = NEWEST) -> Any:
        """Send ListOffsets; return the partitions' results."""
        request = ListOffsetsRequest(
            replica_id=-1, topics=(_Asked(name=topic, partitions=asked),), timeout_ms=3_000
        )
        answer = await call(self.handlers, request, ListOffsetsResponse, version)
        return answer.topics[0].partitions

    async def at(
        self, timestamp: int, topic: str = "t", partition: int = 0, version: int = NEWEST
    ) -> tuple[int, int, int]:
        """List one partition; return error, offset and timestamp."""
        asked = _Partition(partition_index=partition, timestamp=timestamp)
        (found,) = await self.ask(asked, topic=topic, version=version)
        if version >= 4:
            assert found.leader_epoch == (0 if found.offset >= 0 else -1)
        return found.error_code, found.offset, found.timestamp

    async def delete(
        self, *wanted: tuple[int, int], topic: str = "t", version: int = 2, timeout_ms: int = 5_000
    ) -> list[tuple[int, int]]:
        """Delete records by (partition, offset); return error and low watermark of each."""
        asked = DeleteRecordsRequest.DeleteRecordsTopic
        request = DeleteRecordsRequest(
            topics=(
                asked(
                    name=topic,
                    partitions=tuple(
                        asked.DeleteRecordsPartition(partition_index=index, offset=offset)
                        for index, offset in wanted
                    ),
                ),
            ),
            timeout_ms=timeout_ms,
        )
        answer = await call(self.handlers, request, DeleteRecordsResponse, version)
        return [(p.error_code, p.low_watermark) for p in answer.topics[0].partitions]

    async def epoch_end(
        self, leader_epoch: int, *, current: int = -1, topic: str = "t", version: int = 4
    ) -> tuple[int, int, int]:
        """Ask for an epoch's end; return error, epoch and end offset."""
        asked = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        partition = asked.OffsetForLeaderPartition(
            partition=0, current_leader_epoch=current, leader_epoch=leader_epoch
        )
        request = OffsetForLeaderEpochRequest(topics=(asked(topic=topic, partitions=(partition,)),))
        answer = await call(self.handlers, request, OffsetForLeaderEpochResponse, version)
        (found,) = answer.topics[0].partitions
        return found.error_code, found.leader_epoch, found.end_offset


def tell(story: Callable[[Story], Awaitable[None]], partitions: int = 2) -> None:
    """Run a story on a cluster with a topic t."""

    async def told() -> None:
        async with ClusterWorld(brokers=(1, 2), coordinators=2) as world:
            await world.create("t", partitions=partitions)
            made = Story(world)
            try:
                await story(made)
            finally:
                await made.cache.close()

    run(told)


def test_a_timestamp_lookup_times_out_if_the_store_hangs() -> None:
    """Unreached partitions get a retriable error; other requests are not delayed."""

    async def story(told: Story) -> None:
        count = 30
        for index in range(count):
            await told.stored.commit("t", [batch(5, 6)], partition=index)
        stands = asyncio.Event()

        async def fetch(_key: str, _range: Any) -> bytes:
            await stands.wait()
            return b""

        told.stored.store.fetch = fetch  # type: ignore[method-assign]
        loop = asyncio.get_running_loop()
        began = loop.time()
        asked = [_Partition(partition_index=index, timestamp=6) for index in range(count)]
        found = await told.ask(_Partition(partition_index=count, timestamp=-1), *asked)
        assert loop.time() - began <= 3.1
        assert [one.error_code for one in found] == [0] + [78] * count

    tell(story, partitions=31)


# --- ListOffsets: ends ------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, 12))
def test_list_offsets_returns_log_start_and_high_watermark_at_every_version(version: int) -> None:
    async def story(told: Story) -> None:
        await told.stored.commit("t", [batch(5, 6, 7)])
        await told.delete((0, 1))
        assert await told.at(-1, version=version) == (0, 3, -1)
        assert await told.at(-2, version=version) == (0, 1, -1)
        assert await told.at(-1, partition=1, version=version) == (0, 0, -1)
        assert await told.at(6, version=version) == (0, 1, 6)

    tell(story)


def test_list_offsets_returns_the_log_start_as_earliest_local_and_no_tiered_offset() -> None:
    async def story(told: Story) -> None:
        await told.stored.commit("t", [batch(5, 6, 7)])
        await told.delete((0, 2))
        assert await told.at(-4) == (0, 2, -1)
        assert await told.at(-5) == (0, -1, -1)
        assert await told.at(-6) == (0, -1, -1)

    tell(story)


@pytest.mark.parametrize(("sentinel", "since"), [(-3, 7), (-4, 8), (-5, 9), (-6, 11), (-7, 99)])
def test_list_offsets_refuses_a_timestamp_sentinel_that_its_request_version_lacks(
    sentinel: int, since: int
) -> None:
    async def story(told: Story) -> None:
        for version in range(1, 12):
            code, _, _ = await told.at(sentinel, version=version)
            assert code == (0 if version >= since else 35), f"version {version}"

    tell(story)


async def lagging(told: Story) -> None:
    for replica in told.world.cluster(1).replicas.values():
        replica.paused = True
    await told.stored.commit("t", [batch(100, 300, 200)])
    assert await told.at(-1) == (0, 3, -1)
    assert await told.at(250) == (0, 1, 300)
    assert await told.epoch_end(0) == (0, 0, 3)


def test_list_offsets_returns_current_offsets_despite_a_lagging_replica() -> None:
    tell(lagging)


def test_list_offsets_without_a_read_barrier_returns_offset_not_available() -> None:
    async def story(told: Story) -> None:
        await told.stored.commit("t", [batch(1)])
        for leader in told.world.leaders:
            leader.away = True
        for timestamp in (-1, -2, -3, 0):
            assert await told.at(timestamp) == (78, -1, -1)
        assert await told.at(-1, version=5) == (78, -1, -1)
        assert await told.at(-1, version=4) == (5, -1, -1), "which knows LEADER_NOT_AVAILABLE"
        assert (await told.epoch_end(0))[0] == 78
        for leader in told.world.leaders:
            leader.away = False
        assert await told.at(-1) == (0, 1, -1)

    tell(story)


def test_list_offsets_waits_for_a_read_barrier_until_the_request_times_out() -> None:
    async def story(told: Story) -> None:
        async def never(request: object) -> Any:  # noqa: ARG001
            await asyncio.Event().wait()

        for leader in told.world.leaders:
            intercept(leader, ListDisklessOffsetsRequest, never)
        keep_going = asyncio.ensure_future(asyncio.sleep(100))
        started = asyncio.get_running_loop().time()
        assert await told.at(-1) == (78, -1, -1)
        assert asyncio.get_running_loop().time() - started == pytest.approx(3, abs=0.1)
        keep_going.cancel()

    tell(story)


def test_list_offsets_returns_unknown_partition_for_missing_partitions_only() -> None:
    async def story(told: Story) -> None:
        await told.stored.commit("t", [batch(1)])
        found = await told.ask(
            *(_Partition(partition_index=index, timestamp=-1) for index in (0, 7, 1, -1))
        )
        assert [(p.error_code, p.offset) for p in found] == [(0, 1), (3, -1), (0, 0), (3, -1)]
        assert await told.at(-1, topic="none") == (3, -1, -1)
        assert await told.at(-1, topic="__consumer_offsets") == (17, -1, -1)

    tell(story)


def test_list_offsets_refuses_a_partition_that_is_named_twice() -> None:
    async def story(told: Story) -> None:
        twice = _Partition(partition_index=0, timestamp=-1)
        other = _Partition(partition_index=1, timestamp=-1)
        found = await told.ask(twice, twice, other)
        assert [p.error_code for p in found] == [42, 42, 0]

    tell(story)


def test_list_offsets_with_a_leader_epoch_above_0_returns_unknown_leader_epoch() -> None:
    async def story(told: Story) -> None:
        for epoch, code in ((-1, 0), (0, 0), (1, 75)):
            asked = _Partition(partition_index=0, current_leader_epoch=epoch, timestamp=-1)
            (found,) = await told.ask(asked)
            assert found.error_code == code
            assert (await told.epoch_end(0, current=epoch))[0] == code

    tell(story)


def test_list_offsets_of_a_deleted_topic_gets_unknown_topic_even_if_the_image_lags() -> None:
    async def story(told: Story) -> None:
        told.world.cluster(1).pause()
        state = DeleteTopicsRequest.DeleteTopicState(name="t")
        await told.world.ask(
            DeleteTopicsRequest(topics=(state,), timeout_ms=1_000), DeleteTopicsResponse
        )
        await asyncio.sleep(1)
        assert await told.at(-1) == (3, -1, -1)

    tell(story)


# --- ListOffsets: times -------------------------------------------------------------------------


@pytest.mark.parametrize("compression", list(Compression))
def test_a_timestamp_lookup_finds_the_first_record_that_is_not_earlier(
    compression: Compression,
) -> None:
    async def story(told: Story) -> None:
        await told.stored.commit(
            "t",
            [
                batch(100, 400, 200, compression=compression),
                batch(300, 500, compression=compression),
            ],
        )
        await told.stored.commit("t", [batch(50, 600, compression=compression)])
        assert await told.at(0) == (0, 0, 100)
        assert await told.at(100) == (0, 0, 100)
        assert await told.at(101) == (0, 1, 400)
        assert await told.at(400) == (0, 1, 400)
        assert await told.at(401) == (0, 4, 500)
        assert await told.at(501) == (0, 6, 600)
        assert await told.at(601) == (0, -1, -1)
        assert await told.at(-3) == (0, 6, 600)

    tell(story)


def test_a_timestamp_lookup_reads_very_many_records_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many, few = batch(*range(25_000)), batch(30_000, 29_000)
    threads: set[threading.Thread] = set()

    def watched(one: Batch, *, limit_bytes: int) -> Iterator[Record]:
        threads.add(threading.current_thread())
        return iter_records(one, limit_bytes=limit_bytes)

    monkeypatch.setattr("diskless.fetch.timestamps.iter_records", watched)

    async def main() -> None:
        store = MemoryStore(lambda: 0)
        await store.upload("o", [many, few], len(many) + len(few))
        cache = ObjectCache(store)
        where = Run("o", 0, len(many) + len(few), 100, 25_101, 0, 0)
        since, latest = timestamps.first_since, timestamps.latest
        assert await since(cache, where, from_offset=100, timestamp=24_000) == (24_100, 24_000)
        assert threads, "somebody read it"
        assert threading.main_thread() not in threads
        assert await since(cache, where, from_offset=100, timestamp=29_500) == (25_100, 30_000)
        assert await latest(cache, where, from_offset=100) == (25_100, 30_000)
        assert await latest(cache, where, from_offset=25_101) == (25_101, 29_000)
        assert await since(cache, where, from_offset=100, timestamp=30_001) is None
        await cache.close()

    asyncio.run(main())


def test_a_timestamp_lookup_decompresses_a_decompression_bomb_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bomb = bytes(
        build_batch(
            [(None, bytes(INLINE_BYTES), 7, ())], base_offset=0, leader_epoch=-1,
            compression=Compression.ZSTD,
        )
    )  # fmt: skip
    read: list[tuple[bool, int]] = []

    def watched(one: Batch, *, limit_bytes: int) -> Iterator[Record]:
        read.append((threading.current_thread() is threading.main_thread(), limit_bytes))
        return iter_records(one, limit_bytes=limit_bytes)

    monkeypatch.setattr("diskless.fetch.timestamps.iter_records", watched)

    async def main() -> None:
        store = MemoryStore(lambda: 0)
        await store.upload("o", [bomb], len(bomb))
        cache = ObjectCache(store)
        where = Run("o", 0, len(bomb), 100, 100, 0, 0)
        assert await timestamps.latest(cache, where, from_offset=0) == (100, 7)
        assert read == [(True, INLINE_BYTES), (False, MAX_DECOMPRESSED_BYTES)]
        await cache.close()

    asyncio.run(main())


def test_a_timestamp_lookup_uses_record_timestamps_instead_of_batch_headers() -> None:
    async def story(told: Story) -> None:
        lying = bytearray(batch(100, 900, 200))
        lying[35:43] = (1).to_bytes(8, "big")  # the header's max timestamp
        lying[17:21] = crc32c(lying[21:]).to_bytes(4, "big")
        await told.stored.commit("t", [bytes(lying), batch(950)])
        assert await told.at(850) == (0, 1, 900)

    tell(story)


async def append_time(told: Story) -> None:
    before = told.world.wall_ms()
    await told.stored.commit("t", [batch(5, 6), batch(7)], append_time=True)
    told.stored.store.objects.clear()  # nothing need be read
    assert await told.at(before) == (0, 0, before)
    assert await told.at(-3) == (0, 0, before)
    await told.delete((0, 1))
    assert await told.at(before) == (0, 1, before)
    assert await told.at(before + 1) == (0, -1, -1)


def test_a_timestamp_lookup_with_log_append_time_returns_the_commit_time() -> None:
    tell(append_time)


async def cut_by_the_log_start(told: Story) -> None:
    await told.stored.commit("t", [batch(900, 100), batch(150, 50)])
    await told.stored.commit("t", [batch(10)])
    await told.stored.commit("t", [batch(800, 120)])
    await told.delete((0, 1))
    assert await told.at(0) == (0, 1, 100)
    assert await told.at(130) == (0, 2, 150)
    assert await told.at(200) == (0, 5, 800)
    assert await told.at(850) == (0, -1, -1)
    assert await told.at(-3) == (0, 5, 800)
    await told.delete((0, 6))
    assert await told.at(-3) == (0, 6, 120)
    await told.delete((0, -1))
    assert await told.at(-3) == (0, -1, -1)
    assert await told.at(0) == (0, -1, -1)


def test_a_timestamp_lookup_ignores_records_below_the_log_start() -> None:
    """The run exists, and its record with the greatest timestamp is deleted."""

    tell(cut_by_the_log_start)


def test_a_timestamp_lookup_ignores_records_without_a_timestamp() -> None:
    async def story(told: Story) -> None:
        await told.stored.commit("t", [batch(-1, -1)])
        assert await told.at(0) == (0, -1, -1)
        assert await told.at(-3) == (0, -1, -1)

    tell(story)


@pytest.mark.parametrize("seed", seeds(8))
def test_timestamp_lookups_agree_with_a_list_model(seed: int) -> None:
    """Reproduce: pytest tests/diskless/test_offsets_api.py -k list_model, the seed is its id."""
    random = Random(seed)

    async def story(told: Story) -> None:
        times: list[int] = []
        for _ in range(random.randint(1, 6)):
            batches = []
            for _ in range(random.randint(1, 3)):
                some = [random.randint(0, 30) for _ in range(random.randint(1, 4))]
                batches.append(batch(*some, compression=random.choice(list(Compression))))
                times += some
            await told.stored.commit("t", batches)
        log_start = random.randint(0, len(times))
        await told.delete((0, log_start))
        live = list(enumerate(times))[log_start:]
        for timestamp in range(32):
            first = next(((o, t) for o, t in live if t >= timestamp), (-1, -1))
            assert await told.at(timestamp) == (0, *first), f"seed {seed}: {timestamp} in {live}"
        greatest = max(live, key=lambda one: one[1], default=(-1, -1))
        assert await told.at(-3) == (0, *greatest), f"seed {seed}: {live}"

    tell(story)


def test_a_timestamp_lookup_retries_a_missing_object_and_then_returns_a_storage_error() -> None:
    async def story(told: Story) -> None:
        await told.stored.commit("t", [batch(100)])
        await told.stored.commit("t", [batch(200)])
        await told.stored.store.delete(told.stored.keys[:1])
        assert await told.at(50) == (56, -1, -1)
        real_calls = {leader: leader.call for leader in told.world.leaders}
        for leader, real in real_calls.items():

            async def once(request: Any, leader: Any = leader, real: Any = real) -> Any:
                answer = await real(request)
                leader.call = real
                await told.delete((0, 1))  # the log start passes it meanwhile
                return answer

            intercept(leader, ListDisklessOffsetsRequest, once)
        assert await told.at(50) == (0, 1, 200)

    tell(story)


def test_a_timestamp_lookup_in_a_damaged_object_fails_only_the_partition_of_the_damage() -> None:
    async def story(told: Story) -> None:
        await told.stored.commit("t", [batch(100)])
        await told.stored.commit("t", [batch(100)], partition=1)
        data, at = told.stored.store.objects[told.stored.keys[0]]
        told.stored.store.objects[told.stored.keys[0]] = (data[:-1] + b"\xff", at)
        found = await told.ask(
            *(_Partition(partition_index=index, timestamp=50) for index in (0, 1))
        )
        assert [p.error_code for p in found] == [2, 0]
        assert await told.at(-1) == (0, 1, -1)

    tell(story)


# --- OffsetForLeaderEpoch -----------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 3, 4])
def test_offset_for_leader_epoch_returns_the_high_watermark_only_for_epoch_0(
    version: int,
) -> None:
    async def story(told: Story) -> None:
        await told.stored.commit("t", [batch(1, 2, 3)])
        assert await told.epoch_end(0, version=version) == (0, 0, 3)
        assert await told.epoch_end(1, version=version) == (0, -1, -1)
        assert await told.epoch_end(-1, version=version) == (0, -1, -1)
        assert await told.epoch_end(0, topic="none", version=version) == (3, -1, -1)

    tell(story)


# --- DeleteRecords ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2])
def test_delete_records_deletes_records_below_an_offset_or_all_records_for_offset_minus_1(
    version: int,
) -> None:
    async def story(told: Story) -> None:
        await told.stored.commit("t", [batch(1, 2, 3)])
        await told.stored.commit("t", [batch(1, 2)], partition=1)
        assert await told.delete((0, 2), (1, -1), version=version) == [(0, 2), (0, 2)]
        assert (await told.at(-2), await told.at(-2, partition=1)) == ((0, 2, -1), (0, 2, -1))
        assert await told.delete((0, 1), version=version) == [(0, 2)], "it never goes back"

    tell(story)


def test_a_broker_shows_the_new_log_start_before_it_answers_delete_records() -> None:
    async def story(told: Story) -> None:
        await told.stored.commit("t", [batch(1, 2, 3)])
        topic = told.world.image.topic("t")
        assert topic is not None
        replica = told.world.cluster(1).replicas[topic.coordinator(0)]
        replica.paused = True
        asked = asyncio.ensure_future(told.delete((0, 2)))
        await asyncio.sleep(0.5)
        assert not asked.done()
        replica.paused = False
        replica.go_on()
        assert await asked == [(0, 2)]
        replica.paused = True
        assert await told.delete((0, 3)) == [(0, 3)], "what was decided is answered all the same"

    tell(story)


def test_delete_records_refuses_offsets_out_of_range_and_unknown_or_internal_partitions() -> None:
    async def story(told: Story) -> None:
        await told.stored.commit("t", [batch(1, 2, 3)])
        assert await told.delete((0, 4), (1, 1), (9, 0)) == [(1, -1), (1, -1), (3, -1)]
        assert await told.delete((0, -2)) == [(1, -1)]
        assert await told.delete((0, 1), topic="none") == [(3, -1)]
        for name in ("__consumer_offsets", "__cluster_metadata", "__diskless-metadata"):
            assert await told.delete((0, 1), topic=name) == [(44, -1)]

    tell(story)


def test_a_broker_refuses_delete_records_for_a_topic_with_the_cleanup_policy_compact() -> None:
    """Source: upstream's Partition.deleteRecordsOnLeader, and a running Kafka."""

    async def story(told: Story) -> None:
        for name, policy, refused in (
            ("a", "compact", True),
            ("b", "compact,delete", False),
            ("c", "", False),
        ):
            await told.world.create(name, configs={"cleanup.policy": policy})
            await told.stored.commit(name, [batch(5, 6)])
            expected = [(44, -1)] if refused else [(0, 1)]
            assert await told.delete((0, 1), topic=name) == expected, policy

    tell(story)


def test_delete_records_without_a_coordinator_returns_a_retriable_error() -> None:
    async def story(told: Story) -> None:
        await told.stored.commit("t", [batch(1, 2, 3)])
        for leader in told.world.leaders:
            leader.away = True
        assert await told.delete((0, 2)) == [(6, -1)]
        for leader in told.world.leaders:
            leader.away = False
        assert await told.at(-2) == (0, 0, -1)

    tell(story)


def test_delete_records_deletes_the_records_although_its_request_timed_out() -> None:
    async def story(told: Story) -> None:
        await told.stored.commit("t", [batch(1, 2, 3)])
        for leader in told.world.leaders:
            real = leader.call

            async def slow(request: Any, real: Any = real) -> Any:
                await asyncio.sleep(2)
                return await real(request)

            intercept(leader, DeleteDisklessRecordsRequest, slow)
        assert await told.delete((0, 2), timeout_ms=1_000) == [(7, -1)]
        await asyncio.sleep(2)
        assert await told.at(-2) == (0, 2, -1)

    tell(story)


def test_list_offsets_of_a_recreated_topic_returns_no_offsets_of_the_deleted_topic() -> None:
    async def story(told: Story) -> None:
        await told.stored.commit("t", [batch(100, 200)])
        state = DeleteTopicsRequest.DeleteTopicState(name="t")
        await told.world.ask(
            DeleteTopicsRequest(topics=(state,), timeout_ms=1_000), DeleteTopicsResponse
        )
        again = await told.world.create("t")
        assert again.topic_id != UUID(int=0)
        assert await told.at(-1) == (0, 0, -1)
        assert await told.at(0) == (0, -1, -1)

    tell(story)


# --- mutants ------------------------------------------------------------------------------------


async def own_words(cluster: Any, wanted: Any, timeout_s: float = 0) -> list[ListedOffset]:  # noqa: ARG001
    """Mutant: list offsets from the replica, without the read barrier."""
    answers = []
    for place, timestamp, from_offset in wanted:
        topic = ListDisklessOffsetsRequest.Topic
        partition = topic.Partition(
            partition_index=place.partition, timestamp=timestamp, from_offset=from_offset
        )
        request = ListDisklessOffsetsRequest(
            topics=(topic(topic_id=place.topic_id, partitions=(partition,)),)
        )
        state = cluster.replicas[place.coordinator].state
        found = list_offsets(request, state, state).responses[0].partitions[0]
        answers.append(ListedOffset(found.error_code, found.timestamp, found.offset))
    return answers


async def the_run_will_do(self: Any, wanted: Any, listed: ListedOffset) -> ListedOffset:  # noqa: ARG001
    """Mutant: answer with the coordinator's run without reading its records."""
    return listed


MUTANTS: dict[str, tuple[Any, str, Any, Callable[[Story], Awaitable[None]]]] = {
    "skips the barrier": (offsets, "list_offsets", own_words, lagging),
    "answers a run": (offsets.Offsets, "_look_up", the_run_will_do, cut_by_the_log_start),
    "looks at one run": (offsets, "RUNS_OF_ATTEMPT", 1, cut_by_the_log_start),
    "reads the records' own times": (timestamps, "LOG_APPEND_TIME", 2, append_time),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_tests_of_the_offsets_api_catch_each_broker_mutant(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, attribute, wrong, story = MUTANTS[name]
    monkeypatch.setattr(where, attribute, wrong)
    with pytest.raises(AssertionError):
        tell(story)
