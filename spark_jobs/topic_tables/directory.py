"""Keeps one topic as a directory of Parquet files: batch after batch, each record once.

    job = DirectoryJob(settings, "orders", store, LocalEngine(), RawValues())
    job.start()
    while job.step().offsets: ...

A directory has no catalogue. Two rules stand for the transaction:

- A batch file is written before the batch, and only if it is not there. It names the offsets of
  each data file. So two drivers cannot begin different batches of one number.
- A data file is named by its offsets, appears whole, and is written only if it is not there. So
  whatever runs twice finds the file of the first, and one verdict on each record counts.

A start takes the directory over with an empty batch, and then completes the last one with files.

Source: docs/design/tables.md#parquet-directories.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from diskless.stores.interface import StorageError
from spark_jobs.readers.engines import Engine
from spark_jobs.readers.object_store import MAX_READ_BYTES, ObjectStore
from spark_jobs.topic_tables.iceberg_table import TakenOverError
from spark_jobs.topic_tables.job import (
    SCHEMA_ROUNDS,
    JobError,
    JobSettings,
    Lag,
    Step,
    lag_of,
    next_ranges,
    read_options,
    topic_bounds,
)
from spark_jobs.topic_tables.progress import Progress, new_driver
from spark_jobs.topic_tables.rows import (
    DEAD_LETTER_SCHEMA,
    Unknown,
    UnknownSchemasError,
    ValueFormat,
    decode_rows,
    table_schema,
)
from spark_jobs.topic_tables.schemas import Values
from spark_jobs.topics.coordinates import CoordinatesError, Found, TopicPartition, Wanted
from spark_jobs.topics.decoder import DamagedRunError
from spark_jobs.topics.options import Options
from spark_jobs.topics.planning import check_ranges, find_pieces, open_coordinates
from spark_jobs.topics.reading import read_pieces

BATCHES: Final = "_esker/batches/"
LETTERS: Final = "_dead_letters/"
"""Begin with an underscore, which readers of directories leave out."""

FILE_BYTES: Final = 32 * 1024 * 1024
"""Stored bytes of the records of one file, about."""


class DataRange(NamedTuple):
    """The offsets that one data file has."""

    partition: int
    first_offset: int
    end_offset: int  # exclusive

    def key(self, topic: str) -> str:
        """Return the name of the data file."""
        return f"{topic}-{self.partition}-{self.first_offset}-{self.end_offset}.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What a batch file says: the batch's files, and where the directory is behind it."""

    progress: Progress  # its `batch` is that of the file
    ranges: tuple[DataRange, ...]
    value_type: pa.DataType | None  # of the column `value` in the batch's files
    letters: bool = False  # whether each data file has a file of dead letters

    def to_json(self) -> bytes:
        """Return the content of the batch file."""
        kind = self.value_type
        schema = None if kind is None else pa.schema([pa.field("value", kind)]).serialize()
        document = {
            "progress": json.loads(self.progress.to_json()),
            "ranges": [list(one) for one in self.ranges],
            "schema": schema and base64.b64encode(schema).decode(),
            "letters": self.letters,
        }
        return json.dumps(document).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Batch:
        """Return the batch that a file describes."""
        found = json.loads(data)
        schema = found["schema"]
        kind = None
        if schema is not None:
            kind = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(schema))).field(0).type
        return cls(
            progress=Progress.from_json(json.dumps(found["progress"])),
            ranges=tuple(DataRange(*one) for one in found["ranges"]),
            value_type=kind,
            letters=found["letters"],
        )


class RangeTask(NamedTuple):
    """A data file to write."""

    options: Options
    store: ObjectStore
    topic: str
    data: DataRange
    pieces: tuple[Found, ...]
    values: ValueFormat | None
    value_type: pa.DataType | None
    writes_letters: bool
    may_be_bad: bool


class RangeWritten(NamedTuple):
    """What a task did."""

    rows: int = 0
    bad: int = 0
    first_bad: str | None = None
    unknown: Unknown | None = None
    failure: str | None = None


