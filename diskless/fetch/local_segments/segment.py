"""One local segment: its ranges in memory, its two files on the disk.

The trap: a range must not be served before its bytes are in the file. So a segment counts the
ranges whose write has ended; those behind them are only known, so that they are not written twice.

Functions that touch the disk are for threads, and raise OSError.

Source: docs/design/local-segments.md#files.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from diskless.fetch.local_segments.format import (
    ENTRY_BYTES,
    HEADER_BYTES,
    LOG_SUFFIX,
    RUNS_SUFFIX,
    Entry,
    Header,
    TopicPartition,
    decode_entries,
    decode_header,
    encode_entry,
    encode_header,
    entry_at,
    owner_of,
)
from records.compression import Buffer

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
_OLD: Final = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_NO_WAIT: Final = getattr(os, "RWF_NOWAIT", None)  # Linux


class NoRegularFileError(FileNotFoundError):
    """A link, a directory or a FIFO is in the place of a segment's file."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.ENOENT, "no regular file", str(path))


def open_file(path: Path, flags: int = _READ) -> int:
    """Open a segment's file without waiting for a FIFO's other side; return its descriptor.

    Raises:  NoRegularFileError; OSError.
    """
    try:
        fd = os.open(path, flags | os.O_NONBLOCK, 0o644)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise NoRegularFileError(path) from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise NoRegularFileError(path)
    except BaseException:
        os.close(fd)
        raise
    return fd


class Segment:
    """A segment. Belongs to the event loop; `path` and `header` never change."""

    def __init__(
        self, partition: TopicPartition, base_offset: int, directory: Path, header: Header
    ) -> None:
        self.partition = partition
        self.base_offset = base_offset
        self.path = directory / f"{base_offset:020d}"  # without a suffix
        self.header = header
        self.entries = bytearray()  # encoded, those that are being written included
        self.readable = 0  # entries, whose bytes are in the file
        self.log_bytes = 0  # of all entries
        self.end_offset = base_offset  # exclusive
        self.opened_at = 0.0  # of an open segment: by the loop's clock
        self.is_open = False
        self.is_discarded = False
        self.was_used = False  # since its modification time was set
        self.stale_since: float | None = None  # when a pass first found stale bytes in it

    @property
    def entry_count(self) -> int:
        """Return the number of ranges, those that are being written included."""
        return len(self.entries) // ENTRY_BYTES

    @property
    def size_bytes(self) -> int:
        """Return the bytes of both files once all writes have ended."""
        return self.log_bytes + HEADER_BYTES + len(self.entries)

    def file(self, suffix: str) -> Path:
        """Return the path of one of the segment's files."""
        return self.path.with_name(self.path.name + suffix)

    def append(self, entry: Entry) -> bytes:
        """Add a range whose write begins now, and return its encoded form."""
        assert entry.first_offset >= self.end_offset, f"{entry} below {self.end_offset}"
        assert entry.position == self.log_bytes, f"{entry} not at {self.log_bytes}"
        encoded = encode_entry(entry, self.header.owner)
        self.entries += encoded
        self.log_bytes = entry.end_position
        self.end_offset = entry.last_offset + 1
        return encoded

    def find(self, offset: int, identity: bytes, *, readable: bool = True) -> int | None:
        """Return the index of the range of this run that covers an offset, or None.

        Args:    readable: whether ranges that are still being written do not count.
        """
        count = self.readable if readable else self.entry_count
        index = bisect_left(range(count), offset, key=self._last_offset)
        if index == count:
            return None
        entry = entry_at(self.entries, index)
        return index if entry.identity == identity and entry.first_offset <= offset else None

    def covering(self, index: int, offset: int, identity: bytes) -> Entry | None:
        """Return the readable range at an index if it covers this offset of this run."""
        if index >= self.readable:
            return None
        entry = entry_at(self.entries, index)
        if entry.identity != identity or not entry.first_offset <= offset <= entry.last_offset:
            return None
        return entry

    def _last_offset(self, index: int) -> int:
        begin = index * ENTRY_BYTES + 8
        return int.from_bytes(self.entries[begin : begin + 8], "big", signed=True)

    def ranges(self) -> Iterator[Entry]:
        """Yield the readable ranges."""
        for index in range(self.readable):
            yield entry_at(self.entries, index)


class Descriptor:
    """A file that is open for reading, for as long as anybody refers to it."""

    def __init__(self, path: Path) -> None:
        self.fd = open_file(path)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.close(self.fd)


