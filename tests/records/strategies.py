"""Any message at any version, drawn from its schema.

A strategy sets exactly the fields that the version has, so that what is drawn is what must come
back. Arrays and strings are short: a codec that handles three elements handles three thousand, and
small examples let one run visit every message at every version.
"""

from __future__ import annotations

from functools import cache
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from records.frame import CONTROL_RECORDS, METADATA_RECORDS
from records.rpc import API
from records.schema import (
    UNKNOWN_TAGGED_FIELDS,
    ArrayOf,
    Field,
    Message,
    RowOf,
    StructOf,
    WireType,
)
from records.wire import UUID16, Fixed, Sized

MESSAGES: tuple[type[Message], ...] = (
    *METADATA_RECORDS.values(),
    *CONTROL_RECORDS.values(),
    *(cls for api in API.values() for cls in api),
)
"""Every message that travels on its own."""


def versions_of(cls: type[Message]) -> range:
    """The versions that a message has, both ends of its declaration included."""
    return range(cls.schema().versions.first, cls.schema().versions.last + 1)


CASES: tuple[tuple[type[Message], int], ...] = tuple(
    (cls, version) for cls in MESSAGES for version in versions_of(cls)
)
"""Every message at every version."""

FIRST_UNKNOWN_TAG = 2000  # above every tag that a declaration uses

_INTEGERS = {
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
}
_UUIDS = st.binary(min_size=16, max_size=16).map(lambda raw: UUID(bytes=raw))
_FLOATS = st.floats(allow_nan=False)  # nan != nan would hide behind every comparison
_TEXT = st.text(max_size=5)
_BYTES = st.binary(max_size=8)

UNKNOWN_TAGS = st.lists(
    st.tuples(st.integers(FIRST_UNKNOWN_TAG, 2**31 - 1), _BYTES),
    max_size=2,
    unique_by=lambda field: field[0],
).map(lambda fields: tuple(sorted(fields)))


def case_name(case: tuple[type[Message], int]) -> str:
    """How a parametrised test names a case: `TopicRecord-v0`."""
    cls, version = case
    return f"{cls.__name__}-v{version}"


Special = tuple[tuple[str, st.SearchStrategy[Any]], ...]
"""Fields, by name, whose values a test wants from elsewhere."""


def values(
    wire_type: WireType, version: int, *, flexible: bool, special: Special = ()
) -> st.SearchStrategy[Any]:
    """Values of one wire type that are not null."""
    match wire_type:
        case Fixed(name="bool"):
            return st.booleans()
        case Fixed(name="float64"):
            return _FLOATS
        case Fixed():
            return _UUIDS if wire_type is UUID16 else _INTEGERS[wire_type.name]
        case Sized():
            return _TEXT if wire_type.name == "string" else _BYTES
        case ArrayOf(element):
            drawn = values(element, version, flexible=flexible, special=special)
            return st.lists(drawn, max_size=3).map(tuple)
        case StructOf(message):
            return messages(message, version, flexible=flexible, special=special)
        case RowOf(row, columns):
            cells = (values(column, version, flexible=flexible) for _, column in columns)
            return st.tuples(*cells).map(row._make)  # type: ignore[attr-defined]


def field_values(
    field: Field, version: int, *, flexible: bool, special: Special = ()
) -> st.SearchStrategy[Any]:
    """Values of one field: its null and its default among them, where it has them."""
    drawn = values(field.type, version, flexible=flexible, special=special)
    if version in field.nullable:
        drawn = st.none() | drawn
    if not field.required and (field.default is not None or version in field.nullable):
        drawn = st.just(field.default) | drawn
    return drawn


@cache
def messages(
    cls: type[Message],
    version: int,
    *,
    flexible: bool | None = None,
    special: Special = (),
) -> st.SearchStrategy[Any]:
    """Messages that set what this version has, unknown tagged fields included where it has tags."""
    if flexible is None:
        flexible = version in cls.schema().flexible
    plain, tagged = cls.schema().fields_at(version, flexible=flexible)
    chosen = dict(special)
    fields = {
        field.name: chosen[field.name]
        if field.name in chosen
        else field_values(field, version, flexible=flexible, special=special)
        for field in plain + tagged
    }
    if flexible and UNKNOWN_TAGGED_FIELDS not in chosen:
        fields[UNKNOWN_TAGGED_FIELDS] = st.just(()) | UNKNOWN_TAGS
    return st.fixed_dictionaries(fields).map(lambda drawn: cls(**drawn))
