"""The markers of transactions as rows: how and when transactions ended in each partition.

A record has the markers of many transactions in many partitions; here each marker is a row. A row
without an offset is no marker in the partition: another transaction of its producer was open there,
and the record notes that the named one can have no batch any more.

Source: docs/design/transactions-batches.md#records.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from records.codec import decode_message
from records.compression import Buffer
from records.diskless import TransactionMarkersRecord
from records.frame import read_frame
from records.uuids import encode_uuid
from spark_jobs.readers.log_position import LogPosition
from spark_jobs.tables.commits import POSITION_FIELDS

MARKERS_KEY: Final = 1160

_COLUMNS: Final = {
    "partition": "partitions",
    "base_offset": "offsets",
    "producer_id": "producer_ids",
    "producer_epoch": "producer_epochs",
    "transaction_number": "transaction_numbers",
    "outcome": "outcomes",
    "coordinator_epoch": "coordinator_epochs",
    "first_offset": "first_offsets",
    "last_stable_offset": "last_stable_offsets",
}
"""The record's field of each column."""

MARKERS_SCHEMA: Final = pa.schema(
    [
        *POSITION_FIELDS,
        pa.field("written_at_ms", pa.int64(), nullable=False),
        pa.field("topic_id", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("base_offset", pa.int64(), nullable=False),  # of the marker; -1: it has none
        pa.field("producer_id", pa.int64(), nullable=False),
        pa.field("producer_epoch", pa.int16(), nullable=False),
        pa.field("transaction_number", pa.int64(), nullable=False),
        pa.field("outcome", pa.int8(), nullable=False),  # 0 aborted, 1 committed
        pa.field("coordinator_epoch", pa.int32(), nullable=False),
        pa.field("first_offset", pa.int64(), nullable=False),  # -1: no batch in this partition
        pa.field("last_stable_offset", pa.int64(), nullable=False),  # after the marker, exclusive
    ]
)
"""One row for each marker."""


class MarkerColumns:
    """Collects records of markers, and returns a row for each marker."""

    def __init__(self) -> None:
        self._columns: list[list[Any]] = [[] for _ in MARKERS_SCHEMA]

    @property
    def rows(self) -> int:
        """Return the number of rows that `add` collected and `take` has not returned yet."""
        return len(self._columns[0])

    def add(self, position: LogPosition, value: Buffer) -> None:
        """Collect the markers of one record, given its value with the frame.

        Raises:  RecordError.
        """
        _, version, body = read_frame(value)
        record = decode_message(TransactionMarkersRecord, bytes(value), version, body)
        topic_ids = [encode_uuid(topic_id) for topic_id in record.topic_ids]
        count = len(record.offsets)
        for column, one in zip(self._columns, (*position, record.written_at_ms), strict=False):
            column.extend([one] * count)
        of_markers = [
            [topic_ids[index] for index in record.topic_indexes],
            *(getattr(record, name) for name in _COLUMNS.values()),
        ]
        for column, values in zip(self._columns[-len(of_markers) :], of_markers, strict=True):
            column.extend(values)

    def take(self) -> pa.RecordBatch:
        """Return the rows that were added since the last call, in order."""
        columns, self._columns = self._columns, [[] for _ in MARKERS_SCHEMA]
        arrays = [
            pa.array(column, field.type)
            for column, field in zip(columns, MARKERS_SCHEMA, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=MARKERS_SCHEMA)
