"""A disk is full: its node says so and ends, the others go on, and with room it comes back.

Each node's log lies on a small disk in memory. First a follower's is shrunk to what is used, under
load, then the leader's.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.nemesis.cluster import NemesisCluster, eventually
from tests.nemesis.disks import Disks
from tests.nemesis.test_nemesis import seed_of_run
from tests.nemesis.workload import Workload

pytestmark = pytest.mark.root
ROOM_BYTES = 64 * 1024 * 1024
LAST_BYTES = 128 * 1024  # left on a disk that is to fill up
VALUE_BYTES = 4 * 1024


def test_a_full_disk_ends_its_node_and_nothing_else(tmp_path: Path, disks: Disks) -> None:
    seed = seed_of_run("full_disk")
    directory = tmp_path / "cluster"
    for node in (1, 2, 3):
        disks.make_small(directory / str(node), ROOM_BYTES)
    with NemesisCluster(directory) as cluster:
        cluster.start()
        cluster.wait_for_leader()
        with Workload(cluster.ports, seed=seed, value_bytes=VALUE_BYTES) as workload:
            eventually(lambda: workload.acknowledged > 10, "clients work")
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
    process = cluster.processes[victim]
    eventually(lambda: process.poll() is not None, f"node {victim} fills its disk")
    assert process.returncode == 1, process.returncode
    del cluster.processes[victim]
    last_words = cluster.output(victim).splitlines()[-1]
    assert last_words.startswith("DiskFullError"), last_words
    before = workload.acknowledged
    eventually(lambda: workload.acknowledged > before + 20, "the others go on")
    disks.resize(mount, ROOM_BYTES)
    cluster.start(victim)
    eventually(cluster.caught_up, f"node {victim} has caught up")
