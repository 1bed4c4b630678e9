"""`esker_files`: a stream's rows as Parquet files named by the log offsets they hold, once each.

    frame.writeStream.format("esker_files").option("path", "/data/commits")
        .option("checkpointLocation", "/data/commits.checkpoint").start()

    /data/commits/00000000000000000000-00000000000000004096.parquet     offsets 0 to 4095
    /data/commits/_batches/00000000000000000000.json                    manifest of batch 0

A listing of the directory shows how far it reaches, and any program that reads Parquet can read it.

A batch may run twice: Spark journals where it ends before it runs, and runs it again after a crash.
So tasks write parts, in `_parts`; when all are there, the batch's manifest says which part gets
which name, parts are renamed, and the manifest loses its suffix `.pending`. A batch with a manifest
is not written again, and one with a pending manifest is finished as it says: at no moment can a
crash leave part of a batch for good, or make a second copy of any.

The trap is a new stream in a directory that has another stream's files already. Batch numbers begin
at 0 again, and a sink that compared numbers alone would drop everything, unnoticed. So a manifest
is compared with the repeated batch, and offsets never go back.

Spark's own file sink is exact only for readers of its `_spark_metadata`, which others are not.

Source: PySpark's DataSourceStreamArrowWriter; docs/design/pipeline.md#one-input.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

NAME: Final = "esker_files"
OFFSET_COLUMN: Final = "log_offset"
PARTS: Final = "_parts"
BATCHES: Final = "_batches"
PENDING: Final = ".pending"


class SinkError(Exception):
    """Existing files contradict what a stream writes. One sentence."""


@dataclass
class Written(WriterCommitMessage):
    """The part that one task wrote, or none if it had no rows."""

    part: str | None = None
    first_offset: int = 0
    end_offset: int = 0  # exclusive
    rows: int = 0

    @property
    def name(self) -> str:
        """Return the part file's final name, made of its first and end offset."""
        return f"{self.first_offset:020d}-{self.end_offset:020d}.parquet"


class OffsetFiles(DataSource):
    """The data source `esker_files`, which can only be written to."""

    @classmethod
    def name(cls) -> str:
        """Return the name by which Spark's `format(...)` finds this sink."""
        return NAME

    def streamWriter(  # noqa: N802 (Spark's name)
        self,
        schema: StructType,
        overwrite: bool,  # noqa: ARG002 (Spark's keyword)
    ) -> DataSourceStreamWriter:
        """Return a writer into the directory of the option `path`.

        Raises:  SinkError.
        """
        path = self.options.get("path")
        if not path:
            raise SinkError("path: give a directory")
        if OFFSET_COLUMN not in schema.names:
            raise SinkError(f"the rows have no column {OFFSET_COLUMN}, which names the files")
        return OffsetFileWriter(Path(path))


