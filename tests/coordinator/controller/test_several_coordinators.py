"""Several batch coordinators: topics are spread over them, and empty partitions move."""

from __future__ import annotations

from uuid import UUID

import pytest

from records.kafka_errors import ErrorCode
from records.rpc.batch_coordinator import AssignPartitionToBatchCoordinatorRequest
from records.rpc.topics import DeleteTopicsRequest
from tests.coordinator.controller.test_handover import (
    MAX_STEPS,
    expected,
    hosted,
    topic_id,
    with_brokers,
)
from tests.coordinator.controller.test_refusals import assign, delete, grow
from tests.coordinator.controller.world import World, creation


def two_coordinators() -> World:
    world = with_brokers()
    world.create("first", 3)
    assert world.ask(grow("__diskless-metadata", 2)).results[0].error_code == 0
    return world


def test_the_controller_assigns_new_topics_evenly_to_two_batch_coordinators() -> None:
    world = two_coordinators()
    for i in range(6):
        world.create(f"t-{i}", 2)
    for coordinator in (0, 1):
        assert hosted(world, coordinator) == expected(world, coordinator)
    sizes = [sum(map(len, hosted(world, c).values())) for c in (0, 1)]
    assert abs(sizes[0] - sizes[1]) <= 2, sizes
    assert topic_id(world, "first") in hosted(world, 0), "what has data stays"


def test_the_partition_counts_of_coordinators_follow_created_moved_and_deleted_topics() -> None:
    """The image counts them, so creating a topic does not walk over all topics."""
    world = two_coordinators()
    for i in range(4):
        world.create(f"t-{i}", i + 1)
    move(world, "first", 1, 1)
    world.ask(grow("t-2", 5))
    for name in ("t-1", "t-3"):
        world.ask(delete(name))
    sizes = {c: sum(map(len, expected(world, c).values())) for c in (0, 1)}
    assert dict(world.image.loads) == sizes
    world.ask(delete("first"))
    world.ask(delete("t-0"))
    world.ask(delete("t-2"))
    assert dict(world.image.loads) == {}


def test_the_controller_writes_no_coordinator_mapping_before_a_second_coordinator_exists() -> None:
    world = with_brokers()
    world.create("t", 3)
    topic = world.image.topic("t")
    assert topic is not None
    assert dict(topic.coordinators) == {}


def test_the_controller_assigns_added_partitions_to_the_topics_coordinator() -> None:
    world = two_coordinators()
    world.create("second", 2)
    topic = world.image.topic("second")
    assert topic is not None
    assert topic.coordinator(0) == 1
    world.ask(grow("second", 5))
    assert hosted(world, 1) == {topic.topic_id: {0, 1, 2, 3, 4}}


def test_the_controllers_calls_to_a_coordinator_do_not_wait_for_an_unavailable_coordinator() -> (
    None
):
    world = two_coordinators()
    world.coordinators.down.add(0)
    assert world.create("second", 2).topics[0].error_code == 0
    world.coordinators.down.clear()


def move(world: World, name: str, index: int, target: int) -> int:
    answers = world.send(assign(topic_id(world, name), index, target))
    world.pass_ms(3_000)
    return int(answers[0].responses[0].partitions[0].error_code)


def test_a_partition_without_data_can_move_to_another_batch_coordinator() -> None:
    world = two_coordinators()
    assert move(world, "first", 1, 1) == 0
    topic = world.image.topic("first")
    assert topic is not None
    assert [topic.coordinator(i) for i in range(3)] == [0, 1, 0]
    assert hosted(world, 0) == {topic.topic_id: {0, 2}}
    assert 1 in hosted(world, 1)[topic.topic_id]


def test_a_partition_with_data_cannot_move_to_another_batch_coordinator() -> None:
    world = two_coordinators()
    world.coordinators[0].written[topic_id(world, "first"), 1] = 7
    assert move(world, "first", 1, 1) == ErrorCode.INVALID_REQUEST
    assert hosted(world, 0) == expected(world, 0)


def test_a_partition_move_to_the_same_coordinator_writes_no_record() -> None:
    world = two_coordinators()
    end = world.log.end_offset
    assert move(world, "first", 1, 0) == 0
    assert world.log.end_offset == end


def test_a_controller_crash_during_a_partition_move_loses_no_partition() -> None:
    for steps in range(MAX_STEPS):
        world = two_coordinators()
        named = topic_id(world, "first")
        world.log.auto_commit = False
        world.send(assign(named, 1, 1))
        more = all(world.step() for _ in range(steps))
        world.log.auto_commit = True
        healed_move(world, named)
        if not more:
            assert steps > 7, "nothing happened"
            return
    raise AssertionError("never idle")


