"""The bench of backups still runs, for seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benches import printed


@pytest.mark.soak
def test_the_backup_benchmark_runs_without_errors(tmp_path: Path) -> None:
    assert "median ratio" in printed("bench_backup", "--tiny", cwd=tmp_path)
    assert not list(tmp_path.iterdir()), "it cleans up"
