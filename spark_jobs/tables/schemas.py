"""Records as tables: an Arrow schema for each record type, derived from its declaration.

A table is named after its record, `partition` after `PartitionRecord`; its columns are the record's
fields, after the log position and the version that the row comes from. `object_commit` is the
exception: it has a row for each batch (`spark_jobs.tables.commits`). And `record` has every record,
undecoded, also of types without a declaration here.

The trap is null. A field that a version does not have is null, whatever the default that other
code sees for it; so is one that is null in the record. Ids are written as Kafka writes them. Tagged
fields that are not known here are kept as bytes; those of nested structures only in `record`.

Source: reference of the types: `records.wire`; KIP-631 and KIP-1164 for what the records mean.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa

from records.codec import decode_message
from records.compression import Buffer
from records.frame import METADATA_RECORDS, read_frame
from records.schema import (
    UNKNOWN_TAGGED_FIELDS,
    ArrayOf,
    Field,
    Message,
    MetadataRecord,
    RowOf,
    StructOf,
    WireType,
)
from records.uuids import encode_uuid
from records.wire import Fixed
from spark_jobs.readers.log_position import LogPosition
from spark_jobs.tables.commits import POSITION_FIELDS, CommitColumns
from spark_jobs.tables.commits import SCHEMA as COMMIT_SCHEMA

RECORD: Final = "record"
OBJECT_COMMIT: Final = "object_commit"
OBJECT_COMMIT_KEY: Final = 1104

_FIXED: Final = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "uint16": pa.int32(),  # Spark has no unsigned numbers
    "int32": pa.int32(),
    "uint32": pa.int64(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "uuid": pa.string(),
}
_SIZED: Final = {"string": pa.string(), "bytes": pa.binary(), "records": pa.binary()}
_TAGGED: Final = pa.list_(pa.struct([pa.field("tag", pa.int32()), pa.field("data", pa.binary())]))

RECORD_SCHEMA: Final = pa.schema(
    [
        *POSITION_FIELDS,
        pa.field("type", pa.int32(), nullable=False),
        pa.field("name", pa.string()),  # null: not a type known here
        pa.field("version", pa.int32(), nullable=False),
        pa.field("body", pa.binary(), nullable=False),  # after the frame
    ]
)


class TableError(Exception):
    """There is no such table. The message names the existing ones."""


def table_name(record: type[MetadataRecord]) -> str:
    """Return the name of a record's table.

    >>> from records.metadata import PartitionChangeRecord
    >>> table_name(PartitionChangeRecord)
    'partition_change'
    """
    name = record.schema().name.removesuffix("Record")
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


RECORD_OF: Final[Mapping[str, type[MetadataRecord]]] = {
    table_name(record): record for record in METADATA_RECORDS.values()
}
"""The record class of each table but `record`."""

TABLES: Final = (RECORD, *sorted(RECORD_OF))


def schema_of(table: str) -> pa.Schema:
    """Return the Arrow schema of a record type's table.

    Raises:  TableError.
    """
    if table == RECORD:
        return RECORD_SCHEMA
    if table == OBJECT_COMMIT:
        return COMMIT_SCHEMA
    fields = (pa.field(field.name, _arrow(field.type)) for field in _record(table).schema().fields)
    return pa.schema(
        [
            *POSITION_FIELDS,
            pa.field("version", pa.int32(), nullable=False),
            *fields,
            pa.field(UNKNOWN_TAGGED_FIELDS, _TAGGED),
        ]
    )


def _record(table: str) -> type[MetadataRecord]:
    record = RECORD_OF.get(table)
    if record is None:
        raise TableError(f"there is no table {table!r}; there are: {', '.join(TABLES)}")
    return record


def _arrow(kind: WireType) -> pa.DataType:
    match kind:
        case Fixed():
            return _FIXED[kind.name]
        case ArrayOf():
            return pa.list_(_arrow(kind.element))
        case StructOf():
            fields = kind.message.schema().fields
            return pa.struct([pa.field(field.name, _arrow(field.type)) for field in fields])
        case RowOf():
            return pa.struct([pa.field(name, _FIXED[column.name]) for name, column in kind.columns])
        case _:
            return _SIZED[kind.name]


# --- values -------------------------------------------------------------------------------------

Value = Callable[[Any], Any]
"""A field's value as Arrow takes it."""


def _same(value: Any) -> Any:
    return value


