"""Chunks through brokers: KIP-1114's Test Plan without transactions, and failures.

The consumer here finds each chunk's broker in Metadata, as the KIP's does. Those of today are led
there by Fetch (tests/diskless/test_chunk_placement.py). Any broker may serve any offset
(docs/design/chunks.md#any-broker-serves-any-offset), so other brokers give the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from diskless.apis import chunks
from diskless.apis.metadata import ClientView, describe
from diskless.fetch.commit_notifications import CommitNotifications
from diskless.fetch.object_cache import ObjectCache
from diskless.fetch.service import FetchService
from diskless.fetch.staleness import Staleness
from records.batch import iter_batches, iter_records
from records.rpc import chunks as rpc
from records.rpc.cluster import MetadataRequest
from records.rpc.fetch import FetchRequest
from tests.diskless.calling import call
from tests.diskless.cluster_world import ClusterWorld
from tests.diskless.stored import Stored, batch
from tests.diskless.virtual_time import run

BROKERS = (0, 1, 2)
_Asked = rpc.CreateChunksRequest.TopicPartition
_Move = rpc.AlterChunkAssignmentsRequest.Assignment


class Story:
    """Three brokers; a topic t with one partition, on broker 0 only."""

    def __init__(self, world: ClusterWorld) -> None:
        self.world = world
        self.stored = Stored(world)
        self.cache = ObjectCache(self.stored.store)
        self.brokers = {broker_id: self._fetching(broker_id) for broker_id in BROKERS}
        self.handlers = chunks.handlers(world.cluster(1), world.wall_ms)
        self.produced = 0

    def _fetching(self, broker_id: int) -> FetchService:
        cluster = self.world.cluster(broker_id)
        return FetchService(
            cluster,
            cache=self.cache,
            news=CommitNotifications(),
            staleness=Staleness(cluster.replica_age_ms, file_delete_delay_ms=60_000),
        )

    async def produce(self, count: int) -> None:
        """Produce messages, one per batch."""
        times = range(self.produced, self.produced + count)
        await self.stored.commit("t", [batch(time) for time in times])
        self.produced += count

    async def create(
        self, *replicas: int, topic: str = "t", partition: int = 0, start: int = -1
    ) -> tuple[int, str | None]:
        """Create a chunk on these brokers; return error and message."""
        asked = _Asked(
            topic_name=topic,
            partition_id=partition,
            broker_ids=replicas,
            start_offset=start,
            start_timestamp=-1,
            prev_stop_offset=-1,
        )
        request = rpc.CreateChunksRequest(topic_partitions=(asked,))
        answer = await call(self.handlers, request, rpc.CreateChunksResponse, 0)
        return answer.results[0].error_code, answer.results[0].error_message

    async def move(self, start: int, *replicas: int, epoch: int = -1) -> int:
        """Give a chunk to these brokers."""
        asked = _Move(
            topic_name="t",
            partition_id=0,
            start_offset=start,
            chunk_epoch=epoch,
            broker_ids=replicas,
        )
        request = rpc.AlterChunkAssignmentsRequest(chunks=(asked,))
        answer = await call(self.handlers, request, rpc.AlterChunkAssignmentsResponse, 0)
        assert answer.results[0].start_offset == start
        return answer.results[0].error_code

    async def partition(self, asked_of: int = 1) -> Any:
        """Return one broker's metadata of the partition."""
        topic = MetadataRequest.MetadataRequestTopic(name="t")
        answer = await describe(
            MetadataRequest(topics=(topic,)),
            12,
            self.world.cluster(asked_of).image,
            ClientView("c-1", "PLAIN", None),
        )
        return answer.topics[0].partitions[0]

    async def read(self, broker_id: int, offset: int) -> list[int]:
        """Return the offsets that a Fetch from this broker returns."""
        asked = FetchRequest.FetchTopic.FetchPartition(
            partition=0, fetch_offset=offset, partition_max_bytes=10**6
        )
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            topics=(FetchRequest.FetchTopic(topic="t", partitions=(asked,)),),
        )
        answer = await self.brokers[broker_id].fetch(request, 12)
        found = answer.responses[0].partitions[0]
        assert found.error_code == 0
        return [
            record.offset
            for one in iter_batches(found.records or b"")
            for record in iter_records(one)
        ]


