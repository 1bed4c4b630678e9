"""The benchmark of groups still runs: at its tiny size, whatever its figures."""

from __future__ import annotations

from tests.benches import printed


def test_the_benchmark_of_groups_runs() -> None:
    shown = printed("bench_groups", "--tiny")
    for line in ("heartbeats", "one after the other", "checkpoint loaded"):
        assert line in shown
