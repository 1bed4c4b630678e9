"""The benchmark still runs, and everybody in it plans the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.driver.cluster import ROOT

TINY = ("--batches", "20000", "--partitions", "100", "--no-spark")


def test_a_tiny_benchmark_ends_with_its_ratios(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "bench.bench_retention",
        *TINY,
        "--directory",
        str(tmp_path / "d"),
    ]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "local, from kept digests" in ran.stdout
    assert "x DuckDB" in ran.stdout.splitlines()[-1]