class Consumer:
    """A KIP-1114 consumer: reads each chunk from its own replicas, up to its end."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self.position = 0  # auto.offset.reset=earliest

    async def poll(self) -> tuple[int, int]:
        """Return the number of messages, and the broker that they came from."""
        partition = await self._story.partition()
        broker_id, stop = partition.leader_id, None
        for chunk in partition.chunks:
            if chunk.start_offset <= self.position <= chunk.stop_offset:
                broker_id, stop = chunk.replica_nodes[0], chunk.stop_offset
        offsets = await self._story.read(broker_id, self.position)
        mine = [offset for offset in offsets if stop is None or offset <= stop]
        assert mine == list(range(self.position, self.position + len(mine)))
        self.position += len(mine)
        return len(mine), broker_id


def tell(story: Callable[[Story], Awaitable[None]]) -> None:
    async def told() -> None:
        async with ClusterWorld(brokers=BROKERS, coordinators=2) as world:
            await world.create("t", -1, factor=-1, assignments={0: (0,)})
            made = Story(world)
            try:
                await story(made)
            finally:
                await made.cache.close()

    run(told)


# --- KIP-1114, Test Plan ------------------------------------------------------------------------


def test_a_consumer_reads_every_record_across_a_newly_created_chunk() -> None:
    async def story(told: Story) -> None:
        consumer = Consumer(told)
        await told.produce(10)
        assert await told.create(1) == (0, None)
        await told.produce(10)
        assert await consumer.poll() == (10, 0), "the first 10 messages from broker 0"
        count, broker_id = await consumer.poll()
        assert count == 10, "the other 10, from whoever leads"
        assert broker_id == (await told.partition()).leader_id
        topic = told.world.image.topic("t")
        assert topic is not None
        assert topic.partitions[0].replicas == (1,), "the active chunk is on broker 1"
        for any_broker in BROKERS:
            read = await told.read(any_broker, 0)
            for _ in range(3):  # it is led elsewhere once, and each answer ends with its chunk
                read += await told.read(any_broker, len(read))
            assert read == list(range(20))

    tell(story)


def test_a_consumer_reads_a_reassigned_chunk_from_its_new_broker() -> None:
    async def story(told: Story) -> None:
        await told.produce(10)
        assert await told.create(1) == (0, None)
        await told.produce(10)
        assert await told.move(0, 2) == 0
        consumer = Consumer(told)
        assert await consumer.poll() == (10, 2), "10 messages from broker 2"
        count, _ = await consumer.poll()
        assert count == 10
        assert await told.read(1, 10) == list(range(10, 20)), "and broker 1 has them"

    tell(story)


def test_every_broker_describes_the_inactive_chunks_of_a_topic() -> None:
    async def story(told: Story) -> None:
        await told.produce(10)
        now_ms = told.world.wall_ms()
        await told.create(1)
        await told.produce(5)
        await told.create(2)
        for broker_id in BROKERS:
            partition = await told.partition(broker_id)
            assert partition.start_offset == 15
            shown = [
                (c.start_offset, c.stop_offset, c.end_offset, c.replica_nodes, c.isr_nodes)
                for c in partition.chunks
            ]
            assert shown == [(0, 9, 9, (0,), (0,)), (10, 14, 14, (1,), (1,))]
            assert partition.chunks[1].start_timestamp >= now_ms

    tell(story)


# --- what may go wrong --------------------------------------------------------------------------


def test_a_chunk_ends_at_the_coordinators_high_watermark_despite_a_lagging_replica() -> None:
    async def story(told: Story) -> None:
        for replica in told.world.cluster(1).replicas.values():
            replica.paused = True
        await told.produce(10)
        assert await told.create(1, start=3) == (0, None)
        assert (await told.partition()).start_offset == 10

    tell(story)


def test_the_controller_refuses_to_create_a_chunk_without_new_records() -> None:
    async def story(told: Story) -> None:
        assert (await told.create(1))[0] == 42
        await told.produce(1)
        assert (await told.create(1))[0] == 0
        assert (await told.create(2))[0] == 42
        assert (await told.move(0, 2), await told.move(0, 2, epoch=0)) == (0, 95)
        assert await told.move(7, 2) == 42

    tell(story)


def test_the_controller_validates_the_replicas_of_a_chunk() -> None:
    async def story(told: Story) -> None:
        await told.produce(1)
        for replicas in ((), (1, 2), (9,), (1, 1)):
            code, message = await told.create(*replicas)
            assert (code, bool(message)) == (39, True)
        assert (await told.partition()).chunks == ()

    tell(story)


def test_a_broker_refuses_to_create_chunks_of_missing_or_internal_partitions() -> None:
    async def story(told: Story) -> None:
        await told.produce(1)
        assert (await told.create(1, topic="none"))[0] == 3
        assert (await told.create(1, partition=1))[0] == 3
        assert (await told.create(1, topic="__consumer_offsets"))[0] == 17
        both = rpc.CreateChunksRequest(
            topic_partitions=tuple(
                _Asked(
                    topic_name=name,
                    partition_id=0,
                    broker_ids=(1,),
                    start_offset=-1,
                    start_timestamp=-1,
                    prev_stop_offset=-1,
                )
                for name in ("none", "t", "none", "t")
            )
        )
        answer = await call(told.handlers, both, rpc.CreateChunksResponse, 0)
        assert [(r.topic_name, r.error_code) for r in answer.results] == [
            ("none", 3),
            ("t", 0),
            ("none", 3),
            ("t", 42),
        ], "in the order of the request"

    tell(story)


def test_chunk_creation_fails_if_the_coordinators_read_barrier_fails() -> None:
    async def story(told: Story) -> None:
        await told.produce(1)
        for leader in told.world.leaders:
            leader.away = True
        assert (await told.create(1))[0] == 78
        assert (await told.partition()).chunks == ()

    tell(story)


def test_a_request_to_change_chunks_times_out_without_a_controller() -> None:
    async def story(told: Story) -> None:
        await told.produce(1)
        told.world.controller_away = True
        assert (await told.create(1))[0] == 7
        assert await told.move(0, 2) == 7

    tell(story)


def test_a_broker_answers_a_chunk_creation_after_its_metadata_has_the_chunk() -> None:
    async def story(told: Story) -> None:
        await told.produce(1)
        cluster = told.world.cluster(1)
        cluster.pause()
        asked = asyncio.ensure_future(told.create(1))
        await asyncio.sleep(0.5)
        assert not asked.done()
        cluster.go_on()
        assert await asked == (0, None)
        cluster.pause()
        moved = asyncio.ensure_future(told.move(0, 2))
        await asyncio.sleep(0.5)
        assert not moved.done()
        cluster.go_on()
        assert await moved == 0
        assert (await told.partition()).chunks[0].replica_nodes == (2,)

    tell(story)


@pytest.mark.parametrize("count", [1_001])
def test_a_broker_refuses_a_request_with_too_many_chunks_without_a_controller_call(
    count: int,
) -> None:
    async def story(told: Story) -> None:
        await told.produce(1)
        one = _Asked(
            topic_name="t",
            partition_id=0,
            broker_ids=(1,),
            start_offset=-1,
            start_timestamp=-1,
            prev_stop_offset=-1,
        )
        request = rpc.CreateChunksRequest(topic_partitions=(one,) * count)
        answer = await call(told.handlers, request, rpc.CreateChunksResponse, 0)
        assert {result.error_code for result in answer.results} == {44}

    tell(story)
