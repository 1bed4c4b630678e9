"""The data source as Spark uses it: planned here, pickled, read elsewhere."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'esker[spark]'")

from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from records.diskless import ObjectCommitRecord
from records.errors import UnsupportedVersionError
from records.frame import encode_record
from records.metadata import FeatureLevelRecord, NoOpRecord
from records.schema import MetadataRecord
from spark_jobs.archive.engines import LocalArchiveEngine
from spark_jobs.archive.job import archive, open_archive
from spark_jobs.readers.log_files import LostRangeError
from spark_jobs.readers.logs import LogsError, ReplicaLogs
from spark_jobs.readers.object_store import open_store
from spark_jobs.source.log_source import EskerLog, LogReader, PushingReader
from spark_jobs.source.option_error import OptionError
from spark_jobs.source.options import parse_options
from spark_jobs.tables.schemas import RECORD, TABLES, TableError
from spark_jobs.tables.views import VIEWS
from tests.spark_jobs.logs import mark_committed, write_checkpoint, write_log, write_values

CLUSTER = "__cluster_metadata-0"
FIRST, SECOND = "__diskless-metadata-0", "__diskless-metadata-1"


def level(n: int) -> MetadataRecord:
    return FeatureLevelRecord(name="f", feature_level=n)


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Write a node's directory; its cluster log has feature levels at the even of 20 offsets."""
    batches = [[level(n), NoOpRecord()] for n in range(10)]
    write_log(tmp_path / CLUSTER, batches, segment_batches=3)
    for name in (FIRST, SECOND):
        write_log(tmp_path / name, [[NoOpRecord()]] * 3)
    mark_committed(tmp_path, {CLUSTER: 20, FIRST: 2, SECOND: 3})
    return tmp_path


def options(log_dir: Path, **more: Any) -> dict[str, str]:
    given = {"path": str(log_dir), "table": "feature_level"}
    return given | {name: str(value) for name, value in more.items()}


def rows(reader: LogReader) -> list[dict[str, Any]]:
    """Return the rows Spark would get, each partition read by its own reader."""
    found = []
    for partition in reader.partitions():
        there = pickle.loads(pickle.dumps((reader, partition)))
        found += [row for batch in there[0].read(there[1]) for row in batch.to_pylist()]
    return found


def read(log_dir: Path, **more: Any) -> list[dict[str, Any]]:
    return rows(LogReader(parse_options(options(log_dir, **more))))


def test_a_small_split_bytes_option_makes_each_log_split_a_spark_partition(log_dir: Path) -> None:
    reader = LogReader(parse_options(options(log_dir, splitBytes=1)))
    assert len(reader.partitions()) == 4
    assert [row["feature_level"] for row in rows(reader)] == list(range(10))


def test_one_spark_task_reads_several_small_log_segments(log_dir: Path) -> None:
    reader = LogReader(parse_options(options(log_dir)))
    partition: Any
    (partition,) = reader.partitions()
    assert [row["feature_level"] for row in rows(reader)] == list(range(10))
    sizes = [span.size_bytes() for span in partition.spans]
    split = LogReader(parse_options(options(log_dir, splitBytes=sizes[0] + sizes[1])))
    tasks: Any = split.partitions()
    assert [len(task.spans) for task in tasks] == [2, 2]
    assert rows(split) == rows(reader)


def test_the_data_source_returns_only_the_requested_columns(log_dir: Path) -> None:
    given = options(log_dir, columns="feature_level, log_offset, log")
    source = EskerLog(given)
    assert source.schema().names == ["feature_level", "log_offset", "log"]
    assert rows(LogReader(parse_options(given)))[1] == {
        "feature_level": 1,
        "log_offset": 2,
        "log": CLUSTER,
    }


