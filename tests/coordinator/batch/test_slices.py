"""A large request is decided in slices, and nobody sees that.

Source: docs/design/state-machines.md#bounded-work.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest

from coordinator.batch import decide, slices
from coordinator.batch.sqlite import deferred_deletes
from coordinator.errors import CoordinatorError
from records.kafka_errors import ErrorCode
from records.rpc.batch_coordinator import CommitBatchesRequest, DeleteDisklessRecordsRequest
from records.rpc.objects import DeleteFilesRequest
from tests.coordinator.batch.actors import OTHER_TOPIC, TOPIC, Broker, batch, create
from tests.coordinator.batch.quorum_world import QuorumWorld
from tests.coordinator.batch.subjects import KEYS, MemoryWorld
from tests.doubles.intercepted_call import decide_with

PARTITIONS = 60
SMALL = 7
"""Of a part: so sixty partitions are many."""


def deletions(*rows: tuple[UUID, int, int]) -> DeleteDisklessRecordsRequest:
    """A topic for each row: (topic id, partition, offset)."""
    topic = DeleteDisklessRecordsRequest.Topic
    return DeleteDisklessRecordsRequest(
        topics=tuple(
            topic(
                topic_id=topic_id,
                partitions=(topic.Partition(partition_index=partition, offset=offset),),
            )
            for topic_id, partition, offset in rows
        )
    )


async def filled(world: Any) -> None:
    """Ten records in each of sixty partitions."""
    await create(world, partitions=PARTITIONS)
    broker = Broker(world)
    await broker.acquire(10)
    group = CommitBatchesRequest.Topic.Partition
    committed = await broker.commit(
        size=100 * PARTITIONS,
        topics=(
            CommitBatchesRequest.Topic(
                topic_id=TOPIC,
                partitions=tuple(
                    group(partition_index=index, batches=(batch(100 * index, 10),))
                    for index in range(PARTITIONS)
                ),
            ),
        ),
    )
    assert not committed.error_code


MANY = deletions(
    *((TOPIC, index, index % 13 - 1) for index in range(PARTITIONS)),  # -1, and beyond the end
    *((TOPIC, index, 10) for index in range(0, PARTITIONS, 3)),  # named before
    *((OTHER_TOPIC, index, 0) for index in range(5)),  # not there
    *((TOPIC, index, 0) for index in (PARTITIONS, -1)),
)


def test_a_coordinator_request_sent_in_slices_gets_the_response_of_the_whole_request(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        whole, cut = MemoryWorld(), QuorumWorld(tmp_path)
        sizes: list[int] = []

        def counted(request: DeleteDisklessRecordsRequest, *given: Any) -> Any:
            sizes.append(sum(len(topic.partitions) for topic in request.topics))
            tables, _, context = given
            return decide.decide_delete_records(request, tables, context)

        for world in (whole, cut):
            await filled(world)
        expected = await whole.coordinator.call(MANY)
        with (
            patch.object(slices, "SLICE", SMALL),
            decide_with(DeleteDisklessRecordsRequest, counted),
        ):
            assert await cut.coordinator.call(MANY) == expected
        assert max(sizes) <= SMALL
        assert sum(sizes) == PARTITIONS + 5 + 2
        assert cut.values() == whole.coordinator.state.checkpoint()
        await cut.close()

    asyncio.run(story())


def test_the_coordinator_client_refuses_a_sliced_request_that_names_a_partition_twice(
    tmp_path: Path,
) -> None:
    """The same row object, not an equal one."""

    async def story() -> None:
        world = QuorumWorld(tmp_path)
        await filled(world)
        row = deletions((TOPIC, 0, 5)).topics[0]
        request = DeleteDisklessRecordsRequest(topics=(row,) * 9)
        with patch.object(slices, "SLICE", SMALL):
            answer = await world.coordinator.call(request)
        codes = [topic.partitions[0].error_code for topic in answer.responses]
        assert codes == [0] + [ErrorCode.INVALID_REQUEST] * 8
        await world.close()

    asyncio.run(story())


def test_a_delete_files_request_sent_in_slices_gets_results_in_the_order_of_the_request(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        answers = []
        keys = tuple(
            KEYS.key(number) if number % 3 else f"foreign/{number}" for number in range(40)
        )
        for world in (MemoryWorld(), QuorumWorld(tmp_path)):
            await filled(world)
            with patch.object(slices, "SLICE", SMALL):
                answers.append(
                    await world.coordinator.call(
                        DeleteFilesRequest(coordinator_partition=0, object_keys=keys)
                    )
                )
            await world.coordinator.close()
        assert answers[0] == answers[1]
        assert len(answers[0].key_error_codes) == len(keys)

    asyncio.run(story())


@pytest.mark.parametrize("lost_at", [0, 1, 5])
def test_the_outcome_of_a_sliced_coordinator_request_is_unknown_if_a_later_slice_fails(
    lost_at: int,
) -> None:
    asked = 0

    async def ask(_: DeleteFilesRequest) -> Any:
        nonlocal asked
        asked += 1
        if asked > lost_at:
            raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "nobody leads")
        return None

    async def story() -> None:
        request = DeleteFilesRequest(coordinator_partition=0, object_keys=("k",) * 60)
        with patch.object(slices, "SLICE", SMALL), pytest.raises(CoordinatorError) as caught:
            await slices.delete_files(request, ask)
        unknown = caught.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert unknown == bool(lost_at)
        assert asked == lost_at + 1, "nothing more is asked"

    asyncio.run(story())


def test_applying_a_deletion_in_many_partitions_deletes_few_rows_at_once(tmp_path: Path) -> None:
    """The rows of a few partitions are deleted with it, the others later, invisibly."""

    async def story() -> None:
        world = QuorumWorld(tmp_path)
        await filled(world)
        store = world.machine.store
        with patch.object(
            deferred_deletes, "RUNS_WITH_RECORD", 5 * deferred_deletes.PARTITION_COST
        ):
            answer = await world.coordinator.call(
                deletions(*((TOPIC, index, 10) for index in range(PARTITIONS)))
            )
        assert {topic.partitions[0].low_watermark for topic in answer.responses} == {10}
        assert len(store.deferred_deletes) >= PARTITIONS - 5 - 50, "and 50 in the slice after it"
        while store.deferred_deletes:
            left = len(store.deferred_deletes)
            store.delete_dead_runs(100)
            assert left - len(store.deferred_deletes) <= 100 // deferred_deletes.PARTITION_COST
        store.flush()
        assert store.connection.execute("SELECT COUNT(*) FROM runs").fetchone() == (0,)
        await world.close()

    asyncio.run(story())
