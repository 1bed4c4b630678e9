"""How the driver knows the schemas of a topic's values: by file, by registry, or not at all.

The driver says which type the table's column must have before a task writes; what a task meets and
does not know it tells, and the driver learns.

Source: docs/design/tables.md#schemas.
"""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from spark_jobs.topic_tables.formats import (
    AvroValues,
    ConfluentValues,
    InferredJson,
    JsonValues,
    ProtobufValues,
    WriterSchema,
)
from spark_jobs.topic_tables.protobuf_values import NoMessageError, protobuf_type
from spark_jobs.topic_tables.registry import SchemaSource
from spark_jobs.topic_tables.rows import Unknown, ValueFormat
from spark_jobs.topic_tables.value_types import SchemaError, merge_types


class Values(Protocol):
    """The values of one topic, as its driver knows them."""

    @property
    def is_raw(self) -> bool:
        """Return whether values stay as they are."""
        ...

    @property
    def format(self) -> ValueFormat | None:
        """Return the format for tasks; None for raw values."""
        ...

    def start(self, table_type: pa.DataType | None) -> pa.DataType | None:
        """Return the type that the column `value` must have; None: there is no schema yet.

        Args:    table_type: of the column `value`; None if the table has none.
        Raises:  SchemaError.
        """
        ...

    def learn(self, unknown: Unknown) -> pa.DataType | None:
        """Look up what a task met, and return the type that the column must have with it.

        Raises:  SchemaError; RegistryError.
        """
        ...


class RawValues:
    """Values that stay bytes."""

    is_raw = True
    format = None

    def start(self, table_type: pa.DataType | None) -> pa.DataType | None:
        """Return the type that the column has."""
        return table_type

    def learn(self, unknown: Unknown) -> pa.DataType | None:
        """Fail: raw values have no schemas."""
        raise AssertionError(f"raw values name no schemas: {unknown}")


class FixedValues:
    """Values of one schema, which a file has."""

    is_raw = False

    def __init__(self, value_type: pa.DataType, values: ValueFormat) -> None:
        self._type = value_type
        self.format: ValueFormat | None = values

    def start(self, table_type: pa.DataType | None) -> pa.DataType | None:
        """Return the table's type with what the schema adds to it."""
        return merge_types(table_type, self._type)

    def learn(self, unknown: Unknown) -> pa.DataType | None:
        """Fail: there is one schema."""
        raise AssertionError(f"the schema is known: {unknown}")


def json_values(schema: WriterSchema) -> FixedValues:
    """Return the values of a JSON Schema."""
    assert schema.value_type is not None, "known of each JSON Schema"
    return FixedValues(schema.value_type, JsonValues(schema.value_type))


def avro_values(schema: WriterSchema) -> FixedValues:
    """Return the values of an Avro schema."""
    assert schema.value_type is not None, "known of each Avro schema"
    return FixedValues(schema.value_type, AvroValues(schema.text))


def protobuf_values(descriptors: bytes, message: str) -> FixedValues:
    """Return the values that are messages of Protobuf.

    Raises:  SchemaError.
    """
    return FixedValues(protobuf_type(descriptors, message), ProtobufValues(descriptors, message))


class InferredValues:
    """JSON without a schema: the first values make the table's column, which then stays."""

    is_raw = False

    def __init__(self) -> None:
        self._type: pa.DataType | None = None

    @property
    def format(self) -> ValueFormat:
        """Return the format for tasks."""
        return InferredJson() if self._type is None else JsonValues(self._type)

    def start(self, table_type: pa.DataType | None) -> pa.DataType | None:
        """Return the type that the column has."""
        self._type = table_type
        return table_type

    def learn(self, unknown: Unknown) -> pa.DataType | None:
        """Return the type that a task inferred. Where several did, the first counts."""
        if self._type is None:
            self._type = unknown.inferred
        return self._type


class NamedValues:
    """Values that name their schemas, in Confluent's wire format."""

    is_raw = False

    def __init__(self, source: SchemaSource) -> None:
        self._source = source
        self._schemas: dict[int, WriterSchema] = {}
        self._messages: set[tuple[int, tuple[int, ...]]] = set()
        self._missing: set[int] = set()
        self._type: pa.DataType | None = None

    @property
    def format(self) -> ValueFormat:
        """Return the format for tasks, with the schemas that are known."""
        return ConfluentValues(
            dict(self._schemas), frozenset(self._messages), frozenset(self._missing)
        )

    def start(self, table_type: pa.DataType | None) -> pa.DataType | None:
        """Return the type that the column has; forget all schemas: it may lack what they add."""
        self._type = table_type
        self._schemas.clear()
        self._messages.clear()
        self._missing.clear()
        return table_type

    def learn(self, unknown: Unknown) -> pa.DataType | None:
        """Look up schemas, and return the table's type with what they add to it."""
        for schema_id in sorted(unknown.ids):
            schema = self._source.get(schema_id)
            if schema is None:
                self._missing.add(schema_id)
                continue
            if schema.value_type is not None:
                self._add(schema_id, schema.value_type)
            self._schemas[schema_id] = schema
        for schema_id, indexes in sorted(unknown.messages):
            self._messages.add((schema_id, indexes))
            try:
                kind = protobuf_type(self._schemas[schema_id].descriptors, indexes)
            except NoMessageError:
                continue  # the value is bad, and its task says so
            except SchemaError as error:
                raise SchemaError(f"schema {schema_id}: {error}") from None
            self._add(schema_id, kind)
        return self._type

    def _add(self, schema_id: int, kind: pa.DataType) -> None:
        try:
            self._type = merge_types(self._type, kind)
        except SchemaError as error:
            raise SchemaError(f"schema {schema_id}: {error}") from None
