"""The retention benchmark runs, and all its planners agree."""

from __future__ import annotations

from pathlib import Path

from tests.benches import printed

TINY = ("--batches", "20000", "--partitions", "100", "--no-spark")


def test_the_retention_benchmark_runs_at_a_small_size_and_prints_its_results(
    tmp_path: Path,
) -> None:
    shown = printed("bench_retention", *TINY, "--directory", str(tmp_path / "d"))
    assert "local, from kept digests" in shown
    assert "x DuckDB" in shown.splitlines()[-1]
