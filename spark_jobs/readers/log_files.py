"""A replica's log as files, read while the replica goes on writing them.

Nothing is locked: segments only grow at their end, checkpoints never change, and both may be
deleted at any moment. So a reader plans first (`spans`): which bytes of which files hold the
requested offsets; and reads later, perhaps in another process. A file that was deleted meanwhile
raises an error and is never taken for empty.

The trap is that a log's length means nothing. Records at a replica's end may not be committed, and
may be truncated; so the caller gives the end of the committed part.

Source: KIP-630 (a log begins with a checkpoint once its head is cut); `raft.segments`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from errno import ENOENT
from pathlib import Path
from socket import gethostname
from typing import Final

from raft.segments.files import FileSystem, Mode, RealFileSystem
from raft.segments.index import OffsetIndex
from raft.segments.segment import INDEX_SUFFIX, base_offset_of, segment_name
from records.batch import HEADER_SIZE_BYTES, Batch, iter_records, parse_header
from records.compression import Buffer
from records.errors import CorruptBatchError
from records.types import Offset, OffsetAndEpoch
from snapshot.errors import DamagedFileError
from snapshot.names import checkpoint_name, list_checkpoints, parse_checkpoint_name
from snapshot.reader import CheckpointReader
from snapshot.stream import iter_file_batches
from spark_jobs.readers.log_position import LogPosition

SPLIT_BYTES: Final = 64 * 1024 * 1024
"""Approximate bytes of log that one task reads."""


class LostRangeError(Exception):
    """Part of the log has been deleted, and no checkpoint stands for it."""

    def __init__(self, where: Path | str, wanted: int, earliest: int | None, why: str) -> None:
        """Create the error for a log that lacks the offsets from `wanted` on.

        Args:    where: the log. wanted: the first offset that is missed.
                 earliest: the first offset that there is; None: unknown.
        """
        first = "" if earliest is None else f"; the first offset is {earliest}"
        super().__init__(f"{where}: offsets from {wanted} on are gone ({why}){first}")
        self.where = where
        self.wanted = wanted
        self.earliest = earliest
        self.why = why

    def __reduce__(self) -> tuple[type[LostRangeError], tuple[Path | str, int, int | None, str]]:
        """Pickle the error by its arguments, because tasks raise it in other processes."""
        return LostRangeError, (self.where, self.wanted, self.earliest, self.why)


@dataclass(frozen=True, slots=True)
class FileSpan:
    """Bytes of a file, of which one task reads the records in [start_offset, end_offset).

    Of a checkpoint: all of it, and `end_offset` is the offset it stands for.
    """

    path: Path
    is_checkpoint: bool
    start_offset: int
    end_offset: int
    position: int = 0
    end_position: int | None = None  # exclusive; None: to where the records end

    def within(self, lowest: int, highest: int) -> FileSpan | None:
        """Narrow the span to these offsets, both inclusive, or return None if no offset is left."""
        if self.is_checkpoint:
            return self if lowest <= self.end_offset - 1 <= highest else None
        start, end = max(self.start_offset, lowest), min(self.end_offset, highest + 1)
        return replace(self, start_offset=start, end_offset=end) if start < end else None

    def size_bytes(self) -> int:
        """Return the approximate number of bytes to read, or 0 if the file is gone."""
        try:
            end = self.end_position or self.path.stat().st_size
        except OSError:
            return 0
        return max(0, end - self.position)

    def values(self) -> Iterator[tuple[LogPosition, Buffer]]:
        """Yield the span's metadata records from this machine's disk."""
        return read_values(self)

    def batches(self) -> Iterator[Batch]:
        """Yield the span's batches from this machine's disk."""
        return read_batches(self)


class LogFiles:
    """The directory of one log, such as `__diskless-metadata-0` in a replica's log directory."""

    def __init__(self, directory: Path, files: FileSystem | None = None) -> None:
        self.directory = directory
        self._files = files or RealFileSystem()

    def segments(self) -> list[int]:
        """List the base offsets of the segments in the directory, in rising order.

        Raises:  OSError.
        """
        found = (base_offset_of(name) for name in self._files.listdir(self.directory))
        return sorted(offset for offset in found if offset is not None)

    def checkpoints(self) -> list[OffsetAndEpoch]:
        """List the ids of the complete checkpoints in the directory, in rising order.

        Raises:  OSError.
        """
        return list_checkpoints(self._files, self.directory)

    def checkpoint_spans(self) -> list[FileSpan]:
        """List the complete checkpoints in the directory as spans, in rising order.

        Raises:  OSError.
        """
        return [
            FileSpan(self.directory / checkpoint_name(checkpoint), True, 0, checkpoint.offset)
            for checkpoint in self.checkpoints()
        ]

    def end_offset(self, committed: int = 0) -> int:
        """Return the end offset of the last whole batch, or 0 for an empty log.

        Not how much is committed: a bound of what can be read here. What a crash has torn ends the
        log, as for its node.

        Args:    committed: damage before this offset is no torn end, but an error.
        Raises:  DamagedFileError; OSError.
        """
        segments = self.segments()
        if not segments:
            return max((checkpoint.offset for checkpoint in self.checkpoints()), default=0)
        base = segments[-1]
        index = OffsetIndex(self.directory / segment_name(base, INDEX_SUFFIX), Offset(base))
        index.load(self._files)
        position = index.entry(len(index) - 1).position if len(index) else 0
        end_offset: int = base
        path = self.directory / segment_name(base)
        file = self._files.open(path, Mode.READ)
        try:
            while len(header := file.read(position, HEADER_SIZE_BYTES)) == HEADER_SIZE_BYTES:
                found = parse_header(header)
                if position + found.size_bytes > file.size():
                    break
                position, end_offset = position + found.size_bytes, found.end_offset
        except CorruptBatchError as error:
            if end_offset < committed:
                raise DamagedFileError(
                    path=path, position=position, offset=error.offset, reason=error.reason
                ) from None
        finally:
            file.close()
        return end_offset

    def spans(
        self,
        end_offset: int,
        *,
        start_offset: int | None = None,
        split_bytes: int = SPLIT_BYTES,
    ) -> list[FileSpan]:
        """Split the committed offsets below `end_offset` into spans, in order.

        Args:    end_offset: exclusive; at or below the high watermark.
                 start_offset: where the reader continues; None: from the beginning, that is from
                 the newest checkpoint that is needed for it.
        Raises:  LostRangeError; OSError.
        """
        segments = self.segments()
        spans: list[FileSpan] = []
        start = 0 if start_offset is None else start_offset
        if start_offset is None and (not segments or segments[0] > 0):
            spans.append(self._checkpoint_before(end_offset, segments))
            start = spans[0].end_offset
        if start < end_offset and (not segments or segments[0] > start):
            earliest = segments[0] if segments else None
            raise LostRangeError(self.directory, start, earliest, "the log's head was cut off")
        for base, following in zip(segments, [*segments[1:], None], strict=True):
            if base < end_offset and (following is None or following > start):
                stop = end_offset if following is None else min(end_offset, following)
                spans += self._split(base, max(base, start), stop, split_bytes)
        return spans

    def _checkpoint_before(self, end_offset: int, segments: list[int]) -> FileSpan:
        """Return the oldest checkpoint from which the log continues to `end_offset` without a gap.

        The oldest replaced the fewest changes.
        """
        for checkpoint in self.checkpoints():
            end = checkpoint.offset
            if end == end_offset or (end < end_offset and segments and segments[0] <= end):
                return FileSpan(self.directory / checkpoint_name(checkpoint), True, 0, end)
        raise LostRangeError(
            self.directory, 0, segments[0] if segments else None, "there is no checkpoint before it"
        )

    def _split(self, base: int, start: int, stop: int, split_bytes: int) -> Iterator[FileSpan]:
        """Split a segment at batch boundaries into spans with disjoint offsets."""
        index = OffsetIndex(self.directory / segment_name(base, INDEX_SUFFIX), Offset(base))
        index.load(self._files)
        path = self.directory / segment_name(base)
        cuts = [(index.lookup(start), start)]
        file = self._files.open(path, Mode.READ)
        try:
            for i in range(len(index)):
                offset, position = index.entry(i)
                if offset >= stop:
                    break
                if offset >= start and position - cuts[-1][0] >= split_bytes:
                    header = parse_header(file.read(position, HEADER_SIZE_BYTES))
                    if header.base_offset > cuts[-1][1]:
                        cuts.append((position, header.base_offset))
        finally:
            file.close()
        for (position, first), following in zip(cuts, [*cuts[1:], None], strict=True):
            end_position, end = (None, stop) if following is None else following
            yield FileSpan(path, False, first, end, position, end_position)


