"""Detects that a store's directory has been replaced, for example by a lost mount.

A directory of a shared file system disappears with its mount. At its path there is then nothing,
or, if it was the mount point itself, an empty directory of another disk. No operation on files
distinguishes that from a store: an upload would succeed, on the wrong disk, and every object would
be missing. So the root contains a mark, a file with an id, written before the first object; and
storing, listing and deleting check before and after that it is still there.

The trap: the mark is read only if the root's device or inode number has changed. One `stat` costs
microseconds, and a mount that comes back may have other numbers.

Source: docs/design/broker.md#object-stores; MinIO's `.minio.sys/format.json` has the same purpose.
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
    """A directory store's root. For any thread; each method may raise OSError."""

    def __init__(self, path: Path, files: FileSystem) -> None:
        """Open the store's root directory, created if missing, without writing a store mark."""
        self.path = path
        self._files = files
        self._lock = threading.Lock()
        files.make_directory(path)
        self._place = self._stat()
        self._id = self._read()
        self._was_empty = self._id is None and not any(path.iterdir())

    @property
    def is_new(self) -> bool:
        """Return whether the opened directory was empty, without files and without a store mark."""
        return self._id is None and self._was_empty

    def mark(self) -> None:
        """Write the mark file of the store durably, unless the root directory has one.

        A store from before marks gets its mark by the first process that writes to it.
        """
        with self._lock:
            if self._id is None:
                self._write()
                self._id = self._read()

    def check(self) -> bool:
        """Return whether the store's file system was remounted since the previous check.

        Raises OSError if it is unmounted now.

        The message names the path and the remedy.
        """
        try:
            place = self._stat()
            if place == self._place:
                return False
            found = self._read()
        except OSError as error:
            raise self._gone_error(
                error.errno or errno.EIO, error.strerror or str(error)
            ) from error
        with self._lock:
            if found is None or self._id not in (None, found):
                was = f"this is another directory, with no {MARK} of this store"
                raise self._gone_error(errno.ENODEV, was)
            self._place, self._id = place, found
        return True

    def _gone_error(self, code: int, reason: str) -> OSError:
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
