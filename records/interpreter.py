"""The slow, readable codec: walks the schema field by field and knows where it is.

Two uses. When generated code meets bytes or values it cannot accept, `explain` and `explain_values`
walk them again and say which field, at which byte, and why. And the tests hold the generated code
to it: both must agree on every message, byte for byte.

Source: KIP-482; upstream's message schemas.
"""

from __future__ import annotations

import reprlib
import struct
from typing import Any
from uuid import UUID

from records.codegen import MAX_STRING_BYTES, MAX_UVARINT, min_size, read_uvarint, uvarint
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


def explain(cls: type[Message], data: memoryview, version: int) -> MalformedMessageError:
    """Why `data` is not a `cls` at this version. Asserts that it is indeed not one."""
    try:
        interpret(cls, data, version)
    except MalformedMessageError as error:
        return error
    raise AssertionError(f"{cls.__name__} v{version}: generated code refused what is well-formed")


def explain_values(message: Message, version: int) -> ValueError:
    """Why `message` has no bytes at this version. Asserts that it indeed has none."""
    try:
        spell(message, version)
    except ValueError as error:
        return error
    raise AssertionError(f"{type(message).__name__} v{version}: generated code refused good values")


def interpret(cls: type[Message], data: memoryview, version: int) -> Message:
    """Decode all of `data`. MalformedMessageError if it is not exactly one message."""
    reader = _Reader(cls, data, version)
    message = reader.message(cls, "")
    if reader.position != len(data):
        raise reader.error("", f"{len(data) - reader.position} bytes left over")
    return message


def spell(message: Message, version: int) -> bytes:
    """Encode a message. ValueError, naming message and field, if the version cannot carry it."""
    cls = type(message)
    writer = _Writer(cls, version)
    writer.message(cls, message, "")
    return bytes(writer.out)


class _Reader:
    def __init__(self, cls: type[Message], data: memoryview, version: int) -> None:
        self.title = cls.__name__
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
        return self.value(field.type, _join(path, field.name), nullable=nullable)

    def tags(self, tagged: list[Field], values: dict[str, Any], path: str) -> None:
        by_tag = {field.tag: field for field in tagged}
        here = _join(path, "tags")
        unknown: list[tuple[int, bytes]] = []
        previous = -1
        for _ in range(self.uvarint(here)):
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
        return tuple(self.value(element, f"{path}[{i}]", nullable=False) for i in range(size))


class _Writer:
    def __init__(self, cls: type[Message], version: int) -> None:
        self.title = cls.__name__
        self.version = version
        self.flexible = version in cls.schema().flexible
        self.out = bytearray()

    def error(self, path: str, value: Any, reason: str) -> ValueError:
        shown = reprlib.repr(value)
        return ValueError(f"{self.title} v{self.version} cannot carry {path} = {shown}: {reason}")

    def message(self, cls: type[Message], value: Any, path: str) -> None:
        if type(value) is not cls:
            raise self.error(path, value, f"not a {cls.__name__}")
        for field in cls.schema().fields:
            there = getattr(value, field.name)
            absent = self.version not in field.versions
            if absent and not field.ignorable and there != field.default:
                raise self.error(_join(path, field.name), there, f"only in {field.versions}")
        plain, tagged = cls.schema().fields_at(self.version, flexible=self.flexible)
        for field in plain:
            self.field(field, getattr(value, field.name), path)
        if self.flexible:
            self.tags(tagged, value, path)
        elif value.unknown_tagged_fields:
            here = _join(path, UNKNOWN_TAGGED_FIELDS)
            raise self.error(here, value.unknown_tagged_fields, "the version has no tagged fields")

    def field(self, field: Field, value: Any, path: str) -> None:
        nullable = self.version in field.nullable
        self.value(field.type, value, _join(path, field.name), nullable=nullable)

    def tags(self, tagged: list[Field], message: Message, path: str) -> None:
        outer = self.out
        bodies: dict[int, bytes] = {}
        for field in tagged:
            value = getattr(message, field.name)
            if value != field.default:
                self.out = bytearray()
                self.field(field, value, path)
                assert field.tag is not None
                bodies[field.tag] = bytes(self.out)
        self.out = outer
        here, unknown = _join(path, UNKNOWN_TAGGED_FIELDS), message.unknown_tagged_fields
        try:
            for number, body in unknown:
                if number in bodies or not 0 <= number <= MAX_UVARINT:
                    raise self.error(here, unknown, f"tag {number} twice, or not of 32 bits")
                bodies[number] = bytes(memoryview(body))
        except TypeError:
            raise self.error(here, unknown, "not pairs of a tag and bytes") from None
        self.out += uvarint(len(bodies))
        for number, body in sorted(bodies.items()):
            self.out += uvarint(number) + uvarint(len(body)) + body

    def value(self, wire_type: WireType, value: Any, path: str, *, nullable: bool) -> None:
        match wire_type:
            case Fixed():
                self.fixed(wire_type, value, path)
            case Sized():
                self.sized(wire_type, value, path, nullable=nullable)
            case ArrayOf():
                self.array(wire_type.element, value, path, nullable=nullable)
            case StructOf():
                if nullable:
                    self.out += b"\xff" if value is None else b"\x01"
                if not nullable or value is not None:
                    self.message(wire_type.message, value, path)
            case RowOf(_, columns):
                if not isinstance(value, tuple) or len(value) != len(columns):
                    raise self.error(path, value, f"not a row of {len(columns)} columns")
                for (name, kind), cell in zip(columns, value, strict=True):
                    self.fixed(kind, cell, _join(path, name))
                self.out += b"\0" * self.flexible

    def fixed(self, fixed: Fixed, value: Any, path: str) -> None:
        try:
            raw = value.bytes if fixed is UUID16 else value
            self.out += struct.pack(">" + fixed.code, raw)
        except (AttributeError, struct.error):
            raise self.error(path, value, f"not a {fixed.name}") from None

    def length(self, size: int, *, short: bool) -> None:
        """Write a length; -1 stands for null."""
        self.out += (
            uvarint(size + 1) if self.flexible else struct.pack(">h" if short else ">i", size)
        )

    def sized(self, sized: Sized, value: Any, path: str, *, nullable: bool) -> None:
        text = sized.name == "string"
        if value is None and nullable:
            self.length(-1, short=text)
            return
        try:
            data = value.encode() if text else memoryview(value).cast("B")
        except (AttributeError, TypeError, UnicodeEncodeError):
            raise self.error(path, value, f"not {sized.name}") from None
        if text and len(data) > MAX_STRING_BYTES:
            raise self.error(path, value, f"{len(data)} bytes, the limit is {MAX_STRING_BYTES}")
        self.length(len(data), short=text)
        self.out += data

    def array(self, element: WireType, value: Any, path: str, *, nullable: bool) -> None:
        if value is None and nullable:
            self.length(-1, short=False)
            return
        if not isinstance(value, (tuple, list)):
            raise self.error(path, value, "not an array")
        self.length(len(value), short=False)
        for index, item in enumerate(value):
            self.value(element, item, f"{path}[{index}]", nullable=False)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
