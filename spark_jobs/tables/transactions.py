"""The effective records of the cluster's log: a transaction's changes count together or not at all.

Between a begin and an end nothing has happened yet; after an abort it never did. The trap is the
log's end: an open transaction there is left out, though it may end with the next record.

Source: KIP-868, metadata transactions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from records.metadata import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
)
from spark_jobs.readers.log_position import LogPosition

MARKS: Final = (BeginTransactionRecord, EndTransactionRecord, AbortTransactionRecord)


def effective_records(
    records: Iterable[tuple[LogPosition, Any]],
) -> Iterator[tuple[LogPosition, Any]]:
    """Yield a transaction's records when the transaction ends, and other records immediately."""
    open_ones: list[tuple[LogPosition, Any]] | None = None
    for position, record in records:
        match record:
            case BeginTransactionRecord():
                open_ones = []
            case AbortTransactionRecord():
                open_ones = None
            case EndTransactionRecord():
                yield from open_ones or ()
                open_ones = None
            case _ if open_ones is not None:
                open_ones.append((position, record))
            case _:
                yield position, record
