"""A question about very many partitions holds up nobody.

One request of a megabyte names sixty thousand partitions, or one of them as often; answered in one
go it took a leader's loop for seconds, and with it the leadership.

Source: docs/design/state-machines.md#bounded-work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from coordinator.batch.reads import A_TURN, MAX_TIMESTAMP, find_batches, list_offsets
from coordinator.batch.runs import Run
from coordinator.errors import CoordinatorError
from records.rpc.batch_coordinator import (
    FindBatchesRequest,
    FindBatchesResponse,
    ListDisklessOffsetsRequest,
)
from tests.coordinator.batch.actors import OTHER_TOPIC, TOPIC, Broker, batch, create
from tests.coordinator.batch.quorum_world import QuorumWorld, checkpoint_batches
from tests.waiting import DEADLINE_S

T = TypeVar("T")

TOPICS = (TOPIC, OTHER_TOPIC)

TURNS = 20
PARTITIONS = TURNS * A_TURN

Story = Callable[[QuorumWorld], Coroutine[Any, Any, None]]


def find(
    count: int = PARTITIONS, *, offset: int = 0, max_bytes: int = 2**31 - 1
) -> FindBatchesRequest:
    """FindBatches of one partition so many times, half under each of two topics' ids."""
    topic = FindBatchesRequest.Topic
    one = topic.Partition(partition_index=0, offset=offset, max_bytes=max_bytes)
    return FindBatchesRequest(
        max_bytes=max_bytes,
        topics=tuple(
            topic(topic_id=topic_id, partitions=(one,) * (count // 2)) for topic_id in TOPICS
        ),
    )


def listed(count: int = PARTITIONS) -> ListDisklessOffsetsRequest:
    """ListOffsets of one partition so many times, for the costliest timestamp."""
    topic = ListDisklessOffsetsRequest.Topic
    one = topic.Partition(partition_index=0, timestamp=MAX_TIMESTAMP)
    return ListDisklessOffsetsRequest(
        topics=tuple(
            topic(topic_id=topic_id, partitions=(one,) * (count // 2)) for topic_id in TOPICS
        )
    )


class CountedRuns:
    """A partition's runs of ten records and a hundred bytes; how many of them were read."""

    def __init__(self) -> None:
        self.read = 0

    def runs_from(self, log_id: int, offset: int) -> Iterator[Run]:  # noqa: ARG002
        """See `reads.Runs`."""
        for base in range(offset // 10 * 10, 1_000, 10):
            self.read += 1
            yield Run(base, base + 9, 1, base * 10, 100, 0, 0, 0, 10)


@pytest.mark.parametrize(("max_bytes", "told"), [(1, 1), (100, 1), (101, 2), (1_000, 10)])
def test_find_batches_reads_only_the_database_rows_that_it_returns(
    tmp_path: Path, max_bytes: int, told: int
) -> None:
    """Each run costs as much as half a look-up, and may lie on a page that is not in memory."""

    async def look() -> None:
        world, runs = QuorumWorld(tmp_path), CountedRuns()
        await create(world)
        store = world.machine.store
        (log_id,) = store.topics[TOPIC].log_ids[:1]
        store.logs[log_id] = (0, 1_000)
        asked = FindBatchesRequest.Topic.Partition(
            partition_index=0, offset=15, max_bytes=max_bytes
        )
        topics = (FindBatchesRequest.Topic(topic_id=TOPIC, partitions=(asked,)),)
        request = FindBatchesRequest(max_bytes=2**20, topics=topics)
        answer = find_batches(request, store, runs, world.settings)  # type: ignore[arg-type]
        assert len(answer.responses[0].partitions[0].batches) == told == runs.read

    asyncio.run(look())


def told(path: Path, story: Story) -> None:
    """Run a story in a world with two topics that have some runs each."""

    async def begin() -> None:
        world = QuorumWorld(path)
        for topic in TOPICS:
            await create(world, topic=topic)
        broker = Broker(world)
        await broker.acquire()
        for time in (5, 9, 7):
            await broker.commit(batch(0, 3, time=time))
        await story(world)
        await world.close()

    asyncio.run(begin())


async def others(call: Awaitable[T]) -> tuple[T, int]:
    """The answer, and how many turns other tasks had meanwhile."""
    task = asyncio.ensure_future(call)
    turns = 0
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    return await task, turns


def test_the_coordinator_yields_to_other_tasks_during_a_large_look_up(tmp_path: Path) -> None:
    async def story(world: QuorumWorld) -> None:
        store, coordinator = world.machine.store, world.coordinator
        found, turns = await others(coordinator.call(find()))
        assert found == find_batches(find(), store, store, world.settings)
        assert turns >= TURNS
        answer, turns = await others(coordinator.call(listed()))
        assert answer == list_offsets(listed(), store, store)
        assert turns >= TURNS
        _, turns = await others(coordinator.call(find(A_TURN - 2)))
        assert turns <= 3, "a usual question is answered at once"

    told(tmp_path, story)


def test_the_coordinator_answers_large_look_ups_one_after_the_other(tmp_path: Path) -> None:
    """Otherwise ten of them would take ten times as long a turn."""

    async def story(world: QuorumWorld) -> None:
        three = (world.coordinator.call(listed()) for _ in range(3))
        answers, turns = await others(asyncio.gather(*three))
        assert turns >= 3 * (TURNS - 1)
        assert answers[0] == answers[1] == answers[2]

    told(tmp_path, story)


def test_a_coordinator_look_up_waits_while_a_checkpoint_replaces_the_state(tmp_path: Path) -> None:
    """The state is dropped and loaded again from a checkpoint: nothing is denied in between."""

    async def story(world: QuorumWorld) -> None:
        values, applied = world.values(), world.machine.applied
        timestamp = world.machine.last_timestamp
        before: FindBatchesResponse = await world.coordinator.call(find())
        task = asyncio.ensure_future(world.coordinator.call(find()))
        for _ in range(3):
            await asyncio.sleep(0)
        world.machine.reset()
        for _ in range(2 * TURNS):
            await asyncio.sleep(0)
        assert not task.done()
        for _ in world.machine.load(applied, checkpoint_batches(values, applied, timestamp)):
            pass
        assert await asyncio.wait_for(task, timeout=DEADLINE_S) == before

    told(tmp_path, story)


def test_a_call_that_waits_at_a_closing_coordinator_replica_raises_coordinator_not_available(
    tmp_path: Path,
) -> None:
    async def story(world: QuorumWorld) -> None:
        task = asyncio.ensure_future(world.coordinator.call(find()))
        for _ in range(3):
            await asyncio.sleep(0)
        await world.coordinator.close()
        with pytest.raises(CoordinatorError):
            await asyncio.wait_for(task, timeout=DEADLINE_S)

    told(tmp_path, story)


def test_find_batches_reads_no_database_rows_after_the_byte_limit(tmp_path: Path) -> None:
    """For partitions behind the last byte the answer has offsets only."""

    async def story(world: QuorumWorld) -> None:
        statements: list[str] = []
        world.machine.store.connection.set_trace_callback(statements.append)
        answer = await world.coordinator.call(find(max_bytes=1))
        world.machine.store.connection.set_trace_callback(None)
        partitions = [found for topic in answer.responses for found in topic.partitions]
        assert [len(found.batches) for found in partitions] == [1] + [0] * (PARTITIONS - 1)
        assert sum("FROM runs" in statement for statement in statements) == 1

    told(tmp_path, story)
