"""A log as a stream: its records now, then those appended later, each offset once.

    frame = (
        spark.readStream.format("esker_log")
        .option("bootstrapController", "127.0.0.1:9093").option("log", "__diskless-metadata-0")
        .option("table", "object_commits").load()
    )

A stream's offset is `{clusterId, log, epoch, offset}`: everything below the offset was
read, and the record before it was of that epoch. Only committed records are read, and those never
change; so a batch that is read again after a crash is the same, and only the sink decides whether
rows are written twice (`spark_jobs.source.sink`).

The trap: the epoch is not needed to read. It detects a log that was restored from a backup, or
created again under the same name: the offsets look right, but the records are others. Then the
stream stops.

A log that begins with a checkpoint is read from there: `fromCheckpoint` says that the checkpoint at
the offset is still to be read.

Source: PySpark's DataSourceStreamReader (offsets are journaled before a batch runs, and batches
planned again from them); docs/design/pipeline.md#one-input.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from spark_jobs.readers.inputs import open_logs
from spark_jobs.readers.log_files import LostRangeError
from spark_jobs.readers.logs import HasCheckpoints, Log, Logs, Span
from spark_jobs.readers.spans import epoch_before, plan_spans, share_out
from spark_jobs.source.option_error import OptionError
from spark_jobs.source.options import CHECKPOINT, EARLIEST, LATEST, Options
from spark_jobs.source.span_partition import SpanPartition, read_partition

log = logging.getLogger("spark_jobs")

UNKNOWN_EPOCH: Final = -1

StreamOffset = dict[str, Any]
"""An offset as Spark journals it: flat, of numbers, text and booleans."""


class StreamError(Exception):
    """A stream would continue in another log than it began in."""


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads one table of one log as a stream: plans in a driver process, reads in tasks."""

    def __init__(self, options: Options) -> None:
        """Make a stream reader, and refuse options that only a batch read can have.

        Raises:  OptionError.
        """
        if options.start_offset is not None or options.end_offset is not None:
            raise OptionError(
                "startingOffsets: a stream takes this option, and no startOffset or endOffset"
            )
        self._options = options
        self._until: int | None = None  # of a run that ends: what was there when it began

    # --- offsets ------------------------------------------------------------------------------

    def initialOffset(self) -> StreamOffset:  # noqa: N802 (Spark's names)
        """Return the log offset where a new stream begins.

        Raises:  OptionError; LogsError; LostRangeError; OSError.
        """
        logs, name = self._open_logs()
        source, starting = logs.log(name), self._options.starting
        committed = source.end_offset()
        if starting == LATEST:
            return _stream_offset(logs, name, source, committed)
        if starting == CHECKPOINT:
            found = source.checkpoints() if isinstance(source, HasCheckpoints) else ()
            if not found:
                raise OptionError(f"startingOffsets: {name} has no checkpoint here")
            return _begin_with(logs, name, found[-1])
        if starting == EARLIEST:
            spans = source.spans(committed)
            if spans and spans[0].is_checkpoint:
                return _begin_with(logs, name, spans[0])
            return _stream_offset(logs, name, source, 0)
        assert isinstance(starting, int), f"not an offset: {starting}"
        if starting > committed:
            raise OptionError(f"startingOffsets: {name} is committed up to offset {committed} only")
        return _stream_offset(logs, name, source, starting)

    def latestOffset(self, start: StreamOffset, limit: ReadLimit) -> StreamOffset:  # noqa: N802
        """Return the log offset where the stream's next micro-batch ends.

        Raises:  StreamError; LogsError; LostRangeError; OSError.
        """
        logs, name = self._open_logs()
        _check_same(logs, name, start)
        source, offset = logs.log(name), int(start["offset"])
        end = source.end_offset()
        if self._until is not None:
            end = min(end, self._until)
        if isinstance(limit, ReadMaxRows):
            end = min(end, offset + limit.max_rows)
        if start["fromCheckpoint"]:
            return {**start, "fromCheckpoint": False}  # a batch of its own
        if end <= offset:  # nothing new, or a replica that is behind
            return start
        return _stream_offset(logs, name, source, end)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the greatest number of log offsets that one micro-batch reads.

        The table may have fewer rows.
        """
        most = self._options.max_offsets
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def reportLatestOffset(self) -> StreamOffset | None:  # noqa: N802
        """Return the log's end offset for the status of the streaming query."""
        logs, name = self._open_logs()
        return {"log": name, "offset": logs.log(name).end_offset()}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Limit this run of the streaming query to the records that the log holds at its start."""
        logs, name = self._open_logs()
        self._until = logs.log(name).end_offset()

    # --- batches ------------------------------------------------------------------------------

    def partitions(self, start: StreamOffset, end: StreamOffset) -> Sequence[InputPartition]:
        """Return the tasks that read the records between two log offsets.

        Raises:  StreamError; LostRangeError, unless `failOnDataLoss` is false; LogsError; OSError.
        """
        options = self._options
        logs, name = self._open_logs()
        _check_same(logs, name, start)
        source = logs.log(name)
        if start["fromCheckpoint"]:
            return [SpanPartition(name, (span,)) for span in self._checkpoint(source, name, start)]
        first, last = int(start["offset"]), int(end["offset"])
        if first >= last:
            return []
        _check_history(source, name, start)
        plan = plan_spans(
            source,
            name,
            last,
            start_offset=first,
            split_bytes=options.split_bytes,
            fail_on_data_loss=options.fail_on_data_loss,
        )
        for remark in plan.remarks:
            log.warning("%s", remark)
        tasks = share_out(plan.spans, options.task_bytes)
        return [SpanPartition(name, spans) for spans in tasks]

    def _checkpoint(self, source: Log, name: str, start: StreamOffset) -> Sequence[Span]:
        """Return a list with the one checkpoint that ends at the stream's start offset.

        Returns: an empty list if the checkpoint is lost and the options allow data loss.
        """
        offset = int(start["offset"])
        found = (
            source.checkpoints() if isinstance(source, HasCheckpoints) else source.spans(offset)[:1]
        )
        for span in found:
            if span.is_checkpoint and span.end_offset == offset:
                return [span]
        error = LostRangeError(name, 0, None, f"the checkpoint at {offset} was dropped meanwhile")
        if self._options.fail_on_data_loss:
            raise error
        log.warning("%s", error)
        return []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task's spans as Arrow batches.

        Raises:  as `spark_jobs.tables.arrow_batches.read_table`.
        """
        return read_partition(self._options, partition)

    def _open_logs(self) -> tuple[Logs, str]:
        logs = open_logs(self._options.inputs)
        names = self._options.chosen(logs)
        if len(names) != 1:
            raise OptionError(f"log: a stream reads one log; there are: {', '.join(names)}")
        return logs, names[0]


