"""Any request of a client or a peer is answered, and no invariant breaks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from coordinator.groups.machine import GroupMachine
from coordinator.groups.settings import GroupSettings
from records.rpc import group_log
from records.rpc import groups as rpc
from records.rpc.base import Request
from tests.coordinator.groups.world import GROUP, Consumer, World, load, records_of, stable
from tests.records.strategies import messages, versions_of

pytestmark = pytest.mark.slow

CLIENTS = (
    rpc.JoinGroupRequest,
    rpc.SyncGroupRequest,
    rpc.HeartbeatRequest,
    rpc.LeaveGroupRequest,
    rpc.OffsetCommitRequest,
    rpc.OffsetFetchRequest,
    rpc.DescribeGroupsRequest,
    rpc.ListGroupsRequest,
    rpc.DeleteGroupsRequest,
    rpc.OffsetDeleteRequest,
    rpc.TxnOffsetCommitRequest,
)
PEERS = (
    group_log.AcquireGroupOwnershipRequest,
    group_log.CommitGroupOffsetsRequest,
    group_log.CommitGroupGenerationRequest,
    group_log.RemoveGroupRequest,
    group_log.RemoveGroupOffsetsRequest,
    group_log.CommitTransactionalOffsetsRequest,
    group_log.WriteGroupMarkersRequest,
)


@st.composite
def requests(draw: st.DrawFn, classes: tuple[type[Request], ...]) -> tuple[Any, int, bool]:
    """Draw a request, its version, and whether to give it valid identifiers."""
    cls = draw(st.sampled_from(classes))
    version = draw(st.sampled_from(list(versions_of(cls))))
    return draw(messages(cls, version)), version, draw(st.booleans())


def made_sensible(request: Any, **sound: Any) -> Any:
    """Return the request with valid identifiers, so that it passes the first checks."""
    fields = {field.name for field in request.schema().fields}
    return structs.replace(request, **{k: v for k, v in sound.items() if k in fields})


@settings(max_examples=60, deadline=None, database=None)
@given(st.lists(requests(CLIENTS), max_size=12))
def test_a_group_coordinator_keeps_serving_after_any_sequence_of_client_requests(
    requested: list[tuple[Any, int, bool]],
) -> None:
    world = World(settings=GroupSettings(initial_rebalance_delay_ms=0, adopt_interval_ms=1 << 40))
    one, two = Consumer(world, "a"), Consumer(world, "b", instance_id="i")
    stable(world, one, two)
    tickets = []
    for index, (request, version, is_sensible) in enumerate(requested):
        if is_sensible:
            member = (one, two)[index % 2]
            request = made_sensible(
                request,
                group_id=GROUP,
                member_id=member.member_id,
                group_instance_id=member.instance_id if index % 3 else None,
                generation_id=one.generation,
                generation_id_or_member_epoch=one.generation,
                session_timeout_ms=10_000,
                protocol_type="consumer",
            )
        tickets.append(world.send(request, version=version, broker=1))
    world.pass_ms(1_000)
    for _ in range(3):
        if one.beat() == 27:
            one.send_join()
    world.pass_ms(2**31)  # the longest rebalance timeout there is
    assert all(ticket in world.answers for ticket in tickets)


@settings(max_examples=60, deadline=None, database=None)
@given(st.lists(requests(PEERS), max_size=12))
def test_the_group_log_keeps_serving_after_any_sequence_of_broker_requests(
    requested: list[tuple[Any, int, bool]],
) -> None:
    world = World(checks_brokers=False)
    stable(world, Consumer(world, "a"))
    answers: list[Any] = []
    for request, _, is_sensible in requested:
        group = world.image.groups.get(GROUP)
        if is_sensible and group is not None:
            request = made_sensible(
                request,
                group_id=GROUP,
                ownership_epoch=group.ownership_epoch,
                sequence=group.sequence + 1,
                create=True,
            )
        world.groups.ask(request, answers.append)
        world.run()
    assert len(answers) == len(requested)
    world.wall_ms += 1 << 40
    world.groups.expire_groups()
    world.run()
    assert world.machine.contradictions == world.machine.unknown_records == 0
    values = records_of(world.machine)
    assert len(values) == world.machine.total_records
    again = GroupMachine()
    load(again, world.machine.applied, values)
    assert records_of(again) == values
