"""An old disk forks a log: the replica that knew better stops, says so, and tells the leader.

Voter 3 is down, 1 and 2 commit, both die, 1 comes back with an older copy of its disk, 1 and 3
elect and give the same offsets to other records; then voter 2 returns.

Source: docs/design/forks.md.
"""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from raft.driver import mark_rejoin
from raft.segments.files import RealFileSystem
from raft.segments.recovery_point import read_log_state
from tests.raft.driver.cluster import Cluster
from tests.raft.driver.test_cluster import QUICK, log_end, values_from
from tests.waiting import wait_until

GROUP = "esker-bench-log-0"
CLUSTER_LOG = "__cluster_metadata-0"
LOST = [b"acknowledged %d" % i for i in range(30)]


def floor(cluster: Cluster, node: int, group: str = GROUP) -> int:
    """The floor in a node's file."""
    return read_log_state(RealFileSystem(), cluster.log_dir(node) / group).floor


def health(cluster: Cluster, node: int) -> tuple[int, list[str]]:
    """The status of a node's /health, and its reasons."""
    url = f"http://127.0.0.1:{cluster.metrics_ports[node]}/health"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            status, body = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        status, body = error.code, error.read()
    return status, json.loads(body)["reasons"]


def metric(cluster: Cluster, node: int, name: str, group: str = GROUP) -> float:
    """A metric of a group; -1 while the node, or the group there, has not started."""
    url = f"http://127.0.0.1:{cluster.metrics_ports[node]}/metrics"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
    except OSError:
        return -1
    start = f'kafka_server_raft_metrics_{name}{{group="{group}"}} '
    found = (line.removeprefix(start) for line in lines if line.startswith(start))
    return float(next(found, -1))


def lines_with(cluster: Cluster, node: int, word: str, group: str = GROUP) -> list[str]:
    lines = cluster.output(node).splitlines()
    return [line for line in lines if f" {word}=" in line and f"group={group}" in line]


def bring_an_old_disk_back(cluster: Cluster, *groups: str) -> int:
    """The story up to the return of voter 2, with node 1's `groups` from a copy; the log's end."""
    cluster.start()
    with cluster.client(cluster.wait_for_leader()) as client:
        end = client.produce([b"both histories have this"]) + 1
    for node in cluster.ids:
        wait_until(lambda node=node: floor(cluster, node) >= end, f"{node} knows {end} records")
    cluster.kill()
    copied = {group: floor(cluster, 2, group) for group in groups}
    copy = cluster.directory / "copy"
    shutil.copytree(cluster.log_dir(1), copy)
    cluster.start(1, 2)
    with cluster.client(cluster.wait_for_leader()) as client:
        end = client.produce(LOST) + len(LOST)
    wait_until(lambda: floor(cluster, 2) >= end, "voter 2 has a floor above all of them")
    for group in groups:  # the cluster log has the new epoch's first record
        wait_until(
            lambda group=group: floor(cluster, 2, group) > copied[group],
            f"voter 2 knows more of {group} than the copy",
        )
    cluster.kill()
    for group in groups:
        shutil.rmtree(cluster.log_dir(1) / group)
        shutil.copytree(copy / group, cluster.log_dir(1) / group)
    cluster.start(1, 3)
    with cluster.client(cluster.wait_for_leader()) as client:
        client.produce([b"another history"])
    cluster.wait_for_leader("__cluster_metadata")
    cluster.kill()
    cluster.start(1, 3)  # the second election's epoch is one that voter 2 has not been in
    cluster.wait_for_leader("__cluster_metadata")
    cluster.wait_for_leader()
    return end


def test_a_replica_stops_and_its_leader_reports_a_fork_below_committed_records(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, quorum=QUICK, metrics=True) as cluster:
        end = bring_an_old_disk_back(cluster, GROUP, CLUSTER_LOG)
        leader = cluster.wait_for_leader()
        before = {path: path.read_bytes() for path in (cluster.log_dir(2) / GROUP).glob("*.log")}
        cluster.start(2)
        for group in (GROUP, CLUSTER_LOG):
            wait_until(
                lambda group=group: metric(cluster, 2, "in_doubt", group) == 1, f"2 stops {group}"
            )
        (line,) = lines_with(cluster, 2, "in_doubt")
        for part in (f"below offset {end}", f"leader {leader}", "--rejoin", "rm ", "in-doubt"):
            assert part in line, line
        status, reasons = health(cluster, 2)
        assert status == 503
        assert any(f"below offset {end}" in reason for reason in reasons), reasons
        now = {path: path.read_bytes() for path in before}
        assert now == before, "the replica in doubt changed its log"

        wait_until(lambda: metric(cluster, leader, "reported_forks") == 1, "the leader is told")
        (line,) = lines_with(cluster, leader, "fork")
        assert f"voter 2 knew the records below offset {end}" in line
        assert health(cluster, leader)[0] == 503
        with cluster.client(leader) as client:  # it goes on
            client.produce([b"on"])

        cluster.kill(2)  # the doubt survives, and the next leader hears of it, too
        cluster.start(2)
        wait_until(lambda: len(lines_with(cluster, 2, "in_doubt")) == 2, "2 says so again")
        cluster.kill(leader)
        cluster.start(leader)
        following = cluster.wait_for_leader()
        assert following != 2
        wait_until(lambda: metric(cluster, following, "reported_forks") == 1, "the next is told")

        cluster.kill(2)  # the operator takes the other history
        shutil.rmtree(cluster.log_dir(2))
        cluster.format(2)
        mark_rejoin(RealFileSystem(), cluster.log_dir(2))
        cluster.start(2)
        wait_until(lambda: log_end(cluster, following, 2) > 0, "2 follows")
        for node in (2, following):
            wait_until(lambda node=node: health(cluster, node) == (200, []), "all is well")
        assert b"another history" in values_from(cluster, following, 0)


@pytest.mark.soak
def test_the_other_raft_groups_of_a_node_continue_while_a_forked_group_is_stopped(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, quorum=QUICK, metrics=True) as cluster:
        bring_an_old_disk_back(cluster, GROUP)
        cluster.start(2)
        wait_until(lambda: metric(cluster, 2, "in_doubt") == 1, "2 stops the group")
        assert metric(cluster, 2, "in_doubt", CLUSTER_LOG) == 0
        cluster.kill(3)  # the cluster log's majority is 1 and 2 now; the bench log has none
        leader = cluster.wait_for_leader("__cluster_metadata")
        assert leader in (1, 2)
        assert not cluster.leads(1)
        assert not cluster.leads(2)
