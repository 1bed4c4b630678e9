"""The data source and the sink as Spark itself runs them: the few things only Spark can say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from records.metadata import FeatureLevelRecord, NoOpRecord
from tests.spark.logs import mark_committed, write_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

LOG = "__cluster_metadata-0"
RECORDS = 3_000


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    batches = (
        [FeatureLevelRecord(name="f", feature_level=n), NoOpRecord()] for n in range(RECORDS // 2)
    )
    write_log(tmp_path / LOG, batches, segment_batches=200)
    mark_committed(tmp_path, {LOG: RECORDS})
    return tmp_path


def table(spark: SparkSession, log_dir: Path, name: str) -> DataFrame:
    from spark_jobs.source import EskerLog

    spark.dataSource.register(EskerLog)
    return spark.read.format("esker_log").option("table", name).load(str(log_dir))


def test_filters_and_columns_go_through_spark(spark: SparkSession, log_dir: Path) -> None:
    levels = table(spark, log_dir, "feature_level").where("log_offset between 100 and 109")
    assert [
        tuple(row) for row in levels.select("log", "log_offset", "feature_level").collect()
    ] == [(LOG, n, n // 2) for n in range(100, 110, 2)]
    records = table(spark, log_dir, "records").where("type in (12, 99)")
    assert records.count() == RECORDS // 2
    assert table(spark, log_dir, "register_broker").count() == 0  # structures in lists


def test_a_stream_that_is_stopped_and_started_again_gives_each_offset_once(
    spark: SparkSession, log_dir: Path
) -> None:
    from spark_jobs.sink import OffsetFiles
    from spark_jobs.source import EskerLog

    spark.dataSource.register(EskerLog)
    spark.dataSource.register(OffsetFiles)
    out = log_dir.parent / "out"

    def run() -> list[int]:
        """All that is there now, in batches of 2,000 offsets; what the files then hold."""
        query = (
            spark.readStream.format("esker_log")
            .option("table", "feature_level")
            .option("maxOffsetsPerTrigger", 2_000)
            .load(str(log_dir))
            .writeStream.format("esker_files")
            .option("checkpointLocation", str(log_dir.parent / "checkpoint"))
            .option("path", str(out))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)
        files = sorted(out.glob("*.parquet"))
        return [n for file in files for n in pq.read_table(file)["log_offset"].to_pylist()]

    mark_committed(log_dir, {LOG: 500})
    assert run() == list(range(0, 500, 2))
    mark_committed(log_dir, {LOG: RECORDS})
    assert run() == list(range(0, RECORDS, 2))
    assert len(list((out / "_batches").glob("*.json"))) == 3
