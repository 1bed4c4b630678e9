"""A directory as an object store: the embedded default, and what a shared file system can be.

`diskless.stores.object_directory` reads and writes the files; this module adds the event loop, and
removes the temporary files that crashes left.

The trap: a directory can go away, with the mount it is on. Then nothing is created in its place,
and no object is reported as missing: the store is away (`diskless.stores.root`).

Source: KIP-1163, ObjectStorage; docs/design/broker.md#object-stores.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from diskless.stores.interface import (
    ByteRange,
    DeletionError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
    StoredObject,
    StoreSettingError,
    check_range,
    check_upload,
)
from diskless.stores.object_directory import ObjectDirectory
from diskless.stores.root import MARK, StoreRoot
from raft.segments.files import NO_ROOM, FileSystem, RealFileSystem
from records.compression import Buffer
from records.object_keys import check_key

T = TypeVar("T")

THREADS: Final = 8
ABANDONED_AFTER_S: Final = 24 * 3600.0
"""A temporary file this old belongs to a process that died; no upload takes a day."""

LIST_PAGE: Final = 1_000
PATH: Final = "esker.storage.directory.path"


class DirectoryStorage:
    """Objects as files below one directory; the key is the path."""

    def __init__(self, root: Path, files: FileSystem | None = None) -> None:
        """Open the object store in the directory `root`, which is created if missing.

        Raises:  OSError.
        """
        self.root = root
        self._files = files or RealFileSystem()
        self._root = StoreRoot(root, self._files)
        self._objects = ObjectDirectory(root, self._files)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="store")

    @classmethod
    def configured(cls, values: Mapping[str, Any]) -> Self:
        """Open the store that these settings describe."""
        path = values.get(PATH)
        if not path:
            raise StoreSettingError(PATH, "must be set: a directory")
        try:
            return cls(Path(path))
        except OSError as error:
            reason = f"{path}: {error.strerror or error}"
            raise StoreSettingError(PATH, reason) from error

    # --- an ObjectStorage -----------------------------------------------------------------------

    async def upload(self, key: str, parts: Sequence[Buffer], size_bytes: int) -> None:
        check_upload(key, parts, size_bytes)
        await self._in_thread(key, lambda: self._store(key, b"".join(parts)))

    async def fetch(self, key: str, byte_range: ByteRange) -> Buffer:
        check_key(key)
        check_range(byte_range)
        return await self._in_thread(key, lambda: self._read(key, byte_range))

    async def begin(self, *, is_empty: bool) -> None:
        """Write the store mark, but refuse a new, empty root directory if the cluster has objects.

        Implements `BeginningStore`.
        """
        if self._root.is_new and not is_empty:
            raise StoreSettingError(
                PATH,
                f"{self.root} is empty, but the cluster has objects: is its file system mounted? "
                f"(If they are to be given up, put an empty file {MARK} into it.)",
            )
        await self._in_thread(MARK, self._root.mark)

    async def delete(self, keys: Collection[str]) -> None:
        for key in keys:
            check_key(key)
        failed = await self._in_thread("delete", lambda: self._unlink_all(keys))
        if failed:
            raise DeletionError(failed)

    async def list_objects(self, prefix: str) -> AsyncIterator[StoredObject]:
        found = self._objects.list(prefix, self._remove_if_abandoned)
        more = True
        while more:
            page = await self._in_thread(prefix, lambda: self._page(found))
            for entry in page:
                yield entry
            more = bool(page)

    async def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    # --- in a thread ----------------------------------------------------------------------------

    async def _in_thread(self, key: str, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except OSError as error:
            raise StorageError(key, self._reason(error)) from error

    def _reason(self, error: OSError) -> str:
        """Return the system's message for an error; name the directory if its disk is full."""
        reason = error.strerror or str(error)
        if error.errno not in NO_ROOM:
            return reason
        with contextlib.suppress(OSError):
            status = os.statvfs(self.root)
            if status.f_files and not status.f_favail:  # 0 inodes in all: they are made as needed
                return f"{reason} in {self.root}: its file system has no inodes left"
        return f"{reason} in {self.root}"

    def _store(self, key: str, data: bytes) -> None:
        """Store an object; fail if the store's file system was unmounted meanwhile."""
        self._root.check()
        self._root.mark()
        try:
            self._objects.put_new(key, data)
        except FileExistsError:
            if not self._objects.holds(key, data):
                raise ObjectExistsError(key) from None
            self._files.fsync_directory(self._objects.path(key).parent)
        if self._root.check():
            raise OSError(errno.EAGAIN, "the store was away meanwhile")

    def _read(self, key: str, byte_range: ByteRange) -> bytes:
        """Read a range of an object; read again if the file system was unmounted meanwhile."""
        try:
            return self._objects.get(key, byte_range)
        except ObjectNotFoundError:
            if not self._root.check():
                raise
        return self._objects.get(key, byte_range)

    def _unlink_all(self, keys: Collection[str]) -> dict[str, str]:
        """Delete objects durably, and return the keys of failed deletions with the reason."""
        try:
            self._root.check()
            failed = self._unlink(keys)
            if self._root.check():
                raise OSError(errno.EAGAIN, "the store was away meanwhile")
        except OSError as error:
            return dict.fromkeys(keys, error.strerror or str(error))
        return failed

    def _unlink(self, keys: Collection[str]) -> dict[str, str]:
        failed: dict[str, str] = {}
        changed: dict[Path, list[str]] = {}
        for key in keys:
            path = self._objects.path(key)
            try:
                self._files.unlink(path)
                changed.setdefault(path.parent, []).append(key)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                failed[key] = error.strerror or str(error)
        for directory, gone in changed.items():
            try:
                self._files.fsync_directory(directory)
            except OSError as error:
                failed.update(dict.fromkeys(gone, error.strerror or str(error)))
        return failed

    def _page(self, found: Iterator[StoredObject]) -> list[StoredObject]:
        """Return the next page of listed objects, or raise OSError if the store was unmounted.

        Raises OSError if the store is, or was, away.
        """
        self._root.check()
        page = list(islice(found, LIST_PAGE))
        if self._root.check():
            raise OSError(errno.EAGAIN, "the store was away meanwhile")
        return page

    def _remove_if_abandoned(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > ABANDONED_AFTER_S:
                self._files.unlink(path)
