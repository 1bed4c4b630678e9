"""Benchmarks of whole clusters run at their tiny sizes."""

from __future__ import annotations

import pytest

from tests.benches import printed


@pytest.mark.soak
@pytest.mark.parametrize(
    "name",
    [
        "bench_catch_up_cold",
        "bench_kafka_cleaner",
        "bench_observers",
        "bench_processes",
        "bench_quorum",
        "bench_quorum_core",
        "bench_work",
    ],
)
def test_a_benchmark_of_clusters_runs_without_errors(name: str) -> None:
    assert printed(name, "--tiny")
