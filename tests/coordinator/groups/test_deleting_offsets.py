"""OffsetDelete removes committed offsets of topics that no member reads, and nothing else."""

from __future__ import annotations

import pytest

from coordinator.groups.settings import MAX_OFFSETS
from records.consumer_protocol import encode_subscription
from records.rpc.group_log import RemoveGroupOffsetsRequest
from records.rpc.groups import OffsetDeleteRequest
from tests.coordinator.groups.test_moves import other
from tests.coordinator.groups.world import GROUP, Consumer, World, commit_request, stable

TOPIC = OffsetDeleteRequest.OffsetDeleteRequestTopic


def deletion(*topics: tuple[str, tuple[int, ...]], group: str = GROUP) -> OffsetDeleteRequest:
    """Build an OffsetDelete of (topic, partitions)."""
    partition = TOPIC.OffsetDeleteRequestPartition
    return OffsetDeleteRequest(
        group_id=group,
        topics=tuple(
            TOPIC(name=name, partitions=tuple(partition(partition_index=i) for i in indexes))
            for name, indexes in topics
        ),
    )


def delete(
    world: World,
    *topics: tuple[str, tuple[int, ...]],
    group: str = GROUP,
    broker: int | None = None,
) -> tuple[int, list[tuple[str, int, int]]]:
    """Delete offsets; return the error, and (topic, partition, error) of each partition."""
    answer = world.ask(deletion(*topics, group=group), version=0, broker=broker)
    return answer.error_code, [
        (topic.name, partition.partition_index, partition.error_code)
        for topic in answer.topics
        for partition in topic.partitions
    ]


def commit(world: World, offset: int, topic: str = "t", partition: int = 0) -> None:
    """Commit an offset without a member."""
    request = commit_request(None, offset, topic, partition)
    answer = world.ask(request)
    assert answer.topics[0].partitions[0].error_code == 0, answer


def offsets(world: World) -> dict[tuple[str, int], int]:
    """Return the group's committed offsets in the log."""
    group = world.image.groups[GROUP]
    return {place: committed.offset for place, committed in group.offsets.items()}


def test_offset_delete_removes_the_named_offsets_of_an_empty_group() -> None:
    world = World()
    for partition in range(3):
        commit(world, 5, partition=partition)
    assert delete(world, ("t", (0, 1, 3)), ("u", (0,)), ("t", (1,))) == (
        0, [("t", 0, 0), ("t", 1, 0), ("t", 3, 0), ("u", 0, 0), ("t", 1, 0)],
    )  # fmt: skip
    assert offsets(world) == {("t", 2): 5}
    commit(world, 6)
    assert offsets(world) == {("t", 0): 6, ("t", 2): 5}


def test_offset_delete_refuses_nonexistent_partitions_and_accepts_existing_partitions() -> None:
    world = World()
    commit(world, 5)
    assert delete(world, ("t", (-1, 0, 4)), ("none", (0,))) == (
        0, [("t", -1, 3), ("t", 0, 0), ("t", 4, 3), ("none", 0, 3)],
    )  # fmt: skip
    assert offsets(world) == {}


@pytest.mark.parametrize("topics", [(), (("t", (0,)),), (("none", (0,)),)])
def test_offset_delete_refuses_a_missing_group_and_a_group_of_another_broker(
    topics: tuple[tuple[str, tuple[int, ...]], ...],
) -> None:
    world = World(brokers=(1, 2))
    assert delete(world, *topics) == (69, [])
    assert delete(world, *topics, group="") == (24, [])
    assert delete(world, *topics, broker=other(world)) == (16, [])
    assert GROUP not in world.image.groups, "the request created the group"


def test_offset_delete_refuses_the_partitions_of_a_topic_that_a_group_member_reads() -> None:
    world = World()
    commit(world, 5)
    commit(world, 5, "u")
    consumer = Consumer(world)
    consumer.metadata = encode_subscription(["t"])
    stable(world, consumer)
    assert delete(world, ("t", (0, 9)), ("u", (0,))) == (
        0, [("t", 0, 86), ("t", 9, 3), ("u", 0, 0)],
    )  # fmt: skip
    assert offsets(world) == {("t", 0): 5}
    assert consumer.beat() == 0
    consumer.leave()
    assert delete(world, ("t", (0,))) == (0, [("t", 0, 0)])
    assert offsets(world) == {}


def test_group_members_with_an_unreadable_subscription_protect_the_offsets_of_every_topic() -> None:
    world = World()
    commit(world, 5)
    stable(world, Consumer(world))
    assert delete(world, ("t", (0,))) == (0, [("t", 0, 86)])
    assert offsets(world) == {("t", 0): 5}


def test_offset_delete_refuses_a_group_whose_members_are_not_consumers() -> None:
    world = World()
    commit(world, 5)
    stable(world, Consumer(world, protocol_type="connect"))
    assert delete(world, ("t", (0,))) == (68, [])
    assert offsets(world) == {("t", 0): 5}


def test_offset_delete_refuses_a_request_with_too_many_partitions() -> None:
    world = World()
    commit(world, 5)
    assert delete(world, ("t", (0,) * (MAX_OFFSETS + 1))) == (42, [])
    assert delete(world, ("t", (0,)), *(("u", (0,)),) * 100_000) == (42, [])
    before = world.log.high_watermark
    world.brokers[1].on_ownership_lost(GROUP)
    assert delete(world, ("t", (0,) * (MAX_OFFSETS + 1))) == (42, [])
    assert world.log.high_watermark == before, "the group was acquired for a refused request"
    assert offsets(world) == {("t", 0): 5}


def hold_removals(world: World) -> None:
    world.holds = lambda _broker, call: isinstance(call.request, RemoveGroupOffsetsRequest)


def test_a_delayed_copy_of_an_offset_deletion_removes_no_offset_committed_after_the_deletion() -> (
    None
):
    world = World()
    commit(world, 5)
    hold_removals(world)
    ticket = world.send(deletion(("t", (0,))), version=0)
    ((broker, call),) = world.held
    world.deliver(broker, call, world.brokers[broker])
    world.run()
    assert world.answers[ticket].error_code == 0
    commit(world, 7)
    world.deliver(broker, call)  # a delayed copy
    world.run()
    assert offsets(world) == {("t", 0): 7}


def test_an_unanswered_offset_deletion_does_not_block_later_offset_commits() -> None:
    """A leader of an older release does not know the request."""
    world = World()
    commit(world, 5)
    hold_removals(world)
    deleting = world.send(deletion(("t", (0,))), version=0)
    committing = world.send(commit_request(None, 6))
    for _ in range(100):
        for broker, call in list(world.held):
            world.lose_answer(broker, call)
        world.held.clear()
        world.pass_ms(100)
        if committing in world.answers:
            break
    assert world.answers[deleting].error_code == 15
    world.pass_ms(10_000)
    commit(world, 7)
    assert offsets(world) == {("t", 0): 7}
