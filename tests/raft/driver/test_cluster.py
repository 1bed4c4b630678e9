"""Real processes: they elect, commit, survive kill -9, and never lose what was acknowledged."""

from __future__ import annotations

import json
import shutil
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from raft.driver import mark_rejoin
from raft.segments.files import RealFileSystem
from tests.raft.driver.client import ClientError
from tests.raft.driver.cluster import Cluster
from tests.waiting import wait_until

QUICK = {"election_timeout_ms": 300, "fetch_timeout_ms": 1_000, "fetch_max_wait_ms": 250}
"""Timers for tests that are not about timers."""

NEVER_LATE = {"fetch_timeout_ms": 45_000}
"""Who waits for this timer to miss a leader misses `SOON_S`, on however busy a machine."""
SOON_S = 20.0

NOT_LEADER = 6


def values_from(cluster: Cluster, node: int, offset: int) -> list[bytes]:
    """All committed values from an offset on, as the leader serves them."""
    found: list[bytes] = []
    with cluster.client(node) as client:
        while more := client.read(offset):
            found += [value for _, value in more]
            offset = more[-1][0] + 1
    return found


def log_end(cluster: Cluster, leader: int, node: int) -> int:
    """How far a replica's log reaches, as its leader knows."""
    with cluster.client(leader) as client:
        group = client.describe("esker-bench-log")
    replicas = {state.replica_id: state for state in (*group.current_voters, *group.observers)}
    return replicas[node].log_end_offset if node in replicas else -1


def test_three_quorum_processes_elect_a_leader_and_commit_records(tmp_path: Path) -> None:
    with Cluster(tmp_path, quorum=QUICK) as cluster:
        cluster.start()
        leader = cluster.wait_for_leader()
        with cluster.client(leader) as client:
            first = client.produce([b"one", b"two"])
            assert client.produce([b"three"]) == first + 2
            assert client.end_offset() == first + 3
            assert [value for _, value in client.read(first)] == [b"one", b"two", b"three"]
        follower = next(node for node in cluster.ids if node != leader)

        def refuses() -> bool:
            """Once it has begun, and has the group."""
            try:
                with cluster.client(follower) as client:
                    client.produce([b"not here"])
            except ClientError as refused:
                return refused.error == NOT_LEADER
            except OSError:
                return False
            raise AssertionError(f"node {follower} does not lead, and took it")

        wait_until(refuses, "a follower takes nothing")
        assert set(cluster.stop().values()) == {0}


def test_records_acknowledged_by_a_leader_survive_when_it_is_killed(tmp_path: Path) -> None:
    with Cluster(tmp_path, quorum=NEVER_LATE) as cluster:
        cluster.start()
        leader = cluster.wait_for_leader()
        with cluster.client(leader) as client:
            first = client.produce([b"%d" % i for i in range(100)])
        began = time.monotonic()
        cluster.kill(leader)
        successor = cluster.wait_for_leader()
        elapsed = time.monotonic() - began
        assert successor != leader
        assert values_from(cluster, successor, first) == [b"%d" % i for i in range(100)]
        assert elapsed < SOON_S, f"{elapsed:.2f} s: the lost connection was no news"
        cluster.start(leader)
        wait_until(
            lambda: log_end(cluster, successor, leader) >= first + 100, "the old leader catches up"
        )


def test_records_committed_by_a_quorum_survive_when_all_nodes_are_killed(tmp_path: Path) -> None:
    with Cluster(tmp_path, quorum=QUICK) as cluster:
        cluster.start()
        with cluster.client(cluster.wait_for_leader()) as client:
            first = client.produce([b"kept"] * 10)
            end_offset = client.end_offset()
        cluster.kill()
        cluster.start()
        leader = cluster.wait_for_leader()
        assert values_from(cluster, leader, first) == [b"kept"] * 10
        with cluster.client(leader) as client:
            assert client.produce([b"more"]) > end_offset  # a LeaderChange came between


