"""Power failures at every phase of a checkpoint, and a disk that is full in mid-download.

Power: each node's log lies on an ext4 image of its own. When a group's directory shows the phase
(see `snapshots`), all nodes are stopped at once, their images are copied without any sync, and they
come back from the copies. Everything acknowledged must be there, in the state and in the log.

Full: the disk of a node without data has room for its log, not for the checkpoint that it fetches.
The download fails and is begun again; the node goes on voting, and once there is room it comes up.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from snapshot import verify_checkpoint
from snapshot.framing import Origin
from tests.nemesis.disks import Disks
from tests.nemesis.keyed import FILES, KeyedWorkload, audit
from tests.nemesis.proxy import Links
from tests.nemesis.snapshots import KIB, LINK_BYTES_PER_S, VALUE_BYTES, SnapshotCluster, at_once
from tests.nemesis.test_nemesis import seed_of_run
from tests.nemesis.test_power_loss import lose_power
from tests.waiting import wait_until

pytestmark = pytest.mark.root

STATE_BYTES = 2 * KIB * KIB  # several such checkpoints fit on an image
SOAK_ROUNDS = 6  # of all phases
ROOM_BYTES = 64 * KIB * KIB


class Phases:
    """Waits for a moment in the life of a checkpoint; says which nodes then lose power."""

    def __init__(
        self, cluster: SnapshotCluster, links: Links, workload: KeyedWorkload, random: Random
    ) -> None:
        self._cluster = cluster
        self._links = links
        self._workload = workload
        self._random = random

    def generating(self) -> None:
        """A part has grown to some size."""
        at_bytes = self._random.randrange(STATE_BYTES)
        cluster = self._cluster
        at_once(
            lambda: any(cluster.generating(node, at_bytes) for node in cluster.ids),
            f"somebody has generated {at_bytes} bytes",
        )

    def renamed(self) -> None:
        """A checkpoint has just got its name."""
        before = {node: self._cluster.newest(node) for node in self._cluster.ids}
        at_once(
            lambda: any(self._cluster.newest(node) > before[node] for node in before),
            "somebody has a new checkpoint",
        )

    def cut(self) -> None:
        """A log has just been cut, its segments and older checkpoints are being deleted."""
        before = {node: self._first_segment(node) for node in self._cluster.ids}
        at_once(
            lambda: any(self._first_segment(node) > before[node] for node in before),
            "somebody's log begins later",
        )

    def downloading(self) -> None:
        """A node with an empty disk has some bytes of a checkpoint."""
        at_bytes = self._random.randrange(1, STATE_BYTES)
        victim = self._wiped()
        at_once(
            lambda: self._cluster.downloading(victim, at_bytes) or self._cluster.newest(victim) > 0,
            f"node {victim} has {at_bytes} bytes of a checkpoint",
        )

    def installing(self) -> None:
        """A node with an empty disk has a whole checkpoint, and a log that is yet to be reset."""
        victim = self._wiped()
        at_once(lambda: self._cluster.newest(victim) > 0, f"node {victim} has a checkpoint")

    def _first_segment(self, node: int) -> int:
        names = (path.name for path in self._cluster.group_directory(node).glob("*.log"))
        return min((int(name[:20]) for name in names), default=-1)

    def _wiped(self) -> int:
        cluster = self._cluster
        leader = self._workload.leader
        assert leader is not None
        victim = self._random.choice(cluster.others(leader))
        cluster.kill(victim)
        cluster.lose_disk(victim)
        for other in cluster.others(victim):
            self._links.drip(other, victim, LINK_BYTES_PER_S / 4)
        cluster.start(victim)
        return victim


ALL = ("generating", "renamed", "cut", "downloading", "installing")


def power_loss(directory: Path, disks: Disks, seed: int, phases: list[str]) -> None:
    """Power failures of all nodes, one at each phase, and the audit. Raises NotLinearizable."""
    random = Random(seed)
    for node in (1, 2, 3):
        disks.make_image(directory / str(node))
    cluster = SnapshotCluster(directory)
    with cluster, Links(cluster.ports) as links:
        cluster.links = links
        cluster.start()
        workload = KeyedWorkload(cluster.ports, seed=seed, value_bytes=VALUE_BYTES)
        workload.fill(cluster, STATE_BYTES)
        with workload:
            watched = Phases(cluster, links, workload, random)
            for phase in phases:
                before = workload.acknowledged + 20
                wait_until(lambda enough=before: workload.acknowledged >= enough, "clients work")
                getattr(watched, phase)()
                lose_power(cluster, disks, cluster.ids)
                print(f"power lost while {phase}")
                links.heal()
                for node in cluster.ids:
                    wait_until(lambda node=node: not cluster.recovering(node), f"{node} is whole")
                wait_until(cluster.caught_up, "all have caught up")
        audit(cluster, workload)
    print(f"{workload.acknowledged} acknowledged")


def test_a_power_failure_of_quorum_nodes_at_any_phase_of_a_checkpoint_loses_no_record(
    tmp_path: Path, disks: Disks
) -> None:
    seed = seed_of_run()
    power_loss(tmp_path / "cluster", disks, seed, Random(seed).sample(ALL, len(ALL)))


def test_the_power_failure_check_finds_checkpoints_renamed_before_they_are_flushed(
    tmp_path: Path, disks: Disks
) -> None:
    """Their names survive the power failure, their bytes do not; a node says so and stops."""
    seed = seed_of_run()
    directory = tmp_path / "cluster"
    for node in (1, 2, 3):
        disks.make_image(directory / str(node))
    cluster = SnapshotCluster(directory, spoiled="checkpoint flush")
    with cluster, Links(cluster.ports) as links:
        cluster.links = links
        cluster.start()
        workload = KeyedWorkload(cluster.ports, seed=seed, value_bytes=VALUE_BYTES)
        workload.fill(cluster, STATE_BYTES)
        with workload:
            watched = Phases(cluster, links, workload, Random(seed))
            watched.renamed()
            lose_power(cluster, disks, cluster.ids)
            wait_until(lambda: bool(stopped_by_damage(cluster)), "a node misses its checkpoint")


def stopped_by_damage(cluster: SnapshotCluster) -> list[int]:
    """Nodes that ended because a checkpoint of theirs is not what it was."""
    ended = [node for node, process in cluster.processes.items() if process.poll() is not None]
    words = {node: cluster.output(node).splitlines()[-1] for node in ended}
    return [node for node in ended if "checkpoint" in words[node] or "Snapshot" in words[node]]


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_many_power_failures_of_quorum_nodes_at_any_phase_of_a_checkpoint_lose_no_record(
    tmp_path: Path, disks: Disks
) -> None:
    seed = seed_of_run()
    chosen = Random(seed).choices(ALL, k=len(ALL) * SOAK_ROUNDS)
    power_loss(tmp_path / "cluster", disks, seed, chosen)


def test_a_node_whose_disk_fills_up_during_a_snapshot_download_keeps_running(
    tmp_path: Path, disks: Disks
) -> None:
    seed = seed_of_run()
    victim = 3
    state_bytes = 6 * KIB * KIB
    directory = tmp_path / "cluster"
    disks.make_small(directory / str(victim), ROOM_BYTES)
    cluster = SnapshotCluster(directory)
    with cluster:
        cluster.start(1, 2)
        workload = KeyedWorkload(cluster.ports, seed=seed, value_bytes=VALUE_BYTES)
        workload.fill(cluster, state_bytes)
        with workload:
            wait_until(lambda: cluster.log_start(workload.leader or 1) > 0, "the log is cut")
            mount = cluster.log_dir(victim).parent
            disks.resize(mount, disks.used_bytes(mount) + state_bytes // 2)
            cluster.start(victim)
            wait_until(lambda: complaints(cluster, victim) >= 2, "the download fails, and again")
            process = cluster.processes[victim]
            assert process.poll() is None, "the node goes on"
            before = workload.acknowledged
            wait_until(lambda: workload.acknowledged > before + 50, "clients go on")
            disks.resize(mount, ROOM_BYTES)
            wait_until(lambda: cluster.fetched(victim) > 0, f"node {victim} has a checkpoint")
            wait_until(cluster.caught_up, f"node {victim} has caught up")
        audit(cluster, workload)
        checkpoints = list(cluster.group_directory(victim).glob("*.checkpoint"))
        assert all(verify_checkpoint(FILES, one).origin is Origin.ESKER for one in checkpoints)


def complaints(cluster: SnapshotCluster, node: int) -> int:
    """How often the node said that a download found no space."""
    return cluster.output(node).count("No space left on device")
