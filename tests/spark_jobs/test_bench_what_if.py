"""The benchmark of what-if still runs: at its tiny size, whatever its errors."""

from __future__ import annotations

from tests.benches import printed


def test_the_what_if_benchmark_runs_without_errors() -> None:
    shown = printed("bench_what_if", "--tiny")
    assert "history: " in shown
    for unit in ("objects", "partitions"):
        assert f"interval of 1 s alone   {unit:14}  predicted " in shown
