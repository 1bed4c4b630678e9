"""`esker_log`: the log as a Spark data source.

    spark.dataSource.register(EskerLog)
    frame = (
        spark.read.format("esker_log")
        .option("path", "/var/lib/esker/__diskless-metadata-0")
        .option("endOffset", 120_000)
        .option("table", "object_commit")
        .load()
    )

One table a frame, so that its columns are flat and typed; `record` is all records, undecoded. A
task reads whole batches of one file and hands Arrow batches over. Columns that are not asked for
(`columns`) cross no process border: Spark itself prunes none of a Python source.

The surprise: filters are pushed down only where `pushFilters` says so, because Spark refuses a
reader that could, in a session whose `spark.sql.python.filterPushdown.enabled` is off, as it is by
default. What is pushed are bounds of `log_offset`: they decide which bytes are read.

Source: PySpark's Python Data Source API; DESIGN §10.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from spark_jobs.log_files import SPLIT_BYTES, LogFiles
from spark_jobs.logs import Span
from spark_jobs.reading import read_table
from spark_jobs.tables import RECORD, schema_of

NAME: Final = "esker_log"
OFFSET_COLUMN: Final = "log_offset"
_LAST: Final = (1 << 63) - 1

OPTIONS: Final[Mapping[str, str]] = {
    "path": "the log's directory below a replica's log directory",
    "table": "which records: a table's name, by default `record`",
    "columns": "comma separated; default: all of the table",
    "startOffset": "the first offset (inclusive); default: from the newest checkpoint needed",
    "endOffset": "where the committed part ends (exclusive)",
    "splitBytes": "of log that one task reads",
    "pushFilters": "true in a session that allows it: offset bounds decide what is read",
}


class OptionError(ValueError):
    """An option is missing, unknown or impossible. The message names it."""


@dataclass(frozen=True, slots=True)
class Options:
    """What is read."""

    path: Path
    table: str
    columns: tuple[str, ...]
    start_offset: int | None
    end_offset: int
    split_bytes: int
    push_filters: bool
    lowest: int = 0  # offsets of rows that a filter lets through: [lowest, highest]
    highest: int = _LAST


def parse_options(options: Mapping[str, str]) -> Options:
    """Raises OptionError; TableError for an unknown table."""
    known = {name.lower(): name for name in OPTIONS}
    given = {}
    for name, text in options.items():
        if name.lower() not in known:
            raise OptionError(f"{name}: no such option; there are: {', '.join(OPTIONS)}")
        given[known[name.lower()]] = text
    if "path" not in given:
        raise OptionError(f"path: must be given: {OPTIONS['path']}")
    if "endOffset" not in given:
        raise OptionError(f"endOffset: must be given: {OPTIONS['endOffset']}")
    table = given.get("table", RECORD)
    names = schema_of(table).names
    columns = tuple(part.strip() for part in given.get("columns", "").split(",") if part.strip())
    for column in columns:
        if column not in names:
            raise OptionError(f"columns: {table} has no {column}; it has: {', '.join(names)}")
    return Options(
        path=Path(given["path"]),
        table=table,
        columns=columns or tuple(names),
        start_offset=_number(given, "startOffset"),
        end_offset=_number(given, "endOffset") or 0,
        split_bytes=_number(given, "splitBytes") or SPLIT_BYTES,
        push_filters=given.get("pushFilters", "false").lower() == "true",
    )


def _number(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise OptionError(f"{name}: {text!r} is no number from 0 on")
    return value


@dataclass
class SpanPartition(InputPartition):
    """One task."""

    span: Span


class EskerLog(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        """For `format`."""
        return NAME

    def schema(self) -> StructType:
        """Of the table and the columns asked for."""
        return from_arrow_schema(_schema(parse_options(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 (Spark's keyword)
        """A reader of what is there now."""
        options = parse_options(self.options)
        return PushingReader(options) if options.push_filters else LogReader(options)


def _schema(options: Options) -> pa.Schema:
    whole = schema_of(options.table)
    return pa.schema([whole.field(name) for name in options.columns])


class LogReader(DataSourceReader):
    """Reads one table of one log. Planned in one process, pickled, read in others."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Raises LostRangeError; OSError."""
        options = self._options
        spans = LogFiles(options.path).spans(
            options.end_offset, start_offset=options.start_offset, split_bytes=options.split_bytes
        )
        narrowed = (span.within(options.lowest, options.highest) for span in spans)
        return [SpanPartition(span) for span in narrowed if span is not None]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raises as `spark_jobs.reading.read_table`."""
        assert isinstance(partition, SpanPartition), f"not ours: {partition}"
        names = list(self._options.columns)
        for batch in read_table(self._options.table, partition.span):
            yield batch if names == batch.schema.names else batch.select(names)


class PushingReader(LogReader):
    """A reader that takes bounds of offsets from Spark's filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's name)
        """Narrow what is read; those that are not bounds of offsets are Spark's to apply."""
        for one in filters:
            bounds = _bounds(one)
            if bounds is None:
                yield one
                continue
            lowest, highest = bounds
            options = self._options
            self._options = replace(
                options,
                lowest=max(lowest, options.lowest),
                highest=min(highest, options.highest),
            )


def _bounds(one: Filter) -> tuple[int, int] | None:
    """The log offsets that pass, both inclusive; None if the filter is about something else."""
    attribute: Any = getattr(one, "attribute", None)
    value: Any = getattr(one, "value", None)
    if attribute != (OFFSET_COLUMN,) or not isinstance(value, int):
        return None
    match one:
        case EqualTo():
            return value, value
        case GreaterThan():
            return value + 1, _LAST
        case GreaterThanOrEqual():
            return value, _LAST
        case LessThan():
            return 0, value - 1
        case LessThanOrEqual():
            return 0, value
    return None