def healed_move(world: World, named: UUID) -> None:
    if world.log.leading_epoch is not None:
        world.depose()
    world.elect()
    world.pass_ms(10_000)
    topic = world.image.topics[named]
    has_it = [c for c in (0, 1) if 1 in hosted(world, c).get(named, set())]
    assert topic.coordinator(1) in has_it, "mapped to a coordinator that has let go of it"
    assert has_it == [topic.coordinator(1)], "two coordinators take its commits"


def test_a_late_init_topics_call_does_not_restore_a_released_partition() -> None:
    world = with_brokers()
    world.coordinators.holding = True
    world.send(creation("first", 3))
    world.run()
    world.coordinators.holding = False
    world.pass_ms(3_000)
    world.ask(grow("__diskless-metadata", 2))
    assert move(world, "first", 1, 1) == 0
    world.coordinators.deliver_late()
    assert hosted(world, 0)[topic_id(world, "first")] == {0, 2}


def test_only_a_controller_of_a_later_epoch_restores_a_released_partition() -> None:
    world = two_coordinators()
    assert move(world, "first", 1, 1) == 0
    assert move(world, "first", 1, 0) == ErrorCode.INVALID_REQUEST
    assert 1 in hosted(world, 1)[topic_id(world, "first")], "refused before anything is done"
    world.depose()
    world.elect()
    world.pass_ms(3_000)
    assert hosted(world, 0)[topic_id(world, "first")] == {0, 2}, "an Init does not name it"
    assert move(world, "first", 1, 0) == 0
    assert hosted(world, 0)[topic_id(world, "first")] == {0, 1, 2}
    assert 1 not in hosted(world, 1)[topic_id(world, "first")]


def test_the_controller_repeats_a_partition_release_whose_response_was_lost() -> None:
    world = two_coordinators()
    named = topic_id(world, "first")
    world.coordinators.mute.add(0)
    answers = world.send(assign(named, 1, 1))
    world.pass_ms(1_000)
    assert not answers
    assert 1 not in hosted(world, 0)[named]
    world.coordinators.mute.clear()
    world.pass_ms(5_000)
    assert answers[0].responses[0].partitions[0].error_code == 0
    assert world.image.topics[named].coordinator(1) == 1


@pytest.mark.parametrize("down", [0, 1])
def test_a_partition_move_continues_after_its_request_has_timed_out(down: int) -> None:
    """A coordinator may be without a leader for long; the move goes on when it has one."""
    world = two_coordinators()
    named = topic_id(world, "first")
    world.coordinators.down.add(down)
    answers = world.send(assign(named, 1, 1))
    world.pass_ms(5_000)
    assert len(answers) == 1
    (partition,) = answers[0].responses[0].partitions
    assert partition.error_code == ErrorCode.REQUEST_TIMED_OUT
    expected = "it moves when that releases it" if down == 0 else "it is assigned"
    assert expected in (partition.error_message or "").lower()
    assert world.image.topics[named].coordinator(1) == down
    world.coordinators.down.clear()
    world.pass_ms(60_000)
    assert world.image.topics[named].coordinator(1) == 1
    assert 1 in hosted(world, 1)[named]
    assert len(answers) == 1


def test_each_partition_move_of_a_request_has_its_own_result() -> None:
    world = two_coordinators()
    named = topic_id(world, "first")
    topic = AssignPartitionToBatchCoordinatorRequest.Topic
    world.coordinators[0].written[named, 2] = 1
    item = tuple(
        topic.Partition(partition_index=index, batch_coordinator_partition_index=target)
        for index, target in ((0, 1), (1, 9), (2, 1), (0, 1))
    )
    request = AssignPartitionToBatchCoordinatorRequest(
        topics=(topic(topic_id=named, partitions=item),)
    )
    answers = world.send(request)
    world.pass_ms(3_000)
    partitions = answers[0].responses[0].partitions
    assert [p.error_code for p in partitions] == [ErrorCode.INVALID_REQUEST] * 4
    texts = [p.error_message for p in partitions]
    assert texts[0] == texts[3] == f"Partition 0 of {named} is named twice."
    assert "no number 9" in texts[1]
    assert "has data" in texts[2]


def test_deleting_a_topic_with_partitions_at_two_coordinators_deletes_it_at_both() -> None:
    world = two_coordinators()
    move(world, "first", 1, 1)
    world.ask(DeleteTopicsRequest(topic_names=("first",), timeout_ms=1_000))
    world.pass_ms(3_000)
    assert (hosted(world, 0), hosted(world, 1)) == ({}, {})
