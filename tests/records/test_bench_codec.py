"""The benchmark of the codecs still runs: at its tiny size, whatever its figures."""

from __future__ import annotations

from tests.benches import printed


def test_the_codec_benchmark_runs_without_errors() -> None:
    shown = printed("bench_codec", "--tiny")
    for line in ("PartitionRecord v1", "batch coordinates", "Fetch response 1 x 1 MiB"):
        assert line in shown
