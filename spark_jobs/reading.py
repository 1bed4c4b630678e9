"""From a log's bytes to a table's Arrow batches: what one task does.

    for batch in read_table("object_commit", span): ...

Source: DESIGN §10.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from records.frame import read_frame
from spark_jobs.logs import Span
from spark_jobs.tables import columns_of

BATCH_ROWS: Final = 50_000
"""Of an Arrow batch, or a record's worth more: larger ones gain nothing, smaller ones cost."""


def read_table(table: str, span: Span, *, batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
    """The rows of a table that a span holds, in the log's order.

    Records of other types are passed over; those that cannot be decoded are an error, because a
    committed record that is not what it should be is damage.

    Raises:  TableError; LostRangeError; DamagedFileError, RecordError; OSError.
    """
    columns, key = columns_of(table)
    for place, value in span.values():
        if key is None or read_frame(value)[0] == key:
            columns.add(place, value)
            if columns.rows >= batch_rows:
                yield columns.take()
    if columns.rows:
        yield columns.take()
