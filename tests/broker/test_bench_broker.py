"""The benchmarks of the broker still run: at their tiny sizes, whatever their figures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def output(*words: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", *words, "--tiny"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=280,
    ).stdout


def test_the_benchmark_of_the_brokers_own_code_runs() -> None:
    lines = output("bench.bench_produce")
    assert lines.count("produce / floor") == 3


@pytest.mark.soak
def test_the_benchmark_with_real_processes_runs() -> None:
    lines = output("bench.bench_broker", "latency", "lowest", "throughput")
    for words in ("slow store", "end to end / floor", "1 MiB    batches"):
        assert words in lines
