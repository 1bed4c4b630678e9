"""Requests of members: sync, heartbeat, commit, leave; and members that expire."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from records.rpc import groups as rpc
from tests.coordinator.groups.world import GROUP, TOPICS, Consumer, World, commit_request, stable

# --- SyncGroup ----------------------------------------------------------------------------------


def test_a_sync_group_response_waits_until_the_log_has_committed_the_assignment() -> None:
    world = World(auto_commit=False)
    one = Consumer(world)
    ticket = one.send_join()
    world.log.commit()
    world.run()
    one.member_id = world.answers[ticket].member_id
    assert one.join() == 0
    syncing = one.send_sync()
    assert syncing not in world.answers
    assert world.image.groups[GROUP].generation is None
    world.log.commit()
    world.run()
    assert one.synced(syncing) == 0
    assert world.image.groups[GROUP].generation_id == one.generation


SYNC_REFUSED: list[tuple[str, dict[str, Any], int]] = [
    ("a former generation", {"generation_id": 0}, 22),
    ("a generation that never was", {"generation_id": 7}, 27),
    ("a stranger", {"member_id": "who"}, 25),
    ("an unknown instance", {"group_instance_id": "i"}, 25),
    ("another protocol type", {"protocol_type": "connect"}, 23),
    ("another protocol", {"protocol_name": "sticky"}, 23),
]


@pytest.mark.parametrize(("what", "fields", "code"), SYNC_REFUSED, ids=[c[0] for c in SYNC_REFUSED])
def test_the_group_coordinator_refuses_an_invalid_sync_group_request(
    what: str, fields: dict[str, Any], code: int
) -> None:
    world = World()
    one = Consumer(world)
    assert one.join() == 0
    sound: dict[str, Any] = {
        "group_id": GROUP,
        "generation_id": one.generation,
        "member_id": one.member_id,
        "assignments": (),
    }
    assert world.ask(rpc.SyncGroupRequest(**(sound | fields))).error_code == code, what
    assert world.ask(rpc.SyncGroupRequest(**sound)).error_code == 0


def test_the_group_coordinator_refuses_a_sync_group_request_during_a_rebalance() -> None:
    world = World()
    one, two = Consumer(world, "a"), Consumer(world, "b")
    stable(world, one)
    two.send_join()
    assert one.sync() == 27


def test_the_group_coordinator_refuses_a_waiting_sync_group_when_another_rebalance_begins() -> None:
    world = World()
    one, two = Consumer(world, "a"), Consumer(world, "b")
    stable(world, one)
    second = two.send_join()
    assert one.join() == 0
    assert two.joins(second) == 0
    follower = two if one.leads else one
    waiting = follower.send_sync()
    Consumer(world, "x").send_join()
    assert follower.synced(waiting) == 27


def test_a_group_removes_a_member_that_sends_no_sync_group_after_it_joined() -> None:
    world = World()
    one, two = Consumer(world, "a", rebalance_ms=20_000), Consumer(world, "b", rebalance_ms=20_000)
    stable(world, one, two)
    again = [one.send_join(), two.send_join()]
    assert [one.joins(again[0]), two.joins(again[1])] == [0, 0]
    assert one.sync() == 0
    for _ in range(2):
        world.pass_ms(9_000)
        assert (one.beat(), two.beat()) == (0, 0)
    world.pass_ms(2_000)
    assert two.beat() == 25
    assert one.beat() == 27


def test_an_assignment_too_large_for_a_record_fails_its_rebalance_but_not_the_next_rebalance() -> (
    None
):
    world = World()
    one = Consumer(world)
    assert one.join() == 0
    assert one.sync({one.member_id: b"x" * (1024 * 1024)}) == -1
    again = one.send_join()
    assert one.joins(again) == 0
    assert one.sync() == 0


# --- Heartbeat and sessions -----------------------------------------------------------------------


@pytest.mark.parametrize("version", range(5))
def test_the_group_coordinator_refuses_a_heartbeat_with_a_wrong_generation_or_member_id(
    version: int,
) -> None:
    world = World()
    one = Consumer(world)
    stable(world, one)

    def beat(**fields: Any) -> int:
        sound: dict[str, Any] = {
            "group_id": GROUP,
            "generation_id": one.generation,
            "member_id": one.member_id,
        }
        request = rpc.HeartbeatRequest(**(sound | fields))
        return int(world.ask(request, version=version, broker=1).error_code)

    assert beat() == 0
    assert beat(generation_id=one.generation - 1) == 22
    assert beat(member_id="who") == 25
    assert beat(group_id="") == 24
    assert beat(group_id="another") == 25


def test_a_group_members_session_does_not_expire_while_the_member_sends_requests() -> None:
    world = World()
    one, two = Consumer(world, "a"), Consumer(world, "b", session_ms=6_000)
    stable(world, one, two)
    for _ in range(5):
        world.pass_ms(5_999)
        assert (one.beat(), two.commit(3)) == (0, 0)
    world.pass_ms(6_000)
    assert one.beat() == 27
    assert two.beat() == 25


def test_the_group_log_records_a_group_whose_last_member_is_removed_as_empty() -> None:
    world = World()
    one = Consumer(world)
    stable(world, one)
    world.pass_ms(10_000)
    group = world.image.groups[GROUP]
    assert (group.generation_id, group.member_ids) == (one.generation + 1, frozenset())
    assert world.state() == "Empty"


# --- LeaveGroup -----------------------------------------------------------------------------------


def test_a_group_rebalance_does_not_wait_for_members_that_left() -> None:
    world = World()
    one, two = Consumer(world, "a"), Consumer(world, "b")
    stable(world, one, two)
    assert two.leave() == 0
    assert two.leave() == 25
    assert one.beat() == 27
    assert one.join() == 0


def test_a_leave_group_request_removes_one_member_and_from_version_3_on_several_members() -> None:
    world = World()
    one, two = Consumer(world, "a"), Consumer(world, "b", instance_id="i")
    stable(world, one, two)
    assert (
        world.ask(rpc.LeaveGroupRequest(group_id=GROUP, member_id="who"), version=2).error_code
        == 25
    )
    identity = rpc.LeaveGroupRequest.MemberIdentity
    answer = world.ask(
        rpc.LeaveGroupRequest(
            group_id=GROUP,
            members=(
                identity(member_id="", group_instance_id="i"),  # removed by an administrator
                identity(member_id="", group_instance_id="nobody"),
                identity(member_id=one.member_id),
                identity(member_id=one.member_id),
            ),
        )
    )
    assert [member.error_code for member in answer.members] == [0, 25, 0, 25]
    assert world.state() == "Empty"


def test_a_leave_group_request_can_remove_a_member_id_that_never_joined() -> None:
    world = World()
    stable(world, Consumer(world))
    given = world.ask(Consumer(world, "b").join_request()).member_id
    identity = rpc.LeaveGroupRequest.MemberIdentity
    request = rpc.LeaveGroupRequest(group_id=GROUP, members=(identity(member_id=given),))
    assert world.ask(request).members[0].error_code == 0
    assert world.ask(request).members[0].error_code == 25


def test_the_group_coordinator_answers_the_waiting_join_group_of_a_member_that_leaves() -> None:
    world = World()
    one, two = Consumer(world, "a"), Consumer(world, "b")
    stable(world, one)
    waiting = two.send_join()
    assert two.leave() == 0
    assert two.joins(waiting) == 25


# --- commits --------------------------------------------------------------------------------------


def test_a_group_with_members_refuses_offset_commits_of_clients_that_are_not_members() -> None:
    world = World()
    one = Consumer(world)
    stable(world, one)
    assert one.commit(5) == 0
    assert world.commit(None, 6) == 25, "the group has members"
    late = Consumer(world)
    late.member_id, late.generation = one.member_id, one.generation - 1
    assert late.commit(6) == 22
    late.member_id = "who"
    assert late.commit(6) == 25
    assert world.committed() == 5


def test_a_group_member_cannot_commit_offsets_between_its_join_and_its_assignment() -> None:
    world = World()
    one = Consumer(world)
    stable(world, one)
    one.metadata = b"new"
    assert one.join() == 0
    assert one.commit(5) == 27
    Consumer(world, "b").send_join()
    assert world.state() == "PreparingRebalance"
    assert one.commit(5) == 27, "its generation was never assigned"


def test_group_members_may_commit_offsets_while_a_rebalance_waits_for_joins() -> None:
    world = World()
    one, two = Consumer(world, "a"), Consumer(world, "b")
    stable(world, one)
    two.send_join()
    assert one.commit(5) == 0


def test_a_group_without_members_accepts_only_offset_commits_without_a_generation() -> None:
    world = World()
    assert world.commit(None, 5) == 0
    assert world.committed() == 5
    late = Consumer(world)
    late.member_id, late.generation = "m", 1
    assert late.commit(6) == 25
    assert world.committed() == 5


def test_an_offset_commit_with_a_generation_to_a_missing_group_gets_illegal_generation() -> None:
    world = World()
    late = Consumer(world)
    late.member_id, late.generation = "m", 1
    assert late.commit(6) == 22
    assert GROUP not in world.image.groups


COMMITS: list[tuple[str, dict[str, Any], int]] = [
    ("an unknown topic", {"topic": "nothing"}, 3),
    ("an unknown partition", {"partition": 4}, 3),
    ("a partition below 0", {"partition": -1}, 3),
    ("metadata of 4097 bytes", {"metadata": "é" * 2048 + "x"}, 12),
    ("metadata of 4096 bytes", {"metadata": "é" * 2048}, 0),
]


@pytest.mark.parametrize(("what", "fields", "code"), COMMITS, ids=[case[0] for case in COMMITS])
def test_the_group_coordinator_refuses_a_commit_with_an_unknown_partition_or_too_much_metadata(
    what: str, fields: dict[str, Any], code: int
) -> None:
    world = World()
    answer = world.ask(commit_request(None, 5, **fields), version=9)
    assert answer.topics[0].partitions[0].error_code == code, what


def test_the_group_coordinator_refuses_a_commit_with_more_offsets_than_fit_in_one_record() -> None:
    world = World()
    world.topics.known["t"] = (TOPICS["t"][0], 20_000)
    topics = rpc.OffsetCommitRequest.OffsetCommitRequestTopic
    partitions = tuple(
        topics.OffsetCommitRequestPartition(
            partition_index=index, committed_offset=1, committed_metadata=None
        )
        for index in range(10_001)
    )
    request = rpc.OffsetCommitRequest(
        group_id=GROUP, member_id="", topics=(topics(name="t", partitions=partitions),)
    )
    assert world.ask(request, version=9).topics[0].partitions[0].error_code == 28


@pytest.mark.parametrize("version", range(2, 11))
def test_every_offset_fetch_version_returns_offsets_committed_at_any_version(version: int) -> None:
    world = World()
    answer = world.ask(commit_request(None, 40 + version, metadata="note"), version=version)
    assert answer.topics[0].partitions[0].error_code == 0
    topic_id = TOPICS["t"][0]
    old = rpc.OffsetFetchRequest.OffsetFetchRequestTopic
    new = rpc.OffsetFetchRequest.OffsetFetchRequestGroup
    for fetch in range(1, 11):
        if fetch < 8:
            request = rpc.OffsetFetchRequest(
                group_id=GROUP, topics=(old(name="t", partition_indexes=(0, 1)),)
            )
            found = world.ask(request, version=fetch).topics
        else:
            entry_type = new.OffsetFetchRequestTopics
            topic = (
                entry_type(name="t", partition_indexes=(0, 1))
                if fetch < 10
                else entry_type(topic_id=topic_id, partition_indexes=(0, 1))
            )
            request = rpc.OffsetFetchRequest(groups=(new(group_id=GROUP, topics=(topic,)),))
            answered = world.ask(request, version=fetch).groups[0]
            assert answered.error_code == 0
            found = answered.topics
        offsets = [(p.committed_offset, p.metadata) for p in found[0].partitions]
        assert offsets == [(40 + version, "note"), (-1, "")], fetch


def test_an_offset_fetch_returns_all_offsets_of_several_groups() -> None:
    world = World()
    assert world.commit(None, 5) == 0
    group = rpc.OffsetFetchRequest.OffsetFetchRequestGroup
    request = rpc.OffsetFetchRequest(
        groups=(group(group_id=GROUP, topics=None), group(group_id="other", topics=None))
    )
    for version in (8, 9, 10):
        first, second = world.ask(request, version=version, broker=1).groups
        assert [topic.partitions[0].committed_offset for topic in first.topics] == [5]
        assert (second.error_code, second.topics) == (0, ())
    everything = rpc.OffsetFetchRequest(group_id=GROUP, topics=None)
    assert world.ask(everything, version=2).topics[0].name == "t"


def test_offset_fetch_returns_no_offset_of_a_deleted_topic_for_a_new_topic_of_the_same_name() -> (
    None
):
    world = World()
    assert world.commit(None, 5) == 0
    world.topics.known["t"] = (UUID(int=700), 4)
    assert world.committed() == -1


def test_offset_commit_and_offset_fetch_refuse_an_unknown_topic_id() -> None:
    world = World()
    answer = world.ask(commit_request(None, 5, topic="nothing"), version=10)
    assert answer.topics[0].partitions[0].error_code == 100
    group = rpc.OffsetFetchRequest.OffsetFetchRequestGroup
    topic = group.OffsetFetchRequestTopics(topic_id=UUID(int=99), partition_indexes=(0,))
    request = rpc.OffsetFetchRequest(groups=(group(group_id=GROUP, topics=(topic,)),))
    found = world.ask(request, version=10).groups[0].topics[0].partitions[0]
    assert (found.error_code, found.committed_offset) == (100, -1)


# --- looking --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
def test_describe_groups_returns_a_groups_state_and_members(version: int) -> None:
    world = World()
    one = Consumer(world, "a", instance_id="i")
    stable(world, one)
    request = rpc.DescribeGroupsRequest(groups=(GROUP, "none"))
    for _ in range(2):  # from memory, and then from the log
        first, second = world.ask(request, version=version, broker=1).groups
        assert (first.error_code, first.group_state, first.protocol_data) == (0, "Stable", "range")
        (member,) = first.members
        assert (member.client_id, member.client_host) == ("a", "/host")
        assert member.member_metadata == b"a/range"
        assert member.member_assignment == one.assignment
        assert second.error_code == (69 if version >= 6 else 0)
        assert second.group_state == "Dead"
        world.stop_broker(1)
        world.start_broker(1)


def test_list_groups_filters_loaded_and_unloaded_groups_by_state_and_type() -> None:
    world = World()
    stable(world, Consumer(world))
    other = commit_request(None, 5)
    world.ask(
        rpc.OffsetCommitRequest(group_id="simple", member_id="", topics=other.topics),
        version=9,
        broker=1,
    )

    def listed(**filters: Any) -> dict[str, str]:
        answer = world.ask(rpc.ListGroupsRequest(**filters), broker=1)
        return {group.group_id: group.group_state for group in answer.groups}

    for _ in range(2):
        assert listed() == {GROUP: "Stable", "simple": "Empty"}
        assert listed(states_filter=("stable",)) == {GROUP: "Stable"}
        assert listed(types_filter=("classic",)) == listed()
        assert listed(types_filter=("consumer",)) == {}
        world.stop_broker(1)
        world.start_broker(1)


@pytest.mark.parametrize("retention_ms", [0, 1, 2**63 - 1])
def test_the_group_coordinator_accepts_an_old_offset_commit_with_any_retention_time(
    retention_ms: int,
) -> None:
    world = World()
    topics = commit_request(None, 5).topics
    request = rpc.OffsetCommitRequest(
        group_id=GROUP, member_id="", retention_time_ms=retention_ms, topics=topics
    )
    assert world.ask(request, version=4).topics[0].partitions[0].error_code == 0
    stored = world.image.groups[GROUP].offsets["t", 0].expire_at_ms
    assert stored == min(world.wall_ms + retention_ms, 2**63 - 1)


def test_the_group_log_stores_a_committed_offset_outside_of_the_partitions_log_unchanged() -> None:
    world = World()
    for offset in (-1, -(2**63), 2**63 - 1):
        assert world.commit(None, offset) == 0
        assert world.committed() == offset
