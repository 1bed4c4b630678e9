"""Tests how an archive's schemas may change: older and newer releases read each other's files."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from spark_jobs.archive.avro_schemas import avro_schema, avro_schemas, faults_between
from spark_jobs.readers.avro_files import AvroFileError, AvroWriter, fingerprint, read_avro
from spark_jobs.readers.envelope import SCHEMA as ENVELOPE
from spark_jobs.tables.schemas import RECORD, TABLES, schema_of

RELEASED: Final = Path(__file__).parents[1] / "data" / "archive_schemas.json"

Schema = dict[str, Any]


def current() -> dict[str, Schema]:
    return {RECORD: ENVELOPE, **avro_schemas()}


def released() -> dict[str, Schema]:
    found: dict[str, Schema] = json.loads(RELEASED.read_text())
    return found


def test_archive_schemas_are_compatible_with_the_last_release(
    request: pytest.FixtureRequest,
) -> None:
    if request.config.getoption("--rewrite"):
        faults = faults_between(released(), current()) if RELEASED.exists() else []
        assert not faults, "\n".join(faults)
        RELEASED.write_text(json.dumps(current(), indent=1) + "\n")
    assert faults_between(released(), current()) == []
    assert released() == current(), "an allowed change: record it with --rewrite"


def row(schema: Any, *, empty: bool = False) -> Any:
    """Return a value of a schema, with everything set or everything null that can be."""
    if isinstance(schema, list):
        return None if empty else row(schema[-1])
    if isinstance(schema, dict):
        if schema["type"] == "record":
            return {one["name"]: row(one["type"], empty=empty) for one in schema["fields"]}
        return [row(schema["items"])]
    return {
        "boolean": True,
        "int": 7,
        "long": 1 << 40,
        "double": 0.5,
        "string": "s",
        "bytes": b"b",
    }[schema]


def written(schema: Schema, *rows: Any) -> bytes:
    writer = AvroWriter(schema, {})
    writer.write(rows)
    return writer.finish()


@pytest.mark.parametrize("table", [RECORD, *(table for table in TABLES if table != RECORD)])
def test_every_archived_table_is_readable_with_the_schemas_of_either_release(table: str) -> None:
    for writer, reader in [(released(), current()), (current(), released())]:
        rows = [row(writer[table]), row(writer[table], empty=True)]
        found = list(read_avro(written(writer[table], *rows), reader[table]))
        names = {field["name"] for field in reader[table]["fields"]}
        assert [set(one) for one in found] == [names, names]
        assert all(
            one[name] == two[name]
            for one, two in zip(found, rows, strict=True)
            for name in names & {*two}
        )


def test_an_archive_schema_has_the_columns_of_its_table() -> None:
    for table, schema in avro_schemas().items():
        assert [field["name"] for field in schema["fields"]] == schema_of(table).names


# --- the rules, each by a change that a release could make ----------------------------------------

Change = Callable[[dict[str, Schema]], None]


def field_of(schemas: dict[str, Schema], table: str, name: str) -> Schema:
    return next(one for one in schemas[table]["fields"] if one["name"] == name)


def add(table: str, field: Schema) -> Change:
    return lambda schemas: schemas[table]["fields"].append(field)


def new_column(schemas: dict[str, Schema]) -> None:
    add("topic", {"name": "owner", "type": ["null", "string"], "default": None})(schemas)


def new_tag(schemas: dict[str, Schema]) -> None:
    tagged = {"name": "later", "type": ["null", "long"], "default": None, "esker.tag": 4_711}
    add("producer_ids", tagged)(schemas)


def grow(schemas: dict[str, Schema]) -> None:
    field_of(schemas, "partition", "leader")["type"] = ["null", "long"]


def new_table(schemas: dict[str, Schema]) -> None:
    schemas["of_tomorrow"] = {**schemas["topic"], "name": "of_tomorrow"}


def drop_column(schemas: dict[str, Schema]) -> None:
    schemas["topic"]["fields"] = [
        one for one in schemas["topic"]["fields"] if one["name"] != "topic_id"
    ]


def drop_table(schemas: dict[str, Schema]) -> None:
    del schemas["topic"]


def shrink(schemas: dict[str, Schema]) -> None:
    field_of(schemas, "partition", "log_offset")["type"] = "int"


def retype(schemas: dict[str, Schema]) -> None:
    field_of(schemas, "topic", "name")["type"] = ["null", "bytes"]


def retype_inside(schemas: dict[str, Schema]) -> None:
    (array,) = [
        one["type"][1]
        for one in schemas["register_broker"]["fields"]
        if one["name"] == "end_points"
    ]
    field_of({"inner": array["items"]}, "inner", "port")["type"] = ["null", "string"]


def become_nullable(schemas: dict[str, Schema]) -> None:
    field_of(schemas, "object_commit", "partition")["type"] = ["null", "int"]


def reuse_tag(schemas: dict[str, Schema]) -> None:
    (tag,) = {one["esker.tag"] for one in schemas["producer_ids"]["fields"] if "esker.tag" in one}
    other = {"name": "other", "type": ["null", "long"], "default": None, "esker.tag": tag}
    add("producer_ids", other)(schemas)


ALLOWED = [new_column, new_tag, grow, new_table]
FORBIDDEN = [
    (drop_column, "topic.topic_id: the column is gone"),
    (drop_table, "topic: the table is gone"),
    (shrink, "partition.log_offset: long became int"),
    (retype, "topic.name: string became bytes"),
    (become_nullable, "object_commit.partition: never null became nullable"),
    (retype_inside, "register_broker.end_points[].port: int became string"),
    (add("topic", {"name": "must", "type": "int"}), "topic.must: a new column without null"),
    (
        add("topic", {"name": "zero", "type": "int", "default": 0}),
        "topic.zero: a new column without null",
    ),
    (reuse_tag, "producer_ids.other: tag 1000 was block_time_ms's"),
]


def changed(change: Change) -> dict[str, Schema]:
    schemas = copy.deepcopy(current())
    change(schemas)
    return schemas


@pytest.mark.parametrize("change", ALLOWED)
def test_after_an_allowed_schema_change_old_and_new_releases_read_each_others_files(
    change: Change,
) -> None:
    old, new = current(), changed(change)
    assert faults_between(old, new) == []
    for table in set(old) & set(new):
        if old[table] == new[table]:
            continue
        for writer, reader in [(old[table], new[table]), (new[table], old[table])]:
            if change is grow and writer is new[table]:
                continue  # a type grows for new readers; old ones read what was written for them
            rows = [row(writer), row(writer, empty=True)]
            found = list(read_avro(written(writer, *rows), reader))
            for one, of in zip(found, rows, strict=True):
                for field in reader["fields"]:
                    assert one[field["name"]] == of.get(field["name"])


@pytest.mark.parametrize(("change", "told"), FORBIDDEN)
def test_the_archive_schema_check_reports_each_incompatible_schema_change(
    change: Change, told: str
) -> None:
    assert any(fault.startswith(told) for fault in faults_between(current(), changed(change)))


def retype_to_number(schemas: dict[str, Schema]) -> None:
    field_of(schemas, "topic", "name")["type"] = ["null", "long"]


@pytest.mark.parametrize(
    "change", [retype_to_number, add("topic", {"name": "must", "type": "int"})]
)
def test_incompatible_schema_changes_make_old_archive_files_unreadable(change: Change) -> None:
    old, new = current(), changed(change)
    (table,) = [table for table in old if old[table] != new[table]]
    with pytest.raises(AvroFileError):
        list(read_avro(written(old[table], row(old[table])), new[table]))


def test_archive_schemas_contain_the_type_tag_and_versions_that_each_field_declares() -> None:
    schemas = current()
    assert field_of(schemas, "producer_ids", "block_time_ms")["esker.tag"] == 1000
    assert field_of(schemas, "topic", "topic_id")["esker.type"] == "uuid"
    assert field_of(schemas, "partition", "replicas")["esker.type"] == "[]int32"
    assert field_of(schemas, "partition", "directories")["esker.versions"] == "1+"


def test_the_fingerprint_of_an_avro_schema_ignores_eskers_custom_attributes() -> None:
    schema = copy.deepcopy(avro_schema("topic"))
    before = fingerprint(schema)
    schema["fields"][-1]["esker.note"] = "x"
    assert fingerprint(schema) == before
    new_column(schemas := {"topic": schema})
    assert fingerprint(schemas["topic"]) != before
