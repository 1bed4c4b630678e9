"""Real processes cut logs to checkpoints, and late replicas begin with a checkpoint. KIP-630.

One cluster tells the long story; a node alone answers everything that may be asked of it.
"""

from __future__ import annotations

import shutil
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from raft.driver import mark_rejoin
from raft.driver.registry import Registry
from raft.driver.storage import Storage
from raft.segments.files import RealFileSystem
from raft.segments.log import LogConfig
from raft.wire.responses import Group
from records.types import OffsetAndEpoch
from snapshot import checkpoint_name, verify_checkpoint
from tests.raft.driver.client import Client, ClientError
from tests.raft.driver.cluster import CLUSTER_ID, Cluster
from tests.raft.driver.test_cluster import QUICK
from tests.waiting import wait_until

METADATA = "__cluster_metadata"
BENCH = "esker-bench-log"

AT_ONCE = {"live_ms": 0, "max_retention_bytes": 0}
"""A log starts at its newest checkpoint as soon as there is one."""


def checkpoint_path(cluster: Cluster, node: int, topic: str, snapshot_id: OffsetAndEpoch) -> Path:
    return cluster.log_dir(node) / f"{topic}-0" / checkpoint_name(snapshot_id)


def taken(client: Client, topic: str = BENCH) -> OffsetAndEpoch:
    """The id of a checkpoint that a node takes now."""
    answer = client.take_snapshot(topic)
    assert answer.error_code == 0, answer.error_message
    return OffsetAndEpoch(answer.end_offset, answer.epoch)


def fill(client: Client, batches: int, *, first: int = 0) -> None:
    for batch in range(first, first + batches):
        keys = (b"key-%d" % ((100 * batch + i) % 700) for i in range(100))
        client.produce_keyed([(key, b"%d" % batch * 50) for key in keys])


def test_an_empty_follower_catches_up_by_snapshot_during_appends(tmp_path: Path) -> None:
    with Cluster(tmp_path, quorum=QUICK, state="kv", log_starts=AT_ONCE) as cluster:
        cluster.start()
        leader = cluster.wait_for_leader()
        follower = next(node for node in cluster.ids if node != leader)
        with cluster.client(leader) as client:
            fill(client, 50)
            snapshot_id = taken(client)
            wait_until(
                lambda: client.snapshots().log_start_offset == snapshot_id.offset, "the log is cut"
            )
        cluster.kill(follower)
        shutil.rmtree(cluster.log_dir(follower))
        cluster.format(follower)
        mark_rejoin(RealFileSystem(), cluster.log_dir(follower))

        done = threading.Event()

        def append() -> None:
            with cluster.client(leader) as client:
                batch = 1_000
                while not done.is_set():
                    fill(client, 1, first=batch)
                    batch += 1

        writer = threading.Thread(target=append)
        writer.start()
        try:
            cluster.start(follower)

            def is_up() -> bool:
                try:
                    with cluster.client(follower) as client:
                        there = client.snapshots()
                except (OSError, ClientError):
                    return False
                begins = there.log_start_offset == snapshot_id.offset
                return begins and there.applied_offset > snapshot_id.offset + 500

            wait_until(is_up, "the follower holds the checkpoint and what came after it")
        finally:
            done.set()
            writer.join()
        with cluster.client(leader) as client:
            end_offset = client.end_offset()

        def applied(node: int) -> bool:
            with cluster.client(node) as client:
                return client.snapshots().applied_offset >= end_offset

        wait_until(lambda: applied(follower), "everything is applied there")
        # Invariant 4: what was loaded and gone on with is the leader's state, byte for byte.
        ids = []
        for node in (leader, follower):
            with cluster.client(node) as client:
                ids.append(taken(client))
        assert ids[0] == ids[1]
        files = [checkpoint_path(cluster, node, BENCH, ids[0]) for node in (leader, follower)]
        assert files[0].read_bytes() == files[1].read_bytes()
        assert verify_checkpoint(RealFileSystem(), files[0]).record_count == 700
        assert "Traceback" not in "".join(cluster.output(node) for node in cluster.ids)


