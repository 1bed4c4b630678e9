"""One Spark task of the `esker_log` source: neighbouring spans of one log, read as Arrow batches.

Source: PySpark's Python Data Source API; docs/design/pipeline.md#one-input.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from spark_jobs.readers.logs import Span
from spark_jobs.source.options import Options
from spark_jobs.tables.arrow_batches import read_table
from spark_jobs.tables.views import COVERAGE, schema_named

LOG_COLUMN: Final = "log"


@dataclass
class SpanPartition(InputPartition):
    """One task: neighbouring spans of one log."""

    log: str
    spans: tuple[Span, ...]


def arrow_schema(options: Options) -> pa.Schema:
    """Return the Arrow schema of the chosen columns, which may include the log's name."""
    whole = schema_named(options.table)
    log_field = pa.field(LOG_COLUMN, pa.string(), nullable=False)
    return pa.schema(
        [log_field if name == LOG_COLUMN else whole.field(name) for name in options.columns]
    )


def read_partition(options: Options, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task's spans as Arrow batches.

    Where there is nothing to read, Spark invents an empty partition, and a task for it.

    Raises:  as `spark_jobs.tables.arrow_batches.read_table`.
    """
    if type(partition) is InputPartition and partition.value is None:
        return
    assert isinstance(partition, SpanPartition), f"not ours: {partition}"
    schema = arrow_schema(options)
    for span in partition.spans:
        for batch in _batches(options, span):
            arrays = [
                pa.repeat(pa.scalar(partition.log, pa.string()), batch.num_rows)
                if name == LOG_COLUMN
                else batch.column(name)
                for name in options.columns
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _batches(options: Options, span: Span) -> Iterable[pa.RecordBatch]:
    if options.table != COVERAGE:
        return read_table(
            options.table, span, types=options.types, skip_unknown=options.skip_unknown
        )
    rows = {
        "from_checkpoint": [span.is_checkpoint],
        "start_offset": [span.start_offset],
        "end_offset": [span.end_offset],
    }
    return [pa.RecordBatch.from_pydict(rows)]
