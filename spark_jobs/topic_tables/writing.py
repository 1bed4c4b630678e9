"""A task: reads some records from the object store, and writes them as Parquet files.

What travels to a task is a value, and what it answers is one: the files that it wrote, or why it
wrote none. Files get names that were never used, so a task that runs twice does no harm: the driver
commits the names that it was told.

Source: docs/design/tables.md#one-loop-and-the-table-is-its-memory.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import load_file_io

from diskless.stores.interface import StorageError
from spark_jobs.topic_tables.iceberg_table import DataFile, PartitionBy
from spark_jobs.topic_tables.rows import (
    DEAD_LETTER_SCHEMA,
    Unknown,
    UnknownSchemasError,
    ValueFormat,
    decode_rows,
    table_schema,
)
from spark_jobs.topics.coordinates import CoordinatesError, Found
from spark_jobs.topics.decoder import DamagedRunError
from spark_jobs.topics.options import Options
from spark_jobs.topics.reading import read_pieces

GROUP_BYTES: Final = 64 * 1024 * 1024
"""Arrow bytes of one row group."""

FILE_GROUPS: Final = 8
"""Row groups of one file, which a task holds in memory, encoded."""

OPEN_FILES: Final = 16
"""Files that a task writes at the same time: its records may be of many days."""

_MS: Final = {"day": 86_400_000, "hour": 3_600_000}


@dataclass(frozen=True, slots=True)
class Output:
    """Where a task writes the files of one table."""

    location: str
    io_properties: Mapping[str, str]
    partition_by: PartitionBy


class WriteTask(NamedTuple):
    """Records to read, and how and where to write them."""

    options: Options
    pieces: tuple[Found, ...]
    batch: int
    values: ValueFormat | None
    value_type: pa.DataType | None
    skip: frozenset[tuple[int, int]]
    rows: Output
    dead_letters: Output | None  # None: bad records are left out


class Written(NamedTuple):
    """What a task did. With unknown schemas or a failure it wrote nothing that counts."""

    files: tuple[DataFile, ...] = ()
    dead_letters: tuple[DataFile, ...] = ()
    bad: int = 0
    first_bad: str | None = None  # where the first bad record is, and why it is bad
    newest_ms: int | None = None
    unknown: Unknown | None = None
    failure: str | None = None


def write_task(task: WriteTask) -> Written:
    """Run a task. Errors that another attempt would repeat are part of its answer."""
    try:
        return _write(task)
    except UnknownSchemasError as error:
        return Written(unknown=error.unknown)
    except (CoordinatesError, DamagedRunError, StorageError) as error:
        return Written(failure=str(error))


def _write(task: WriteTask) -> Written:
    rows = FilesWriter(task.rows, task.batch, table_schema(task.value_type))
    letters = None
    if task.dead_letters is not None:
        letters = FilesWriter(task.dead_letters, task.batch, DEAD_LETTER_SCHEMA)
    bad, first_bad = 0, None
    newest: int | None = None
    for batch in read_pieces(task.options, task.pieces):
        decoded = decode_rows(batch, task.values, task.value_type, task.skip)
        rows.add(decoded.good)
        bad += decoded.bad.num_rows
        if decoded.bad.num_rows:
            if first_bad is None:
                one = decoded.bad.slice(0, 1).to_pylist()[0]
                first_bad = f"partition {one['partition']}, offset {one['offset']}: {one['reason']}"
            if letters is not None:
                letters.add(decoded.bad)
        highest = pc.max(batch.column("timestamp")).cast(pa.int64()).as_py()
        if highest is not None:
            newest = max(newest or 0, highest // 1000)
    return Written(
        tuple(rows.close()),
        () if letters is None else tuple(letters.close()),
        bad,
        first_bad,
        newest,
    )


class FilesWriter:
    """Writes rows to files, of which each has rows of one day or hour only, if so partitioned."""

    def __init__(self, output: Output, batch: int, schema: pa.Schema) -> None:
        self._output = output
        self._batch = batch
        self._schema = schema
        self._open: dict[int, _File] = {}
        self._written: list[DataFile] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        for part, rows in _split(batch, self._output.partition_by):
            file = self._open.pop(part, None)
            if file is None:
                if len(self._open) >= OPEN_FILES:
                    self._finish(next(iter(self._open)))
                file = _File(self._schema)
            self._open[part] = file  # the one that was used last is closed last
            file.add(rows)
            if file.groups >= FILE_GROUPS:
                self._finish(part)

    def close(self) -> list[DataFile]:
        """Write what is left; return all files."""
        for part in list(self._open):
            self._finish(part)
        return self._written

    def _finish(self, part: int) -> None:
        data, count = self._open.pop(part).close()
        path = f"{self._output.location}/{self._batch:08d}-{secrets.token_hex(8)}.parquet"
        io = load_file_io(dict(self._output.io_properties), path)
        with io.new_output(path).create() as stream:
            stream.write(data)
        self._written.append(DataFile(path, data.size, count))


class _File:
    """A Parquet file in memory."""

    def __init__(self, schema: pa.Schema) -> None:
        self._sink = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(self._sink, schema, compression="zstd")
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._rows = 0
        self._schema = schema
        self.groups = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows to the row group that is gathered."""
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        self._rows += rows.num_rows
        if self._held_bytes >= GROUP_BYTES:
            self._flush()

    def close(self) -> tuple[pa.Buffer, int]:
        """Return the file's content, and its number of rows."""
        self._flush()
        self._writer.close()
        return self._sink.getvalue(), self._rows

    def _flush(self) -> None:
        if self._held:
            table = pa.Table.from_batches(self._held).cast(self._schema)
            self._writer.write_table(table, row_group_size=table.num_rows)
            self.groups += 1
        self._held, self._held_bytes = [], 0


def _split(
    batch: pa.RecordBatch, partition_by: PartitionBy
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each day or hour since 1970, or all rows."""
    if not batch.num_rows:
        return
    if partition_by == "none":
        yield 0, batch
        return
    unit = _MS[partition_by] * 1000
    times = batch.column("timestamp").cast(pa.int64()).to_numpy()
    parts = times // unit
    if parts[0] == parts[-1] and (parts == parts[0]).all():
        yield int(parts[0]), batch
        return
    for part in sorted(set(parts.tolist())):
        yield part, batch.filter(pa.array(parts == part))
