"""Objects as files below a directory, for brokers and Spark jobs: blocking calls.

An object appears whole or not at all: its bytes go to a temporary name, are made durable, and get
the object's name by a link, which fails where a rename would silently replace what is there. Then
the directory is made durable, too.

A temporary file is what a crash leaves. Its name begins with a dot, so that it is no object.

Source: KIP-1163, ObjectStorage; docs/design/broker.md#object-stores.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import threading
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Final

from diskless.stores.interface import (
    ByteRange,
    ObjectNotFoundError,
    RangeError,
    StoredObject,
    check_range,
)
from raft.segments.files import FileSystem, Mode, RealFileSystem
from records.object_keys import check_key

HIDDEN: Final = "."  # begins the name of a file that is no object; no part of a key begins so
UPLOADING: Final = ".uploading-"  # begins a temporary name


class ObjectDirectory:
    """Reads, lists and writes objects below one directory. May be used by many threads.

    Every method may raise OSError.
    """

    def __init__(
        self, root: Path, files: FileSystem | None = None, *, creates_root: bool = False
    ) -> None:
        """Prepare to read and write the objects below a root directory.

        Args: creates_root: whether writing creates a missing root and its parents.
        """
        self.root = root
        self._files = files or RealFileSystem()
        self._creates_root = creates_root
        self._creating = threading.Lock()
        self._durable: set[Path] = set()  # directories whose names are known to be durable

    def path(self, key: str) -> Path:
        """Return the path of an object's file.

        Raises ValueError for an invalid key.
        """
        check_key(key)
        return self.root.joinpath(*key.split("/"))

    def put(self, key: str, data: bytes) -> None:
        """Store an object durably, replacing an object of the same key."""
        self._put(key, data, self._files.rename)

    def put_new(self, key: str, data: bytes) -> None:
        """Store an object durably if its key is unused; of two concurrent calls, one succeeds.

        Raises:  FileExistsError if there is an object with this key; it stays as it is.
        """
        self._put(key, data, os.link)  # atomic, and never replaces

    def _put(self, key: str, data: bytes, publish: Callable[[Path, Path], object]) -> None:
        path = self.path(key)
        self._make_directory(path.parent)
        temporary = path.with_name(f"{UPLOADING}{secrets.token_hex(8)}")
        file = self._files.open(temporary, Mode.CREATE)
        try:
            try:
                file.write(0, data)
                file.fdatasync()
            finally:
                file.close()
            publish(temporary, path)
            self._files.fsync_directory(path.parent)
        finally:
            with contextlib.suppress(OSError):
                self._files.unlink(temporary)

    def _make_directory(self, directory: Path) -> None:
        """Create a directory below the root, and its missing parents, durably.

        Creates the root itself only if `creates_root` was set. All are created before the first is
        made durable: a journal then writes them together. A directory that exists already may be
        left from a process that died before it was durable, so it is made durable once, too.
        """
        with self._creating:
            if directory.is_dir() and directory in self._durable:
                return
            if self._creates_root:
                self._files.make_directory(self.root)
            path = (directory, *directory.parents)
            below_root = list(takewhile(lambda each: each != self.root, path))
            made = set()
            for each in reversed(below_root):
                with contextlib.suppress(FileExistsError):  # opening reports a file in its place
                    each.mkdir()
                    made.add(each)
            for each in below_root:
                if each in made or each not in self._durable:
                    self._files.fsync_directory(each.parent)
            self._durable.update(below_root)

    def holds(self, key: str, data: bytes) -> bool:
        """Return whether the object with this key consists of these bytes."""
        file = self._files.open(self.path(key), Mode.READ)
        try:
            return file.size() == len(data) and file.read(0, len(data)) == data
        finally:
            file.close()

    def head(self, key: str) -> StoredObject | None:
        """Return an object's key, size and time, or None without such an object."""
        try:
            status = self.path(key).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return _describe_file(key, status)

    def get(self, key: str, byte_range: ByteRange) -> bytes:
        """Return exactly the bytes in this range of the object.

        Raises:  ValueError for a negative range; ObjectNotFoundError, RangeError.
        """
        check_range(byte_range)
        try:
            file = self._files.open(self.path(key), Mode.READ)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise ObjectNotFoundError(key) from None
        try:
            size_bytes = file.size()
            if byte_range.offset + byte_range.size > size_bytes:
                raise RangeError(key, byte_range, size_bytes)
            return file.read(byte_range.offset, byte_range.size)
        except IsADirectoryError:
            raise ObjectNotFoundError(key) from None
        finally:
            file.close()

    def list(
        self, prefix: str, on_temporary: Callable[[Path], None] = lambda _: None
    ) -> Iterator[StoredObject]:
        """Yield the objects whose keys begin with `prefix`, by rising key.

        Args:    on_temporary: called with each temporary file that is passed.
        """
        return self._walk(self.root, prefix, "", on_temporary)

    def _walk(
        self, directory: Path, prefix: str, key: str, on_temporary: Callable[[Path], None]
    ) -> Iterator[StoredObject]:
        """Yield the objects below a directory by rising key.

        The directory's own key `key` ends with a slash.
        """
        with os.scandir(directory) as entries:
            children = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        # As keys sort: a directory's name counts with the slash that follows it.
        for name, is_directory in sorted(children, key=lambda c: c[0] + "/" if c[1] else c[0]):
            child = f"{key}{name}/" if is_directory else f"{key}{name}"
            if is_directory:
                if child.startswith(prefix) or prefix.startswith(child):
                    yield from self._walk(directory / name, prefix, child, on_temporary)
            elif name.startswith(UPLOADING):
                on_temporary(directory / name)
            elif child.startswith(prefix) and not name.startswith(HIDDEN):
                with contextlib.suppress(FileNotFoundError):  # deleted since the scan
                    stored = _describe_file(child, (directory / name).stat())
                    if stored is not None:
                        yield stored


def _describe_file(key: str, status: os.stat_result) -> StoredObject | None:
    """Describe a regular file as an object; return None for any other file."""
    if not stat.S_ISREG(status.st_mode):
        return None
    return StoredObject(key, status.st_size, status.st_mtime_ns // 1_000_000)