def open_and_read(path: Path, position: int, target: memoryview) -> tuple[Descriptor, int]:
    """Open a file and fill `target` from it; return the open file and the bytes read."""
    descriptor = Descriptor(path)
    return descriptor, read_fully(descriptor, position, target)


def read_cached(descriptor: Descriptor, position: int, target: memoryview) -> int:
    """Read what the page cache has, without waiting for the disk; return the bytes read."""
    if _NO_WAIT is None:
        return 0
    try:
        return os.preadv(descriptor.fd, [target], position, _NO_WAIT)
    except (BlockingIOError, NotImplementedError):
        return 0
    except OSError:  # file systems without this flag say so in several ways
        return 0


def read_fully(descriptor: Descriptor, position: int, target: memoryview) -> int:
    """Read until `target` is full or the file ends; return the bytes read."""
    done = 0
    while done < len(target):
        count = os.preadv(descriptor.fd, [target[done:]], position + done)
        if not count:
            break
        done += count
    return done


class Append(NamedTuple):
    """Ranges of one segment to write: bytes at a position of the .log, entries from an index on."""

    segment: Segment
    position: int
    parts: Sequence[Buffer]
    first_entry: int
    entries: Sequence[bytes]

    @property
    def size_bytes(self) -> int:
        """Return the bytes to write to the .log."""
        return sum(map(len, self.parts))


def write(append: Append) -> None:
    """Write ranges to a segment's files: bytes first, then the entries that name them."""
    segment = append.segment
    is_new = append.first_entry == 0
    if is_new:
        segment.path.parent.mkdir(exist_ok=True)
    _write_at(segment.file(LOG_SUFFIX), append.position, append.parts, is_new=is_new)
    begin = HEADER_BYTES + append.first_entry * ENTRY_BYTES
    parts = append.entries
    if is_new:
        begin, parts = 0, (encode_header(segment.header), *parts)
    _write_at(segment.file(RUNS_SUFFIX), begin, parts, is_new=is_new)


def _write_at(path: Path, position: int, parts: Sequence[Buffer], *, is_new: bool) -> None:
    if is_new:
        _remove(path)
    fd = open_file(path, _NEW if is_new else _OLD)
    try:
        for part in parts:
            view = memoryview(part)
            while view:
                count = os.pwrite(fd, view, position)
                position += count
                view = view[count:]
    finally:
        os.close(fd)


def delete(segment: Segment) -> None:
    """Delete a segment's files, and its directory if nothing else is in it.

    Raises:  OSError, after both were tried.
    """
    try:
        _remove(segment.file(RUNS_SUFFIX))
    finally:
        _remove(segment.file(LOG_SUFFIX))
    with contextlib.suppress(OSError):  # has other segments, or is gone
        segment.path.parent.rmdir()


def _remove(path: Path) -> None:
    """Remove the file or the empty directory at this path, if it exists.

    Raises:  NoRegularFileError for a directory with something in it; OSError.
    """
    try:
        path.unlink()
    except FileNotFoundError:
        pass
    except OSError:
        if not path.is_dir():
            raise
        try:
            path.rmdir()
        except OSError:
            raise NoRegularFileError(path) from None


def load(
    directory: Path, partition: TopicPartition, base_offset: int, cluster_id: str
) -> tuple[Segment, float] | None:
    """Read a segment that is on the disk, and when it was last used; None if it is not sound.

    Something else in the place of a file, as a symbolic link, is not followed, and is not sound.
    """
    path = directory / f"{base_offset:020d}"
    log, runs = path.with_name(path.name + LOG_SUFFIX), path.with_name(path.name + RUNS_SUFFIX)
    try:
        with os.fdopen(open_file(runs), "rb") as file:
            data = file.read()
        fd = open_file(log)
        try:
            status = os.fstat(fd)
        finally:
            os.close(fd)
    except OSError:
        return None
    header = decode_header(data)
    if header is None or header.owner != owner_of(cluster_id, partition, base_offset):
        return None
    entries = decode_entries(memoryview(data)[HEADER_BYTES:], header.owner, status.st_size)
    if not entries:
        return None
    segment = Segment(partition, base_offset, directory, header)
    segment.entries = entries
    segment.readable = segment.entry_count
    last = entry_at(entries, segment.entry_count - 1)
    segment.log_bytes, segment.end_offset = (
        max(status.st_size, last.end_position),
        last.last_offset + 1,
    )
    return segment, status.st_mtime
