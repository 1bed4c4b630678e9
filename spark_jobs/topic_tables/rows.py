"""From records to a table's rows: values decoded, bad ones set apart.

    decoded = decode_rows(batch, JsonValues(value_type), skip=frozenset())
    decoded.good, decoded.bad

Pure: Arrow batches in, Arrow batches out. A format decodes the values of a batch and says of each
that it cannot decode why. The columns of good rows are those of the table; bad rows keep the value
as it was, and have a reason.

Source: docs/design/tables.md#dead-letters, #schemas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from spark_jobs.topics.decoder import TYPES

KAFKA_COLUMNS: Final = ("key", "partition", "offset", "timestamp", "headers")
"""Columns that every table has, before its column `value`."""

DEAD_LETTER_COLUMNS: Final = (*KAFKA_COLUMNS, "value", "reason")

READ_COLUMNS: Final = (*KAFKA_COLUMNS, "value")
"""Columns that tasks read of records."""

MAX_REASON: Final = 500
"""Characters of a reason: it may quote the value."""

DEAD_LETTER_SCHEMA: Final = pa.schema(
    [
        *(pa.field(name, TYPES[name]) for name in READ_COLUMNS),
        pa.field("reason", pa.string()),
    ]
)


class Unknown(NamedTuple):
    """What a task met and did not know."""

    ids: frozenset[int] = frozenset()  # of schemas
    inferred: pa.DataType | None = None  # the type of values that have no schema
    messages: frozenset[tuple[int, tuple[int, ...]]] = frozenset()
    """Id and message of Protobuf schemas whose types the table's column does not have yet."""


class UnknownSchemasError(Exception):
    """Values are of schemas that the task does not have; the driver looks them up."""

    def __init__(self, unknown: Unknown) -> None:
        super().__init__(unknown)
        self.unknown = unknown


class DecodedValues(NamedTuple):
    """The values of a batch; a bad one is None, and has a reason."""

    values: Sequence[Any]
    bad: Mapping[int, str]  # by the value's index


class ValueFormat(Protocol):
    """Decodes values. Pickled on its way to tasks."""

    def decode(self, values: Sequence[bytes | None]) -> DecodedValues:
        """Return the decoded values, None for each that is null or bad.

        Raises:  UnknownSchemasError.
        """
        ...


class DecodedRows(NamedTuple):
    """The rows of a batch, of the table and of the dead letters."""

    good: pa.RecordBatch
    bad: pa.RecordBatch


def table_schema(value_type: pa.DataType | None) -> pa.Schema:
    """Return the Arrow schema of a table's files.

    Args:    value_type: None while no schema of a value is known: then there is no such column.
    """
    fields = [pa.field(name, TYPES[name]) for name in KAFKA_COLUMNS]
    if value_type is not None:
        fields.append(pa.field("value", value_type))
    return pa.schema(fields)


def decode_rows(
    batch: pa.RecordBatch,
    values: ValueFormat | None,
    value_type: pa.DataType | None,
    skip: frozenset[tuple[int, int]] = frozenset(),
) -> DecodedRows:
    """Return the rows of a batch of records.

    Args:    values: the values' format; None: they stay as they are.
             value_type: of the table's column `value`; None: it has none yet.
             skip: partition and offset of records that are in the dead-letter table already.
    Raises:  UnknownSchemasError.
    """
    batch = _without(batch, skip)
    if values is None:
        nothing = pa.RecordBatch.from_pylist([], schema=DEAD_LETTER_SCHEMA)
        return DecodedRows(batch.select(READ_COLUMNS), nothing)
    decoded = values.decode(batch.column("value").to_pylist())
    columns = [batch.column(name) for name in KAFKA_COLUMNS]
    reasons = dict(decoded.bad)
    if value_type is not None:
        column, misfits = to_column(decoded.values, value_type)
        columns.append(column)
        reasons = {**misfits, **reasons}
    good = pa.RecordBatch.from_arrays(columns, schema=table_schema(value_type))
    if not reasons:
        return DecodedRows(good, pa.RecordBatch.from_pylist([], schema=DEAD_LETTER_SCHEMA))
    indices = sorted(reasons)
    keep = pa.array([index not in reasons for index in range(batch.num_rows)])
    bad = batch.select(READ_COLUMNS).take(pa.array(indices))
    texts = pa.array([reasons[index][:MAX_REASON] for index in indices], pa.string())
    return DecodedRows(
        good.filter(keep),
        pa.RecordBatch.from_arrays([*bad.columns, texts], schema=DEAD_LETTER_SCHEMA),
    )


def to_column(values: Sequence[Any], value_type: pa.DataType) -> tuple[pa.Array, Mapping[int, str]]:
    """Return values as an Arrow array; those that do not fit its type are null, with a reason.

    >>> to_column([{"a": 1}, {"a": 1 << 40}], pa.struct([("a", pa.int32())]))[1]
    {1: 'Value 1099511627776 too large to fit in C integer type'}
    """
    try:
        return pa.array(values, value_type), {}
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        pass  # look for those that do not fit
    fitting = list(values)
    misfits = {}
    for index, value in enumerate(values):
        try:
            pa.array([value], value_type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            misfits[index] = str(error)
            fitting[index] = None
    return pa.array(fitting, value_type), misfits


def _without(batch: pa.RecordBatch, skip: frozenset[tuple[int, int]]) -> pa.RecordBatch:
    """Return a batch without the records that are skipped."""
    if not skip:
        return batch
    places = zip(
        batch.column("partition").to_pylist(), batch.column("offset").to_pylist(), strict=True
    )
    return batch.filter(pa.array([place not in skip for place in places], pa.bool_()))
