"""The benchmark of the decoder still runs: at its tiny size, whatever its figures."""

from __future__ import annotations

from tests.benches import printed


def test_the_decoder_benchmark_runs_without_errors() -> None:
    shown = printed("bench_decoder", "--tiny")
    for line in ("100 B, 160 a batch    none", "100 B, 3 a batch      lz4"):
        assert line in shown
