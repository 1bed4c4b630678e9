"""Malformed requests to the controller listener get an error or a closed connection; the node runs
on.

Each case is sent to a living node; afterwards it still commits.

Source: invariant 10 (docs/design/invariants.md).
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from raft.driver.peers import OUR_VERSIONS, kind_of
from raft.net import request_header
from records.batch_writer import build_control_batch, build_value_batch
from records.rpc import fetch, produce, quorum
from tests.raft.driver.client import Client
from tests.raft.driver.cluster import CLUSTER_ID, Cluster
from tests.raft.driver.test_cluster import QUICK
from tests.waiting import wait_until

METADATA = "__cluster_metadata"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("bad"), quorum=QUICK) as cluster:
        cluster.start()
        cluster.wait_for_leader()
        yield cluster


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    """A client of the bench log's leader; after the test the quorum must still commit."""
    leader = cluster.wait_for_leader()
    with cluster.client(leader) as client:
        yield client
    with cluster.client(cluster.wait_for_leader()) as after:
        after.produce([b"still here"])
    assert all(process.poll() is None for process in cluster.processes.values())


def closes(one: socket.socket) -> bool:
    """Does the server close the connection?"""
    one.settimeout(60)
    try:
        while one.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        bytes.fromhex("160301 00a5 010000a1 0303"),
        bytes.fromhex("ffffffff"),
        bytes.fromhex("7fffffff 0000"),
        bytes.fromhex("00000004 deadbeef"),
        bytes.fromhex("0000000a 03e7 0000 00000001 ffff"),  # api key 999
        bytes.fromhex("0000000a 0001 0063 00000001 ffff"),  # Fetch version 99
        bytes.fromhex("0000000e 0034 0002 00000001 ffff 00 ff ff ff"),  # Vote, cut short
    ],
)
def test_a_node_closes_a_connection_that_sends_a_malformed_quorum_request(
    client: Client, data: bytes
) -> None:
    client.socket.sendall(data)
    assert closes(client.socket)


def test_a_node_refuses_a_request_of_several_megabytes_without_records_before_decoding(
    client: Client,
) -> None:
    data = quorum.DescribeQuorumRequest.TopicData
    question = quorum.DescribeQuorumRequest(
        topics=(data(topic_name="x", partitions=(data.PartitionData(partition_index=0),)),)
        * 400_000
    )
    with pytest.raises(OSError, match=r"closed|reset|Broken"):
        client.ask(question, quorum.DescribeQuorumResponse, 2)


def test_a_node_still_serves_requests_after_random_bodies_for_every_api(
    cluster: Cluster, client: Client
) -> None:
    chance = random.Random(0x2F1C)
    for key, (low, high) in OUR_VERSIONS.items():
        for version in range(low, high + 1):
            kind = kind_of(key, version)
            body = request_header(kind, 1, None) + chance.randbytes(chance.randrange(200))
            with socket.create_connection(client.socket.getpeername(), 60) as one:
                one.sendall(struct.pack(">i", len(body)) + body)
                one.settimeout(0.05)
                with contextlib.suppress(TimeoutError, ConnectionResetError):
                    one.recv(65536)
    assert "Traceback" not in "".join(cluster.output(node) for node in cluster.ids)


def vote(cluster_id: str | None = CLUSTER_ID, **fields: object) -> quorum.VoteRequest:
    topic = quorum.VoteRequest.TopicData
    values: dict = {
        "partition_index": 0, "replica_epoch": 1, "replica_id": 2, "last_offset_epoch": 0,
        "last_offset": 0, **fields,
    }  # fmt: skip
    voter = values.pop("voter_id", -1)
    partition = topic.PartitionData(**values)
    return quorum.VoteRequest(
        cluster_id=cluster_id,
        voter_id=voter,
        topics=(topic(topic_name=METADATA, partitions=(partition,)),),
    )


def test_a_voter_refuses_a_vote_of_another_cluster_with_inconsistent_cluster_id(
    client: Client,
) -> None:
    assert client.ask(vote("another"), quorum.VoteResponse, 2).error_code == 104


def test_a_voter_refuses_a_vote_with_another_nodes_voter_id_with_invalid_voter_key(
    client: Client,
) -> None:
    answer = client.ask(vote(voter_id=99), quorum.VoteResponse, 2)
    assert answer.topics[0].partitions[0].error_code == 125  # INVALID_VOTER_KEY


def test_a_node_refuses_a_vote_request_that_names_no_raft_group_with_invalid_request(
    client: Client,
) -> None:
    request = quorum.VoteRequest(cluster_id=CLUSTER_ID, topics=())
    assert client.ask(request, quorum.VoteResponse, 2).error_code == 42


