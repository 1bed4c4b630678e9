"""The scan benchmark runs at a tiny size without the JVM, and its readers agree."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'esker[spark]'")

from bench import bench_spark_scan as bench

# In a process of its own: DuckDB, once imported, complains at its end of what it never freed.
PEERS = """
import sys
from pathlib import Path
from bench import bench_spark_scan as bench
bench.ROUNDS = 1
bench.without_spark(Path(sys.argv[1]), lambda name, _: print(name))
"""


def test_the_log_that_the_scan_benchmark_writes_has_the_stated_number_of_rows(
    tmp_path: Path,
) -> None:
    bench.write_log(tmp_path / "node", 1_000, seed=1)
    batches = list(bench.arrow_batches(tmp_path / "node"))
    assert sum(batch.num_rows for batch in batches) == 1_000
    assert set(bench.FIFTEEN) <= set(batches[0].schema.names)
    assert bench.write_parquet(tmp_path / "node", tmp_path / "parquet") == 1_000
    command = [sys.executable, "-c", PEERS, str(tmp_path / "parquet")]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert len(ran.stdout.splitlines()) == 3
