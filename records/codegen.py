"""Generated codecs: one pair of plain Python functions per message class and version.

A declaration is turned into source text once, at first use, and compiled: neighbouring fixed-size
fields share one `struct` call, nested structures are unrolled into loops, and fields that a version
lacks cost nothing. That is three to sixteen times faster than walking a schema for every message.

The generated functions check every length against the bytes at hand before they use it, but they do
not say what was wrong: they raise `ValueError`, `IndexError` or `struct.error`, and `records.codec`
asks the slow, readable `records.interpreter` to explain.

Source: KIP-482 (compact encodings, tagged fields); upstream's protocol guide for the older ones.
"""

from __future__ import annotations

import struct
from itertools import count
from typing import Any, Final
from uuid import UUID, SafeUUID

from records.schema import (
    UNKNOWN_TAGGED_FIELDS,
    ArrayOf,
    Decoder,
    Encoder,
    Field,
    Message,
    RowOf,
    StructOf,
    WireType,
)
from records.wire import UUID16, Fixed, Sized

MAX_STRING_BYTES: Final = 32767  # a Kafka string's length is an int16 wherever it is not compact
MAX_UVARINT: Final = 0xFFFFFFFF  # a length or a tag; a longer varint is refused
_MEMOIZED_UUIDS: Final = 4096  # topic ids come again and again; building a UUID costs 1.2 µs


# --- what generated code calls -----------------------------------------------------------------

_uuids: dict[bytes, UUID] = {}
_set_int = UUID.int.__set__  # type: ignore[attr-defined,misc]
_set_safe = UUID.is_safe.__set__  # type: ignore[attr-defined,misc]


def _uuid(raw: bytes) -> UUID:
    known = _uuids.get(raw)
    if known is not None:
        return known
    new = UUID.__new__(UUID)
    _set_int(new, int.from_bytes(raw, "big"))
    _set_safe(new, SafeUUID.unknown)
    if len(_uuids) >= _MEMOIZED_UUIDS:
        _uuids.clear()
    _uuids[raw] = new
    return new


def read_uvarint(buf: memoryview, pos: int) -> tuple[int, int]:
    """An unsigned varint of at most 32 bits at `pos`, and the position after it.

    >>> read_uvarint(memoryview(bytes.fromhex("ac02")), 0)
    (300, 2)
    """
    value = buf[pos]
    pos += 1
    if value < 0x80:
        return value, pos
    value &= 0x7F
    for shift in (7, 14, 21, 28):
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                break
            return value, pos
    raise ValueError("a varint of more than 32 bits")


def uvarint(value: int) -> bytes:
    """The bytes of an unsigned varint.

    >>> uvarint(300).hex()
    'ac02'
    """
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SHORT_UVARINTS: Final = tuple(bytes([n]) for n in range(128))


def _merge_tags(
    known: list[tuple[int, bytes]], unknown: tuple[tuple[int, bytes], ...]
) -> list[bytes]:
    """The tagged section: a count, then tag, size and bytes of each, by rising tag."""
    tags = sorted([*known, *unknown])
    parts = [uvarint(len(tags))]
    previous = -1
    for tag, body in tags:
        if tag == previous:
            raise ValueError(f"tag {tag} is written twice")
        previous = tag
        parts += (uvarint(tag), uvarint(len(body)), body)
    return parts


def _read_tags(buf: memoryview, pos: int, end: int, count: int) -> tuple[Any, int]:
    """Tagged fields of a structure that declares none."""
    if count & 0x80:
        count, pos = read_uvarint(buf, pos - 1)
    tags = []
    previous = -1
    for _ in range(count):
        tag, pos = read_uvarint(buf, pos)
        size, pos = read_uvarint(buf, pos)
        if tag <= previous or pos + size > end:
            raise ValueError("tags out of order or past the end")
        previous = tag
        tags.append((tag, bytes(buf[pos : pos + size])))
        pos += size
    return tuple(tags), pos


# --- sizes -------------------------------------------------------------------------------------


