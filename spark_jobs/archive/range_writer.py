"""Reads one range of a log and writes it as files: one task of an archive.

Every record becomes a row of the envelope; records of known types become rows of their type's table
as well. A record that cannot be decoded (a newer type or version, or a body that does not match its
type) is counted and stays in the envelope: only damage stops an archive, because a record that is
not archived now may be deleted tomorrow.

The same range makes the same files, byte for byte, in every process.

Source: docs/design/pipeline.md#the-archive; `spark_jobs.readers.archive_layout` for names.
"""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from records.compression import Buffer
from records.errors import RecordError
from records.frame import METADATA_RECORDS
from spark_jobs.archive.avro_schemas import avro_schema
from spark_jobs.readers.archive_layout import (
    AVRO,
    ENVELOPE,
    PARQUET,
    ArchiveError,
    Counted,
    Manifest,
    Range,
    Written,
)
from spark_jobs.readers.avro_files import AvroWriter, fingerprint
from spark_jobs.readers.envelope import SCHEMA as ENVELOPE_SCHEMA
from spark_jobs.readers.envelope import EnvelopeError, Row, rows_of, value_of
from spark_jobs.readers.log_position import LogPosition
from spark_jobs.readers.logs import Span
from spark_jobs.readers.object_store import ObjectStore
from spark_jobs.tables.schemas import Columns, RecordColumns, columns_of, schema_of, table_name

CHUNK_ROWS: Final = 10_000
"""Rows decoded at once; the last record may exceed it."""

_ENVELOPE_FINGERPRINT: Final = fingerprint(ENVELOPE_SCHEMA)

TABLE_OF: Final = {key: table_name(record) for key, record in METADATA_RECORDS.items()}


@dataclass(frozen=True, slots=True)
class Task:
    """A range, and the spans that its records are read from. It must be picklable."""

    cluster_id: str
    range: Range
    spans: tuple[Span, ...]
    tables: str  # AVRO or PARQUET


def write_range(store: ObjectStore, task: Task) -> Manifest:
    """Write all files of an archive range except its manifest, which is returned.

    Raises:  ArchiveError if offsets are missing, or a batch is empty; what reading raises
             (LostRangeError, RecordError, LogsError, OSError); StorageError.
    """
    files = _RangeFiles(task)
    try:
        for span in task.spans:
            for batch in span.batches():
                files.add(rows_of(batch))
    except EnvelopeError as error:
        raise ArchiveError(f"{task.range.log}: {error}") from None
    manifest, contents = files.finish()
    for key, data in contents:
        store.write(key, data)
    return manifest


class _RangeFiles:
    """Collects the files of a range."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._metadata = {
            "esker.cluster.id": task.cluster_id,
            "esker.log": task.range.log,
            "esker.range": task.range.stem,
        }
        self._envelope = AvroWriter(ENVELOPE_SCHEMA, self._metadata)
        self._tables: dict[int, _Table] = {}
        self._records: Counter[tuple[int, int, str | None, bool]] = Counter()
        self._kept: Counter[tuple[int, int, str | None, bool]] = Counter()
        self._batches = 0
        self._next: int | None = None if task.range.is_checkpoint else task.range.start_offset
        self._first_ms: int | None = None
        self._last_ms = 0
        self._last_epoch = 0

    def add(self, rows: list[Row]) -> None:
        """Add a batch's records to the files of the range, except records outside of the range."""
        wanted = [row for row in rows if self._is_due(row)]
        self._batches += bool(wanted)
        self._envelope.write(wanted)
        for row in wanted:
            self._last_ms, self._last_epoch = row["timestamp_ms"], row["epoch"]
            if self._first_ms is None:
                self._first_ms = self._last_ms
            kind = (row["type"], row["version"], row["name"], row["control"])
            self._records[kind] += 1
            if not row["control"]:
                self._decode(row)

    def _is_due(self, row: Row) -> bool:
        """Return whether a record's offset lies in the range that the task archives.

        Raises:  ArchiveError if an offset is missing.
        """
        if self._next is None:
            return True
        offset, of = row["offset"], self._task.range
        if not of.start_offset <= offset < of.end_offset:
            return False
        if offset != self._next:
            raise ArchiveError(f"{of.log}: offset {self._next} is missing, {offset} follows")
        self._next += 1
        return True

    def _decode(self, row: Row) -> None:
        table = self._tables.get(row["type"])
        if table is None:
            name = TABLE_OF.get(row["type"])
            if name is None:
                self._keep(row)
                return
            table = self._tables[row["type"]] = _Table(name, self._task.tables, self._metadata)
        value = value_of(row)
        assert value is not None, f"a type without a value: {row}"
        offset = row["offset"]
        if self._task.range.is_checkpoint:
            offset = self._task.range.end_offset - 1
        position = LogPosition(
            self._task.range.is_checkpoint, offset, row["epoch"], row["timestamp_ms"]
        )
        for kept in table.add(row, position, value):
            self._keep(kept)

    def _keep(self, row: Row) -> None:
        """Count a record that the archive stores only as undecoded bytes."""
        self._kept[row["type"], row["version"], row["name"], row["control"]] += 1

    def finish(self) -> tuple[Manifest, list[tuple[str, bytes]]]:
        """Finish the range's files; return the manifest, and each file's key and bytes."""
        of = self._task.range
        if self._next is not None and self._next != of.end_offset:
            raise ArchiveError(
                f"{of.log}: offsets from {self._next} to {of.end_offset} are missing"
            )
        contents: list[tuple[str, bytes]] = []
        written: list[Written] = []

        def put(table: str, suffix: str, rows: int, data: bytes, schema: str) -> None:
            key = of.data_key(table, suffix)
            contents.append((key, data))
            digest = hashlib.sha256(data).hexdigest()
            written.append(Written(key, table, rows, len(data), digest, schema))

        put(
            ENVELOPE, AVRO, self._envelope.rows, self._envelope.finish(),
            _ENVELOPE_FINGERPRINT,
        )  # fmt: skip
        for table in sorted(self._tables.values(), key=lambda one: one.name):
            for kept in table.flush():
                self._keep(kept)
            if table.rows:
                put(table.name, self._task.tables, table.rows, table.finish(), table.schema)
        counts = [
            Counted(*kind, self._records[kind], self._kept[kind])
            for kind in sorted(self._records, key=lambda kind: (kind[3], kind[0], kind[1]))
        ]
        manifest = Manifest(
            cluster_id=self._task.cluster_id,
            range=of,
            records=self._envelope.rows,
            batches=self._batches,
            first_timestamp_ms=self._first_ms or 0,
            last_timestamp_ms=self._last_ms,
            last_epoch=self._last_epoch,
            counts=tuple(counts),
            files=tuple(written),
        )
        return manifest, contents


