"""Rows equal the decoded records: columns against the ordinary decoder."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from records.diskless import ObjectCommitRecord
from records.errors import MalformedMessageError
from records.frame import decode_record, encode_record
from records.metadata import PartitionChangeRecord, RegisterBrokerRecord, TopicRecord
from records.types import ZERO_UUID
from records.uuids import encode_uuid, random_uuid
from spark_jobs.readers.log_position import LogPosition
from spark_jobs.tables.commits import SCHEMA as COMMIT_SCHEMA
from spark_jobs.tables.commits import CommitColumns
from spark_jobs.tables.schemas import (
    OBJECT_COMMIT,
    RECORD,
    RECORD_OF,
    TABLES,
    EnvelopeColumns,
    RecordColumns,
    TableError,
    columns_of,
    schema_of,
)
from tests.records.strategies import messages

PLACE = LogPosition(False, 7, 3, 1_700_000_000_000)
AT = {
    "from_checkpoint": False,
    "log_offset": 7,
    "log_epoch": 3,
    "log_timestamp_ms": 1_700_000_000_000,
}
OF_OBJECT = (
    "object_id", "object_format", "size_bytes", "broker_id", "broker_epoch", "lease_id",
    "committed_at_ms",
)  # fmt: skip
OF_BATCH = (
    "byte_offset", "byte_size", "base_offset", "record_count", "max_timestamp", "timestamp_type",
    "producer_id", "producer_epoch", "base_sequence", "error_code", "duplicate",
)  # fmt: skip


@st.composite
def commits(draw: st.DrawFn) -> ObjectCommitRecord:
    """Generate commits that a coordinator could have written, with optional columns."""
    int32, int64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
    int8, int16 = st.integers(-128, 127), st.integers(-(2**15), 2**15 - 1)
    topics = draw(st.lists(st.uuids(), min_size=1, max_size=4))
    counts = draw(st.lists(st.integers(1, 4), max_size=5))
    groups, rows = len(counts), sum(counts)

    def column(values: st.SearchStrategy[int], length: int) -> tuple[int, ...]:
        return tuple(draw(st.lists(values, min_size=length, max_size=length)))

    def perhaps(values: st.SearchStrategy[int]) -> tuple[int, ...]:
        return column(values, rows) if draw(st.booleans()) else ()

    return ObjectCommitRecord(
        object_id=draw(int64), object_format=draw(int8), size_bytes=draw(int64),
        broker_id=draw(int32), broker_epoch=draw(int64), lease_id=draw(int64),
        committed_at_ms=draw(int64), topic_ids=tuple(topics),
        topic_indexes=column(st.integers(0, len(topics) - 1), groups),
        partitions=column(int32, groups), batch_counts=tuple(counts),
        byte_offsets=column(int64, rows), byte_sizes=column(int32, rows),
        base_offsets=column(int64, rows), record_counts=column(int32, rows),
        max_timestamps=column(int64, rows), timestamp_types=column(int8, rows),
        producer_ids=column(int64, rows), producer_epochs=column(int16, rows),
        base_sequences=column(int32, rows), error_codes=perhaps(int16), duplicates=perhaps(int8),
        transaction_numbers=perhaps(st.integers(-1, 2**63 - 1)),
    )  # fmt: skip


def exploded(position: LogPosition, record: ObjectCommitRecord) -> list[dict[str, Any]]:
    """Return the rows of a commit, computed batch by batch."""
    rows = []
    batch = 0
    for group, count in enumerate(record.batch_counts):
        for _ in range(count):
            row: dict[str, Any] = {**AT, "log_offset": position.offset}
            row |= {name: getattr(record, name) for name in OF_OBJECT}
            row["topic_id"] = encode_uuid(record.topic_ids[record.topic_indexes[group]])
            row["partition"] = record.partitions[group]
            for name in OF_BATCH:
                column = getattr(record, name + "s")
                row[name] = column[batch] if column else 0
            number = record.transaction_numbers[batch] if record.transaction_numbers else -1
            row["transaction_number"] = None if number < 0 else number
            rows.append(row)
            batch += 1
    return rows


@settings(deadline=None, max_examples=60)
@given(st.lists(commits(), max_size=5))
def test_a_commit_record_has_a_table_row_for_each_of_its_batches(
    records: list[ObjectCommitRecord],
) -> None:
    columns = CommitColumns()
    expected = []
    for number, record in enumerate(records):
        position = PLACE._replace(offset=number)
        columns.add(position, encode_record(record))
        expected += exploded(position, record)
    assert columns.rows == len(expected)
    batch = columns.take()
    assert batch.schema.equals(COMMIT_SCHEMA)
    assert batch.to_pylist() == expected
    assert columns.take().num_rows == 0, "what was taken is given out once"


def one_commit(**changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "object_id": 1, "object_format": 1, "size_bytes": 10, "broker_id": 1, "broker_epoch": 1,
        "lease_id": 1, "committed_at_ms": 1, "topic_ids": (ZERO_UUID,), "topic_indexes": (0,),
        "partitions": (0,), "batch_counts": (1,), "byte_offsets": (0,), "byte_sizes": (10,),
        "base_offsets": (0,), "record_counts": (1,), "max_timestamps": (1,),
        "timestamp_types": (0,), "producer_ids": (-1,), "producer_epochs": (-1,),
        "base_sequences": (-1,), "error_codes": (), "duplicates": (),
    }  # fmt: skip
    return encode_record(ObjectCommitRecord(**(fields | changes)))


def rows_of(value: bytes) -> list[dict[str, Any]]:
    columns = CommitColumns()
    columns.add(PLACE, value)
    rows: list[dict[str, Any]] = columns.take().to_pylist()
    return rows


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"byte_sizes": (1, 2)}, "byte_sizes"),
        ({"partitions": ()}, "partitions"),
        ({"error_codes": (1, 2)}, "error_codes"),
        ({"transaction_numbers": (1, 2)}, "transaction_numbers"),
        ({"batch_counts": (2,)}, "log offset 7"),
        ({"topic_indexes": (1,)}, "log offset 7"),
        ({"topic_indexes": (-1,)}, "log offset 7"),
    ],
)
def test_decoding_a_commit_record_with_columns_of_different_lengths_raises_an_error(
    changes: Any, named: str
) -> None:
    with pytest.raises(MalformedMessageError, match=named):
        rows_of(one_commit(**changes))


@pytest.mark.parametrize("length", [4, 30, 60, 80])
def test_decoding_a_truncated_commit_record_into_columns_raises_an_error(length: int) -> None:
    whole = one_commit()
    with pytest.raises(MalformedMessageError):
        CommitColumns().add(PLACE, whole[: min(length, len(whole) - 1)])


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_the_data_source_decodes_each_record_type_into_a_row_of_its_spark_table(
    data: st.DataObject,
) -> None:
    """Arrow accepts a record of any type and version, and its plain fields are unchanged."""
    table = data.draw(
        st.sampled_from([name for name in TABLES if name not in (RECORD, OBJECT_COMMIT)])
    )
    record_class = RECORD_OF[table]
    versions = record_class.schema().versions
    version = data.draw(st.integers(versions.first, versions.last))
    value = encode_record(data.draw(messages(record_class, version)), version)
    columns = RecordColumns(table)
    columns.add(PLACE, value)
    batch = columns.take()
    assert batch.schema.equals(schema_of(table))
    (row,) = batch.to_pylist()
    record = decode_record(value)
    assert row["version"] == version
    assert {name: row[name] for name in AT} == AT
    for field in record_class.schema().fields:
        told = row[field.name]
        if version not in field.versions:
            assert told is None
        elif isinstance(getattr(record, field.name), bool | int | str | float):
            assert told == getattr(record, field.name)


def test_null_and_absent_fields_are_null_in_spark_tables_and_empty_arrays_are_empty_lists() -> None:
    """In a change, null means unchanged; before version 1 there were no directories to change."""
    topic_id = random_uuid()
    change = PartitionChangeRecord(partition_id=0, topic_id=topic_id, isr=(), leader=-1)
    columns = RecordColumns("partition_change")
    columns.add(PLACE, encode_record(change, 0))
    (row,) = columns.take().to_pylist()
    assert row["isr"] == []
    assert row["replicas"] is None
    assert row["topic_id"] == encode_uuid(topic_id)
    assert row["directories"] is None


def test_spark_tables_have_nested_structures_of_records_as_arrow_structs() -> None:
    end_point = RegisterBrokerRecord.BrokerEndpoint(
        name="PLAINTEXT", host="b1", port=9092, security_protocol=0
    )
    record = RegisterBrokerRecord(
        broker_id=1, incarnation_id=random_uuid(), broker_epoch=5, end_points=(end_point,),
        features=(), rack="a",
    )  # fmt: skip
    columns = RecordColumns("register_broker")
    columns.add(PLACE, encode_record(record))
    (row,) = columns.take().to_pylist()
    assert row["end_points"] == [
        {"name": "PLAINTEXT", "host": "b1", "port": 9092, "security_protocol": 0}
    ]


def test_spark_tables_keep_unknown_records_and_tagged_fields_as_bytes() -> None:
    columns = EnvelopeColumns()
    columns.add(PLACE, bytes.fromhex("01 fe 7f 03") + b"whatever")
    columns.add(PLACE, encode_record(TopicRecord(name="t", topic_id=ZERO_UUID)))
    unknown, topic = columns.take().to_pylist()
    assert (unknown["type"], unknown["name"], unknown["version"]) == (16382, None, 3)
    assert unknown["body"] == b"whatever"
    assert (topic["type"], topic["name"]) == (2, "TopicRecord")


def test_the_error_for_an_unknown_table_name_lists_the_tables() -> None:
    with pytest.raises(TableError, match=r"no table 'partitons'.*partition_change"):
        columns_of("partitons")


def test_spark_supports_the_type_of_every_table_column() -> None:
    """Plain types only: no unsigned numbers, dictionaries or views."""
    allowed = (
        pa.types.is_signed_integer, pa.types.is_boolean, pa.types.is_string, pa.types.is_binary,
        pa.types.is_float64,
    )  # fmt: skip

    def check(kind: pa.DataType) -> None:
        if pa.types.is_list(kind):
            check(kind.value_type)
        elif pa.types.is_struct(kind):
            for field in kind:
                check(field.type)
        else:
            assert any(allows(kind) for allows in allowed), kind

    for table in TABLES:
        for field in schema_of(table):
            check(field.type)
