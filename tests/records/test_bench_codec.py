"""The benchmark of the codecs still runs: at its tiny size, whatever its figures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_codec_benchmark_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.bench_codec", "--tiny"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=280,
    )
    for line in ("PartitionRecord v1", "batch coordinates", "Fetch response 1 x 1 MiB"):
        assert line in done.stdout
