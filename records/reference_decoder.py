"""The reference decoder: slow and readable, it walks the schema field by field.

Two uses. When generated code meets bytes it cannot accept, `explain` walks them again and says
which field, at which byte, and why. And the tests hold the generated code to it: both must agree on
every message. `records.reference_encoder` is the same for encoding.

Source: KIP-482; upstream's message schemas.
"""

from __future__ import annotations

import math
import struct
from typing import Any, Final
from uuid import UUID

from records.codegen import MAX_STRING_BYTES, min_size, read_uvarint
from records.errors import MalformedMessageError
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

EXPLAINED_VALUES: Final = 100_000  # about a tenth of a second; what follows is not worth more


def explain(cls: type[Message], data: memoryview, version: int) -> MalformedMessageError:
    """Return the reason why `data` is not a message of class `cls` at this version.

    Asserts that it is indeed not one.

    Looks at so many values at most: a peer that sends a hundred megabytes of empty strings and one
    bad byte gets an error that says how far we looked, not a minute of our time.
    """
    try:
        reference_decode(cls, data, version, EXPLAINED_VALUES)
    except MalformedMessageError as error:
        return error
    raise AssertionError(f"{cls.__name__} v{version}: generated code refused what is well-formed")


def reference_decode(
    cls: type[Message], data: memoryview, version: int, values: float = math.inf
) -> Message:
    """Decode all of `data` as exactly one message.

    Raises MalformedMessageError.

    Also where it has more than `values` values.
    """
    reader = _Reader(cls, data, version, values)
    message = reader.message(cls, "")
    if reader.position != len(data):
        raise reader.error("", f"{len(data) - reader.position} bytes left over")
    return message


class _Reader:
    def __init__(self, cls: type[Message], data: memoryview, version: int, values: float) -> None:
        self.title = cls.__name__
        self.values_left = values
        self.data = data
        self.version = version
        self.flexible = version in cls.schema().flexible
        self.position = 0
        self.end = len(data)

    def error(self, path: str, reason: str) -> MalformedMessageError:
        return MalformedMessageError(
            message=self.title,
            version=self.version,
            path=path,
            position=self.position,
            reason=reason,
        )

    def count(self, path: str) -> None:
        self.values_left -= 1
        if self.values_left < 0:
            raise self.error(path, "malformed from here on; not examined further")

    def take(self, path: str, size: int) -> memoryview:
        if size > self.end - self.position:
            left = self.end - self.position
            raise self.error(path, f"{size} bytes wanted, {left} left")
        start = self.position
        self.position += size
        return self.data[start : self.position]

    def uvarint(self, path: str) -> int:
        try:
            value, position = read_uvarint(self.data[: self.end], self.position)
        except (IndexError, ValueError) as error:
            raise self.error(path, f"not an unsigned varint ({error})") from None
        self.position = position
        return value

    def message(self, cls: type[Message], path: str) -> Message:
        plain, tagged = cls.schema().fields_at(self.version, flexible=self.flexible)
        values = {field.name: self.field(field, path) for field in plain}
        if self.flexible:
            self.tags(tagged, values, path)
        return cls(**values)

    def field(self, field: Field, path: str) -> Any:
        nullable = self.version in field.nullable
        return self.value(field.type, join(path, field.name), nullable=nullable)

    def tags(self, tagged: list[Field], values: dict[str, Any], path: str) -> None:
        by_tag = {field.tag: field for field in tagged}
        here = join(path, "tags")
        unknown: list[tuple[int, bytes]] = []
        previous = -1
        for _ in range(self.uvarint(here)):
            self.count(here)
            tag = self.uvarint(here)
            size = self.uvarint(here)
            if tag <= previous:
                raise self.error(here, f"tag {tag} after tag {previous}")
            previous = tag
            if size > self.end - self.position:
                raise self.error(here, f"tag {tag} of {size} bytes runs past the end")
            field = by_tag.get(tag)
            if field is None:
                unknown.append((tag, bytes(self.take(here, size))))
                continue
            outer, self.end = self.end, self.position + size
            values[field.name] = self.field(field, path)
            if self.position != self.end:
                raise self.error(here, f"tag {tag}: {self.end - self.position} bytes left over")
            self.end = outer
        values[UNKNOWN_TAGGED_FIELDS] = tuple(unknown)

    def value(self, wire_type: WireType, path: str, *, nullable: bool) -> Any:
        self.count(path)
        match wire_type:
            case Fixed():
                return self.fixed(wire_type, path)
            case Sized():
                return self.sized(wire_type, path, nullable=nullable)
            case ArrayOf():
                return self.array(wire_type.element, path, nullable=nullable)
            case StructOf():
                if nullable and self.take(path, 1)[0] > 127:
                    return None
                return self.message(wire_type.message, path)
            case RowOf():
                row = wire_type.row(*(self.fixed(kind, path) for _, kind in wire_type.columns))
                if self.flexible and self.take(path, 1)[0] != 0:
                    raise self.error(path, "a row with tagged fields")
                return row

    def fixed(self, fixed: Fixed, path: str) -> Any:
        raw = self.take(path, fixed.size)
        if fixed is UUID16:
            return UUID(bytes=bytes(raw))
        return struct.unpack(">" + fixed.code, raw)[0]

    def length(self, path: str, *, short: bool, nullable: bool) -> int | None:
        if self.flexible:
            size = self.uvarint(path) - 1
        elif short:
            size = struct.unpack(">h", self.take(path, 2))[0]
        else:
            size = struct.unpack(">i", self.take(path, 4))[0]
        if size == -1 and nullable:
            return None
        if size < 0:
            raise self.error(path, "null" if size == -1 else f"length {size}")
        return size

    def sized(self, sized: Sized, path: str, *, nullable: bool) -> Any:
        text = sized.name == "string"
        size = self.length(path, short=text, nullable=nullable)
        if size is None:
            return None
        if text and size > MAX_STRING_BYTES:
            raise self.error(path, f"a string of {size} bytes, the limit is {MAX_STRING_BYTES}")
        raw = self.take(path, size)
        if sized.name == "records":
            return raw
        try:
            return str(raw, "utf-8") if text else bytes(raw)
        except UnicodeDecodeError as error:
            raise self.error(path, f"not UTF-8: {error.reason}") from None

    def array(self, element: WireType, path: str, *, nullable: bool) -> Any:
        size = self.length(path, short=False, nullable=nullable)
        if size is None:
            return None
        least = min_size(element, self.version, flexible=self.flexible)
        if size * least > self.end - self.position:
            left = self.end - self.position
            raise self.error(path, f"{size} elements of at least {least} bytes, {left} left")
        if isinstance(element, Fixed) and element is not UUID16:  # nothing can be wrong with one
            return struct.unpack(f">{size}{element.code}", self.take(path, size * least))
        return tuple(self.value(element, f"{path}[{i}]", nullable=False) for i in range(size))


def join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
