"""A restored cluster shows by leader epochs which offsets may hold other records. KIP-320.

Source: docs/design/restore.md#leader-epochs-are-timelines.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from coordinator.controller.image import MetadataImage
from diskless.apis import offsets
from diskless.fetch.service import FetchService
from records.batch import iter_batches
from records.kafka_errors import ErrorCode
from records.leader_epochs import LeaderEpochs
from records.rpc.fetch import FetchRequest
from records.rpc.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from records.rpc.partitions import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
from tests.diskless.calling import call
from tests.diskless.cluster_world import ClusterWorld
from tests.diskless.records_world import RecordsBroker, batch
from tests.diskless.virtual_time import run

EXACT_END = 2


def told(story: Callable[[ClusterWorld, RecordsBroker], Awaitable[None]]) -> None:
    """Run a story on a cluster with five records of which two are older than its restore."""

    async def on_loop() -> None:
        async with ClusterWorld() as world:
            await world.create("t", partitions=1)
            broker = RecordsBroker(world, 1)
            for number in range(5):
                answer = await broker.produce("t", 0, batch(number, now_ms=world.wall_ms()))
                assert answer.error_code == 0
            await world.begin_timeline("t", EXACT_END)
            try:
                await story(world, broker)
            finally:
                await broker.end()

    run(on_loop)


async def fetched(broker: RecordsBroker, epoch: int) -> Any:
    asked = FetchRequest.FetchTopic
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1 << 20,
        topics=(
            asked(
                topic="t",
                partitions=(
                    asked.FetchPartition(
                        partition=0,
                        current_leader_epoch=epoch,
                        fetch_offset=0,
                        partition_max_bytes=1 << 20,
                    ),
                ),
            ),
        ),
    )
    return (await broker.fetch_all(request)).responses[0].partitions[0]


def _batches_have_their_epochs() -> None:
    async def story(_: ClusterWorld, broker: RecordsBroker) -> None:
        found = await fetched(broker, 1)
        assert found.error_code == 0
        epochs = [one.header.leader_epoch for one in iter_batches(found.records)]
        assert epochs == [0, 0, 1, 1, 1]

    told(story)


def _old_epochs_are_fenced() -> None:
    async def story(_: ClusterWorld, broker: RecordsBroker) -> None:
        expected = {
            -1: ErrorCode.NONE,
            0: ErrorCode.FENCED_LEADER_EPOCH,
            1: ErrorCode.NONE,
            2: ErrorCode.UNKNOWN_LEADER_EPOCH,
        }
        for epoch, error in expected.items():
            assert (await fetched(broker, epoch)).error_code == error, epoch

    told(story)


def _old_epochs_end_where_the_new_one_begins() -> None:
    async def story(world: ClusterWorld, broker: RecordsBroker) -> None:
        handlers = offsets.handlers(world.cluster(1), broker.cache)
        asked = OffsetForLeaderEpochRequest.OffsetForLeaderTopic

        async def end_of(epoch: int, current: int = -1) -> tuple[int, int, int]:
            partition = asked.OffsetForLeaderPartition(
                partition=0, current_leader_epoch=current, leader_epoch=epoch
            )
            request = OffsetForLeaderEpochRequest(
                topics=(asked(topic="t", partitions=(partition,)),)
            )
            answer = await call(handlers, request, OffsetForLeaderEpochResponse, 4)
            (found,) = answer.topics[0].partitions
            return found.error_code, found.leader_epoch, found.end_offset

        assert await end_of(0) == (0, 0, EXACT_END)
        assert await end_of(1) == (0, 1, 5)
        assert await end_of(2) == (0, -1, -1)
        assert await end_of(0, current=0) == (ErrorCode.FENCED_LEADER_EPOCH, -1, -1)

    told(story)


def test_fetched_batches_carry_the_timeline_in_which_they_got_their_offsets() -> None:
    _batches_have_their_epochs()


def test_a_fetch_with_an_older_leader_epoch_is_fenced() -> None:
    _old_epochs_are_fenced()


def test_an_older_leader_epoch_ends_at_its_exact_end() -> None:
    _old_epochs_end_where_the_new_one_begins()


def test_metadata_and_listed_offsets_name_the_current_timeline() -> None:
    async def story(world: ClusterWorld, broker: RecordsBroker) -> None:
        handlers = offsets.handlers(world.cluster(1), broker.cache)
        asked = ListOffsetsRequest.ListOffsetsTopic
        found = []
        for timestamp in (-2, -1):
            partition = asked.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
            request = ListOffsetsRequest(
                replica_id=-1, topics=(asked(name="t", partitions=(partition,)),), timeout_ms=3_000
            )
            answer = await call(handlers, request, ListOffsetsResponse, 11)
            listed = answer.topics[0].partitions[0]
            found.append((listed.offset, listed.leader_epoch))
        assert found == [(0, 0), (5, 1)]
        topic = world.image.topic("t")
        assert topic is not None
        assert world.image.leader_epochs(topic, 0).current == 1

    told(story)


def test_a_topic_that_is_created_after_a_restore_begins_with_the_current_timeline() -> None:
    async def story(world: ClusterWorld, broker: RecordsBroker) -> None:
        await world.create("later", partitions=1)
        assert (await broker.produce("later", 0, batch(1, now_ms=world.wall_ms()))).error_code == 0
        found = await broker.fetch("later", 0, 0)
        assert [one.header.leader_epoch for one in iter_batches(found.records)] == [1]

    told(story)


@pytest.mark.parametrize(
    ("story", "change"),
    [
        (_batches_have_their_epochs, (FetchService, "epochs_to_stamp", lambda *_: None)),
        (_old_epochs_are_fenced, (LeaderEpochs, "refuse", lambda *_: ErrorCode.NONE)),
        (
            _old_epochs_end_where_the_new_one_begins,
            (LeaderEpochs, "end_of", lambda _, epoch, end: (epoch, end)),
        ),
        (
            _old_epochs_end_where_the_new_one_begins,
            (MetadataImage, "leader_epochs", lambda *_: LeaderEpochs(((1, 0),))),
        ),
    ],
)
def test_a_broker_that_hides_changed_offsets_is_caught(
    story: Callable[[], None],
    change: tuple[type, str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(*change)
    with pytest.raises(AssertionError):
        story()
