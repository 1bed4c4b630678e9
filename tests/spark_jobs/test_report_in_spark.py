"""Spark and the local engine compute the same tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spark_jobs.report.cube import LocalReportEngine
from spark_jobs.report.job import Question, make_report
from tests.spark_jobs.report_world import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_spark_and_the_local_engine_compute_the_same_report_tables(
    spark: SparkSession, harbour: World
) -> None:
    from spark_jobs.report.spark_cube import SparkReportEngine

    question = Question(now_ms=harbour.now_ms)
    here = make_report(harbour.logs, LocalReportEngine(), question)
    there = make_report(harbour.logs, SparkReportEngine(spark), question)
    assert there.window == here.window
    for name, table in here.tables.items():
        assert there.tables[name].equals(table), name
    assert here.tables["topic_throughput"].num_rows > 50
    assert len(harbour.logs.log("__diskless-metadata-0").spans(harbour.end_offset)) > 2
