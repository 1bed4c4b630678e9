"""Derives an Avro schema from each record type's declaration, and checks how schemas change.

Columns are those of `spark_jobs.tables.schemas`: the position in the log, the version, the record's
fields. Other facts of the declaration are attributes, which Avro readers ignore: the type on the
wire, the versions that have the field, its tag.

How schemas may change (`faults_between` checks it; the schemas of each release are recorded):

1. A column is nullable, with null for its default, unless the table has had it from the first and
   every row has it: the position, the version, and the hot table's own columns, which makes writing
   them twice as fast. A column that a reader expects and a file lacks is then null, and a column
   that only the file has is ignored: readers may be newer or older than files.
2. No table and no column is removed; no column changes between nullable and never null. A field
   that the record no longer has stays, and is null.
3. A type may only grow: int to long, float to double.
4. A tag's number, once used in a table, never gets another name.

The trap is null, which has two meanings: the record says null, or its version has no such field.
The column `version` and the attribute `esker.versions` tell which. Where even that is not enough,
the envelope has the bytes.

Source: KIP-482 (tagged fields), Avro 1.12 specification (Schema Resolution).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

import pyarrow as pa

from records.schema import ArrayOf, Field, Message, RowOf, StructOf, WireType
from records.wire import ALWAYS
from spark_jobs.tables.schemas import RECORD, RECORD_OF, TABLES, schema_of

NAMESPACE: Final = "esker.tables"

_GROWS: Final = {("int", "long"), ("float", "double")}


@cache
def avro_schema(table: str) -> dict[str, Any]:
    """Return the Avro schema of a table's rows, which callers must not change.

    Raises:  TableError; ValueError for `record`.

    >>> [field["name"] for field in avro_schema("no_op")["fields"]][:3]
    ['from_checkpoint', 'log_offset', 'log_epoch']
    """
    if table == RECORD:
        raise ValueError("`record` has the envelope's schema: spark_jobs.readers.envelope.SCHEMA")
    columns = schema_of(table)
    declared = {field.name: field for field in RECORD_OF[table].schema().fields}
    return {
        "type": "record",
        "name": table,
        "namespace": NAMESPACE,
        "doc": (RECORD_OF[table].__doc__ or "").strip().partition("\n")[0],
        "fields": [_column(column, declared.get(column.name), table) for column in columns],
    }


def avro_schemas() -> dict[str, dict[str, Any]]:
    """Return the Avro schema of every table except `record`, by table name."""
    return {table: avro_schema(table) for table in TABLES if table != RECORD}


def _column(column: pa.Field, declared: Field | None, path: str) -> dict[str, Any]:
    kind = None if declared is None else declared.type
    avro = _avro(column.type, kind, f"{path}_{column.name}")
    found: dict[str, Any] = {"name": column.name, "type": avro}
    if column.nullable:
        found |= {"type": ["null", avro], "default": None}
    if declared is not None:
        found["esker.type"] = _spelt(declared.type)
        if declared.versions != ALWAYS:
            found["esker.versions"] = str(declared.versions)
        if declared.tag is not None:
            found["esker.tag"] = declared.tag
    return found


def _spelt(kind: WireType) -> str:
    match kind:
        case ArrayOf():
            return f"[]{_spelt(kind.element)}"
        case StructOf():
            return kind.message.__name__
        case RowOf():
            return kind.row.__name__
        case _:
            return kind.name


def _avro(arrow: pa.DataType, kind: WireType | None, path: str) -> Any:
    """Convert an Arrow type to an Avro type; a struct becomes a record named `path`."""
    if pa.types.is_list(arrow):
        element = kind.element if isinstance(kind, ArrayOf) else None
        return {"type": "array", "items": _avro(arrow.value_type, element, path)}
    if pa.types.is_struct(arrow):
        inner = _message_fields(kind.message) if isinstance(kind, StructOf) else {}
        fields = [arrow.field(i) for i in range(arrow.num_fields)]
        return {
            "type": "record",
            "name": path,
            "fields": [_column(field, inner.get(field.name), path) for field in fields],
        }
    return _SIMPLE[str(arrow)]


_SIMPLE: Final = {
    "bool": "boolean",
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "int64": "long",
    "double": "double",
    "string": "string",
    "binary": "bytes",
}


def _message_fields(message: type[Message]) -> dict[str, Field]:
    return {field.name: field for field in message.schema().fields}


# --- evolution ------------------------------------------------------------------------------------


def faults_between(
    old: Mapping[str, Mapping[str, Any]], new: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """List the schema changes that prevent either release from reading the other's files.

    Args:    old, new: a schema for each table.
    """
    faults = [f"{table}: the table is gone" for table in sorted(set(old) - set(new))]
    for table in sorted(set(old) & set(new)):
        faults += _faults(old[table], new[table], table)
    return faults


def _faults(old: Any, new: Any, path: str) -> Iterator[str]:
    before = {field["name"]: field for field in old["fields"]}
    after = {field["name"]: field for field in new["fields"]}
    tags = {field["esker.tag"]: name for name, field in before.items() if "esker.tag" in field}
    for name in before:
        if name not in after:
            yield f"{path}.{name}: the column is gone"
        else:
            yield from _type_faults(before[name]["type"], after[name]["type"], f"{path}.{name}")
    for name, field in after.items():
        if name not in before and field.get("default", "none") is not None:
            yield f"{path}.{name}: a new column without null for its default"
        used = tags.get(field.get("esker.tag"))
        if used is not None and used != name:
            yield f"{path}.{name}: tag {field['esker.tag']} was {used}'s"


def _type_faults(old: Any, new: Any, path: str) -> Iterator[str]:
    if isinstance(old, list) != isinstance(new, list):
        yield f"{path}: {_nullness(old)} became {_nullness(new)}"
    if isinstance(old, list):
        old = old[-1]
    if isinstance(new, list):
        new = new[-1]
    if isinstance(old, dict) and isinstance(new, dict) and old["type"] == new["type"]:
        if old["type"] == "record":
            yield from _faults(old, new, path)
        elif old["type"] == "array":
            yield from _type_faults(old["items"], new["items"], f"{path}[]")
    elif old != new and (str(old), str(new)) not in _GROWS:
        yield f"{path}: {_short(old)} became {_short(new)}"


def _nullness(kind: Any) -> str:
    return "nullable" if isinstance(kind, list) else "never null"


def _short(kind: Any) -> str:
    return str(kind.get("name", kind["type"])) if isinstance(kind, dict) else str(kind)
