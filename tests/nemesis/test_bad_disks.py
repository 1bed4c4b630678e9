"""A disk is full, or cannot flush: its node says so and ends, the others go on, and it comes back.

Full: each node's log lies on a small disk in memory. First a follower's is shrunk to what is used,
under load, then the leader's. Cannot flush: the leader's fdatasync reports EIO from then on.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.nemesis.cluster import NemesisCluster
from tests.nemesis.disks import Disks
from tests.nemesis.node_main import FAIL
from tests.nemesis.test_nemesis import seed_of_run
from tests.nemesis.workload import Workload
from tests.waiting import wait_until

ROOM_BYTES = 64 * 1024 * 1024
LAST_BYTES = 128 * 1024  # left on a disk that is to fill up
VALUE_BYTES = 4 * 1024


@pytest.mark.root
def test_a_node_with_a_full_disk_stops_and_the_other_nodes_lose_no_record(
    tmp_path: Path, disks: Disks
) -> None:
    seed = seed_of_run()
    directory = tmp_path / "cluster"
    for node in (1, 2, 3):
        disks.make_small(directory / str(node), ROOM_BYTES)
    with NemesisCluster(directory) as cluster:
        cluster.start()
        cluster.wait_for_leader()
        with Workload(cluster.ports, seed=seed, value_bytes=VALUE_BYTES) as workload:
            wait_until(lambda: workload.acknowledged > 10, "clients work")
            leader = workload.leader
            follower = Random(seed).choice([node for node in cluster.ids if node != leader])
            fill_up(cluster, disks, workload, follower)
            assert workload.leader is not None
            fill_up(cluster, disks, workload, workload.leader)
        cluster.audit(workload)


def fill_up(cluster: NemesisCluster, disks: Disks, workload: Workload, victim: int) -> None:
    """Let the victim's disk become full; see it end and the others work; make room; start it."""
    mount = cluster.log_dir(victim).parent
    disks.resize(mount, disks.used_bytes(mount) + LAST_BYTES)
    see_it_end(cluster, workload, victim, "DiskFullError")
    disks.resize(mount, ROOM_BYTES)
    cluster.start(victim)
    wait_until(cluster.caught_up, f"node {victim} has caught up")


def test_a_node_whose_disk_fails_a_flush_stops_and_the_other_nodes_lose_no_record(
    tmp_path: Path,
) -> None:
    """After it nobody knows what is on the disk, so the node must not go on."""
    with NemesisCluster(tmp_path, spoiled="flushes fail") as cluster:
        cluster.start()
        cluster.wait_for_leader()
        with Workload(cluster.ports, seed=seed_of_run()) as workload:
            wait_until(lambda: workload.acknowledged > 10, "clients work")
            victim = workload.leader
            assert victim is not None
            mark = cluster.log_dir(victim).parent / FAIL
            mark.touch()
            # The second refuses what came before the loop was told of the first.
            see_it_end(cluster, workload, victim, "FlushFailedError", "LogFailedError")
            assert "Input/output error" in cluster.output(victim).splitlines()[-1]
            mark.unlink()
            cluster.start(victim)
            wait_until(cluster.caught_up, f"node {victim} has caught up")
        cluster.audit(workload)


def see_it_end(cluster: NemesisCluster, workload: Workload, victim: int, *errors: str) -> None:
    """The node ends with one of these errors, and clients are served by the others."""
    process = cluster.processes[victim]
    wait_until(lambda: process.poll() is not None, f"node {victim} ends")
    assert process.returncode == 1, process.returncode
    del cluster.processes[victim]
    last_line = cluster.output(victim).splitlines()[-1]
    assert last_line.startswith(errors), last_line
    before = workload.acknowledged
    wait_until(lambda: workload.acknowledged > before + 20, "the others go on")
