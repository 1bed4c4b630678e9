"""The benchmarks of transactions run at their tiny sizes."""

from __future__ import annotations

import pytest

from tests.benches import printed

pytestmark = pytest.mark.soak


def test_the_benchmark_of_markers_runs_without_errors() -> None:
    assert "median ratio" in printed("bench_markers", "--tiny")


def test_the_benchmark_of_aborted_transactions_runs_without_errors() -> None:
    assert "ratio of p50" in printed("bench_aborted", "--tiny")


@pytest.mark.java
def test_the_benchmark_of_transactions_beside_kafka_runs_without_errors() -> None:
    lines = printed("bench_transactions", "loop", "rate", "--rounds", "1", "--tiny")
    assert lines.count("must: 400 /s") == 2
