"""The benchmark of groups still runs: at its tiny size, whatever its figures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_benchmark_of_groups_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.bench_groups", "--tiny"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=280,
    )
    for line in ("heartbeats", "one after the other", "checkpoint loaded"):
        assert line in done.stdout
