"""The log of groups on three real nodes, and two brokers that a script plays: whoever dies, members
keep their generation and find their offsets.

Source: docs/design/groups.md.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import uuid4

import pytest

from coordinator.controller.client import ControllerClient
from coordinator.controller.registration import BrokerListener, BrokerMembership, Registration
from coordinator.groups.client import GroupLogClient
from coordinator.groups.core import GroupBroker
from coordinator.groups.running import RunningGroups
from coordinator.groups.settings import GroupSettings
from coordinator.rendezvous import group_broker
from esker.client.quorum_admin import AdminError, QuorumDescription, describe_quorum
from esker.settings.values import Endpoint
from raft.net import run
from raft.net.errors import NetError
from raft.net.rpc import open_rpc
from raft.segments.files import RealFileSystem
from records.features import SUPPORTED
from records.frame import encode_record
from records.internal_topics import CONSUMER_OFFSETS
from records.rpc.base import Request, Response
from records.rpc.group_log import FetchGroupStateRequest, FetchGroupStateResponse
from records.rpc.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    OffsetCommitRequest,
    SyncGroupRequest,
)
from records.rpc.snapshots import (
    DescribeSnapshotsRequest,
    DescribeSnapshotsResponse,
    TakeSnapshotRequest,
    TakeSnapshotResponse,
)
from records.rpc.topics import CreateTopicsResponse, DeleteTopicsResponse
from snapshot.reader import CheckpointReader
from tests.coordinator.controller.test_refusals import delete
from tests.coordinator.controller.world import creation
from tests.coordinator.groups.world import FewTopics
from tests.quorum_processes import NODES, Quorum
from tests.waiting import DEADLINE_S, Deadline, wait_until_async

R = TypeVar("R", bound=Response)

GROUP: Final = "readers"
BROKERS: Final = (1001, 1002)
MAY_PASS: Final = {14, 15, 16}  # the group is being taken, the log has no leader, ask elsewhere


@pytest.fixture
def quorum(tmp_path: Path) -> Iterator[Quorum]:
    with Quorum(tmp_path) as three:
        for node in NODES:
            with three.properties(node).open("a") as file:
                file.write("metadata.max.retention.bytes=1\n")  # a log begins at its checkpoint
                file.write("esker.archive.max.lag.bytes=0\n")  # and at once: for no archive
                file.write("broker.session.timeout.ms=3000\n")
                file.write("offsets.retention.check.interval.ms=100\n")
        three.start(*NODES)
        three.ready()
        yield three


def addresses(quorum: Quorum) -> list[tuple[str, int]]:
    return [("127.0.0.1", port) for port in quorum.ports.values()]


class Broker:
    """A member of the cluster that serves groups, and nothing else."""

    def __init__(self, quorum: Quorum, broker_id: int, topics: FewTopics) -> None:
        self.broker_id = broker_id
        self.controller = ControllerClient(addresses(quorum), timeout_ms=int(DEADLINE_S * 1_000))
        self.log = GroupLogClient(addresses(quorum))
        self.registration = Registration(
            self.controller,
            BrokerMembership(
                cluster_id=cluster_id(quorum),
                broker_id=broker_id,
                incarnation_id=uuid4(),
                directory_id=uuid4(),
                listeners=(BrokerListener(name="PLAIN", host="127.0.0.1", port=9),),
                features=tuple((name, *levels) for name, levels in SUPPORTED.items()),
                heartbeat_interval_ms=200,
            ),
            metadata_offset=lambda: 2**40,
            on_change=lambda: None,
            on_lost=print,
        )
        core = GroupBroker(
            broker_id,
            GroupSettings(initial_rebalance_delay_ms=500),
            topics,
            wall_ms=lambda: time.time_ns() // 1_000_000,
        )
        self.groups = RunningGroups(core, self.log.call, new_id=uuid4)

    async def start(self) -> None:
        epoch = await self.registration.start()
        self.groups.brokers_changed(BROKERS, epoch)

    async def die(self) -> None:
        """No more heartbeats, and no farewell; what it believes about groups stays as it is."""
        task = self.registration._task
        assert task is not None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def close(self) -> None:
        await self.die()
        await self.groups.close()
        self.log.close()
        await self.controller.close()

    async def ask(self, request: Request) -> Any:
        version = request.schema().versions.last
        answer = self.groups.ask(request, version, client_id="app", client_host="/127.0.0.1")
        return await asyncio.wait_for(answer, DEADLINE_S)


class Member:
    """A consumer that asks again, elsewhere, what may be asked again."""

    def __init__(self, brokers: list[Broker], topics: FewTopics, partition: int) -> None:
        self.brokers = brokers  # that it can reach; the first is asked first
        self.topics = topics
        self.partition = partition
        self.member_id = ""
        self.generation = -1
        self.acknowledged = -1

    async def ask(self, request: Request, code: Callable[[Any], int]) -> Any:
        deadline = Deadline(f"an answer to {request}")
        while True:
            answer = await self.brokers[0].ask(request)
            if code(answer) not in MAY_PASS:
                return answer
            if code(answer) == 16:
                self.brokers.append(self.brokers.pop(0))
            await asyncio.sleep(deadline.pause_s(answer))

    async def join(self) -> None:
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"t")
        while self.generation < 0:
            request = JoinGroupRequest(
                group_id=GROUP, session_timeout_ms=45_000, rebalance_timeout_ms=45_000,
                member_id=self.member_id, protocol_type="consumer", protocols=(protocol,),
            )  # fmt: skip
            joined = await self.ask(request, lambda answer: int(answer.error_code))
            assert joined.error_code in (0, 79), joined
            self.member_id, self.generation = joined.member_id, joined.generation_id
        assignment = SyncGroupRequest.SyncGroupRequestAssignment
        sync = SyncGroupRequest(
            group_id=GROUP, generation_id=self.generation, member_id=self.member_id,
            assignments=tuple(
                assignment(member_id=one.member_id, assignment=one.member_id.encode())
                for one in joined.members
            ),
        )  # fmt: skip
        synced = await self.ask(sync, lambda answer: int(answer.error_code))
        assert (synced.error_code, synced.assignment) == (0, self.member_id.encode())

    async def beat(self) -> int:
        request = HeartbeatRequest(
            group_id=GROUP, generation_id=self.generation, member_id=self.member_id
        )
        return int((await self.ask(request, lambda answer: int(answer.error_code))).error_code)

    def commit_request(self, name: str, offset: int) -> OffsetCommitRequest:
        topic = OffsetCommitRequest.OffsetCommitRequestTopic
        partition = topic.OffsetCommitRequestPartition(
            partition_index=self.partition, committed_offset=offset, committed_metadata=""
        )
        topic_id = self.topics.topic_id(name)
        assert topic_id is not None
        return OffsetCommitRequest(
            group_id=GROUP, generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            topics=(topic(name=name, topic_id=topic_id, partitions=(partition,)),),
        )  # fmt: skip

    async def commit(self, offset: int, name: str = "t") -> int:
        answer = await self.ask(self.commit_request(name, offset), commit_code)
        return commit_code(answer)

    async def work(self, stop: asyncio.Event) -> None:
        """Commit one offset after the other; nothing may be refused, and nobody rebalance."""
        while not stop.is_set():
            assert await self.commit(self.acknowledged + 1) == 0
            self.acknowledged += 1
            assert await self.beat() == 0
            await asyncio.sleep(0.005)


def commit_code(answer: Any) -> int:
    return int(answer.topics[0].partitions[0].error_code)


def cluster_id(quorum: Quorum) -> str:
    text = (quorum.home / "1" / "meta.properties").read_text()
    return next(line[11:].strip() for line in text.splitlines() if line.startswith("cluster.id="))


async def leader_of(quorum: Quorum) -> int:
    bootstrap = tuple(Endpoint(*address) for address in addresses(quorum))

    async def described() -> QuorumDescription:
        return await describe_quorum(bootstrap, CONSUMER_OFFSETS, 0, timeout_ms=20_000)

    found = await wait_until_async(described, "a node leads", retry_on=(AdminError,))
    return int(found.partition.leader_id)


async def kill_leader(quorum: Quorum) -> None:
    leader = await leader_of(quorum)
    await asyncio.to_thread(quorum.kill, leader)
    await leader_of(quorum)
    quorum.start(leader)


async def progress(members: list[Member], work: Sequence[asyncio.Future[None]]) -> None:
    """Wait until every member has committed some more."""
    before = [member.acknowledged for member in members]

    def all_progressed() -> bool:
        for ended in (one for one in work if one.done()):
            ended.result()
        return all(m.acknowledged >= count + 5 for m, count in zip(members, before, strict=True))

    await wait_until_async(all_progressed, "every member commits more")


async def stored(broker: Broker) -> FetchGroupStateResponse:
    """The group, behind the log's read barrier."""
    request = FetchGroupStateRequest(group_id=GROUP, topics=None, with_members=True)
    deadline = Deadline("the log of groups answers")
    while True:
        answer = await broker.log.call(request)
        if answer is not None and not answer.error_code:  # type: ignore[attr-defined]
            assert isinstance(answer, FetchGroupStateResponse)
            return answer
        await asyncio.sleep(deadline.pause_s(answer))


