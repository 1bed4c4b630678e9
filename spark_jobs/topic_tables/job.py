"""Keeps one topic as an Iceberg table: batch after batch, each record once.

    job = TopicJob(settings, "orders", catalog, LocalEngine())
    job.start()
    while job.step().rows: ...

The table is the job's memory: it says where the next batch begins. A step plans the next offsets,
has tasks write files, and commits files and offsets together. Killed anywhere, the next start goes
on from the last commit.

Source: docs/design/tables.md.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, Protocol

import pyarrow as pa
from pyiceberg.catalog import Catalog

from spark_jobs.readers.engines import Engine
from spark_jobs.topic_tables.iceberg_table import (
    DataFile,
    IcebergTable,
    PartitionBy,
    TableError,
)
from spark_jobs.topic_tables.progress import BACKFILL, RUN, Progress, ProgressError
from spark_jobs.topic_tables.rows import DEAD_LETTER_COLUMNS, KAFKA_COLUMNS, READ_COLUMNS
from spark_jobs.topic_tables.schemas import Values
from spark_jobs.topic_tables.value_types import SchemaError
from spark_jobs.topic_tables.writing import Output, WriteTask, Written, write_task
from spark_jobs.topics.coordinates import (
    Bounds,
    CoordinatesError,
    LostOffsetsError,
    TopicPartition,
    Wanted,
)
from spark_jobs.topics.options import Options, parse_options
from spark_jobs.topics.planning import check_ranges, open_coordinates, plan
from spark_jobs.topics.records_stream import limit_ends

OnBadRecord = Literal["dead-letter", "fail", "skip"]

DEAD_LETTERS: Final = "_dead_letters"
"""End of the name of a table's dead-letter table."""

TOPIC: Final = "esker.topic"
"""Property of a table: its topic's name."""

MAX_RECORDS: Final = 5_000_000
"""Offsets of one batch at the most: what a crash makes the next start read again."""

SCHEMA_ROUNDS: Final = 100
"""Times that the tasks of one batch may meet schemas that are new to the driver."""


class Job(Protocol):
    """Keeps one topic as a table, or as a directory of files."""

    def start(self) -> None:
        """Begin, or go on from where the table is."""
        ...

    def step(self) -> Step:
        """Take the table on by one batch, or do nothing if no record is missing."""
        ...


class JobError(Exception):
    """A topic cannot go on; the message says why, and what its owner can do."""


