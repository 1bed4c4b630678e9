"""Generates requests with random content, and bytes that do not decode, from one seed.

Values are drawn from those that hurt: the ends of their range, what stands for null, names that are
there, names that are not, names against the rules.
"""

from __future__ import annotations

from random import Random
from typing import Any
from uuid import UUID

from records.batch_writer import build_batch
from records.rpc.base import Request
from records.schema import ArrayOf, Field, Message, RowOf, StructOf, WireType
from records.types import ZERO_UUID
from records.wire import UUID16, Fixed, Sized

_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
_SMALL = (-3, -2, -1, 0, 0, 1, 1, 2, 3, 5, 17, 100)


class Nonsense:
    """Draws random requests. `names` and `ids` are those of existing topics."""

    def __init__(self, random: Random, names: tuple[str, ...], ids: tuple[UUID, ...]) -> None:
        self._random = random
        self._names = (*names, "", ".", "a b", "é" * 40, "x" * 300, "new", "__consumer_offsets")
        self._ids = (*ids, ZERO_UUID, UUID(int=2**127 + 1))

    def request(self, cls: type[Request], version: int) -> Request:
        """Draw a request with random content."""
        drawn: Request = self._message(cls, version, flexible=version in cls.schema().flexible)
        return drawn

    def damaged(self, body: bytes) -> bytes:
        """Return the bytes with a few changed."""
        random, data = self._random, bytearray(body)
        for _ in range(random.choice((1, 1, 2, 8))):
            at = random.randrange(len(data) + 1)
            match random.randrange(4):
                case 0:
                    del data[at:]
                case 1:
                    data[at:at] = random.randbytes(random.choice((1, 4, 40)))
                case 2:
                    data[at : at + 4] = random.choice((b"\x7f\xff\xff\xff", b"\xff" * 4, b"\0" * 4))
                case _:
                    data[at : at + 1] = random.randbytes(1)
        return bytes(data)

    def _message(self, cls: type[Message], version: int, *, flexible: bool) -> Any:
        plain, tagged = cls.schema().fields_at(version, flexible=flexible)
        drawn = {field.name: self._field(field, version, flexible=flexible) for field in plain}
        for field in tagged:
            if self._random.random() < 0.3:
                drawn[field.name] = self._field(field, version, flexible=flexible)
        return cls(**drawn)

    def _field(self, field: Field, version: int, *, flexible: bool) -> Any:
        if version in field.nullable and self._random.random() < 0.2:
            return None
        return self._value(field.type, version, flexible=flexible)

    def _value(self, kind: WireType, version: int, *, flexible: bool) -> Any:
        random = self._random
        match kind:
            case Fixed(name="bool"):
                return random.random() < 0.5
            case Fixed(name="float64"):
                return random.choice((0.0, -1.0, 1e300))
            case Fixed():
                return random.choice(self._ids) if kind is UUID16 else self._integer(kind.name)
            case Sized(name="string"):
                return random.choice(self._names)
            case Sized():
                return self._records()
            case ArrayOf(element):
                count = random.choice((0, 1, 1, 2, 3))
                return tuple(self._value(element, version, flexible=flexible) for _ in range(count))
            case StructOf(message):
                return self._message(message, version, flexible=flexible)
            case RowOf(row, columns):
                cells = (self._value(column, version, flexible=flexible) for _, column in columns)
                return row(*cells)
        raise AssertionError(f"no such type: {kind}")

    def _integer(self, name: str) -> int:
        if name not in _BITS:  # unsigned
            return self._random.choice((0, 1, 9092, 65_535))
        ends = 1 << (_BITS[name] - 1)
        return self._random.choice((*_SMALL, -ends, ends - 1))

    def _records(self) -> bytes:
        """Draw a batch, a damaged batch, or other bytes."""
        batch = bytes(
            build_batch([(None, b"value", 1_700_000_000_000, ())], base_offset=0, leader_epoch=-1)
        )
        return self._random.choice((batch, b"", b"\0" * 61, self.damaged(batch), batch + batch))
