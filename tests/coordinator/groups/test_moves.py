"""A broker failure or a move costs no rebalance, and a lost answer no commit."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coordinator.errors import CoordinatorError
from coordinator.groups.events import LogResponse
from coordinator.groups.service import CALLS, ask
from coordinator.groups.settings import GroupSettings
from raft.interfaces import NotLeaderError
from records.rpc import group_log
from records.rpc import groups as rpc
from tests.coordinator.groups.world import GROUP, Consumer, World, commit_request, stable


def other(world: World) -> int:
    """Return a broker that does not coordinate the group."""
    return next(broker for broker in world.brokers if broker != world.owner())


def test_the_failure_of_a_groups_broker_causes_no_rebalance_of_the_group() -> None:
    world = World(brokers=(1, 2))
    one, two = Consumer(world, "a"), Consumer(world, "b", instance_id="i")
    stable(world, one, two)
    assert one.commit(5) == 0
    generation, assignment = one.generation, one.assignment
    world.stop_broker(world.owner())
    assert (one.beat(), two.beat()) == (0, 0)
    assert (one.commit(6), two.commit(7)) == (0, 0)
    assert (one.sync(), one.assignment, one.generation) == (0, assignment, generation)
    assert world.committed() == 7
    assert world.state() == "Stable"


def test_a_new_broker_takes_over_groups_without_a_rebalance() -> None:
    world = World(brokers=(1,))
    one = Consumer(world)
    stable(world, one)
    newcomer = next(b for b in range(2, 50) if _chosen(world, b))
    world.start_broker(newcomer)
    assert world.owner() == newcomer
    assert one.beat(broker=1) == 16
    assert one.commit(5, broker=1) == 16
    assert (one.beat(), one.commit(5), one.beat()) == (0, 0, 0)


def _chosen(world: World, broker: int) -> bool:
    world.unfenced.add(broker)
    chosen = world.owner()
    world.unfenced.discard(broker)
    return chosen == broker


def test_group_requests_that_wait_at_a_groups_former_broker_get_not_coordinator() -> None:
    world = World(brokers=(1,))
    one, two = Consumer(world, "a"), Consumer(world, "b")
    stable(world, one)
    joining = two.send_join()
    newcomer = next(b for b in range(2, 50) if _chosen(world, b))
    world.start_broker(newcomer)
    assert two.joins(joining) == 16
    assert two.join() == 25, "its id was known to the former broker only"


def test_a_stopping_broker_discards_the_uncommitted_generations_of_its_groups() -> None:
    world = World(brokers=(1, 2))
    one = Consumer(world)
    stable(world, one)
    generation = one.generation
    one.metadata = b"new"
    assert one.join() == 0
    world.stop_broker(world.owner())
    assert (one.sync(), one.beat(), one.commit(5)) == (27, 27, 27), "it is to join again"
    one.generation = generation
    assert (one.beat(), one.commit(5)) == (0, 0)


def test_a_group_rebalance_whose_broker_fails_starts_again_at_the_groups_next_broker() -> None:
    world = World(brokers=(1, 2))
    one, two = Consumer(world, "a"), Consumer(world, "b")
    stable(world, one, two)
    leads, follows = (one, two) if one.leads else (two, one)
    leads.metadata = b"new"
    joining = leads.send_join()
    assert follows.join() == 0
    assert leads.joins(joining) == 0
    world.stop_broker(world.owner())
    assert (leads.sync(), follows.sync()) == (27, 27)
    joining = leads.send_join()
    assert follows.join() == 0, "its member id is still known"
    assert leads.joins(joining) == 0
    assert (leads.sync(), follows.sync()) == (0, 0)


def test_a_groups_next_broker_removes_members_that_send_no_heartbeat_to_the_next_broker() -> None:
    world = World(brokers=(1, 2))
    one, two = Consumer(world, "a"), Consumer(world, "b")
    stable(world, one, two)
    world.stop_broker(world.owner())
    assert one.beat() == 0
    for _ in range(2):
        world.pass_ms(4_999)
        assert one.beat() == 0
    world.pass_ms(3)
    assert one.beat() == 27


def test_members_that_fail_together_with_their_broker_are_removed_by_the_next_broker() -> None:
    world = World(brokers=(1, 2))
    stable(world, Consumer(world, "a"), Consumer(world, "b", instance_id="i"))
    world.stop_broker(world.owner())
    assert len(world.image.groups[GROUP].member_ids) == 2
    world.pass_ms(2_000 + 10_000 + 60_000)
    assert not world.image.groups[GROUP].member_ids


def test_a_broker_takes_over_thousands_of_consumer_groups_in_slices() -> None:
    world = World()
    one = Consumer(world)
    stable(world, one)
    generation = world.image.groups[GROUP]
    many = {f"g{index}": generation for index in range(1_000)}
    world.brokers[1].catalog = lambda: many.items()
    world.holds = lambda _broker, _call: True
    world.tell_brokers()
    world.pass_ms(2_000)
    assert len(world.held) == 200
    world.pass_ms(100)
    assert len(world.held) == 1_000


def test_of_two_brokers_that_claim_a_group_only_the_later_owner_can_commit_offsets() -> None:
    world = World(brokers=(1, 2), checks_brokers=False)
    one = Consumer(world)
    stable(world, one)
    former, heir = world.owner(), other(world)
    assert one.commit(5) == 0
    world.unfenced.discard(former)
    world.tell_brokers(only=(heir,))  # the former owner does not know yet
    assert one.beat(broker=former) == 0
    assert one.commit(6, broker=heir) == 0
    assert one.commit(7, broker=former) == 16
    assert one.beat(broker=heir) == 0
    world.unfenced.add(former)
    assert world.committed(broker=heir) == 6


def test_a_sync_group_at_a_broker_that_lost_the_group_gets_not_coordinator() -> None:
    world = World(brokers=(1, 2), checks_brokers=False)
    one = Consumer(world)
    stable(world, one)
    former, heir = world.owner(), other(world)
    world.unfenced.discard(former)
    world.tell_brokers(only=(heir,))
    assert one.beat(broker=heir) == 0
    one.metadata = b"new"
    late = Consumer(world, "z")
    late.member_id, late.metadata = one.member_id, b"new"
    assert late.join(broker=former) == 0
    assert late.sync(broker=former) == 16
    assert (one.beat(broker=heir), one.commit(5, broker=heir)) == (0, 0)


# --- lost answers ---------------------------------------------------------------------------------


def hold(world: World, kind: type) -> None:
    """Hold back calls of this kind until the test delivers them."""
    world.holds = lambda _, call: isinstance(call.request, kind)


def test_the_group_log_applies_an_offset_commit_repeated_after_a_lost_response_once() -> None:
    world = World()
    assert world.commit(None, 1) == 0
    hold(world, group_log.CommitGroupOffsetsRequest)
    ticket = world.send(commit_request(None, 5), version=9)
    ((broker, call),) = world.held
    world.held.clear()
    world.deliver(broker, call)  # it arrives, its answer does not
    world.run()
    world.holds = lambda _broker, _call: False
    world.lose_answer(broker, call)
    end = world.log.end_offset
    world.pass_ms(1_000)
    assert world.answers[ticket].topics[0].partitions[0].error_code == 0
    assert (world.committed(), world.log.end_offset) == (5, end)


def test_the_group_log_ignores_a_copy_of_an_offset_commit_that_arrives_after_a_newer_commit() -> (
    None
):
    world = World()
    assert world.commit(None, 1) == 0
    hold(world, group_log.CommitGroupOffsetsRequest)
    world.send(commit_request(None, 5), version=9)
    ((broker, copy),) = world.held
    world.holds = lambda _broker, _call: False
    world.lose_answer(broker, copy)
    world.pass_ms(1_000)
    assert world.commit(None, 10) == 0
    world.deliver(broker, copy)
    world.run()
    assert world.committed() == 10


def test_a_broker_whose_commit_sequence_the_group_log_refuses_acquires_the_group_again() -> None:
    """Its sequence number was used, by a copy of it or before the log lost its leader."""
    world = World()
    assert world.commit(offset=5) == 0
    world.holds = lambda _broker, call: isinstance(
        call.request, group_log.CommitGroupOffsetsRequest
    )
    waiting = world.send(commit_request(None, 6))
    ((broker, call),) = world.held
    world.holds = lambda _broker, _call: False
    behind = group_log.CommitGroupOffsetsResponse(error_code=42, error_message="commit 2 after 9")
    world._answer(broker, world.brokers[broker], call.call_id, behind)
    world.run()
    assert world.answers[waiting].topics[0].partitions[0].error_code == 16
    assert world.commit(offset=7) == 0
    assert world.committed() == 7


def test_a_broker_sends_offset_commits_that_wait_for_the_group_log_in_one_request() -> None:
    world = World()
    assert world.commit(None, 1) == 0
    hold(world, group_log.CommitGroupOffsetsRequest)
    tickets = [world.send(commit_request(None, offset), version=9) for offset in range(2, 12)]
    assert len(world.held) == 1
    end = world.log.end_offset
    world.holds = lambda _broker, _call: False
    broker, call = world.held.pop()
    world.deliver(broker, call, world.brokers[broker])
    world.run()
    assert all(ticket in world.answers for ticket in tickets)
    assert (world.log.end_offset - end, world.committed()) == (2, 11)


def test_group_requests_time_out_while_the_group_log_has_no_leader() -> None:
    world = World()
    one = Consumer(world)
    stable(world, one)
    world.log.depose()
    world.run()
    ticket = world.send(commit_request(one, 5), version=9)
    loading = world.send(
        rpc.OffsetCommitRequest(group_id="new", member_id="", topics=commit_request().topics),
        version=9,
    )
    assert one.beat() == 0, "which the log is not needed for"
    world.pass_ms(5_000)
    assert world.answers[ticket].topics[0].partitions[0].error_code == 15
    assert world.answers[loading].topics[0].partitions[0].error_code == 14
    assert one.beat() == 0
    reading = world.send(rpc.OffsetFetchRequest(group_id=GROUP, topics=None), version=7)
    world.pass_ms(4_000)
    assert reading not in world.answers, "the log is queried again first"
    world.pass_ms(1_000)
    assert world.answers[reading].error_code == 14
    world.log.elect()
    world.run()
    world.pass_ms(2_000)
    assert one.beat() == 0
    assert one.commit(6) == 0


def test_a_consumer_groups_partition_assignment_survives_leader_changes_of_the_group_log() -> None:
    world = World()
    one = Consumer(world)
    assert one.join() == 0
    world.log.auto_commit = False
    syncing = one.send_sync()
    world.change_leader(lose=True)
    world.log.auto_commit = True
    world.pass_ms(1_000)
    assert one.synced(syncing) == 0
    assert one.commit(5) == 0


def test_a_group_rebalance_may_start_before_the_previous_generation_is_committed() -> None:
    world = World()
    one, two = Consumer(world, "a"), Consumer(world, "b")
    stable(world, one)
    hold(world, group_log.CommitGroupGenerationRequest)
    one.metadata = b"new"
    assert one.join() == 0
    syncing = one.send_sync()
    joining = two.send_join()
    assert one.synced(syncing) == 27
    again = one.send_join()
    assert (one.joins(again), two.joins(joining)) == (0, 0)
    assert one.commit(5) == 27
    tickets = [one.send_sync(), two.send_sync()]
    world.holds = lambda _broker, _call: False
    broker, call = world.held.pop()
    world.deliver(broker, call, world.brokers[broker])
    world.run()
    assert [one.synced(tickets[0]), two.synced(tickets[1])] == [0, 0]
    assert (one.commit(5), two.commit(6)) == (0, 0)
    assert world.image.groups[GROUP].generation_id == one.generation


def test_a_returning_static_member_keeps_its_generation_after_a_broker_failure() -> None:
    world = World(brokers=(1, 2))
    one, two = Consumer(world, "a"), Consumer(world, "b", instance_id="i")
    stable(world, one, two)
    two.member_id = ""
    assert two.join() == 0
    world.stop_broker(world.owner())
    assert (two.beat(), two.commit(5), one.beat()) == (0, 0, 0)


def test_a_broker_that_loses_a_group_answers_the_waiting_join_group_of_a_static_member() -> None:
    world = World(brokers=(1, 2), checks_brokers=False)
    two = Consumer(world, "b", instance_id="i")
    stable(world, two)
    hold(world, group_log.CommitGroupGenerationRequest)
    two.member_id = ""
    waiting = two.send_join()
    former = world.owner()
    world.unfenced.discard(former)
    world.tell_brokers()
    assert two.joins(waiting) == 16


# --- what a broker does not do --------------------------------------------------------------------

REQUESTS: list[Any] = [
    rpc.JoinGroupRequest(
        group_id=GROUP, session_timeout_ms=9_000, member_id="", protocol_type="x", protocols=()
    ),
    rpc.SyncGroupRequest(group_id=GROUP, generation_id=1, member_id="m", assignments=()),
    rpc.HeartbeatRequest(group_id=GROUP, generation_id=1, member_id="m"),
    rpc.LeaveGroupRequest(group_id=GROUP, member_id="m"),
    commit_request(),
    rpc.OffsetFetchRequest(group_id=GROUP, topics=()),
    rpc.DescribeGroupsRequest(groups=(GROUP,)),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
def test_a_broker_not_chosen_for_a_group_answers_not_coordinator_at_every_version(
    request_: Any,
) -> None:
    world = World(brokers=(1, 2))
    versions = request_.schema().versions
    for version in range(versions.first, versions.last + 1):
        if type(request_) is rpc.OffsetFetchRequest and version >= 8:
            group = rpc.OffsetFetchRequest.OffsetFetchRequestGroup
            request: Any = rpc.OffsetFetchRequest(groups=(group(group_id=GROUP),))
        else:
            request = request_
        answer = world.ask(request, version=version, broker=other(world))
        text = str(answer)
        assert "error_code=16" in text or not getattr(request, "topics", True), (version, text)


def test_a_broker_loads_a_group_that_it_unloaded_while_idle_at_the_next_request() -> None:
    world = World(settings=GroupSettings(initial_rebalance_delay_ms=0, idle_ms=60_000))
    assert world.commit(None, 5) == 0
    one = Consumer(world)
    stable(world, one)
    assert one.leave() == 0
    world.pass_ms(120_000)
    assert world.brokers[1].groups == {}
    assert world.committed() == 5
    generation = one.generation
    one.member_id = ""
    stable(world, one)
    assert one.generation == generation + 2


# --- the service ----------------------------------------------------------------------------------


def test_the_group_log_answers_reads_and_refusals_only_after_the_read_barrier() -> None:
    world = World()
    assert world.commit(None, 5) == 0
    barriers = 0

    async def barrier() -> int:
        nonlocal barriers
        barriers += 1
        return world.log.high_watermark or 0

    async def story() -> None:
        world.log.barrier = barrier  # type: ignore[method-assign,assignment]
        found = await ask(
            world.groups, group_log.FetchGroupStateRequest(group_id=GROUP, topics=None)
        )
        assert found.topics[0].partitions[0].committed_offset == 5
        assert barriers == 1
        loop = asyncio.get_running_loop()
        for create, code, passed in ((False, 69, 2), (True, 0, 2)):
            request = group_log.AcquireGroupOwnershipRequest(
                group_id="new", broker_id=1, broker_epoch=1, create=create
            )
            loop.call_soon(world.run)
            assert (await ask(world.groups, request)).error_code == code
            assert barriers == passed
        world.log.depose()
        with pytest.raises(CoordinatorError):
            await ask(world.groups, request)

    asyncio.run(story())


def test_a_group_log_replica_that_does_not_lead_refuses_reads() -> None:
    world = World()
    world.log.depose()
    with pytest.raises(NotLeaderError):
        asyncio.run(
            ask(world.groups, group_log.FetchGroupStateRequest(group_id=GROUP, topics=None))
        )


def test_an_unknown_error_code_from_the_group_log_does_not_stop_the_broker() -> None:
    for code in (-2, 3, 35, 999):
        world = World()
        assert world.commit(None, 1) == 0
        world.holds = lambda _broker, _call: True
        ticket = world.send(commit_request(None, 5), version=9)
        loading = world.send(
            rpc.OffsetCommitRequest(group_id="new", member_id="", topics=commit_request().topics),
            version=9,
        )
        reading = world.send(rpc.OffsetFetchRequest(group_id=GROUP, topics=None), version=7)
        world.holds = lambda _broker, _call: False
        for broker, call in world.held:
            answer = CALLS[type(call.request)](error_code=code)
            world.inform(broker, LogResponse(call.call_id, answer))
        world.pass_ms(1_000)
        for made in (ticket, loading):
            assert world.answers[made].topics[0].partitions[0].error_code == 0
        assert world.answers[reading].error_code == 0, "the query was repeated"


def test_a_broker_treats_an_incomplete_response_of_the_group_log_as_no_response() -> None:
    world = World()
    assert world.commit(None, 1) == 0
    world.holds = lambda _broker, _call: True
    ticket = world.send(commit_request(None, 5), version=9)
    ((broker, call),) = world.held
    world.holds = lambda _broker, _call: False
    world.inform(
        broker, LogResponse(call.call_id, group_log.CommitGroupOffsetsResponse(commit_errors=()))
    )
    world.pass_ms(1_000)
    assert world.answers[ticket].topics[0].partitions[0].error_code == 0