def write_range(task: RangeTask) -> RangeWritten:
    """Write a data file, and its dead letters; errors that would repeat are part of the answer."""
    try:
        return _write(task)
    except UnknownSchemasError as error:
        return RangeWritten(unknown=error.unknown)
    except (CoordinatesError, DamagedRunError, StorageError) as error:
        return RangeWritten(failure=str(error))


def _write(task: RangeTask) -> RangeWritten:
    key = task.data.key(task.topic)
    good: list[pa.RecordBatch] = []
    bad: list[pa.RecordBatch] = []
    records: list[pa.RecordBatch] = []
    for batch in read_pieces(task.options, task.pieces):
        decoded = decode_rows(batch, task.values, task.value_type)
        records.append(batch)
        good.append(decoded.good)
        bad.append(decoded.bad)
    rows = pa.Table.from_batches(good, table_schema(task.value_type))
    letters = pa.Table.from_batches(bad, DEAD_LETTER_SCHEMA)
    first_bad = None
    if letters.num_rows:
        one = letters.slice(0, 1).to_pylist()[0]
        first_bad = f"partition {one['partition']}, offset {one['offset']}: {one['reason']}"
        if not task.may_be_bad:
            return RangeWritten(bad=letters.num_rows, first_bad=first_bad)
    if not task.store.write_new(key, _parquet(rows)):
        rows, letters = _with_their_verdict(task, key, records, letters)
    if task.writes_letters:
        task.store.write(LETTERS + key, _parquet(letters))
    return RangeWritten(rows.num_rows, letters.num_rows, first_bad)


def _with_their_verdict(
    task: RangeTask, key: str, records: Sequence[pa.RecordBatch], letters: pa.Table
) -> tuple[pa.Table, pa.Table]:
    """Return the rows of a data file that is there, and as dead letters what it does not have.

    It was written by an earlier attempt, perhaps with other schemas.
    """
    rows = pq.read_table(pa.BufferReader(_read(task.store, key)))
    there = rows["offset"].combine_chunks()
    reasons = dict(zip(letters["offset"].to_pylist(), letters["reason"].to_pylist(), strict=True))
    missing = []
    for batch in records:
        left = batch.filter(pc.invert(pc.is_in(batch.column("offset"), value_set=there)))
        texts = [
            reasons.get(offset, "its schema was not known when it was read")
            for offset in left.column("offset").to_pylist()
        ]
        columns = [left.column(name) for name in DEAD_LETTER_SCHEMA.names[:-1]]
        missing.append(
            pa.RecordBatch.from_arrays(
                [*columns, pa.array(texts, pa.string())], schema=DEAD_LETTER_SCHEMA
            )
        )
    return rows, pa.Table.from_batches(missing, DEAD_LETTER_SCHEMA)


