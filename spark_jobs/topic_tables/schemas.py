"""How the driver knows the schemas of a topic's values: by file, by registry, or not at all.

Source: docs/design/tables.md#schemas.
"""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from spark_jobs.topic_tables.rows import ValueFormat


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

    def learn(self, ids: frozenset[int]) -> pa.DataType:
        """Look up schemas that tasks met, and return the type that the column must have with them.

        Raises:  SchemaError.
        """
        ...


class RawValues:
    """Values that stay bytes."""

    is_raw = True
    format = None

    def start(self, table_type: pa.DataType | None) -> pa.DataType | None:
        """Return the type that the column has."""
        return table_type

    def learn(self, ids: frozenset[int]) -> pa.DataType:
        """Fail: raw values have no schemas."""
        raise AssertionError(f"raw values name no schemas: {ids}")
