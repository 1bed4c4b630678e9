"""Explains why a node cannot start or go on: the place, the fault and the remedy.

One sentence, since a supervisor shows the last line. The operating system's words are the cause and
stay as they are; what an operator is to do about it depends on what the node keeps: a voter's
directory holds what others count on, a broker's only copies.
"""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path
from typing import Final

from coordinator.batch.log_records import UnreadableRecordError
from coordinator.batch.sqlite.database import is_damage
from raft.segments.errors import (
    CorruptFileError,
    CorruptLogError,
    DiskFullError,
    MissingLogError,
    StorageError,
)
from snapshot.errors import DamagedFileError

ROOM: Final = ": make room, and try again"
REBUILT: Final = (
    ": start it again, and it rebuilds that state from its log; "
    "if this is not the first time, check the disk"
)
DAMAGE: Final = (CorruptFileError, CorruptLogError, DamagedFileError, MissingLogError)
ADVICE: Final = {
    errno.ENOSPC: ROOM,
    errno.EDQUOT: ROOM,
    errno.EFBIG: ": raise the limit of a file's size (ulimit -f), and try again",
    errno.EROFS: ": mount it so that it can be written to, and try again",
    errno.EACCES: ": run as the user that owns it, or let this one read and write it",
    errno.EPERM: ": run as the user that owns it, or let this one read and write it",
    errno.EIO: ": check the disk, then start the node again",
    errno.EMFILE: ": raise the limit of open files (ulimit -n), and try again",
    errno.ENFILE: ": this machine has no more open files to give (fs.file-max)",
    errno.EISDIR: ": a file belongs there; take the directory away",
    errno.ENOTDIR: ": a directory belongs there; take the file away",
    errno.ENOENT: ": is its file system mounted?",
}
OF_DISKS: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES, errno.EFBIG}
)
"""Error numbers of a file that is already open: such an error names no file."""


def describe_fatal_error(error: Exception, log_dir: Path, *, votes: bool = True) -> str:
    """Return a message for operators with the file, the error and, if known, the remedy.

    Args:    votes: is it a directory of the quorum's, or of a node that is only a broker?

    >>> describe_fatal_error(OSError(28, "No space left on device"), Path("/data"))
    '/data: No space left on device: make room, and try again'
    >>> read_only = PermissionError(30, "Read-only file system", "/data/.lock")
    >>> describe_fatal_error(read_only, Path("/data"))
    '/data/.lock: Read-only file system: mount it so that it can be written to, and try again'
    """
    match error:
        case sqlite3.Error():  # which names no file
            return f"SQLite in {log_dir}: {error}{_of_sqlite(error)}"
        case DiskFullError():
            return f"{error}{ROOM}"
        case MissingLogError() | CorruptFileError() | CorruptLogError() | DamagedFileError():
            return f"{error}. {_replace(log_dir, votes=votes)}"
        case StorageError():
            return f"{error}{ADVICE[errno.EIO]}"
        case UnreadableRecordError():
            return f"{error}: start this node with the version of Esker that the others have"
        case OSError() if error.strerror:
            return _of_system(error, log_dir)
        case _:
            return str(error)


def _of_sqlite(error: sqlite3.Error) -> str:
    if is_damage(error):
        return REBUILT
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:
        case sqlite3.SQLITE_FULL:
            return ROOM
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return ": let this user write it, or delete it, and it is rebuilt from the log"
        case _:
            return ""


def _replace(log_dir: Path, *, votes: bool) -> str:
    """Return the remedy for a damaged file in this log directory."""
    if not votes:
        return (
            f"A broker's directory holds copies alone: empty {log_dir}, run "
            "`esker storage format`, and start it again"
        )
    return (
        "Bring back what was there, or, if the other voters have their disks, empty "
        f"{log_dir} and run `esker storage format --rejoin`"
    )


def _of_system(error: OSError, log_dir: Path) -> str:
    number = error.errno or 0
    if number == errno.EADDRINUSE:
        return f"{error.strerror}: end what listens there, or change `listeners`"
    where = error.filename2 or error.filename  # of a rename that failed: what it was to replace
    if where is None and number not in OF_DISKS:
        return f"{error}{ADVICE[number] if number in (errno.EMFILE, errno.ENFILE) else ''}"
    return f"{where or log_dir}: {error.strerror}{ADVICE.get(number, '')}"
