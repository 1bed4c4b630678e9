"""The bench of one node's checkpoints still runs, on a small state."""

from __future__ import annotations

from pathlib import Path

from tests.benches import printed


def test_the_checkpoint_benchmark_runs_without_errors(tmp_path: Path):
    assert "ratio" in printed("bench_checkpoint", "--tiny", cwd=tmp_path)
    assert not list(tmp_path.iterdir()), "it cleans up"