def min_size(wire_type: WireType, version: int, *, flexible: bool) -> int:
    """The fewest bytes a value of this type takes: bounds an array's count before it is read."""
    match wire_type:
        case Fixed():
            return wire_type.size
        case Sized(name="string"):
            return 1 if flexible else 2
        case RowOf():
            return sum(column.size for _, column in wire_type.columns) + flexible
        case StructOf():
            plain, _ = wire_type.message.schema().fields_at(version, flexible=flexible)
            size = sum(min_size(field.type, version, flexible=flexible) for field in plain)
            return max(1, size + flexible)
        case _:
            return 1 if flexible else 4


# --- the generator -----------------------------------------------------------------------------


class _Source:
    """Lines of a function being written, and the constants they name."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 1
        self.constants: dict[str, Any] = {
            "uuid": _uuid,
            "uv": uvarint,
            "UV": _SHORT_UVARINTS,
            "read_uvarint": read_uvarint,
            "read_tags": _read_tags,
            "merge_tags": _merge_tags,
            "pack": struct.pack,
            "unpack_from": struct.unpack_from,
        }
        self._numbers = count()

    def __call__(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def name(self, prefix: str) -> str:
        return f"{prefix}{next(self._numbers)}"

    def constant(self, value: Any) -> str:
        for name, known in self.constants.items():
            if known is value:
                return name
        name = self.name("K")
        self.constants[name] = value
        return name

    def compile(self, head: str, title: str) -> Any:
        text = "\n".join([head, *self.lines])
        namespace = dict(self.constants)
        exec(compile(text, f"<codec {title}>", "exec"), namespace)
        return namespace[head.split("(")[0].removeprefix("def ")]


def make_decoder(cls: type[Message], version: int) -> Decoder:
    """A function (buffer, position, end) -> (message, position after it)."""
    flexible = version in cls.schema().flexible
    out = _Source()
    _DecoderWriter(out, version, flexible=flexible).struct(cls, "result", "end")
    out("return result, pos")
    decoder: Decoder = out.compile("def decode(buf, pos, end):", f"{cls.__name__} v{version}")
    return decoder


def make_encoder(cls: type[Message], version: int) -> Encoder:
    """A function (message, append) that hands the message's bytes to `append`, part by part."""
    flexible = version in cls.schema().flexible
    out = _Source()
    _EncoderWriter(out, version, flexible=flexible).struct(cls, "message", "w")
    out("return None")
    encoder: Encoder = out.compile("def encode(message, w):", f"{cls.__name__} v{version}")
    return encoder