def test_group_members_keep_their_generation_after_the_log_leader_and_their_broker_are_killed(
    quorum: Quorum,
) -> None:
    async def story() -> None:
        topics = FewTopics()
        brokers = [Broker(quorum, broker_id, topics) for broker_id in BROKERS]
        for broker in brokers:
            await broker.start()
        owner = next(b for b in brokers if b.broker_id == group_broker(GROUP, BROKERS))
        other = next(b for b in brokers if b is not owner)
        members = [Member(list(brokers), topics, partition) for partition in range(2)]
        await asyncio.gather(*(member.join() for member in members))
        assert [member.generation for member in members] == [1, 1]
        stop = asyncio.Event()
        work = [asyncio.ensure_future(member.work(stop)) for member in members]
        for _ in range(2):
            await progress(members, work)
            await kill_leader(quorum)
        await progress(members, work)

        # The other one believes it is dead, and is refused until the controller believes it, too.
        epoch = other.registration.epoch
        assert epoch is not None
        other.groups.brokers_changed((other.broker_id,), epoch)
        early = members[0].commit_request("t", 0)
        assert commit_code(await other.ask(early)) == 16
        for member in members:
            member.brokers = [other]
        await owner.die()
        await progress(members, work)
        stop.set()
        await asyncio.gather(*work)
        late = members[0].commit_request("t", 0)
        assert commit_code(await owner.ask(late)) == 16, "it still believes, and is refused"
        found = await stored(other)
        assert (found.generation, len(found.members)) == (1, 2), "nobody had to join again"
        assert [
            (p.partition_index, p.committed_offset) for t in found.topics for p in t.partitions
        ] == [(member.partition, member.acknowledged) for member in members]
        await the_offsets_of_a_deleted_topic_go(other, members[0], topics)
        for broker in brokers:
            await broker.close()

    run(story())