def test_the_data_source_reads_no_record_above_the_high_watermark(log_dir: Path) -> None:
    mark_committed(log_dir, {CLUSTER: 7, FIRST: 2, SECOND: 3})
    assert [row["log_offset"] for row in read(log_dir)] == [0, 2, 4, 6]
    with pytest.raises(OptionError, match="__cluster_metadata-0 ends at offset 7, below 8"):
        read(log_dir, endOffset=8)
    with pytest.raises(OptionError, match="startOffset: __cluster_metadata-0 ends at offset 7"):
        read(log_dir, startOffset=8)  # no rows would look like nothing new
    assert read(log_dir, startOffset=7) == []


def test_the_data_source_reads_a_table_only_from_the_logs_that_can_contain_its_records(
    log_dir: Path,
) -> None:
    def lengths(**more: Any) -> Counter[str]:
        return Counter(row["log"] for row in read(log_dir, **more))

    assert lengths(table="records") == {CLUSTER: 20, FIRST: 2, SECOND: 3}
    assert lengths(table="records", log=f"{SECOND},{FIRST}") == {FIRST: 2, SECOND: 3}
    assert lengths(table="no_op") == {CLUSTER: 10}
    assert lengths(table="no_op", log=SECOND) == {SECOND: 3}
    assert lengths(table="objects") == {}
    with pytest.raises(OptionError, match="no log here holds group_offsets"):
        read(log_dir, table="group_offsets")
    with pytest.raises(OptionError, match="name one log"):
        read(log_dir, table="records", endOffset=2)


@pytest.mark.parametrize(
    ("pushed", "expected"),
    [
        ([GreaterThan(("log_offset",), 4)], [6, 8, 10, 12, 14, 16, 18]),
        ([GreaterThanOrEqual(("log_offset",), 4), LessThan(("log_offset",), 8)], [4, 6]),
        ([LessThanOrEqual(("log_offset",), 4), LessThan(("log_offset",), 4)], [0, 2]),
        ([EqualTo(("log_offset",), 6)], [6]),
        ([EqualTo(("log_offset",), 99)], []),
        ([In(("log",), (FIRST, SECOND))], []),
        ([EqualTo(("log",), CLUSTER), LessThan(("log_offset",), 2)], [0]),
    ],
)
def test_the_data_source_accepts_filters_on_offsets_and_logs(
    log_dir: Path, pushed: list[Any], expected: list[int]
) -> None:
    reader = PushingReader(parse_options(options(log_dir)))
    assert list(reader.pushFilters(pushed)) == []
    assert [row["log_offset"] for row in rows(reader)] == expected


@pytest.mark.parametrize(
    ("pushed", "expected"),
    [
        ([EqualTo(("type",), 12)], [0, 2]),
        ([In(("type",), (12, 20))], [0, 1, 2, 3]),
        ([In(("type",), (12, 20)), EqualTo(("type",), 20)], [1, 3]),
        ([EqualTo(("type",), 99)], []),
    ],
)
def test_the_data_source_accepts_filters_on_record_types_for_the_record_table(
    log_dir: Path, pushed: list[Any], expected: list[int]
) -> None:
    reader = PushingReader(parse_options(options(log_dir, table="record", log=CLUSTER)))
    assert list(reader.pushFilters([*pushed, LessThan(("log_offset",), 4)])) == []
    assert [row["log_offset"] for row in rows(reader)] == expected


def test_a_spark_read_of_an_empty_offset_range_plans_no_task_and_returns_no_row(
    log_dir: Path,
) -> None:
    reader = LogReader(parse_options(options(log_dir, endOffset=0)))
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []  # as Spark does


