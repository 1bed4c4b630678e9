"""The benchmark of archives still runs: at its tiny size, whatever its figures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_archive_benchmark_prints_its_rows() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.bench_archive", "--tiny"],
        cwd=ROOT, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for row in (
        "walk the log, checksums only",
        "archive, avro",
        "archive, parquet",
        "read the archive back",
        "verify the archive",
        "fastavro alone, ready rows",
    ):
        assert done.stdout.count(row) == 2, done.stdout