async def the_offsets_of_a_deleted_topic_go(
    broker: Broker, member: Member, topics: FewTopics
) -> None:
    """KIP-211; a group that works keeps the others."""
    created = await broker.controller.call(creation("doomed", 2), CreateTopicsResponse)
    assert created.topics[0].error_code == 0, created
    topics.known["doomed"] = (created.topics[0].topic_id, 2)
    assert await member.commit(5, "doomed") == 0
    assert {topic.topic_name for topic in (await stored(broker)).topics} == {"t", "doomed"}
    deleted = await broker.controller.call(delete("doomed"), DeleteTopicsResponse)
    assert deleted.responses[0].error_code == 0, deleted

    async def gone() -> bool:
        return {topic.topic_name for topic in (await stored(broker)).topics} == {"t"}

    await wait_until_async(gone, "the deleted topic's offsets are removed", retry_on=(NetError,))


async def ask_node(quorum: Quorum, node: int, request: Request, response: type[R]) -> R:
    async with await open_rpc("127.0.0.1", quorum.ports[node], timeout_ms=60_000) as rpc:
        return await rpc.call(request, response)


async def replica(quorum: Quorum, node: int) -> DescribeSnapshotsResponse.Group:
    topic = DescribeSnapshotsRequest.Topic(topic_name=CONSUMER_OFFSETS, partitions=(0,))
    asked = DescribeSnapshotsRequest(topics=(topic,))
    return (await ask_node(quorum, node, asked, DescribeSnapshotsResponse)).groups[0]


