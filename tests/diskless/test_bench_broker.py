"""The broker's benchmarks run at their tiny sizes."""

from __future__ import annotations

import pytest

from tests.benches import printed


def test_the_in_process_broker_benchmark_runs_without_errors() -> None:
    lines = printed("bench_produce", "--tiny")
    assert lines.count("produce / floor") == 3


@pytest.mark.soak
@pytest.mark.java
def test_the_benchmark_of_esker_with_default_settings_runs_without_errors() -> None:
    lines = printed("bench_defaults", "java", "consume", "idle", "--rounds", "1", "--tiny")
    for row in ("java", "consume", "idle"):
        assert f"\n{row}" in lines


@pytest.mark.soak
def test_the_benchmark_of_local_segments_runs_without_errors() -> None:
    lines = printed("bench_local_segments", "--tiny")
    assert lines.count("CPU s/GB") == 6


@pytest.mark.soak
def test_the_broker_benchmark_with_real_processes_runs_without_errors() -> None:
    lines = printed("bench_broker", "latency", "lowest", "throughput", "--tiny")
    for words in ("slow store", "end to end / floor", "1 MiB    batches"):
        assert words in lines
