"""Decisions that no call of the interface shows: bounds, plans from outside, foreign records."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from coordinator.batch.cluster_view import Enforcer, TopicConfig
from coordinator.batch.decide import (
    Decision,
    NewLogStart,
    decide_commit,
    decide_dismantling,
    decide_expired_producers,
    decide_expired_tombstones,
    decide_retention,
)
from coordinator.batch.decide.commit import MAX_RECORDS
from coordinator.batch.log_records import UnreadableRecordError, records_of
from coordinator.batch.memory import InMemoryState
from coordinator.batch.pending import PendingState
from coordinator.batch.settings import MAX_BATCHES, MAX_RECORD_BYTES
from records.batch import read_batch
from records.batch_writer import build_value_batch
from records.diskless import (
    DisklessPartitionsRemovedRecord,
    LogStartOffsetsRecord,
    ProducersExpiredRecord,
)
from records.frame import encode_record
from records.kafka_errors import ErrorCode
from records.metadata import FeatureLevelRecord
from records.rpc.batch_coordinator import CommitBatchesRequest, InitDisklessTopicsRequest
from tests.coordinator.batch.actors import TOPIC, Broker, batch, create, delete, groups, offset_for
from tests.coordinator.batch.subjects import SETTINGS, MemoryWorld

HOUR_MS = 3_600_000


class Unsorted(UUID):
    """A topic id that fails when compared: comparing ten thousand takes tens of ms."""

    def __lt__(self, other: object) -> bool:
        raise AssertionError(f"{self} is compared with {other}")


def _topics_of(decision: Decision[None]) -> list[object]:
    return [getattr(record, "topic_id", None) for record in decision.records]


def test_coordinator_maintenance_sorts_only_the_ids_of_deleted_topics() -> None:
    """Maintenance looks for deleted topics each second; hardly any is deleted."""

    async def story() -> None:
        world = MemoryWorld()
        living, deleted = ([Unsorted(int=i) for i in ids] for ids in ((7, 3), (9, 2, 5)))
        for topic in (*living, *deleted):
            await create(world, topic=topic)
        for topic in deleted:
            await delete(world, topic)
        context = world.coordinator.context()
        state = world.coordinator.state
        gone = _topics_of(decide_dismantling(state, state, context))
        assert gone == [UUID(int=2), UUID(int=5), UUID(int=9)]
        world.coordinator.commit(decide_dismantling(state, state, context))
        assert not decide_expired_tombstones(state, context).records
        later = context._replace(steady_ms=context.steady_ms + 25 * HOUR_MS)
        assert _topics_of(decide_expired_tombstones(state, later)) == gone

    asyncio.run(story())


def test_the_coordinator_keeps_a_deleted_topics_tombstone_longer_than_any_call_can_be_delayed() -> (
    None
):
    """However old it is: without it, the rest of its partitions could not be found."""

    async def story() -> None:
        world = MemoryWorld(replace(SETTINGS, maintenance_limit=1))
        await create(world)
        broker = Broker(world)
        await broker.acquire()
        for _ in range(3):
            await broker.commit(batch(0, 2))
        await delete(world)
        state, context = world.coordinator.state, world.coordinator.context()
        later = context._replace(steady_ms=context.steady_ms + 25 * HOUR_MS)
        while any(log_id >= 0 for log_id in state.topics[TOPIC].log_ids):
            assert not decide_expired_tombstones(state, later).records
            step = decide_dismantling(state, state, context)
            assert step.records
            world.coordinator.commit(step)
        assert _topics_of(decide_expired_tombstones(state, later)) == [TOPIC]

    asyncio.run(story())


def test_the_largest_commit_record_is_below_the_size_limit() -> None:
    """Every batch has a topic of its own, is idempotent, and half of them are refused."""

    async def story() -> None:
        world = MemoryWorld()
        topic = InitDisklessTopicsRequest.Topic
        ids = [UUID(int=number + 1) for number in range(MAX_BATCHES)]
        asked = tuple(topic(topic_id=i, topic_name=f"t{i.int}", num_partitions=1) for i in ids)
        request = InitDisklessTopicsRequest(controller_epoch=1, topics=asked)
        await world.coordinator.call(request)
        broker = Broker(world)
        await broker.acquire(2)
        group = CommitBatchesRequest.Topic.Partition
        topics = tuple(
            CommitBatchesRequest.Topic(
                topic_id=topic_id,
                partitions=(
                    group(
                        partition_index=0,
                        batches=(
                            batch(place, producer=7, first=place % 2, append_time=True, size=1),
                        ),
                    ),
                ),
            )
            for place, topic_id in enumerate(ids)
        )
        await broker.commit(topics=topics, size=10**6)
        _, record = world.coordinator.log[-1]
        assert len(encode_record(record)) < MAX_RECORD_BYTES
        assert len(world.coordinator.state.checkpoint()[-1]) < MAX_RECORD_BYTES  # its answer

    asyncio.run(story())


def test_deciding_a_commit_does_not_change_the_coordinators_state() -> None:
    async def story() -> None:
        world = MemoryWorld()
        await create(world)
        broker = Broker(world)
        await broker.acquire()
        await broker.commit(batch(0, 3, producer=1))
        state = world.coordinator.state
        before = state.checkpoint()
        request = broker.last
        assert request is not None
        fields = {name: getattr(request, name) for name in ("topics", "lease_id", "object_size")}
        fresh = CommitBatchesRequest(
            broker_id=1, broker_epoch=1, object_id=broker.next_id, object_format=1, **fields
        )
        context = world.coordinator.context()
        decisions = [decide_commit(fresh, state, state, context) for _ in range(2)]
        assert decisions[0] == decisions[1]
        assert state.checkpoint() == before

    asyncio.run(story())


@pytest.mark.parametrize(
    ("config", "row", "code", "log_start"),
    [
        (TopicConfig(retention_ms=HOUR_MS), (10, 1, HOUR_MS), 44, 0),  # the coordinator's own
        (TopicConfig(retention_ms=HOUR_MS, enforcer=Enforcer.BOTH), (10, 1, HOUR_MS), 0, 10),
        (TopicConfig(retention_ms=HOUR_MS, enforcer=Enforcer.EXTERNAL), (10, 1, HOUR_MS), 0, 10),
        (TopicConfig(retention_ms=9 * HOUR_MS, enforcer=Enforcer.BOTH), (10, 1, HOUR_MS), 44, 0),
        (TopicConfig(retention_ms=1, enforcer=Enforcer.BOTH), (10, 1, HOUR_MS), 0, 10),
        (TopicConfig(retention_ms=None, enforcer=Enforcer.BOTH), (10, 1, HOUR_MS), 44, 0),
        (TopicConfig(retention_bytes=5, enforcer=Enforcer.BOTH), (10, 2, 5), 0, 10),
        (TopicConfig(retention_bytes=6, enforcer=Enforcer.BOTH), (10, 2, 5), 44, 0),
        (TopicConfig(retention_ms=1, enforcer=Enforcer.BOTH), (21, 1, 1), 1, 0),
        (TopicConfig(retention_ms=1, enforcer=Enforcer.BOTH), (-1, 1, 1), 1, 0),
        (TopicConfig(retention_ms=1, enforcer=Enforcer.BOTH), (10, 3, 1), 44, 0),
    ],
)
def test_the_coordinator_refuses_a_retention_plan_row_if_the_topics_settings_now_keep_its_records(
    config: TopicConfig, row: tuple[int, int, int], code: int, log_start: int
) -> None:
    """Refused where the configuration now keeps more; appends never make it stale.

    Source: docs/design/batch-coordinator.md#plans-are-judged-by-the-runs-there-are.
    """

    async def story() -> None:
        world = MemoryWorld()
        await create(world)
        broker = Broker(world)
        await broker.acquire()
        await broker.commit(batch(0, 20))
        world.view.configs[TOPIC] = config
        coordinator = world.coordinator
        planned = [NewLogStart(TOPIC, 0, *row), NewLogStart(TOPIC, 7, 1, 1, 1)]
        decision = decide_retention(
            planned, coordinator.state, coordinator.context(), Enforcer.EXTERNAL
        )
        assert coordinator.commit(decision) == (code, 3)
        assert await offset_for(world, -2) == (0, log_start)
        await delete(world)
        decision = decide_retention(
            planned, coordinator.state, coordinator.context(), Enforcer.EXTERNAL
        )
        assert decision.response == (100, 100)
        assert decision.records == ()

    asyncio.run(story())


@pytest.mark.parametrize("hand", [Enforcer.COORDINATOR, Enforcer.EXTERNAL])
@pytest.mark.parametrize("enforcer", list(Enforcer))
def test_only_the_enforcer_that_a_topic_names_enforces_its_retention(
    hand: Enforcer, enforcer: Enforcer
) -> None:
    """The row is judged when it is decided: the pass may have read older settings."""

    async def story() -> None:
        world = MemoryWorld()
        await create(world)
        broker = Broker(world)
        await broker.acquire()
        await broker.commit(batch(0, 20))
        world.view.configs[TOPIC] = TopicConfig(retention_ms=1, enforcer=enforcer)
        coordinator = world.coordinator
        decision = decide_retention(
            [NewLogStart(TOPIC, 0, 20, 1, 1)], coordinator.state, coordinator.context(), hand
        )
        may = enforcer in (hand, Enforcer.BOTH)
        assert decision.response == ((0,) if may else (44,))
        assert bool(decision.records) == may

    asyncio.run(story())


def test_the_coordinator_applies_the_greater_of_two_log_starts_planned_for_one_partition() -> None:
    async def story() -> None:
        world = MemoryWorld()
        await create(world)
        broker = Broker(world)
        await broker.acquire()
        await broker.commit(batch(0, 20))
        world.view.configs[TOPIC] = TopicConfig(retention_ms=1, retention_bytes=1)
        coordinator = world.coordinator
        for rows in ([(12, 2), (5, 1)], [(14, 1), (16, 2)], [(17, 1), (18, 1)], [(20, 1), (19, 1)]):
            planned = [NewLogStart(TOPIC, 0, offset, reason, 1) for offset, reason in rows]
            decision = decide_retention(
                planned, coordinator.state, coordinator.context(), Enforcer.COORDINATOR
            )
            coordinator.commit(decision)
            assert await offset_for(world, -2) == (0, max(offset for offset, _ in rows))

    asyncio.run(story())


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (encode_record(FeatureLevelRecord(name="x", feature_level=1)), "12"),
        (bytes.fromhex("01 e707 00 00"), "999"),  # a type that nobody knows
        (bytes.fromhex("01 d008 09 00"), "ObjectCommitRecord"),  # a version from the future
        (bytes.fromhex("01 d008 00 00"), "ObjectCommitRecord"),  # cut off
        (b"", "frame version"),
    ],
)
def test_applying_an_undecodable_record_raises_an_error_with_its_offset_and_type(
    value: bytes, says: str
) -> None:
    data = build_value_batch([value], base_offset=41, leader_epoch=1, timestamp=0)
    with pytest.raises(UnreadableRecordError, match="offset 41") as caught:
        list(records_of(read_batch(data)))
    assert says in str(caught.value)


def test_the_batch_coordinator_stops_at_a_record_of_another_state_machine() -> None:
    with pytest.raises(KeyError):
        InMemoryState().apply(0, FeatureLevelRecord(name="x", feature_level=1))


def test_the_coordinator_decides_a_step_of_a_topics_removal_after_applying_the_previous_step() -> (
    None
):
    """A partition whose runs are still there is not empty, whatever was proposed meanwhile."""

    async def story() -> None:
        world = MemoryWorld(replace(SETTINGS, maintenance_limit=3))
        await create(world)
        broker = Broker(world)
        await broker.acquire()
        for _ in range(8):
            await broker.commit(batch(0))
        await delete(world)
        state, context = world.coordinator.state, world.coordinator.context()
        pending = PendingState(lambda: state)
        first = decide_dismantling(pending, state, context).records
        assert isinstance(first[0], LogStartOffsetsRecord)
        for offset, record in enumerate(first, state.applied_offset):
            pending.apply(offset, record)
        (second,) = decide_dismantling(pending, state, context).records
        assert isinstance(second, DisklessPartitionsRemovedRecord)
        assert second.partitions == (1,)  # which never had anything; the other one has five runs
        world.coordinator.run_maintenance()
        state.check_invariants()

    asyncio.run(story())


def test_a_producer_with_a_proposed_but_uncommitted_append_does_not_expire() -> None:
    """Its commit is proposed and not applied yet: a record that forgets it would come after."""

    async def story() -> None:
        world = MemoryWorld()
        await create(world)
        broker = Broker(world)
        await broker.acquire()
        await broker.commit(batch(0, 2, producer=7), batch(100, 2, producer=8))
        last: Any = broker.last
        state, context = world.coordinator.state, world.coordinator.context()
        later_ms = context.now_ms + 25 * HOUR_MS
        later = context._replace(now_ms=later_ms, steady_ms=later_ms, shared_ms=later_ms)
        pending = PendingState(lambda: state)
        request = structs.replace(
            last,
            object_id=broker.next_id,
            topics=groups(batch(0, 2, producer=7, first=2)),
        )
        (commit,) = decide_commit(request, pending, state, later).records
        pending.apply(state.applied_offset, commit)
        (expired,) = decide_expired_producers(pending, state, later).records
        assert isinstance(expired, ProducersExpiredRecord)
        assert expired.producer_ids == (8,)

    asyncio.run(story())


def test_the_coordinator_refuses_a_batch_that_could_exceed_the_largest_offset_of_a_partition() -> (
    None
):
    async def story() -> None:
        world = MemoryWorld()
        await create(world)
        broker = Broker(world)
        await broker.acquire()
        state = world.coordinator.state
        full, last = state.topics[TOPIC].log_ids
        state.logs[full] = (0, 2**63 - MAX_RECORDS)
        state.logs[last] = (0, 2**63 - 1 - MAX_RECORDS)
        codes = []
        for partition in (0, 1, 1):
            answer = await broker.commit(topics=groups(batch(0, 2), partition=partition))
            codes.append(answer.topics[0].partitions[0].results[0].error_code)
        refused = ErrorCode.OFFSET_OUT_OF_RANGE
        assert codes == [refused, 0, refused]

    asyncio.run(story())
