"""The scan's benchmark at a tiny size, but for the JVM: its log is read, its peers agree."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'esker[spark]'")
pytest.importorskip("duckdb", reason="DuckDB is not installed: pip install 'esker[dev]'")

from bench import bench_spark_scan as bench


def test_the_benchmarks_log_has_the_rows_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "ROUNDS", 1)
    bench.write_log(tmp_path / "node", 1_000, seed=1)
    batches = list(bench.arrow_batches(tmp_path / "node"))
    assert sum(batch.num_rows for batch in batches) == 1_000
    assert set(bench.FIFTEEN) <= set(batches[0].schema.names)
    assert bench.write_parquet(tmp_path / "node", tmp_path / "parquet") == 1_000
    said: list[str] = []
    bench.without_spark(tmp_path / "parquet", lambda name, _: said.append(name))
    assert len(said) == 3
