"""`esker_records` on a standalone cluster, in a session that a user starts and ships our code to.

Source: docs/tables.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.cluster import EskerCluster
from tests.spark_jobs.standalone import standalone_cluster
from tests.spark_jobs.topics_world import TopicsWorld

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(900)]

MAIN = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession
from spark_jobs.session.shipping import code_zip
from spark_jobs.topics.records_source import EskerRecords

builder = SparkSession.builder.master(sys.argv[1]).config("spark.executor.memory", "512m")
spark = builder.getOrCreate()
spark.sparkContext.addPyFile(str(code_zip(Path(sys.argv[2]))))
spark.dataSource.register(EskerRecords)
frame = spark.read.format("esker_records").options(**json.loads(sys.argv[3])).load()
print("rows", frame.count(), frame.selectExpr("sum(offset)").first()[0])
"""


def run_main(
    master: str, directory: Path, options: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a user's program, which ships our code, on a cluster."""
    directory.mkdir()
    return subprocess.run(
        [sys.executable, "-c", MAIN, master, str(directory), json.dumps(options)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        cwd=Path(__file__).parents[2],
        check=False,
    )


def test_tasks_on_workers_read_the_rows_of_a_topic(tmp_path: Path) -> None:
    with (
        EskerCluster(tmp_path / "cluster", quorum=(1,), brokers=1) as cluster,
        standalone_cluster(tmp_path) as workers,
    ):
        cluster.start()
        world = TopicsWorld(cluster)
        world.create("random", 3)
        world.fill("random", seed=1, partitions=3)
        options = {**world.options, "subscribe": "random", "minPartitions": "4"}
        ran = run_main(workers.url, tmp_path / "zip", options)
        assert ran.returncode == 0, ran.stderr[-3000:]
        total = sum(row[2] for row in world.consume("random"))
        assert f"rows 1500 {total}" in ran.stdout
        elsewhere = {**options, "store": str(tmp_path / "elsewhere")}
        ran = run_main(workers.url, tmp_path / "zip2", elsewhere)
        assert ran.returncode != 0
        assert "no such directory" in ran.stderr or "do all workers share it?" in ran.stderr
