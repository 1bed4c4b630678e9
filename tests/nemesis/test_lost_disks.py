"""Two disks of three are lost: the quorum stops, and does not go on with less than it promised.

One lost disk is among the faults of `test_nemesis.py`.

Source: docs/design/quorum.md#lost-disks.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

from tests.nemesis.cluster import NemesisCluster
from tests.nemesis.test_nemesis import seed_of_run
from tests.waiting import wait_until


def in_vain(output: str) -> int:
    """How often a node's cluster group asked for pre-votes and got no majority."""
    reason = "reason=no_majority_of_pre-votes"
    return sum("__cluster_metadata-0" in line and reason in line for line in output.splitlines())


def test_a_quorum_of_three_elects_no_leader_after_two_disks_are_lost(tmp_path: Path) -> None:
    seed = seed_of_run()
    with NemesisCluster(tmp_path) as cluster:
        cluster.start()
        with cluster.client(cluster.wait_for_leader()) as client:
            client.produce([b"promised"])
        wait_until(cluster.caught_up, "all have it")
        cluster.kill()
        survivor, *lost = Random(seed).sample(cluster.ids, 3)
        for node in lost:
            cluster.lose_disk(node)
        asked = in_vain(cluster.output(survivor))
        cluster.start()
        wait_until(
            lambda: in_vain(cluster.output(survivor)) >= asked + 3, "the survivor asks in vain"
        )
        for node in cluster.ids:
            assert not cluster.leads(node), f"node {node} leads"
        for node in lost:
            assert cluster.recovering(node), f"node {node} recovered from nobody"
            assert "role=candidate" not in cluster.output(node).split("listening=")[-1]