class _DecoderWriter:
    def __init__(self, out: _Source, version: int, *, flexible: bool) -> None:
        self.out = out
        self.version = version
        self.flexible = flexible

    def struct(self, cls: type[Message], target: str, end: str) -> None:
        """Write the lines that decode one `cls` into the variable `target`."""
        out = self.out
        plain, tagged = cls.schema().fields_at(self.version, flexible=self.flexible)
        variables: dict[str, str] = {}
        run: list[tuple[str, Fixed]] = []
        for field in plain:
            variables[field.name] = variable = out.name("v")
            if isinstance(field.type, Fixed):
                run.append((variable, field.type))
                continue
            self._fixed_run(run)
            run = []
            self.value(field.type, variable, end, nullable=self.version in field.nullable)
        self._fixed_run(run)
        if self.flexible:
            variables[UNKNOWN_TAGGED_FIELDS] = self._tags(tagged, variables, end)
        arguments = ", ".join(f"{name}={variable}" for name, variable in variables.items())
        out(f"{target} = {out.constant(cls)}({arguments})")

    def _fixed_run(self, run: list[tuple[str, Fixed]]) -> None:
        if not run:
            return
        out = self.out
        packed = struct.Struct(">" + "".join(fixed.code for _, fixed in run))
        names = ", ".join(name for name, _ in run)
        if packed.size == 1 and run[0][1].code == "?":
            out(f"{names} = buf[pos] != 0")
        else:
            out(f"{names}, = {out.constant(packed.unpack_from)}(buf, pos)")
        out(f"pos += {packed.size}")
        for name, fixed in run:
            if fixed is UUID16:
                out(f"{name} = uuid({name})")

    def _uvarint(self, name: str) -> None:
        self.out(f"{name} = buf[pos]; pos += 1")
        self.out(f"if {name} > 127: {name}, pos = read_uvarint(buf, pos - 1)")

    def value(self, wire_type: WireType, target: str, end: str, *, nullable: bool) -> None:
        """Write the lines that decode one value into `target`; a null only where allowed."""
        match wire_type:
            case Fixed():
                self._fixed_run([(target, wire_type)])
            case Sized():
                self._sized(wire_type, target, end, nullable=nullable)
            case ArrayOf():
                self._array(wire_type.element, target, end, nullable=nullable)
            case StructOf():
                self._nested(wire_type, target, end, nullable=nullable)
            case RowOf():
                raise TypeError("a row stands in an array only")

    def _nested(self, wire_type: StructOf, target: str, end: str, *, nullable: bool) -> None:
        out = self.out
        if not nullable:
            self.struct(wire_type.message, target, end)
            return
        out(f"{target} = None; pos += 1")
        out("if buf[pos - 1] < 128:")
        out.depth += 1
        self.struct(wire_type.message, target, end)
        out.depth -= 1

    def _length(self, short: bool) -> str:
        """Write the lines that read a length; the variable they leave is -1 for null."""
        out = self.out
        size = out.name("n")
        if self.flexible:
            self._uvarint(size)
            out(f"{size} -= 1")
        else:
            code = struct.Struct(">h" if short else ">i")
            out(f"{size}, = {out.constant(code.unpack_from)}(buf, pos)")
            out(f"pos += {code.size}")
        return size

    def _begin_nullable(self, size: str, target: str, *, nullable: bool) -> None:
        out = self.out
        if nullable:
            out(f"if {size} < 0:")
            out(f"    if {size} != -1: raise ValueError('negative length')")
            out(f"    {target} = None")
            out("else:")
            out.depth += 1
        else:
            out(f"if {size} < 0: raise ValueError('null or negative length')")

    def _sized(self, wire_type: Sized, target: str, end: str, *, nullable: bool) -> None:
        out = self.out
        text = wire_type.name == "string"
        size = self._length(text)
        self._begin_nullable(size, target, nullable=nullable)
        stop = out.name("q")
        out(f"{stop} = pos + {size}")
        limit = f" or {size} > {MAX_STRING_BYTES}" if text and self.flexible else ""
        out(f"if {stop} > {end}{limit}: raise ValueError('length past the end')")
        view = f"buf[pos:{stop}]"
        form = {"string": f"str({view}, 'utf-8')", "bytes": f"bytes({view})", "records": view}
        out(f"{target} = {form[wire_type.name]}")
        out(f"pos = {stop}")
        out.depth -= nullable

    def _array(self, element: WireType, target: str, end: str, *, nullable: bool) -> None:
        out = self.out
        size = self._length(short=False)
        self._begin_nullable(size, target, nullable=nullable)
        least = min_size(element, self.version, flexible=self.flexible)
        out(f"if {size} * {least} > {end} - pos: raise ValueError('count past the end')")
        if isinstance(element, Fixed) and element is not UUID16:
            out(f"{target} = unpack_from(f'>{{{size}}}{element.code}', buf, pos)")
            out(f"pos += {size} * {element.size}")
        elif isinstance(element, RowOf):
            self._rows(element, target, size)
        else:
            items, item = out.name("a"), out.name("v")
            out(f"{items} = []")
            out(f"for _ in range({size}):")
            out.depth += 1
            self.value(element, item, end, nullable=False)
            out(f"{items}.append({item})")
            out.depth -= 1
            out(f"{target} = tuple({items})")
        out.depth -= nullable

    def _rows(self, element: RowOf, target: str, size: str) -> None:
        """All rows in one C loop. Rows carry no tagged fields: each tag count must be zero."""
        out = self.out
        code = ">" + "".join(column.code for _, column in element.columns)
        width = struct.calcsize(code) + self.flexible
        stop = out.name("q")
        packed = struct.Struct(code + "x" * self.flexible)
        out(f"{stop} = pos + {size} * {width}")
        if self.flexible:
            out(f"if any(buf[pos + {width - 1}:{stop}:{width}]): raise ValueError('tagged row')")
        make = out.constant(element.row._make)  # type: ignore[attr-defined]
        rows = f"{out.constant(packed.iter_unpack)}(buf[pos:{stop}])"
        out(f"{target} = tuple(map({make}, {rows}))")
        out(f"pos = {stop}")

    def _tags(self, tagged: list[Field], variables: dict[str, str], end: str) -> str:
        out = self.out
        number, unknown = out.name("n"), out.name("u")
        for field in tagged:
            variables[field.name] = out.name("v")
            out(f"{variables[field.name]} = {out.constant(field.default)}")
        out(f"{number} = buf[pos]; pos += 1; {unknown} = ()")
        out(f"if {number}:")
        out.depth += 1
        if tagged:
            self._known_tags(tagged, variables, end, number, unknown)
        else:
            out(f"{unknown}, pos = read_tags(buf, pos, {end}, {number})")
        out.depth -= 1
        return unknown

    def _known_tags(
        self, tagged: list[Field], variables: dict[str, str], end: str, number: str, unknown: str
    ) -> None:
        out = self.out
        tag, size, stop, last = (out.name(prefix) for prefix in ("t", "n", "q", "l"))
        out(f"if {number} > 127: {number}, pos = read_uvarint(buf, pos - 1)")
        out(f"{unknown} = []; {last} = -1")
        out(f"for _ in range({number}):")
        out.depth += 1
        self._uvarint(tag)
        self._uvarint(size)
        out(f"{stop} = pos + {size}")
        out(f"if {tag} <= {last} or {stop} > {end}: raise ValueError('tags out of order')")
        out(f"{last} = {tag}")
        for index, field in enumerate(tagged):
            out(f"{'el' * bool(index)}if {tag} == {field.tag}:")
            out.depth += 1
            nullable = self.version in field.nullable
            self.value(field.type, variables[field.name], stop, nullable=nullable)
            out(f"if pos != {stop}: raise ValueError('a tagged field of the wrong size')")
            out.depth -= 1
        out("else:")
        out(f"    {unknown}.append(({tag}, bytes(buf[pos:{stop}]))); pos = {stop}")
        out.depth -= 1
        out(f"{unknown} = tuple({unknown})")