# --- tables ---------------------------------------------------------------------------------------


@cache
def _fingerprint_of(table: str) -> str:
    return fingerprint(avro_schema(table))


class _Table:
    """Rows of one record type, decoded in chunks."""

    def __init__(self, name: str, suffix: str, metadata: dict[str, str]) -> None:
        self.name = name
        self.rows = 0
        self._columns, _ = columns_of(name)
        self._chunk: list[tuple[Row, LogPosition, Buffer]] = []
        avro = avro_schema(name)
        self.schema = _fingerprint_of(name)
        self._sink: _Sink = (
            _ParquetSink(name, metadata)
            if suffix == PARQUET
            else _AvroSink(AvroWriter(avro, metadata))
        )

    def add(self, row: Row, position: LogPosition, value: Buffer) -> list[Row]:
        """Add a record to a table; return the rows of any records that cannot be decoded."""
        try:
            self._columns.add(position, value)
        except RecordError:
            return [row]
        self._chunk.append((row, position, value))
        return self.flush() if self._columns.rows >= CHUNK_ROWS else []

    def flush(self) -> list[Row]:
        """Write the collected records to the table's file; return rows that cannot be decoded."""
        chunk, self._chunk = self._chunk, []
        try:
            self._write_columns(self._columns)
        except RecordError:
            return self._find_undecodable(chunk)
        return []

    def _write_columns(self, columns: Columns) -> None:
        """Append the collected rows to the table's file."""
        if isinstance(columns, RecordColumns) and isinstance(self._sink, _AvroSink):
            self.rows += columns.rows
            self._sink.put_rows(columns.take_rows())
            return
        batch = columns.take()
        if batch.num_rows:
            self.rows += batch.num_rows
            self._sink.put(batch)

    def _find_undecodable(self, chunk: Sequence[tuple[Row, LogPosition, Buffer]]) -> list[Row]:
        """Write decodable records one at a time; return the rows of the undecodable records."""
        self._columns, _ = columns_of(self.name)
        kept = []
        for row, position, value in chunk:
            alone, _ = columns_of(self.name)
            try:
                alone.add(position, value)
                self._write_columns(alone)
            except RecordError:
                kept.append(row)
        return kept

    def finish(self) -> bytes:
        """Finish the table's file and return its bytes."""
        return self._sink.finish()


class _Sink(Protocol):
    def put(self, batch: pa.RecordBatch) -> None: ...

    def finish(self) -> bytes: ...


class _AvroSink:
    def __init__(self, writer: AvroWriter) -> None:
        self._writer = writer

    def put_rows(self, rows: Iterable[dict[str, Any]]) -> None:
        self._writer.write(rows)

    def put(self, batch: pa.RecordBatch) -> None:
        columns = [column.to_pylist() for column in batch.columns]
        names: Sequence[Any] = batch.schema.names
        self._writer.write(dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))

    def finish(self) -> bytes:
        return self._writer.finish()


class _ParquetSink:
    def __init__(self, table: str, metadata: dict[str, str]) -> None:
        schema = schema_of(table).with_metadata(metadata)
        self._out = io.BytesIO()
        self._writer = pq.ParquetWriter(self._out, schema, compression="zstd")

    def put(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def finish(self) -> bytes:
        self._writer.close()
        return self._out.getvalue()