def read_values(
    span: FileSpan, files: FileSystem | None = None
) -> Iterator[tuple[LogPosition, Buffer]]:
    """Yield the position and framed value of each metadata record in a span.

    Control records, the log's own, are left out.

    Raises:  LostRangeError if the file is gone; DamagedFileError, RecordError; OSError.
    """
    batches = read_batches(span, files)
    if span.is_checkpoint:
        yield from _checkpoint_values(span, batches)
    else:
        for batch in batches:
            yield from batch_values(batch, span.start_offset, span.end_offset)


def read_batches(span: FileSpan, files: FileSystem | None = None) -> Iterator[Batch]:
    """Yield the whole batches that hold any of a span's offsets, control batches included.

    Of a checkpoint: all there are, header and footer too.

    Raises:  as `read_values`.
    """
    files = files or RealFileSystem()
    try:
        if span.is_checkpoint:
            with CheckpointReader(files, span.path) as reader:
                yield from reader.batches()
        else:
            yield from _log_batches(span, files)
    except FileNotFoundError:
        directory = span.path.parent
        if not files.exists(directory):
            why = f"no such directory on {gethostname()}: each Spark worker needs the log directory"
            raise FileNotFoundError(ENOENT, why, str(directory)) from None
        raise LostRangeError(
            directory, span.start_offset, None, f"{span.path.name} was deleted meanwhile"
        ) from None


