"""The benchmark of groups at real processes still runs, on the cluster that is there."""

from __future__ import annotations

from bench.bench_group_cluster import measure
from raft.net import run
from tests.clients.world import World


def test_the_group_benchmark_runs_against_a_running_cluster_and_prints_its_results(
    world: World,
) -> None:
    figures = run(measure(world.bootstrap, world.topic(), 4, 0.02))
    assert all(figure > 0 for figure in figures), figures
