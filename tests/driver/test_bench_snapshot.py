"""The benchmark of checkpoints still runs: at its tiny size, whatever its figures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_snapshot_benchmark_prints_its_rows() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.bench_snapshot", "--tiny"],
        cwd=ROOT, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for row in (
        "generation, no other load",
        "p99 while generating, one at a time",
        "empty replica to state loaded",
        "p99 while serving, 100 in flight",
        "memory while generating",
        "memory while serving",
        "memory while installing",
    ):
        assert row in done.stdout, done.stdout
