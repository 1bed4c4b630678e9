"""The reference encoder: slow and readable, the counterpart of `records.reference_decoder`.

When a generated encoder refuses a message, `explain_values` walks it again and names the field and
the value that the version cannot carry. The tests hold the generated code to it, byte for byte.

Source: KIP-482; upstream's message schemas.
"""

from __future__ import annotations

import reprlib
import struct
from typing import Any

from records.codegen import MAX_STRING_BYTES, MAX_UVARINT, uvarint
from records.reference_decoder import join
from records.schema import (
    UNKNOWN_TAGGED_FIELDS,
    ArrayOf,
    Field,
    Message,
    RowOf,
    StructOf,
    WireType,
)
from records.wire import UUID16, BufferChain, Fixed, Sized


def explain_values(message: Message, version: int) -> ValueError:
    """Return the reason why `message` cannot be encoded at this version.

    Asserts that it cannot.
    """
    try:
        reference_encode(message, version)
    except ValueError as error:
        return error
    raise AssertionError(f"{type(message).__name__} v{version}: generated code refused good values")


def reference_encode(message: Message, version: int) -> bytes:
    """Encode a message, or raise ValueError with the field that the version cannot encode."""
    cls = type(message)
    writer = _Writer(cls, version)
    writer.message(cls, message, "")
    return bytes(writer.out)


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
                raise self.error(join(path, field.name), there, f"only in {field.versions}")
        plain, tagged = cls.schema().fields_at(self.version, flexible=self.flexible)
        for field in plain:
            self.field(field, getattr(value, field.name), path)
        if self.flexible:
            self.tags(tagged, value, path)
        elif value.unknown_tagged_fields:
            here = join(path, UNKNOWN_TAGGED_FIELDS)
            raise self.error(here, value.unknown_tagged_fields, "the version has no tagged fields")

    def field(self, field: Field, value: Any, path: str) -> None:
        nullable = self.version in field.nullable
        self.value(field.type, value, join(path, field.name), nullable=nullable)

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
        here, unknown = join(path, UNKNOWN_TAGGED_FIELDS), message.unknown_tagged_fields
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
                    self.fixed(kind, cell, join(path, name))
                self.out += b"\0" * self.flexible

    def fixed(self, fixed: Fixed, value: Any, path: str) -> None:
        try:
            raw = value.bytes if fixed is UUID16 else value
            self.out += struct.pack(">" + fixed.code, raw)
        except (AttributeError, struct.error):
            raise self.error(path, value, f"not a {fixed.name}") from None

    def length(self, size: int, *, short: bool) -> None:
        """Write the length of a value, with -1 for a null value."""
        self.out += (
            uvarint(size + 1) if self.flexible else struct.pack(">h" if short else ">i", size)
        )

    def sized(self, sized: Sized, value: Any, path: str, *, nullable: bool) -> None:
        text = sized.name == "string"
        if value is None and nullable:
            self.length(-1, short=text)
            return
        try:
            if isinstance(value, BufferChain):
                value = bytes(value)
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
