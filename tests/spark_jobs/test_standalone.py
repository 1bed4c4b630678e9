"""On a real cluster our code is shipped, and a job survives one of two workers."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from records.metadata import FeatureLevelRecord, NoOpRecord
from tests.spark_jobs.logs import mark_committed, write_log

if TYPE_CHECKING:
    import pyarrow as pa

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(300)]

LOG = "__cluster_metadata-0"
SEGMENTS = 12
EXECUTORS = {"spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Write a node's directory with enough segments for several on each worker."""
    batches = [[FeatureLevelRecord(name="f", feature_level=n), NoOpRecord()] for n in range(120)]
    end = write_log(tmp_path / "node" / LOG, batches, segment_batches=120 // SEGMENTS)
    mark_committed(tmp_path / "node", {LOG: end})
    return tmp_path / "node"


def test_a_spark_job_completes_after_one_of_its_workers_is_killed(
    tmp_path: Path, log_dir: Path
) -> None:
    """Each task reports that it runs, then waits; with two running one worker is killed.
    Every offset is there once all the same, and was read by the code that was sent along."""
    from spark_jobs.session.spark_session import session
    from spark_jobs.source.log_source import EskerLog
    from tests.spark_jobs.standalone import standalone_cluster
    from tests.waiting import wait_until

    running, go = tmp_path / "running", tmp_path / "go"
    running.mkdir()

    def held_up(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Wait for the other tasks; sent by value, as notebooks send theirs."""
        import time

        import pyarrow

        import spark_jobs

        (running / str(os.getpid())).touch()
        deadline = time.monotonic() + 60
        while not go.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        for batch in batches:
            where = pyarrow.repeat(f"{os.getpid()} {spark_jobs.__file__}", batch.num_rows)
            columns = [batch.column("log_offset"), where]
            yield pyarrow.RecordBatch.from_arrays(columns, names=["log_offset", "where"])

    with standalone_cluster(tmp_path) as cluster:

        def kill_one() -> None:
            try:
                wait_until(lambda: len(list(running.iterdir())) >= 2, "two tasks at once")
                cluster.kill("worker-1")
            finally:
                go.touch()

        killing = threading.Thread(target=kill_one)
        with session(cluster.url, app="test", memory="512m", settings=EXECUTORS) as spark:
            spark.dataSource.register(EskerLog)
            source = spark.read.format("esker_log").options(logDir=str(log_dir), splitBytes="1")
            killing.start()
            rows: list[Any] = (
                source.load().mapInArrow(held_up, "log_offset long, where string").collect()
            )
            killing.join()
            wait_until(lambda: cluster.alive() == 1, "the master notices")
    assert sorted(row.log_offset for row in rows) == list(range(240))
    files = {row.where.partition(" ")[2] for row in rows}
    assert all(".zip/spark_jobs/__init__.py" in file for file in files), files


def test_a_spark_session_error_names_missing_memory_or_python_on_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_jobs.session import spark_session
    from spark_jobs.session.failures import SessionError
    from spark_jobs.session.probe import probe
    from tests.spark_jobs.standalone import standalone_cluster

    with standalone_cluster(tmp_path, workers=1) as cluster:
        assert probe(cluster.url).master == cluster.url
        monkeypatch.setattr(spark_session, "EXECUTOR_SECONDS", 5.0)
        with pytest.raises(SessionError, match=r"needs a free core and 700m of free memory"):
            spark_session.start_session(cluster.url, app="test", memory="700m")
        monkeypatch.setattr(spark_session, "EXECUTOR_SECONDS", 60.0)
        monkeypatch.setenv("PYSPARK_PYTHON", "/nonexistent/python3")
        with pytest.raises(
            SessionError, match=r"^the workers have no /nonexistent/python3; set PYS"
        ):
            probe(cluster.url)
