"""The groups benchmark runs at its smallest size; its figures are not checked."""

from __future__ import annotations

from tests.benches import printed


def test_the_consumer_group_benchmark_runs_without_errors() -> None:
    shown = printed("bench_groups", "--tiny")
    for line in ("heartbeats", "one after the other", "checkpoint loaded"):
        assert line in shown