def test_the_data_source_returns_unsupported_filters_for_spark_to_evaluate(log_dir: Path) -> None:
    reader = PushingReader(parse_options(options(log_dir)))
    others = [
        StringStartsWith(("name",), "f"),
        EqualTo(("feature_level",), 3),
        EqualTo(("type",), 12),  # no column of this table
        GreaterThan(("log_offset", "nested"), 3),
    ]
    assert list(reader.pushFilters([*others, EqualTo(("log_offset",), 6)])) == others


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "name the source of the logs"),
        ({"path": "/x", "logDir": "/x"}, "path: give path or logDir"),
        ({"bootstrapController": "here"}, "bootstrapController: 'here' is not HOST:PORT"),
        ({"bootstrapController": "h:65536"}, "bootstrapController: 'h:65536' is not HOST:PORT"),
        ({"path": "/x", "endOffset": "-1"}, "endOffset: '-1' is not a number"),
        ({"path": "/x", "endOffset": "many"}, "endOffset: 'many'"),
        ({"path": "/x", "endOffset": "1", "colour": "red"}, "colour: no such option"),
        ({"path": "/x", "endOffset": "1", "columns": "hue"}, "record has no hue"),
        ({"path": "/x", "endOffset": "1", "splitBytes": "x"}, "splitBytes"),
        ({"path": "/x", "failOnDataLoss": "perhaps"}, "failOnDataLoss: 'perhaps' is neither"),
        ({"path": "/x", "startingOffsets": "soon"}, "startingOffsets: 'soon'"),
    ],
)
def test_the_data_sources_error_for_an_invalid_option_names_the_option(
    given: dict[str, str], named: str
) -> None:
    with pytest.raises(OptionError, match=named):
        parse_options(given)


def test_the_data_sources_error_for_an_unknown_table_names_the_table(log_dir: Path) -> None:
    with pytest.raises(TableError, match=r"no table 'topic_s'.* topics"):
        parse_options(options(log_dir, table="topic_s"))


@pytest.mark.parametrize("table", [*TABLES, *VIEWS])
def test_every_table_of_the_data_source_has_a_spark_schema(table: str, log_dir: Path) -> None:
    schema = EskerLog(options(log_dir, table=table)).schema()
    assert schema.names[:2] == ["log", "from_checkpoint"]
    assert len(set(schema.names)) == len(schema.names)


def test_the_data_source_reads_the_whole_record_table_by_default(log_dir: Path) -> None:
    given = options(log_dir)
    del given["table"]
    assert parse_options(given).table == RECORD
    assert len(rows(LogReader(parse_options(given)))) == 25


def cut(log_dir: Path, *, to: int) -> None:
    """Delete segments of the cluster log, 6 offsets each."""
    for base in range(0, to, 6):
        (log_dir / CLUSTER / f"{base:020d}.log").unlink()


