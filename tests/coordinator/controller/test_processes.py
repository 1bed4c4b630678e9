"""Three real processes and scripted brokers: all replicas agree after leader failures and a wiped
disk.
"""

from __future__ import annotations

import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import pytest

from bench import bench_controller_cluster
from raft.segments.files import RealFileSystem
from records.frame import decode_record, encode_record
from records.kafka_errors import ErrorCode
from records.metadata import RegisterControllerRecord
from records.rpc import batch_coordinator as rpc
from records.rpc import descriptions
from records.rpc.base import Request, Response
from records.rpc.brokers import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationResponse,
    ControllerRegistrationResponse,
)
from records.rpc.chunks import CreateChunksResponse
from records.rpc.cluster import DescribeClusterRequest, DescribeClusterResponse
from records.rpc.configs import IncrementalAlterConfigsResponse
from records.rpc.snapshots import (
    DescribeSnapshotsRequest,
    DescribeSnapshotsResponse,
    TakeSnapshotRequest,
    TakeSnapshotResponse,
)
from records.rpc.topics import (
    CreatePartitionsResponse,
    CreateTopicsResponse,
    DeleteTopicsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from records.schema import MetadataRecord
from snapshot.reader import CheckpointReader
from tests.coordinator.controller.test_refusals import alter, chunk, controller, delete, grow
from tests.coordinator.controller.world import creation, registration
from tests.ports import free_ports
from tests.quorum_processes import NODES, Quorum
from tests.raft.driver.client import Client
from tests.waiting import wait_until

R = TypeVar("R", bound=Response)
STALE_CONTROLLER_EPOCH = 11
BROKERS = (1001, 1002, 1003)
RETRIED = {ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT}


class Story:
    """A quorum, and the brokers that a script plays."""

    def __init__(self, quorum: Quorum) -> None:
        self.quorum = quorum
        self.epochs: dict[int, int] = {}
        cluster_id = next(
            line.split("=", 1)[1].strip()
            for line in (quorum.home / "1" / "meta.properties").read_text().splitlines()
            if line.startswith("cluster.id=")
        )
        self.cluster_id = cluster_id

    def ask_node(self, node: int, request: Request, answer: type[R]) -> R:
        with Client("127.0.0.1", self.quorum.ports[node], timeout_s=20) as client:
            return client.ask(request, answer, request.schema().versions.last)

    def ask(self, request: Request, answer: type[R]) -> tuple[int, R]:
        """Return the active controller's answer and its node id; repeats a doubtful request."""

        def once() -> tuple[int, R] | None:
            for node in tuple(self.quorum.processes):
                try:
                    got = self.ask_node(node, request, answer)
                except OSError:
                    continue
                if not codes(got) & RETRIED:
                    return node, got
            return None

        found: tuple[int, R] = wait_until(
            once, f"an answer to {type(request).__name__}", retry_on=(OSError,)
        )
        return found

    def register(self) -> None:
        for broker_id in BROKERS:
            request = registration(
                broker_id, cluster_id=self.cluster_id, incarnation_id=UUID(int=broker_id)
            )
            _, answer = self.ask(request, BrokerRegistrationResponse)
            assert answer.error_code == 0, answer
            self.epochs[broker_id] = answer.broker_epoch
        self.beat()

    def beat(self, read: int | None = None) -> int:
        """Send a heartbeat of every broker, up to date with the log; return the controller's node
        id.
        """
        node = 0
        for broker_id, epoch in self.epochs.items():
            request = BrokerHeartbeatRequest(
                broker_id=broker_id,
                broker_epoch=epoch,
                current_metadata_offset=epoch if read is None else read,
                want_fence=False,
                want_shut_down=False,
            )
            node, answer = self.ask(request, BrokerHeartbeatResponse)
            assert (answer.error_code, answer.is_fenced) == (0, False), answer
        return node

    def change(self, request: Request, answer: type[R], *fine: int) -> R:
        """Send a request until it is carried out, by this attempt or by an earlier one."""
        _, got = self.ask(request, answer)
        assert codes(got) <= {0, *fine}, got
        self.beat()
        return got

    def create(self, name: str, partitions: int) -> None:
        exists = ErrorCode.TOPIC_ALREADY_EXISTS
        self.change(creation(name, partitions, factor=2), CreateTopicsResponse, exists)

    def described(self, node: int) -> tuple[object, object]:
        topics = self.ask_node(
            node, descriptions.DescribeTopicsRequest(), descriptions.DescribeTopicsResponse
        )
        brokers = self.ask_node(
            node, descriptions.DescribeBrokersRequest(), descriptions.DescribeBrokersResponse
        )
        return topics.topics, brokers.brokers

    def checkpoint(self, node: int) -> list[bytes]:
        """Return the records of a checkpoint that this node takes now."""
        request = TakeSnapshotRequest(topic_name="__cluster_metadata", partition_index=0)
        taken = self.ask_node(node, request, TakeSnapshotResponse)
        assert taken.error_code == 0, taken
        name = f"{taken.end_offset:020d}-{taken.epoch:010d}.checkpoint"
        path = self.quorum.home / str(node) / "__cluster_metadata-0" / name
        with CheckpointReader(RealFileSystem(), path) as reader:
            return [encode_record(record) for _, record in reader.records()]


def codes(answer: Response) -> set[int]:
    """Return all error codes of an answer."""
    found = {getattr(answer, "error_code", 0)}
    for name in ("topics", "results", "responses"):
        for item in getattr(answer, name, None) or ():
            found |= {entry.error_code for entry in getattr(item, "partitions", (item,))}
    return found


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    with Quorum(tmp_path) as quorum:
        quorum.start(*NODES)
        yield Story(quorum)


def test_controller_replicas_have_equal_states_after_leader_failures_and_a_wiped_disk(
    story: Story,
) -> None:
    quorum = story.quorum
    story.register()
    story.create("kept", 3)
    story.change(alter(2, "kept", "retention.ms", "1234"), IncrementalAlterConfigsResponse)

    killed = story.beat()
    quorum.kill(killed)
    story.create("while-one-was-dead", 2)
    story.change(grow("kept", 5), CreatePartitionsResponse, ErrorCode.INVALID_PARTITIONS)
    quorum.start(killed)

    story.change(grow("__diskless-metadata", 2), CreatePartitionsResponse)
    for i in range(6):
        story.create(f"spread-{i}", 2)

    wiped = next(node for node in NODES if node != story.beat())
    quorum.kill(wiped)
    story.create("doomed", 1)
    rejoin(story, wiped)
    gone = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    story.change(delete("doomed"), DeleteTopicsResponse, gone)

    replicas = tuple(sorted(BROKERS, reverse=True)[:2])
    story.change(chunk("kept", 1, replicas, 50), CreateChunksResponse, ErrorCode.INVALID_REQUEST)
    wait_until_followed(story, killed)
    wait_until_rejoined(story, wiped)
    quorum.kill(story.beat())
    story.create("last", 1)
    quorum.start(*(node for node in NODES if node not in quorum.processes))

    def all_equal() -> bool:
        story.beat()
        seen = [story.described(node) for node in NODES]
        return seen[0] == seen[1] == seen[2]

    wait_until(all_equal, "three equal images", retry_on=(OSError,))
    topics, brokers = story.described(wiped)
    assert_described(topics)
    assert [broker.is_fenced for broker in brokers] == [False] * 3  # type: ignore[attr-defined]
    records = equal_checkpoints(story)
    registered = [r.controller_id for r in records if isinstance(r, RegisterControllerRecord)]
    assert registered == [*NODES]
    assert_writable(story, topics)


def rejoin(story: Story, node: int) -> None:
    """Format the disk of a killed voter anew with --rejoin, and start the voter."""
    quorum = story.quorum
    shutil.rmtree(quorum.home / str(node))
    quorum.run(
        "storage", "format", "--config", str(quorum.properties(node)),
        "--cluster-id", story.cluster_id, "--rejoin",
    )  # fmt: skip
    quorum.start(node)


def wait_until_followed(story: Story, node: int) -> None:
    """Wait until a restarted node describes the changes made to the topic `kept`."""

    def sees() -> bool:
        named = descriptions.DescribeTopicsRequest(topic_names=("kept",))
        (kept,) = story.ask_node(node, named, descriptions.DescribeTopicsResponse).topics
        return len(kept.partitions) == 5 and len(kept.partitions[1].chunks) == 2

    wait_until(sees, "the killed node follows again", retry_on=(OSError,))


def wait_until_rejoined(story: Story, node: int) -> None:
    """Wait until the lost disk's marker and that of every group are gone."""

    def whole_again() -> bool:
        written = (story.quorum.home / f"node{node}.log").read_text()
        marks = list((story.quorum.home / str(node)).rglob("recovering"))
        return "action=rejoined" in written and not marks

    wait_until(whole_again, "the wiped node may vote", retry_on=(OSError,))


def assert_described(topics: Any) -> None:
    """Check the topics of the story, and that their coordinators are both used."""
    names = {topic.topic_name for topic in topics}
    assert {"kept", "while-one-was-dead", "last", "__diskless-metadata"} <= names
    assert "doomed" not in names
    spread = {
        partition.coordinator
        for topic in topics
        if topic.topic_name.startswith("spread-")
        for partition in topic.partitions
    }
    assert spread == {0, 1}


def equal_checkpoints(story: Story) -> list[MetadataRecord]:
    """Wait for equal checkpoints of all nodes; a restarted node may still have to register."""

    def taken() -> list[bytes] | None:
        values = [story.checkpoint(node) for node in NODES]
        return values[0] if values[0] == values[1] == values[2] else None

    found = wait_until(taken, "checkpoints", retry_on=(OSError,))
    return [decode_record(value) for value in found]


def assert_writable(story: Story, topics: Any) -> None:
    """Check that every client partition is at the coordinator that the mapping names."""
    for topic in topics:
        if topic.is_internal:
            continue
        for partition in topic.partitions:
            key = f"write:{topic.topic_id}:{partition.partition_index}"
            find = FindCoordinatorRequest(key_type=3, coordinator_keys=(key,))
            request = end_offset(partition.coordinator, topic.topic_id, partition.partition_index)

            def found(find: Any = find, request: Any = request) -> bool:
                (place,) = story.ask_node(1, find, FindCoordinatorResponse).coordinators
                if place.error_code:
                    return False
                answer = story.ask_node(place.node_id, request, rpc.ListDisklessOffsetsResponse)
                return answer.responses[0].partitions[0].error_code == 0

            wait_until(found, f"{key} at its coordinator", retry_on=(OSError,))


def end_offset(coordinator: int, topic_id: UUID, partition: int) -> rpc.ListDisklessOffsetsRequest:
    """Build the request for a partition's end offset."""
    topic = rpc.ListDisklessOffsetsRequest.Topic
    entry = topic.Partition(partition_index=partition, timestamp=-1)
    return rpc.ListDisklessOffsetsRequest(
        coordinator_partition=coordinator, topics=(topic(topic_id=topic_id, partitions=(entry,)),)
    )


def partition_error(
    story: Story, coordinator: int, request: Request, answer: type[Response]
) -> int:
    """Return the error that a coordinator's leader gives for the only partition of a request."""

    def once() -> tuple[int] | None:
        for node in tuple(story.quorum.processes):
            try:
                got: Any = story.ask_node(node, request, answer)
            except OSError:
                continue
            code: int = got.responses[0].partitions[0].error_code
            if code not in (6, 7, 15):  # not the leader, or none is here
                return (code,)
        return None

    (code,) = wait_until(once, f"the leader of coordinator {coordinator}", retry_on=(OSError,))
    return int(code)


def test_a_partitions_move_between_coordinators_survives_a_controller_crash(story: Story) -> None:
    """The crash comes after the old coordinator released the partition, before the mapping."""
    story.register()
    story.change(grow("__diskless-metadata", 2), CreatePartitionsResponse)
    story.create("moving", 3)
    named = descriptions.DescribeTopicsRequest(topic_names=("moving",))
    (topic,) = story.ask_node(story.beat(), named, descriptions.DescribeTopicsResponse).topics
    topic_id, source = topic.topic_id, topic.partitions[1].coordinator
    target = 1 - source
    assign = rpc.AssignPartitionToBatchCoordinatorRequest.Topic
    place = assign.Partition(partition_index=1, batch_coordinator_partition_index=target)
    request = rpc.AssignPartitionToBatchCoordinatorRequest(
        topics=(assign(topic_id=topic_id, partitions=(place,)),)
    )
    _, moved = story.ask(request, rpc.AssignPartitionToBatchCoordinatorResponse)
    assert moved.responses[0].partitions[0].error_code == 0, moved

    def end_at(coordinator: int, partition: int) -> int:
        request = end_offset(coordinator, topic_id, partition)
        return partition_error(story, coordinator, request, rpc.ListDisklessOffsetsResponse)

    gone = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (end_at(source, 1), end_at(target, 1)) == (gone, 0)

    release = rpc.ReleaseDisklessPartitionsRequest.Topic
    index = release.Partition(partition_index=2)
    home = topic.partitions[2].coordinator
    for epoch in range(1_000):
        released_partitions = rpc.ReleaseDisklessPartitionsRequest(
            coordinator_partition=home,
            controller_epoch=epoch,
            topics=(release(topic_id=topic_id, partitions=(index,)),),
        )
        error = partition_error(
            story, home, released_partitions, rpc.ReleaseDisklessPartitionsResponse
        )
        if error != STALE_CONTROLLER_EPOCH:
            break
    assert error == 0
    assert end_at(home, 2) == gone
    story.quorum.kill(story.beat())
    wait_until(
        lambda: end_at(home, 2) == 0, "the next controller has it made again", retry_on=(OSError,)
    )
    assert end_at(source, 1) == gone, "what moved is left alone"

    def mapped() -> bool:
        (now,) = story.ask_node(story.beat(), named, descriptions.DescribeTopicsResponse).topics
        return [p.coordinator for p in now.partitions][1:] == [target, home]

    wait_until(mapped, "the mapping", retry_on=(OSError,))


def test_a_controller_node_that_does_not_lead_answers_not_controller(story: Story) -> None:
    story.register()
    active = story.beat()
    other = next(node for node in NODES if node != active)
    refused = story.ask_node(
        other,
        registration(7, cluster_id=story.cluster_id),
        BrokerRegistrationResponse,
    )
    assert refused.error_code == ErrorCode.NOT_CONTROLLER
    answer = story.ask_node(other, creation("t"), CreateTopicsResponse)
    assert f"node {active}" in (answer.topics[0].error_message or "")
    snapshots = story.ask_node(other, DescribeSnapshotsRequest(), DescribeSnapshotsResponse)
    assert {group.topic_name for group in snapshots.groups} >= {"__cluster_metadata"}
    _, joined = story.ask(controller(9), ControllerRegistrationResponse)
    assert joined.error_code == 0
    expected = {node: ("127.0.0.1", port) for node, port in story.quorum.ports.items()}
    expected[9] = ("h", 1)
    for node in NODES:
        wait_until(
            lambda node=node: controllers(story, node) == expected,
            "all that registered",
            retry_on=(OSError,),
        )


def controllers(story: Story, node: int) -> dict[int, tuple[str, int]]:
    """Return the ids and addresses of the controllers, as a node describes them."""
    request = DescribeClusterRequest(include_cluster_authorized_operations=False, endpoint_type=2)
    answer = story.ask_node(node, request, DescribeClusterResponse)
    return {broker.broker_id: (broker.host, broker.port) for broker in answer.brokers}


def test_the_controller_exports_the_metrics_of_kip_631(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with Quorum(tmp_path) as quorum:
        for node in NODES:
            with quorum.properties(node).open("a") as file:
                if node == 1:
                    file.write(f"esker.metrics.listener=127.0.0.1:{port}\n")
        quorum.start(*NODES)
        cluster_id = Story(quorum).cluster_id
        figures = bench_controller_cluster.measure(
            list(quorum.ports.values()), cluster_id, topics=200, idle_s=0.2
        )
        assert min(figures) > 0, "the benchmark runs"

        def seen() -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                text: str = answer.read().decode()
            # Either, since the benchmark's brokers send no more heartbeats and are fenced soon.
            kinds = ("active_broker_count 3.0", "fenced_broker_count 3.0")
            return text if any(f"kafka_controller_{kind}" in text for kind in kinds) else ""

        text = wait_until(seen, "three brokers in the metrics", retry_on=(OSError,))
    for name in ("metadata_lag", "requests_rate", "active_controller_count"):
        assert f"kafka_controller_{name} " in text
