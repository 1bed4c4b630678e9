"""`esker_files`: a stream's rows as Parquet files named by the log offsets they hold, once each.

    frame.writeStream.format("esker_files").option("path", "/data/commits")
        .option("checkpointLocation", "/data/commits.checkpoint").start()

    /data/commits/00000000000000000000-00000000000000004096.parquet     offsets 0 to 4095
    /data/commits/_batches/00000000000000000000.json                    what batch 0 consists of

Whoever lists the directory sees how far it goes, and reads it with anything that reads Parquet.

A batch may run twice: Spark journals where it ends before it runs, and runs it again after a crash.
So tasks write parts, in `_parts`; when all are there, the batch's page says which part gets which
name, parts are renamed, and the page loses its suffix `.pending`. A batch whose page is there is
not written again, and one whose page is pending is finished as the page says: there is no moment at
which a crash leaves some of a batch for good, or makes a second copy of any.

The surprise is the other danger: a stream that is begun anew in a directory that has a stream's
files already. Batch numbers begin at 0 again, and a sink that believed in numbers alone would throw
everything away, unseen. So a page is compared with what comes, and offsets never go back.

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
    """Files that are there contradict what a stream writes. One sentence."""


@dataclass
class Written(WriterCommitMessage):
    """What one task wrote; no part if it had no rows."""

    part: str | None = None
    first_offset: int = 0
    end_offset: int = 0  # exclusive
    rows: int = 0

    @property
    def name(self) -> str:
        """Of the file that the part becomes."""
        return f"{self.first_offset:020d}-{self.end_offset:020d}.parquet"


class OffsetFiles(DataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        """For `format`."""
        return NAME

    def streamWriter(  # noqa: N802 (Spark's name)
        self,
        schema: StructType,
        overwrite: bool,  # noqa: ARG002 (Spark's keyword)
    ) -> DataSourceStreamWriter:
        """Raises SinkError."""
        path = self.options.get("path")
        if not path:
            raise SinkError("path: name a directory")
        if OFFSET_COLUMN not in schema.names:
            raise SinkError(f"the rows have no {OFFSET_COLUMN}, by which files are named")
        return OffsetFileWriter(Path(path))


class OffsetFileWriter(DataSourceStreamArrowWriter):
    """Writes in tasks, names in the driver; both see the same directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    # --- tasks --------------------------------------------------------------------------------

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """One part. Raises OSError."""
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
            _make_durable(parts)  # a page that names it may outlive a power cut
        return written

    # --- the driver ---------------------------------------------------------------------------

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Give a batch's parts their names, unless an earlier run of it has. Raises SinkError."""
        written = sorted(
            (one for one in messages if isinstance(one, Written) and one.part is not None),
            key=lambda one: one.first_offset,
        )
        self._finish_pending()
        pages = self._pages()
        if batchId in pages:
            self._check_same(batchId, written)
        else:
            self._check_next(pages, batchId, written)
            self._write_page(batchId, written)
            self._finish_pending()
        self._drop_parts()

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        """Parts of a batch that failed are of no use."""
        for one in messages:
            if isinstance(one, Written) and one.part is not None:
                (self.directory / PARTS / one.part).unlink(missing_ok=True)

    def _pages(self) -> list[int]:
        """Numbers of the batches that are here, rising."""
        found = (self.directory / BATCHES).glob("*.json")
        return sorted(int(path.stem) for path in found if path.stem.isdecimal())

    def _page(self, batch: int) -> Path:
        return self.directory / BATCHES / f"{batch:020d}.json"

    def _check_same(self, batch: int, written: Sequence[Written]) -> None:
        """That a batch that is here is the one that was written again."""
        page = read_page(self._page(batch))
        rows = sum(one.rows for one in written)
        first = min((one.first_offset for one in written), default=0)
        end = max((one.end_offset for one in written), default=0)
        if (page["rows"], page["first_offset"], page["end_offset"]) != (rows, first, end):
            raise SinkError(
                f"{self.directory} has a batch {batch} of offsets {page['first_offset']} to "
                f"{page['end_offset']}, this stream's are {first} to {end}: it is another "
                "stream's; write to a directory of its own"
            )

    def _check_next(self, pages: Sequence[int], batch: int, written: Sequence[Written]) -> None:
        """That a new batch goes on where the last one ended."""
        if pages and pages[-1] != batch - 1:
            raise SinkError(
                f"{self.directory} goes up to batch {pages[-1]}, and this is batch {batch}: it is "
                "another stream's; write to a directory of its own"
            )
        end = read_page(self._page(pages[-1]))["reached"] if pages else 0
        for one in written:
            if one.first_offset < end:
                raise SinkError(
                    f"{self.directory}: offsets up to {end} are here, and {one.name} begins before "
                    "that: rows must come in the log's order, and once"
                )
            end = one.end_offset

    def _write_page(self, batch: int, written: Sequence[Written]) -> None:
        """From here on the batch is sure to be finished."""
        pages = self._pages()
        before = read_page(self._page(pages[-1]))["reached"] if pages else 0
        end = max((one.end_offset for one in written), default=0)
        page = {
            "batch": batch,
            "first_offset": min((one.first_offset for one in written), default=0),
            "end_offset": end,
            "reached": max(before, end),
            "rows": sum(one.rows for one in written),
            "files": [{"name": one.name, "rows": one.rows, "part": one.part} for one in written],
        }
        path = self._page(batch)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(page, indent=1))
        _make_durable(temporary)
        _rename(temporary, path.with_suffix(PENDING))

    def _finish_pending(self) -> None:
        """Do what a page says that a crash, or just now we, left pending."""
        for pending in sorted((self.directory / BATCHES).glob(f"*{PENDING}")):
            for file in read_page(pending)["files"]:
                part, final = self.directory / PARTS / file["part"], self.directory / file["name"]
                if part.exists():
                    _rename(part, final)
                elif not final.exists():
                    raise SinkError(f"{pending}: {file['part']} is gone, and {final.name} not here")
            _rename(pending, pending.with_suffix(".json"))

    def _drop_parts(self) -> None:
        """What no page names: of runs that were cut short, and of batches that were here."""
        for path in (self.directory / PARTS).glob("*.parquet"):
            path.unlink(missing_ok=True)


def read_page(path: Path) -> dict[str, Any]:
    """A batch's page. Raises SinkError if it is none; OSError."""
    try:
        page = json.loads(path.read_text())
        for file in page["files"]:
            if Path(file["name"]).name != file["name"] or Path(file["part"]).name != file["part"]:
                raise ValueError("names that are paths")
        if not all(isinstance(page[key], int) for key in ("rows", "first_offset", "end_offset")):
            raise TypeError("no numbers")
        page["reached"] = int(page["reached"])
    except (ValueError, KeyError, TypeError) as error:
        raise SinkError(f"{path} is no batch's page: {error}") from None
    assert isinstance(page, dict), f"it has keys: {page}"
    return page


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