def _stream_offset(logs: Logs, name: str, source: Log, offset: int) -> StreamOffset:
    epoch = epoch_before(source, offset)
    return {
        "clusterId": logs.cluster_id,
        "log": name,
        "epoch": UNKNOWN_EPOCH if epoch is None else epoch,
        "offset": offset,
        "fromCheckpoint": False,
    }


def _begin_with(logs: Logs, name: str, checkpoint: Span) -> StreamOffset:
    return {
        "clusterId": logs.cluster_id,
        "log": name,
        "epoch": UNKNOWN_EPOCH,
        "offset": checkpoint.end_offset,
        "fromCheckpoint": True,
    }


def _check_same(logs: Logs, name: str, start: Mapping[str, Any]) -> None:
    """Raise StreamError unless the stream's offset belongs to this cluster and log."""
    if start["clusterId"] != logs.cluster_id:
        raise StreamError(
            f"the stream is at an offset of cluster {start['clusterId']}, and this one is "
            f"{logs.cluster_id}: use another checkpointLocation, or the logs it began with"
        )
    if start["log"] != name:
        raise StreamError(f"the stream is at an offset of {start['log']}, not of {name}")


def _check_history(source: Log, name: str, start: Mapping[str, Any]) -> None:
    """Raise StreamError if the epoch of the record before the stream's offset has changed."""
    offset, epoch = int(start["offset"]), int(start["epoch"])
    found = epoch_before(source, offset)
    if epoch != UNKNOWN_EPOCH and found is not None and found != epoch:
        raise StreamError(
            f"{name}: before offset {offset} the stream read a record of epoch {epoch}, now there "
            f"is one of epoch {found}: this is another log, restored or created again"
        )
