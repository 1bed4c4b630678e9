"""The wire types of Kafka's messages, and the marks of their declarations.

A declaration is a class whose annotations carry the wire type beside the Python type:

    class TopicRecord(MetadataRecord, key=2, versions="0"):
        name: String
        topic_id: Uuid

    replicas: Array[Int32]                                   # an array, a tuple in Python
    rack: String | None = None                               # nullable wherever it is present
    fenced: Annotated[Bool, since(1)] = False                # not there before version 1
    log_dirs: Annotated[Array[Uuid], since(3), tag(0)] = ()  # a tagged field (KIP-482)

The code that builds a message must give every field without a default. A field that some versions
lack needs a default; encoding another value at such a version is refused unless the field is
`IGNORABLE` (then it is left out), as upstream does.

Source: KIP-482 (tagged fields, compact encodings); the README of upstream's message schemas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple, TypeVar
from uuid import UUID

LAST: Final = 32767
"""Stands for "and all later versions" in a `Versions`."""


class Versions(NamedTuple):
    """A range of message versions, both ends inclusive; empty if `first > last`.

    >>> Versions.parse("1-3"), Versions.parse("12+"), 5 in Versions.parse("none")
    (1-3, 12+, False)
    """

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> Versions:
        """Parse versions in Kafka's notation: "3", "1-3", "12+" or "none"."""
        if text == "none":
            return NEVER
        if text.endswith("+"):
            return cls(int(text[:-1]), LAST)
        first, _, last = text.partition("-")
        return cls(int(first), int(last or first))

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last

    def __and__(self, other: Versions) -> Versions:
        both = Versions(max(self.first, other.first), min(self.last, other.last))
        return both if both.first <= both.last else NEVER

    def __repr__(self) -> str:
        if self.first > self.last:
            return "none"
        if self.last == LAST:
            return f"{self.first}+"
        return f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"


NEVER: Final = Versions(0, -1)
ALWAYS: Final = Versions(0, LAST)


@dataclass(frozen=True, slots=True)
class Fixed:
    """A value of fixed size: `code` is its letter in `struct`, `size` its bytes."""

    name: str
    code: str
    size: int


@dataclass(frozen=True, slots=True)
class Sized:
    """A value after its length: "string", "bytes" or "records"."""

    name: str


class BufferChain:
    """Record batches in several buffers, one after the other, for the encoder of a message."""

    __slots__ = ("_size_bytes", "parts")

    def __init__(self, parts: Sequence[bytes | bytearray | memoryview]) -> None:
        """Chain buffers of bytes, which must not change until they have been sent."""
        self.parts = parts
        self._size_bytes = sum(map(len, parts))

    def __len__(self) -> int:
        return self._size_bytes

    def __bytes__(self) -> bytes:
        return b"".join(self.parts)


BOOL: Final = Fixed("bool", "?", 1)
INT8: Final = Fixed("int8", "b", 1)
INT16: Final = Fixed("int16", "h", 2)
UINT16: Final = Fixed("uint16", "H", 2)
INT32: Final = Fixed("int32", "i", 4)
UINT32: Final = Fixed("uint32", "I", 4)
INT64: Final = Fixed("int64", "q", 8)
FLOAT64: Final = Fixed("float64", "d", 8)
UUID16: Final = Fixed("uuid", "16s", 16)
STRING: Final = Sized("string")
BYTES: Final = Sized("bytes")
RECORDS: Final = Sized("records")

Bool = Annotated[bool, BOOL]
Int8 = Annotated[int, INT8]
Int16 = Annotated[int, INT16]
UInt16 = Annotated[int, UINT16]
Int32 = Annotated[int, INT32]
UInt32 = Annotated[int, UINT32]
Int64 = Annotated[int, INT64]
Float64 = Annotated[float, FLOAT64]
Uuid = Annotated[UUID, UUID16]
String = Annotated[str, STRING]
Bytes = Annotated[bytes, BYTES]
Records = Annotated[bytes | memoryview, RECORDS]
"""Record batches. The encoder also takes a `BufferChain`, so that nobody needs to join buffers."""
"""Record batches, opaque here: decoding hands out a view of the message's own buffer, no copy."""

T = TypeVar("T")
Array = tuple[T, ...]


class Since(NamedTuple):
    """Marks the versions in which a field is present."""

    versions: Versions


class Tagged(NamedTuple):
    """Marks a tagged field: its tag, and the versions in which it is written as one."""

    tag: int
    versions: Versions


class NullableIn(NamedTuple):
    """Narrows the versions in which a field declared `| None` may be null."""

    versions: Versions


class Ignorable:
    """Marks a field that may be left out, whatever its value, where the version lacks it."""


IGNORABLE: Final = Ignorable()


def since(first: int) -> Since:
    """Mark a field as present from version `first` on."""
    return Since(Versions(first, LAST))


def until(last: int) -> Since:
    """Mark a field as present up to version `last`, inclusive."""
    return Since(Versions(0, last))


def between(first: int, last: int) -> Since:
    """Mark a field as present from version `first` to `last`, both inclusive."""
    return Since(Versions(first, last))


def tag(number: int, versions: str = "0+") -> Tagged:
    """Mark a field as tagged (KIP-482) wherever it is present, or only in `versions`."""
    return Tagged(number, Versions.parse(versions))


def nullable(versions: str) -> NullableIn:
    """Allow a field declared `| None` to be null in these versions only."""
    return NullableIn(Versions.parse(versions))
