"""DeleteGroups removes an empty group with its offsets, and no late copy restores it."""

from __future__ import annotations

from typing import Any

from records.rpc.group_log import CommitGroupOffsetsRequest, RemoveGroupRequest
from records.rpc.groups import DeleteGroupsRequest, ListGroupsRequest
from tests.coordinator.groups.test_moves import other
from tests.coordinator.groups.world import GROUP, Consumer, World, commit_request, stable

LAST = 2


def deleted(world: World, *names: str, **more: Any) -> dict[str, int]:
    """Delete groups and return the error code of each."""
    answer = world.ask(DeleteGroupsRequest(groups_names=names or (GROUP,)), **more)
    return {result.group_id: result.error_code for result in answer.results}


def test_deleting_an_empty_group_removes_its_offsets() -> None:
    world = World()
    assert world.commit(offset=5) == 0
    assert deleted(world) == {GROUP: 0}
    assert (world.committed(), GROUP in world.image.groups) == (-1, False)
    assert deleted(world) == {GROUP: 69}
    assert world.commit(offset=2) == 0, "the name is free"
    assert world.committed() == 2


def test_list_groups_omits_a_deleted_group_that_the_local_replica_still_has() -> None:
    world = World()
    assert world.commit(offset=5) == 0
    before = dict(world.image.groups.items())
    world.brokers[1].catalog = before.items
    assert deleted(world) == {GROUP: 0}
    assert (listed(world), listed(world)) == ([], [])
    assert world.commit(offset=6) == 0
    assert listed(world) == [GROUP], "the name is free"
    after = dict(world.image.groups.items())
    world.brokers[1].catalog = after.items
    world.brokers[1].on_ownership_lost(GROUP)  # out of memory: it is listed by the replica
    assert listed(world) == [GROUP]


def listed(world: World) -> list[str]:
    return [group.group_id for group in world.ask(ListGroupsRequest()).groups]


def test_delete_groups_refuses_a_group_with_members() -> None:
    world = World()
    one = Consumer(world)
    stable(world, one)
    assert one.commit(5) == 0
    assert deleted(world) == {GROUP: 68}
    assert (one.beat(), world.committed()) == (0, 5)
    one.leave()
    assert deleted(world) == {GROUP: 0}


def test_a_joined_member_whose_generation_is_not_committed_prevents_the_deletion_of_its_group() -> (
    None
):
    """The member has joined, and waits for its assignment."""
    world = World()
    assert world.commit(offset=5) == 0
    one = Consumer(world)
    assert one.join() == 0
    assert deleted(world) == {GROUP: 68}
    assert world.committed() == 5


def test_deleting_several_groups_returns_one_result_per_group() -> None:
    world = World(brokers=(1, 2))
    assert world.commit(offset=5) == 0
    long = "x" * 2000
    assert deleted(world, GROUP, "nobody", GROUP, long, broker=other(world)) == {
        GROUP: 16, "nobody": deleted_where(world, "nobody"), long: 24,
    }  # fmt: skip
    assert deleted(world, GROUP) == {GROUP: 0}


def deleted_where(world: World, name: str) -> int:
    """Return the code for a missing group from the broker that does not coordinate GROUP."""
    return 69 if world.brokers[other(world)].is_ours(name) else 16


def test_a_broker_that_took_over_a_group_can_delete_the_group() -> None:
    world = World(brokers=(1, 2))
    assert world.commit(offset=5) == 0
    world.stop_broker(world.owner())
    assert deleted(world) == {GROUP: 0}
    assert world.committed() == -1


def test_a_member_that_joins_while_its_group_is_deleted_joins_a_new_group() -> None:
    world = World()
    assert world.commit(offset=5) == 0
    world.holds = lambda _broker, call: isinstance(call.request, RemoveGroupRequest)
    deleting = world.send(DeleteGroupsRequest(groups_names=(GROUP,)), version=LAST)
    one = Consumer(world)
    joining = one.send_join()
    ((broker, call),) = world.held
    world.deliver(broker, call, world.brokers[broker])
    world.run()
    assert world.answers[deleting].results[0].error_code == 0
    assert one.joins(joining) in (0, 16)
    one.member_id = ""
    stable(world, one)
    assert one.commit(1) == 0


def test_a_broker_repeats_a_group_deletion_with_a_lost_response_and_the_log_applies_it_once() -> (
    None
):
    world = World()
    assert world.commit(offset=5) == 0
    world.holds = lambda _broker, call: isinstance(call.request, RemoveGroupRequest)
    deleting = world.send(DeleteGroupsRequest(groups_names=(GROUP,)), version=LAST)
    ((broker, call),) = world.held
    world.deliver(broker, call)  # decided; the answer is lost
    world.run()
    world.lose_answer(broker, call)
    world.held.clear()
    world.pass_ms(100)
    ((_, again),) = world.held
    assert again.request == call.request
    world.deliver(broker, again, world.brokers[broker])
    world.run()
    assert world.answers[deleting].results[0].error_code == 0
    assert world.commit(offset=7) == 0
    world.deliver(broker, call)  # a delayed copy
    world.run()
    assert world.committed() == 7


def test_offset_commits_before_a_group_deletion_succeed_and_later_commits_get_not_coordinator() -> (
    None
):
    world = World()
    assert world.commit(offset=5) == 0
    world.holds = lambda _broker, call: isinstance(call.request, CommitGroupOffsetsRequest)
    before = world.send(commit_request(None, 6))
    deleting = world.send(DeleteGroupsRequest(groups_names=(GROUP,)), version=LAST)
    behind = world.send(commit_request(None, 7))
    ((broker, call),) = world.held
    world.holds = lambda _broker, _call: False
    world.deliver(broker, call, world.brokers[broker])
    world.run()
    assert world.answers[before].topics[0].partitions[0].error_code == 0
    assert world.answers[deleting].results[0].error_code == 0
    assert world.answers[behind].topics[0].partitions[0].error_code == 16
    assert world.committed() == -1


def test_a_group_deletion_times_out_while_the_group_log_does_not_answer() -> None:
    world = World()
    assert world.commit(offset=5) == 0
    world.log.depose()
    world.run()
    ticket = world.send(DeleteGroupsRequest(groups_names=(GROUP,)), version=LAST)
    world.pass_ms(world.settings.answer_timeout_ms)
    assert world.answers[ticket].results[0].error_code == 15
    world.brokers[1].on_ownership_lost(GROUP)
    ticket = world.send(DeleteGroupsRequest(groups_names=(GROUP,)), version=LAST)
    world.pass_ms(world.settings.answer_timeout_ms)
    assert world.answers[ticket].results[0].error_code == 14


def test_a_broker_refuses_a_delete_groups_request_with_too_many_groups() -> None:
    world = World()
    names = tuple(f"g{number}" for number in range(1_001))
    assert set(deleted(world, *names).values()) == {42}
