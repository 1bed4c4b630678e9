"""Chunks: KIP-1114, with Esker's decisions."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import UUID

import pytest

from coordinator.controller.chunk_creation import (
    TopicCoordinator,
    UnknownEndError,
    create_request_at_end,
)
from coordinator.controller.chunk_files import (
    ChunkFileError,
    create_request,
    read_alter_file,
    read_create_file,
)
from coordinator.controller.image import TopicImage
from records.chunks import ChunkChangeRecord, ChunkRecord
from records.kafka_errors import ErrorCode
from records.metadata import PartitionChangeRecord
from records.rpc.batch_coordinator import ListDisklessOffsetsRequest, ListDisklessOffsetsResponse
from records.rpc.chunks import AlterChunkAssignmentsRequest, CreateChunksRequest
from records.types import Offset
from tests.coordinator.controller.test_refusals import chunk, delete, move_chunk
from tests.coordinator.controller.world import World, log_batches, records_of


@pytest.fixture
def world() -> World:
    return with_topic()


def with_topic() -> World:
    """Return a world with brokers 1 to 3 and a topic t on brokers (1, 2) and (2, 3)."""
    world = World().elect()
    world.register(1, 2, 3)
    world.create("t", -1, factor=-1, assignments={0: (1, 2), 1: (2, 3)})
    return world


def topic(world: World) -> TopicImage:
    found = world.image.topic("t")
    assert found is not None
    return found


def test_a_partitions_chunk_ends_where_the_next_chunk_begins(world: World) -> None:
    assert world.ask(chunk(replicas=(3, 1), start=10)).results[0].error_code == 0
    (ended,) = topic(world).chunks[0]
    active = topic(world).partitions[0]
    assert (ended.start_offset, ended.stop_offset, ended.end_offset) == (0, 9, 9)
    assert (ended.replicas, ended.isr) == ((1, 2), (1, 2))
    assert (ended.chunk_epoch, ended.epoch) == (0, 0)
    assert (active.start_offset, active.replicas, active.isr) == (10, (3, 1), (3, 1))
    assert active.leader == 3


def test_all_records_of_a_create_chunks_request_are_in_one_batch(world: World) -> None:
    world.create("many", 600)
    item = tuple(chunk("many", i, (1,), 5).topic_partitions[0] for i in range(600))
    replicas = {i: p.replicas for i, p in world.image.topic("many").partitions.items()}  # type: ignore[union-attr]
    assert set(map(len, replicas.values())) == {1}
    answer = world.ask(CreateChunksRequest(topic_partitions=item))
    assert {result.error_code for result in answer.results} == {0}
    assert len(log_batches(world.log)[-1]) == 1_200
    both_in_one_batch(world)


def both_in_one_batch(world: World) -> None:
    """Return whether a PartitionChangeRecord follows every ChunkRecord in its batch."""
    found = 0
    for batch in log_batches(world.log):
        for position, record in enumerate(batch):
            if isinstance(record, ChunkRecord):
                found += 1
                assert position + 1 < len(batch), "the chunk's other half is in another batch"
                other = batch[position + 1]
                assert isinstance(other, PartitionChangeRecord), other
                assert other.start_offset == record.end_offset + 1
    assert found, "no chunk at all"


def test_each_new_chunk_begins_where_the_partitions_previous_chunk_ends(world: World) -> None:
    for start in (10, 11, 50):
        assert world.ask(chunk(start=start)).results[0].error_code == 0
    chunks = topic(world).chunks[0]
    assert [(c.start_offset, c.end_offset) for c in chunks] == [(0, 9), (10, 10), (11, 49)]


def test_the_timestamps_of_a_partitions_chunks_never_decrease(world: World) -> None:
    item: Any = chunk(start=10).topic_partitions[0]
    fields = {name: getattr(item, name) for name in item.__struct_fields__}
    for start, time_ms in ((10, 1_000), (20, 400), (30, 2_000)):
        named = fields | {
            "start_offset": start,
            "prev_stop_offset": start - 1,
            "start_timestamp": time_ms,
        }
        world.ask(
            CreateChunksRequest(topic_partitions=(CreateChunksRequest.TopicPartition(**named),))
        )
    times = [c.start_timestamp for c in topic(world).chunks[0]]
    assert (times, topic(world).partitions[0].start_timestamp) == ([-1, 1_000, 1_000], 2_000)


def test_a_recreated_topic_gets_no_chunk_at_the_old_topics_end(world: World) -> None:
    """The topic was deleted after its high watermark was read; another one has its name."""
    item: Any = chunk(start=1_000).topic_partitions[0]
    fields = {name: getattr(item, name) for name in item.__struct_fields__}
    former = fields | {"topic_id": topic(world).topic_id}
    request = CreateChunksRequest(topic_partitions=(CreateChunksRequest.TopicPartition(**former),))
    world.ask(delete("t"))
    world.create("t", 2, factor=2)
    (refused,) = world.ask(request).results
    assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert "t-0" in refused.error_message
    assert dict(topic(world).chunks) == {}


def test_a_chunks_stop_offset_may_be_below_its_end_offset(world: World) -> None:
    """With an open transaction (upstream), the last stable offset is below the high watermark."""
    world.ask(chunk(start=10, stop=6))
    (ended,) = topic(world).chunks[0]
    assert (ended.stop_offset, ended.end_offset) == (6, 9)


def test_changing_a_chunks_replicas_increments_the_chunk_epoch(world: World) -> None:
    world.ask(chunk(start=10))
    for epoch, replicas in ((0, (2, 3)), (1, (3, 1)), (-1, (1, 2))):
        answer = world.ask(move_chunk(epoch=epoch, replicas=replicas))
        assert answer.results[0].error_code == 0
    (moved,) = topic(world).chunks[0]
    assert (moved.replicas, moved.isr) == ((1, 2), (1, 2))
    assert (moved.chunk_epoch, moved.epoch) == (3, 3)
    end = world.log.end_offset
    assert world.ask(move_chunk(replicas=(1, 2))).results[0].error_code == 0
    assert world.log.end_offset == end, "nothing to change"


def test_the_controller_removes_a_partitions_chunk_below_the_log_start(world: World) -> None:
    for start in (10, 20, 30):
        world.ask(chunk(start=start))
    starts = world.coordinators[0].log_starts
    starts[topic(world).topic_id, 0] = 19
    world.pass_ms(31_000)
    assert [c.start_offset for c in topic(world).chunks[0]] == [10, 20]
    starts[topic(world).topic_id, 0] = 20
    world.pass_ms(31_000)
    assert [c.start_offset for c in topic(world).chunks[0]] == [20]
    starts[topic(world).topic_id, 0] = 500
    world.pass_ms(31_000)
    assert 0 not in topic(world).chunks
    assert isinstance(log_batches(world.log)[-1][0], ChunkChangeRecord)


def test_the_controller_removes_a_partitions_chunk_without_registered_replicas(
    world: World,
) -> None:
    world.ask(chunk(start=10, replicas=(3, 1)))
    for broker_id in (1, 2):
        assert len(topic(world).chunks[0]) == 1
        world.unregister(broker_id)
        world.pass_ms(31_000)
    assert 0 not in topic(world).chunks


def test_the_controller_removes_no_chunk_while_the_chunks_coordinator_does_not_answer(
    world: World,
) -> None:
    world.ask(chunk(start=10))
    world.coordinators[0].log_starts[topic(world).topic_id, 0] = 99
    world.coordinators.down.add(0)
    world.pass_ms(65_000)
    assert len(topic(world).chunks[0]) == 1
    world.coordinators.down.clear()
    world.pass_ms(31_000)
    assert 0 not in topic(world).chunks


def test_partition_chunks_survive_a_checkpoint_and_a_restart(world: World) -> None:
    world.ask(chunk(start=10))
    world.ask(move_chunk(replicas=(2, 3)))
    before = records_of(world.image)
    world.take_checkpoint()
    world.restart()
    assert records_of(world.image) == before


# --- KIP-1114's files ---------------------------------------------------------------------------


def test_the_chunk_file_parser_accepts_the_examples_of_kip_1114() -> None:
    created = read_create_file(
        """{"partitions": [
            {"topic": "topic1", "partition": 0, "replicas": [1, 2, 3]},
            {"topic": "topic2", "partition": 2, "replicas": [2, 9, 12]}]}"""
    )
    assert created[1] == ("topic2", 2, (2, 9, 12))
    altered = read_alter_file(
        """{"chunks": [
            {"topic": "topic1", "partition": 0, "startOffset": 289818, "replicas": [4, 5, 6]},
            {"topic": "topic1", "partition": 0, "startOffset": 27784, "replicas": [1, 2, 3]}]}"""
    )
    assert isinstance(altered, AlterChunkAssignmentsRequest)
    assert [c.start_offset for c in altered.chunks] == [289_818, 27_784]


def test_a_chunk_creation_request_begins_at_the_partitions_high_watermark() -> None:
    chunks = read_create_file('{"partitions": [{"topic": "t", "partition": 0, "replicas": [1]}]}')
    (item,) = create_request(chunks, {("t", 0): Offset(42)}, now_ms=7).topic_partitions
    assert (item.start_offset, item.prev_stop_offset, item.start_timestamp) == (42, 41, 7)


ENTRY = {"topic": "t", "partition": 0, "replicas": [1]}


@pytest.mark.parametrize(
    ("document", "names"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("9" * 5_000, "not JSON"),
        ("[]", "partitions"),
        ("{}", "partitions"),
        ('{"chunks": []}', "partitions"),
        ('{"partitions": [], "more": 1}', "partitions"),
        ('{"partitions": []}', "list of 1"),
        ('{"partitions": {}}', "list of 1"),
        ('{"partitions": [7]}', "partitions[0]"),
        (json.dumps({"partitions": [{**ENTRY, "extra": 1}]}), "partitions[0]"),
        (json.dumps({"partitions": [ENTRY, {"topic": "t"}]}), "partitions[1]"),
        (json.dumps({"partitions": [{**ENTRY, "topic": 3}]}), "topic"),
        (json.dumps({"partitions": [{**ENTRY, "topic": ""}]}), "topic"),
        (json.dumps({"partitions": [{**ENTRY, "topic": "\ud800"}]}), "topic"),
        (json.dumps({"partitions": [{**ENTRY, "topic": "t" * 250}]}), "topic"),
        (json.dumps({"partitions": [{**ENTRY, "partition": -1}]}), "partition"),
        (json.dumps({"partitions": [{**ENTRY, "partition": True}]}), "partition"),
        (json.dumps({"partitions": [{**ENTRY, "partition": 2**31}]}), "partition"),
        (json.dumps({"partitions": [{**ENTRY, "replicas": []}]}), "replicas"),
        (json.dumps({"partitions": [{**ENTRY, "replicas": ["1"]}]}), "replicas"),
        (json.dumps({"partitions": [{**ENTRY, "replicas": [1, 1]}]}), "twice"),
        (json.dumps({"partitions": [ENTRY, ENTRY]}), "twice"),
    ],
)
def test_the_error_of_a_malformed_chunk_file_names_the_invalid_field(
    document: str, names: str
) -> None:
    with pytest.raises(ChunkFileError, match=names.replace("[", r"\[").replace("]", r"\]")):
        read_create_file(document)


class OneReader:
    """A coordinator that has been deposed and does not know it: its own state is old."""

    def __init__(self, *, old: int, now: int) -> None:
        self.old = old
        self.now = now

    async def call(self, request: ListDisklessOffsetsRequest) -> ListDisklessOffsetsResponse:
        """Answer behind the barrier, from the real leader's state."""
        return self._answer(request, self.now)

    async def without_barrier(
        self, request: ListDisklessOffsetsRequest
    ) -> ListDisklessOffsetsResponse:
        """Answer from its own state, as FindBatches does."""
        return self._answer(request, self.old)

    def _answer(
        self, request: ListDisklessOffsetsRequest, offset: int
    ) -> ListDisklessOffsetsResponse:
        topic = ListDisklessOffsetsResponse.Topic
        return ListDisklessOffsetsResponse(
            responses=tuple(
                topic(
                    topic_id=item.topic_id,
                    partitions=tuple(
                        topic.Partition(
                            partition_index=p.partition_index, timestamp=-1, offset=offset
                        )
                        for p in item.partitions
                    ),
                )
                for item in request.topics
            )
        )