def _log_batches(span: FileSpan, files: FileSystem) -> Iterator[Batch]:
    file, offset = files.open(span.path, Mode.READ), span.start_offset
    try:
        batches = iter_file_batches(
            file, span.path, position=span.position, end_position=span.end_position
        )
        for batch in batches:
            if batch.header.end_offset > span.start_offset:
                yield batch
            if batch.header.end_offset >= span.end_offset:
                return  # what follows may be half written
            offset = batch.header.end_offset
    finally:
        file.close()
    raise LostRangeError(span.path.parent, offset, None, f"{span.path.name} ends there")


def batch_values(batch: Batch, start: int, end: int) -> Iterator[tuple[LogPosition, Buffer]]:
    """Yield the metadata records of a batch with offsets from `start` to `end`, exclusive.

    Raises:  RecordError.
    """
    if batch.header.is_control:
        return
    epoch = batch.header.leader_epoch
    for record in iter_records(batch):
        if start <= record.offset < end and record.value is not None:
            yield LogPosition(False, record.offset, epoch, record.timestamp), record.value


def _checkpoint_values(
    span: FileSpan, batches: Iterator[Batch]
) -> Iterator[tuple[LogPosition, Buffer]]:
    snapshot_id = parse_checkpoint_name(span.path.name)
    assert snapshot_id is not None, f"{span.path} is not a checkpoint"
    for batch in batches:
        if batch.header.is_control:
            continue
        for record in iter_records(batch):
            if record.value is not None:
                position = LogPosition(
                    True, span.end_offset - 1, snapshot_id.epoch, record.timestamp
                )
                yield position, record.value
