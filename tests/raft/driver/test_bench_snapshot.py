"""The benchmark of checkpoints still runs: at its tiny size, whatever its figures."""

from __future__ import annotations

from tests.benches import printed


def test_the_snapshot_benchmark_runs_at_a_small_size_and_prints_its_results() -> None:
    shown = printed("bench_snapshot", "--tiny")
    for row in (
        "generation, no other load",
        "p99 while generating, one at a time",
        "empty replica to state loaded",
        "p99 while serving, 100 in flight",
        "memory while generating",
        "memory while serving",
        "memory while installing",
    ):
        assert row in shown, shown