def test_a_chunk_is_created_at_a_high_watermark_read_after_the_read_barrier() -> None:
    """Offsets 40..99 are acknowledged already: no chunk may begin among them."""
    reader = OneReader(old=40, now=100)
    world = World().elect()
    world.register(1)
    world.create("t", 1)
    chunks = read_create_file('{"partitions": [{"topic": "t", "partition": 0, "replicas": [1]}]}')
    request = asyncio.run(
        create_request_at_end(
            chunks,
            {("t", 0): TopicCoordinator(topic(world).topic_id, 0)},
            lambda _: reader,
            lambda: 5,
        )
    )
    assert request.topic_partitions[0].topic_id == topic(world).topic_id
    assert world.ask(request).results[0].error_code == 0
    assert topic(world).partitions[0].start_offset == 100
    assert topic(world).chunks[0][0].end_offset == 99


def test_the_controller_creates_no_chunk_while_the_partitions_high_watermark_is_unknown() -> None:
    class Lost(OneReader):
        async def call(self, request: ListDisklessOffsetsRequest) -> ListDisklessOffsetsResponse:
            answer = await super().call(request)
            (found,) = answer.responses[0].partitions
            lost = type(found)(partition_index=0, error_code=6, timestamp=-1, offset=-1)
            named = type(answer.responses[0])(
                topic_id=answer.responses[0].topic_id, partitions=(lost,)
            )
            return ListDisklessOffsetsResponse(responses=(named,))

    chunks = read_create_file('{"partitions": [{"topic": "t", "partition": 0, "replicas": [1]}]}')
    with pytest.raises(UnknownEndError, match="t-0"):
        asyncio.run(
            create_request_at_end(
                chunks,
                {("t", 0): TopicCoordinator(UUID(int=7), 0)},
                lambda _: Lost(old=0, now=0),
                lambda: 5,
            )
        )
