"""The benchmark of tables still runs: at its tiny size, whatever its figures."""

from __future__ import annotations

from tests.benches import printed


def test_the_tables_benchmark_runs_without_errors() -> None:
    assert "a commit after 3: " in printed("bench_tables", "--tiny")