def test_an_observer_resumes_its_download_from_the_next_leader(tmp_path: Path) -> None:
    """The leader dies in mid-download; its successor has the same checkpoint, byte for byte."""
    with Cluster(
        tmp_path, size=4, voters=3, quorum=QUICK, state="kv", log_starts=AT_ONCE, answer_bytes=300
    ) as cluster:
        cluster.start(1, 2, 3)
        leader = cluster.wait_for_leader()
        with cluster.client(leader) as client:
            fill(client, 40)
            end_offset = client.end_offset()
        for node in cluster.voters:  # a quiet log: all have the same checkpoint
            with cluster.client(node) as client:
                wait_until(
                    lambda client=client: client.snapshots().applied_offset >= end_offset, "applied"
                )
                snapshot_id = taken(client)
                assert snapshot_id.offset == end_offset
        for node in cluster.voters:
            with cluster.client(node) as client:
                wait_until(
                    lambda client=client: client.snapshots().log_start_offset == end_offset, "cut"
                )
        cluster.start(4)
        fetching = f"snapshot={end_offset}-{snapshot_id.epoch} action=fetch_snapshot position="

        def positions() -> list[int]:
            lines = [line for line in cluster.output(4).splitlines() if fetching in line]
            return [int(line.rpartition("=")[2]) for line in lines]

        def received() -> int:
            parts = (cluster.log_dir(4) / f"{BENCH}-0").glob("*.part")
            return sum(part.stat().st_size for part in parts)

        wait_until(lambda: received() > 2_000, "the observer fetches")
        cluster.kill(leader)

        def is_up() -> bool:
            with cluster.client(4) as client:
                group = client.snapshots()
                return group.log_start_offset == end_offset and group.applied_offset > end_offset

        wait_until(is_up, "the observer has it all")
        assert positions()[0] == 0 < positions()[-1], cluster.output(4)
        assert "fault=" not in cluster.output(4)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A node that leads both of its groups, each with a checkpoint."""
    directory = tmp_path_factory.mktemp("alone")
    with Cluster(
        directory, size=1, quorum=QUICK, metrics=True, state="kv", log_starts=AT_ONCE
    ) as cluster:
        cluster.start()
        cluster.wait_for_leader()
        with cluster.client(1) as client:
            fill(client, 30)
            taken(client)
            taken(client, METADATA)
        yield cluster


@pytest.fixture
def client(alone: Cluster) -> Iterator[Client]:
    with alone.client(1) as client:
        yield client
    with alone.client(alone.wait_for_leader()) as after:
        after.produce([b"still here"])


def known(client: Client, topic: str = BENCH) -> dict:
    """What to ask for to be served."""
    group = client.snapshots(topic)
    newest = group.snapshots[-1]
    return {"epoch": group.leader_epoch, "id": (newest.end_offset, newest.epoch)}


def whole(client: Client, topic: str = BENCH) -> bytes:
    found, size = b"", 1
    while len(found) < size:
        asked = (topic, {**known(client, topic), "position": len(found)})
        (chunk,) = client.fetch_snapshot(asked, max_bytes=10_000)
        assert chunk.error_code == 0
        size = chunk.size
        found += bytes(chunk.unaligned_records)
    return found


def test_the_chunks_that_fetch_snapshot_returns_join_to_the_leaders_checkpoint_file(
    alone: Cluster, client: Client
) -> None:
    snapshot_id = OffsetAndEpoch(*known(client)["id"])
    assert whole(client) == checkpoint_path(alone, 1, BENCH, snapshot_id).read_bytes()


def test_a_fetch_snapshot_of_two_raft_groups_divides_its_byte_limit_between_the_groups(
    client: Client,
) -> None:
    """The long file gets the bytes that the short one leaves. KIP-630, Request Handling."""
    sizes = {topic: client.snapshots(topic).snapshots[-1].size for topic in (BENCH, METADATA)}
    assert sizes[METADATA] < 2_000 < 10_000 < sizes[BENCH]
    asked = [(topic, known(client, topic)) for topic in (METADATA, BENCH)]
    short, long = client.fetch_snapshot(*asked, max_bytes=6_000)
    assert (short.error_code, long.error_code) == (0, 0)
    assert len(short.unaligned_records) == sizes[METADATA] == short.size
    assert len(long.unaligned_records) == 6_000 - sizes[METADATA]
    short, long = client.fetch_snapshot(*asked, max_bytes=200)
    assert (len(short.unaligned_records), len(long.unaligned_records)) == (100, 100)
    refused, long = client.fetch_snapshot((METADATA, {"epoch": 99, "id": (1, 1)}), asked[1])
    assert (refused.error_code, long.error_code) == (75, 0)  # each partition for itself


def test_a_leader_keeps_a_checkpoint_while_a_client_fetches_its_chunks(client: Client) -> None:
    """A newer one is taken and the log cut to it; a fetch of the old one under way still ends."""
    old = known(client)
    (chunk,) = client.fetch_snapshot((BENCH, old), max_bytes=100)
    client.produce([b"something new"])
    snapshot_id = taken(client)
    wait_until(lambda: client.snapshots().log_start_offset == snapshot_id.offset, "the log is cut")
    (rest,) = client.fetch_snapshot((BENCH, {**old, "position": 100}))
    assert (rest.error_code, rest.size) == (0, chunk.size)
    assert OffsetAndEpoch(*old["id"]) < snapshot_id


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"id": (1, 1)}, 98),  # SNAPSHOT_NOT_FOUND
        ({"id": (10**15, 1)}, 98),
        ({"position": 10**9}, 99),  # POSITION_OUT_OF_RANGE
        ({"position": -1}, 99),
        ({"position": -(2**63)}, 99),
        ({"epoch": 0}, 74),  # FENCED_LEADER_EPOCH
        ({"epoch": 10_000}, 75),  # UNKNOWN_LEADER_EPOCH
        ({"epoch": -1}, 74),  # not known to who asks
        ({"epoch": -(2**31)}, 74),
        ({"id": (-1, 1)}, 98),
        ({"id": (5, -7)}, 98),
        ({"id": (-1, -1)}, 98),
        ({"partition": 7}, 3),  # UNKNOWN_TOPIC_OR_PARTITION
    ],
)
def test_a_leader_refuses_invalid_fetch_snapshot_requests_with_their_error_code(
    client: Client, change: dict, error: int
) -> None:
    (chunk,) = client.fetch_snapshot((BENCH, {**known(client), **change}))
    assert (chunk.error_code, bytes(chunk.unaligned_records)) == (error, b"")


@pytest.mark.parametrize(
    ("fields", "error"),
    [({"max_bytes": -1}, 42), ({"cluster_id": "another"}, 104)],  # INCONSISTENT_CLUSTER_ID
)
def test_a_fetch_snapshot_refused_as_a_whole_gets_a_top_level_error_code(
    client: Client, fields: dict, error: int
) -> None:
    with pytest.raises(ClientError) as refused:
        client.fetch_snapshot((BENCH, known(client)), **fields)
    assert refused.value.error == error


def test_a_node_refuses_a_fetch_snapshot_with_a_negative_replica_id(client: Client) -> None:
    (chunk,) = client.fetch_snapshot((BENCH, known(client)), replica_id=-1)
    assert chunk.error_code == 42


def test_a_node_refuses_snapshot_requests_without_or_with_too_many_partitions(
    client: Client,
) -> None:
    for asked in ([], [(BENCH, known(client))] * 65):
        with pytest.raises(ClientError) as refused:
            client.fetch_snapshot(*asked, cluster_id=CLUSTER_ID)
        assert refused.value.error == 42


def test_a_fetch_snapshot_at_the_end_of_the_file_returns_no_bytes(client: Client) -> None:
    size = len(whole(client))
    (chunk,) = client.fetch_snapshot((BENCH, {**known(client), "position": size}))
    assert (chunk.error_code, chunk.size, len(chunk.unaligned_records)) == (0, size, 0)


def test_a_node_takes_a_checkpoint_on_request_unless_the_request_is_invalid(
    client: Client,
) -> None:
    first = taken(client, METADATA)
    assert first.offset > 0
    assert client.take_snapshot("nobody").error_code == 3
    assert client.take_snapshot(BENCH, timeout_ms=-1).error_code == 42


LOADED = 'kafka_controller_load_snapshot_latency_ms_count{group="esker-bench-log-0"} '


def metrics(alone: Cluster) -> list[str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{alone.metrics_ports[1]}/metrics") as answer:
        text: str = answer.read().decode()
    return text.splitlines()


def test_snapshot_metrics_have_the_names_that_the_kips_define(
    alone: Cluster, client: Client
) -> None:
    """KIP-630, Metrics; KIP-631, Monitoring."""
    snapshot_id = taken(client)
    client.produce([b"one more"])
    lag = client.end_offset() - snapshot_id.offset
    lines = metrics(alone)
    bench = '{group="esker-bench-log-0"}'
    size = client.snapshots().snapshots[-1].size
    assert f"kafka_controller_snapshot_size_bytes{bench} {size}.0" in lines
    assert f"kafka_controller_snapshot_lag{bench} {lag}.0" in lines
    assert any(line.startswith("kafka_controller_metadata_snapshot_lag ") for line in lines)
    generated = f"kafka_controller_gen_snapshot_latency_ms_count{bench} "
    assert any(line.startswith(generated) and float(line.split()[-1]) > 0 for line in lines)
    assert any(line.startswith(LOADED) for line in lines)


def test_a_restarted_node_loads_its_state_from_its_own_checkpoints(
    alone: Cluster, client: Client
) -> None:
    """Features, groups and state are there although both logs begin past them."""
    taken(client, METADATA)
    snapshot_id = taken(client)
    end_offset = client.end_offset()

    def cut(topic: str) -> bool:
        with alone.client(1) as client:
            group = client.snapshots(topic)
            return group.log_start_offset == group.snapshots[-1].end_offset > 0

    for topic in (METADATA, BENCH):
        wait_until(lambda topic=topic: cut(topic), f"the log of {topic} is cut")
    before = alone.output(1)
    alone.kill(1)
    alone.start(1)
    alone.wait_for_leader()
    with alone.client(1) as client:
        assert client.end_offset() > end_offset  # one more LeaderChange
        features = {f.name: f.max_version_level for f in client.versions().finalized_features}
        assert features["metadata.version"] == 27
        assert client.snapshots().log_start_offset >= snapshot_id.offset
        assert taken(client).offset > snapshot_id.offset
    assert f"{LOADED}1.0" in metrics(alone)
    assert "Traceback" not in alone.output(1).removeprefix(before)


def test_a_node_stops_a_raft_group_that_a_loaded_checkpoint_does_not_name(alone: Cluster) -> None:
    """Its removal is no longer in the log: a node that was down learns it from the checkpoint."""
    with alone.client(1) as client:
        taken(client, METADATA)
    alone.stop()
    gone = Group("__diskless-metadata", 0, UUID(int=78))
    Storage.create(RealFileSystem(), alone.log_dir(1), gone, LogConfig(), recovering=False)
    Registry(RealFileSystem(), alone.log_dir(1)).add(gone)
    alone.start()
    alone.wait_for_leader()

    def listed() -> bool:
        return "__diskless-metadata" in (alone.log_dir(1) / "esker.server.groups").read_text()

    wait_until(lambda: not listed(), "the group is listed no more")


def test_a_node_refuses_a_log_that_starts_above_0_without_a_checkpoint(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, size=1, quorum=QUICK, state="kv", log_starts=AT_ONCE) as cluster:
        cluster.start()
        cluster.wait_for_leader()
        with cluster.client(1) as client:
            fill(client, 3)
            snapshot_id = taken(client)
            wait_until(lambda: client.snapshots().log_start_offset > 0, "the log is cut")
        cluster.stop()
        checkpoint_path(cluster, 1, BENCH, snapshot_id).unlink()
        cluster.start()
        assert cluster.processes.pop(1).wait(60) == 1
        last = cluster.output(1).splitlines()[-1]
        assert last.startswith("MissingSnapshotError"), last
        assert f"the log starts at {snapshot_id.offset}" in last
