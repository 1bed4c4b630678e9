"""The bench of a restore still runs, on a small state."""

from __future__ import annotations

from pathlib import Path

from tests.benches import printed


def test_the_restore_benchmark_runs_without_errors(tmp_path: Path) -> None:
    assert "ratio" in printed("bench_restore", "--tiny", cwd=tmp_path)
    assert not list(tmp_path.iterdir()), "it cleans up"
