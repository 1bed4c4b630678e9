"""The data source and the sink as Spark itself runs them: the few claims that need Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from records.metadata import FeatureLevelRecord, NoOpRecord
from tests.spark_jobs.logs import mark_committed, write_log
from tests.waiting import DEADLINE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

LOG = "__cluster_metadata-0"
RECORDS = 3_000


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    batches = (
        [FeatureLevelRecord(name="f", feature_level=n), NoOpRecord()] for n in range(RECORDS // 2)
    )
    directory = tmp_path / "log"
    write_log(directory / LOG, batches, segment_batches=200)
    mark_committed(directory, {LOG: RECORDS})
    return directory


def test_spark_passes_a_querys_filters_and_columns_to_the_data_source(
    spark: SparkSession, log_dir: Path
) -> None:
    from spark_jobs.notebook import LogTables

    tables = LogTables(spark, logDir=log_dir)
    levels = tables("feature_level").where("log_offset between 100 and 109")
    assert [
        tuple(row) for row in levels.select("log", "log_offset", "feature_level").collect()
    ] == [(LOG, n, n // 2) for n in range(100, 110, 2)]
    assert tables("records").where("type in (12, 99)").count() == RECORDS // 2
    assert tables("records").where("type = 12 and log_offset < 0").count() == 0  # no task at all
    tables.create_views("brokers")  # structures in lists
    try:
        assert spark.sql("select count(*) from brokers where incarnation_id > '0'").first()[0] == 0
    finally:
        spark.catalog.dropTempView("brokers")


def test_a_spark_stream_that_is_stopped_and_started_again_reads_each_offset_once(
    spark: SparkSession, log_dir: Path
) -> None:
    from spark_jobs.notebook import LogTables

    tables = LogTables(spark, logDir=log_dir, maxOffsetsPerTrigger=2_000)
    out = log_dir.parent / "out"

    def run() -> list[int]:
        """Run until the log's end in batches of 2,000 offsets; return the rows in the files."""
        query = (
            tables.stream("feature_level")
            .writeStream.format("esker_files")
            .option("checkpointLocation", str(log_dir.parent / "checkpoint"))
            .option("path", str(out))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(int(DEADLINE_S))
        files = sorted(out.glob("*.parquet"))
        return [n for file in files for n in pq.read_table(file)["log_offset"].to_pylist()]

    mark_committed(log_dir, {LOG: 500})
    assert run() == list(range(0, 500, 2))
    mark_committed(log_dir, {LOG: RECORDS})
    assert run() == list(range(0, RECORDS, 2))
    assert len(list((out / "_batches").glob("*.json"))) == 3
