"""The benchmark of merging and compaction runs with little data."""

from __future__ import annotations

from bench.bench_compaction import catch_up_row, map_row, show_speed
from tests.diskless.virtual_time import run

SIZE_BYTES = 64 * 1024


def test_the_compaction_benchmark_prints_each_of_its_rows(capsys) -> None:
    show_speed(SIZE_BYTES)
    assert len(capsys.readouterr().out.splitlines()) == 8

    async def row() -> str:
        return await catch_up_row(4, 20, 2_000)

    partitions, objects, gets_before, _, levels, gets_after, *_ = run(row).split()
    assert (partitions, objects, levels) == ("4", "20", "1")
    assert float(gets_after) * 10 < float(gets_before)
    assert map_row(1_000).split()[0] == "1000"
