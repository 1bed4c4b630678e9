"""Values of topics that become tables: every kind of bad record, every change of a schema.

Each row of the two tables in docs/tables.md is a case here, by the text of its first cell.

Source: docs/tables.md#bad-records, #changes-of-a-schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2, wrappers_pb2

from spark_jobs.topic_tables.avro_values import avro_type
from spark_jobs.topic_tables.formats import (
    AvroValues,
    ConfluentValues,
    InferredJson,
    JsonValues,
    ProtobufValues,
    WriterSchema,
)
from spark_jobs.topic_tables.json_values import infer_type, json_schema_type
from spark_jobs.topic_tables.protobuf_values import NoMessageError, protobuf_type
from spark_jobs.topic_tables.registry import SchemaDirectory, avro_schema, json_schema
from spark_jobs.topic_tables.rows import UnknownSchemasError, to_column
from spark_jobs.topic_tables.schemas import NamedValues
from spark_jobs.topic_tables.value_types import SchemaChangeError, SchemaError, merge_types

DOCS: Final = Path(__file__).parents[2] / "docs" / "tables.md"


def first_cells(heading: str) -> list[str]:
    """Return the first cell of each row of the table below a heading."""
    section = DOCS.read_text().partition(f"\n{heading}\n")[2].partition("\n#")[0]
    rows = re.findall(r"^\| (.*?) \|", section, re.MULTILINE)
    return [row for row in rows[1:] if not row.startswith("---")]


def record(*fields: Any, name: str = "Order") -> str:
    """Return an Avro record of fields, each a name and a type."""
    named = [{"name": name, "type": kind} for name, kind in fields]
    return json.dumps({"type": "record", "name": name, "fields": named})


def avro(schema: str, value: Any) -> bytes:
    stream = BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(schema)), value)
    return stream.getvalue()


# --- bad records --------------------------------------------------------------------------------

ORDER: Final = record(("id", "int"), ("note", ["null", "string"]))
JSON_TYPE: Final = pa.struct([("id", pa.int64()), ("note", pa.string())])
AVRO_ID, PROTOBUF_ID, MISSING_ID = 7, 8, 9


def protobuf_file() -> descriptor_pb2.FileDescriptorProto:
    """Return a file of messages: Order { Line { string name }, ... }, Loop { Loop next }."""
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    order = file.message_type.add(name="Order")
    field = descriptor_pb2.FieldDescriptorProto
    line = order.nested_type.add(name="Line")
    line.field.add(name="name", number=1, type=field.TYPE_STRING, label=1)
    entry = order.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=1)
    entry.field.add(name="value", number=2, type=field.TYPE_INT32, label=1)
    status = order.enum_type.add(name="Status")
    status.value.add(name="NEW", number=0)
    status.value.add(name="PAID", number=1)
    for number, (name, kind, label, of) in enumerate(
        (
            ("id", field.TYPE_UINT64, 1, ""),
            ("lines", field.TYPE_MESSAGE, 3, ".shop.Order.Line"),
            ("tags", field.TYPE_MESSAGE, 3, ".shop.Order.TagsEntry"),
            ("status", field.TYPE_ENUM, 1, ".shop.Order.Status"),
            ("at", field.TYPE_MESSAGE, 1, ".google.protobuf.Timestamp"),
            ("paid", field.TYPE_MESSAGE, 1, ".google.protobuf.Int64Value"),
            ("raw", field.TYPE_BYTES, 1, ""),
        ),
        1,
    ):
        order.field.add(name=name, number=number, type=kind, label=label, type_name=of or None)
    loop = file.message_type.add(name="Loop")
    loop.field.add(name="next", number=1, type=field.TYPE_MESSAGE, label=1, type_name=".shop.Loop")
    return file


FILE: Final = protobuf_file().SerializeToString()


def confluent(schema_id: int, data: bytes) -> bytes:
    return b"\x00" + schema_id.to_bytes(4, "big") + data


NAMED: Final = ConfluentValues(
    {AVRO_ID: avro_schema(ORDER), PROTOBUF_ID: WriterSchema("PROTOBUF", descriptors=FILE)},
    frozenset({(PROTOBUF_ID, (0,))}),
    frozenset({MISSING_ID}),
)
LONG_ID: Final = avro(record(("id", "long"), ("note", ["null", "string"])),
                      {"id": 1 << 40, "note": None})  # fmt: skip

BAD: Final[dict[str, tuple[Any, bytes, str]]] = {
    "text that is not JSON": (JsonValues(JSON_TYPE), b'{"id": 1', "truncated"),
    "JSON that is no object": (JsonValues(JSON_TYPE), b"[1]", "Expected `object`, got `array`"),
    "a JSON value of another type": (
        JsonValues(JSON_TYPE), b'{"id": "1"}', "Expected `int | null`, got `str` - at `$.id`",
    ),
    "a JSON field that the schema does not have": (
        JsonValues(JSON_TYPE), b'{"id": 1, "more": 2}', "unknown field `more`",
    ),
    "a JSON number that 64 bits do not hold": (
        JsonValues(JSON_TYPE), b'{"id": 9223372036854775808}', "<= 9223372036854775807",
    ),
    "a JSON time without a time zone": (
        JsonValues(pa.struct([("at", pa.timestamp("us", "UTC"))])),
        b'{"at": "2026-11-28T10:00:00"}', "timezone",
    ),
    "bytes that end within an Avro record": (
        AvroValues(ORDER), avro(ORDER, {"id": 1, "note": "long"})[:-2], "not of its Avro schema",
    ),
    "bytes behind an Avro record": (
        AvroValues(ORDER), avro(ORDER, {"id": 1, "note": None}) + b"xy", "2 bytes follow",
    ),
    "an Avro number that its column does not hold": (
        AvroValues(ORDER), LONG_ID, "too large to fit in C integer type",
    ),
    "bytes that are no Protobuf message": (
        ProtobufValues(FILE, "shop.Order"), b"\xff\xff", "not a shop.Order",
    ),
    "no header of Confluent's wire format": (NAMED, b'{"id": 1}', "Confluent's wire format"),
    "a schema id that the registry does not have": (
        NAMED, confluent(MISSING_ID, b""), "no schema 9",
    ),
    "indexes of no Protobuf message": (
        ConfluentValues(NAMED.schemas, frozenset({(PROTOBUF_ID, (5,))}), frozenset()),
        confluent(PROTOBUF_ID, bytes([2, 10])), r"no message \(5,\)",
    ),
    "indexes of a Protobuf message that do not end": (
        NAMED, confluent(PROTOBUF_ID, b"\xff\xff"), "do not end",
    ),
}  # fmt: skip


def test_the_documentation_names_every_kind_of_bad_record() -> None:
    assert first_cells("### Bad records") == list(BAD)


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_record_has_a_reason_and_its_neighbours_are_rows(kind: str) -> None:
    values, data, reason = BAD[kind]
    decoded = values.decode([None, data, None])
    column = {"an Avro number that its column does not hold": avro_type(ORDER)}.get(kind)
    bad = dict(decoded.bad)
    if column is not None:
        bad |= to_column(decoded.values, column)[1]
    assert list(bad) == [1]
    assert re.search(reason, bad[1]) or reason in bad[1], bad[1]


# --- changes of a schema ------------------------------------------------------------------------


def fields_of(*fields: Any) -> pa.DataType:
    return avro_type(record(*fields))


def stops(reason: str) -> Callable[[pa.DataType, Callable[[], pa.DataType]], None]:
    def check(before: pa.DataType, after: Callable[[], pa.DataType]) -> None:
        with pytest.raises(SchemaError, match=reason):
            merge_types(before, after())

    return check


def becomes(*fields: Any) -> Callable[[pa.DataType, Callable[[], pa.DataType]], None]:
    def check(before: pa.DataType, after: Callable[[], pa.DataType]) -> None:
        assert merge_types(before, after()) == fields_of(*fields)

    return check


DECIMAL: Final = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
LINE: Final = {"type": "record", "name": "Line", "fields": [{"name": "n", "type": "int"}]}
LONG_LINE: Final = {"type": "record", "name": "Line", "fields": [
    {"name": "n", "type": "long"}, {"name": "m", "type": "string"}]}  # fmt: skip
ENUM: Final = {"type": "enum", "name": "E", "symbols": ["A"]}

CHANGES: Final[dict[str, tuple[list[Any], list[Any], Any]]] = {
    "a field is added": (
        [("a", "int")], [("a", "int"), ("b", "string")], becomes(("a", "int"), ("b", "string")),
    ),
    "a field is removed": (
        [("a", "int"), ("b", "string")], [("a", "int")], becomes(("a", "int"), ("b", "string")),
    ),
    "a field is renamed": ([("a", "int")], [("b", "int")], becomes(("a", "int"), ("b", "int"))),
    "fields change their order": (
        [("a", "int"), ("b", "int")], [("b", "int"), ("a", "int")],
        becomes(("a", "int"), ("b", "int")),
    ),
    "a field becomes optional, or required": (
        [("a", "int")], [("a", ["null", "int"])], becomes(("a", "int")),
    ),
    "int to long, float to double": (
        [("a", "int"), ("b", "float")], [("a", "long"), ("b", "double")],
        becomes(("a", "long"), ("b", "double")),
    ),
    "long to int, double to float": (
        [("a", "long"), ("b", "double")], [("a", "int"), ("b", "float")],
        becomes(("a", "long"), ("b", "double")),
    ),
    "a decimal of more digits": (
        [("a", DECIMAL)], [("a", {**DECIMAL, "precision": 9})],
        becomes(("a", {**DECIMAL, "precision": 9})),
    ),
    "a field within a record, a list or a map is added or widened": (
        [("a", {"type": "array", "items": LINE})], [("a", {"type": "array", "items": LONG_LINE})],
        becomes(("a", {"type": "array", "items": LONG_LINE})),
    ),
    "an enum gains a symbol": (
        [("a", ENUM)], [("a", {**ENUM, "symbols": ["A", "B"]})], becomes(("a", "string")),
    ),
    "a default changes": (
        [("a", "int")], [("a", "int")], becomes(("a", "int")),
    ),
    "a type changes otherwise (long to string)": (
        [("a", "long")], [("a", "string")], stops("value.a is int64 in the table, and string"),
    ),
    "a decimal of another scale": (
        [("a", DECIMAL)], [("a", {**DECIMAL, "scale": 3})], stops("value.a is decimal"),
    ),
    "a record becomes something else": (
        [("a", LINE)], [("a", "string")], stops("value.a is a record in the table"),
    ),
    "a union of two types": (
        [("a", "int")], [("a", ["int", "string"])], stops("value.a is a union of 2 types"),
    ),
    "a record that contains itself": (
        [("a", "int")], [("a", ["null", "Order"])], stops("contains itself"),
    ),
    "a record without fields": (
        [("a", "int")], [("a", {"type": "record", "name": "None_", "fields": []})],
        stops("value.a is a record without fields"),
    ),
}  # fmt: skip


def test_the_documentation_names_every_change_of_a_schema() -> None:
    assert first_cells("### Changes of a schema") == list(CHANGES)


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_a_schema_is_followed_or_refused(change: str) -> None:
    before, after, check = CHANGES[change]
    check(fields_of(*before), lambda: fields_of(*after))


def test_maps_follow_their_values() -> None:
    def map_of(kind: str) -> pa.DataType:
        return fields_of(("a", {"type": "map", "values": kind}))

    assert merge_types(map_of("int"), map_of("long")) == map_of("long")
    with pytest.raises(SchemaChangeError, match=r"value\.a\.value is int32"):
        merge_types(map_of("int"), map_of("string"))


# --- types and values ---------------------------------------------------------------------------


def test_avro_types_become_columns_and_values() -> None:
    schema = record(
        ("day", {"type": "int", "logicalType": "date"}),
        ("at", {"type": "long", "logicalType": "timestamp-millis"}),
        ("price", DECIMAL),
        ("id", {"type": "string", "logicalType": "uuid"}),
        ("tags", {"type": "map", "values": "int"}),
        ("lines", {"type": "array", "items": LINE}),
        ("last", ["null", "Line"]),
        ("sum", {"type": "fixed", "name": "F", "size": 2}),
    )
    at = datetime(2026, 11, 28, 10, tzinfo=UTC)
    value = {
        "day": date(2026, 11, 28), "at": at, "price": Decimal("1.25"), "id": "0-1",
        "tags": {"a": 1}, "lines": [{"n": 1}], "last": None, "sum": b"ab",
    }  # fmt: skip
    plain = json.loads(schema)
    plain["fields"][3]["type"] = "string"
    decoded = AvroValues(schema).decode([avro(json.dumps(plain), value)])
    column, misfits = to_column(decoded.values, avro_type(schema))
    assert not misfits
    assert column.to_pylist() == [{**value, "tags": [("a", 1)]}]


def test_protobuf_messages_become_columns_and_values() -> None:
    files = descriptor_pb2.FileDescriptorSet()
    for module in (timestamp_pb2, wrappers_pb2):
        files.file.add().ParseFromString(module.DESCRIPTOR.serialized_pb)
    files.file.add().CopyFrom(protobuf_file())
    data = bytes.fromhex(
        "08ffffffffffffffffff01"  # id: 2^64 - 1
        "12030a0178"  # lines: {name: "x"}
        "1a050a01611007"  # tags: a = 7
        "2001"  # status: PAID
        "2a0308e807"  # at: 1000 s
        "3203088002"  # paid: 256
    )
    expected = {
        "id": Decimal((1 << 64) - 1), "lines": [{"name": "x"}], "tags": [("a", 7)],
        "status": "PAID", "at": datetime(1970, 1, 1, 0, 16, 40, tzinfo=UTC), "paid": 256,
        "raw": b"",
    }  # fmt: skip
    for schema in (FILE, files.SerializeToString()):
        decoded = ProtobufValues(schema, "shop.Order").decode([data, b""])
        column, misfits = to_column(decoded.values, protobuf_type(schema, "shop.Order"))
        assert not misfits
        assert column[0].as_py() == expected
        assert (column[1]["paid"].as_py(), column[1]["at"].as_py()) == (None, None)
    with pytest.raises(SchemaError, match="contains itself"):
        protobuf_type(FILE, "shop.Loop")
    with pytest.raises(NoMessageError):
        protobuf_type(FILE, "shop.Nothing")
    with pytest.raises(SchemaError, match="not a FileDescriptorSet"):
        protobuf_type(b"\xff", "a")
    alone = descriptor_pb2.FileDescriptorProto(name="a.proto", dependency=["b.proto"])
    with pytest.raises(SchemaError, match="not a whole Protobuf schema"):
        protobuf_type(alone.SerializeToString(), "a")


def test_json_schemas_become_columns() -> None:
    schema = {
        "type": "object",
        "$defs": {"line": {"type": "object", "properties": {"n": {"type": "number"}}}},
        "properties": {
            "id": {"type": "integer"},
            "at": {"type": ["string", "null"], "format": "date-time"},
            "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
            "tags": {"type": "object", "additionalProperties": {"type": "boolean"}},
            "kind": {"enum": ["a", "b"]},
            "maybe": {"oneOf": [{"type": "null"}, {"type": "string", "format": "date"}]},
        },
    }
    assert json_schema_type(json.dumps(schema)) == pa.struct(
        [
            ("id", pa.int64()),
            ("at", pa.timestamp("us", "UTC")),
            ("lines", pa.list_(pa.field("element", pa.struct([("n", pa.float64())])))),
            ("tags", pa.map_(pa.string(), pa.bool_())),
            ("kind", pa.string()),
            ("maybe", pa.date32()),
        ]
    )


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("[", "not a JSON Schema"),
        ('{"type": "string"}', "not of an object"),
        ('{"properties": {"a": {"type": ["string", "integer"]}}}', "no table has a column"),
        ('{"properties": {"a": {"$ref": "#"}}}', "contains itself"),
        ('{"properties": {"a": {"$ref": "#x"}}}', "not in this schema"),
        ('{"properties": {"a": {"$ref": "other.json#/x"}}}', "not in this schema"),
        ('{"properties": {"a": {"$ref": "#/properties/a"}}}', "contains itself"),
        ('{"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "number"}]}}}', "2 types"),
        ('{"properties": {"a": true}}', "may be anything"),
    ],
)
def test_json_schemas_without_a_column_are_refused(schema: str, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        json_schema_type(schema)


def test_json_is_inferred_from_its_first_values() -> None:
    values = [
        None, b"no", b"[]", b'{"a": 1, "n": null, "o": {}, "l": [{"x": 1}, {"y": "z"}]}',
        b'{"a": 2.5, "s": "t", "l": 3}',
    ]  # fmt: skip
    element = pa.struct([("x", pa.int64()), ("y", pa.string())])
    assert infer_type(values) == pa.struct(
        [
            ("a", pa.float64()),
            ("n", pa.string()),
            ("o", pa.map_(pa.string(), pa.string())),
            ("l", pa.list_(pa.field("element", element))),
            ("s", pa.string()),
        ]
    )
    assert infer_type(values[:3]) is None
    assert list(InferredJson().decode(values[:3]).bad) == [1, 2]
    with pytest.raises(UnknownSchemasError):
        InferredJson().decode(values)


# --- schemas by id ------------------------------------------------------------------------------


def test_a_schema_directory_has_schemas_of_all_kinds(tmp_path: Path) -> None:
    (tmp_path / "7.avsc").write_text(ORDER)
    (tmp_path / "8.json").write_text('{"properties": {"id": {"type": "integer"}}}')
    (tmp_path / "9.desc").write_bytes(FILE)
    (tmp_path / "10.avsc").write_text("{")
    source = SchemaDirectory(tmp_path)
    assert source.get(7) == avro_schema(ORDER)
    assert source.get(8) == json_schema('{"properties": {"id": {"type": "integer"}}}')
    assert source.get(9) == WriterSchema("PROTOBUF", descriptors=FILE)
    with pytest.raises(SchemaError, match=r"10\.avsc: not an Avro schema"):
        source.get(10)
    with pytest.raises(SchemaError, match="no schema 11"):
        source.get(11)


def test_values_that_name_schemas_teach_them_round_by_round(tmp_path: Path) -> None:
    (tmp_path / "1.avsc").write_text(record(("id", "int")))
    (tmp_path / "2.json").write_text(
        '{"properties": {"id": {"type": "integer"}, "b": {"type": "string"}}}'
    )
    values = NamedValues(SchemaDirectory(tmp_path))
    kind = values.start(None)
    data = [
        confluent(1, avro(record(("id", "int")), {"id": 5})),
        confluent(2, b'{"id": 6, "b": "x"}'),
    ]
    with pytest.raises(UnknownSchemasError) as raised:
        values.format.decode(data)
    kind = values.learn(raised.value.unknown)
    assert kind == pa.struct([("id", pa.int64()), ("b", pa.string())])
    decoded = values.format.decode(data)
    assert to_column(decoded.values, kind)[0].to_pylist() == [
        {"id": 5, "b": None}, {"id": 6, "b": "x"},
    ]  # fmt: skip
    (tmp_path / "3.desc").write_bytes(FILE)
    nested = confluent(3, bytes([4, 0, 0]) + b"\x0a\x01x")  # indexes 0, 0: Order.Line
    for _ in range(2):
        with pytest.raises(UnknownSchemasError) as raised:
            values.format.decode([nested])
        kind = values.learn(raised.value.unknown)
    assert values.format.decode([nested]).values == [{"name": "x"}]
    assert kind == pa.struct([("id", pa.int64()), ("b", pa.string()), ("name", pa.string())])
    values.start(None)
    with pytest.raises(UnknownSchemasError):  # the table may lack what the schemas add
        values.format.decode(data)