def test_the_data_source_warns_if_it_reads_a_log_without_its_first_records_from_a_checkpoint(
    log_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_checkpoint(log_dir / CLUSTER, (12, 1), [level(55)])
    cut(log_dir, to=12)
    found = [(row["from_checkpoint"], row["feature_level"]) for row in read(log_dir)]
    assert found == [(True, 55), (False, 6), (False, 7), (False, 8), (False, 9)]
    assert "offsets below 12 are read from the checkpoint there" in caplog.text
    covered = [(r["from_checkpoint"], r["end_offset"]) for r in read(
        log_dir, table="coverage", log=CLUSTER
    )]  # fmt: skip
    assert covered == [(True, 12), (False, 18), (False, 20)]


def test_a_spark_read_of_deleted_offsets_fails_unless_fail_on_data_loss_is_off(
    log_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cut(log_dir, to=12)
    for start in ({}, {"startOffset": 4}):
        with pytest.raises(LostRangeError, match="first offset is 12"):
            read(log_dir, **start)
        found = read(log_dir, failOnDataLoss="false", **start)
        assert [row["feature_level"] for row in found] == [6, 7, 8, 9]
        assert "lost: " in caplog.text
    write_checkpoint(log_dir / CLUSTER, (12, 1), [level(55)])
    with pytest.raises(LostRangeError, match="offsets from 4 on are gone"):
        read(log_dir, startOffset=4)
    found = read(log_dir, startOffset=4, failOnDataLoss="false")
    assert [row["feature_level"] for row in found] == [55, 6, 7, 8, 9]


def test_a_spark_read_of_a_segment_cut_below_the_high_watermark_raises_a_lost_range_error(
    log_dir: Path,
) -> None:
    reader = LogReader(parse_options(options(log_dir, splitBytes=1)))
    planned = reader.partitions()
    path = log_dir / CLUSTER / f"{18:020d}.log"
    path.write_bytes(b"")
    with pytest.raises(LostRangeError, match="offsets from 18 on are gone"):
        list(reader.read(planned[-1]))


def test_the_data_source_returns_unknown_records_as_bytes_and_counts_them(
    log_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    later = b"\x01\x0c\x07later"  # FeatureLevelRecord, version 7
    stranger = b"\x01\xd0\x0f\x00body"  # type 2000
    values = [encode_record(level(1)), later, stranger]
    write_values(log_dir / "__diskless-metadata-2", [values])
    mark_committed(log_dir, {"__diskless-metadata-2": 3})
    only = {"log": "__diskless-metadata-2"}
    found = read(log_dir, table="unknown", **only)
    assert [(row["type"], row["name"], row["version"], row["body"]) for row in found] == [
        (12, "FeatureLevelRecord", 7, b"later"),
        (2000, None, 0, b"body"),
    ]
    assert len(read(log_dir, table="record", **only)) == 3
    with pytest.raises(UnsupportedVersionError, match="has versions 0, not 7"):
        read(log_dir, **only)
    assert [row["feature_level"] for row in read(log_dir, onUnknownVersion="skip", **only)] == [1]
    assert "unknown_versions=1: skipped" in caplog.text


def test_the_objects_table_of_the_data_source_has_one_row_for_each_object(log_dir: Path) -> None:
    commit = ObjectCommitRecord(
        object_id=7, object_format=1, size_bytes=90, broker_id=3, broker_epoch=4, lease_id=5,
        committed_at_ms=6, topic_ids=(UUID(int=1),), topic_indexes=(0, 0), partitions=(0, 1),
        batch_counts=(1, 2), byte_offsets=(0, 10, 30), byte_sizes=(10, 20, 60),
        base_offsets=(0, 0, -1), record_counts=(1, 1, 1), max_timestamps=(1, 1, 1),
        timestamp_types=(0, 0, 0), producer_ids=(-1, -1, -1), producer_epochs=(-1, -1, -1),
        base_sequences=(-1, -1, -1), error_codes=(0, 0, 5), duplicates=(),
    )  # fmt: skip
    write_log(log_dir / "__diskless-metadata-2", [[commit]])
    mark_committed(log_dir, {"__diskless-metadata-2": 1})
    (row,) = read(log_dir, table="objects", log="__diskless-metadata-2")
    expected = {"object_id": 7, "size_bytes": 90, "topics": 1, "partitions": 2, "batches": 3,
                "batch_bytes": 90, "refused_batches": 1, "duplicate_batches": 0}  # fmt: skip
    assert expected.items() <= row.items()
    assert len(read(log_dir, table="object_commits", log="__diskless-metadata-2")) == 3


def test_the_rows_of_an_archive_equal_the_rows_of_the_log_directory(log_dir: Path) -> None:
    (log_dir / "archive").mkdir()
    store, logs = open_store(str(log_dir / "archive")), ReplicaLogs(log_dir)
    archive(logs, store, about=open_archive(store, logs.cluster_id), engine=LocalArchiveEngine())
    for table in ("records", "feature_level"):
        expected = read(log_dir, table=table)
        found = rows(
            PushingReader(parse_options({"archive": str(log_dir / "archive"), "table": table}))
        )
        assert found == expected
    with pytest.raises(LogsError, match="archive"):
        rows(LogReader(parse_options({"archive": str(log_dir / "nothing")})))