def is_lasting(error: Exception) -> bool:
    """Return whether another attempt would fail in the same way, until somebody does something."""
    return isinstance(
        error,
        JobError
        | TableError
        | ProgressError
        | SchemaError
        | LostOffsetsError
        | ValueError
        | TypeError,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """What is the same for all topics of a run."""

    source: Mapping[str, str]  # options of `esker_records`, but for topics and columns
    namespace: tuple[str, ...]
    partition_by: PartitionBy = "day"
    on_bad_record: OnBadRecord = "dead-letter"
    starting: Literal["earliest", "latest"] = "earliest"  # of a table that is made
    max_records: int = MAX_RECORDS


class Lag(NamedTuple):
    """How far a table is behind its topic."""

    records: int
    seconds: float  # 0 if no record is missing, else the age of the newest one that is there


class Step(NamedTuple):
    """What a step did."""

    rows: int
    bad: int
    offsets: int  # by which the table went on
    lag: Lag
    seconds: float
    first_bad: str | None = None


@dataclass(slots=True)
class TopicJob:
    """The driver of one topic's table."""

    settings: JobSettings
    topic: str
    catalog: Catalog
    engine: Engine
    values: Values
    backwards: bool = False  # from where the table began to the topic's first offset
    skip: frozenset[tuple[int, int]] = field(default=frozenset(), init=False)
    rows: IcebergTable = field(init=False)
    letters: IcebergTable | None = field(default=None, init=False)
    options: Options = field(init=False)

    def __post_init__(self) -> None:
        name = table_name(self.topic)
        self.options = read_options(self.settings.source, self.topic)
        key = BACKFILL if self.backwards else RUN
        self.rows = IcebergTable(self.catalog, (*self.settings.namespace, name), key)
        if self.settings.on_bad_record == "dead-letter" and not self.values.is_raw:
            dead = (*self.settings.namespace, name + DEAD_LETTERS)
            self.letters = IcebergTable(self.catalog, dead, key)

    def start(self) -> None:
        """Make the tables if they are not there, and take them over.

        Raises:  JobError; TableError; ProgressError; CoordinatesError; what the catalogue raises.
        """
        if not self.rows.load():
            if self.backwards:
                raise JobError(
                    f"there is no table {self.rows}: make it with `esker spark tables run`"
                )
            self._create()
        self._check_topic()
        self.rows.take_over()
        kind = self.rows.value_type
        if self.values.is_raw != (kind == pa.binary()):
            raise JobError(
                f"{self.rows}: its values are {'raw' if kind == pa.binary() else 'decoded'}; give "
                "the format that it was made with, or another namespace"
            )
        if self.letters is not None:
            if not self.letters.load():
                texts = self.rows.table.properties
                self.letters.create(
                    DEAD_LETTER_COLUMNS,
                    partition_by=self.rows.partition_by,
                    start=self.rows.progress,
                    properties={key: texts[key] for key in (RUN, BACKFILL) if key in texts},
                )
            self.letters.take_over()
            self.skip = self._dead_already(self.letters)
        self._set_type(self.values.start(kind))

    def _create(self) -> None:
        with open_coordinates(self.options) as coordinates:
            bounds = self._bounds(coordinates)
        edge = "log_start" if self.settings.starting == "earliest" else "end"
        offsets = {place.partition: getattr(one, edge) for place, one in bounds.items()}
        start = Progress(driver="", batch=0, offsets=offsets)
        columns = (*KAFKA_COLUMNS, "value") if self.values.is_raw else KAFKA_COLUMNS
        self.rows.create(
            columns,
            partition_by=self.settings.partition_by,
            start=start,
            properties={BACKFILL: start.to_json(), TOPIC: self.topic},
        )

    def _check_topic(self) -> None:
        """Raise JobError if the table is of another topic, whose name becomes the same."""
        topic = self.rows.table.properties.get(TOPIC)
        if topic is not None and topic != self.topic:
            raise JobError(f"{self.rows} has the records of topic {topic}: name another namespace")

    def _dead_already(self, letters: IcebergTable) -> frozenset[tuple[int, int]]:
        """Return the records whose dead letters were committed, and whose batch was not."""
        rows, dead = self.rows.progress.offsets, letters.progress.offsets
        ahead: dict[int, range] = {}
        for index in rows.keys() | dead.keys():
            ends = (rows.get(index, 0), dead.get(index, 0))
            ahead[index] = range(*(reversed(ends) if self.backwards else ends))
        first = min((some.start for some in ahead.values() if some), default=None)
        if first is None:
            return frozenset()
        scan = letters.table.scan(
            row_filter=f"offset >= {first}", selected_fields=("partition", "offset")
        )
        found = scan.to_arrow()
        pairs = zip(found["partition"].to_pylist(), found["offset"].to_pylist(), strict=True)
        return frozenset(one for one in pairs if one[1] in ahead.get(one[0], ()))

    # --- one step -------------------------------------------------------------------------------

    def step(self) -> Step:
        """Take the table on by one batch, or do nothing if no record is missing.

        Raises:  JobError; TableError; CoordinatesError, of which LostOffsetsError is a kind; what
                 the catalogue raises.
        """
        began = time.monotonic()
        with open_coordinates(self.options) as coordinates:
            bounds = self._bounds(coordinates)
            wanted = self._next_ranges(bounds)
            there = check_ranges(wanted, bounds, fail_on_data_loss=self.options.fail_on_data_loss)
            pieces = plan(coordinates, self.options, there) if there else []
        if not wanted:
            return Step(0, 0, 0, self._lag(bounds), time.monotonic() - began)
        written = self._write([task.pieces for task in pieces])
        bad = sum(one.bad for one in written)
        first_bad = next((one.first_bad for one in written if one.first_bad is not None), None)
        if bad and self.settings.on_bad_record == "fail":
            self._discard(written)
            raise JobError(
                f"{self.topic}: {bad} bad records, the first at {first_bad}; nothing was committed "
                "(--on-bad-record dead-letter keeps them in a table of their own)"
            )
        edge = "first_offset" if self.backwards else "end_offset"
        self._commit(written, {one.partition.partition: getattr(one, edge) for one in wanted})
        return Step(
            sum(file.rows for one in written for file in one.files),
            bad,
            sum(one.end_offset - one.first_offset for one in wanted),
            self._lag(bounds),
            time.monotonic() - began,
            first_bad,
        )

    def lag(self) -> Lag:
        """Return how far the table is behind its topic."""
        with open_coordinates(self.options) as coordinates:
            return self._lag(self._bounds(coordinates))

    def _begins(self) -> dict[TopicPartition, int]:
        return {
            TopicPartition(self.topic, index): offset
            for index, offset in self.rows.progress.offsets.items()
        }

    def _bounds(self, coordinates: Any) -> dict[TopicPartition, Bounds]:
        return topic_bounds(coordinates, self.topic)

    def _next_ranges(self, bounds: Mapping[TopicPartition, Bounds]) -> list[Wanted]:
        """Return the offsets of the next batch."""
        return next_ranges(
            str(self.rows), self.topic, self.rows.progress.offsets, bounds,
            self.settings.max_records, backwards=self.backwards,
        )  # fmt: skip

    def _lag(self, bounds: Mapping[TopicPartition, Bounds]) -> Lag:
        if not self.backwards:
            return lag_of(self.rows.progress, bounds)
        begins = self._begins().items()
        return Lag(sum(max(0, first - bounds[place].log_start) for place, first in begins), 0.0)

    def _write(self, pieces: Sequence[Any]) -> list[Written]:
        """Have tasks write files; where they meet new schemas, learn these and begin again."""
        for _ in range(SCHEMA_ROUNDS):
            written = self.engine.run(write_task, [self._task(some) for some in pieces])
            failures = [one.failure for one in written if one.failure is not None]
            if failures:
                raise CoordinatesError(f"{self.topic}: {failures[0]}")
            unknown = [one.unknown for one in written if one.unknown is not None]
            if not unknown:
                return written
            self._discard(written)
            for one in unknown:
                self._set_type(self.values.learn(one))
        raise JobError(f"{self.topic}: a batch has schemas without end")

    def _task(self, pieces: tuple[Any, ...]) -> WriteTask:
        return WriteTask(
            self.options,
            pieces,
            self.rows.progress.batch + 1,
            self.values.format,
            self.rows.value_type,
            self.skip,
            self._output(self.rows),
            None if self.letters is None else self._output(self.letters),
        )

    def _output(self, table: IcebergTable) -> Output:
        return Output(
            table.data_location, table.table.io.properties, partition_by=table.partition_by
        )

    def _commit(self, written: Sequence[Written], offsets: Mapping[int, int]) -> None:
        """Commit dead letters, then rows: a start in between finds the first, and repeats none."""
        letters = [file for one in written for file in one.dead_letters]
        if letters and self.letters is not None:
            self.letters.commit(letters, offsets, newest_ms=None)
        times = [one.newest_ms for one in written if one.newest_ms is not None]
        files = [file for one in written for file in one.files]
        self.rows.commit(files, offsets, newest_ms=max(times, default=None))
        now = self.rows.progress.offsets
        self.skip = frozenset(
            one for one in self.skip if (one[1] < now.get(one[0], 0)) == self.backwards
        )

    def _discard(self, written: Sequence[Written]) -> None:
        """Delete the files of a batch that is not committed."""
        files: list[DataFile] = [
            file for one in written for file in (*one.files, *one.dead_letters)
        ]
        for file in files:
            self.rows.table.io.delete(file.path)

    def _set_type(self, value_type: pa.DataType | None) -> None:
        """Fit the table's column `value` to a type that the values' schemas ask for."""
        if value_type is not None:
            self.rows.set_value_type(value_type)


def table_name(topic: str) -> str:
    """Return the name of a topic's table: dots and dashes are not safe in SQL.

    >>> table_name("eu.orders-v2")
    'eu_orders_v2'
    """
    return topic.replace(".", "_").replace("-", "_")


def read_options(source: Mapping[str, str], topic: str) -> Options:
    """Return the options of reading a topic for its table.

    Raises:  OptionError.
    """
    return parse_options(
        {
            "kafka.isolation.level": "read_committed",
            **source,
            "subscribe": topic,
            "includeHeaders": "true",
            "columns": ",".join(READ_COLUMNS),
        }
    )


def topic_bounds(coordinates: Any, topic: str) -> dict[TopicPartition, Bounds]:
    """Return the offsets that can be read of each partition of a topic.

    Raises:  CoordinatesError, also for an unknown topic.
    """
    count = coordinates.topics([topic]).get(topic)
    if count is None:
        raise CoordinatesError(f"there is no topic {topic}")
    places = [TopicPartition(topic, index) for index in range(count)]
    found: dict[TopicPartition, Bounds] = coordinates.bounds(places, committed=True)
    return found


def next_ranges(
    table: str,
    topic: str,
    offsets: Mapping[int, int],
    bounds: Mapping[TopicPartition, Bounds],
    max_records: int,
    *,
    backwards: bool = False,
) -> list[Wanted]:
    """Return the offsets of the next batch.

    Args:    table: its name, for the error.
             offsets: of each partition, where the table is.
             backwards: from there to the topic's first offset.
    Raises:  JobError if the topic ends before the table does.
    """
    here = {TopicPartition(topic, index): offset for index, offset in offsets.items()}
    for place, offset in here.items():
        if place not in bounds or bounds[place].end < offset:
            raise JobError(
                f"{table} has {place} up to offset {offset}, and the topic "
                f"{'ends at ' + str(bounds[place].end) if place in bounds else 'lacks it'}: was it "
                "deleted and created again? Drop the table, or name another place for it"
            )
    if backwards:
        starts = {place: bounds[place].log_start for place in here}
        counts = limit_ends(starts, here, max_records)
        ranges = [
            Wanted(place, offset - counts[place] + starts[place], offset)
            for place, offset in sorted(here.items())
        ]
    else:
        ends = limit_ends(here, {place: one.end for place, one in bounds.items()}, max_records)
        ranges = [Wanted(place, here.get(place, 0), end) for place, end in sorted(ends.items())]
    return [one for one in ranges if one.end_offset > one.first_offset]


def lag_of(progress: Progress, bounds: Mapping[TopicPartition, Bounds]) -> Lag:
    """Return how far a table with this progress is behind its topic."""
    records = sum(
        max(0, one.end - max(one.log_start, progress.offsets.get(place.partition, 0)))
        for place, one in bounds.items()
    )
    if not records:
        return Lag(0, 0.0)
    newest = progress.newest_ms
    return Lag(records, 0.0 if newest is None else max(0.0, time.time() - newest / 1000))
