"""Is the directory at this path the one that objects were put into?

A directory of a shared file system goes away with its mount. What is at its path then is nothing,
or, where it was the mount point itself, an empty directory of another disk. No operation on files
tells that from a store: an upload would succeed, on the wrong disk, and every object would be
missing. So the root has a name of its own, a file with an id in it, written before the first
object; and whoever stores, lists or deletes asks whether it is still there, before and after.

The surprise: the file is read only where device or inode number of the root are others than they
were. One `stat` costs microseconds, and a mount that comes back may well have other numbers.

Source: docs/design/broker.md#object-stores; what MinIO keeps in `.minio.sys/format.json` is for the
same.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import threading
from pathlib import Path
from typing import Final

from raft.segments.files import FileSystem, Mode, read_small_file

MARK: Final = ".esker-objects"  # no part of a key begins with a dot
MAX_MARK_BYTES: Final = 200


class StoreRoot:
    """A directory store's root. May be asked in any thread; each method may raise OSError."""

    def __init__(self, path: Path, files: FileSystem) -> None:
        """Open it, making the directory where it is missing; whoever only reads changes nothing."""
        self.path = path
        self._files = files
        self._lock = threading.Lock()
        files.make_directory(path)
        self._place = self._stat()
        self._id = self._read()
        self._was_empty = self._id is None and not any(path.iterdir())

    @property
    def is_new(self) -> bool:
        """Was there no store here yet, nor anything else?"""
        return self._id is None and self._was_empty

    def mark(self) -> None:
        """Give it its name, durably, unless it has one, or another process was faster.

        So do older stores, and those of tools, get one: by the first who is to write there.
        """
        with self._lock:
            if self._id is None:
                self._write()
                self._id = self._read()

    def check(self) -> bool:
        """Raises OSError if the store is not there; True if it was away and is back.

        The message names the path, and says what to do.
        """
        try:
            place = self._stat()
            if place == self._place:
                return False
            found = self._read()
        except OSError as error:
            raise self._gone(error.errno or errno.EIO, error.strerror or str(error)) from error
        with self._lock:
            if found is None or self._id not in (None, found):
                was = f"this is another directory, with no {MARK} of this store"
                raise self._gone(errno.ENODEV, was)
            self._place, self._id = place, found
        return True

    def _gone(self, code: int, reason: str) -> OSError:
        text = (
            f"the object store {self.path} is away ({reason}): is its file system mounted? "
            "Nothing is stored there until it is back"
        )
        return OSError(code, text)

    def _stat(self) -> tuple[int, int]:
        status = self.path.stat()
        return status.st_dev, status.st_ino

    def _read(self) -> bytes | None:
        try:
            return read_small_file(self._files, self.path / MARK, limit_bytes=MAX_MARK_BYTES)
        except FileNotFoundError:
            return None

    def _write(self) -> None:
        name = secrets.token_hex(16)
        temporary = self.path / f"{MARK}-{name}"
        file = self._files.open(temporary, Mode.CREATE)
        try:
            try:
                file.write(0, f"store.id={name}\n".encode())
                file.fdatasync()
            finally:
                file.close()
            with contextlib.suppress(FileExistsError):
                os.link(temporary, self.path / MARK)
            self._files.fsync_directory(self.path)
        finally:
            with contextlib.suppress(OSError):
                self._files.unlink(temporary)
