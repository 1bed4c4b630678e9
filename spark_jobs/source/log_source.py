"""`esker_log`: the logs as a Spark data source.

    spark.dataSource.register(EskerLog)
    commits = (
        spark.read.format("esker_log")
        .option("bootstrapController", "127.0.0.1:9093")
        .option("table", "object_commits")
        .load()
    )

One table a frame, so that its columns are flat and typed; `record` is all records, undecoded. A
task reads whole batches of one piece of one log and hands Arrow batches over. Columns that are not
asked for (`columns`) cross no process border: Spark itself prunes none of a Python source.

The surprise: Spark refuses a reader that could take filters, in a session whose
`spark.sql.python.filterPushdown.enabled` is off, as it is by default; the sessions of
`spark_jobs.session.spark_session` have it on, others say `pushFilters=false`. What is taken are
bounds of `log_offset`, and sets of `type` and `log`: they decide which bytes are read and decoded.

Source: PySpark's Python Data Source API; docs/design/pipeline.md#one-input.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from spark_jobs.readers.inputs import open_logs
from spark_jobs.readers.logs import Span
from spark_jobs.readers.spans import ReadPlan, plan_spans, share_out
from spark_jobs.source.options import LAST, OptionError, Options, parse_options
from spark_jobs.tables.arrow_batches import read_table
from spark_jobs.tables.schemas import RECORD
from spark_jobs.tables.views import COVERAGE, UNKNOWN, schema_named

log = logging.getLogger("spark_jobs")

NAME: Final = "esker_log"
LOG_COLUMN: Final = "log"
OFFSET_COLUMN: Final = "log_offset"
TYPE_COLUMN: Final = "type"


@dataclass
class SpanPartition(InputPartition):
    """One task: neighbours of one log."""

    log: str
    spans: tuple[Span, ...]


class EskerLog(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        """For `format`."""
        return NAME

    def schema(self) -> StructType:
        """Of the table and the columns asked for."""
        return from_arrow_schema(arrow_schema(parse_options(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 (Spark's keyword)
        """A reader of what is there now."""
        options = parse_options(self.options)
        return PushingReader(options) if options.push_filters else LogReader(options)

    def streamReader(  # noqa: N802 (Spark's name)
        self,
        schema: StructType,  # noqa: ARG002 (Spark's keyword)
    ) -> DataSourceStreamReader:
        """A reader of what is there and what comes."""
        from spark_jobs.source.stream import LogStreamReader

        return LogStreamReader(parse_options(self.options))


def arrow_schema(options: Options) -> pa.Schema:
    """The log's name, then the table's columns, as far as they are asked for."""
    whole = schema_named(options.table)
    log_field = pa.field(LOG_COLUMN, pa.string(), nullable=False)
    return pa.schema(
        [log_field if name == LOG_COLUMN else whole.field(name) for name in options.columns]
    )


def read_partition(options: Options, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """What one task hands over. Raises as `spark_jobs.tables.arrow_batches.read_table`.

    Where there is nothing to read, Spark makes up a partition of nothing, and a task for it.
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


class LogReader(DataSourceReader):
    """Reads one table of some logs. Planned in one process, pickled, read in others."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def plans(self) -> Iterator[ReadPlan]:
        """Log by log. Raises LogsError; LostRangeError; OptionError; OSError."""
        options = self._options
        logs = open_logs(options.inputs)
        for name in options.chosen(logs):
            one = logs.log(name)
            committed = one.end_offset()
            end = committed if options.end_offset is None else options.end_offset
            for option, offset in (("startOffset", options.start_offset), ("endOffset", end)):
                if offset is not None and offset > committed:
                    raise OptionError(
                        f"{option}: of {name} {committed} offsets can be read, not {offset}"
                    )
            yield plan_spans(
                one,
                name,
                end,
                start_offset=options.start_offset,
                split_bytes=options.split_bytes,
                fail_on_data_loss=options.fail_on_data_loss,
            )

    def partitions(self) -> Sequence[InputPartition]:
        """Raises as `plans`."""
        found: list[InputPartition] = []
        for plan in self.plans():
            for remark in plan.remarks:
                log.warning("%s", remark)
            narrowed = [
                span.within(self._options.lowest, self._options.highest) for span in plan.spans
            ]
            tasks = share_out(
                (span for span in narrowed if span is not None), self._options.task_bytes
            )
            found += [SpanPartition(plan.log, spans) for spans in tasks]
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raises as `spark_jobs.tables.arrow_batches.read_table`."""
        return read_partition(self._options, partition)


class PushingReader(LogReader):
    """A reader that takes from Spark's filters what decides which bytes are read."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's name)
        """Narrow what is read; the others are Spark's to apply."""
        for one in filters:
            narrowed = _narrowed(self._options, one)
            if narrowed is None:
                yield one
            else:
                self._options = narrowed


def _narrowed(options: Options, one: Filter) -> Options | None:
    """What is read if a filter is taken; None if it is not for us."""
    attribute: Any = getattr(one, "attribute", None)
    if attribute == (OFFSET_COLUMN,):
        bounds = _bounds(one)
        if bounds is None:
            return None
        lowest, highest = bounds
        return replace(
            options,
            lowest=max(lowest, options.lowest),
            highest=min(highest, options.highest),
        )
    chosen = _chosen(one)
    if chosen is None:
        return None
    if attribute == (TYPE_COLUMN,) and options.table in (RECORD, UNKNOWN):
        types = frozenset(chosen)
        return replace(options, types=types if options.types is None else types & options.types)
    if attribute == (LOG_COLUMN,):
        only = frozenset(chosen)
        before = options.only_logs
        return replace(options, only_logs=only if before is None else only & before)
    return None


def _chosen(one: Filter) -> tuple[Any, ...] | None:
    """The values that pass."""
    match one:
        case EqualTo():
            return (one.value,)
        case In():
            return tuple(one.value)
    return None


def _bounds(one: Filter) -> tuple[int, int] | None:
    """The log offsets that pass, both inclusive; None if they are no range."""
    value: Any = getattr(one, "value", None)
    if not isinstance(value, int):
        return None
    match one:
        case EqualTo():
            return value, value
        case GreaterThan():
            return value + 1, LAST
        case GreaterThanOrEqual():
            return value, LAST
        case LessThan():
            return 0, value - 1
        case LessThanOrEqual():
            return 0, value
    return None
