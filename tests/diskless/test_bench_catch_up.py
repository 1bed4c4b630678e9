"""The benchmark of a consumer's catch-up runs with little data."""

from __future__ import annotations

from bench.bench_catch_up import TINY, rows
from tests.diskless.virtual_time import run


def test_the_catch_up_benchmark_serves_all_bytes_with_fewer_gets_after_merging() -> None:
    ((partitions, objects, batch_bytes),) = TINY
    before, after = run(lambda: rows(partitions, objects, batch_bytes))
    assert (before.objects, after.objects) == (objects, 1)
    assert before.served_mb == after.served_mb > partitions * objects * batch_bytes / 1e6
    assert after.gets_per_mb < before.gets_per_mb
