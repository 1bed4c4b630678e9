"""The formats of values, as tasks decode them.

Confluent's wire format is a zero byte, the id of the schema in four bytes, and then the value; in
Protobuf the indexes of the message come first.

Source: docs/design/tables.md#schemas; Confluent's page on the wire format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import pyarrow as pa

from spark_jobs.topic_tables.avro_values import BadValueError, decode_avro
from spark_jobs.topic_tables.json_values import decode_json, infer_type
from spark_jobs.topic_tables.protobuf_values import MessageName, decode_protobuf
from spark_jobs.topic_tables.rows import DecodedValues, Unknown, UnknownSchemasError
from spark_jobs.topic_tables.value_types import SchemaError

Kind = Literal["AVRO", "JSON", "PROTOBUF"]

MAGIC: Final = b"\x00"
HEADER_BYTES: Final = 5
MAX_INDEXES: Final = 32
"""Levels of messages within messages."""


@dataclass(frozen=True, slots=True)
class WriterSchema:
    """The schema of a value that was written with a schema's id."""

    kind: Kind
    text: str = ""  # of an Avro schema
    descriptors: bytes = b""  # of a Protobuf schema
    value_type: pa.DataType | None = None  # None for Protobuf: each message has its own


@dataclass(frozen=True, slots=True)
class InferredJson:
    """JSON whose type is not known yet: tells it by way of an error."""

    def decode(self, values: Sequence[bytes | None]) -> DecodedValues:
        """Decode nulls and bad values only. Raises UnknownSchemasError if there are objects."""
        kind = infer_type(values)
        if kind is not None:
            raise UnknownSchemasError(Unknown(inferred=kind))
        bad = "not a JSON object, and no value so far was one"
        return DecodedValues(
            [None] * len(values),
            {index: bad for index, value in enumerate(values) if value is not None},
        )


@dataclass(frozen=True, slots=True)
class JsonValues:
    """JSON of one type."""

    value_type: pa.DataType

    def decode(self, values: Sequence[bytes | None]) -> DecodedValues:
        """Decode values by the type."""
        return _decode_all(values, lambda value: decode_json(self.value_type, value))


@dataclass(frozen=True, slots=True)
class AvroValues:
    """Avro of one schema."""

    text: str

    def decode(self, values: Sequence[bytes | None]) -> DecodedValues:
        """Decode values by the schema."""
        return _decode_all(values, lambda value: decode_avro(self.text, value))


@dataclass(frozen=True, slots=True)
class ProtobufValues:
    """Protobuf of one message."""

    descriptors: bytes
    message: str

    def decode(self, values: Sequence[bytes | None]) -> DecodedValues:
        """Decode values as the message."""
        return _decode_all(
            values, lambda value: decode_protobuf(self.descriptors, self.message, value)
        )


@dataclass(frozen=True, slots=True)
class ConfluentValues:
    """Values that name their schemas."""

    schemas: Mapping[int, WriterSchema]
    messages: frozenset[tuple[int, tuple[int, ...]]]  # Protobuf: those whose types the driver knows
    missing: frozenset[int]  # ids that the registry does not have

    def decode(self, values: Sequence[bytes | None]) -> DecodedValues:
        """Decode values by the schemas that they name.

        Raises:  UnknownSchemasError.
        """
        there = {
            int.from_bytes(value[1:5], "big")
            for value in values
            if value is not None and _has_header(value)
        }
        unknown = there - self.schemas.keys() - self.missing
        if unknown:
            raise UnknownSchemasError(Unknown(frozenset(unknown)))
        fresh: set[tuple[int, tuple[int, ...]]] = set()
        decoded = _decode_all(values, lambda value: self._decode(value, fresh))
        if fresh:
            raise UnknownSchemasError(Unknown(messages=frozenset(fresh)))
        return decoded

    def _decode(self, value: bytes, fresh: set[tuple[int, tuple[int, ...]]]) -> Any:
        if not _has_header(value):
            raise BadValueError("not in Confluent's wire format: no zero byte and id at its begin")
        schema_id = int.from_bytes(value[1:5], "big")
        if schema_id in self.missing:
            raise BadValueError(f"the registry has no schema {schema_id}")
        schema, data = self.schemas[schema_id], value[HEADER_BYTES:]
        if schema.kind == "AVRO":
            return decode_avro(schema.text, data)
        if schema.kind == "JSON":
            assert schema.value_type is not None, "known of each JSON Schema"
            return decode_json(schema.value_type, data)
        indexes, begin = read_indexes(data)
        if (schema_id, indexes) not in self.messages:
            fresh.add((schema_id, indexes))
            return None
        return _decode_message(schema.descriptors, indexes, data[begin:])


def _decode_message(descriptors: bytes, message: MessageName, data: bytes) -> Any:
    try:
        return decode_protobuf(descriptors, message, data)
    except SchemaError as error:  # its indexes are of no message
        raise BadValueError(str(error)) from None


def _has_header(value: bytes) -> bool:
    return len(value) >= HEADER_BYTES and value[:1] == MAGIC


def _decode_all(values: Sequence[bytes | None], decode: Callable[[bytes], Any]) -> DecodedValues:
    """Decode each value that is not null, and note why others cannot be."""
    found: list[Any] = []
    bad: dict[int, str] = {}
    for index, value in enumerate(values):
        try:
            found.append(None if value is None else decode(value))
        except BadValueError as error:
            bad[index] = str(error)
            found.append(None)
    return DecodedValues(found, bad)


def read_indexes(data: bytes) -> tuple[tuple[int, ...], int]:
    """Return the indexes of a message, and where its bytes begin.

    Raises:  BadValueError.

    >>> read_indexes(bytes([4, 2, 0]) + b"message")
    ((1, 0), 3)
    >>> read_indexes(bytes([0]) + b"message")
    ((0,), 1)
    """
    count, at = _read_varint(data, 0)
    if count == 0:
        return (0,), at
    if not 0 < count <= MAX_INDEXES:
        raise BadValueError(f"{count} indexes of a Protobuf message")
    indexes = []
    for _ in range(count):
        index, at = _read_varint(data, at)
        if index < 0:
            raise BadValueError(f"{index} as the index of a Protobuf message")
        indexes.append(index)
    return tuple(indexes), at


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a signed number and where it ends."""
    number = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
    raise BadValueError("its indexes of a Protobuf message do not end")
