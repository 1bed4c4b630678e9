"""`esker_records` in Spark: a query that changes its format gets the same rows.

Source: docs/tables.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_jobs.topics.records_source import EskerRecords
from tests.clients.cluster import EskerCluster
from tests.spark_jobs.topics_world import SETTINGS, Row, TopicsWorld

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def world(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TopicsWorld]:  # fmt: skip
    """A cluster with a topic of random records, in a session that knows the source."""
    spark.dataSource.register(EskerRecords)
    home = tmp_path_factory.mktemp("cluster")
    with EskerCluster(home, quorum=(1,), brokers=1, settings=SETTINGS) as running:
        running.start()
        world = TopicsWorld(running)
        world.create("random")
        world.fill("random", seed=9, count=100)
        yield world


def collected(frame: DataFrame) -> list[Row]:
    """Return a frame's rows as a consumer gives them, by offset."""
    whole = frame.selectExpr(
        "topic", "partition", "offset", "unix_millis(timestamp) as at", "timestampType", "key",
        "value", "headers",
    )  # fmt: skip
    return sorted(
        (
            (
                *row[:5],
                None if row.key is None else bytes(row.key),
                None if row.value is None else bytes(row.value),
                None
                if row.headers is None
                else [(one.key, None if one.value is None else bytes(one.value))
                      for one in row.headers],
            )
            for row in whole.collect()
        ),
        key=lambda row: row[:3],
    )  # fmt: skip


def test_a_frame_has_the_rows_that_a_consumer_reads(
    spark: SparkSession, world: TopicsWorld
) -> None:
    options = {**world.options, "subscribe": "random", "minPartitions": "3"}
    frame = spark.read.format("esker_records").options(**options).load()
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert collected(frame) == world.consume("random")


def test_a_session_without_settings_of_ours_reads_only_the_chosen_columns(
    spark: SparkSession, world: TopicsWorld
) -> None:
    """Spark's own sessions push no filters down to Python sources, and refuse readers that do."""
    pushes = spark.conf.get("spark.sql.python.filterPushdown.enabled")
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        options = {**world.options, "subscribe": "random", "columns": "offset,value"}
        frame = spark.read.format("esker_records").options(**options).load()
        expected = [row for row in world.consume("random") if row[2] < 10]
        assert frame.columns == ["offset", "value"]
        assert frame.where("offset < 10").count() == len(expected)
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", pushes)


def test_a_stream_that_ends_and_goes_on_has_each_row_once(
    spark: SparkSession, world: TopicsWorld, tmp_path: Path
) -> None:
    world.create("flowing")
    target, checkpoint = str(tmp_path / "rows"), tmp_path / "checkpoint"

    def run() -> list[Row]:
        frame = (
            spark.readStream.format("esker_records")
            .options(**world.options, subscribe="flowing", startingOffsets="earliest")
            .option("maxOffsetsPerTrigger", "60")
            .load()
        )
        query = (
            frame.writeStream.format("parquet")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start(target)
        )
        query.awaitTermination()
        return collected(spark.read.parquet(target))

    world.fill("flowing", seed=21, count=20)
    assert run() == world.consume("flowing")
    world.fill("flowing", seed=22, count=10)
    rows = run()
    assert rows == world.consume("flowing")
    journaled = sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    assert len(journaled) == 3  # 60 and 40 offsets, then 50
    last = json.loads(journaled[-1].read_text().splitlines()[-1])
    ends = {str(row[1]): row[2] + 1 for row in rows}
    assert last == {"flowing": ends}, "as Spark's Kafka source journals its offsets"