def test_a_deposed_leader_truncates_records_that_no_majority_held(tmp_path: Path) -> None:
    with Cluster(tmp_path, quorum=QUICK | NEVER_LATE) as cluster:
        cluster.start()
        leader = cluster.wait_for_leader()
        others = [node for node in cluster.ids if node != leader]
        with cluster.client(leader) as client:
            first = client.produce([b"before"])
            for node in others:
                cluster.signal(node, signal.SIGSTOP)
        # The first answers Fetches that wait, if any do; the second is in the leader's log alone.
        for value in (b"unknown", b"lost"):
            with cluster.client(leader) as client:
                client.socket.settimeout(0.3)
                with pytest.raises(TimeoutError):
                    client.produce([value])
        cluster.kill(leader)
        for node in others:
            cluster.signal(node, signal.SIGCONT)
        successor = cluster.wait_for_leader()
        with cluster.client(successor) as client:
            client.produce([b"after"])
        cluster.start(leader)
        with cluster.client(successor) as client:
            end_offset = client.end_offset()
        # On a busy machine somebody else may lead by now, in a log that is one record longer.
        wait_until(
            lambda: log_end(cluster, cluster.wait_for_leader(), leader) >= end_offset,
            "the logs agree",
        )
        assert "action=truncate" in cluster.output(leader)
        values = values_from(cluster, cluster.wait_for_leader(), first)
        assert [value for value in values if value != b"unknown"] == [b"before", b"after"]


def test_a_leader_that_stops_cleanly_resigns_so_that_a_successor_is_elected_at_once(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, quorum=NEVER_LATE) as cluster:
        cluster.start()
        leader = cluster.wait_for_leader()
        began = time.monotonic()
        assert cluster.stop(leader) == {leader: 0}
        cluster.wait_for_leader()
        assert time.monotonic() - began < SOON_S
        assert "role=resigned" in cluster.output(leader)


def test_an_observer_replicates_the_log_and_appears_in_describe_quorum(tmp_path: Path) -> None:
    with Cluster(tmp_path, size=4, voters=3, quorum=QUICK) as cluster:
        cluster.start()
        leader = cluster.wait_for_leader()
        with cluster.client(leader) as client:
            end_offset = client.produce([b"x"] * 5) + 5
        wait_until(lambda: log_end(cluster, leader, 4) >= end_offset, "the observer has it all")
        with cluster.client(leader) as client:
            group = client.describe("esker-bench-log")
        assert [state.replica_id for state in group.observers] == [4]
        assert sorted(state.replica_id for state in group.current_voters) == [1, 2, 3]


def test_a_node_with_a_lost_raft_group_directory_starts_only_after_a_rejoin(tmp_path: Path) -> None:
    """Never a fresh log; a rejoined voter first catches up.

    Source: docs/design/quorum.md#lost-disks.
    """
    with Cluster(tmp_path, quorum=QUICK) as cluster:
        cluster.start()
        leader = cluster.wait_for_leader()
        victim = next(node for node in cluster.ids if node != leader)
        with cluster.client(leader) as client:
            end_offset = client.produce([b"x"] * 50) + 50
        cluster.kill(victim)
        shutil.rmtree(cluster.log_dir(victim) / "esker-bench-log-0")
        cluster.start(victim)
        assert cluster.processes.pop(victim).wait(60) == 1
        assert "LostDiskError" in cluster.output(victim)
        assert "esker-bench-log-0" in cluster.output(victim)

        shutil.rmtree(cluster.log_dir(victim))
        cluster.format(victim)
        mark_rejoin(RealFileSystem(), cluster.log_dir(victim))
        cluster.start(victim)
        wait_until(lambda: log_end(cluster, leader, victim) >= end_offset, "the log is there again")
        marks = [
            cluster.log_dir(victim) / "esker.rejoin",
            cluster.log_dir(victim) / "esker-bench-log-0" / "recovering",
            cluster.log_dir(victim) / "__cluster_metadata-0" / "recovering",
        ]
        wait_until(lambda: not any(mark.exists() for mark in marks), "no longer recovering")
        cluster.kill(leader)  # now its vote counts again
        assert cluster.wait_for_leader() != leader


def test_a_second_node_process_refuses_to_run_on_the_same_log_directory(tmp_path: Path) -> None:
    with Cluster(tmp_path, size=1, quorum=QUICK) as cluster:
        cluster.start()
        cluster.wait_for_leader()
        first = cluster.processes.pop(1)
        try:
            cluster.start(1)
            assert cluster.processes.pop(1).wait(60) == 1
            assert "DirectoryInUseError" in cluster.output(1)
        finally:
            first.kill()
            first.wait()


