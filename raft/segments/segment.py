"""One segment: a file of batches, named for its first offset, and the two indexes beside it.

Batches lie back to back from position 0 with no gap between their offsets. A segment knows nothing
of its neighbours, of flushing or of recovery; `log.py` has those. It is appended to at its end,
read at any offset, and cut at a batch's start.

Source: org.apache.kafka.storage.internals.log.LogSegment.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from raft.segments.errors import CorruptLogError
from raft.segments.files import File, FileSystem, Mode
from raft.segments.index import OffsetIndex, TimeIndex
from raft.segments.scan import Advance, ScanResult, Tail, advance, scan
from records.batch import (
    HEADER_SIZE_BYTES,
    LOG_OVERHEAD_BYTES,
    Batch,
    BatchHeader,
    iter_batches,
    parse_header,
    read_batch,
)
from records.compression import Buffer
from records.errors import CorruptBatchError, IncompleteBatchError, RecordError
from records.types import Epoch, Offset

_unpack_place: Final = struct.Struct(">qi11xi").unpack_from
"""Unpack base offset, length and last offset delta from a batch's header."""

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"


def segment_name(base_offset: int, suffix: str = LOG_SUFFIX) -> str:
    """Return Kafka's name of a segment file: the base offset in 20 digits.

    >>> segment_name(57)
    '00000000000000000057.log'
    """
    return f"{base_offset:020d}{suffix}"


def base_offset_of(name: str, suffix: str = LOG_SUFFIX) -> Offset | None:
    """Return the base offset in a segment file's name, or None for another kind of file."""
    stem = name.removesuffix(suffix)
    if stem == name or len(stem) != 20 or not (stem.isascii() and stem.isdecimal()):
        return None
    offset = int(stem)
    return Offset(offset) if offset < 1 << 63 else None


class Records(NamedTuple):
    """One or more whole batches, back to back in `data`."""

    data: memoryview
    batches: tuple[Batch, ...]

    @property
    def base_offset(self) -> Offset:
        return self.batches[0].header.base_offset

    @property
    def end_offset(self) -> Offset:
        return self.batches[-1].header.end_offset


