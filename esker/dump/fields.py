"""Converts a typed record's fields to JSON values, or to text for people.

Names are Kafka's (`topicId`), so a line can be compared with what Kafka's own tools print. UUIDs
are Kafka's URL-safe base64, bytes are base64, and a tagged field that has its default is left out,
because it is not in the bytes either.

The surprise is how hostile text is: a topic name from a damaged or malicious file may hold escape
sequences that a terminal obeys. Everything not printable is escaped.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Final
from uuid import UUID

from coordinator.transactions.state import State
from records.schema import Field, Message
from records.uuids import encode_uuid

UNKNOWN_TAGGED = "unknownTaggedFields"

_OUTCOMES: Final = {0: "ABORT", 1: "COMMIT"}
NAMES: Final[Mapping[tuple[str, str], Mapping[int, str]]] = {
    ("TransactionStateRecord", "state"): {state: state.label for state in State},
    ("TransactionMarkersRecord", "outcomes"): _OUTCOMES,
    ("RunsState", "markerOutcomes"): _OUTCOMES,
}
"""Kafka's names of numbers, by record and field: people get them beside the numbers."""


def json_name(wire_name: str) -> str:
    """Return Kafka's JSON name of a field.

    >>> json_name("TopicId"), json_name("KRaftVersion")
    ('topicId', 'kRaftVersion')
    """
    return wire_name[:1].lower() + wire_name[1:]


def fields_of(message: Message, version: int) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each field that the message has at a version."""
    for name, field, tagged in _layout(type(message), version):
        value = getattr(message, field.name)
        if not tagged or value != field.default:
            yield name, value
    if message.unknown_tagged_fields:
        unknown = ({"tag": tag, "bytes": data} for tag, data in message.unknown_tagged_fields)
        yield UNKNOWN_TAGGED, tuple(unknown)


@cache
def _layout(cls: type[Message], version: int) -> tuple[tuple[str, Field, bool], ...]:
    plain, tagged = cls.schema().fields_at(version, flexible=True)
    return (
        *((json_name(field.wire_name), field, False) for field in plain),
        *((json_name(field.wire_name), field, True) for field in tagged),
    )


def to_json(value: Any, version: int) -> Any:
    """Return a field's value as JSON; `version` is the version of the enclosing message."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)  # JSON has no NaN
        case UUID():
            return encode_uuid(value)
        case bytes() | bytearray() | memoryview():
            return base64.b64encode(value).decode()
        case Message():
            return {name: to_json(item, version) for name, item in fields_of(value, version)}
        case dict():
            return {name: to_json(item, version) for name, item in value.items()}
        case tuple() if hasattr(value, "_asdict"):
            return {_camel(name): to_json(item, version) for name, item in value._asdict().items()}
        case _:
            return [to_json(item, version) for item in value]


def to_text(value: Any, version: int) -> str:
    """Return a field's value as one line for people."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case None:
            return "null"
        case str():
            return quoted(value)
        case UUID() | bytes() | bytearray() | memoryview():
            return str(to_json(value, version))
        case Message():
            return "{" + _pairs(fields_of(value, version), version) + "}"
        case dict():
            return "{" + _pairs(value.items(), version) + "}"
        case tuple() if hasattr(value, "_asdict"):
            named = [(_camel(name), item) for name, item in value._asdict().items()]
            return "{" + _pairs(named, version) + "}"
        case _:
            return "[" + ", ".join([to_text(item, version) for item in value]) + "]"


def message_text(message: Message, version: int) -> str:
    """Return all fields of a record as text: `name="orders" topicId=AAAA... state=1:Ongoing`."""
    record = type(message).__name__
    return " ".join(
        [
            f"{name}={_named_text(value, version, NAMES.get((record, name)))}"
            for name, value in fields_of(message, version)
        ]
    )


def _named_text(value: Any, version: int, names: Mapping[int, str] | None) -> str:
    """Return a field's value as text, with the name of each number that has one.

    >>> _named_text((1, 9), 0, {1: "COMMIT"})
    '[1:COMMIT, 9]'
    """
    if names is None:
        return to_text(value, version)
    if isinstance(value, int):
        return f"{value}:{names[value]}" if value in names else str(value)
    return "[" + ", ".join([_named_text(one, version, names) for one in value]) + "]"


def quoted(text: str) -> str:
    r"""Return a string in double quotes with unprintable characters escaped.

    >>> print(quoted('a"b\x1b[31m'))
    "a\"b\x1b[31m"
    """
    plain = text.replace("\\", "\\\\").replace('"', '\\"')
    if not plain.isprintable():
        plain = "".join(
            c if c.isprintable() else c.encode("unicode_escape").decode() for c in plain
        )
    return f'"{plain}"'


def _pairs(fields: Iterable[tuple[str, Any]], version: int) -> str:
    return " ".join([f"{name}={to_text(value, version)}" for name, value in fields])


def _camel(name: str) -> str:
    return json_name("".join(word[:1].upper() + word[1:] for word in name.split("_")))
