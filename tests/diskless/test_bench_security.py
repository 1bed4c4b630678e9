"""The benchmark of security runs at its tiny sizes."""

from __future__ import annotations

from tests.benches import printed


def test_the_benchmark_of_security_runs_without_errors() -> None:
    lines = printed("bench_security", "authorize", "metadata", "--tiny", "--rounds", "2")
    assert lines.count("(must 1 ms)") == 4
    assert lines.count("(must 10 ms)") == 4
