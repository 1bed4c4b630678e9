"""A directory store whose mount goes away: nothing is made in its place, and no object is missing.

Two things can be at the path then: nothing, or the empty directory that was mounted over.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import pytest

from diskless.stores import (
    ByteRange,
    DeletionError,
    ObjectNotFoundError,
    StorageError,
    StoreSettingError,
)
from diskless.stores.directory import DirectoryStorage
from diskless.stores.root import MARK
from raft.segments.files import File, Mode, RealFileSystem

ONE: Final = ByteRange(0, 1)


def nothing(_: Path) -> None:
    """Unmount: the store was a directory below the mount point."""


def mount_point(path: Path) -> None:
    """Unmount: the store was the mount point itself, which is empty now."""
    path.mkdir()


def other_store(path: Path) -> None:
    """Mount another store at the path."""
    path.mkdir()
    (path / MARK).write_text("store.id=another\n")


INSTEAD = pytest.mark.parametrize("instead", [nothing, mount_point, other_store])


class Mount:
    """A store on a mount that can be lost and restored."""

    def __init__(self, home: Path) -> None:
        self.path = home / "objects"
        self._aside = home / "unmounted"
        self.store = DirectoryStorage(self.path)

    def goes(self, instead: Callable[[Path], None]) -> None:
        self.path.rename(self._aside)
        instead(self.path)

    def returns(self, *, with_other_numbers: bool = False) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if with_other_numbers:  # as a network's file system may
            shutil.copytree(self._aside, self.path)
        else:
            self._aside.rename(self.path)

    def files(self) -> list[str]:
        """Return the names of the files below the path."""
        return sorted(str(p.relative_to(self.path)) for p in self.path.rglob("*") if p.is_file())


def run(mount: Mount, story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        try:
            await story()
        finally:
            await mount.store.close()

    asyncio.run(whole())


@INSTEAD
def test_an_unmounted_directory_store_refuses_writes_into_its_mount_point(
    tmp_path: Path, instead: Callable[[Path], None]
) -> None:
    mount = Mount(tmp_path)

    async def story() -> None:
        await mount.store.upload("a/1", [b"x"], 1)
        mount.goes(instead)
        was = mount.files()
        for key in ("a/1", "a/2", "new/1", "top"):
            with pytest.raises(StorageError, match=r"is away.*mounted") as found:
                await mount.store.upload(key, [b"x"], 1)
            assert found.value.retriable
            assert str(mount.path) in str(found.value)
        assert mount.files() == was, "on the wrong disk"
        assert mount.path.exists() is (instead is not nothing)

    run(mount, story)


@INSTEAD
def test_a_bulk_deletion_in_an_unmounted_directory_store_reports_no_object_as_deleted(
    tmp_path: Path, instead: Callable[[Path], None]
) -> None:
    """Fetch, delete and list must fail: a broker would believe any of their results."""
    mount = Mount(tmp_path)

    async def story() -> None:
        await mount.store.upload("a/1", [b"x"], 1)
        mount.goes(instead)
        with pytest.raises(StorageError, match="is away") as found:
            await mount.store.fetch("a/1", ONE)
        assert found.value.retriable
        with pytest.raises(DeletionError) as kept:
            await mount.store.delete(["a/1", "a/2"])
        assert set(kept.value.failed) == {"a/1", "a/2"}
        with pytest.raises(StorageError, match="is away"):
            assert [entry.key async for entry in mount.store.list_objects("")]

    run(mount, story)


@INSTEAD
@pytest.mark.parametrize("with_other_numbers", [False, True])
def test_a_directory_store_that_is_mounted_again_serves_reads_and_writes(
    tmp_path: Path, instead: Callable[[Path], None], *, with_other_numbers: bool
) -> None:
    mount = Mount(tmp_path)

    async def story() -> None:
        await mount.store.upload("a/1", [b"x"], 1)
        mount.goes(instead)
        with pytest.raises(StorageError):
            await mount.store.upload("b/1", [b"y"], 1)
        mount.returns(with_other_numbers=with_other_numbers)
        assert bytes(await mount.store.fetch("a/1", ONE)) == b"x"
        await mount.store.upload("b/1", [b"y"], 1)
        assert [entry.key async for entry in mount.store.list_objects("")] == ["a/1", "b/1"]
        await mount.store.delete(["a/1"])
        with pytest.raises(ObjectNotFoundError):
            await mount.store.fetch("a/1", ONE)

    run(mount, story)


class Watched(RealFileSystem):
    """A file system that calls a function when the first temporary file is opened."""

    def __init__(self) -> None:
        self.then: Callable[[], None] | None = None

    def open(self, path: Path, mode: Mode) -> File:
        if self.then is not None and path.name.startswith(".uploading"):
            then, self.then = self.then, None
            then()
        return super().open(path, mode)


def test_an_upload_fails_if_its_directory_store_is_unmounted_before_it_ends(tmp_path: Path) -> None:
    """Its bytes went to the disk below the mount point."""
    mount, files = Mount(tmp_path), Watched()
    mount.store = DirectoryStorage(mount.path, files)

    def swap() -> None:
        mount.goes(mount_point)
        (mount.path / "a").mkdir()  # as it was when something was stored here by mistake, once

    async def story() -> None:
        await mount.store.upload("a/1", [b"x"], 1)
        files.then = swap
        with pytest.raises(StorageError, match="is away"):
            await mount.store.upload("a/2", [b"y"], 1)
        mount.returns()
        with pytest.raises(ObjectNotFoundError):
            await mount.store.fetch("a/2", ONE)
        await mount.store.upload("a/2", [b"y"], 1)
        assert bytes(await mount.store.fetch("a/2", ONE)) == b"y"

    run(mount, story)


def test_the_directory_store_recreates_a_removed_key_directory_at_the_next_upload(
    tmp_path: Path,
) -> None:
    mount = Mount(tmp_path)

    async def story() -> None:
        await mount.store.upload("a/b/1", [b"x"], 1)
        shutil.rmtree(mount.path / "a")
        await mount.store.upload("a/b/2", [b"y"], 1)
        assert await mount.store.fetch("a/b/2", ONE) == b"y"

    run(mount, story)


def test_all_processes_that_open_a_directory_store_read_the_same_mark_file(tmp_path: Path) -> None:
    """A store of before there were names is given one; what is there already is found."""
    (tmp_path / "objects" / "a").mkdir(parents=True)
    (tmp_path / "objects" / "a" / "1").write_bytes(b"x")
    mount = Mount(tmp_path)
    others = [DirectoryStorage(mount.path) for _ in range(3)]

    async def story() -> None:
        assert mount.files() == ["a/1"], "who opens it, and reads, writes nothing"
        for store in (mount.store, *others[1:]):  # one is a tool's, which only reads
            await store.begin(is_empty=False)
        mount.goes(mount_point)
        mount.returns(with_other_numbers=True)
        for store in (mount.store, *others):
            assert bytes(await store.fetch("a/1", ONE)) == b"x"
            await store.upload("a/1", [b"x"], 1)
            await store.close()
        assert mount.files() == [MARK, "a/1"]

    run(mount, story)


def test_an_empty_directory_is_refused_as_the_store_of_a_cluster_with_objects(
    tmp_path: Path,
) -> None:
    """As it is when a broker starts before the mount is there; the administrator has the say."""
    mount = Mount(tmp_path)

    async def story() -> None:
        with pytest.raises(StoreSettingError, match=r"esker\.storage.*mounted"):
            await mount.store.begin(is_empty=False)
        assert mount.files() == []
        (mount.path / MARK).touch()
        given_up = DirectoryStorage(mount.path)
        await given_up.begin(is_empty=False)
        await given_up.upload("a/1", [b"x"], 1)
        await given_up.close()
        assert mount.files() == [MARK, "a/1"]

    run(mount, story)


def test_a_new_directory_store_gets_its_mark_file_before_its_first_object(tmp_path: Path) -> None:
    mount = Mount(tmp_path)

    async def story() -> None:
        await mount.store.begin(is_empty=True)
        assert mount.files() == [MARK]
        mount.goes(mount_point)
        with pytest.raises(StorageError, match="is away"):
            await mount.store.upload("a/1", [b"x"], 1)
        again = DirectoryStorage(tmp_path / "unmounted")
        await again.begin(is_empty=False)
        await again.close()

    run(mount, story)
