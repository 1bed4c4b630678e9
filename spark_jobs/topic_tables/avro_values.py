"""Avro values: the Arrow type of a schema, and the decoding of a value by it.

Unions are a type and null, or refused: a column has one type. A recursive record has no end as a
column, and is refused, too.

Source: the Avro specification, 1.12.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from io import BytesIO
from typing import Any, Final

import fastavro
import pyarrow as pa

from spark_jobs.topic_tables.value_types import SchemaError, check_type, list_of

_PRIMITIVES: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_NAMED: Final = ("record", "error", "enum", "fixed")
_LOGICAL: Final = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time64("us"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("us"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
"""Logical types; a value of any other is that of the type below it."""


class BadValueError(Exception):
    """A value is not what its schema says."""


def avro_type(text: str) -> pa.DataType:
    """Return the Arrow type of the values of an Avro schema.

    Raises:  SchemaError.

    >>> avro_type('{"type":"record","name":"a","fields":[{"name":"n","type":["null","int"]}]}')
    StructType(struct<n: int32>)
    """
    kind = _type(_parsed(text), {}, "value")
    if not pa.types.is_struct(kind):
        raise SchemaError("the Avro schema of a value is not a record")
    check_type(kind)
    return kind


def decode_avro(text: str, data: bytes) -> Any:
    """Return the value that bytes are by an Avro schema.

    Raises:  BadValueError.
    """
    stream, schema = BytesIO(data), _reader_schema(text)
    try:
        value = fastavro.schemaless_reader(stream, schema, None)
    except Exception as error:  # fastavro has no error of its own for damaged bytes
        raise BadValueError(f"not of its Avro schema: {error or type(error).__name__}") from None
    if stream.tell() != len(data):
        raise BadValueError(f"{len(data) - stream.tell()} bytes follow the Avro record")
    return value


def with_references(text: str, others: Mapping[str, str]) -> str:
    """Return an Avro schema that defines the types it refers to, each where it is named first.

    Args:    others: the schemas of types, by full name.
    Raises:  SchemaError.
    """
    try:
        found = {name: json.loads(one) for name, one in others.items()}
        return json.dumps(_inlined(json.loads(text), found, ""))
    except (ValueError, KeyError, AttributeError) as error:
        raise SchemaError(f"not an Avro schema: {error!r}") from None


def _inlined(schema: Any, others: dict[str, Any], space: str) -> Any:
    """Return a schema with other ones in the place of names; those that were put there go.

    Args:    space: the namespace of names without one.
    """
    if isinstance(schema, str):
        name = f"{space}.{schema}"
        name = name if name in others else schema
        if name not in others:
            return schema
        # A type without a namespace gets that of its first place, so that names next to it find it.
        return _inlined(others.pop(name), others, space)
    if isinstance(schema, list):
        return [_inlined(one, others, space) for one in schema]
    if schema.get("type") in _NAMED:
        space = schema.get("namespace", space)
        space = schema["name"].rpartition(".")[0] or space
    return {
        key: _inlined(value, others, space)
        if key in ("type", "items", "values", "fields")
        else value
        for key, value in schema.items()
    }


def _parsed(text: str) -> Any:
    try:
        found = json.loads(text)
        fastavro.parse_schema(found)
    except Exception as error:  # of JSON, and of many kinds of schemas
        raise SchemaError(f"not an Avro schema: {error}") from None
    return found


@lru_cache(maxsize=1_000)
def _reader_schema(text: str) -> Any:
    return fastavro.parse_schema(_without_other_logical_types(json.loads(text)))


def _without_other_logical_types(schema: Any) -> Any:
    """Return a schema by which values have the types of `avro_type`."""
    if isinstance(schema, list):
        return [_without_other_logical_types(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {
        key: _without_other_logical_types(value) if key in ("type", "items", "values", "fields")
        else value
        for key, value in schema.items()
    }  # fmt: skip
    base, logical = found.get("type"), found.get("logicalType")
    is_known = isinstance(base, str) and (base, logical) in _LOGICAL
    if logical != "decimal" and not is_known:
        found.pop("logicalType", None)
    return found


def _type(schema: Any, named: Mapping[str, Any], path: str, space: str = "") -> pa.DataType:
    """Return the Arrow type of a schema below `path`.

    Args:    named: named types above it, by full name; None for a record that it is within.
    """
    if isinstance(schema, list):
        others = [one for one in schema if one != "null"]
        if len(others) != 1:
            raise SchemaError(
                f"{path} is a union of {len(others)} types; a column has one and null"
            )
        return _type(others[0], named, path, space)
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return _PRIMITIVES[schema]
        name = schema if "." in schema or not space else f"{space}.{schema}"
        kind = named.get(name, named.get(schema, SchemaError))
        if kind is SchemaError:
            raise SchemaError(f"{path} is of type {schema}, which no table has a column for")
        if kind is None:
            raise SchemaError(f"{path} is of type {schema}, which contains itself")
        return kind
    logical, base = schema.get("logicalType"), schema["type"]
    if isinstance(base, dict | list):
        return _type(base, named, path, space)
    assert isinstance(named, dict), "one for all levels"
    if base in _NAMED:
        space = schema.get("namespace", space)
        name = schema["name"] if "." in schema["name"] or not space else f"{space}.{schema['name']}"
        space = name.rpartition(".")[0]
        named[name] = None
        kind = _named_type(schema, named, path, space)
        named[name] = kind
        return kind
    if logical == "decimal" and base == "bytes":
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    if base == "array":
        return list_of(_type(schema["items"], named, f"{path}.element", space))
    if base == "map":
        return pa.map_(pa.string(), _type(schema["values"], named, f"{path}.value", space))
    return _LOGICAL.get((base, logical)) or _type(base, named, path, space)


def _named_type(schema: Any, named: Mapping[str, Any], path: str, space: str) -> pa.DataType:
    if schema["type"] == "enum":
        return pa.string()
    if schema["type"] == "fixed":
        if schema.get("logicalType") == "decimal":
            return pa.decimal128(schema["precision"], schema.get("scale", 0))
        return pa.binary()
    return pa.struct(
        [
            pa.field(one["name"], _type(one["type"], named, f"{path}.{one['name']}", space))
            for one in schema["fields"]
        ]
    )
