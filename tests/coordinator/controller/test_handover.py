"""The handover from the controller's log to the coordinators' heals after any crash."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from coordinator.controller import handover
from coordinator.controller import reconciliation as comparing
from coordinator.controller.handover import MAX_CALL_TOPICS
from records.kafka_errors import ErrorCode
from records.rpc.base import Request
from records.rpc.topics import CreateTopicsRequest
from tests.coordinator.controller.test_refusals import delete, grow
from tests.coordinator.controller.world import World, creation

T_GONE = UUID(int=99)


@pytest.fixture
def world() -> World:
    return with_brokers()


def with_brokers(**more: Any) -> World:
    world = World(**more).elect()
    world.register(1, 2, 3)
    return world


def topic_id(world: World, name: str) -> UUID:
    return world.image.topic_ids[name]


def hosted(world: World, coordinator: int = 0) -> dict[UUID, set[int]]:
    return {k: set(v) for k, v in world.coordinators[coordinator].topics.items()}


def expected(world: World, coordinator: int = 0) -> dict[UUID, set[int]]:
    """Return the partitions that the image assigns to a coordinator."""
    found: dict[UUID, set[int]] = {}
    for topic in world.image.iter_topics():
        own = {i for i in topic.partitions if topic.coordinator(i) == coordinator}
        if own and not topic.is_internal:
            found[topic.topic_id] = own
    return found


def healed(world: World) -> None:
    """Let a new controller run for a while, then check that both logs agree."""
    world.coordinators.down.clear()
    world.coordinators.mute.clear()
    world.coordinators.holding = False
    if world.log.leading_epoch is not None:
        world.depose()
    world.elect()
    world.pass_ms(10_000)
    assert hosted(world) == expected(world)
    assert world.handover.outstanding == 0


def test_the_controller_answers_create_topics_after_the_coordinator_has_created_the_topic(
    world: World,
) -> None:
    world.coordinators.down.add(0)
    answers = world.send(creation("t", 3))
    world.run()
    assert "t" in world.image.topic_ids, "it is committed"
    assert answers == [], "the topic cannot be written to yet"
    world.coordinators.down.clear()
    world.pass_ms(3_000)
    assert answers[0].topics[0].error_code == 0
    assert hosted(world) == {topic_id(world, "t"): {0, 1, 2}}


def test_create_topics_times_out_while_the_coordinator_is_unavailable_and_takes_effect_later(
    world: World,
) -> None:
    world.coordinators.down.add(0)
    answers = world.send(creation("t", timeout_ms=2_000))
    world.pass_ms(3_000)
    result = answers[0].topics[0]
    assert result.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert "has not confirmed it" in result.error_message
    assert hosted(world) == {}
    world.coordinators.down.clear()
    world.pass_ms(3_000)
    assert hosted(world) == expected(world)
    assert world.create("t").topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_the_controller_repeats_a_coordinator_call_with_a_lost_response_without_effect(
    world: World,
) -> None:
    world.coordinators.mute.add(0)
    answers = world.send(creation("t", 2))
    world.pass_ms(1_000)
    assert answers == []
    world.coordinators.mute.clear()
    world.pass_ms(3_000)
    assert answers[0].topics[0].error_code == 0
    assert world.coordinators.calls.count(("init", 0)) > 2


def test_the_controller_creates_added_partitions_at_their_batch_coordinator(world: World) -> None:
    world.create("t", 2)
    assert world.ask(grow("t", 5)).results[0].error_code == 0
    assert hosted(world) == {topic_id(world, "t"): {0, 1, 2, 3, 4}}


def test_a_coordinator_that_was_unavailable_receives_a_topic_deletion_once_it_is_available(
    world: World,
) -> None:
    world.create("t")
    named = topic_id(world, "t")
    world.coordinators.down.add(0)
    assert world.ask(delete("t")).responses[0].error_code == 0
    assert named in hosted(world)
    world.coordinators.down.clear()
    world.pass_ms(3_000)
    assert hosted(world) == {}
    assert named in world.coordinators[0].tombstones


def test_a_pending_topic_creation_gets_unknown_topic_id_if_the_topic_is_deleted_meanwhile(
    world: World,
) -> None:
    world.coordinators.down.add(0)
    created = world.send(creation("t"))
    world.run()
    world.ask(delete("t"))
    assert created[0].topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    world.coordinators.down.clear()
    world.pass_ms(3_000)
    assert hosted(world) == {}


# --- crashes ------------------------------------------------------------------------------------

CHANGES: dict[str, Request] = {
    "create": creation("new", 3),
    "delete": delete("old"),
    "grow": grow("old", 4),
}
MAX_STEPS = 40


@pytest.mark.parametrize("change", CHANGES, ids=str)
@pytest.mark.parametrize("restarts", [False, True], ids=["deposed", "restarted"])
def test_controller_and_coordinator_have_the_same_topics_after_a_crash_at_any_step(
    change: str, restarts: bool
) -> None:
    """The controller crashes after each callback in turn; its successor makes both logs agree."""
    for steps in range(MAX_STEPS):
        world = with_brokers()
        world.create("old", 2)
        world.log.auto_commit = False
        answers = world.send(CHANGES[change])
        more = all(world.step() for _ in range(steps))
        world.log.auto_commit = True
        if restarts:
            world.restart()
        healed(world)
        if change == "create" and answers and not answers[0].topics[0].error_code:
            assert "new" in world.image.topic_ids, "acknowledged and lost"
        if not more:
            assert steps > 3, "nothing happened"
            return
    raise AssertionError("never idle")


def test_a_new_controller_makes_each_call_that_a_coordinator_has_missed(world: World) -> None:
    world.create("kept", 2)
    world.create("lost", 2)
    kept, lost, ghost = topic_id(world, "kept"), topic_id(world, "lost"), UUID(int=9 << 80)
    coordinator = world.coordinators[0]
    del coordinator.topics[lost]
    coordinator.topics[kept] = {0}
    coordinator.topics[ghost] = {0}
    healed(world)
    assert hosted(world) == {kept: {0, 1}, lost: {0, 1}}
    assert ghost in coordinator.tombstones


@pytest.mark.parametrize("steps", range(0, 14, 2))
def test_the_controller_creates_and_deletes_topics_during_a_reconciliation_in_slices(
    world: World, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """The reconciliation compares a few topics at a time, with heartbeats in between."""
    monkeypatch.setattr(comparing, "SLICE_TOPICS", 2)
    monkeypatch.setattr(comparing, "SLICE_HOSTED_TOPICS", 2)
    for number in range(8):
        world.create(f"t-{number}", 2)
    world.depose()
    for number in (1, 4, 6):  # the coordinator was not informed of these
        del world.coordinators[0].topics[topic_id(world, f"t-{number}")]
    world.coordinators[0].topics |= {UUID(int=number): {0} for number in (5, 6, 7)}
    world.log.elect()
    for _ in range(steps):
        world.step()
    doomed = [topic_id(world, name) for name in ("t-1", "t-2")]
    gone = [world.send(delete(topic_id=topic_id)) for topic_id in doomed]
    come = world.send(creation("late", 3))
    world.run()
    world.pass_ms(10_000)
    answered = (*gone[0][0].responses, *gone[1][0].responses, *come[0].topics)
    assert [result.error_code for result in answered] == [0, 0, 0]
    assert hosted(world) == expected(world)
    assert world.handover.outstanding == 0


def test_a_reconciliation_in_slices_finds_the_same_differences_as_a_reconciliation_in_one_step(
    world: World,
) -> None:
    for number in range(7):
        world.create(f"t-{number}", 2)
    everything = {topic: frozenset({0}) for topic in hosted(world)} | {T_GONE: frozenset({0})}
    del everything[topic_id(world, "t-3")]
    found = []
    for size in (1, 2, 3, 100):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(comparing, "SLICE_TOPICS", size)
            reconciliation = comparing.Reconciliation(world.image, 0, everything)
            slices = 1
            while reconciliation.compare_slice():
                slices += 1
            assert slices >= 9 // size
            found.append((reconciliation.missing, reconciliation.left_over))
    assert found == [found[0]] * 4
    missing, left_over = found[0]
    assert len(missing) == 7
    assert left_over == [T_GONE]
    assert missing[topic_id(world, "t-3")].restored == frozenset()
    assert missing[topic_id(world, "t-4")].restored == {1}, "it may have let go of that"


def test_the_controller_sends_topics_beyond_the_limit_of_init_topics_in_a_second_call(
    world: World,
) -> None:
    many = tuple(creation(f"t-{i}").topics[0] for i in range(2 * MAX_CALL_TOPICS + 1))
    world.ask(CreateTopicsRequest(topics=many))
    assert len(hosted(world)) == len(many)
    world.coordinators[0].topics.clear()
    healed(world)
    assert len(hosted(world)) == len(many)


def test_a_controller_whose_metadata_lags_deletes_no_topic_created_later_at_a_coordinator(
    world: World,
) -> None:
    """The reconciliation waits until everything that is committed is applied."""
    world.coordinators.down.add(0)
    world.depose()
    world.elect()  # its comparison cannot be made yet
    world.applier.paused = True
    world.create_later = world.send(creation("t"))  # type: ignore[attr-defined]
    world.coordinators.down.clear()
    world.pass_ms(5_000)
    world.applier.paused = False
    world.applier.go_on()
    world.pass_ms(5_000)
    assert hosted(world) == expected(world) != {}
    assert ("delete", 0) not in world.coordinators.calls


# --- late calls ---------------------------------------------------------------------------------


def late_init_of_a_deleted_topic(world: World) -> None:
    """Deliver an Init after its topic was deleted everywhere."""
    world.coordinators.holding = True
    world.send(creation("t", 2))
    world.run()
    world.coordinators.holding = False
    world.pass_ms(3_000)
    assert hosted(world) != {}
    world.ask(delete("t"))
    world.pass_ms(3_000)
    assert hosted(world) == {}
    world.coordinators.deliver_late()


def test_a_late_init_topics_call_for_a_deleted_topic_creates_no_partition(world: World) -> None:
    late_init_of_a_deleted_topic(world)
    assert hosted(world) == {}


def test_a_coordinator_refuses_a_late_init_topics_call_of_a_former_controller(world: World) -> None:
    world.coordinators.holding = True
    world.send(creation("t", 2))
    world.run()
    world.coordinators.holding = False
    world.depose()
    world.elect()
    world.ask(delete("t"))
    world.pass_ms(3_000)
    world.coordinators[0].tombstones.clear()  # long ago
    world.coordinators.deliver_late()
    assert hosted(world) == {}, "its epoch is stale"


def late_init_of_a_topic_that_a_former_controller_deleted(world: World) -> None:
    """Deliver an Init of a topic whose deletion the coordinator was not informed of."""
    world.create("other")
    world.coordinators.holding = True
    world.send(creation("t", 2))
    world.run()
    world.coordinators.holding = False
    world.coordinators.down.add(0)
    world.ask(delete("t"))
    world.depose()
    world.coordinators.down.clear()
    world.elect()
    world.pass_ms(3_000)
    assert world.coordinators[0].tombstones == set()
    world.coordinators.deliver_late()


def test_a_new_controller_announces_its_epoch_to_a_coordinator_before_reconciliation(
    world: World,
) -> None:
    """Otherwise an Init of its predecessor may arrive later, and create a topic that is never
    deleted.
    """
    late_init_of_a_topic_that_a_former_controller_deleted(world)
    assert hosted(world) == expected(world)


def test_an_init_topics_call_stays_within_the_coordinators_partition_limit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that the coordinator refused would not be sent again."""
    monkeypatch.setattr(handover, "MAX_PARTITIONS", 10)
    world.coordinators.down.add(0)
    sizes: list[int] = []
    init = world.coordinators.init

    def count(coordinator: int, request: Any, done: Any) -> None:
        sizes.append(sum(topic.num_partitions for topic in request.topics))
        init(coordinator, request, done)

    monkeypatch.setattr(world.coordinators, "init", count)
    for number in range(5):
        world.send(creation(f"t-{number}", 4))
    world.run()
    world.coordinators.down.clear()
    world.pass_ms(3_000)
    assert max(sizes) == 8
    assert hosted(world) == expected(world)


def test_a_repeated_init_topics_call_does_not_change_the_coordinator(world: World) -> None:
    world.coordinators.holding = True
    world.send(creation("t", 2))
    world.run()
    world.coordinators.holding = False
    world.pass_ms(3_000)
    world.ask(grow("t", 5))
    world.coordinators.deliver_late()
    assert hosted(world) == {topic_id(world, "t"): {0, 1, 2, 3, 4}}


def test_every_coordinator_call_carries_the_controllers_epoch(world: World) -> None:
    world.create("t")
    first = world.coordinators[0].epoch
    assert first == world.controller.active_epoch
    world.depose()
    world.elect()
    world.create("u")
    assert world.coordinators[0].epoch > first


def test_a_deposed_controller_makes_no_coordinator_calls(world: World) -> None:
    world.coordinators.down.add(0)
    answers = world.send(creation("t"))
    world.run()
    world.depose()
    assert answers[0].topics[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    calls = len(world.coordinators.calls)
    world.pass_ms(10_000)
    assert len(world.coordinators.calls) == calls