class Segment:
    """An open segment. `tail` is the end of its last whole batch."""

    def __init__(
        self,
        files: FileSystem,
        directory: Path,
        base_offset: Offset,
        file: File,
        *,
        index_interval_bytes: int,
    ) -> None:
        self._files = files
        self.base_offset = base_offset
        self.path = directory / segment_name(base_offset)
        self.file = file
        self.tail = Tail(0, base_offset, newest_offset=base_offset)
        self.offset_index = OffsetIndex(
            directory / segment_name(base_offset, INDEX_SUFFIX), base_offset
        )
        self.time_index = TimeIndex(
            directory / segment_name(base_offset, TIME_INDEX_SUFFIX), base_offset
        )
        self._index_interval_bytes = index_interval_bytes

    @classmethod
    def open(
        cls,
        files: FileSystem,
        directory: Path,
        base_offset: Offset,
        *,
        mode: Mode,
        index_interval_bytes: int,
    ) -> Segment:
        """Open or create the log file of a segment, without reading its indexes."""
        file = files.open(directory / segment_name(base_offset), mode)
        segment = cls(
            files, directory, base_offset, file, index_interval_bytes=index_interval_bytes
        )
        segment.tail = segment.tail._replace(position=file.size())
        return segment

    @property
    def size_bytes(self) -> int:
        return self.tail.position

    def paths(self) -> Iterable[Path]:
        """Return the paths of this segment's log file, offset index and time index."""
        return (self.path, self.offset_index.path, self.time_index.path)

    # --- growing -----------------------------------------------------------------------------

    def check(self, data: Buffer, *, max_batch_size_bytes: int) -> Advance:
        """Check that `data` continues this segment; return its new tail and index entries."""
        found = Advance(self.tail)
        advance(
            found,
            data,
            index_interval_bytes=self._index_interval_bytes,
            max_batch_size_bytes=max_batch_size_bytes,
        )
        return found

    def append(self, data: Buffer, found: Advance) -> None:
        """Append the batches that `check` has accepted to the segment.

        Raises:  OSError; the tail stands, but the file may hold more.
        """
        self.file.write(self.tail.position, data)
        self._add_entries(found)
        self.tail = found.tail

    def _add_entries(self, found: Advance) -> None:
        for last_offset, position, newest, newest_offset in found.entries:
            self.offset_index.append(last_offset, position)
            self.time_index.maybe_append(newest, newest_offset)

    def seal(self) -> None:
        """End appends to the segment, by adding the newest timestamp to its time index."""
        self.time_index.maybe_append(self.tail.newest, self.tail.newest_offset)

    def write_indexes(self, *, durably: bool) -> None:
        """Write the segment's indexes from memory to the index files.

        Raises OSError.
        """
        self.offset_index.write_out(self._files, durably=durably)
        self.time_index.write_out(self._files, durably=durably)

    # --- opening -----------------------------------------------------------------------------

    def rebuild(self, *, last_epoch: Epoch | None = None) -> ScanResult:
        """Read the whole file, check every batch, and rebuild the indexes from the valid batches.

        Afterwards `tail` is the end of the last sound batch; the file itself is left alone.
        """
        self.offset_index.clear()
        self.time_index.clear()
        result = scan(
            self.file,
            base_offset=self.base_offset,
            size_bytes=self.file.size(),
            last_epoch=last_epoch,
            index_interval_bytes=self._index_interval_bytes,
        )
        self._add_entries(result.found)
        self.tail = result.found.tail
        return result

    def load_indexes(self, end_offset: int) -> bool:
        """Load the index files, or return False if they disagree with the log file.

        The log must agree with them from their last entry on, and end at `end_offset`. Indexes that
        are missing, stale or damaged are left empty.
        """
        loaded = (
            self.offset_index.load(self._files)
            and self.time_index.load(self._files)
            and self.offset_index.fits(self.size_bytes)
        )
        if loaded:
            try:
                loaded = self._walk_tail() == end_offset > self.tail.newest_offset
            except RecordError:
                loaded = False
        if not loaded:
            self.offset_index.clear()
            self.time_index.clear()
        return loaded

    def header_at(self, position: int) -> BatchHeader:
        """Return the header of the batch at `position`.

        Raises RecordError.
        """
        return parse_header(self.file.read(position, HEADER_SIZE_BYTES))

    def _walk_tail(self) -> Offset:
        """Read the batches after the last index entry to find the end offset and newest timestamp.

        Returns where the segment ends. Raises RecordError where headers contradict the index or
        each other; checksums are not looked at.
        """
        size_bytes = self.tail.position
        position, expected, since_entry = 0, None, 0
        newest, newest_offset = -1, int(self.base_offset)
        if len(self.offset_index):
            last_offset, position = self.offset_index.entry(len(self.offset_index) - 1)
            expected = self.header_at(position).base_offset
            if self.header_at(position).last_offset != last_offset:
                raise CorruptBatchError(position=position, reason="the index names another batch")
        if len(self.time_index):
            newest, newest_offset = self.time_index.entry(len(self.time_index) - 1)
        end, epoch = int(self.base_offset), self.tail.epoch
        while position < size_bytes:
            header = self.header_at(position)
            if expected is not None and header.base_offset != expected:
                raise CorruptBatchError(position=position, reason=f"expected offset {expected}")
            if header.max_timestamp > newest:
                newest, newest_offset = header.max_timestamp, header.last_offset
            since_entry += header.size_bytes
            position += header.size_bytes
            end = expected = header.end_offset
            epoch = header.leader_epoch
        if position != size_bytes:
            raise CorruptBatchError(position=position, reason="the file ends inside a batch")
        first_timestamp = self.header_at(0).max_timestamp if size_bytes else None
        self.tail = Tail(
            size_bytes, end, epoch, first_timestamp, newest, newest_offset, since_entry
        )
        return Offset(end)

    # --- reading -----------------------------------------------------------------------------

    def locate(self, offset: int) -> int:
        """Return the position of the batch that holds `offset`, which must be in this segment.

        An index that misleads is made anew, once; a log that does is damage.
        Raises:  CorruptLogError.
        """
        try:
            return self._search(offset, self.offset_index.lookup(offset))
        except RecordError:
            result = self.rebuild()
            if result.damage is not None:
                raise CorruptLogError(
                    path=self.path,
                    position=self.tail.position,
                    offset=self.tail.end_offset,
                    reason=result.damage,
                ) from None
            return self._search(offset, self.offset_index.lookup(offset))

    def _search(self, offset: int, position: int) -> int:
        """Search for the batch that holds `offset`, by reading batch headers from `position` on."""
        window_bytes = self._index_interval_bytes + HEADER_SIZE_BYTES
        start, window = position, b""
        while True:
            if position + HEADER_SIZE_BYTES > start + len(window):
                start = position
                left = max(0, self.size_bytes - start)  # a damaged length leads past the end
                window = self.file.read(start, min(window_bytes, left))
            header = parse_header(window, position - start)
            if header.end_offset > offset:
                if header.base_offset > offset:
                    raise CorruptBatchError(position=position, reason=f"beyond offset {offset}")
                return position
            position += header.size_bytes

    def read(
        self, offset: int, *, max_bytes: int, end_offset: int, verify_crc: bool = True
    ) -> Records | None:
        """Read whole batches from the batch that holds `offset`, all below `end_offset`.

        The first is returned whatever its size, the others while all fit in `max_bytes`. None if
        already the first reaches past `end_offset`.
        Raises:  CorruptLogError.
        """
        start = self.locate(offset)
        left = self.size_bytes - start
        data = self.file.read(start, min(max(max_bytes, HEADER_SIZE_BYTES), left))
        batches: list[Batch] = []
        size, expected = 0, offset
        try:
            first = parse_header(data)
            if first.size_bytes > len(data):
                data = self.file.read(start, min(first.size_bytes, left))
                read_batch(data, verify_crc=False)  # whole now, or the file is damaged
            for batch in iter_batches(data, verify_crc=verify_crc, allow_partial_tail=True):
                if batch.header.end_offset > end_offset:
                    break
                batches.append(batch)
                size += batch.header.size_bytes
                expected = batch.header.end_offset
        except (CorruptBatchError, IncompleteBatchError) as error:
            raise CorruptLogError(
                path=self.path,
                position=start + error.position,
                offset=expected,
                reason=str(error),
            ) from None
        return Records(memoryview(data)[:size], tuple(batches)) if batches else None

    def read_data(self, offset: int, *, max_bytes: int, end_offset: int) -> memoryview | None:
        """Read bytes of whole batches by their lengths and offsets, without decoding a batch.

        For answers to replicas, which check every batch themselves: an eighth of the time of `read`
        where batches are small. The first batch may begin before `offset`.
        Raises:  CorruptLogError where batches do not follow each other.
        """
        start = self.locate(offset)
        left = self.size_bytes - start
        data = self.file.read(start, min(max(max_bytes, HEADER_SIZE_BYTES), left))
        expected, length, _ = _unpack_place(data)
        first_bytes = LOG_OVERHEAD_BYTES + length
        if first_bytes > left:
            reason = f"a batch of {first_bytes} bytes, {left} are left"
            raise CorruptLogError(path=self.path, position=start, offset=expected, reason=reason)
        if first_bytes > len(data):
            data = self.file.read(start, first_bytes)
        at, available = 0, len(data)
        while available - at >= HEADER_SIZE_BYTES:
            base, length, delta = _unpack_place(data, at)
            end = at + LOG_OVERHEAD_BYTES + length
            if base != expected or length < HEADER_SIZE_BYTES - LOG_OVERHEAD_BYTES or delta < 0:
                raise CorruptLogError(
                    path=self.path,
                    position=start + at,
                    offset=Offset(expected),
                    reason=f"a batch of {length} bytes at offset {base}",
                )
            expected = base + delta + 1
            if end > available or expected > end_offset:
                break
            at = end
        return memoryview(data)[:at] if at else None

    # --- shrinking ---------------------------------------------------------------------------

    def truncate_to(self, position: int, end_offset: int) -> None:
        """Truncate the file durably at `position`, where the batch at `end_offset` was.

        Raises:  OSError; RecordError where what is left contradicts itself.
        """
        self.file.truncate(position)
        self.file.fdatasync()
        self.tail = self.tail._replace(position=position)
        self.offset_index.truncate_to(end_offset)
        self.time_index.truncate_to(end_offset)
        self._walk_tail()

    def close(self) -> None:
        self.file.close()

    def delete(self) -> None:
        """Close and delete every file, which is durable once the directory is synced.

        Raises OSError.
        """
        self.file.close()
        for path in self.paths():
            with contextlib.suppress(FileNotFoundError):
                self._files.unlink(path)
