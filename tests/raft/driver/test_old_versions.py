"""Requests of every supported version are answered, and the node runs on. Invariant 10."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from records.rpc import fetch, quorum
from records.rpc.base import Request, Response
from tests.raft.driver.client import Client
from tests.raft.driver.cluster import Cluster
from tests.raft.driver.test_cluster import QUICK

BENCH = "esker-bench-log"
Ask = Callable[[int], Request]


def fetch_request(version: int) -> Request:
    topic = fetch.FetchRequest.FetchTopic
    partition = topic.FetchPartition(
        partition=0, fetch_offset=0, partition_max_bytes=1_000, current_leader_epoch=1,
        last_fetched_epoch=0 if version >= 12 else -1,
    )  # fmt: skip
    state = fetch.FetchRequest.ReplicaState(replica_id=77 if version >= 15 else -1)
    return fetch.FetchRequest(
        replica_id=77 if version < 15 else -1, replica_state=state, max_wait_ms=0, min_bytes=0,
        topics=(topic(topic=BENCH, topic_id=UUID(int=77), partitions=(partition,)),),
    )  # fmt: skip


def snapshot_request(_: int) -> Request:
    topic = fetch.FetchSnapshotRequest.TopicSnapshot
    partition = topic.PartitionSnapshot(
        partition=0, current_leader_epoch=1, position=0,
        snapshot_id=topic.PartitionSnapshot.SnapshotId(end_offset=3, epoch=1),
    )  # fmt: skip
    return fetch.FetchSnapshotRequest(
        replica_id=77, topics=(topic(name=BENCH, partitions=(partition,)),)
    )


def vote_request(_: int) -> Request:
    topic = quorum.VoteRequest.TopicData
    partition = topic.PartitionData(
        partition_index=0, replica_epoch=1, replica_id=2, last_offset_epoch=0, last_offset=0
    )
    return quorum.VoteRequest(topics=(topic(topic_name=BENCH, partitions=(partition,)),))


def begin_request(_: int) -> Request:
    topic = quorum.BeginQuorumEpochRequest.TopicData
    partition = topic.PartitionData(partition_index=0, leader_id=2, leader_epoch=0)
    return quorum.BeginQuorumEpochRequest(
        topics=(topic(topic_name=BENCH, partitions=(partition,)),)
    )


def end_request(_: int) -> Request:
    topic = quorum.EndQuorumEpochRequest.TopicData
    partition = topic.PartitionData(partition_index=0, leader_id=2, leader_epoch=0)
    return quorum.EndQuorumEpochRequest(topics=(topic(topic_name=BENCH, partitions=(partition,)),))


def describe_request(_: int) -> Request:
    topic = quorum.DescribeQuorumRequest.TopicData
    partition = topic.PartitionData(partition_index=0)
    return quorum.DescribeQuorumRequest(topics=(topic(topic_name=BENCH, partitions=(partition,)),))


ASKED: list[tuple[Ask, type[Response], range]] = [
    (fetch_request, fetch.FetchResponse, range(4, 19)),
    (vote_request, quorum.VoteResponse, range(3)),
    (begin_request, quorum.BeginQuorumEpochResponse, range(2)),
    (end_request, quorum.EndQuorumEpochResponse, range(2)),
    (describe_request, quorum.DescribeQuorumResponse, range(3)),
    (snapshot_request, fetch.FetchSnapshotResponse, range(2)),
]


def ask_everything(client: Client) -> dict[tuple[str, int], Response]:
    return {
        (answer.__name__, version): client.ask(request(version), answer, version)
        for request, answer, versions in ASKED
        for version in versions
    }


def test_leaders_and_followers_answer_every_version_of_every_quorum_request(tmp_path: Path) -> None:
    with Cluster(tmp_path, size=2, quorum=QUICK, state="kv") as cluster:
        cluster.start()
        leader = cluster.wait_for_leader()
        for node in (leader, *(one for one in cluster.ids if one != leader)):
            with cluster.client(node) as client:
                answers = ask_everything(client)
            for version in range(4, 12):  # too old to be told where its log leaves ours
                refused = answers["FetchResponse", version]
                assert isinstance(refused, fetch.FetchResponse)
                assert refused.error_code == (42 if version >= 7 else 0), refused
            told = answers["FetchResponse", 15]
            assert isinstance(told, fetch.FetchResponse)
            assert told.responses[0].partitions[0].current_leader.leader_id == leader
        assert all(process.poll() is None for process in cluster.processes.values())
        assert cluster.wait_for_leader() in cluster.ids
