"""Writes the function that decodes one message class at one version.

Fixed-size values are not read where they stand: they gather in a *run*, which one `struct` call
unpacks when something of variable size, a branch or the end comes. The first byte of a length or of
a count is a fixed-size value too, so the run takes it along.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from records.codegen.runtime import SMALL_ARRAY, small_unpackers
from records.codegen.source import Source, holds_records, min_size
from records.schema import (
    UNKNOWN_TAGGED_FIELDS,
    ArrayOf,
    Decoder,
    Field,
    Message,
    RowOf,
    StructOf,
    WireType,
)
from records.wire import UUID16, Fixed, Sized

_BYTE: Final = Fixed("uint8", "B", 1)


def decoder_source(cls: type[Message], version: int) -> Source:
    """Return the source of a function that decodes messages of class `cls` at a version.

    The function is (buffer, position, end) -> (message, position after it).
    """
    out = Source("def decode(buf, pos, end):")
    if holds_records(cls):  # record batches are handed out as views of what came in
        out("view = memoryview(buf)")
    else:  # bytes are read faster than views
        out("if buf.__class__ is not bytes: buf = bytes(buf)")
    writer = _DecoderWriter(out, version, flexible=version in cls.schema().flexible)
    writer.struct(cls, "result", "end")
    out("return result, pos")
    return out


def make_decoder(cls: type[Message], version: int) -> Decoder:
    """Compile a function that decodes messages of class `cls` at a version.

    The function is (buffer, position, end) -> (message, position after it).
    """
    decoder: Decoder = decoder_source(cls, version).compile(f"{cls.__name__} v{version}")
    return decoder


class _DecoderWriter:
    def __init__(self, out: Source, version: int, *, flexible: bool) -> None:
        self.out = out
        self.version = version
        self.flexible = flexible
        self.run: list[tuple[str, Fixed]] = []  # values that are next in the bytes, not yet read

    def struct(self, cls: type[Message], target: str, end: str) -> None:
        """Write the lines that decode one message of class `cls` into the variable `target`."""
        out = self.out
        plain, tagged = cls.schema().fields_at(self.version, flexible=self.flexible)
        variables: dict[str, str] = {}
        for field in plain:
            variables[field.name] = variable = out.name("v")
            self.value(field.type, variable, end, nullable=self.version in field.nullable)
        make = out.constant(cls)
        if not self.flexible:
            self.flush()
            out(f"{target} = {make}({_arguments(variables)})")
            return
        count = self._first_byte("n")
        with out.block(f"if {count} == 0:"):
            out(f"{target} = {make}({_arguments(variables)})")
        with out.block("else:"):
            variables |= self._tags(tagged, count, end)
            out(f"{target} = {make}({_arguments(variables)})")

    def flush(self) -> None:
        """Write the lines that read the fixed-size fields collected so far."""
        run, self.run = self.run, []
        if not run:
            return
        out = self.out
        packed = struct.Struct(">" + "".join(fixed.code for _, fixed in run))
        first, kind = run[0]
        if packed.size == 1 and kind.code in "?B":
            out(f"{first} = buf[pos]" + " != 0" * (kind.code == "?"))
        else:
            names = ", ".join(name for name, _ in run)
            out(f"{names}, = {out.constant(packed.unpack_from)}(buf, pos)")
        out(f"pos += {packed.size}")
        for name, fixed in run:
            if fixed is UUID16:
                out(f"{name} = UUIDS[{name}]")

    def _first_byte(self, prefix: str) -> str:
        """Write the lines that read the collected fixed-size fields and a varint's first byte."""
        name = self.out.name(prefix)
        self.run.append((name, _BYTE))
        self.flush()
        return name

    def _uvarint(self, prefix: str) -> str:
        name = self._first_byte(prefix)
        self.out(f"if {name} > 127: {name}, pos = read_uvarint(buf, pos - 1)")
        return name

    def value(self, wire_type: WireType, target: str, end: str, *, nullable: bool) -> None:
        """Write the lines that decode one value, which may be null if `nullable`, into `target`."""
        match wire_type:
            case Fixed():
                self.run.append((target, wire_type))
            case Sized():
                self._sized(wire_type, target, end, nullable=nullable)
            case ArrayOf(Fixed() as element):
                self._numbers(element, target, end, nullable=nullable)
            case ArrayOf(element):
                self._array(element, target, end, nullable=nullable)
            case StructOf(message) if nullable:
                marker = self._first_byte("n")
                with self.out.block(f"if {marker} > 127:"):
                    self.out(f"{target} = None")
                with self.out.block("else:"):
                    self.struct(message, target, end)
            case StructOf(message):
                self.struct(message, target, end)
            case RowOf():
                raise TypeError("a row stands in an array only")

    def _length(self, *, text: bool = False) -> tuple[str, str]:
        """Write the lines that read a length; return its variable and the text " - 1" or "".

        The text is " - 1" for a compact length, and empty for another length.
        A null leaves 0 less 1, or -1.
        """
        if self.flexible:
            size = self._first_byte("n")
            read = "read_text_length" if text else "read_uvarint"
            self.out(f"if {size} > 127: {size}, pos = {read}(buf, pos - 1)")
            return size, " - 1"
        size = self.out.name("n")
        self.run.append((size, Fixed("length", "h", 2) if text else Fixed("length", "i", 4)))
        self.flush()
        return size, ""

    @contextmanager
    def _unless_null(self, size: str, less: str, target: str, *, nullable: bool) -> Iterator[None]:
        """Write an if-else that sets `target` to None for a null, else runs the block's lines."""
        if not nullable:
            yield
            return
        with self.out.block(f"if {size} == {0 if less else -1}:"):
            self.out(f"{target} = None")
        with self.out.block("else:"):
            yield

    def _sized(self, wire_type: Sized, target: str, end: str, *, nullable: bool) -> None:
        out = self.out
        size, less = self._length(text=wire_type.name == "string")
        with self._unless_null(size, less, target, nullable=nullable):
            stop = out.name("q")
            out(f"{stop} = pos + {size}{less}")
            out(f"if not pos <= {stop} <= {end}: raise ValueError('length')")
            form = {
                "string": f"str(buf[pos:{stop}], 'utf-8')",
                "bytes": f"bytes(buf[pos:{stop}])",
                "records": f"view[pos:{stop}]",
            }
            out(f"{target} = {form[wire_type.name]}")
            out(f"pos = {stop}")

    def _numbers(self, element: Fixed, target: str, end: str, *, nullable: bool) -> None:
        """Write the lines that decode an array of numbers with one `struct` call."""
        out = self.out
        if not self.flexible:
            self.flush()
            out(f"{target}, pos = read_old_numbers(buf, pos, {end}, {element.code!r})")
            if not nullable:
                out(f"if {target} is None: raise ValueError('null')")
        else:
            count = self._first_byte("n")
            if nullable:
                out(f"if {count} == 0: {target} = None")
            with out.block(f"{'el' * nullable}if {count} <= {SMALL_ARRAY}:"):
                unpack = out.constant(small_unpackers(element.code))
                out(f"{target} = {unpack}[{count}](buf, pos)")
                out(f"pos += {element.size} * {count} - {element.size}")
            with out.block("else:"):
                out(f"{target}, pos = read_numbers(buf, pos - 1, {end}, {element.code!r})")
        if element is UUID16:
            guard = f" if {target} is not None else None" if nullable else ""
            out(f"{target} = tuple(map(UUIDS.__getitem__, {target})){guard}")

    def _array(self, element: WireType, target: str, end: str, *, nullable: bool) -> None:
        out = self.out
        size, less = self._length()
        with self._unless_null(size, less, target, nullable=nullable):
            if less:
                out(f"{size} -= 1")
            least = min_size(element, self.version, flexible=self.flexible)
            out(f"if not 0 <= {size} * {least} <= {end} - pos: raise ValueError('count')")
            if isinstance(element, RowOf):
                self._rows(element, target, size)
                return
            items, item = out.name("a"), out.name("v")
            out(f"{items} = []")
            with out.block(f"for _ in range({size}):"):
                self.value(element, item, end, nullable=False)
                self.flush()
                out(f"{items}.append({item})")
            out(f"{target} = tuple({items})")

    def _rows(self, element: RowOf, target: str, size: str) -> None:
        """Write the lines that unpack all rows of an array in one loop of C code.

        Rows carry no tagged fields: each tag count must be zero.
        """
        out = self.out
        packed = struct.Struct(
            ">" + "".join(c.code for _, c in element.columns) + "x" * self.flexible
        )
        make = out.constant(partial(tuple.__new__, element.row))  # `_make` takes three times that
        with out.block(f"if {size} == 1:"):
            if self.flexible:
                out(f"if buf[pos + {packed.size - 1}]: raise ValueError('tagged row')")
            out(f"{target} = ({make}({out.constant(packed.unpack_from)}(buf, pos)),)")
            out(f"pos += {packed.size}")
        with out.block("else:"):
            stop = out.name("q")
            out(f"{stop} = pos + {size} * {packed.size}")
            if self.flexible:
                counts = f"buf[pos + {packed.size - 1}:{stop}:{packed.size}]"
                out(f"if any({counts}): raise ValueError('tagged row')")
            rows = f"{out.constant(packed.iter_unpack)}(buf[pos:{stop}])"
            out(f"{target} = tuple(map({make}, {rows}))")
            out(f"pos = {stop}")

    def _tags(self, tagged: list[Field], count: str, end: str) -> dict[str, str]:
        """Write the lines that read the tagged fields, and return their variables by field name."""
        out = self.out
        unknown = out.name("u")
        if not tagged:
            out(f"{unknown}, pos = read_tags(buf, pos, {end}, {count})")
            return {UNKNOWN_TAGGED_FIELDS: unknown}
        variables = {field.name: out.name("v") for field in tagged}
        for field in tagged:
            out(f"{variables[field.name]} = {out.constant(field.default)}")
        out(f"if {count} > 127: {count}, pos = read_uvarint(buf, pos - 1)")
        last = out.name("l")
        out(f"{unknown} = []; {last} = -1")
        with out.block(f"for _ in range({count}):"):
            tag, size, stop = self._uvarint("t"), self._uvarint("n"), out.name("q")
            out(f"{stop} = pos + {size}")
            out(f"if {tag} <= {last} or {stop} > {end}: raise ValueError('tags')")
            out(f"{last} = {tag}")
            for index, field in enumerate(tagged):
                with out.block(f"{'el' * bool(index)}if {tag} == {field.tag}:"):
                    nullable = self.version in field.nullable
                    self.value(field.type, variables[field.name], stop, nullable=nullable)
                    self.flush()
                    out(f"if pos != {stop}: raise ValueError('a tagged field of another size')")
            out(f"else: {unknown}.append(({tag}, bytes(buf[pos:{stop}]))); pos = {stop}")
        out(f"{unknown} = tuple({unknown})")
        return {**variables, UNKNOWN_TAGGED_FIELDS: unknown}


def _arguments(variables: dict[str, str]) -> str:
    return ", ".join(f"{name}={variable}" for name, variable in variables.items())