def fetch_request(replica: int, **fields: object) -> fetch.FetchRequest:
    topic = fetch.FetchRequest.FetchTopic
    values: dict = {
        "partition": 0, "current_leader_epoch": 1, "fetch_offset": 0, "last_fetched_epoch": 0,
        "partition_max_bytes": 1000, **fields,
    }  # fmt: skip
    return fetch.FetchRequest(
        cluster_id=CLUSTER_ID,
        replica_state=fetch.FetchRequest.ReplicaState(replica_id=replica),
        max_wait_ms=0,
        min_bytes=0,
        topics=(topic(topic_id=UUID(int=77), partitions=(topic.FetchPartition(**values),)),),
    )


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"current_leader_epoch": 0}, 74),  # FENCED_LEADER_EPOCH
        ({"current_leader_epoch": 9_999}, 75),  # UNKNOWN_LEADER_EPOCH
    ],
)
def test_a_leader_refuses_a_fetch_with_a_lower_or_higher_leader_epoch_with_an_error_code(
    client: Client, fields: dict, error: int
) -> None:
    answer = client.ask(fetch_request(77, **fields), fetch.FetchResponse, 17)
    assert answer.responses[0].partitions[0].error_code == error


@pytest.mark.parametrize("field", ["fetch_offset", "last_fetched_epoch", "current_leader_epoch"])
def test_a_node_refuses_a_quorum_request_with_a_negative_number_with_invalid_request(
    client: Client, field: str
) -> None:
    answer = client.ask(fetch_request(77, **{field: -5}), fetch.FetchResponse, 17)
    assert answer.error_code == 42


def test_a_leader_answers_a_fetch_beyond_its_log_end_with_the_diverging_epoch(
    client: Client,
) -> None:
    epoch = client.describe("esker-bench-log").leader_epoch
    request = fetch_request(
        77, current_leader_epoch=epoch, fetch_offset=10**12, last_fetched_epoch=epoch
    )
    answer = client.ask(request, fetch.FetchResponse, 17).responses[0].partitions[0]
    assert answer.error_code == 0
    assert answer.diverging_epoch.epoch == epoch
    assert answer.diverging_epoch.end_offset < 10**12


def test_a_leader_refuses_to_serve_an_unknown_snapshot_with_snapshot_not_found(
    client: Client,
) -> None:
    epoch = client.describe("esker-bench-log").leader_epoch
    topic = fetch.FetchSnapshotRequest.TopicSnapshot
    partition = topic.PartitionSnapshot(
        partition=0, current_leader_epoch=epoch, position=0,
        snapshot_id=topic.PartitionSnapshot.SnapshotId(end_offset=1, epoch=1),
    )  # fmt: skip
    request = fetch.FetchSnapshotRequest(
        cluster_id=CLUSTER_ID, replica_id=77,
        topics=(topic(name="esker-bench-log", partitions=(partition,)),),
    )  # fmt: skip
    answer = client.ask(request, fetch.FetchSnapshotResponse, 1)
    assert answer.topics[0].partitions[0].error_code == 98  # SNAPSHOT_NOT_FOUND


def produce_request(records: bytes | None, *, acks: int = -1) -> produce.ProduceRequest:
    data = produce.ProduceRequest.TopicProduceData
    partition = data.PartitionProduceData(index=0, records=records)
    return produce.ProduceRequest(
        acks=acks, timeout_ms=1_000,
        topic_data=(data(name="esker-bench-log", partition_data=(partition,)),),
    )  # fmt: skip


def plain_batch() -> bytearray:
    return build_value_batch([b"value"], base_offset=0, leader_epoch=-1, timestamp=0)


def flipped() -> bytes:
    batch = plain_batch()
    batch[-2] ^= 1
    return bytes(batch)


@pytest.mark.parametrize(
    ("records", "acks", "error"),
    [
        (None, -1, 87),  # INVALID_RECORD
        (b"", -1, 87),
        (flipped(), -1, 2),  # CORRUPT_MESSAGE
        (bytes(plain_batch()[:-1]), -1, 2),
        (bytes(plain_batch()) + b"\x00", -1, 2),
        (
            bytes(build_control_batch([(2, b"")], base_offset=0, leader_epoch=0, timestamp=0)),
            -1,
            87,
        ),
        (bytes(plain_batch()), 1, 21),  # INVALID_REQUIRED_ACKS
    ],
)
def test_quorum_nodes_refuse_invalid_produce_requests_and_append_no_record(
    client: Client, records: bytes | None, acks: int, error: int
) -> None:
    before = client.end_offset()
    answer = client.ask(produce_request(records, acks=acks), produce.ProduceResponse, 9)
    assert answer.responses[0].partition_responses[0].error_code == error
    assert client.end_offset() == before


def test_connections_that_send_random_bytes_leave_no_memory_allocated(
    cluster: Cluster, client: Client
) -> None:
    def resident_kib(node: int) -> int:
        pid = cluster.processes[node].pid
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

    leader = next(n for n in cluster.ids if cluster.ports[n] == client.socket.getpeername()[1])
    before = resident_kib(leader)
    for _ in range(300):
        with socket.create_connection(client.socket.getpeername(), 60) as one:
            one.sendall(struct.pack(">i", 50_000_000) + os.urandom(1000))
    wait_until(lambda: resident_kib(leader) - before < 50_000, "the memory of 15 GB is not kept")