def _value(kind: WireType, version: int) -> Value:
    """Return a function that converts values of a wire type to values for Arrow."""
    match kind:
        case Fixed(name="uuid"):
            return _uuid
        case ArrayOf():
            convert = _value(kind.element, version)
            return _same if convert is _same else lambda values: _each(convert, values)
        case StructOf():
            return _struct(kind.message, version)
        case RowOf():
            names = [name for name, _ in kind.columns]
            return lambda row: dict(zip(names, row, strict=True))
        case _:
            return _bytes if getattr(kind, "name", "") in ("bytes", "records") else _same


def _uuid(value: Any) -> str | None:
    return None if value is None else encode_uuid(value)


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def _each(convert: Value, values: Any) -> list[Any] | None:
    return None if values is None else [convert(value) for value in values]


def _struct(message: type[Message], version: int) -> Value:
    known = [
        (field.name, _value(field.type, version))
        for field in message.schema().fields
        if version in field.versions
    ]
    return lambda value: (
        None if value is None else {name: one(getattr(value, name)) for name, one in known}
    )


def _column(field: Field, version: int) -> Value:
    if version not in field.versions:
        return lambda _: None
    convert, name = _value(field.type, version), field.name
    return lambda record: convert(getattr(record, name))


class _Row(NamedTuple):
    position: LogPosition
    version: int
    record: MetadataRecord


class RecordColumns:
    """Collects records of one type, and returns them as one Arrow batch or as dictionaries."""

    def __init__(self, table: str) -> None:
        """Start an empty collection of records for a table.

        Raises:  TableError.
        """
        self._class = _record(table)
        self._schema = schema_of(table)
        self._rows: list[_Row] = []

    @property
    def rows(self) -> int:
        """Return the number of added rows that `take` has not returned yet."""
        return len(self._rows)

    def add(self, position: LogPosition, value: Buffer) -> None:
        """Decode and add the value of one record, frame included.

        Raises:  RecordError.
        """
        _, version, body = read_frame(value)
        record = decode_message(self._class, bytes(value), version, body)
        self._rows.append(_Row(position, version, record))

    def take(self) -> pa.RecordBatch:
        """Return the rows that were added since the last call, in order."""
        rows = list(self._take())
        columns = zip(*rows, strict=True) if rows else ([] for _ in self._schema)
        arrays = [
            pa.array(list(column), field.type)
            for column, field in zip(columns, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def take_rows(self) -> Iterator[dict[str, Any]]:
        """Return the rows that were added since the last call as dictionaries.

        Structures lack the fields that their version lacks.
        """
        names = self._schema.names
        return (dict(zip(names, row, strict=True)) for row in self._take())

    def _take(self) -> Iterator[tuple[Any, ...]]:
        rows, self._rows = self._rows, []
        readers: dict[int, list[Value]] = {}
        for position, version, record in rows:
            if version not in readers:
                fields = self._class.schema().fields
                readers[version] = [_column(field, version) for field in fields]
            unknown = record.unknown_tagged_fields
            yield (
                *position,
                version,
                *[read(record) for read in readers[version]],
                [{"tag": tag, "data": data} for tag, data in unknown] if unknown else None,
            )


class EnvelopeColumns:
    """Collects records of any type, undecoded."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []

    @property
    def rows(self) -> int:
        """Return the number of added rows that `take` has not returned yet."""
        return len(self._rows)

    def add(self, position: LogPosition, value: Buffer) -> None:
        """Add the value of one record, frame included, without decoding its body.

        Raises:  RecordError if it has none.
        """
        key, version, body = read_frame(value)
        known = METADATA_RECORDS.get(key)
        name = None if known is None else known.schema().name
        self._rows.append((*position, key, name, version, bytes(value[body:])))

    def take(self) -> pa.RecordBatch:
        """Return the rows that were added since the last call, in order."""
        rows, self._rows = self._rows, []
        columns = zip(*rows, strict=True) if rows else ([] for _ in RECORD_SCHEMA)
        arrays = [
            pa.array(list(column), field.type)
            for column, field in zip(columns, RECORD_SCHEMA, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA)


Columns = CommitColumns | RecordColumns | EnvelopeColumns


def columns_of(table: str) -> tuple[Columns, int | None]:
    """Return an empty collector for a table, and the record type that it collects.

    A record type of None stands for all types.

    Raises:  TableError.
    """
    if table == RECORD:
        return EnvelopeColumns(), None
    if table == OBJECT_COMMIT:
        return CommitColumns(), OBJECT_COMMIT_KEY
    return RecordColumns(table), _record(table).schema().key
