"""Types of values, and which changes of them a table can follow.

    merge_types(struct(a int32), struct(a int64, b string))   # struct(a int64, b string)

A table's column can gain fields and become wider, as the Iceberg specification has it. Nothing
else: files that are there are not rewritten. So the merged type holds every value of both, or there
is none, and `SchemaChangeError` says which field stands in the way.

Source: the Iceberg specification, Schema Evolution; docs/design/tables.md#schemas.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

MAX_DEPTH: Final = 32
"""Levels of a type: a schema from outside may be nested without end."""


class SchemaError(Exception):
    """A schema cannot be that of a table's values; the message says what of it, and why."""


class SchemaChangeError(SchemaError):
    """A schema asks for a type that the table's column cannot change to."""


def merge_types(
    table_type: pa.DataType | None, wanted: pa.DataType, name: str = "value"
) -> pa.DataType:
    """Return the type of a column that holds its present values and those of another type.

    Args:    table_type: None: the column is not there yet.
             name: of the column or field, for the error.
    Raises:  SchemaChangeError.

    >>> merge_types(pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int64())]))
    StructType(struct<a: int64>)
    """
    if table_type is None or table_type == wanted:
        return wanted
    if pa.types.is_struct(table_type) and pa.types.is_struct(wanted):
        return _merge_structs(table_type, wanted, name)
    if pa.types.is_list(table_type) and pa.types.is_list(wanted):
        element = merge_types(table_type.value_type, wanted.value_type, f"{name}.element")
        return list_of(element)
    if pa.types.is_map(table_type) and pa.types.is_map(wanted):
        item = merge_types(table_type.item_type, wanted.item_type, f"{name}.value")
        if table_type.key_type == wanted.key_type:
            return pa.map_(table_type.key_type, item)
    wider = _wider(table_type, wanted)
    if wider is None:
        raise SchemaChangeError(
            f"{name} is {_text(table_type)} in the table, and {_text(wanted)} in the new schema. A "
            "table's column cannot change so: write to another namespace, or give the field "
            "another name"
        )
    return wider


def list_of(element: pa.DataType) -> pa.DataType:
    """Return the type of a list, whose element has the name that Iceberg gives it."""
    return pa.list_(pa.field("element", element))


def check_type(kind: pa.DataType, name: str = "value", depth: int = 0) -> None:
    """Raise SchemaError for a type that Parquet or Iceberg has no column for."""
    if depth > MAX_DEPTH:
        raise SchemaError(f"{name}: types are nested more than {MAX_DEPTH} levels deep")
    if pa.types.is_struct(kind):
        if not kind.num_fields:
            raise SchemaError(f"{name} is a record without fields, which no table has a column for")
        names = [field.name for field in kind]
        for one in names:
            if names.count(one) > 1:
                raise SchemaError(f"{name} has two fields {one}")
        for field in kind:
            check_type(field.type, f"{name}.{field.name}", depth + 1)
    elif pa.types.is_list(kind):
        check_type(kind.value_type, f"{name}.element", depth + 1)
    elif pa.types.is_map(kind):
        check_type(kind.item_type, f"{name}.value", depth + 1)


def _merge_structs(table_type: pa.DataType, wanted: pa.DataType, name: str) -> pa.DataType:
    fields = {field.name: field.type for field in table_type}
    for field in wanted:
        fields[field.name] = merge_types(fields.get(field.name), field.type, f"{name}.{field.name}")
    return pa.struct([pa.field(one, kind) for one, kind in fields.items()])


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the wider of two types, or None unless one holds all values of the other."""
    for narrow, wide in ((one, other), (other, one)):
        if (narrow, wide) in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64())):
            return wide
        if (
            pa.types.is_decimal(narrow)
            and pa.types.is_decimal(wide)
            and narrow.scale == wide.scale
            and narrow.precision <= wide.precision
        ):
            return wide
    return None


def _text(kind: pa.DataType) -> str:
    return "a record" if pa.types.is_struct(kind) else str(kind)
