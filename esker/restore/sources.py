"""Opens the directories that a restore reads, and holds their locks meanwhile.

A source is only read: a lock is taken on the file that is there, and none is created. A node that
still uses its directory would go on writing while it is read, so it is refused.

Source: docs/design/restore.md#failure-cases.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from esker.restore.errors import RestoreError
from raft.driver.config import METADATA_GROUP
from raft.driver.registry import LOCK_FILE, Registry
from raft.segments.errors import CorruptFileError
from raft.segments.files import FileSystem, RealFileSystem
from raft.segments.high_watermarks import read_high_watermarks
from raft.segments.properties import MetaProperties, read_meta_properties, read_quorum_state
from raft.wire.responses import Group
from snapshot.surviving_files import CopyOnDisk, read_copy
from snapshot.surviving_logs import NoCopyError


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceDirectory:
    """A directory of a node of the lost cluster, with the copies of logs that can be used."""

    path: Path
    meta: MetaProperties
    copies: dict[Group, CopyOnDisk]
    refused: tuple[str, ...]  # sentences about copies that cannot be used
    highest_epoch: int  # leader epoch of any log


class Sources:
    """The opened sources; leaving the `with` block releases their locks."""

    def __init__(self, paths: Sequence[Path], files: FileSystem | None = None) -> None:
        """Lock and read the directories.

        Raises:  RestoreError; OSError.
        """
        if not paths:
            raise RestoreError(
                "name at least one directory by --from, or a broker's properties file by --backup"
            )
        self._files = files or RealFileSystem()
        self._locks: list[int] = []
        self.directories: list[SourceDirectory] = []
        try:
            for path in dict.fromkeys(path.absolute() for path in paths):
                self.directories.append(self._open(path))
            _check_one_cluster(self.directories)
        except BaseException:
            self.close()
            raise

    @property
    def cluster_id(self) -> str:
        """Return the id of the lost cluster."""
        return self.directories[0].meta.cluster_id

    @property
    def groups(self) -> list[Group]:
        """Return all logs that any source has, the cluster log first."""
        found = {group for directory in self.directories for group in directory.copies}
        rest = sorted(found - {METADATA_GROUP}, key=lambda group: (group.topic, group.partition))
        return [METADATA_GROUP, *rest]

    def copies(self, group: Group) -> list[CopyOnDisk]:
        """Return the copies of one log."""
        return [one.copies[group] for one in self.directories if group in one.copies]

    def _open(self, path: Path) -> SourceDirectory:
        try:
            meta = read_meta_properties(self._files, path)
        except (FileNotFoundError, NotADirectoryError):
            raise RestoreError(
                f"{path} is no node's log directory: meta.properties is missing; name the "
                "directory of log.dirs"
            ) from None
        except CorruptFileError as error:
            raise RestoreError(f"{error}; name another source by --from") from None
        self._lock(path)
        return self._read(path, meta)

    def _lock(self, path: Path) -> None:
        """Lock a directory against its node. A copy of a directory may have no lock file."""
        try:
            lock = os.open(path / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        self._locks.append(lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RestoreError(
                f"{path} is in use by a running node: stop the node, or name a copy of its "
                "directory"
            ) from None

    def _read(self, path: Path, meta: MetaProperties) -> SourceDirectory:
        files = self._files
        try:
            listed = Registry(files, path).groups.values()
        except CorruptFileError as error:
            raise RestoreError(f"{error}; name another source by --from") from None
        try:
            watermarks = read_high_watermarks(files, path)
        except (FileNotFoundError, CorruptFileError):
            watermarks = {}  # it only says less about what was committed
        copies: dict[Group, CopyOnDisk] = {}
        refused: list[str] = []
        epochs = [0]
        for group in dict.fromkeys((METADATA_GROUP, *listed)):
            watermark = watermarks.get((group.topic, group.partition), 0)
            directory = path / group.name
            try:
                copies[group] = read_copy(files, directory, high_watermark=watermark)
                state = read_quorum_state(files, directory)
            except FileNotFoundError as error:
                refused.append(f"{directory}: {Path(error.filename or '').name} is missing")
                continue
            except (NoCopyError, CorruptFileError) as error:
                refused.append(str(error))
                continue
            epochs += [copies[group].log.last_epoch, state.epoch if state is not None else 0]
        return SourceDirectory(
            path=path,
            meta=meta,
            copies=copies,
            refused=tuple(refused),
            highest_epoch=max(epochs),
        )

    def close(self) -> None:
        """Release the locks of all sources."""
        while self._locks:
            os.close(self._locks.pop())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _check_one_cluster(directories: Iterable[SourceDirectory]) -> None:
    """Raise RestoreError unless all directories are of one cluster."""
    first, *others = directories
    for other in others:
        if other.meta.cluster_id != first.meta.cluster_id:
            raise RestoreError(
                f"{first.path} is of cluster {first.meta.cluster_id}, and {other.path} is of "
                f"cluster {other.meta.cluster_id}: name the directories of one cluster"
            )
