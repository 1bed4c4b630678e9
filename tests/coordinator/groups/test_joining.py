"""Joining a group and completing a generation. KIP-62, KIP-134, KIP-345, KIP-394."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.groups.settings import GroupSettings
from tests.coordinator.groups.world import GROUP, Consumer, World, stable


def test_a_new_group_member_gets_its_member_id_in_a_first_join_group_response() -> None:
    world = World()
    one = Consumer(world)
    answer = world.ask(one.join_request(), version=4)
    assert (answer.error_code, answer.member_id) == (79, "c-u1")
    one.member_id = answer.member_id
    assert one.join() == 0
    assert (one.generation, one.leads) == (1, True)


def test_a_client_of_an_old_join_group_version_joins_without_a_member_id_handshake() -> None:
    world = World()
    answer = world.ask(Consumer(world).join_request(), version=3)
    assert (answer.error_code, answer.generation_id) == (0, 1)
    assert [member.metadata for member in answer.members] == [b"c/range"]


REFUSED: list[tuple[str, dict[str, Any], int]] = [
    ("a session too short", {"session_ms": 5_999}, 26),
    ("a session too long", {"session_ms": 1_800_001}, 26),
    ("no protocols", {"protocols": ()}, 23),
    ("no protocol type", {"protocol_type": ""}, 23),
    ("an instance id without end", {"instance_id": "i" * 250}, 42),
    ("too many protocols", {"protocols": tuple(f"p{i}" for i in range(101))}, 81),
]


@pytest.mark.parametrize(("what", "fields", "code"), REFUSED, ids=[case[0] for case in REFUSED])
def test_the_group_coordinator_refuses_an_invalid_join_group_request(
    what: str, fields: dict[str, Any], code: int
) -> None:
    world = World()
    before = world.log.end_offset
    assert Consumer(world, **fields).join() == code, what
    assert world.log.end_offset == before, "a refused request wrote a record"


@pytest.mark.parametrize("version", range(10))
def test_the_group_coordinator_refuses_a_join_group_with_an_empty_group_id(version: int) -> None:
    world = World()
    request = Consumer(world).join_request()
    bare = type(request)(
        group_id="",
        session_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=request.protocols,
    )
    assert world.ask(bare, version=version, broker=1).error_code == 24


def test_a_join_group_without_a_common_protocol_gets_inconsistent_group_protocol() -> None:
    world = World()
    stable(world, Consumer(world))
    assert Consumer(world, protocol_type="connect").join() == 23
    assert Consumer(world, protocols=("sticky",)).join() == 23


def test_a_join_group_with_a_member_id_that_was_never_assigned_gets_unknown_member_id() -> None:
    world = World()
    stranger = Consumer(world)
    stranger.member_id = "who"
    assert stranger.join() == 25
    assert GROUP not in world.image.groups, "a question makes no group"
    stable(world, Consumer(world))
    assert stranger.join() == 25


def test_a_group_at_its_maximum_size_refuses_joins_of_new_members() -> None:
    world = World(settings=GroupSettings(initial_rebalance_delay_ms=0, max_size=1))
    one = Consumer(world)
    stable(world, one)
    assert Consumer(world).join() == 81
    assert one.join() == 0


def test_member_ids_assigned_to_clients_that_have_not_joined_count_towards_the_group_size() -> None:
    world = World(settings=GroupSettings(initial_rebalance_delay_ms=0, max_size=2))
    request = Consumer(world).join_request()
    codes = [world.ask(request).error_code for _ in range(3)]
    assert codes == [79, 79, 81]


def test_a_group_uses_the_common_protocol_that_most_of_its_members_prefer() -> None:
    world = World()
    consumers = [
        Consumer(world, "a", protocols=("x", "y", "z")),
        Consumer(world, "b", protocols=("w", "y", "x")),
        Consumer(world, "c", protocols=("y", "x", "w")),
    ]
    stable(world, *consumers)
    assert consumers[0].joined is not None
    assert consumers[0].joined.protocol_name == "y"  # two votes; w and z are not everybody's


def test_only_the_group_leader_receives_the_member_list_in_join_group_responses() -> None:
    world = World()
    one, two = Consumer(world, "a"), Consumer(world, "b")
    stable(world, one, two)
    assert one.leads
    assert one.joined is not None
    assert two.joined is not None
    assert {member.metadata for member in one.joined.members} == {b"a/range", b"b/range"}
    assert two.joined.members == ()
    assert one.assignment == f"{one.generation}:{one.member_id}".encode()
    assert two.assignment == f"{two.generation}:{two.member_id}".encode()


def test_a_rebalance_waits_for_members_to_rejoin_at_most_for_the_rebalance_timeout() -> None:
    world = World()
    one, two = Consumer(world, "a", rebalance_ms=20_000, session_ms=30_000), Consumer(world, "b")
    stable(world, one)
    joining = two.send_join()
    assert one.beat() == 27
    world.pass_ms(19_999)
    assert joining not in world.answers
    world.pass_ms(40_001)  # the newcomer's own rebalance timeout counts too
    assert two.joins(joining) == 0
    assert two.leads
    assert one.beat() == 25


def test_the_first_rebalance_of_a_group_waits_for_the_initial_rebalance_delay() -> None:
    world = World(settings=GroupSettings(initial_rebalance_delay_ms=3_000))
    one, two = Consumer(world, "a"), Consumer(world, "b")
    first = one.send_join()
    world.pass_ms(2_999)
    second = two.send_join()
    world.pass_ms(1)
    assert first not in world.answers, "a member joined: it waits once more"
    world.pass_ms(3_000)
    assert (one.joins(first), two.joins(second)) == (0, 0)
    assert one.generation == two.generation == 1


def test_the_first_rebalance_of_a_group_waits_no_longer_than_the_rebalance_timeout() -> None:
    world = World(settings=GroupSettings(initial_rebalance_delay_ms=3_000))
    first = Consumer(world, "a", rebalance_ms=8_000).send_join()
    for name in range(4):
        Consumer(world, f"b{name}", rebalance_ms=8_000).send_join()
        world.pass_ms(2_000)
    assert first in world.answers


def test_a_member_that_repeats_join_group_before_sync_group_keeps_its_generation() -> None:
    world = World()
    one = Consumer(world)
    assert one.join() == 0
    generation = one.generation
    assert one.join() == 0  # while it is to assign
    assert one.generation == generation
    assert one.sync() == 0


def test_a_group_follower_that_rejoins_with_the_same_subscription_starts_no_rebalance() -> None:
    world = World()
    one, two = Consumer(world, "a"), Consumer(world, "b")
    stable(world, one, two)
    generation = two.generation
    assert two.join() == 0
    assert (two.generation, one.beat()) == (generation, 0)


@pytest.mark.parametrize("who", ["leader", "changed"])
def test_a_group_rebalances_if_its_leader_rejoins_or_a_member_changes_its_subscription(
    who: str,
) -> None:
    world = World()
    one, two = Consumer(world, "a"), Consumer(world, "b")
    stable(world, one, two)
    if who == "changed":
        two.metadata = b"other topics"
    again = (one if who == "leader" else two).send_join()
    assert again not in world.answers
    assert (two if who == "leader" else one).beat() == 27


def test_a_member_id_that_is_assigned_but_not_used_delays_a_rebalance_for_one_session() -> None:
    world = World()
    one = Consumer(world)
    stable(world, one)
    world.ask(Consumer(world, session_ms=6_000).join_request())
    two = Consumer(world, "b").send_join()
    again = one.send_join()
    assert again not in world.answers
    world.pass_ms(6_000)
    assert again in world.answers
    assert two in world.answers


# --- static members -----------------------------------------------------------------------------


def test_a_static_group_member_that_restarts_causes_no_rebalance() -> None:
    world = World()
    one, two = Consumer(world, "a"), Consumer(world, "b", instance_id="i")
    stable(world, one, two)
    generation, former = two.generation, two.member_id
    two.member_id = ""
    assert two.join() == 0
    assert (two.generation, one.beat()) == (generation, 0)
    assert two.member_id != former
    assert two.sync() == 0
    assert two.assignment.endswith(former.encode()), "what it had before"
    assert (two.beat(), two.commit(7)) == (0, 0)
    two.member_id = former
    assert (two.beat(), two.commit(8), two.sync()) == (82, 82, 82)
    assert two.join() == 82
    assert world.committed() == 7


@pytest.mark.parametrize(("version", "skips"), [(9, True), (8, False)])
def test_a_static_group_leader_that_restarts_keeps_the_groups_assignment(
    version: int, skips: bool
) -> None:
    world = World()
    one = Consumer(world, "a", instance_id="i", version=version)
    stable(world, one, Consumer(world, "b"))
    former, one.member_id = one.member_id, ""
    assert one.join() == 0
    assert one.joined is not None
    assert one.joined.skip_assignment is skips
    assert one.joined.leader == (one.member_id if skips else former)
    assert len(one.joined.members) == (2 if skips else 0)


def test_a_static_member_without_heartbeats_stays_in_its_group_until_its_session_expires() -> None:
    world = World()
    one = Consumer(world, "a", rebalance_ms=10_000)
    two = Consumer(world, "b", instance_id="i", session_ms=60_000, rebalance_ms=10_000)
    stable(world, one, two)
    again = one.send_join()
    world.pass_ms(10_000)
    assert one.joins(again) == 0
    assert one.joined is not None
    assert len(one.joined.members) == 2, "it keeps its place"
    assert one.sync() == 0
    for _ in range(11):
        world.pass_ms(5_000)
        assert one.beat() in (0, 27)


def test_the_newer_of_two_members_with_one_group_instance_id_fences_the_older_member() -> None:
    world = World()
    one = Consumer(world, "a", instance_id="i")
    joining = one.send_join()
    assert one.joins(joining) == 0
    other = Consumer(world, "b", instance_id="i")
    assert one.send_sync() in world.answers
    assert other.join() == 0
    assert one.beat() == 82


def test_a_static_member_replaced_during_its_join_is_fenced() -> None:
    world = World()
    one, two = Consumer(world, "a"), Consumer(world, "b", instance_id="i")
    stable(world, one)
    waiting = two.send_join()
    again = Consumer(world, "b2", instance_id="i")
    joining = again.send_join()
    assert world.answers[waiting].error_code == 82
    assert one.join() == 0
    assert again.joins(joining) == 0


def test_the_group_coordinator_limits_the_total_size_of_member_metadata_in_a_group() -> None:
    world = World(settings=GroupSettings(initial_rebalance_delay_ms=3_000))
    consumers = [Consumer(world, f"c{index}", version=3) for index in range(6)]
    tickets = []
    for consumer in consumers:
        consumer.metadata = b"x" * 900_000
        tickets.append(consumer.send_join())
    world.pass_ms(10_000)
    assert [consumer.joins(t) for consumer, t in zip(consumers, tickets, strict=True)] == [
        0
    ] * 4 + [81] * 2
    consumers[0].metadata = b"y" * 900_000
    assert consumers[0].send_join() not in world.answers, "its former words no longer count"


# --- cooperative rebalancing ----------------------------------------------------------------------


def test_a_cooperative_rebalance_takes_two_join_rounds_while_members_keep_committing() -> None:
    """KIP-429: partitions that move are revoked first, assigned later; the others stay in use."""
    world = World()
    one, two = Consumer(world, "a"), Consumer(world, "b")
    stable(world, one)
    assert one.sync() == 0
    joining = two.send_join()
    assert one.commit(5) == 0
    assert one.beat() == 27
    one.metadata = b"owns 0 1 2 3"
    assert one.join() == 0
    assert two.joins(joining) == 0
    assert one.joined is not None
    said = {member.member_id: member.metadata for member in one.joined.members}
    assert said[one.member_id] == b"owns 0 1 2 3"
    waiting = two.send_sync()
    assert one.sync({one.member_id: b"0 1", two.member_id: b""}) == 0
    assert (two.synced(waiting), two.assignment) == (0, b"")
    one.metadata = b"owns 0 1"
    again = one.send_join()
    assert two.beat() == 27
    assert two.commit(6) == 0
    assert two.join() == 0
    assert one.joins(again) == 0
    waiting = two.send_sync()
    assert one.sync({one.member_id: b"0 1", two.member_id: b"2 3"}) == 0
    assert (two.synced(waiting), two.assignment) == (0, b"2 3")
