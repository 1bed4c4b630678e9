"""The benchmark runs: a tiny size, so that it does not rot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench" / "bench_net.py"


def test_the_benchmark_prints_its_ratios():
    done = subprocess.run(
        [sys.executable, BENCH, "--seconds", "0.05", "--rounds", "1", "--only", "x 100"],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line[:24].strip() for line in lines[2:]] == [
        "100 B, 1 conn x 100",
        "100 B, 1 conn x 1000",
        "client, 100 B x 100",
    ]
