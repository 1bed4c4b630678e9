"""A directory as an object store: the embedded default, and what a shared file system can be.

An object appears whole or not at all: its bytes go to a temporary name, are made durable, and get
their name by a link, which fails where a rename would silently replace what is there. Then the
directory is made durable, too.

A temporary file is what a crash leaves: it is no object, and is removed once it is old.

The surprise: a directory can go away, with the mount it is on. Then nothing is made in its place,
and of no object it is said that it is missing: the store is away (`diskless.stores.root`).

Source: KIP-1163, ObjectStorage; docs/design/broker.md#object-stores.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import stat
import threading
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
    RangeError,
    StorageError,
    StoredObject,
    StoreSettingError,
    check_range,
    check_upload,
)
from diskless.stores.root import MARK, StoreRoot
from raft.segments.files import FileSystem, Mode, RealFileSystem
from records.compression import Buffer
from records.object_keys import check_key

T = TypeVar("T")

THREADS: Final = 8
UPLOADING: Final = ".uploading-"  # begins a temporary name; no part of a key begins with a dot
ABANDONED_AFTER_S: Final = 24 * 3600.0
"""A temporary file this old belongs to a process that died; no upload takes a day."""

LIST_PAGE: Final = 1_000
PATH: Final = "esker.storage.directory.path"


class DirectoryStorage:
    """Objects as files below one directory; the key is the path."""

    def __init__(self, root: Path, files: FileSystem | None = None) -> None:
        """Open the store, making the directory where it is missing.

        Raises:  OSError.
        """
        self.root = root
        self._files = files or RealFileSystem()
        self._root = StoreRoot(root, self._files)
        self._made: set[Path] = set()  # directories known to be durable
        self._making = threading.Lock()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="store")

    @classmethod
    def configured(cls, values: Mapping[str, Any]) -> Self:
        """See `diskless.stores.opening`."""
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
        """See `BeginningStore`."""
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
        found = self._walk(self.root, prefix)
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
            raise StorageError(key, error.strerror or str(error)) from error

    def _path(self, key: str) -> Path:
        return self.root.joinpath(*key.split("/"))

    def _there(self) -> bool:
        """True if the store was away and is back. Raises OSError while it is away."""
        is_back = self._root.check()
        if is_back:
            self._forget_made()
        return is_back

    def _store(self, key: str, data: bytes) -> None:
        """Store it where the store is: what went elsewhere meanwhile is no success."""
        self._there()
        self._root.mark()
        try:
            self._write(key, data)
        except FileNotFoundError:  # a directory is gone that was there
            self._forget_made()
            raise
        if self._there():
            raise OSError(errno.EAGAIN, "the store was away meanwhile")

    def _write(self, key: str, data: bytes) -> None:
        path = self._path(key)
        self._make_directory(path.parent)
        temporary = path.with_name(f"{UPLOADING}{secrets.token_hex(8)}")
        file = self._files.open(temporary, Mode.CREATE)
        try:
            try:
                file.write(0, data)
                file.fdatasync()
            finally:
                file.close()
            try:
                os.link(temporary, path)  # atomic, and never replaces
            except FileExistsError:
                if not self._holds(path, data):
                    raise ObjectExistsError(key) from None
            self._files.fsync_directory(path.parent)
        finally:
            with contextlib.suppress(OSError):
                self._files.unlink(temporary)

    def _make_directory(self, directory: Path) -> None:
        """Make it once, durably, below the root; the root itself is never made again."""
        with self._making:
            if directory not in self._made:
                missing = [
                    d for d in (directory, *directory.parents) if d.is_relative_to(self.root)
                ]
                for one in reversed(missing[:-1]):
                    with contextlib.suppress(FileExistsError):  # a file there is met when opening
                        one.mkdir()
                        self._files.fsync_directory(one.parent)
                self._made.add(directory)

    def _forget_made(self) -> None:
        with self._making:
            self._made.clear()

    def _holds(self, path: Path, data: bytes) -> bool:
        file = self._files.open(path, Mode.READ)
        try:
            return file.size() == len(data) and file.read(0, len(data)) == data
        finally:
            file.close()

    def _read(self, key: str, byte_range: ByteRange) -> bytes:
        """What is not found is looked for again if the store had been away."""
        try:
            return self._read_once(key, byte_range)
        except ObjectNotFoundError:
            if not self._there():
                raise
        return self._read_once(key, byte_range)

    def _read_once(self, key: str, byte_range: ByteRange) -> bytes:
        try:
            file = self._files.open(self._path(key), Mode.READ)
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

    def _unlink_all(self, keys: Collection[str]) -> dict[str, str]:
        """Those that could not be deleted, and why. The names are gone durably."""
        try:
            self._there()
            failed = self._unlink(keys)
            if self._there():
                raise OSError(errno.EAGAIN, "the store was away meanwhile")
        except OSError as error:
            return dict.fromkeys(keys, error.strerror or str(error))
        return failed

    def _unlink(self, keys: Collection[str]) -> dict[str, str]:
        failed: dict[str, str] = {}
        changed: dict[Path, list[str]] = {}
        for key in keys:
            path = self._path(key)
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
        """The next ones. Raises OSError if the store is, or was, away: an end would be a lie."""
        self._there()
        page = list(islice(found, LIST_PAGE))
        if self._there():
            raise OSError(errno.EAGAIN, "the store was away meanwhile")
        return page

    def _walk(self, directory: Path, prefix: str, key: str = "") -> Iterator[StoredObject]:
        """Objects below a directory by rising key; `key` is the directory's own, with its slash."""
        with os.scandir(directory) as entries:
            children = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        # As keys sort: a directory's name counts with the slash that follows it.
        for name, is_directory in sorted(children, key=lambda c: c[0] + "/" if c[1] else c[0]):
            child = f"{key}{name}/" if is_directory else f"{key}{name}"
            if is_directory:
                if child.startswith(prefix) or prefix.startswith(child):
                    yield from self._walk(directory / name, prefix, child)
            elif name.startswith(MARK):
                continue
            elif name.startswith(UPLOADING):
                self._remove_if_abandoned(directory / name)
            elif child.startswith(prefix):
                with contextlib.suppress(FileNotFoundError):  # deleted while we looked
                    found = (directory / name).stat()
                    if stat.S_ISREG(found.st_mode):
                        yield StoredObject(child, found.st_size, found.st_mtime_ns // 1_000_000)

    def _remove_if_abandoned(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > ABANDONED_AFTER_S:
                self._files.unlink(path)
