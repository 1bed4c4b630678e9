"""Batch coordinators on three real nodes: their leaders killed at work, then asked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import sqlite3
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import msgpack
import pytest
from typer.testing import CliRunner

from coordinator.batch.client import ClientSettings, CoordinatorClient
from coordinator.batch.cluster_view import StaticView
from coordinator.batch.settings import CoordinatorSettings
from esker.cli import app
from esker.client.quorum_admin import AdminError, QuorumDescription, describe_quorum
from esker.server.coordinators import CoordinatorNodeService
from esker.settings.config import ConfigError, parse_config
from esker.settings.coordinator_options import (
    EMBEDDED,
    FORMER_NAMES,
    IN_MEMORY,
    CoordinatorOptions,
)
from esker.settings.values import Endpoint
from raft.net import run
from raft.net.errors import NetError
from raft.net.rpc import open_rpc
from raft.segments.files import RealFileSystem
from records.frame import encode_record
from records.kafka_errors import ErrorCode
from records.object_keys import Ancestors, ObjectKeys
from records.rpc.base import Request, Response
from records.rpc.batch_coordinator import (
    CommitBatch,
    CommitBatchesRequest,
    CommitBatchesResponse,
    FindBatchesRequest,
    FindBatchesResponse,
)
from records.rpc.objects import AcquireObjectLeaseRequest
from records.rpc.snapshots import (
    DescribeSnapshotsRequest,
    DescribeSnapshotsResponse,
    TakeSnapshotRequest,
    TakeSnapshotResponse,
)
from snapshot.reader import CheckpointReader
from tests.coordinator.scripted_brokers import create_topic, register
from tests.quorum_processes import NODES, Quorum
from tests.waiting import DEADLINE_S, wait_until, wait_until_async

R = TypeVar("R", bound=Response)

PATIENT = ClientSettings(timeout_ms=int(DEADLINE_S * 1_000), retry_ms=5, retry_max_ms=50)
RECORDS = 10
IN_FLIGHT = 8
NOW_MS = time.time_ns() // 1_000_000  # retention looks at it
RUNNER = CliRunner()


def commit(
    topic_id: UUID, broker: tuple[int, int], lease_id: int, object_id: int, sequence: int
) -> CommitBatchesRequest:
    """An object of a broker (id, epoch), with a batch whose producer id is the broker's."""
    producer, broker_epoch = broker
    topic = CommitBatchesRequest.Topic
    batch = CommitBatch(
        0, 100, 0, RECORDS - 1, NOW_MS, 0, producer, 0, sequence, sequence + RECORDS - 1
    )
    return CommitBatchesRequest(
        broker_id=producer, broker_epoch=broker_epoch, lease_id=lease_id, object_id=object_id,
        object_format=1, object_size=150,
        topics=(
            topic(
                topic_id=topic_id,
                partitions=(topic.Partition(partition_index=0, batches=(batch,)),),
            ),
        ),
    )  # fmt: skip


async def upload(
    client: CoordinatorClient,
    topic_id: UUID,
    broker: tuple[int, int],
    stop: asyncio.Event,
    told: list[int],
) -> None:
    """An uploader with several commits in flight; `told` gets base offsets, in order."""
    lease = await client.call(
        AcquireObjectLeaseRequest(
            coordinator_partition=0, broker_id=broker[0], broker_epoch=broker[1],
            object_count=10_000,
        )
    )  # fmt: skip
    waiting: deque[asyncio.Future[CommitBatchesResponse]] = deque()
    for count in range(10_000):
        if not stop.is_set():
            object_id = lease.first_object_id + count
            request = commit(topic_id, broker, lease.lease_id, object_id, count * RECORDS)
            waiting.append(client.submit(request))
        if len(waiting) > IN_FLIGHT or stop.is_set():
            if not waiting:
                return
            answer = await waiting.popleft()
            assert not answer.error_code, answer
            result = answer.topics[0].partitions[0].results[0]
            assert not result.error_code, result
            told.append(result.assigned_base_offset)
            await asyncio.sleep(0.005)
    raise AssertionError("the lease is used up")


