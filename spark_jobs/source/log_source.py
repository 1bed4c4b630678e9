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
chosen (`columns`) cross no process border: Spark itself prunes none of a Python source.

The trap: Spark refuses a reader that could take filters, in a session whose
`spark.sql.python.filterPushdown.enabled` is off, as it is by default; the sessions of
`spark_jobs.session.spark_session` have it on, others say `pushFilters=false`. What is taken are
bounds of `log_offset`, and sets of `type` and `log`: they decide which bytes are read and decoded.

Source: PySpark's Python Data Source API; docs/design/pipeline.md#one-input.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
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
from spark_jobs.readers.spans import ReadPlan, plan_spans, share_out
from spark_jobs.source.option_error import OptionError
from spark_jobs.source.options import LAST, Options, parse_options
from spark_jobs.source.span_partition import (
    LOG_COLUMN,
    SpanPartition,
    arrow_schema,
    read_partition,
)
from spark_jobs.source.stream import LogStreamReader
from spark_jobs.tables.schemas import RECORD
from spark_jobs.tables.views import UNKNOWN

log = logging.getLogger("spark_jobs")

NAME: Final = "esker_log"
OFFSET_COLUMN: Final = "log_offset"
TYPE_COLUMN: Final = "type"


class EskerLog(DataSource):
    """The data source `esker_log`."""

    @classmethod
    def name(cls) -> str:
        """Return the name by which Spark's `format(...)` finds this source."""
        return NAME

    def schema(self) -> StructType:
        """Return the schema of the chosen table and columns."""
        return from_arrow_schema(arrow_schema(parse_options(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 (Spark's keyword)
        """Return a reader of the records that the logs hold when the query begins."""
        options = parse_options(self.options)
        return PushingReader(options) if options.push_filters else LogReader(options)

    def streamReader(  # noqa: N802 (Spark's name)
        self,
        schema: StructType,  # noqa: ARG002 (Spark's keyword)
    ) -> DataSourceStreamReader:
        """Return a reader of the records that the logs hold, and of records appended later."""
        return LogStreamReader(parse_options(self.options))


class LogReader(DataSourceReader):
    """Reads one table of some logs. Planned in one process, pickled, read in others."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def plans(self) -> Iterator[ReadPlan]:
        """Yield, for each chosen log, the plan of the spans to read.

        Raises:  LogsError; LostRangeError; OptionError; OSError.
        """
        options = self._options
        logs = open_logs(options.inputs)
        for name in options.chosen(logs):
            source = logs.log(name)
            committed = source.end_offset()
            end = committed if options.end_offset is None else options.end_offset
            for option, offset in (("startOffset", options.start_offset), ("endOffset", end)):
                if offset is not None and offset > committed:
                    raise OptionError(
                        f"{option}: {name} ends at offset {committed}, below {offset}"
                    )
            yield plan_spans(
                source,
                name,
                end,
                start_offset=options.start_offset,
                split_bytes=options.split_bytes,
                fail_on_data_loss=options.fail_on_data_loss,
            )

    def partitions(self) -> Sequence[InputPartition]:
        """Return one Spark partition for each task that reads planned spans.

        Raises:  as `plans`.
        """
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
        """Yield the rows of a task's spans as Arrow batches.

        Raises:  as `spark_jobs.tables.arrow_batches.read_table`.
        """
        return read_partition(self._options, partition)


class PushingReader(LogReader):
    """A reader that applies those of Spark's filters that decide which bytes are read."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's name)
        """Apply filters to the read options, and yield the filters that are left to Spark."""
        for pushed in filters:
            narrowed = _narrow(self._options, pushed)
            if narrowed is None:
                yield pushed
            else:
                self._options = narrowed


def _narrow(options: Options, pushed: Filter) -> Options | None:
    """Return the options narrowed by a Spark filter, or None if only Spark can apply the filter."""
    attribute: Any = getattr(pushed, "attribute", None)
    if attribute == (OFFSET_COLUMN,):
        bounds = _passing_offsets(pushed)
        if bounds is None:
            return None
        lowest, highest = bounds
        return replace(
            options,
            lowest=max(lowest, options.lowest),
            highest=min(highest, options.highest),
        )
    chosen = _passing_values(pushed)
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


def _passing_values(pushed: Filter) -> tuple[Any, ...] | None:
    """Return the values that an equality or list filter lets pass, or None for other filters."""
    match pushed:
        case EqualTo():
            return (pushed.value,)
        case In():
            return tuple(pushed.value)
    return None


def _passing_offsets(pushed: Filter) -> tuple[int, int] | None:
    """Return the lowest and highest log offset that a filter lets pass; None for an open bound."""
    value: Any = getattr(pushed, "value", None)
    if not isinstance(value, int):
        return None
    match pushed:
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
