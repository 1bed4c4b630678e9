"""Caches digests in files, so that each piece of a log is digested once.

    pieces = DigestCache(Path("~/.cache/esker/digests").expanduser())
    pieces.digest(work)  # read, or made and written

The name of a file contains everything that its content depends on: the cluster, the log, and the
committed offsets. Those never get different content, so nothing has to be invalidated; a file that
was damaged, or cannot be written, only costs the time to make it again. Only the newest digest of
the growing end of a log is kept.

The trap is history, which no name contains. A cluster that is restored from a copy keeps its id,
and has other records at offsets that were read before. So a file beside the digests records how far
the log was read, and the epoch there; if the log has another epoch there, or is shorter, all its
digests are dropped (`keep_to`).

Why two checksums: the planner reads the digest alone, a few KB at the front of the file; the runs
behind it are read only when they are needed.

Source: docs/design/pipeline.md#plans. The format is ours, and no other program's: it may change
with any version.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from crc32c import crc32c

from spark_jobs.readers.logs import Span
from spark_jobs.retention.digests import Digest, Piece, Rows, digest_span
from spark_jobs.retention.replaced import CorrectedSpan, corrected

MAGIC: Final = b"ESKRUNS5"
HISTORY: Final = "history.json"
_FRONT: Final = struct.Struct("<8sIII")  # magic, size of head and digest, their CRC, the rows' CRC
_LENGTH: Final = struct.Struct("<I")
_OF_DIGEST: Final = (
    "topics", "partitions", "run_counts", "byte_sums", "first_ends", "last_offsets",
    "max_timestamps",
)  # fmt: skip
_OF_ROWS: Final = (
    "last_offsets",
    "timestamps",
    "byte_sizes",
    "objects",
    "object_sizes",
    "batch_bytes",
)


class Work(NamedTuple):
    """A piece of a cluster's log: one task's work."""

    cluster_id: str
    log: str
    span: Span

    @property
    def name(self) -> str:
        """Return the cache file's name, made of the first and end offset of the span."""
        kind = "checkpoint" if self.span.is_checkpoint else f"{self.span.start_offset:020}"
        return f"{kind}-{self.span.end_offset:020}.runs"


@dataclass(frozen=True, slots=True)
class DigestCache:
    """A directory of cached pieces; without a directory nothing is cached."""

    directory: Path | None

    def known_digest(self, work: Work) -> Digest | None:
        """Return the cached digest of a span of the log, or None if the cache lacks the digest."""
        found = self._read(work, rows=False)
        return None if found is None else found[0]

    def digest(self, work: Work) -> Digest:
        """Return the digest of a span of the log from the cache, or compute the digest.

        Raises:  as `Span.values` if the digest is computed.
        """
        if isinstance(work.span, CorrectedSpan):
            return self.piece(work).digest
        known = self.known_digest(work)
        return self._make(work).digest if known is None else known

    def piece(self, work: Work) -> Piece:
        """Return a span's digest and runs of batches, cached or else computed.

        Corrections are applied to what is cached, and are not cached.
        """
        if isinstance(work.span, CorrectedSpan):
            return corrected(self.piece(work._replace(span=work.span.span)), work.span.correction)
        found = self._read(work, rows=True)
        if found is None or found[1] is None:
            return self._make(work)
        return Piece(found[0], found[1])

    def drop_before(self, first: Work) -> None:
        """Delete the cache files of spans that a checkpoint at the log's beginning replaces."""
        path = self._path(first)
        if path is not None and first.span.is_checkpoint:
            for other in path.parent.glob("*.runs"):
                end = other.name.removesuffix(".runs").rpartition("-")[2]
                if end.isdecimal() and int(end) <= first.span.end_offset and other != path:
                    with contextlib.suppress(OSError):
                        other.unlink(missing_ok=True)

    def keep_to(
        self, cluster_id: str, log: str, end_offset: int, epoch_before: Callable[[int], int | None]
    ) -> bool:
        """Delete a log's cached digests if its history changed; return whether the cache is usable.

        Args:    end_offset: the end up to which it will be read.
                 epoch_before: epoch of the record before an offset; None: that record is gone.
        Raises:  what `epoch_before` raises; OSError if a file cannot be deleted.
        """
        if self.directory is None:
            return True
        path = self.directory / cluster_id / log / HISTORY
        if not _goes_through(path, end_offset, epoch_before):
            for other in path.parent.glob("*.runs"):
                other.unlink(missing_ok=True)
        try:
            mark = {"end_offset": end_offset, "epoch": epoch_before(end_offset)}
            _replace(path, [json.dumps(mark).encode()])
        except OSError:
            return False
        return True

    def _path(self, work: Work) -> Path | None:
        if self.directory is None:
            return None
        return self.directory / work.cluster_id / work.log / work.name

    def _read(self, work: Work, *, rows: bool) -> tuple[Digest, Rows | None] | None:
        path = self._path(work)
        if path is None:
            return None
        try:
            with path.open("rb") as file:
                return _unpack(file, rows=rows)
        except (OSError, ValueError, KeyError, TypeError, struct.error):
            return None  # not there, or not whole: it is made anew

    def _make(self, work: Work) -> Piece:
        piece = digest_span(work.span)
        path = self._path(work)
        if path is not None:
            with contextlib.suppress(OSError):  # a disk that is full costs time, not the plan
                _replace(path, pack(piece))
                _drop_shorter(path)
        return piece


