"""The power of all three machines fails at once, and nothing acknowledged before is lost.

Each node's log lies on an ext4 image of its own. Under load, right after an acknowledgement, all
nodes are stopped (SIGSTOP, so that the copies are of one moment), the images are copied without any
sync, the nodes are killed and restarted from the copies.

The same with nodes that do not flush must find a loss, or the test would prove nothing. Such nodes
find it out themselves, mostly: a small file is empty, or the log ends below its recovery point, and
they do not start. So that the loss stays silent and the audit has to find it, the young groups are
brought to the disk first, and the recovery point is not recorded under load.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from tests.nemesis.cluster import NemesisCluster
from tests.nemesis.disks import Disks
from tests.nemesis.test_nemesis import seed_of_run
from tests.nemesis.workload import Workload
from tests.simulation.history import NotLinearizable
from tests.waiting import wait_until

pytestmark = pytest.mark.root
ROUNDS = 25
NO_RECOVERY_POINT = {"recovery_point_interval_ms": 3_600_000}


def lose_power(cluster: NemesisCluster, disks: Disks, nodes: Sequence[int]) -> None:
    """These nodes stop at one moment and come back from copies of their disks."""
    for node in nodes:
        cluster.signal(node, signal.SIGSTOP)
    mounts = {node: cluster.log_dir(node).parent for node in nodes}
    copies = {node: disks.copy_image(mounts[node]) for node in nodes}
    cluster.kill(*nodes)
    for node in nodes:
        disks.replace(mounts[node], copies[node])
    cluster.start(*nodes)


def power_loss(
    directory: Path, disks: Disks, seed: int, *, rounds: int = 1, spoiled: str | None = None
) -> None:
    """Power failures of all nodes, or, if there are several rounds, of random ones; and the audit.

    Raises:  NotLinearizable.
    """
    random = Random(seed)
    for node in (1, 2, 3):
        disks.make_image(directory / str(node))
    log = NO_RECOVERY_POINT if spoiled else {}
    with NemesisCluster(directory, spoiled=spoiled, log=log) as cluster:
        cluster.start()
        cluster.wait_for_leader()
        if spoiled:
            wait_until(cluster.caught_up, "the group is on all nodes")
            for node in cluster.ids:
                disks.flush(directory / str(node))
        with Workload(cluster.ports, seed=seed) as workload:
            for _ in range(rounds):
                enough = workload.acknowledged + random.randrange(20, 300)
                wait_until(lambda enough=enough: workload.acknowledged >= enough, "clients work")
                count = 3 if rounds == 1 else random.choice((1, 2, 3))
                if spoiled:
                    workload.stop()  # or new records would take the places of lost ones
                lose_power(cluster, disks, random.sample(cluster.ids, count))
        cluster.audit(workload)
    print(f"{workload.acknowledged} acknowledged")


def test_a_power_failure_of_all_quorum_nodes_loses_no_acknowledged_record(
    tmp_path: Path, disks: Disks
) -> None:
    seed = seed_of_run()
    power_loss(tmp_path / "cluster", disks, seed)


def test_the_power_failure_check_finds_nodes_that_acknowledge_records_without_a_flush(
    tmp_path: Path, disks: Disks
) -> None:
    seed = seed_of_run()
    with pytest.raises(NotLinearizable, match="lost"):
        power_loss(tmp_path / "cluster", disks, seed, spoiled="flush")


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_many_power_failures_of_quorum_nodes_lose_no_acknowledged_record(
    tmp_path: Path, disks: Disks
) -> None:
    seed = seed_of_run()
    power_loss(tmp_path / "cluster", disks, seed, rounds=ROUNDS)
