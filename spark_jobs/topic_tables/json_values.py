"""JSON values: the Arrow type of a JSON Schema or of examples, and strict decoding by a type.

A type becomes a class of msgspec, which decodes and checks in one pass: a field that the type does
not have, or a value of another type, is an error that names the field.

Source: JSON Schema 2020-12 and draft 7; msgspec.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from spark_jobs.topic_tables.avro_values import BadValueError
from spark_jobs.topic_tables.value_types import SchemaError, check_type, list_of

_INT64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_TIMESTAMP = Annotated[datetime.datetime, msgspec.Meta(tz=True)]
_PYTHON: Final[Mapping[pa.DataType, Any]] = {
    pa.bool_(): bool,
    pa.int32(): Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)],
    pa.int64(): _INT64,
    pa.float32(): float,
    pa.float64(): float,
    pa.string(): str,
    pa.date32(): datetime.date,
    pa.timestamp("us", "UTC"): _TIMESTAMP,
}
_KEPT: Final = (datetime.datetime, datetime.date)
"""Types that stay as they are on the way to Arrow."""

_SCALARS: Final = {
    "boolean": pa.bool_(),
    "integer": pa.int64(),
    "number": pa.float64(),
    "string": pa.string(),
}
_FORMATS: Final = {"date-time": pa.timestamp("us", "UTC"), "date": pa.date32()}


def decode_json(kind: pa.DataType, data: bytes) -> Any:
    """Return the value that a JSON text is by an Arrow type.

    Raises:  BadValueError.

    >>> decode_json(pa.struct([("a", pa.int64()), ("b", pa.string())]), b'{"a": 1}')
    {'a': 1, 'b': None}
    """
    try:
        return msgspec.to_builtins(_decoder(kind).decode(data), builtin_types=_KEPT)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadValueError(f"not of its JSON type: {error}") from None


@lru_cache(maxsize=100)
def _decoder(kind: pa.DataType) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(_class_of(kind))


def _class_of(kind: pa.DataType) -> Any:
    """Return the class that msgspec decodes a type's values to."""
    if pa.types.is_struct(kind):
        names = {f"f{index}": field.name for index, field in enumerate(kind)}
        fields = [
            (alias, _class_of(field.type) | None, None)
            for alias, field in zip(names, kind, strict=True)
        ]
        return msgspec.defstruct("Value", fields, rename=names, forbid_unknown_fields=True)
    if pa.types.is_list(kind):
        return list[_class_of(kind.value_type) | None]  # type: ignore[misc]
    if pa.types.is_map(kind):
        return dict[str, _class_of(kind.item_type) | None]  # type: ignore[misc]
    if kind not in _PYTHON:
        raise SchemaError(f"JSON has no values of type {kind}, which a column of the table has")
    return _PYTHON[kind]


# --- a schema -----------------------------------------------------------------------------------


class _Document(NamedTuple):
    """A JSON Schema, and those that it may refer to."""

    name: str  # empty: the outermost
    content: Any
    others: Mapping[str, str]


def json_schema_type(text: str, others: Mapping[str, str] = {}) -> pa.DataType:
    """Return the Arrow type of the values of a JSON Schema.

    Args:    others: other documents, by the name with which `$ref` refers to them.
    Raises:  SchemaError.
    """
    root = _Document("", _parsed(text), others)
    kind = _schema_type(root.content, root, "value", ())
    if not pa.types.is_struct(kind):
        raise SchemaError("the JSON Schema of a value is not of an object with properties")
    check_type(kind)
    return kind


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"not a JSON Schema: {error}") from None


