"""Real processes whose logs are cut all the time: who comes late comes up by a checkpoint.

Clients go on meanwhile, leaders are killed, and kill -9 hits nodes at random moments of generating,
fetching and installing. Then the state in every node's checkpoint, with the log after it, must be
the history that the clients saw (invariants 2, 4 and 5, docs/design/invariants.md).
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.nemesis.keyed import KeyedWorkload, audit
from tests.nemesis.proxy import Links
from tests.nemesis.snapshots import KIB, VALUE_BYTES, SnapshotCluster, SnapshotNemesis
from tests.nemesis.test_nemesis import seed_of_run

SHORT = ("wipe", "a_day_behind", "kill_generating", "kill_downloading", "kill_installing")
ALL = (
    *SHORT,
    "kill_all_generating",
    "kill_leader",
    "kill_all",
    "pause_leader",
    "cut_leader_off",
    "black_hole_leader",
    "flap",
)
SHORT_STATE_BYTES = 6 * KIB * KIB
LONG_STATE_BYTES = 64 * KIB * KIB
SOAK_FAULTS = 50


def run(directory: Path, seed: int, faults: list[str], state_bytes: int) -> None:
    """One run: start, fill, work and suffer, heal, audit. Raises NotLinearizable."""
    cluster = SnapshotCluster(directory)
    with cluster, Links(cluster.ports) as links:
        cluster.links = links
        cluster.start()
        workload = KeyedWorkload(cluster.ports, seed=seed, value_bytes=VALUE_BYTES)
        workload.fill(cluster, state_bytes)
        with workload:
            nemesis = SnapshotNemesis(
                cluster, links, workload, Random(seed), state_bytes=state_bytes
            )
            nemesis.run(faults)
        final = audit(cluster, workload)
        starts = [cluster.newest(node) for node in cluster.ids]
    print(
        f"{workload.acknowledged} acknowledged, the log has {len(final)} records, checkpoints up "
        f"to {starts}, {nemesis.by_snapshot} nodes came up by one; "
        f"longest silence {workload.longest_silence_ns / 1e9:.2f} s"
    )
    assert min(starts) > 0
    late = {"wipe", "a_day_behind", "kill_downloading", "kill_installing"}
    assert nemesis.by_snapshot == sum(one in late for one in faults)


def test_quorum_nodes_that_start_after_the_log_start_moved_load_a_snapshot(tmp_path: Path) -> None:
    """Three of the five ways; the next run takes others."""
    seed = seed_of_run()
    run(tmp_path, seed, Random(seed).sample(SHORT, 3), SHORT_STATE_BYTES)


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_a_quorum_that_repeatedly_loads_snapshots_under_faults_loses_no_record(
    tmp_path: Path,
) -> None:
    seed = seed_of_run()
    run(tmp_path, seed, Random(seed).choices(ALL, k=SOAK_FAULTS), LONG_STATE_BYTES)
