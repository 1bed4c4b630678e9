"""Writes the function that encodes one message class at one version.

As in decoding, fixed-size values gather in a *run* that one `struct` call packs. The rare branches
(some tagged field is set, an array is long) are written so that the common one makes few calls.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager

from records.codegen.runtime import SMALL_ARRAY, small_packers
from records.codegen.source import Source
from records.schema import (
    UNKNOWN_TAGGED_FIELDS,
    ArrayOf,
    Encoder,
    Field,
    Message,
    RowOf,
    StructOf,
    WireType,
)
from records.wire import STRING, UUID16, BufferChain, Fixed, Sized


def encoder_source(cls: type[Message], version: int) -> Source:
    """Return the source of a function that encodes messages of class `cls` at a version.

    The function is (message, append), and passes the bytes to `append`.
    """
    out = Source("def encode(message, w):")
    writer = _EncoderWriter(out, version, flexible=version in cls.schema().flexible)
    writer.struct(cls, "message")
    writer.flush()
    out("return None")
    return out


def make_encoder(cls: type[Message], version: int) -> Encoder:
    """Compile a function that encodes messages of class `cls` at a version.

    The function is (message, append), and passes the bytes to `append`.
    """
    encoder: Encoder = encoder_source(cls, version).compile(f"{cls.__name__} v{version}")
    return encoder


class _EncoderWriter:
    def __init__(self, out: Source, version: int, *, flexible: bool) -> None:
        self.out = out
        self.version = version
        self.flexible = flexible
        self.w = "w"  # the variable that takes the parts
        self.run: list[tuple[str, Fixed]] = []  # expressions whose bytes come next

    def struct(self, cls: type[Message], source: str) -> None:
        """Write the lines that encode the message that is the value of the expression `source`."""
        out = self.out
        out(f"if {source}.__class__ is not {out.constant(cls)}: raise TypeError('wrong class')")
        schema = cls.schema()
        for field in schema.fields:
            if self.version not in field.versions and not field.ignorable:
                out(f"if {self._is_set(field, source)}: raise ValueError({field.name!r})")
        plain, tagged = schema.fields_at(self.version, flexible=self.flexible)
        for field in plain:
            nullable = self.version in field.nullable
            self.value(field.type, f"{source}.{field.name}", nullable=nullable)
        if self.flexible:
            self._tags(tagged, source)
        else:
            out(f"if {source}.{UNKNOWN_TAGGED_FIELDS}: raise ValueError('no room for tags')")

    def _is_set(self, field: Field, source: str) -> str:
        operator = "is not" if field.default is None else "!="
        return f"{source}.{field.name} {operator} {self.out.constant(field.default)}"

    def flush(self, padding: str = "") -> None:
        """Write the line that packs the collected fixed-size fields and any `padding`."""
        run, self.run = self.run, []
        if run:
            packed = struct.Struct(">" + "".join(fixed.code for _, fixed in run) + padding)
            self.out(f"{self.w}({self.out.constant(packed.pack)}({_cells(run)}))")
        elif padding:
            self.out(f"{self.w}(b'\\0')")

    def value(self, wire_type: WireType, source: str, *, nullable: bool) -> None:
        """Write the lines that encode the value of the expression `source`."""
        if isinstance(wire_type, Fixed):
            self.run.append((source, wire_type))
            return
        if isinstance(wire_type, StructOf) and not nullable:
            self.struct(wire_type.message, self._variable(source))
            return
        self.flush()
        source = self._variable(source)
        with self._unless_null(wire_type, source, nullable=nullable):
            match wire_type:
                case Sized():
                    self._sized(wire_type, source)
                case ArrayOf(Fixed() as element):
                    self._numbers(element, source)
                case ArrayOf(element):
                    self._array(element, source)
                case StructOf(message):
                    self.out(f"{self.w}(b'\\x01')")
                    self.struct(message, source)
                    self.flush()
                case RowOf():
                    raise TypeError("a row stands in an array only")

    def _variable(self, source: str) -> str:
        """Return the name of a variable that holds the value of the expression `source`."""
        if source.isidentifier():
            return source
        name = self.out.name("v")
        self.out(f"{name} = {source}")
        return name

    @contextmanager
    def _unless_null(self, wire_type: WireType, source: str, *, nullable: bool) -> Iterator[None]:
        """Write an if-else that encodes a null and otherwise runs the lines of the `with` block."""
        if not nullable:
            yield
            return
        if isinstance(wire_type, StructOf):
            null = b"\xff"
        elif self.flexible:
            null = b"\0"
        else:
            null = struct.pack(">h" if wire_type is STRING else ">i", -1)
        with self.out.block(f"if {source} is None:"):
            self.out(f"{self.w}({null!r})")
        with self.out.block("else:"):
            yield

    def _sized(self, wire_type: Sized, source: str) -> None:
        out, text = self.out, wire_type.name == "string"
        if wire_type.name == "records":
            chain = out.constant(BufferChain)
            out(f"if {source}.__class__ is not bytes and {source}.__class__ is not {chain}:")
            out(f"    {source} = as_buffer({source})")
            self._count(source)
            out(f"if {source}.__class__ is {chain}:")
            out(f"    for part in {source}.parts: {self.w}(part)")
            out(f"else: {self.w}({source})")
            return
        if text:
            source, data = out.name("b"), source
            out(f"{source} = {data}.encode()")
        else:
            out(f"if {source}.__class__ is not bytes: {source} = as_buffer({source})")
        self._count(source, text=text)
        out(f"{self.w}({source})")

    def _count(self, source: str, *, text: bool = False) -> None:
        """Write the lines that encode the length of the value in the variable `source`."""
        if self.flexible:
            size, long_form = self.out.name("n"), "long_text_length" if text else "long_length"
            self.out(f"{size} = len({source})")
            self.out(f"{self.w}(LENGTHS[{size}] if {size} < 127 else {long_form}({size}))")
        else:
            pack = self.out.constant(struct.Struct(">h" if text else ">i").pack)
            self.out(f"{self.w}({pack}(len({source})))")

    def _numbers(self, element: Fixed, source: str) -> None:
        """Write the lines that encode an array of numbers and its count in one `struct` call."""
        out = self.out
        if element is UUID16:
            name = out.name("v")
            out(f"{name} = [id.int.to_bytes(16, 'big') for id in {source}]")
            source = name
        if not self.flexible:
            out(f"{self.w}(pack_old_numbers({element.code!r}, {source}))")
            return
        size = out.name("n")
        pack = out.constant(small_packers(element.code))
        out(f"{size} = len({source})")
        with out.block(f"if {size} < {SMALL_ARRAY}:"):
            out(f"{self.w}({pack}[{size}]({size} + 1, *{source}))")
        with out.block("else:"):
            out(f"{self.w}(pack_numbers({element.code!r}, {source}))")

    def _array(self, element: WireType, source: str) -> None:
        out = self.out
        self._count(source)
        item = out.name("v")
        with out.block(f"for {item} in {source}:"):
            if isinstance(element, RowOf):
                code = ">" + "".join(column.code for _, column in element.columns)
                pack = out.constant(struct.Struct(code + "x" * self.flexible).pack)
                out(f"{self.w}({pack}(*{item}))")
            else:
                self.value(element, item, nullable=False)
                self.flush()

    def _tags(self, tagged: list[Field], source: str) -> None:
        """Write the lines that encode the tagged fields, or a zero byte if no tag is set."""
        out, run = self.out, self.run
        unknown = f"{source}.{UNKNOWN_TAGGED_FIELDS}"
        any_set = " or ".join([*(self._is_set(field, source) for field in tagged), unknown])
        with out.block(f"if {any_set}:"):
            self.flush()
            tags = out.name("t")
            out(f"{tags} = []")
            for field in tagged:
                with out.block(f"if {self._is_set(field, source)}:"):
                    self._tag(field, source, tags)
            out(f"{self.w}(merge_tags({tags}, {unknown}))")
        self.run = run
        with out.block("else:"):
            self.flush("x")

    def _tag(self, field: Field, source: str, tags: str) -> None:
        out, outer = self.out, self.w
        parts = out.name("p")
        self.w = f"{parts}.append"
        out(f"{parts} = []")
        self.value(field.type, f"{source}.{field.name}", nullable=self.version in field.nullable)
        self.flush()
        self.w = outer
        out(f"{tags}.append(({field.tag}, b''.join({parts})))")


def _cells(run: list[tuple[str, Fixed]]) -> str:
    return ", ".join(
        f"{value}.int.to_bytes(16, 'big')" if fixed is UUID16 else value for value, fixed in run
    )