def _goes_through(path: Path, end_offset: int, epoch_before: Callable[[int], int | None]) -> bool:
    """Return whether the log still has the same history up to the end offset of the last job."""
    try:
        mark = json.loads(path.read_bytes())
        before, epoch = int(mark["end_offset"]), mark["epoch"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    if before > end_offset:
        return False
    found = epoch_before(before)
    return found is None or found == epoch


def _replace(path: Path, parts: Iterable[bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with partial.open("wb") as file:
            file.writelines(parts)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _drop_shorter(path: Path) -> None:
    """Delete the cache files of shorter spans that start at the same offset as this file's span."""
    start = path.name.split("-")[0]
    if start != "checkpoint":
        for other in path.parent.glob(f"{start}-*.runs"):
            if other.name < path.name:
                other.unlink(missing_ok=True)


# --- bytes ----------------------------------------------------------------------------------------


def pack(piece: Piece) -> list[bytes]:
    """Encode a span's digest and runs of batches as the parts of a cache file."""
    digest, rows = piece.digest, _narrow(piece.rows)
    of_digest = [np.ascontiguousarray(getattr(digest, name)) for name in _OF_DIGEST]
    of_rows = [np.ascontiguousarray(getattr(rows, name)) for name in _OF_ROWS]
    head = json.dumps(
        {
            "topic_ids": list(digest.topic_ids),
            "records": [len(record) for record in digest.records],
            "replacements": [len(record) for record in digest.replacements],
            "digest": [(column.dtype.str, len(column)) for column in of_digest],
            "rows": [(column.dtype.str, len(column)) for column in of_rows],
        }
    ).encode()
    front = [_LENGTH.pack(len(head)), head, *(column.tobytes() for column in of_digest)]
    front_bytes = b"".join([*front, *digest.records, *digest.replacements])
    row_bytes = b"".join(column.tobytes() for column in of_rows)
    sealed = _FRONT.pack(MAGIC, len(front_bytes), crc32c(front_bytes), crc32c(row_bytes))
    return [sealed, front_bytes, row_bytes]


def _narrow(rows: Rows) -> Rows:
    """Convert each column to 32-bit numbers if all values of the column fit."""
    sizes = rows.byte_sizes
    if len(sizes) and sizes.max() < 1 << 32:
        sizes = sizes.astype(np.uint32)
    return replace(rows, byte_sizes=sizes, objects=rows.objects.astype(np.int32))


def _unpack(file: Any, *, rows: bool) -> tuple[Digest, Rows | None]:
    """Decode a cache file into a digest and, if requested, its runs of batches.

    Raises:  ValueError, KeyError, TypeError, struct.error if it is damaged.
    """
    magic, size, front_crc, rows_crc = _FRONT.unpack(file.read(_FRONT.size))
    if magic != MAGIC:
        raise ValueError("no file of runs")
    front = file.read(size)
    if crc32c(front) != front_crc:
        raise ValueError("a damaged digest")
    (length,) = _LENGTH.unpack_from(front)
    head = json.loads(front[_LENGTH.size : _LENGTH.size + length])
    columns, position = _columns(front, _LENGTH.size + length, head["digest"])
    records: dict[str, list[bytes]] = {"records": [], "replacements": []}
    for name, values in records.items():
        for record_size in head[name]:
            values.append(front[position : position + record_size])
            position += record_size
    digest = Digest(
        head["topic_ids"],
        **dict(zip(_OF_DIGEST, columns, strict=True)),
        records=records["records"],
        replacements=records["replacements"],
    )
    if not rows:
        return digest, None
    data = file.read()
    if crc32c(data) != rows_crc:
        raise ValueError("damaged runs")
    return digest, Rows(*_columns(data, 0, head["rows"])[0])


def _columns(data: bytes, position: int, kinds: list[tuple[str, int]]) -> tuple[list[Any], int]:
    found = []
    for kind, count in kinds:
        column = np.frombuffer(data, kind, count, position)
        found.append(column)
        position += column.nbytes
    return found, position
