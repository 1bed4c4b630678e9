"""The archive benchmark runs at its tiny size."""

from __future__ import annotations

from tests.benches import printed


def test_the_archive_benchmark_runs_at_a_small_size_and_prints_its_results() -> None:
    shown = printed("bench_archive", "--tiny")
    for row in (
        "walk the log, checksums only",
        "archive, avro",
        "archive, parquet",
        "read the archive back",
        "verify the archive",
        "fastavro alone, ready rows",
    ):
        assert shown.count(row) == 2, shown
