"""The file operations of the log: nothing else in raft touches the disk.

So a test can put a disk behind it that loses what was not flushed, forgets renames, fills up or
flips bits (`tests/simulation/disk.py`), and the rules of recovery are proved, not hoped for.

What may be relied on, and what not: bytes count as durable after `fdatasync` of their file; a
file's *name* (created, renamed, unlinked) only after `fsync_directory`; a rename is atomic; an
error may leave part of a write behind. Errors are `OSError`, as the operating system raises them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
from enum import Enum
from pathlib import Path
from typing import Final, Protocol

from records.compression import Buffer

NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a write that found no space: the file is not damaged, and a retry may
succeed."""


TEMPORARY_SUFFIX: Final = ".tmp"
"""Suffix of a new file before it replaces another; such a file at start-up was left by a crash."""


class Mode(Enum):
    """The access with which a file is opened; all but READ allow writing."""

    READ = os.O_RDONLY
    WRITE = os.O_RDWR
    CREATE = os.O_RDWR | os.O_CREAT | os.O_TRUNC  # an older file of that name is emptied


class File(Protocol):
    """An open file; positions are absolute, so one file serves a writer and a reader at once."""

    def write(self, position: int, data: Buffer) -> None:
        """Write all of `data` at `position`; after OSError any part may have been written."""

    def read(self, position: int, size_bytes: int) -> bytes:
        """Read `size_bytes` bytes at `position`, or fewer at the end of the file."""

    def read_into(self, position: int, target: memoryview) -> int:
        """Fill `target` from the file; return the number of bytes read, fewer at the file's end."""

    def truncate(self, size_bytes: int) -> None:
        """Cut the file, or extend it with zeros; the size is durable after fdatasync."""

    def fdatasync(self) -> None:
        """Make the file's bytes and size durable; after an error, its durability is unknown."""

    def drop_cache(self) -> None:
        """Drop the file from the page cache, so that the next read comes from the disk.

        After a flush that failed, the cache may hold bytes that were never written and never will
        be, and says of them that there is nothing to flush. Only a request: call fdatasync first,
        or what is still to be written stays cached.
        """

    def size(self) -> int: ...

    def close(self) -> None: ...


class FileSystem(Protocol):
    """The operations on files' names."""

    def open(self, path: Path, mode: Mode) -> File: ...

    def exists(self, path: Path) -> bool: ...

    def listdir(self, directory: Path) -> list[str]:
        """Return the names in the directory, sorted."""

    def make_directory(self, directory: Path) -> None:
        """Create the directory, and its parents where they are missing."""

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file atomically, replacing `target`; fsync_directory makes the name durable."""

    def unlink(self, path: Path) -> None: ...

    def fsync_directory(self, directory: Path) -> None: ...

    def free_bytes(self, directory: Path) -> int: ...


def _datasync(fd: int) -> None:
    """Make bytes and size of a file durable, past the drive's cache on macOS too."""
    if sys.platform == "darwin":
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(fd)


class RealFile:
    """A file descriptor with the loops that short reads and writes need."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, position: int, data: Buffer) -> None:
        written = os.pwrite(self._fd, data, position)
        if written == len(data):
            return
        rest = memoryview(data)[written:]
        while rest:
            position += written
            written = os.pwrite(self._fd, rest, position)
            rest = rest[written:]

    def read(self, position: int, size_bytes: int) -> bytes:
        data = os.pread(self._fd, size_bytes, position)
        if len(data) == size_bytes or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size_bytes and (data := os.pread(self._fd, size_bytes - got, position + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def read_into(self, position: int, target: memoryview) -> int:
        got = 0
        while got < len(target) and (n := os.preadv(self._fd, [target[got:]], position + got)):
            got += n
        return got

    def truncate(self, size_bytes: int) -> None:
        os.ftruncate(self._fd, size_bytes)

    def fdatasync(self) -> None:
        _datasync(self._fd)

    def drop_cache(self) -> None:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class RealFileSystem:
    """The operating system's files."""

    def open(self, path: Path, mode: Mode) -> File:
        fd = os.open(path, mode.value | os.O_CLOEXEC, 0o644)
        if mode is Mode.READ and stat.S_ISDIR(os.fstat(fd).st_mode):  # else a read would say so,
            os.close(fd)  # and name nothing
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        return RealFile(fd)

    def exists(self, path: Path) -> bool:
        return path.exists()

    def listdir(self, directory: Path) -> list[str]:
        return sorted(os.listdir(directory))  # noqa: PTH208 (names are wanted, not paths)

    def make_directory(self, directory: Path) -> None:
        """Create the directory and its missing parents, and make their names durable."""
        if directory.is_dir():
            return
        self.make_directory(directory.parent)
        directory.mkdir(
            exist_ok=True
        )  # it may have come meanwhile; a file in its place is an error
        self.fsync_directory(directory.parent)

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)  # noqa: PTH105 (the operating system's call, by its name)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def fsync_directory(self, directory: Path) -> None:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def free_bytes(self, directory: Path) -> int:
        found = os.statvfs(directory)
        return found.f_bavail * found.f_frsize


def read_small_file(files: FileSystem, path: Path, *, limit_bytes: int) -> bytes:
    """Read a file, but at most `limit_bytes` + 1 bytes, so that callers detect excess size.

    Raises:  FileNotFoundError, OSError.
    """
    file = files.open(path, Mode.READ)
    try:
        return file.read(0, limit_bytes + 1)
    finally:
        file.close()


def replace_file(files: FileSystem, path: Path, data: Buffer) -> None:
    """Replace the content of `path` durably and atomically, even if the process crashes.

    Source: org.apache.kafka.raft.FileQuorumStateStore; here the directory is synced, too.
    """
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    file = files.open(temporary, Mode.CREATE)
    try:
        file.write(0, data)
        file.fdatasync()
    finally:
        file.close()
    files.rename(temporary, path)
    files.fsync_directory(path.parent)
