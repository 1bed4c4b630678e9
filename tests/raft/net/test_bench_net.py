"""The benchmark runs: a tiny size, so that it does not rot."""

from __future__ import annotations

from tests.benches import printed


def test_the_network_benchmark_runs_at_a_small_size_and_prints_its_results():
    shown = printed("bench_net", "--seconds", "0.05", "--rounds", "1", "--only", "x 100")
    assert [line[:24].strip() for line in shown.splitlines()[2:]] == [
        "100 B, 1 conn x 100",
        "100 B, 1 conn x 1000",
        "client, 100 B x 100",
    ]
