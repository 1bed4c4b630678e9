"""The sparse indexes beside a segment: from an offset to a position, from a time to an offset.

Both are arrays of fixed entries with int32 offsets relative to the segment's base. An entry is
added once `index.interval.bytes` of log have passed since the last, so a lookup lands at most that
far before its target and the log itself tells the rest. That makes an index a cache: it is never
trusted further than the log confirms, and it is made anew whenever it contradicts itself.

The surprise: an offset entry pairs a batch's *last* offset with its *first* byte. So the greatest
entry at or below a target starts a batch that ends at or before it.

Entries are kept in memory and written behind the log, by `write_out`.

Source: KIP-33 (time index); org.apache.kafka.storage.internals.log.OffsetIndex, TimeIndex.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from pathlib import Path
from typing import Final, NamedTuple

from raft.segments.files import FileSystem, Mode, read_small_file, replace_file

_MAX_INDEX_BYTES: Final = 64 * 1024 * 1024
"""Far above what a segment of 2 GiB needs at the default interval (4 and 6 MiB)."""

MAX_RELATIVE_OFFSET: Final = 2**31 - 1
"""Batches that name very many records take a segment past it. Indexes are sparse: readers scan."""


class OffsetEntry(NamedTuple):
    """The offset and position of a batch at which a look-up begins."""

    offset: int  # its last
    position: int  # of its first byte in the segment


class TimeEntry(NamedTuple):
    """The largest timestamp of a segment so far."""

    timestamp: int  # ms since 1970
    offset: int


class _Entries:
    """The common part of both indexes: a growing array of entries, and a file that follows it."""

    FORMAT: struct.Struct

    def __init__(self, path: Path, base_offset: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self._bytes = bytearray()
        self._written = 0  # how many of those bytes the file has
        self._stale = True  # the file is missing or has other entries: it is written anew

    def __len__(self) -> int:
        return len(self._bytes) // self.FORMAT.size

    def load(self, files: FileSystem) -> bool:
        """Load the index entries from the file, or return False if it is missing or invalid."""
        self.clear()
        try:
            data = read_small_file(files, self.path, limit_bytes=_MAX_INDEX_BYTES)
        except FileNotFoundError:
            return False
        if len(data) % self.FORMAT.size or len(data) > _MAX_INDEX_BYTES:
            return False
        if not self._is_rising(data):
            return False
        self._bytes += data
        self._written = len(data)
        self._stale = False
        return True

    def write_out(self, files: FileSystem, *, durably: bool) -> None:
        """Write the entries that the index file lacks, and sync the file if `durably`.

        Durably, a file made anew takes the old one's place at once: half of it, after a crash,
        could pass for an index.
        Raises:  OSError; a later call tries again.
        """
        size = len(self._bytes)  # the log's thread may add more meanwhile
        if self._stale and durably:
            replace_file(files, self.path, bytes(self._bytes[:size]))
        elif self._stale or durably or self._written < size:
            start = 0 if self._stale else self._written
            file = files.open(self.path, Mode.CREATE if self._stale else Mode.WRITE)
            try:
                file.write(start, bytes(self._bytes[start:size]))
                if durably:
                    file.fdatasync()
            finally:
                file.close()
        self._written, self._stale = size, False

    def clear(self) -> None:
        """Remove every entry in memory, and from the file with the next write_out."""
        self._keep(0)

    def _keep(self, count: int) -> None:
        del self._bytes[count * self.FORMAT.size :]
        self._stale = True

    def _is_rising(self, data: bytes) -> bool:
        raise NotImplementedError


class OffsetIndex(_Entries):
    """`.index`: int32 relative offset, int32 position, both rising, big-endian."""

    FORMAT = struct.Struct(">ii")

    def append(self, offset: int, position: int) -> None:
        """Add an entry, unless the offset is too far from the segment's base for the format."""
        if offset - self.base_offset <= MAX_RELATIVE_OFFSET:
            self._bytes += self.FORMAT.pack(offset - self.base_offset, position)

    def entry(self, i: int) -> OffsetEntry:
        relative, position = self.FORMAT.unpack_from(self._bytes, i * self.FORMAT.size)
        return OffsetEntry(self.base_offset + relative, position)

    def lookup(self, offset: int) -> int:
        """Return a position at or before the batch that holds `offset`, or 0 below every entry."""
        relative = offset - self.base_offset
        i = bisect_right(range(len(self)), relative, key=self._relative_offset)
        return self.entry(i - 1).position if i else 0

    def truncate_to(self, offset: int) -> None:
        """Drop entries of batches that end after `offset`, which is the new exclusive end."""
        self._keep(
            bisect_right(range(len(self)), offset - self.base_offset - 1, key=self._relative_offset)
        )

    def fits(self, log_size_bytes: int) -> bool:
        """Return whether every entry points into a log of `log_size_bytes`."""
        return len(self) == 0 or self.entry(len(self) - 1).position < log_size_bytes

    def _relative_offset(self, i: int) -> int:
        relative: int = self.FORMAT.unpack_from(self._bytes, i * self.FORMAT.size)[0]
        return relative

    def _is_rising(self, data: bytes) -> bool:
        last_offset, last_position = -1, 0  # no entry has position 0: the first batch needs none
        for relative, position in self.FORMAT.iter_unpack(data):
            if relative <= last_offset or position <= last_position:
                return False
            last_offset, last_position = relative, position
        return True


class TimeIndex(_Entries):
    """`.timeindex`: int64 timestamp, int32 relative offset; no later batch below is newer.

    An entry (t, o) says: up to offset o, nothing is newer than t.
    """

    FORMAT = struct.Struct(">qi")

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Add an entry if its timestamp exceeds that of the last entry and fits the format."""
        is_near = offset - self.base_offset <= MAX_RELATIVE_OFFSET
        if is_near and timestamp > self._last_timestamp():
            self._bytes += self.FORMAT.pack(timestamp, offset - self.base_offset)

    def entry(self, i: int) -> TimeEntry:
        timestamp, relative = self.FORMAT.unpack_from(self._bytes, i * self.FORMAT.size)
        return TimeEntry(timestamp, self.base_offset + relative)

    def lookup(self, timestamp: int) -> int:
        """Return an offset at or below the first record whose timestamp is at least `timestamp`."""
        i = bisect_right(range(len(self)), timestamp - 1, key=lambda i: self.entry(i).timestamp)
        return self.entry(i - 1).offset if i else self.base_offset

    def truncate_to(self, offset: int) -> None:
        """Drop index entries at or above `offset`."""
        self._keep(bisect_right(range(len(self)), offset - 1, key=lambda i: self.entry(i).offset))

    def _last_timestamp(self) -> int:
        return self.entry(len(self) - 1).timestamp if self._bytes else -1

    def _is_rising(self, data: bytes) -> bool:
        last_timestamp, last_offset = -1, -1
        for timestamp, relative in self.FORMAT.iter_unpack(data):
            if timestamp <= last_timestamp or relative < last_offset:
                return False
            last_timestamp, last_offset = timestamp, relative
        return True
