"""Records of every upstream type at every upstream version, with values that are easy to get wrong.

`samples` gives, for each type and version: one with defaults, one with everything set, one with
every null, and a few drawn at random from a fixed seed. They need not make sense together.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Final
from uuid import UUID

from records.frame import METADATA_RECORDS
from records.metadata import ProducerIdsRecord, TopicRecord
from records.schema import ArrayOf, Field, Message, MetadataRecord, StructOf, WireType
from records.wire import Fixed, Sized

FIRST_PRIVATE_NUMBER: Final = 1000  # of records and of tags
NOT_UPSTREAM: Final = {"PartitionRecord": 3, "PartitionChangeRecord": 3}
"""The version that KIP-1114 adds; upstream has those before."""

SEED: Final = 0xE5CE2
RANDOM_SAMPLES: Final = 8

_INTEGERS: Final = {
    "int8": (-(1 << 7), (1 << 7) - 1),
    "int16": (-(1 << 15), (1 << 15) - 1),
    "uint16": (0, (1 << 16) - 1),
    "int32": (-(1 << 31), (1 << 31) - 1),
    "int64": (-(1 << 63), (1 << 63) - 1),
}
_TEXTS: Final = ("", "a", "größe", "日本語", "x" * 127, "y" * 128, '\U0001f40d quote " slash \\')
_FLOATS: Final = (0.0, -0.0, 0.1, -1.5, 1e300, 5e-324, 123456789.0)


def upstream_records() -> list[tuple[type[MetadataRecord], int]]:
    """Every upstream type with every version of it."""
    return [
        (cls, version)
        for key, cls in sorted(METADATA_RECORDS.items(), key=lambda item: item[0] or 0)
        if (key or 0) < FIRST_PRIVATE_NUMBER
        for version in range(cls.schema().versions.first, cls.schema().versions.last + 1)
        if version < NOT_UPSTREAM.get(cls.__name__, version + 1)
    ]


def samples() -> Iterator[tuple[MetadataRecord, int]]:
    """(record, version) pairs, the same in every run."""
    draw = random.Random(SEED)
    for cls, version in upstream_records():
        for fill in (_defaults, _everything, _nulls):
            yield _make(cls, version, fill), version
        for _ in range(RANDOM_SAMPLES):
            yield _make(cls, version, lambda field, v: _random(draw, field, v)), version


def skippable() -> Iterator[tuple[MetadataRecord, int]]:
    """Records with tagged fields that upstream does not know: of ours, and of nobody's."""
    block = ProducerIdsRecord(broker_id=1, next_producer_id=2000, block_time_ms=1_700_000_000_000)
    yield block, 0
    strange = ((77, b""), (78, b"\x01\x02"), (2000, bytes(300)))
    yield TopicRecord(name="t", topic_id=UUID(int=9), unknown_tagged_fields=strange), 0


def _make(cls: type[Message], version: int, fill: Any) -> Any:
    plain, tagged = cls.schema().fields_at(version, flexible=True)
    upstream = [f for f in plain + tagged if (f.tag or 0) < FIRST_PRIVATE_NUMBER]
    return cls(**{field.name: fill(field, version) for field in upstream})


def _defaults(field: Field, version: int) -> Any:
    if field.required and isinstance(field.type, StructOf):
        return _make(field.type.message, version, _defaults)
    return field.default


def _everything(field: Field, version: int) -> Any:
    return _largest(field.type, version)


def _largest(wire_type: WireType, version: int) -> Any:
    match wire_type:
        case ArrayOf(element):
            return (_largest(element, version),) * 2
        case StructOf(message):
            return _make(message, version, _everything)
        case Fixed(name="bool"):
            return True
        case Fixed(name="uuid"):
            return UUID(int=(1 << 128) - 1)
        case Fixed(name="float64"):
            return 1.7976931348623157e308
        case Fixed():
            return _INTEGERS[wire_type.name][1]
        case Sized(name="string"):
            return "größer"
        case _:
            return b"\x00\xff\xfe"


def _nulls(field: Field, version: int) -> Any:
    if version in field.nullable:
        return None
    return _defaults(field, version)


def _random(draw: random.Random, field: Field, version: int) -> Any:
    if version in field.nullable and draw.random() < 0.3:
        return None
    return _draw(draw, field.type, version)


def _draw(draw: random.Random, wire_type: WireType, version: int) -> Any:
    match wire_type:
        case ArrayOf(element):
            count = draw.choice((0, 1, 3, 130))
            return tuple(_draw(draw, element, version) for _ in range(count))
        case StructOf(message):
            return _make(message, version, lambda field, v: _random(draw, field, v))
        case Fixed(name="bool"):
            return draw.random() < 0.5
        case Fixed(name="uuid"):
            return UUID(int=draw.getrandbits(128))
        case Fixed(name="float64"):
            return draw.choice(_FLOATS)
        case Fixed():
            low, high = _INTEGERS[wire_type.name]
            return draw.choice((low, high, 0, draw.randint(low, high), min(high, 300)))
        case Sized(name="string"):
            return draw.choice(_TEXTS)
        case _:
            return draw.randbytes(draw.choice((0, 1, 127, 128, 300)))
