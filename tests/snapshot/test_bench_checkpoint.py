"""The bench of one node's checkpoints still runs, on a small state."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_benchmark_still_runs(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "bench_checkpoint.py"), "--tiny"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "ratio" in done.stdout
    assert not list(tmp_path.iterdir()), "it cleans up"
