"""The files that describe a node's log directory: its lock, its groups, a rejoin under way.

    .lock            held by the process that uses the directory
    esker.server.groups     the groups that were created here; each has a directory
    esker.rejoin     the whole disk was lost; every group created from now on has to catch up first

A group's directory is made first and listed afterwards: so a listed group without directory is
always a lost disk, never a crash while it was made. The rejoin marker is removed once the cluster
log has caught up and every group it names has been created, with a marker of its own.

Source: docs/design/quorum.md#lost-disks.
"""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path
from typing import Final

from raft.driver.errors import DirectoryInUseError
from raft.segments.errors import CorruptFileError
from raft.segments.files import FileSystem, read_small_file, replace_file
from raft.wire.responses import Group
from records.uuids import decode_uuid, encode_uuid

LOCK_FILE: Final = ".lock"
GROUPS_FILE: Final = "esker.server.groups"
REJOIN_FILE: Final = "esker.rejoin"
_LIMIT_BYTES: Final = 1024 * 1024


class DirectoryLock:
    """The lock of a log directory, held until `release` or the end of the process."""

    def __init__(self, log_dir: Path) -> None:
        """Lock the log directory against other processes.

        Raises:  DirectoryInUseError if another process has it; OSError.
        """
        self._fd = os.open(log_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise DirectoryInUseError(log_dir) from None

    def release(self) -> None:
        """Release the lock of the log directory."""
        os.close(self._fd)


class Registry:
    """The files `esker.server.groups` and `esker.rejoin` of one log directory.

    Several threads create groups at a time; a lock orders their writes, since there is one file.
    """

    def __init__(self, files: FileSystem, log_dir: Path) -> None:
        """Read the list of this node's groups, and whether the node rejoins after a disk loss.

        Raises CorruptFileError, OSError.
        """
        self._files = files
        self._path = log_dir / GROUPS_FILE
        self._rejoin = log_dir / REJOIN_FILE
        self._writing = threading.Lock()
        self.groups: dict[str, Group] = {g.name: g for g in _read(files, self._path)}

    @property
    def rejoining(self) -> bool:
        """Return whether the disk was lost and some groups have not been created again."""
        return self._files.exists(self._rejoin)

    def rejoined(self) -> None:
        """Remove the rejoin marker durably, after every group has been created again."""
        self._files.unlink(self._rejoin)
        self._files.fsync_directory(self._rejoin.parent)

    def add(self, group: Group) -> None:
        """Add a group to the durable list, after its directory was made."""
        with self._writing:
            if self.groups.get(group.name) != group:
                self.groups[group.name] = group
                self._write()

    def remove(self, group: Group) -> None:
        """Remove a group from the durable list, before its directory may be deleted."""
        with self._writing:
            if self.groups.pop(group.name, None) is not None:
                self._write()

    def _write(self) -> None:
        lines = [f"{g.topic} {g.partition} {encode_uuid(g.topic_id)}" for g in self.groups.values()]
        replace_file(self._files, self._path, "\n".join(["0", *lines, ""]).encode())


def mark_rejoin(files: FileSystem, log_dir: Path) -> None:
    """Mark a log directory durably as the replacement of a lost directory."""
    replace_file(files, log_dir / REJOIN_FILE, b"")


def _read(files: FileSystem, path: Path) -> list[Group]:
    try:
        data = read_small_file(files, path, limit_bytes=_LIMIT_BYTES)
    except FileNotFoundError:
        return []
    lines = data.decode("utf-8", "replace").splitlines()
    if not lines or lines[0] != "0" or len(data) > _LIMIT_BYTES:
        raise CorruptFileError(path=path, reason="line 1 is not version 0")
    groups = []
    for number, line in enumerate(lines[1:], start=2):
        words = line.split(" ")
        try:
            topic, partition, topic_id = words
            groups.append(Group(topic, int(partition), decode_uuid(topic_id)))
        except ValueError:
            raise CorruptFileError(
                path=path, reason=f"line {number} is not 'topic partition id'"
            ) from None
    return groups
