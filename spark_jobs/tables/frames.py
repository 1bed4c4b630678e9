"""State at an offset as DataFrames, computed piece by piece and never whole in one process.

    frames = state_frames(spark, logs.log("__diskless-metadata-0"), timestamp_ms=yesterday)
    frames.runs.groupBy("topic_id").sum("byte_size").show()

Two passes over the log. The first collects its changes: what was made, trimmed, removed, forgotten;
not one row for what was appended. They are sent along with the second, in which each task turns the
batches of its piece into runs and keeps the live ones. No shuffle is needed for that: a commit is
one record, so an object and all its runs are in one piece. Spark merges only what crosses
pieces: high watermarks, and the last batches of producers.

Every frame reads the log again when it is used; one that is used twice should be cached.

Source: docs/design/pipeline.md#one-input; the tables are those of
`spark_jobs.tables.log_state`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa

from records.compression import Buffer
from records.frame import decode_record
from spark_jobs.readers.engines import SparkEngine
from spark_jobs.readers.log_position import LogPosition
from spark_jobs.readers.logs import Log, Span
from spark_jobs.tables.coordinator_log import CHANGE_KEYS, CoordinatorLog, fold
from spark_jobs.tables.log_state import (
    OBJECTS_SCHEMA,
    PARTITIONS_SCHEMA,
    RUNS_SCHEMA,
    TOPICS_SCHEMA,
    LogState,
    StateGoneError,
    span_of_state,
    state_of_changes,
    state_of_piece,
)
from spark_jobs.tables.producers import KEPT_BATCHES, PRODUCERS_SCHEMA

PIECE: Final = "piece"
_LISTS: Final = ("base_sequences", "last_sequences", "base_offsets", "append_times")
_KEY: Final = ("topic_id", "partition", "producer_id")


@dataclass(frozen=True, slots=True)
class StateFrames:
    """A state as unordered DataFrames, with the columns of `LogState`; `offset` is exclusive.

    Transactions and aborted entries are in `LogState` only.
    """

    offset: int
    topics: Any
    partitions: Any
    runs: Any
    objects: Any
    producers: Any


def state_frames(
    spark: Any, log: Log, offset: int | None = None, *, timestamp_ms: int | None = None
) -> StateFrames:
    """Compute a coordinator's state at an offset, at a time, or at the end of the log.

    Args, Raises:  as `spark_jobs.tables.log_state.state_at`; what tasks raise comes as
    LogsError.
    """
    end, spans = span_of_state(log, offset)
    if timestamp_ms is not None:
        end, spans = _until(spark, spans, timestamp_ms, end)
    changes = _changes(spark, spans)
    small = state_of_changes(changes, end)
    partitions = small.partitions
    mapped = partial(_map_pieces, spark, spans, changes)
    ends = mapped(_watermarks, "topic_id string, partition int, seen bigint")
    return StateFrames(
        end,
        spark.createDataFrame(small.topics, _ddl(TOPICS_SCHEMA)),
        _with_watermarks(spark.createDataFrame(partitions, _ddl(PARTITIONS_SCHEMA)), ends),
        mapped(_runs, _ddl(RUNS_SCHEMA)),
        _with_orphans(
            mapped(_objects, _ddl(OBJECTS_SCHEMA)),
            spark.createDataFrame(small.objects, _ddl(OBJECTS_SCHEMA)),
        ),
        _merge_producers(mapped(_producers, f"{PIECE} int, {_ddl(PRODUCERS_SCHEMA)}")),
    )


# --- first pass -----------------------------------------------------------------------------------


def _until(
    spark: Any, spans: Sequence[Span], timestamp_ms: int, end: int
) -> tuple[int, list[Span]]:
    """Return the offset of the first record after a time, and the spans before that offset."""
    later = SparkEngine(spark).run(partial(_first_later, timestamp_ms), spans)
    stop = next((offset for offset in later if offset is not None), end)
    found = [
        span if span.is_checkpoint else span.within(0, stop - 1)
        for span in spans
        if span.is_checkpoint or span.start_offset < stop
    ]
    return stop, [span for span in found if span is not None]


def _first_later(timestamp_ms: int, span: Span) -> int | None:
    for position, _ in span.values():
        if position.timestamp_ms > timestamp_ms:
            if position.from_checkpoint:
                raise StateGoneError(f"time {timestamp_ms}", position.offset + 1)
            return position.offset
    return None


def _changes(spark: Any, spans: Sequence[Span]) -> CoordinatorLog:
    log = CoordinatorLog()
    for records in SparkEngine(spark).run(_changes_of, spans):
        for offset, value in records:
            log.apply(offset, decode_record(value))
    return log


def _changes_of(span: Span) -> list[tuple[int, bytes]]:
    records: list[tuple[int, bytes]] = []

    def keep(position: LogPosition, value: Buffer) -> None:
        records.append((position.offset, bytes(value)))

    fold(span.values(), dict.fromkeys(CHANGE_KEYS, keep))
    return records


# --- second pass: of one piece --------------------------------------------------------------------


def _map_pieces(
    spark: Any,
    spans: Sequence[Span],
    changes: CoordinatorLog,
    table: Callable[[int, LogState], pa.Table],
    schema: str,
) -> Any:
    """Compute a table of each span's state in Spark, and return all rows as one DataFrame."""
    pickled, known = [pickle.dumps(span) for span in spans], pickle.dumps(changes)

    def tables(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                state = state_of_piece(
                    pickle.loads(pickled[number]), pickle.loads(known), is_first=number == 0
                )
                yield from table(number, state).to_batches()

    return spark.range(0, len(spans), 1, max(1, len(spans))).mapInArrow(tables, schema)


def _runs(_: int, state: LogState) -> pa.Table:
    return state.runs


def _objects(_: int, state: LogState) -> pa.Table:
    return state.objects


def _watermarks(_: int, state: LogState) -> pa.Table:
    return state.partitions.select(["topic_id", "partition", "high_watermark"])


def _producers(number: int, state: LogState) -> pa.Table:
    pieces = pa.array([number] * state.producers.num_rows, pa.int32())
    return state.producers.add_column(0, pa.field(PIECE, pa.int32()), pieces)


# --- what crosses pieces --------------------------------------------------------------------------


def _with_watermarks(partitions: Any, ends: Any) -> Any:
    from pyspark.sql import functions as f

    highest = ends.groupBy("topic_id", "partition").agg(f.max("seen").alias("seen"))
    higher = f.coalesce(f.greatest("high_watermark", "seen"), f.col("high_watermark"))
    return (
        partitions.join(highest, ["topic_id", "partition"], "left")
        .withColumn("high_watermark", higher)
        .select(*PARTITIONS_SCHEMA.names)
    )


def _with_orphans(objects: Any, orphans: Any) -> Any:
    """Add the orphans that listings of the store found, except those that were committed."""
    return objects.unionByName(orphans.join(objects.select("object_id"), "object_id", "left_anti"))


def _merge_producers(parts: Any) -> Any:
    """Merge each producer's last batches in each partition from all spans of the log.

    Its epoch never falls while it is remembered, so the highest is the last; and what was appended
    before it was forgotten, no piece tells of.
    """
    from pyspark.sql import functions as f

    highest = parts.groupBy(*_KEY).agg(
        f.max("producer_epoch").alias("producer_epoch"),
        f.max_by("appended_at_ms", PIECE).alias("newest"),  # a marker may have a lower epoch
    )
    last = parts.join(highest, [*_KEY, "producer_epoch"])
    columns = [PIECE, *_LISTS]
    gathered = last.groupBy(*_KEY, "producer_epoch", "newest").agg(
        f.sort_array(f.collect_list(f.struct(*columns))).alias("all")
    )
    kept = [
        f.slice(f.reverse(f.flatten(f"all.{name}")), 1, KEPT_BATCHES).alias(name) for name in _LISTS
    ]
    newest = f.col("newest").alias("appended_at_ms")
    reversed_lists = gathered.select(*_KEY, "producer_epoch", newest, *kept)
    return reversed_lists.select(
        *_KEY, "producer_epoch", "appended_at_ms", *(f.reverse(name).alias(name) for name in _LISTS)
    )


_TYPES: Final = {
    pa.string(): "string",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
}


def _ddl(schema: pa.Schema) -> str:
    """Format an Arrow schema as a DDL string of Spark."""
    return ", ".join(f"{field.name} {_ddl_type(field.type)}" for field in schema)


def _ddl_type(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"array<{_TYPES[kind.value_type]}>"
    return _TYPES[kind]
