"""Reads a span of a log as Arrow batches of one table: the work of one task.

    for batch in read_table("object_commit", span): ...

Source: docs/design/pipeline.md#one-input.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from typing import Final

import pyarrow as pa

from records.errors import UnsupportedVersionError
from records.frame import METADATA_RECORDS, read_frame
from spark_jobs.readers.logs import Span
from spark_jobs.tables.views import columns_named, versions_named

log = logging.getLogger("spark_jobs")

BATCH_ROWS: Final = 50_000
"""Rows of an Arrow batch, exceeded by at most one record: larger batches gain nothing."""


def read_table(
    table: str,
    span: Span,
    *,
    batch_rows: int = BATCH_ROWS,
    types: Collection[int] | None = None,
    skip_unknown: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield a span's rows of a table or view, in the log's order.

    Records of other types are passed over. Those that cannot be decoded are an error, because a
    committed record that is not what it should be is damage.

    Args:    types: of records; others are passed over, too. None: all that the table is for.
             skip_unknown: pass over records of versions that are not known here, and say how many;
             otherwise they are an error. `record` and `unknown` have their bytes.
    Raises:  TableError; UnsupportedVersionError; LostRangeError; DamagedFileError, RecordError;
             OSError.
    """
    columns, only = columns_named(table)
    versions = versions_named(table)
    passed_over = 0
    for position, value in span.values():
        key, version, _ = read_frame(value)
        if (only is not None and key != only) or (types is not None and key not in types):
            continue
        if versions is not None and version not in versions:
            if not skip_unknown:
                name = METADATA_RECORDS[key].schema().name
                raise UnsupportedVersionError(
                    message=name, version=version, supported=str(versions)
                )
            passed_over += 1
            continue
        columns.add(position, value)
        if columns.rows >= batch_rows:
            yield columns.take()
    if columns.rows:
        yield columns.take()
    if passed_over:
        log.warning(
            "table=%s offsets=%d-%d unknown_versions=%d: skipped; table unknown has them",
            table, span.start_offset, span.end_offset, passed_over,
        )  # fmt: skip