async def progress(told: list[list[int]], uploads: list[asyncio.Future[None]]) -> None:
    """Wait until every uploader has been told of some more commits."""
    before = [len(one) for one in told]

    def all_progressed() -> bool:
        for ended in (one for one in uploads if one.done()):
            ended.result()
        return all(len(one) >= count + 10 for one, count in zip(told, before, strict=True))

    await wait_until_async(all_progressed, "every uploader is told of more commits")


async def runs_of(client: CoordinatorClient, topic_id: UUID) -> list[tuple[int, int, str]]:
    """All runs of the partition, asked for a piece at a time."""
    topic = FindBatchesRequest.Topic
    runs: list[tuple[int, int, str]] = []
    while True:
        offset = runs[-1][1] + 1 if runs else 0
        partition = topic.Partition(partition_index=0, offset=offset, max_bytes=10_000)
        answer = await client.call(
            FindBatchesRequest(
                topics=(topic(topic_id=topic_id, partitions=(partition,)),), max_bytes=2**30
            )
        )
        found = answer.responses[0].partitions[0]
        assert not found.error_code
        runs += [(run.base_offset, run.last_offset, run.object_key) for run in found.batches]
        if offset == found.high_watermark:
            return runs


@pytest.fixture(scope="module")
def quorum(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Quorum(tmp_path_factory.mktemp("quorum")) as three:
        for node in NODES:
            with three.properties(node).open("a") as file:
                file.write("metadata.max.retention.bytes=1\n")  # a log begins at its checkpoint
                file.write("esker.archive.max.lag.bytes=0\n")  # and at once: for no archive
        three.start(*NODES)
        yield three


def addresses(quorum: Quorum) -> list[tuple[str, int]]:
    return [("127.0.0.1", port) for port in quorum.ports.values()]


@pytest.fixture(scope="module")
def epochs(quorum: Quorum) -> dict[int, int]:
    """Two registered brokers."""
    registered: dict[int, int] = run(register(addresses(quorum), 1, 2))
    return registered


@pytest.fixture(scope="module")
def topic_id(quorum: Quorum, epochs: dict[int, int]) -> UUID:  # noqa: ARG001 (its replicas)
    created: UUID = run(create_topic(addresses(quorum), "orders", partitions=2))
    return created


@pytest.fixture(scope="module")
def runs(quorum: Quorum, epochs: dict[int, int], topic_id: UUID) -> list[tuple[int, int, str]]:
    """Two uploaders at work while the coordinator's leader is killed, twice."""

    async def story() -> list[tuple[int, int, str]]:
        clients = [CoordinatorClient(addresses(quorum), settings=PATIENT) for _ in range(2)]
        stop = asyncio.Event()
        told: list[list[int]] = [[], []]
        uploads = [
            asyncio.ensure_future(upload(client, topic_id, broker, stop, answered))
            for client, broker, answered in zip(clients, epochs.items(), told, strict=True)
        ]
        for _ in range(2):
            await progress(told, uploads)
            await asyncio.to_thread(kill_leader, quorum)
        await progress(told, uploads)
        stop.set()
        await asyncio.gather(*uploads)
        found = await runs_of(clients[0], topic_id)
        bases = [base for base, _, _ in found]
        assert bases == list(range(0, len(found) * RECORDS, RECORDS)), "gaps"
        assert sorted(told[0] + told[1]) == bases, "lost, or committed twice"
        assert all(one == sorted(one) for one in told), "an uploader's own order"
        for client in clients:
            await client.close()
        return found

    return run(story())


def described(quorum: Quorum) -> QuorumDescription:
    """The coordinator's group, as its leader sees it."""
    bootstrap = tuple(Endpoint(*address) for address in addresses(quorum))

    def described() -> QuorumDescription:
        return run(describe_quorum(bootstrap, "__diskless-metadata", 0, timeout_ms=5_000))

    found: QuorumDescription = wait_until(described, "a node leads", retry_on=(AdminError,))
    return found


def leader_of(quorum: Quorum) -> int:
    return described(quorum).partition.leader_id


def ask_node(quorum: Quorum, node: int, request: Request, response: type[R]) -> R:
    async def ask() -> R:
        async with await open_rpc("127.0.0.1", quorum.ports[node], timeout_ms=60_000) as rpc:
            return await rpc.call(request, response)

    return run(ask())


def replica(quorum: Quorum, node: int) -> DescribeSnapshotsResponse.Group:
    topic = DescribeSnapshotsRequest.Topic(topic_name="__diskless-metadata", partitions=(0,))
    asked = DescribeSnapshotsRequest(topics=(topic,))
    return ask_node(quorum, node, asked, DescribeSnapshotsResponse).groups[0]


def checkpoint(quorum: Quorum, node: int) -> tuple[int, list[bytes]]:
    """The end and the records of a checkpoint that a node takes now."""
    request = TakeSnapshotRequest(topic_name="__diskless-metadata", partition_index=0)
    taken = ask_node(quorum, node, request, TakeSnapshotResponse)
    assert taken.error_code == 0, taken
    name = f"{taken.end_offset:020d}-{taken.epoch:010d}.checkpoint"
    path = quorum.home / str(node) / "__diskless-metadata-0" / name
    with CheckpointReader(RealFileSystem(), path) as reader:
        return taken.end_offset, [encode_record(record) for _, record in reader.records()]


def kill_leader(quorum: Quorum) -> None:
    leader = leader_of(quorum)
    quorum.kill(leader)
    leader_of(quorum)
    quorum.start(leader)


def test_a_coordinator_decides_each_commit_once_across_leader_changes(
    runs: list[tuple[int, int, str]],
) -> None:
    assert len({key for _, _, key in runs}) == len(runs)


def test_after_all_nodes_restart_their_coordinator_replicas_have_equal_states(
    quorum: Quorum, runs: list[tuple[int, int, str]], topic_id: UUID
) -> None:
    for node in NODES:
        quorum.kill(node)
    quorum.start(*NODES)
    quorum.ready()

    async def again() -> list[tuple[int, int, str]]:
        client = CoordinatorClient(addresses(quorum), settings=PATIENT)
        try:
            return await runs_of(client, topic_id)
        finally:
            await client.close()

    assert run(again()) == runs


def test_restarted_nodes_without_a_database_answer_find_batches_completely_or_with_an_error(
    quorum: Quorum, runs: list[tuple[int, int, str]], topic_id: UUID
) -> None:
    """Each asked for itself, whoever leads; without their databases nothing is applied at first."""
    for node in NODES:
        quorum.kill(node)
    for database in quorum.home.glob("*/__diskless-metadata-0/coordinator.db*"):
        database.unlink()
    quorum.start(*NODES)
    topic = FindBatchesRequest.Topic
    partition = topic.Partition(partition_index=0, offset=0, max_bytes=1)
    request = FindBatchesRequest(
        topics=(topic(topic_id=topic_id, partitions=(partition,)),), max_bytes=1
    )
    not_yet: Counter[int] = Counter()

    async def first_answer(node: int) -> FindBatchesResponse.Topic.Partition:
        """Of those that are not "ask again"."""
        while True:
            try:
                async with await open_rpc("127.0.0.1", quorum.ports[node]) as rpc:
                    while True:
                        answer = await rpc.call(request, FindBatchesResponse)
                        found = answer.responses[0].partitions[0]
                        if found.error_code != ErrorCode.COORDINATOR_NOT_AVAILABLE:
                            return found
                        not_yet[node] += 1
            except NetError:  # it starts
                await asyncio.sleep(0.002)

    async def all_three() -> list[FindBatchesResponse.Topic.Partition]:
        async with asyncio.timeout(DEADLINE_S):
            return list(await asyncio.gather(*(first_answer(node) for node in NODES)))

    end_offset = len(runs) * RECORDS
    told = [(found.error_code, found.high_watermark) for found in run(all_three())]
    assert told == [(0, end_offset)] * len(NODES), not_yet


def put_back(database: Path, epoch: int) -> int:
    """Let a coordinator's state end in another epoch, as beside another history; its end."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        (packed,) = connection.execute("SELECT value FROM meta WHERE name = 'state'").fetchone()
        offset, _, *rest = msgpack.unpackb(packed)
        connection.execute(
            "UPDATE meta SET value = ? WHERE name = 'state'",
            (msgpack.packb((offset, epoch, *rest)),),
        )
        connection.commit()
    return int(offset)


def test_a_node_stops_the_raft_group_of_a_coordinator_whose_state_contradicts_its_log(
    quorum: Quorum, runs: list[tuple[int, int, str]], topic_id: UUID
) -> None:
    node = next(node for node in NODES if node != leader_of(quorum))

    async def asked(request: Request, answer: type[R]) -> R:
        async with await open_rpc("127.0.0.1", quorum.ports[node]) as rpc:
            return await rpc.call(request, answer)

    topic = FindBatchesRequest.Topic
    partition = topic.Partition(partition_index=0, offset=0, max_bytes=1)
    request = FindBatchesRequest(
        topics=(topic(topic_id=topic_id, partitions=(partition,)),), max_bytes=1
    )

    async def serves() -> bool:
        answer = await asked(request, FindBatchesResponse)
        return answer.responses[0].partitions[0].high_watermark == len(runs) * RECORDS

    def served() -> bool:
        try:
            return run(serves())
        except NetError:  # it starts
            return False

    wait_until(served, "the node has applied everything")
    process = quorum.processes.pop(node)
    process.terminate()  # a state that is closed is flushed to its end
    process.wait(DEADLINE_S)
    directory = quorum.home / str(node) / "__diskless-metadata-0"
    end_offset = put_back(directory / "coordinator.db", epoch=999)
    log_file = quorum.home / f"node{node}.log"
    before = len(log_file.read_text())
    quorum.start(node)
    doubt = f"node={node} group=__diskless-metadata-0 in_doubt="
    wait_until(lambda: doubt in log_file.read_text()[before:], "the node says so")
    line = next(line for line in log_file.read_text()[before:].splitlines() if doubt in line)
    for part in (f"below offset {end_offset}", "of epoch 999", "--rejoin", "coordinator.db"):
        assert part in line, line
    wait_until((directory / "in-doubt").exists, "the doubt is on the disk")

    found = run(asked(request, FindBatchesResponse)).responses[0].partitions[0]
    assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE, "it serves no offset"

    bootstrap = ",".join(f"{host}:{port}" for host, port in addresses(quorum))
    words = ("quorum", "describe", "--replication", "--group", "__diskless-metadata-0")
    sentence = f"node {node}: __diskless-metadata-0 has stopped"

    def described() -> bool:  # a node that is too busy to answer in time is left out
        shown = RUNNER.invoke(app, [*words, "--bootstrap-controller", bootstrap])
        return sentence in shown.stdout

    wait_until(described, "the doubt is described")

    quorum.kill(node)  # the log was put there on purpose: the operator says so
    for name in ("in-doubt", "coordinator.db"):
        (directory / name).unlink()
    quorum.start(node)
    wait_until(served, "the node serves again")


def invoke(quorum: Quorum, *words: str) -> Any:
    bootstrap = ",".join(f"{host}:{port}" for host, port in addresses(quorum))
    return RUNNER.invoke(app, ["diskless", *words, "--bootstrap-controller", bootstrap, "--json"])


def test_each_coordinator_describes_only_the_topics_and_objects_assigned_to_it(
    quorum: Quorum, runs: list[tuple[int, int, str]]
) -> None:
    shown = invoke(quorum, "describe")
    assert shown.exit_code == 0, shown.stderr
    (topic,) = json.loads(shown.stdout)["topics"]
    count = len(runs)
    assert topic["topic"] == "orders"
    assert topic["storedBytes"] == count * 100
    assert (topic["objectBytes"], topic["deadBytes"]) == (count * 150, count * 50)
    assert [one["highWatermark"] for one in topic["partitions"]] == [count * RECORDS, 0]
    shown = invoke(quorum, "object", runs[0][2])
    assert shown.exit_code == 0, shown.stderr
    found = json.loads(shown.stdout)
    assert (found["sizeBytes"], found["usedBytes"]) == (150, 100)
    assert [(owner["topic"], owner["usedBytes"]) for owner in found["owners"]] == [("orders", 100)]


def test_coordinator_replicas_write_equal_checkpoints_even_after_a_lost_disk(
    quorum: Quorum, runs: list[tuple[int, int, str]]
) -> None:
    leader = leader_of(quorum)
    wiped = next(node for node in NODES if node != leader)
    wait_until(
        lambda: [replica(quorum, node) for node in NODES], "all nodes answer", retry_on=(NetError,)
    )
    for node in NODES:
        checkpoint(quorum, node)
    wait_until(
        lambda: replica(quorum, leader).log_start_offset > 0,
        "the log begins later",
        retry_on=(NetError,),
    )
    quorum.kill(wiped)
    shutil.rmtree(quorum.home / str(wiped))
    quorum.run(
        "storage", "format", "--config", str(quorum.properties(wiped)),
        "--cluster-id", described(quorum).cluster_id, "--rejoin",
    )  # fmt: skip
    quorum.start(wiped)
    end_offset = replica(quorum, leader).high_watermark
    wait_until(
        lambda: replica(quorum, wiped).applied_offset >= end_offset,
        "it has all again",
        retry_on=(NetError,),
    )
    assert replica(quorum, wiped).log_start_offset > 0, "it never had what is in the snapshot"

    def equal() -> bool:
        """At one offset; the leader's sweeps may still write a record between two of them."""
        taken = [checkpoint(quorum, node) for node in NODES]
        if len({end for end, _ in taken}) > 1:
            return False
        assert taken[0] == taken[1] == taken[2]
        return len(taken[0][1]) > len(runs) // 1000

    wait_until(equal, "three checkpoints at one offset", retry_on=(NetError,))


# --- the setting --------------------------------------------------------------------------------


class Elsewhere:
    """An implementation that is found by its name."""

    @classmethod
    def for_group(cls, group: Any) -> Any:
        return group


def properties(class_name: str, *, voters: int = 3) -> dict[str, str]:
    return {
        "process.roles": "controller",
        "node.id": "1",
        "controller.quorum.voters": ",".join(f"{i}@127.0.0.1:909{i}" for i in range(1, voters + 1)),
        "listeners": "CONTROLLER://127.0.0.1:9091",
        "log.dirs": "x",
        "diskless.batch.coordinator.class.name": class_name,
    }


@pytest.mark.parametrize(
    ("class_name", "voters", "says"),
    [
        (IN_MEMORY, 3, "is not replicated"),
        (EMBEDDED, 3, "is run by an application itself"),
        ("nowhere.Coordinator", 3, "cannot be imported"),
        ("coordinator.batch.leader.Nothing", 3, "cannot be imported"),
        ("nodots", 3, "has no for_group"),
        ("records.object_keys.ObjectKeys", 3, "has no for_group"),
        (IN_MEMORY, 1, ""),
        *((name, 1, "") for name in FORMER_NAMES),
        (f"{__name__}.Elsewhere", 3, ""),
    ],
)
def test_a_node_finds_the_coordinator_class_by_its_name_and_checks_it_at_start(
    class_name: str, voters: int, says: str
) -> None:
    if not says:
        assert parse_config(properties(class_name, voters=voters)).coordinators
        return
    with pytest.raises(ConfigError, match=says) as caught:
        parse_config(properties(class_name, voters=voters))
    assert caught.value.key == "diskless.batch.coordinator.class.name"


def test_a_node_refuses_an_invalid_object_key_prefix_and_names_its_setting() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(properties(IN_MEMORY, voters=1) | {"esker.object.key.prefix": "/a"})
    assert caught.value.key == "esker.object.key.prefix"


class Host:
    """As much of a node as a node_service without a log needs."""

    cluster_id = "abc"


def test_a_quorum_of_one_node_may_run_the_in_memory_batch_coordinator(tmp_path: Path) -> None:
    host: Any = Host()
    log: Any = None

    async def story() -> None:
        options = CoordinatorOptions(class_name=IN_MEMORY, key_prefix="p")
        node_service = CoordinatorNodeService(host, options, StaticView(), Ancestors(), voters=1)
        node_service.begin(log, "esker-bench-log", 0, tmp_path)
        assert node_service.find(0) is None
        node_service.begin(log, "__diskless-metadata", 3, tmp_path)
        found: Any = node_service.find(3)
        keys = ObjectKeys(prefix="p", cluster_id="abc", coordinator_partition=3)
        assert found.settings == CoordinatorSettings(
            keys=keys, retention_check_interval_ms=options.retention_check_interval_ms
        )
        await node_service.end("__diskless-metadata", 3)
        assert node_service.find(3) is None

    run(story())