class OffsetFileWriter(DataSourceStreamArrowWriter):
    """Writes parts in tasks and names them in the driver; both use the same directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    # --- tasks --------------------------------------------------------------------------------

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write a task's rows as one part file.

        Raises:  OSError.
        """
        written, writer = Written(), None
        parts = self.directory / PARTS
        parts.mkdir(parents=True, exist_ok=True)
        path = parts / f"{uuid.uuid4()}.parquet"
        try:
            for batch in iterator:
                if not batch.num_rows:
                    continue
                bounds = pc.min_max(batch.column(OFFSET_COLUMN)).as_py()
                first, end = int(bounds["min"]), int(bounds["max"]) + 1
                if writer is None:
                    writer = pq.ParquetWriter(path, batch.schema, compression="zstd")
                    written = Written(path.name, first, end, 0)
                writer.write_batch(batch)
                written.first_offset = min(written.first_offset, first)
                written.end_offset = max(written.end_offset, end)
                written.rows += batch.num_rows
        except BaseException:
            if writer is not None:
                writer.close()
            path.unlink(missing_ok=True)
            raise
        if writer is not None:
            writer.close()
            _make_durable(path)
            _make_durable(parts)  # a manifest that names it may outlive a power cut
        return written

    # --- the driver ---------------------------------------------------------------------------

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Rename a micro-batch's part files to their final names, unless already renamed.

        Raises:  SinkError.
        """
        written = sorted(
            (part for part in messages if isinstance(part, Written) and part.part is not None),
            key=lambda part: part.first_offset,
        )
        self._finish_pending()
        numbers = self._batch_numbers()
        if batchId in numbers:
            self._check_same(batchId, written)
        else:
            self._check_next(numbers, batchId, written)
            self._write_manifest(batchId, written)
            self._finish_pending()
        self._drop_parts()

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Delete the part files of a micro-batch that failed."""
        for part in messages:
            if isinstance(part, Written) and part.part is not None:
                (self.directory / PARTS / part.part).unlink(missing_ok=True)

    def _batch_numbers(self) -> list[int]:
        """List the numbers of the micro-batches that the sink has written, in rising order."""
        found = (self.directory / BATCHES).glob("*.json")
        return sorted(int(path.stem) for path in found if path.stem.isdecimal())

    def _manifest_path(self, batch: int) -> Path:
        return self.directory / BATCHES / f"{batch:020d}.json"

    def _check_same(self, batch: int, written: Sequence[Written]) -> None:
        """Raise SinkError unless a repeated batch has the same offsets and rows as before."""
        manifest = read_manifest(self._manifest_path(batch))
        rows = sum(part.rows for part in written)
        first = min((part.first_offset for part in written), default=0)
        end = max((part.end_offset for part in written), default=0)
        if (manifest["rows"], manifest["first_offset"], manifest["end_offset"]) != (
            rows,
            first,
            end,
        ):
            raise SinkError(
                f"{self.directory} has a batch {batch} of offsets {manifest['first_offset']} to "
                f"{manifest['end_offset']}, this stream's are {first} to {end}: it is another "
                "stream's; write to a directory of its own"
            )

    def _check_next(self, numbers: Sequence[int], batch: int, written: Sequence[Written]) -> None:
        """Raise SinkError if a micro-batch skips a batch number or repeats a written offset."""
        if numbers and numbers[-1] != batch - 1:
            raise SinkError(
                f"{self.directory} goes up to batch {numbers[-1]}, and this is batch {batch}: it "
                "is another stream's; write to a directory of its own"
            )
        end = self._reached_offset(numbers)
        for part in written:
            if part.first_offset < end:
                raise SinkError(
                    f"{self.directory}: offsets up to {end} are written, and {part.name} begins "
                    "before that: rows must come in the log's order, and once"
                )
            end = part.end_offset

    def _reached_offset(self, numbers: Sequence[int]) -> int:
        """Return the end offset, exclusive, of the micro-batches with these numbers."""
        if not numbers:
            return 0
        return int(read_manifest(self._manifest_path(numbers[-1]))["reached"])

    def _write_manifest(self, batch: int, written: Sequence[Written]) -> None:
        """Write a micro-batch's manifest as pending, so that a restart finishes the batch."""
        before = self._reached_offset(self._batch_numbers())
        end = max((part.end_offset for part in written), default=0)
        manifest = {
            "batch": batch,
            "first_offset": min((part.first_offset for part in written), default=0),
            "end_offset": end,
            "reached": max(before, end),
            "rows": sum(part.rows for part in written),
            "files": [
                {"name": part.name, "rows": part.rows, "part": part.part} for part in written
            ],
        }
        path = self._manifest_path(batch)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(manifest, indent=1))
        _make_durable(temporary)
        _rename(temporary, path.with_suffix(PENDING))

    def _finish_pending(self) -> None:
        """Finish pending micro-batches, even of a crashed run, by renaming their part files."""
        for pending in sorted((self.directory / BATCHES).glob(f"*{PENDING}")):
            for file in read_manifest(pending)["files"]:
                part, final = self.directory / PARTS / file["part"], self.directory / file["name"]
                if part.exists():
                    _rename(part, final)
                elif not final.exists():
                    raise SinkError(
                        f"{pending}: {file['part']} is gone, and {final.name} does not exist"
                    )
            _rename(pending, pending.with_suffix(".json"))

    def _drop_parts(self) -> None:
        """Delete the part files that aborted runs and repeated micro-batches have left."""
        for path in (self.directory / PARTS).glob("*.parquet"):
            path.unlink(missing_ok=True)


def read_manifest(path: Path) -> dict[str, Any]:
    """Read the manifest of a micro-batch that the sink wrote.

    Raises:  SinkError if it is invalid; OSError.
    """
    try:
        manifest = json.loads(path.read_text())
        for file in manifest["files"]:
            if Path(file["name"]).name != file["name"] or Path(file["part"]).name != file["part"]:
                raise ValueError("names that are paths")
        if not all(
            isinstance(manifest[key], int) for key in ("rows", "first_offset", "end_offset")
        ):
            raise TypeError("no numbers")
        manifest["reached"] = int(manifest["reached"])
    except (ValueError, KeyError, TypeError) as error:
        raise SinkError(f"{path} is not a batch's manifest: {error}") from None
    assert isinstance(manifest, dict), f"it has keys: {manifest}"
    return manifest


def _rename(source: Path, target: Path) -> None:
    source.rename(target)
    for directory in {source.parent, target.parent}:
        _make_durable(directory)


def _make_durable(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