class _EncoderWriter:
    def __init__(self, out: _Source, version: int, *, flexible: bool) -> None:
        self.out = out
        self.version = version
        self.flexible = flexible

    def struct(self, cls: type[Message], source: str, w: str) -> None:
        """Write the lines that hand the bytes of the message in `source` to `w`."""
        out = self.out
        schema = cls.schema()
        out(f"if {source}.__class__ is not {out.constant(cls)}: raise TypeError('wrong class')")
        for field in schema.fields:
            if self.version not in field.versions and not field.ignorable:
                default = out.constant(field.default)
                out(f"if {source}.{field.name} != {default}: raise ValueError({field.name!r})")
        plain, tagged = schema.fields_at(self.version, flexible=self.flexible)
        run: list[tuple[str, Fixed]] = []
        for field in plain:
            value = f"{source}.{field.name}"
            if isinstance(field.type, Fixed):
                run.append((value, field.type))
                continue
            self._fixed_run(run, w)
            run = []
            name = out.name("v")
            out(f"{name} = {value}")
            self.value(field.type, name, w, nullable=self.version in field.nullable)
        self._fixed_run(run, w)
        if self.flexible:
            self._tags(tagged, source, w)
        else:
            out(f"if {source}.{UNKNOWN_TAGGED_FIELDS}: raise ValueError('no room for tags')")

    def _fixed_run(self, run: list[tuple[str, Fixed]], w: str) -> None:
        if not run:
            return
        packed = struct.Struct(">" + "".join(fixed.code for _, fixed in run))
        values = ", ".join(f"{value}.bytes" if fixed is UUID16 else value for value, fixed in run)
        self.out(f"{w}({self.out.constant(packed.pack)}({values}))")

    def value(self, wire_type: WireType, source: str, w: str, *, nullable: bool) -> None:
        """Write the lines that encode the value in the variable `source`."""
        match wire_type:
            case Fixed():
                self._fixed_run([(source, wire_type)], w)
            case Sized():
                self._sized(wire_type, source, w, nullable=nullable)
            case ArrayOf():
                self._array(wire_type.element, source, w, nullable=nullable)
            case StructOf() if nullable:
                self.out(f"if {source} is None: {w}(b'\\xff')")
                self.out("else:")
                self.out.depth += 1
                self.out(f"{w}(b'\\x01')")
                self.struct(wire_type.message, source, w)
                self.out.depth -= 1
            case StructOf():
                self.struct(wire_type.message, source, w)
            case RowOf():
                raise TypeError("a row stands in an array only")

    def _begin_nullable(self, source: str, w: str, code: str, *, nullable: bool) -> None:
        out = self.out
        if nullable:
            null = b"\0" if self.flexible else struct.pack(code, -1)
            out(f"if {source} is None: {w}({null!r})")
            out("else:")
            out.depth += 1

    def _length(self, size: str, code: str) -> str:
        if not self.flexible:
            return f"{self.out.constant(struct.Struct(code).pack)}({size})"
        self.out(f"{size} += 1")
        return f"UV[{size}] if {size} < 128 else uv({size})"

    def _sized(self, wire_type: Sized, source: str, w: str, *, nullable: bool) -> None:
        out = self.out
        text = wire_type.name == "string"
        code = ">h" if text else ">i"
        self._begin_nullable(source, w, code, nullable=nullable)
        data, size = out.name("b"), out.name("n")
        out(f"{data} = {source}.encode()" if text else f"{data} = {source}")
        out(f"{size} = len({data})")
        if text:
            out(f"if {size} > {MAX_STRING_BYTES}: raise ValueError('string too long')")
        out(f"{w}({self._length(size, code)})")
        out(f"{w}({data})")
        out.depth -= nullable

    def _array(self, element: WireType, source: str, w: str, *, nullable: bool) -> None:
        out = self.out
        self._begin_nullable(source, w, ">i", nullable=nullable)
        size = out.name("n")
        out(f"{size} = len({source})")
        if isinstance(element, Fixed) and element is not UUID16:
            out(f"{w}({self._length(size, '>i')})")
            out(f"{w}(pack(f'>{{len({source})}}{element.code}', *{source}))")
        else:
            out(f"{w}({self._length(size, '>i')})")
            item = out.name("v")
            if isinstance(element, RowOf):
                code = ">" + "".join(column.code for _, column in element.columns)
                pack = out.constant(struct.Struct(code + "x" * self.flexible).pack)
                out(f"for {item} in {source}: {w}({pack}(*{item}))")
            else:
                out(f"for {item} in {source}:")
                out.depth += 1
                self.value(element, item, w, nullable=False)
                out.depth -= 1
        out.depth -= nullable

    def _tags(self, tagged: list[Field], source: str, w: str) -> None:
        out = self.out
        unknown = f"{source}.{UNKNOWN_TAGGED_FIELDS}"
        if not tagged:
            out(f"if {unknown}: {w}(b''.join(merge_tags([], {unknown})))")
            out(f"else: {w}(b'\\0')")
            return
        tags = out.name("t")
        out(f"{tags} = []")
        for field in tagged:
            value, parts = out.name("v"), out.name("p")
            out(f"{value} = {source}.{field.name}")
            out(f"if {value} != {out.constant(field.default)}:")
            out.depth += 1
            out(f"{parts} = []; {parts}w = {parts}.append")
            nullable = self.version in field.nullable
            self.value(field.type, value, f"{parts}w", nullable=nullable)
            out(f"{tags}.append(({field.tag}, b''.join({parts})))")
            out.depth -= 1
        out(f"if {tags} or {unknown}: {w}(b''.join(merge_tags({tags}, {unknown})))")
        out(f"else: {w}(b'\\0')")