def _schema_type(
    schema: Any, root: _Document, path: str, within: tuple[tuple[str, str], ...]
) -> pa.DataType:
    """Return the type of a schema below `path`.

    Args:    root: the document that it is in.
             within: the references that led here, with their documents' names: one that comes again
             has no end.
    """
    if not isinstance(schema, dict):
        raise SchemaError(f"{path} may be anything; a column has one type")
    if (reference := schema.get("$ref")) is not None:
        place = (root.name, str(reference))
        if place in within:
            raise SchemaError(f"{path} refers to {reference}, which contains itself")
        target, root = _resolve(root, reference, path)
        return _schema_type(target, root, path, (*within, place))
    for name in ("oneOf", "anyOf"):
        if name in schema:
            others = [one for one in schema[name] if one != {"type": "null"}]
            if len(others) != 1:
                raise SchemaError(f"{path} is {name} of {len(others)} types; a column has one")
            return _schema_type(others[0], root, path, within)
    kind = schema.get("type")
    if isinstance(kind, list):
        others = [one for one in kind if one != "null"]
        kind = others[0] if len(others) == 1 else kind
    if kind is None and "properties" in schema:
        kind = "object"
    if kind is None and schema.get("enum") and all(type(one) is str for one in schema["enum"]):
        kind = "string"
    if kind == "string":
        return _FORMATS.get(schema.get("format", ""), pa.string())
    if isinstance(kind, str) and kind in _SCALARS:
        return _SCALARS[kind]
    if kind == "array":
        return list_of(_schema_type(schema.get("items"), root, f"{path}.element", within))
    if kind == "object" and schema.get("properties"):
        return pa.struct(
            [
                pa.field(name, _schema_type(one, root, f"{path}.{name}", within))
                for name, one in schema["properties"].items()
            ]
        )
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        items = schema["additionalProperties"]
        return pa.map_(pa.string(), _schema_type(items, root, f"{path}.value", within))
    raise SchemaError(f"{path} has the type {json.dumps(kind)}, which no table has a column for")


def _resolve(root: _Document, reference: Any, path: str) -> tuple[Any, _Document]:
    """Return the schema that a reference names, and its document."""
    unknown = SchemaError(f"{path} refers to {reference}, which is not in this schema")
    if not isinstance(reference, str):
        raise unknown
    name, _, pointer = reference.partition("#")
    if name:
        if name not in root.others:
            raise unknown
        root = _Document(name, _parsed(root.others[name]), root.others)
    found = root.content
    if pointer and not pointer.startswith("/"):
        raise unknown
    for part in pointer.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or part not in found:
            raise unknown
        found = found[part]
    return found, root


# --- examples -----------------------------------------------------------------------------------


def infer_type(values: Iterable[bytes | None]) -> pa.DataType | None:
    """Return the type of the JSON objects among values, or None without one.

    Where values disagree the first one counts, and the others will be bad. A field that is null in
    all of them is taken for a text.

    >>> infer_type([b'{"a": 1}', b'{"a": 1.5, "b": [null]}', b'no'])
    StructType(struct<a: double, b: list<element: string>>)
    """
    found: dict[str, Any] = {}
    for value in values:
        try:
            document = None if value is None else msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(document, dict):
            _learn(found, document)
    if not found:
        return None
    kind = _inferred({"fields": found})
    check_type(kind)
    return kind


def _learn(fields: dict[str, Any], document: Mapping[str, Any]) -> None:
    for name, value in document.items():
        fields[name] = _shape(fields.get(name), value)


def _shape(known: Any, value: Any) -> Any:
    """Return what is known of a field after one more value: a scalar type, or a shape."""
    if value is None:
        return known
    if isinstance(value, dict):
        shape = {"fields": {}} if known is None else known
        if isinstance(shape, dict) and "fields" in shape:
            _learn(shape["fields"], value)
        return shape
    if isinstance(value, list):
        shape = {"element": None} if known is None else known
        if isinstance(shape, dict) and "element" in shape:
            for one in value:
                shape["element"] = _shape(shape["element"], one)
        return shape
    kind = {bool: pa.bool_(), int: pa.int64(), float: pa.float64()}.get(type(value), pa.string())
    if known is None or (known, kind) == (pa.int64(), pa.float64()):
        return kind
    return known


def _inferred(shape: Any) -> pa.DataType:
    if shape is None:
        return pa.string()
    if isinstance(shape, pa.DataType):
        return shape
    if "element" in shape:
        return list_of(_inferred(shape["element"]))
    if not shape["fields"]:
        return pa.map_(pa.string(), pa.string())
    return pa.struct([pa.field(name, _inferred(one)) for name, one in shape["fields"].items()])
