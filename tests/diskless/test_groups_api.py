"""Consumer groups behind a broker's handlers, in bytes of every version.

Source: docs/design/groups.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from coordinator.groups.settings import GroupSettings
from coordinator.rendezvous import group_broker
from diskless.apis.groups import MAX_REQUEST_BYTES, REQUESTS, GroupApis
from raft.net.errors import BadHeaderError
from raft.net.header import RequestHeader
from records.rpc import groups as rpc
from tests.diskless.calling import Caller, call
from tests.diskless.cluster_world import ClusterWorld
from tests.diskless.virtual_time import run

GROUP = "g"


class Member:
    """A client of one group that uses one version, or the newest below it."""

    def __init__(self, apis: GroupApis, world: ClusterWorld, version: int = 99) -> None:
        self.apis = apis
        self.world = world
        self.version = version
        self.caller = Caller("10.0.0.7:4711")
        self.member_id = ""
        self.generation = -1

    async def ask(self, request: Any, response: Any, **more: Any) -> Any:
        served = self.apis.handlers[request.schema().key]
        version = max(served.lowest, min(self.version, served.highest))
        return await call(
            self.apis.handlers, request, response, version, caller=self.caller, **more
        )

    async def join(self) -> Any:
        """Join, with the handshake where the version has one."""
        protocol = rpc.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"topics")
        while True:
            request = rpc.JoinGroupRequest(
                group_id=GROUP,
                session_timeout_ms=10_000,
                rebalance_timeout_ms=10_000 if self.version else -1,
                member_id=self.member_id,
                protocol_type="consumer",
                protocols=(protocol,),
            )
            answer = await self.ask(request, rpc.JoinGroupResponse)
            self.member_id, self.generation = answer.member_id, answer.generation_id
            if answer.error_code != 79:
                return answer

    async def work(self) -> None:
        """Join as the only member and get an assignment."""
        joined = await self.join()
        assert joined.error_code == 0, joined
        assert [bytes(member.metadata) for member in joined.members] == [b"topics"]
        assignment = rpc.SyncGroupRequest.SyncGroupRequestAssignment
        synced = await self.ask(
            rpc.SyncGroupRequest(
                group_id=GROUP,
                generation_id=self.generation,
                member_id=self.member_id,
                assignments=(assignment(member_id=self.member_id, assignment=b"mine"),),
            ),
            rpc.SyncGroupResponse,
        )
        assert (synced.error_code, bytes(synced.assignment)) == (0, b"mine")

    async def beat(self) -> int:
        request = rpc.HeartbeatRequest(
            group_id=GROUP, generation_id=self.generation, member_id=self.member_id
        )
        return int((await self.ask(request, rpc.HeartbeatResponse)).error_code)

    async def commit(self, offset: int, partition: int = 0) -> int:
        topic = rpc.OffsetCommitRequest.OffsetCommitRequestTopic
        found = self.world.image.topic("t")
        assert found is not None
        request = rpc.OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            topics=(
                topic(
                    name="t",
                    topic_id=found.topic_id,
                    partitions=(
                        topic.OffsetCommitRequestPartition(
                            partition_index=partition,
                            committed_offset=offset,
                            committed_metadata="note",
                        ),
                    ),
                ),
            ),
        )
        answer = await self.ask(request, rpc.OffsetCommitResponse)
        return int(answer.topics[0].partitions[0].error_code)

    async def committed(self) -> Any:
        """Return OffsetFetch's partition, whatever the version's structure."""
        found = self.world.image.topic("t")
        assert found is not None
        old, group = rpc.OffsetFetchRequest.OffsetFetchRequestTopic, rpc.OffsetFetchRequest
        if self.version < 8:
            request = group(group_id=GROUP, topics=(old(name="t", partition_indexes=(0,)),))
            return (await self.ask(request, rpc.OffsetFetchResponse)).topics[0].partitions[0]
        one = group.OffsetFetchRequestGroup
        topic = one.OffsetFetchRequestTopics(
            name="t", topic_id=found.topic_id, partition_indexes=(0,)
        )
        request = group(groups=(one(group_id=GROUP, topics=(topic,)),))
        answer = (await self.ask(request, rpc.OffsetFetchResponse)).groups[0]
        assert answer.error_code == 0, answer
        return answer.topics[0].partitions[0]


def apis_of(world: ClusterWorld, broker_id: int = 1) -> GroupApis:
    return GroupApis(
        world.cluster(broker_id),
        GroupSettings(initial_rebalance_delay_ms=0),
        wall_ms=world.wall_ms,
        random=Random(broker_id),
    )


@asynccontextmanager
async def a_broker() -> AsyncIterator[tuple[ClusterWorld, GroupApis]]:
    async with ClusterWorld() as world:
        await world.create("t", partitions=2)
        apis = apis_of(world)
        yield world, apis
        await apis.close()


def test_a_broker_serves_every_group_api_at_each_of_its_versions() -> None:
    async def story() -> None:
        async with a_broker() as (_, apis):
            served = {key: one[:2] for key, one in apis.handlers.items()}
            assert served == {
                8: (2, 10), 9: (1, 10), 11: (0, 9), 12: (0, 4), 13: (0, 5), 14: (0, 5),
                15: (0, 6), 16: (0, 5), 42: (0, 2), 47: (0, 0),
            }  # fmt: skip
            assert len(REQUESTS) == len(served)

    run(story)


@pytest.mark.parametrize("version", range(11))
def test_a_group_member_joins_commits_and_leaves_at_every_version(version: int) -> None:
    async def story() -> None:
        async with a_broker() as (world, apis):
            member = Member(apis, world, version)
            await member.work()
            assert await member.beat() == 0
            assert await member.commit(7) == 0
            found = await member.committed()
            assert (found.committed_offset, found.metadata, found.error_code) == (7, "note", 0)
            answer = await member.ask(rpc.ListGroupsRequest(), rpc.ListGroupsResponse)
            assert [one.group_id for one in answer.groups] == [GROUP]
            answer = await member.ask(
                rpc.DescribeGroupsRequest(groups=(GROUP,)), rpc.DescribeGroupsResponse
            )
            (group,) = answer.groups
            assert (group.error_code, group.group_state) == (0, "Stable")
            (one,) = group.members
            assert (one.client_id, one.client_host) == ("test", "/10.0.0.7")
            identity = rpc.LeaveGroupRequest.MemberIdentity(member_id=member.member_id)
            leaves = rpc.LeaveGroupRequest(
                group_id=GROUP,
                **({"members": (identity,)} if version >= 3 else {"member_id": member.member_id}),
            )
            answer = await member.ask(leaves, rpc.LeaveGroupResponse)
            assert answer.error_code == 0
            assert await member.beat() == 25

    run(story)


def test_pipelined_requests_of_one_connection_reach_the_group_in_their_order() -> None:
    async def story() -> None:
        async with a_broker() as (world, apis):
            member = Member(apis, world)
            await member.work()
            commits = [asyncio.ensure_future(member.commit(offset)) for offset in range(20)]
            assert [await one for one in commits] == [0] * 20
            assert (await member.committed()).committed_offset == 19

    run(story)


def two_brokers_and_an_owner(world: ClusterWorld) -> tuple[GroupApis, GroupApis, int]:
    """Return the coordinator's handlers, those of another broker, and the coordinator's id."""
    owner = group_broker(GROUP, (1, 2))
    assert owner is not None
    return apis_of(world, owner), apis_of(world, 3 - owner), owner


def test_a_fenced_broker_redirects_group_members_to_another_broker_without_a_rebalance() -> None:
    async def story() -> None:
        async with ClusterWorld(brokers=(1, 2)) as world:
            await world.create("t")
            first, second, owner = two_brokers_and_an_owner(world)
            member = Member(first, world)
            await member.work()
            elsewhere = Member(second, world)
            elsewhere.member_id, elsewhere.generation = member.member_id, member.generation
            assert await elsewhere.beat() == 16, "another broker acts for the group"
            await world.fence(owner)
            assert await member.beat() == 16
            assert await elsewhere.beat() == 0, "the generation goes on"
            assert await elsewhere.commit(3) == 0
            await world.unfence(owner)
            assert await elsewhere.beat() == 16
            assert await member.beat() == 0
            assert await member.commit(4) == 0
            assert (await member.committed()).committed_offset == 4
            assert member.generation == world.group_machine.image.groups[GROUP].generation_id
            await first.close()
            await second.close()

    run(story)


def test_a_fenced_broker_redirects_group_members_before_its_metadata_shows_the_fencing() -> None:
    async def story() -> None:
        async with a_broker() as (world, apis):
            member = Member(apis, world)
            await member.work()
            apis.set_fenced(True)
            assert await member.beat() == 16
            apis.set_fenced(False)
            assert await member.beat() == 0

    run(story)


def test_a_broker_that_no_longer_owns_a_group_cannot_commit_offsets_for_the_group() -> None:
    async def story() -> None:
        async with ClusterWorld(brokers=(1, 2)) as world:
            await world.create("t")
            first, second, owner = two_brokers_and_an_owner(world)
            member = Member(first, world)
            await member.work()
            world.cluster(owner).pause()  # it does not hear that it was fenced
            await world.fence(owner)
            moved = Member(second, world)
            moved.member_id, moved.generation = member.member_id, member.generation
            assert await moved.commit(5) == 0
            assert await member.commit(4) == 16
            assert (await moved.committed()).committed_offset == 5
            await first.close()
            await second.close()

    run(story)


def test_a_closing_broker_redirects_waiting_and_later_group_requests() -> None:
    async def story() -> None:
        async with a_broker() as (world, apis):
            member, second = Member(apis, world), Member(apis, world, version=3)
            await member.work()
            waits = asyncio.ensure_future(second.join())
            await asyncio.sleep(0.1)
            assert not waits.done(), "the first member has not joined again yet"
            await apis.close()
            assert (await waits).error_code == 16
            assert await member.beat() == 16
            assert await member.commit(1) == 16
            assert (await member.join()).error_code == 16

    run(story)


def test_an_offset_commit_times_out_without_a_rebalance_if_the_groups_log_is_unavailable() -> None:
    async def story() -> None:
        async with a_broker() as (world, apis):
            member = Member(apis, world)
            await member.work()
            world.groups_away = True
            loop = asyncio.get_running_loop()
            before = loop.time()
            assert await member.commit(1) == 15
            assert loop.time() - before == pytest.approx(5, abs=0.1)
            assert await member.beat() == 0
            world.groups_away = False
            assert await member.commit(2) == 0
            assert await member.beat() == 0

    run(story)


def test_a_broker_refuses_a_group_request_above_the_size_limit_before_decoding() -> None:
    async def story() -> None:
        async with a_broker() as (_, apis):
            caller: Any = Caller()
            for key, served in apis.handlers.items():
                header = RequestHeader(key, served.highest, 1, None, True, 0)
                with pytest.raises(BadHeaderError, match="at most"):
                    served.serve(caller, header, bytes(MAX_REQUEST_BYTES + 1))

    run(story)
