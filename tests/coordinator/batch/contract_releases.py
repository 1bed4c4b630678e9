"""The contract about partitions that are let go, for another coordinator to have.

Source: docs/design/controller.md#hand-over-between-groups; KIP-1164,
AssignPartitionToBatchCoordinator.
"""

from __future__ import annotations

import asyncio

from records.kafka_errors import ErrorCode
from tests.coordinator.batch.actors import (
    OTHER_TOPIC,
    TOPIC,
    Broker,
    batch,
    create,
    delete,
    delete_records,
    find,
    groups,
    offset_for,
    release,
    results,
)
from tests.coordinator.batch.contract_base import DAY_MS, Told
from tests.coordinator.batch.subjects import World

GONE = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def committed(broker: Broker, partition: int) -> tuple[int, int]:
    """A batch of ten records for a partition: its error code and offset."""
    answer = await broker.commit(topics=groups(batch(0, 10), partition=partition))
    (result,) = results(answer)
    return result.error_code, result.assigned_base_offset


class ReleaseStories(Told):
    """Releasing partitions, and restoring them."""

    def test_the_coordinator_refuses_commits_to_a_released_partition(self) -> None:
        async def story(world: World) -> None:
            await create(world, partitions=3)
            broker = Broker(world)
            await broker.acquire()
            assert await committed(broker, 0) == (0, 0)
            assert await release(world, 0, 1, 7) == [ErrorCode.INVALID_REQUEST, 0, GONE]
            assert await committed(broker, 0) == (0, 10)
            assert await committed(broker, 1) == (GONE, -1)
            assert await committed(broker, 2) == (0, 0)
            assert (await offset_for(world, -1, partition=1))[0] == GONE
            assert [p.error_code for p in await find(world, (0, 0), (1, 0))] == [0, GONE]
            assert (await delete_records(world, -1, partition=1))[0] == GONE

        self.tell(story)

    def test_the_coordinator_refuses_to_release_a_partition_that_had_data(self) -> None:
        async def story(world: World) -> None:
            await create(world)
            broker = Broker(world)
            await broker.acquire()
            await committed(broker, 0)
            assert await delete_records(world, -1) == (0, 10)
            assert await release(world, 0) == [ErrorCode.INVALID_REQUEST]
            assert await committed(broker, 0) == (0, 10)

        self.tell(story)

    def test_the_coordinator_decides_a_concurrent_commit_and_partition_release_one_after_the_other(
        self,
    ) -> None:
        async def story(world: World) -> None:
            await create(world)
            broker = Broker(world)
            await broker.acquire()
            first = await asyncio.gather(committed(broker, 0), release(world, 0))
            second = await asyncio.gather(committed(broker, 1), release(world, 1))
            for commit, released in (first, second):
                if released == [0]:
                    assert commit == (GONE, -1)
                else:
                    assert (commit, released) == ((0, 0), [ErrorCode.INVALID_REQUEST])

        self.tell(story)

    def test_the_coordinator_restores_a_released_partition_only_under_a_higher_controller_epoch(
        self,
    ) -> None:
        async def story(world: World) -> None:
            await create(world, epoch=4)
            broker = Broker(world)
            await broker.acquire()
            assert await release(world, 1, epoch=5) == [0]
            assert await release(world, 1, epoch=5) == [0], "repeated"
            assert await create(world, epoch=5) == 0
            assert await create(world, epoch=5, restored=(1,)) == 0, "late: it stays away"
            assert await create(world, epoch=6) == 0, "not named"
            assert await committed(broker, 1) == (GONE, -1)
            assert await release(world, 1, epoch=7) == [0], "the epoch that let go rises"
            assert await create(world, epoch=7, restored=(1,)) == 0
            assert await committed(broker, 1) == (GONE, -1)
            assert await create(world, epoch=8, partitions=4, restored=(9, 1, -1, 0, 1)) == 0
            assert await committed(broker, 1) == (0, 0)
            assert await committed(broker, 3) == (0, 0)
            assert await committed(broker, 0) == (0, 0), "what was there is untouched"

        self.tell(story)

    def test_the_coordinator_refuses_a_partition_release_under_a_former_controller_epoch(
        self,
    ) -> None:
        async def story(world: World) -> None:
            await create(world, epoch=4)
            assert await release(world, 0, 1, epoch=3) == [ErrorCode.STALE_CONTROLLER_EPOCH] * 2
            assert await release(world, 0, topic=OTHER_TOPIC, epoch=9) == [
                ErrorCode.UNKNOWN_TOPIC_ID
            ]
            assert await create(world, epoch=8) == ErrorCode.STALE_CONTROLLER_EPOCH
            assert await release(world, 0, 0, -1, epoch=9) == [0, ErrorCode.INVALID_REQUEST, GONE]
            assert (await offset_for(world, -1, partition=1))[0] == 0

        self.tell(story)

    def test_a_topic_with_a_released_partition_can_be_deleted_after_a_coordinator_restart(
        self,
    ) -> None:
        async def story(world: World) -> None:
            await create(world, epoch=5)
            assert await release(world, 1, epoch=5) == [0]
            before = await world.checkpoint()
            await world.restart()
            assert await world.checkpoint() == before
            assert await create(world, epoch=5, restored=(1,)) == 0
            assert (await offset_for(world, -1, partition=1))[0] == GONE
            assert await delete(world, epoch=5) == 0
            assert await release(world, 0, epoch=5) == [ErrorCode.UNKNOWN_TOPIC_ID]
            await world.advance(2 * DAY_MS)
            await world.advance(2 * DAY_MS)
            assert await create(world, TOPIC, epoch=6) == 0, "nothing is left of it"
            assert (await offset_for(world, -1, partition=1))[0] == 0

        self.tell(story)