async def checkpoint(quorum: Quorum, node: int) -> tuple[int, list[bytes]]:
    """The end and the records of a checkpoint that a node takes now."""
    request = TakeSnapshotRequest(topic_name=CONSUMER_OFFSETS, partition_index=0)
    taken = await ask_node(quorum, node, request, TakeSnapshotResponse)
    assert taken.error_code == 0, taken
    name = f"{taken.end_offset:020d}-{taken.epoch:010d}.checkpoint"
    path = quorum.home / str(node) / f"{CONSUMER_OFFSETS}-0" / name
    with CheckpointReader(RealFileSystem(), path) as reader:
        return taken.end_offset, [encode_record(record) for _, record in reader.records()]


async def one_member_commits(quorum: Quorum) -> None:
    """A group with a generation, a member and one offset, and a broker that is gone."""
    topics = FewTopics()
    owner = group_broker(GROUP, BROKERS)
    assert owner is not None
    broker = Broker(quorum, owner, topics)
    await broker.start()
    member = Member([broker], topics, partition=0)
    await member.join()
    assert await member.commit(7) == 0
    await broker.close()


def test_replicas_of_the_groups_log_write_equal_checkpoints_even_after_a_lost_disk(
    quorum: Quorum,
) -> None:
    """Invariant 4, on what a member of a group has left."""

    async def story() -> None:
        await one_member_commits(quorum)
        leader = await leader_of(quorum)
        wiped = next(node for node in NODES if node != leader)
        for node in NODES:
            await checkpoint(quorum, node)

        async def begins_later() -> bool:
            return (await replica(quorum, leader)).log_start_offset > 0

        await wait_until_async(begins_later, "the log begins at a checkpoint", retry_on=(NetError,))
        await asyncio.to_thread(quorum.kill, wiped)
        known = cluster_id(quorum)
        shutil.rmtree(quorum.home / str(wiped))
        await asyncio.to_thread(
            quorum.run, "storage", "format", "--config", str(quorum.properties(wiped)),
            "--cluster-id", known, "--rejoin",
        )  # fmt: skip
        quorum.start(wiped)
        end_offset = (await replica(quorum, leader)).high_watermark

        async def has_all() -> bool:
            return (await replica(quorum, wiped)).applied_offset >= end_offset

        await wait_until_async(has_all, "the wiped node has all again", retry_on=(NetError,))
        assert (await replica(quorum, wiped)).log_start_offset > 0

        async def equal() -> bool:
            taken = [await checkpoint(quorum, node) for node in NODES]
            if len({end for end, _ in taken}) > 1:
                return False
            assert taken[0] == taken[1] == taken[2]
            return len(taken[0][1]) == 4  # the epochs, the group, its generation, an offset

        await wait_until_async(equal, "three checkpoints at one offset", retry_on=(NetError,))

    run(story())
