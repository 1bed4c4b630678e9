"""Three processes, four clients, and everything that can happen to them in a quarter of a minute.

The history that the clients recorded must be one log that never lost anything (invariants 1, 2, 3
and 5, docs/design/invariants.md), in the eyes of the leader and on the disk of each node.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random, SystemRandom

import pytest

from tests.nemesis.cluster import NemesisCluster
from tests.nemesis.nemesis import Nemesis
from tests.nemesis.proxy import Links
from tests.nemesis.workload import LogRead, Workload
from tests.simulation.history import LogAppend, NotLinearizable

SHORT = (
    "kill_leader",
    "kill_all",
    "pause_leader",
    "cut_leader_off",
    "black_hole_leader",
    "deafen_leader",
    "slow_follower",
    "lose_disk",
)
ALL = (
    *SHORT,
    "kill_any",
    "pause_any",
    "pause_all",
    "mute_leader",
    "cut_one_link",
    "flap",
    "kill_all_in_a_split",
)
SOAK_FAULTS = 60


def seed_of_run() -> int:
    """Return NEMESIS_SEED or a new seed, and print the command that repeats this test's plan."""
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
    seed = int(os.environ.get("NEMESIS_SEED") or SystemRandom().randrange(1 << 32))
    print(f"NEMESIS_SEED={seed} .venv/bin/python -m pytest -s '{test}'")
    return seed


def run(directory: Path, seed: int, faults: list[str], *, spoiled: str | None = None) -> None:
    """One run: start, work and suffer, heal, audit. Raises NotLinearizable."""
    cluster = NemesisCluster(directory, spoiled=spoiled)
    with cluster, Links(cluster.ports) as links:
        cluster.links = links
        cluster.start()
        cluster.wait_for_leader()
        with Workload(cluster.ports, seed=seed) as workload:
            nemesis = Nemesis(cluster, links, workload, Random(seed))
            nemesis.run(faults)
        final = cluster.audit(workload)
    appends = sum(isinstance(one, LogAppend) for one in workload.history)
    reads = sum(isinstance(one, LogRead) for one in workload.history)
    print(
        f"{appends} appends, {workload.acknowledged} acknowledged, {reads} linearizable reads, "
        f"{nemesis.stale_reads_tried} of deposed leaders; the log has {len(final)} records; "
        f"longest silence {workload.longest_silence_ns / 1e9:.2f} s"
    )
    assert workload.acknowledged > 50 * len(faults), "the clients hardly worked"


def test_a_quorum_under_each_kind_of_fault_once_loses_no_record(tmp_path: Path) -> None:
    seed = seed_of_run()
    run(tmp_path, seed, Random(seed).sample(SHORT, len(SHORT)))


def test_the_linearizability_checker_finds_reads_that_a_deposed_leader_answers(
    tmp_path: Path,
) -> None:
    """A leader that is cut off believes that it leads for a while; its reads must not."""
    seed = seed_of_run()
    with pytest.raises(NotLinearizable, match="saw less than"):
        run(tmp_path, seed, ["cut_leader_off"] * 3, spoiled="reads")


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_a_quorum_under_a_long_sequence_of_faults_loses_no_record(tmp_path: Path) -> None:
    seed = seed_of_run()
    run(tmp_path, seed, Random(seed).choices(ALL, k=SOAK_FAULTS))
