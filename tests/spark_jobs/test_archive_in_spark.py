"""Archives written and read by Spark equal those of one process."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_jobs.archive.avro_schemas import avro_schema
from spark_jobs.archive.check import check_archive
from spark_jobs.archive.engines import ArchiveEngine, LocalArchiveEngine
from spark_jobs.archive.job import LogPass, archive, open_archive
from spark_jobs.readers.avro_files import AvroWriter, read_avro
from spark_jobs.readers.object_store import open_store
from tests.spark_jobs.archive_world import CLUSTER_ID, LOG, FileLogs, odd_batches
from tests.spark_jobs.logs import mark_committed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def archived(
    logs: FileLogs, directory: Path, engine: ArchiveEngine
) -> tuple[LogPass, dict[str, bytes]]:
    """Archive the logs; return the result and the data files by name."""
    directory.mkdir(exist_ok=True)
    store = open_store(str(directory))
    (done,) = archive(
        logs, store, about=open_archive(store, CLUSTER_ID), engine=engine, range_bytes=1_500
    )
    files = (path for path in (directory / "data").rglob("*") if path.is_file())
    return done, {str(path.relative_to(directory)): path.read_bytes() for path in files}


def test_spark_executors_write_the_same_archive_files_as_one_process(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Lost offsets are included: a task finds them and the driver must handle them."""
    from spark_jobs.archive.engines import SparkArchiveEngine

    logs = FileLogs(tmp_path / "node")
    logs.append(odd_batches(5, 30))
    engine = SparkArchiveEngine(spark)
    first = archived(logs, tmp_path / "spark", engine)
    assert first == archived(logs, tmp_path / "local", LocalArchiveEngine())
    logs.append(odd_batches(7, 10, first_offset=logs.end_offset, epoch=3), roll=True)
    end = logs.end_offset
    logs.append(odd_batches(8, 10, first_offset=end, epoch=4), roll=True)
    logs.checkpoint(end, 3, ["x"])
    logs.cut_to(end)
    second = archived(logs, tmp_path / "spark", engine)
    assert second == archived(logs, tmp_path / "local", LocalArchiveEngine())
    assert second[0].lost == [(first[0].end_offset, end)]
    found = check_archive(open_store(str(tmp_path / "spark")), engine=engine)
    assert (found.faults, found.strangers, found.records) == (
        [],
        [],
        check_archive(open_store(str(tmp_path / "local")), engine=LocalArchiveEngine()).records,
    )


def test_the_data_source_reads_the_same_rows_from_an_archive_and_a_log_directory(
    spark: SparkSession, tmp_path: Path
) -> None:
    from spark_jobs.notebook import LogTables

    logs = FileLogs(tmp_path / "node")
    logs.append(odd_batches(5, 30, framed=True))
    mark_committed(tmp_path / "node", {LOG: logs.end_offset})
    archived(logs, tmp_path / "archive", LocalArchiveEngine())
    rows = []
    for place in ({"logDir": tmp_path / "node"}, {"archive": tmp_path / "archive"}):
        tables = LogTables(spark, **place)
        found = tables("records").where("log_offset between 10 and 80").orderBy("log_offset")
        rows.append([tuple(row) for row in found.collect()])
    assert rows[0] == rows[1]
    assert len(rows[0]) > 40


def test_spark_reads_an_archived_table_written_by_two_releases(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Old and new files are read together, although a release added a column in between."""
    logs = FileLogs(tmp_path / "node")
    logs.append(odd_batches(5, 30))
    archived(logs, tmp_path / "archive", LocalArchiveEngine())
    directory = tmp_path / "archive" / "data" / LOG / "topic"
    later = copy.deepcopy(avro_schema("topic"))
    later["fields"].append({"name": "owner", "type": ["null", "string"], "default": None})
    (last, *_) = sorted(directory.iterdir(), reverse=True)
    rows = list(read_avro(last.read_bytes()))
    writer = AvroWriter(later, {})
    writer.write({**row, "owner": "me"} for row in rows)
    (directory / last.name).write_bytes(writer.finish())

    frame = (
        spark.read.format("org.apache.spark.sql.avro.AvroFileFormat")
        .option("avroSchema", json.dumps(later))
        .load(str(directory))
    )
    found = [tuple(row) for row in frame.select("log_offset", "name", "owner").collect()]
    expected = [row for file in directory.iterdir() for row in read_avro(file.read_bytes(), later)]
    told = [(row["log_offset"], row["name"], row["owner"]) for row in expected]
    assert sorted(found, key=str) == sorted(told, key=str)
    assert {owner for *_, owner in found} == {None, "me"}
