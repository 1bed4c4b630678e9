"""Claims the directory of a broker's local segments, or says in one sentence why not.

The trap: everything that a pass discards is deleted. So a directory is used only if it was empty,
or has the `meta.properties` of this cluster and node; one with other files is refused, and a
symbolic link is, too: what an operator named must be what is emptied.

Source: docs/design/local-segments.md#the-directory.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from raft.segments.errors import CorruptFileError
from raft.segments.files import TEMPORARY_SUFFIX, RealFileSystem
from raft.segments.properties import (
    META_PROPERTIES_FILE,
    MetaProperties,
    read_meta_properties,
    write_meta_properties,
)
from records.types import NodeId

LOCK_FILE: Final = ".lock"
SETTING: Final = "esker.cache.dir"
OURS: Final = {
    LOCK_FILE,
    META_PROPERTIES_FILE,
    META_PROPERTIES_FILE + TEMPORARY_SUFFIX,
    "lost+found",
}


class CacheDirectoryError(Exception):
    """An operator must decide about the directory; the message names the remedy."""


class ClaimedDirectory:
    """A directory that this process uses, until `release` or the end of the process."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    def release(self) -> None:
        """Release the directory's lock."""
        os.close(self._lock)


def claim(
    path: Path, *, cluster_id: str, node_id: int, others: Sequence[tuple[str, Path]]
) -> ClaimedDirectory:
    """Lock the directory for this process, and make it first if it is not there.

    Args:    others: directories of other uses, and the settings that name them.
    Raises:  CacheDirectoryError; OSError if the disk refuses.
    """
    _refuse_place(path, others)
    path.mkdir(exist_ok=True)
    lock = _lock(path)
    try:
        if not _is_owned(path, cluster_id, node_id):
            mine = MetaProperties(cluster_id=cluster_id, node_id=NodeId(node_id))
            write_meta_properties(RealFileSystem(), path, mine)
    except BaseException:
        os.close(lock)
        raise
    return ClaimedDirectory(path, lock)


def check_directory(
    path: Path, *, cluster_id: str, node_id: int, others: Sequence[tuple[str, Path]]
) -> None:
    """Refuse a directory that `claim` would refuse, except one in use; nothing is changed.

    Args and errors are those of `claim`.
    """
    _refuse_place(path, others)
    _is_owned(path, cluster_id, node_id)


def other_directories(values: Mapping[str, Any]) -> tuple[tuple[str, Path], ...]:
    """Return a broker's directories of other uses, and the settings that name them.

    Args:  values: the broker's parsed settings.
    """
    names = ("log.dir", "metadata.log.dir", "esker.storage.directory.path")
    found = [(name, values[name]) for name in names if values[name]]
    found += [("log.dirs", directory) for directory in values["log.dirs"]]
    return tuple((name, Path(path)) for name, path in found)


def _refuse_place(path: Path, others: Sequence[tuple[str, Path]]) -> None:
    if path.is_symlink():
        raise CacheDirectoryError(
            f"{SETTING}={path} is a symbolic link: name the directory itself, {path.resolve()}"
        )
    if path.exists() and not path.is_dir():
        raise CacheDirectoryError(f"{SETTING}={path} is not a directory: name another path")
    if not path.parent.is_dir():
        raise CacheDirectoryError(
            f"{SETTING}={path}: there is no directory {path.parent}: make it, or mount its disk"
        )
    here = path.resolve()
    for setting, other in others:
        there = other.resolve()
        if here == there or here in there.parents or there in here.parents:
            raise CacheDirectoryError(
                f"{SETTING}={path} shares a directory with {setting}={other}: name one beside it"
            )
    found = {child.name for child in path.iterdir()} if path.exists() else set()
    if META_PROPERTIES_FILE not in found and found - OURS:
        first = ", ".join(sorted(found - OURS)[:3])
        raise CacheDirectoryError(
            f"{SETTING}={path} has files that are no cache of Esker ({first}): name an empty "
            "directory, or one that does not exist"
        )


def _lock(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    lock = os.open(path / LOCK_FILE, flags, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise CacheDirectoryError(
            f"{SETTING}={path} is used by another process: name a directory for each broker"
        ) from None
    return lock


def _is_owned(path: Path, cluster_id: str, node_id: int) -> bool:
    """Return whether the directory has this node's `meta.properties`, or False if it has none.

    Raises:  CacheDirectoryError if it is another node's.
    """
    try:
        owner = read_meta_properties(RealFileSystem(), path)
    except FileNotFoundError:
        return False
    except CorruptFileError as error:
        raise CacheDirectoryError(f"{SETTING}={path}: {error}; remove the directory") from None
    if (owner.cluster_id, owner.node_id) != (cluster_id, node_id):
        raise CacheDirectoryError(
            f"{SETTING}={path} belongs to node {owner.node_id} of cluster {owner.cluster_id}, this "
            f"is node {node_id} of cluster {cluster_id}: remove the directory, or name another"
        )
    return True