def test_the_health_and_metrics_of_a_node_show_whether_a_majority_of_voters_is_reachable(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, quorum=QUICK, metrics=True) as cluster:
        cluster.start()
        leader = cluster.wait_for_leader()

        def health(node: int) -> int:
            try:
                with urllib.request.urlopen(
                    f"http://127.0.0.1:{cluster.metrics_ports[node]}/health", timeout=30
                ) as answer:
                    assert json.load(answer)["healthy"] is True
                    return answer.status
            except urllib.error.HTTPError as error:
                return error.code
            except OSError:  # it does not listen yet
                return 0

        for node in cluster.ids:
            wait_until(lambda node=node: health(node) == 200, f"node {node} is healthy")
        with urllib.request.urlopen(
            f"http://127.0.0.1:{cluster.metrics_ports[leader]}/metrics", timeout=30
        ) as answer:
            text = answer.read().decode()
        group = 'group="esker-bench-log-0"'
        assert f"kafka_server_raft_metrics_current_leader{{{group}}} {float(leader)}" in text
        assert f'kafka_server_raft_metrics_current_state{{{group},state="leader"}} 1.0' in text
        assert "kafka_controller_metadata_commit_latency_ms" in text
        survivor = next(node for node in cluster.ids if node != leader)
        cluster.kill(*(node for node in cluster.ids if node != survivor))
        wait_until(lambda: health(survivor) == 503, "one of three is not healthy")


def test_the_leader_of_an_idle_cluster_log_writes_no_op_records(tmp_path: Path) -> None:
    """Followers of the log see that its leader is alive. KIP-835."""
    with Cluster(tmp_path, size=1, quorum=QUICK) as cluster:
        cluster.start()
        cluster.wait_for_leader()

        def metadata_end() -> int:
            with cluster.client(1) as client:
                return client.end_offset("__cluster_metadata")

        begin = metadata_end()
        wait_until(lambda: metadata_end() >= begin + 2, "two NoOpRecords")
        with cluster.client(1) as client:
            quiet = client.end_offset()
            assert client.end_offset() == quiet  # and only there


def test_an_api_versions_response_lists_features_and_falls_back_to_version_0(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, size=1, quorum=QUICK) as cluster:
        cluster.start()
        cluster.wait_for_leader()
        with cluster.client(1) as client:
            versions = client.versions()
            features = {f.name: f.max_version_level for f in versions.finalized_features}
            assert features == {"metadata.version": 27}
            assert versions.finalized_features_epoch > 0
            assert {api.api_key for api in versions.api_keys} >= {0, 1, 2, 18, 52, 53, 54, 55, 60}
            # Version 9 of ApiVersions does not exist: an answer in version 0 says so (KIP-511).
            client.socket.sendall(bytes.fromhex("0000000c 0012 0009 00000007 ffff 00 00"))
            frame = client.receive_frame()
            assert frame[:6] == bytes.fromhex("00000007 0023")


def test_a_node_with_a_full_disk_stops_while_the_other_nodes_commit(tmp_path: Path) -> None:
    """A node that cannot write must not acknowledge; with free space it starts again."""
    with Cluster(tmp_path, quorum=QUICK) as cluster:
        cluster.extra[1] = {"max_file_bytes": 200_000}
        cluster.start()
        cluster.wait_for_leader()
        values = [b"x" * 1_000] * 10

        def fill() -> bool:
            try:
                with cluster.client(cluster.wait_for_leader()) as client:
                    client.produce(values)
            except (OSError, ClientError):
                pass  # the leader may be the one that stops: the outcome is unknown
            return cluster.processes[1].poll() is not None

        wait_until(fill, "node 1 stops")
        assert cluster.processes.pop(1).returncode == 1
        assert "fatal=DiskFullError" in cluster.output(1)
        leader = cluster.wait_for_leader()
        with cluster.client(leader) as client:
            end_offset = client.produce(values) + 10
        del cluster.extra[1]
        cluster.start(1)
        wait_until(lambda: log_end(cluster, leader, 1) >= end_offset, "node 1 has it all")


def test_a_node_records_its_recovery_point_soon_after_the_last_flush(tmp_path: Path) -> None:
    """Damage below it is never cut away as a torn tail.

    Source: docs/design/quorum.md#recovery-point.
    """
    with Cluster(tmp_path, size=1, quorum=QUICK) as cluster:
        cluster.start()
        cluster.wait_for_leader()
        with cluster.client(1) as client:
            end_offset = client.produce([b"x"]) + 1
        path = cluster.log_dir(1) / "esker-bench-log-0" / "recovery-point"
        wait_until(
            lambda: f"recovery_point={end_offset} " in path.read_text(), "the point is recorded"
        )