def _parquet(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd")
    return bytes(sink.getvalue())


def _read(store: ObjectStore, key: str) -> bytes:
    stored = store.head(key)
    if stored is None:
        raise StorageError(key, "is gone")
    size = stored.size_bytes
    parts = [
        store.read(key, at, min(MAX_READ_BYTES, size - at)) for at in range(0, size, MAX_READ_BYTES)
    ]
    return b"".join(parts)


def batch_numbers(store: ObjectStore) -> list[int]:
    """Return the numbers of a directory's batches. Raises StorageError."""
    return [int(one.key[len(BATCHES) : -len(".json")]) for one in store.list(BATCHES)]


def read_batch(store: ObjectStore, number: int) -> Batch:
    """Return a batch. Raises StorageError."""
    return Batch.from_json(_read(store, f"{BATCHES}{number:020d}.json"))


def last_batch(store: ObjectStore) -> Batch | None:
    """Return a directory's last batch, or None if it has none. Raises StorageError."""
    numbers = batch_numbers(store)
    return read_batch(store, max(numbers)) if numbers else None


@dataclass(slots=True)
class DirectoryJob:
    """The driver of one topic's directory."""

    settings: JobSettings
    topic: str
    store: ObjectStore
    engine: Engine
    values: Values
    options: Options = field(init=False)
    _last: Batch = field(init=False)

    def __post_init__(self) -> None:
        self.options = read_options(self.settings.source, self.topic)

    @property
    def progress(self) -> Progress:
        """Return how far the directory is, once its last batch is whole."""
        return self._last.progress

    def start(self) -> None:
        """Take the directory over, and complete its last batch.

        Raises:  JobError; TakenOverError; SchemaError; StorageError; CoordinatesError.
        """
        numbers = batch_numbers(self.store)
        driver = new_driver()
        if not numbers:
            self._begin(driver)
            return
        self._last = self._batch(max(numbers))
        kind = self._last.value_type
        if self.values.is_raw != (kind == pa.binary()):
            raise JobError(
                f"{self.store.uri}: its values are {'raw' if kind == pa.binary() else 'decoded'}; "
                "give the format that it was made with, or another directory"
            )
        self._next(driver, {}, ())  # from here on a former driver begins no batch
        self._set_type(self.values.start(kind))
        for number in sorted(numbers, reverse=True):
            batch = self._batch(number)
            if batch.ranges:  # those before it were whole before it began
                missing = [one for one in batch.ranges if not self._is_whole(one, batch.letters)]
                self._write_ranges(missing, self._find(missing), letters=batch.letters)
                break

    def _begin(self, driver: str) -> None:
        with open_coordinates(self.options) as coordinates:
            bounds = topic_bounds(coordinates, self.topic)
        edge = "log_start" if self.settings.starting == "earliest" else "end"
        offsets = {place.partition: getattr(one, edge) for place, one in bounds.items()}
        start = Progress(driver=driver, batch=0, offsets=offsets)
        self._last = Batch(progress=start, ranges=(), value_type=self.values.start(None))
        if self.values.is_raw:
            self._last = Batch(progress=start, ranges=(), value_type=pa.binary())
        self._put(self._last)

    def step(self) -> Step:
        """Take the directory on by one batch, or do nothing if no record is missing.

        Raises:  as `start`.
        """
        began = time.monotonic()
        with open_coordinates(self.options) as coordinates:
            bounds = topic_bounds(coordinates, self.topic)
            wanted = next_ranges(
                self.store.uri, self.topic, self.progress.offsets, bounds, self.settings.max_records
            )
            there = check_ranges(wanted, bounds, fail_on_data_loss=self.options.fail_on_data_loss)
            found = find_pieces(coordinates, self.options, there) if there else []
            pieces = dict(_files(found))
        if not wanted:
            return Step(0, 0, 0, lag_of(self.progress, bounds), time.monotonic() - began)
        ends = {one.partition.partition: one.end_offset for one in wanted}
        self._next(self.progress.driver, ends, tuple(pieces))
        written = self._write_ranges(list(pieces), pieces, letters=self._writes_letters)
        return Step(
            sum(one.rows for one in written),
            sum(one.bad for one in written),
            sum(one.end_offset - one.first_offset for one in wanted),
            lag_of(self.progress, bounds),
            time.monotonic() - began,
            next((one.first_bad for one in written if one.first_bad is not None), None),
        )

    def lag(self) -> Lag:
        """Return how far the directory is behind its topic."""
        with open_coordinates(self.options) as coordinates:
            return lag_of(self.progress, topic_bounds(coordinates, self.topic))

    # --- batches --------------------------------------------------------------------------------

    def _batch(self, number: int) -> Batch:
        return read_batch(self.store, number)

    def _next(self, driver: str, ends: Mapping[int, int], ranges: tuple[DataRange, ...]) -> None:
        """Write the next batch file.

        Raises:  TakenOverError if another driver has done so.
        """
        before = self.progress
        progress = Progress(
            driver=driver, batch=before.batch + 1, offsets={**before.offsets, **ends}
        )
        letters = self._writes_letters
        self._put(
            Batch(
                progress=progress,
                ranges=ranges,
                value_type=self._last.value_type,
                letters=letters,
            )
        )

    def _put(self, batch: Batch) -> None:
        number = batch.progress.batch
        if not self.store.write_new(f"{BATCHES}{number:020d}.json", batch.to_json()):
            there = self._batch(number).progress.driver
            if there != batch.progress.driver:
                raise TakenOverError(
                    f"{self.store.uri}: another driver ({there}) has written batch {number}"
                )
        self._last = batch

    def _set_type(self, kind: pa.DataType | None) -> None:
        """Note a changed type before a file has it: by a batch that adds no offsets."""
        if kind is None or kind == self._last.value_type:
            return
        self._last = Batch(progress=self.progress, ranges=(), value_type=kind)
        self._next(self.progress.driver, {}, ())

    # --- data files -----------------------------------------------------------------------------

    def _check_written(self, data: DataRange, letters: bool) -> None:
        """Raise JobError for a file that a task wrote and this process does not see."""
        if not self._is_whole(data, letters):
            raise JobError(
                f"{self.store.uri}: a task wrote {data.key(self.topic)}, and the driver does not "
                "see it: do all workers share this directory? The next start writes it again"
            )

    def _is_whole(self, data: DataRange, letters: bool) -> bool:
        keys = [data.key(self.topic)]
        if letters:
            keys.append(LETTERS + keys[0])
        return all(self.store.head(key) is not None for key in keys)

    @property
    def _writes_letters(self) -> bool:
        return self.settings.on_bad_record == "dead-letter" and not self.values.is_raw

    def _find(self, ranges: Sequence[DataRange]) -> dict[DataRange, tuple[Found, ...]]:
        """Return the runs of data files that a former driver did not write."""
        wanted = [
            Wanted(TopicPartition(self.topic, one.partition), one.first_offset, one.end_offset)
            for one in ranges
        ]
        found: dict[DataRange, list[Found]] = {one: [] for one in ranges}
        with open_coordinates(self.options) as coordinates:
            bounds = topic_bounds(coordinates, self.topic)
            loses = self.options.fail_on_data_loss
            for one, data in zip(wanted, ranges, strict=True):
                there = check_ranges([one], bounds, fail_on_data_loss=loses)
                for _, piece in find_pieces(coordinates, self.options, there) if there else ():
                    found[data].append(piece)
        return {data: tuple(pieces) for data, pieces in found.items()}

    def _write_ranges(
        self,
        ranges: Sequence[DataRange],
        pieces: Mapping[DataRange, tuple[Found, ...]],
        *,
        letters: bool,
    ) -> list[RangeWritten]:
        left = list(ranges)
        done: list[RangeWritten] = []
        for _ in range(SCHEMA_ROUNDS):
            tasks = [self._task(one, pieces[one], letters) for one in left]
            written = self.engine.run(write_range, tasks)
            failures = [one.failure for one in written if one.failure is not None]
            if failures:
                raise CoordinatesError(f"{self.topic}: {failures[0]}")
            done += [one for one in written if one.unknown is None]
            bad = next((one for one in written if one.bad), None)
            if bad is not None and self.settings.on_bad_record == "fail":
                raise JobError(
                    f"{self.topic}: a bad record at {bad.first_bad} (--on-bad-record dead-letter "
                    "keeps bad records in files of their own)"
                )
            for data, outcome in zip(left, written, strict=True):
                if outcome.unknown is None:
                    self._check_written(data, letters)
            unknown = [one.unknown for one in written if one.unknown is not None]
            if not unknown:
                return done
            left = [
                data for data, one in zip(left, written, strict=True) if one.unknown is not None
            ]
            for one in unknown:
                self._set_type(self.values.learn(one))
        raise JobError(f"{self.topic}: a batch has schemas without end")

    def _task(self, data: DataRange, pieces: tuple[Found, ...], letters: bool) -> RangeTask:
        return RangeTask(
            self.options,
            self.store,
            self.topic,
            data,
            pieces,
            self.values.format,
            self._last.value_type,
            letters,
            self.settings.on_bad_record != "fail",
        )


def _files(
    pieces: Sequence[tuple[int, Found]],
) -> Iterator[tuple[DataRange, tuple[Found, ...]]]:
    """Yield data files, each of pieces of one partition that follow each other."""
    held: list[Found] = []
    size = 0

    def file() -> tuple[DataRange, tuple[Found, ...]]:
        first, last = held[0], held[-1]
        data = DataRange(first.partition.partition, first.first_offset, last.end_offset)
        return data, tuple(held)

    for _, piece in pieces:
        stored = int(piece.runs.sizes.sum())
        if held and (held[-1].partition != piece.partition or size + stored > FILE_BYTES):
            yield file()
            held, size = [], 0
        held.append(piece)
        size += stored
    if held:
        yield file()
