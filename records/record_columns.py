"""Checks many records of a producer's batch at once, with NumPy.

`records.record_checks` calls this once NumPy is imported, and says what is wrong with a record.

Source: KIP-98, Message Format; docs/design/broker.md#validation.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from records.record_block import (
    MalformedRecordError,
    RecordFields,
    follow_records,
    read_fields,
    read_varints,
)
from records.varint_columns import Numbers

MOST_HEADERS: Final = 8
"""A record with more headers leaves its slice to the loop: each costs some calls of NumPy."""


def check_columns(data: bytes, position: int, first: int, stop: int) -> tuple[int, int, int] | None:
    """Check the records with offset deltas from `first` to `stop`, exclusive, all at once.

    Returns: the least and greatest timestamp delta, and the last record's end; None if a record may
             be wrong, or has many headers.
    """
    try:
        ends_list = follow_records(data, position, stop - first)
        ends = np.array(ends_list, np.int64)
        starts = np.empty_like(ends)
        starts[0], starts[1:] = position, ends[:-1]
        if ends_list[-1] > len(data) or (starts >= ends).any():
            return None
        fields = read_fields(data, starts, ends)
        if not np.array_equal(fields.offset_deltas, np.arange(first, stop)):
            return None
        if not _headers_fill(data, fields, ends):
            return None
    except (MalformedRecordError, ValueError, IndexError):
        return None
    deltas = fields.timestamp_deltas
    return int(deltas.min()), int(deltas.max()), ends_list[-1]


def _headers_fill(data: bytes, fields: RecordFields, ends: Numbers) -> bool:
    """Return whether the headers of each record end where the record ends.

    Raises:  MalformedRecordError; ValueError for a varint that is too long.
    """
    raw = np.frombuffer(data, np.uint8)
    left, positions = read_varints(raw, fields.value_ends)
    if (left < 0).any():
        return False
    for _ in range(MOST_HEADERS):
        has_header = left > 0
        if not has_header.any():
            break
        is_ended = ~has_header
        if not np.array_equal(positions[is_ended], ends[is_ended]):
            return False
        left, positions, ends = left[has_header] - 1, positions[has_header], ends[has_header]
        key_sizes, positions = read_varints(raw, positions)
        positions = positions + key_sizes
        if ((key_sizes < 0) | (positions >= ends)).any():
            return False
        value_sizes, positions = read_varints(raw, positions)
        positions = positions + np.maximum(value_sizes, 0)
        if ((value_sizes < -1) | (positions > ends)).any():
            return False
    return not left.any() and np.array_equal(positions, ends)
