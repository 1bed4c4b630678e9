"""One request in many shapes: as little as it can say, one of everything, nulls, an older version.

    bare(MetadataRequest)                        # nothing but what has no default
    filled(MetadataRequest, 12)                  # every list has one element, of zeros and ""
    filled(MetadataRequest, 12, nulls=True)      # whatever may be null is
    at_version(request, 4)                       # what version 4 has of it

All of them can be encoded at their version, so whoever announces it has to answer.
"""

from __future__ import annotations

from typing import Any, TypeVar

from records.schema import ArrayOf, Field, Message, RowOf, StructOf, WireType, zero

M = TypeVar("M", bound=Message)


def bare(cls: type[M]) -> M:
    """Defaults, and zeros where there are none."""
    fields = [field for field in cls.schema().fields if field.required]
    return cls(**{field.name: _bare(field.type) for field in fields})


def _bare(kind: WireType) -> Any:
    return bare(kind.message) if isinstance(kind, StructOf) else zero(kind)


def filled(cls: type[M], version: int, *, nulls: bool = False) -> M:
    """One element in every list of this version.

    Args:  nulls: null wherever the version allows it.
    """
    values: dict[str, Any] = {}
    for field in cls.schema().fields:
        if version not in field.versions:
            continue
        if nulls and version in field.nullable:
            values[field.name] = None
        elif field.required or isinstance(field.type, ArrayOf | StructOf):
            values[field.name] = _filled(field.type, version, nulls=nulls)
    return cls(**values)


def _filled(kind: WireType, version: int, *, nulls: bool) -> Any:
    match kind:
        case ArrayOf(element):
            return (_filled(element, version, nulls=nulls),)
        case StructOf(message):
            return filled(message, version, nulls=nulls)
        case RowOf(row, columns):
            return row(*(zero(column) for _, column in columns))
        case _:
            return zero(kind)


def at_version(message: M, version: int) -> M:
    """The same without what this version cannot say."""
    values = {
        field.name: _at_version(field, getattr(message, field.name), version)
        for field in message.schema().fields
    }
    return type(message)(**values)


def _at_version(field: Field, value: Any, version: int) -> Any:
    if version not in field.versions:
        return field.default
    if value is None:
        return None if version in field.nullable else _bare(field.type)
    match field.type:
        case StructOf():
            return at_version(value, version)
        case ArrayOf(StructOf()):
            return tuple(at_version(one, version) for one in value)
        case _:
            return value
