"""A scan of ten minutes, while brokers merge, expire and delete the objects that it was planned on.

Objects are deleted a tenth of the scan after they were replaced: a minute. Three scans go on at the
same time. Each is right to the row, or says which offsets are gone:

- a Spark query, slow because a function of its user sleeps: only merging touches its topic;
- tasks, read one after the other, of topics that lose records by DeleteRecords and retention;
- a Spark query that is planned when the others begin and reads when they end, after retention.

    ESKER_SCAN_S=60 pytest -m soak -s tests/spark_jobs/test_records_long_scan.py

Source: docs/tables.md#what-a-read-sees.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from spark_jobs.topics.planning import RecordsPartition
from spark_jobs.topics.records_source import EskerRecords
from tests.clients.cluster import EskerCluster
from tests.spark_jobs.test_records_in_spark import collected
from tests.spark_jobs.test_records_source import delete_ahead, planned, scan
from tests.spark_jobs.topics_world import SETTINGS, TopicsWorld, offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(3_600)]

SCAN_S: Final = float(os.environ.get("ESKER_SCAN_S", "600"))
CORES: Final = 2  # of the session
TASKS: Final = 60
RECORDS: Final = 600  # of each topic
TOPICS: Final = ("merged", "cut", "expiring")


def gone(world: TopicsWorld, tasks: Sequence[RecordsPartition]) -> tuple[int, int]:
    """Return how many of the objects that tasks were planned on are deleted, and of how many."""
    keys = {run.object_key for task in tasks for piece in task.pieces for run in piece.runs}
    return sum(not (world.cluster.store / key).exists() for key in keys), len(keys)


def test_a_scan_of_ten_minutes_is_right_or_states_its_loss_while_its_objects_are_deleted(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.dataSource.register(EskerRecords)
    settings = {
        **SETTINGS,
        "diskless.file.delete.delay.ms": f"{SCAN_S * 100:.0f}",
        "log.retention.check.interval.ms": f"{SCAN_S * 10:.0f}",
        "esker.compaction.interval.ms": f"{SCAN_S * 15:.0f}",  # so that plans name many objects
    }
    with (
        EskerCluster(tmp_path, quorum=(1,), brokers=1, settings=settings) as cluster,
        ThreadPoolExecutor(1) as thread,
    ):
        cluster.start()
        world = TopicsWorld(cluster)
        for topic in TOPICS:
            expiry = {"retention_ms": f"{SCAN_S * 500:.0f}"} if topic == "expiring" else {}
            world.create(topic, **expiry)
        producer = world.producer()
        for number in range(RECORDS):
            for topic in TOPICS:
                producer.produce(topic, value=b"%d" % number, partition=number % 2)
            if number % 30 == 0:
                producer.flush()
        producer.flush()
        rows = {topic: world.consume(topic) for topic in TOPICS}
        limit = {"maxRecordsPerPartition": str(RECORDS // TASKS)}

        def frame(topic: str) -> DataFrame:
            ends = offsets(topic, RECORDS // 2, RECORDS // 2)
            found = spark.read.format("esker_records").options(**world.options, **limit)
            return found.load(subscribe=topic, endingOffsets=ends)

        late = frame("expiring").select("offset").rdd
        assert late.getNumPartitions() == TASKS, "planned now"
        _, of_query = planned(world, subscribe="merged", **limit)
        query = thread.submit(collected, slowly(frame("merged"), SCAN_S * CORES / TASKS))
        strict, tasks = planned(world, subscribe="cut,expiring", **limit)
        lenient, _ = planned(world, subscribe="cut,expiring", **limit, failOnDataLoss="false")
        random.Random(3).shuffle(tasks)

        def between(number: int) -> None:
            time.sleep(SCAN_S / len(tasks))
            for topic in ("merged", "cut"):
                for index in (0, 1):  # neighbours to merge with
                    producer.produce(topic, value=b"later", partition=index)
            producer.flush()
            if number % 9 == 8 and tasks[number].pieces[0].partition.topic == "cut":
                delete_ahead(world, tasks[number], rows["cut"])

        expected = rows["cut"] + rows["expiring"]
        right, lost = scan(world, tasks, strict, lenient, expected, between)
        assert query.result() == rows["merged"]
        with pytest.raises(Exception, match=r"expiring-\d: offsets \d+ to \d+ were deleted"):
            late.collect()
        deleted = {"query": gone(world, of_query), "tasks": gone(world, tasks)}
        print(f"\n{right} tasks were right, {lost} stated a loss; objects deleted: {deleted}")
        assert all(count > 0 for count, _ in deleted.values()), "nothing was deleted"
        assert right > TASKS // 6
        assert lost > TASKS // 6
        cluster.check_alive()


def slowly(frame: DataFrame, pause_s: float) -> DataFrame:
    """Return a frame whose tasks take so many seconds each."""

    def sleep(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            time.sleep(pause_s)
            yield batch

    return frame.mapInArrow(sleep, frame.schema)
