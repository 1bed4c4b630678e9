"""A group over real sockets: members at a broker's loop, the group log behind a listener."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID, uuid4

import pytest

from coordinator.groups.client import GroupLogClient
from coordinator.groups.core import GroupBroker
from coordinator.groups.events import Tick
from coordinator.groups.leader import GroupLog
from coordinator.groups.machine import GroupMachine
from coordinator.groups.running import RunningGroups
from coordinator.groups.service import CALLS, group_log_handlers
from coordinator.groups.settings import GroupSettings, LogSettings
from raft.net import run as run_as_nodes_do
from raft.net.connection import ServerConnection
from raft.net.frames import Frame
from records.internal_topics import DISKLESS_METADATA
from records.rpc.base import Request
from records.rpc.groups import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from records.rpc.quorum import DescribeQuorumRequest, DescribeQuorumResponse
from tests.coordinator.batch.served import Node, never
from tests.coordinator.groups.world import GROUP, Applier, FewTopics, commit_request
from tests.diskless.virtual_time import run
from tests.doubles.memory_log import MemoryLog
from tests.waiting import DEADLINE_S


class LogNode(Node):
    """A node of the quorum with the group log."""

    def __init__(self) -> None:
        super().__init__(None)
        loop = asyncio.get_running_loop()
        self.log = MemoryLog("__consumer_offsets-0")
        self.machine = GroupMachine()
        self.groups = GroupLog(
            self.log, self.machine, LogSettings(), call_soon=loop.call_soon, wall_ms=lambda: 1
        )
        self.log.watch(Applier(self.log, self.machine))
        self.log.watch(self.groups)
        self.log.elect()
        self._handlers = group_log_handlers(lambda: self.groups)
        self._flexible |= dict.fromkeys(self._handlers, 0)

    def _describe(self, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
        (topic,) = request.topics
        assert topic.topic_name == "__consumer_offsets"
        known = type(topic)(topic_name=DISKLESS_METADATA, partitions=topic.partitions)
        answer = super()._describe(DescribeQuorumRequest(topics=(known,)))
        (said,) = answer.topics
        named = type(said)(topic_name=topic.topic_name, partitions=said.partitions)
        return DescribeQuorumResponse(topics=(named,), nodes=answer.nodes)


async def in_a_group(log: LogNode) -> tuple[RunningGroups, GroupLogClient]:
    """Start a broker that coordinates all groups."""
    client = GroupLogClient([log.address])
    core = GroupBroker(
        1, GroupSettings(initial_rebalance_delay_ms=0), FewTopics(), wall_ms=lambda: 1
    )
    groups = RunningGroups(core, client.call, new_id=uuid4)
    groups.brokers_changed({1}, 1)
    return groups, client


async def ask(groups: RunningGroups, request: Request, version: int | None = None) -> Any:
    """Send a request as one client."""
    last = request.schema().versions.last if version is None else version
    answer = groups.ask(request, last, client_id="app", client_host="/127.0.0.1")
    return await asyncio.wait_for(answer, DEADLINE_S)


async def joined(groups: RunningGroups) -> tuple[str, int]:
    """Join and sync a member; return its id and generation."""
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"s")
    fields: dict[str, Any] = {
        "group_id": GROUP,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "protocol_type": "consumer",
        "protocols": (protocol,),
    }
    given = await ask(groups, JoinGroupRequest(member_id="", **fields))
    assert given.error_code == 79
    assert UUID(given.member_id.removeprefix("app-"))
    answer = await ask(groups, JoinGroupRequest(member_id=given.member_id, **fields))
    assert answer.error_code == 0
    assignment = SyncGroupRequest.SyncGroupRequestAssignment
    synced = await ask(
        groups,
        SyncGroupRequest(
            group_id=GROUP,
            generation_id=answer.generation_id,
            member_id=answer.member_id,
            assignments=(assignment(member_id=answer.member_id, assignment=b"mine"),),
        ),
    )
    assert (synced.error_code, synced.assignment) == (0, b"mine")
    return answer.member_id, answer.generation_id


def test_a_group_member_that_changes_brokers_over_real_sockets_keeps_its_generation() -> None:
    async def story() -> None:
        log = LogNode()
        await log.start()
        first, first_client = await in_a_group(log)
        member_id, generation = await joined(first)
        parked = first.ask(
            JoinGroupRequest(
                group_id=GROUP,
                session_timeout_ms=10_000,
                member_id="",
                protocol_type="consumer",
                protocols=(JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b""),),
            ),
            3,
            client_id="late",
            client_host="/127.0.0.1",
        )
        await first.close()
        first_client.close()
        answer: Any = await parked
        assert answer.error_code == 16, "a waiting request is answered"
        second, second_client = await in_a_group(log)
        beat = HeartbeatRequest(group_id=GROUP, generation_id=generation, member_id=member_id)
        assert (await ask(second, beat)).error_code == 0
        sound = commit_request()
        commit = type(sound)(
            group_id=GROUP,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            topics=sound.topics,
        )
        answer = await ask(second, commit, 9)
        assert answer.topics[0].partitions[0].error_code == 0
        assert log.machine.image.groups[GROUP].offsets["t", 0].offset == 1
        await second.close()
        second_client.close()
        await log.stop()

    asyncio.run(story())


def test_group_requests_succeed_late_if_the_group_log_is_unavailable_for_a_short_time() -> None:
    async def story() -> None:
        log = LogNode()
        await log.start()
        groups, client = await in_a_group(log)
        failures = 2

        def before(_node: Node, connection: ServerConnection, _key: int, _body: Frame) -> Any:
            nonlocal failures
            failures -= 1
            if failures < 0:
                return None
            asyncio.get_running_loop().call_soon(connection.close)
            return never()

        log.before = before
        member_id, generation = await joined(groups)
        assert failures < 0
        beat = HeartbeatRequest(group_id=GROUP, generation_id=generation, member_id=member_id)
        assert (await ask(groups, beat)).error_code == 0
        await groups.close()
        client.close()
        await log.stop()

    asyncio.run(story())


def test_an_exception_in_a_group_log_call_does_not_stop_the_broker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        calls = 0

        async def broken(request: Request) -> None:  # noqa: ARG001
            nonlocal calls
            calls += 1
            raise RuntimeError("of whatever kind")

        core = GroupBroker(1, GroupSettings(answer_timeout_ms=300), FewTopics(), wall_ms=lambda: 1)
        groups = RunningGroups(core, broken, new_id=uuid4)
        groups.brokers_changed({1}, 1)
        answer = await ask(groups, commit_request(), 9)
        assert answer.topics[0].partitions[0].error_code == 14
        assert calls > 1
        await groups.close()

    asyncio.run(story())
    assert "of whatever kind" in caplog.text


def test_group_members_sessions_do_not_expire_while_their_broker_is_paused() -> None:
    async def story() -> None:
        async def answer(request: Any) -> Any:
            response: dict[str, Any] = {}
            if "Acquire" in type(request).__name__:
                response["ownership_epoch"] = 1
            return CALLS[type(request)](**response)

        core = GroupBroker(
            1, GroupSettings(initial_rebalance_delay_ms=0), FewTopics(), wall_ms=lambda: 1
        )
        groups = RunningGroups(core, answer, new_id=uuid4)
        groups.brokers_changed({1}, 1)
        member_id, generation = await joined(groups)
        beat = HeartbeatRequest(group_id=GROUP, generation_id=generation, member_id=member_id)
        loop: Any = asyncio.get_running_loop()
        for _ in range(3):
            await asyncio.sleep(6)
            loop._pass(60)  # SIGSTOP: nothing runs, and then everything is due
            await asyncio.sleep(0.01)
            assert (await ask(groups, beat)).error_code == 0
        await asyncio.sleep(11)
        assert (await ask(groups, beat)).error_code == 25, "awake, it counts as before"
        await groups.close()

    run(story)


def test_the_group_coordinator_can_set_an_overdue_timer_twice_on_uvloop() -> None:
    """uvloop's timer handle for an overdue deadline has no time."""

    class Overdue:
        deadline_ms = 1
        ticks = 0

        def step(self, event: Any, now_ms: int) -> list[Any]:  # noqa: ARG002
            self.ticks += isinstance(event, Tick)
            return []

    async def story() -> None:
        core: Any = Overdue()
        unused: Any = None
        groups = RunningGroups(core, unused, new_id=uuid4)
        for _ in range(3):
            groups.brokers_changed({1}, 1)
        while core.ticks < 3:
            await asyncio.sleep(0)
        await groups.close()

    run_as_nodes_do(story())
