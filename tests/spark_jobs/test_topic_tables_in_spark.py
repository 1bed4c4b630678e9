"""Tables whose files are written by Spark's workers, and which Spark reads.

Source: docs/tables.md#keeping-topics-as-tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spark_jobs.readers.engines import SparkEngine
from spark_jobs.topic_tables.job import TopicJob
from spark_jobs.topics import planning
from tests.spark_jobs.test_topic_tables import to_end
from tests.spark_jobs.test_topic_tables_decoded import LETTERS, schema
from tests.spark_jobs.topic_tables_world import TOPIC, TablesWorld, tables_world

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["tables_world"]


@pytest.mark.spark
def test_sparks_workers_write_a_table_that_spark_reads(
    spark: SparkSession, tables_world: TablesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "TASK_BYTES", 100)
    monkeypatch.setattr(planning, "PIECE_BYTES", 100)
    for number in range(6):
        tables_world.topic.write(number % 2, b'{"a": %d}' % number, b"no")
    local = tables_world.job(schema(a="integer"))
    job = TopicJob(local.settings, TOPIC, tables_world.catalog, SparkEngine(spark), local.values)
    job.start()
    to_end(job)
    rows = [(row[0], row[1], row[2]["a"]) for row in tables_world.rows()]
    assert rows == [(p, 2 * n, 2 * n + p) for p in (0, 1) for n in range(3)]
    assert len(tables_world.rows(LETTERS)) == 6
    tasks = list(job.rows.table.scan().plan_files())
    assert len(tasks) > 1, "several workers wrote"
    frame = spark.read.parquet(*(task.file.file_path for task in tasks))
    assert frame.selectExpr("sum(value.a)", "count(*)").collect()[0] == (15, 6)
