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
from tests.spark_jobs.standalone import StandaloneCluster, standalone_cluster
from tests.spark_jobs.topics_world import TopicsWorld
from tests.waiting import wait_until

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
if len(sys.argv) > 4:

    def slowly(batches, seen=sys.argv[4]):
        import os, time

        for batch in batches:
            Path(seen, str(os.getpid())).touch()
            time.sleep(1)
            yield batch

    frame = frame.mapInArrow(slowly, frame.schema)
print("rows", frame.count(), frame.selectExpr("sum(offset)").first()[0])
"""


def start_main(
    master: str, directory: Path, options: dict[str, str], *more: str
) -> subprocess.Popen[str]:
    """Start a user's program, which ships our code, on a cluster."""
    directory.mkdir()
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, master, str(directory), json.dumps(options), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        cwd=Path(__file__).parents[2],
    )


def run_main(master: str, directory: Path, options: dict[str, str]) -> tuple[int, str, str]:
    """Run a user's program to its end; return its exit code and output."""
    with start_main(master, directory, options) as process:
        told, errors = process.communicate()
    return process.returncode, told, errors


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
        code, told, errors = run_main(workers.url, tmp_path / "zip", options)
        assert code == 0, errors[-3000:]
        total = sum(row[2] for row in world.consume("random"))
        assert f"rows 1500 {total}" in told
        elsewhere = {**options, "store": str(tmp_path / "elsewhere")}
        code, _, errors = run_main(workers.url, tmp_path / "zip2", elsewhere)
        assert code != 0
        assert "no such directory" in errors or "do all workers share it?" in errors
        _kill_a_worker_in_a_scan(tmp_path, workers, options, f"rows 1500 {total}")


def _kill_a_worker_in_a_scan(
    tmp_path: Path, workers: StandaloneCluster, options: dict[str, str], expected: str
) -> None:
    """A worker and its executor are killed while tasks read; the others read their rows again."""
    seen = tmp_path / "seen"
    seen.mkdir()
    slow = {**options, "minPartitions": "12"}
    with start_main(workers.url, tmp_path / "zip3", slow, str(seen)) as process:
        wait_until(
            lambda: any(seen.iterdir()) or process.poll() is not None,
            "a task reads",
            deadline_s=600,
        )
        assert process.poll() is None, process.communicate()
        workers.kill("worker-0")
        told, errors = process.communicate()
    assert process.returncode == 0, errors[-3000:]
    assert expected in told
