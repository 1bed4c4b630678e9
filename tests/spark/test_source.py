"""The data source as Spark uses it: planned here, pickled, read elsewhere. Spark itself: last."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'esker[spark]'")

from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from records.metadata import FeatureLevelRecord, NoOpRecord
from spark_jobs.source import EskerLog, LogReader, OptionError, PushingReader, parse_options
from spark_jobs.tables import RECORD, TABLES, TableError
from tests.spark.logs import write_log


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Twenty records, feature levels at even offsets."""
    records = [[FeatureLevelRecord(name="f", feature_level=n), NoOpRecord()] for n in range(10)]
    write_log(tmp_path / "log-0", records, segment_batches=3)
    return tmp_path / "log-0"


def options(directory: Path, **more: Any) -> dict[str, str]:
    given = {"path": str(directory), "endOffset": "20", "table": "feature_level"}
    return given | {name: str(value) for name, value in more.items()}


def rows(reader: LogReader) -> list[dict[str, Any]]:
    """What Spark would get, each partition read by a reader of its own."""
    found = []
    for partition in reader.partitions():
        there = pickle.loads(pickle.dumps((reader, partition)))
        found += [row for batch in there[0].read(there[1]) for row in batch.to_pylist()]
    return found


def test_every_partition_is_read_by_a_reader_of_its_own(directory: Path) -> None:
    reader = LogReader(parse_options(options(directory)))
    assert len(reader.partitions()) == 4
    assert [row["feature_level"] for row in rows(reader)] == list(range(10))


def test_only_the_columns_asked_for_are_handed_over(directory: Path) -> None:
    given = options(directory, columns="feature_level, log_offset")
    source = EskerLog(given)
    assert source.schema().names == ["feature_level", "log_offset"]
    assert rows(LogReader(parse_options(given)))[1] == {"feature_level": 1, "log_offset": 2}


@pytest.mark.parametrize(
    ("pushed", "expected"),
    [
        ([GreaterThan(("log_offset",), 4)], [6, 8, 10, 12, 14, 16, 18]),
        ([GreaterThanOrEqual(("log_offset",), 4), LessThan(("log_offset",), 8)], [4, 6]),
        ([LessThanOrEqual(("log_offset",), 4), LessThan(("log_offset",), 4)], [0, 2]),
        ([EqualTo(("log_offset",), 6)], [6]),
        ([EqualTo(("log_offset",), 99)], []),
    ],
)
def test_bounds_of_offsets_are_taken(
    directory: Path, pushed: list[Any], expected: list[int]
) -> None:
    reader = PushingReader(parse_options(options(directory)))
    assert list(reader.pushFilters(pushed)) == []
    assert [row["log_offset"] for row in rows(reader)] == expected


def test_other_filters_stay_sparks(directory: Path) -> None:
    reader = PushingReader(parse_options(options(directory)))
    others = [
        StringStartsWith(("name",), "f"),
        EqualTo(("feature_level",), 3),
        GreaterThan(("log_offset", "nested"), 3),
    ]
    assert list(reader.pushFilters([*others, EqualTo(("log_offset",), 6)])) == others


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "path: must be given"),
        ({"path": "/x"}, "endOffset: must be given"),
        ({"path": "/x", "endOffset": "-1"}, "endOffset: '-1' is no number"),
        ({"path": "/x", "endOffset": "many"}, "endOffset: 'many'"),
        ({"path": "/x", "endOffset": "1", "colour": "red"}, "colour: no such option"),
        ({"path": "/x", "endOffset": "1", "columns": "hue"}, "record has no hue"),
        ({"path": "/x", "endOffset": "1", "splitBytes": "x"}, "splitBytes"),
    ],
)
def test_a_bad_option_is_named(given: dict[str, str], named: str) -> None:
    with pytest.raises(OptionError, match=named):
        parse_options(given)


def test_an_unknown_table_is_named(directory: Path) -> None:
    with pytest.raises(TableError, match="no table 'topics'"):
        parse_options(options(directory, table="topics"))


@pytest.mark.parametrize("table", TABLES)
def test_spark_has_a_schema_for_every_table(table: str, directory: Path) -> None:
    schema = EskerLog(options(directory, table=table)).schema()
    assert schema.names[:2] == ["from_checkpoint", "log_offset"]


def test_all_records_is_the_default(directory: Path) -> None:
    given = options(directory)
    del given["table"]
    assert parse_options(given).table == RECORD
    assert len(rows(LogReader(parse_options(given)))) == 20
