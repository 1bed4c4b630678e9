"""Opening the database file, and keeping its write-ahead log short.

Commits go to SQLite's WAL and are not flushed (`synchronous=NORMAL`): the replicated log is the
durable copy, and after a power loss the file is merely older, never torn.

The trap is the copying of the WAL back into the file. SQLite would do it inside whichever commit
finds a thousand pages there, 40 ms and more of an event loop that should be answering. So that is
switched off, and a thread copies, on a connection of its own; the call holds no lock that a writer
or the interpreter needs. A WAL begins anew only once all of it is copied and no reader is left:
under steady commits the thread never quite catches up. So when the WAL has grown long, the thread
copies the short rest at once, and until it is done the open transaction goes on gathering instead
of committing.

Source: docs/design/batch-coordinator.md#state-in-sqlite; https://www.sqlite.org/wal.html
(checkpointing).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from pathlib import Path
from typing import Final

from coordinator.batch.sqlite.schema import SCHEMA_VERSION, TABLES

CACHE_KIB: Final = 128 * 1024
"""Page cache of the writing connection: what a coordinator's memory mostly is. A quarter of what
ten million runs take, so that a look-up among them reads 0.7 pages from the system and not 0.9."""

ALL_CACHES_BYTES: Final = 160 * 1024 * 1024
"""Limit of the page caches of all connections of a process, for any number of coordinators; beyond
it a page that is read replaces another page."""

READER_CACHE_KIB: Final = 2 * 1024

COPY_AT_BYTES: Final = 8 * 1024 * 1024
"""A WAL this long is copied back by the thread..."""

STOP_AT_BYTES: Final = 64 * 1024 * 1024
"""...and at this length commits wait until the last part is copied, so that it begins anew."""

_DAMAGE: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CONSTRAINT)

SIDE_FILES: Final = ("-wal", "-shm", "-journal")


class DamagedStateError(sqlite3.DatabaseError):
    """The file does not hold what was written; found by our checks, where SQLite saw nothing."""

    sqlite_errorcode = sqlite3.SQLITE_CORRUPT


def connect(
    path: Path, *, cache_kib: int = CACHE_KIB, flushes: bool = True, creates: bool = False
) -> sqlite3.Connection:
    """Connect to an SQLite database in autocommit mode: the caller begins and ends transactions.

    Args:    flushes: False where nothing has to survive a power loss, as in tests.
             creates: False: a reader that comes while the file is replaced must not make another.
    Raises:  sqlite3.Error.
    """
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={'rwc' if creates else 'rw'}",
        uri=True,
        isolation_level=None,
        cached_statements=128,
        check_same_thread=False,
        timeout=60,
    )
    try:
        connection.execute(f"PRAGMA synchronous = {'NORMAL' if flushes else 'OFF'}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("PRAGMA journal_size_limit = 0")  # a WAL begun anew begins small
        connection.execute(f"PRAGMA cache_size = -{cache_kib}")
        connection.execute(f"PRAGMA soft_heap_limit = {ALL_CACHES_BYTES}")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def create(path: Path, *, flushes: bool = True) -> sqlite3.Connection:
    """Create an empty database, replacing any file at `path`. Raises OSError, sqlite3.Error."""
    remove(path)
    connection = connect(path, flushes=flushes, creates=True)
    connection.executescript(f"BEGIN; {TABLES} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
    return connection


def open_existing(path: Path, *, flushes: bool = True) -> sqlite3.Connection | None:
    """Open the database at `path`; None if it is missing or this code cannot read it."""
    if not path.exists():
        return None
    try:
        connection = connect(path, flushes=flushes)
    except sqlite3.Error:
        return None
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == SCHEMA_VERSION:
            return connection
    except sqlite3.Error:
        pass
    connection.close()
    return None


def remove(path: Path) -> None:
    """Delete a database file and SQLite's side files, such as the WAL. Raises OSError."""
    for suffix in (*SIDE_FILES, ""):  # the file itself last: without it the others mean nothing
        with contextlib.suppress(FileNotFoundError):
            Path(f"{path}{suffix}").unlink()


def is_damage(error: BaseException) -> bool:
    """Return whether an SQLite error means that the database file's content is damaged.

    A full disk does not.
    """
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE


def make_durable(path: Path) -> None:
    """Flush a closed database and its directory to disk. Raises OSError."""
    for target, flags in ((path, os.O_RDWR), (path.parent, os.O_RDONLY)):
        fd = os.open(target, flags)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class WalKeeper:
    """Copies the WAL back in a thread; `tidy` is called between transactions."""

    def __init__(self, path: Path) -> None:
        self._wal = Path(f"{path}-wal")
        self._path = path
        self._thread: threading.Thread | None = None
        self._is_last_part = False
        self.copies = 0  # how often the thread ran
        self.restarts = 0  # how often commits were put off for it

    @property
    def puts_off_commits(self) -> bool:
        """Return whether commits must wait while the end of SQLite's WAL is being copied."""
        return self._is_last_part and self._is_copying()

    def tidy(self) -> None:
        """Start a thread that copies SQLite's WAL into the database if the WAL is long."""
        if self._is_copying():
            return
        size_bytes = self._size()
        was_copied, self._thread = self._thread is not None and not self._is_last_part, None
        self._is_last_part = was_copied and size_bytes >= STOP_AT_BYTES
        if self._is_last_part:
            self.restarts += 1
        elif size_bytes < COPY_AT_BYTES:
            return
        self._thread = threading.Thread(target=self._copy, name="coordinator-wal", daemon=True)
        self._thread.start()
        self.copies += 1

    def _is_copying(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def close(self) -> None:
        """Wait until the thread that copies SQLite's WAL into the database has ended."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _size(self) -> int:
        try:
            return self._wal.stat().st_size
        except FileNotFoundError:
            return 0

    def _copy(self) -> None:
        """Copy SQLite's WAL into the database; after a failure the next thread tries again."""
        with contextlib.suppress(sqlite3.Error):
            connection = connect(self._path, cache_kib=READER_CACHE_KIB)
            try:
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            finally:
                connection.close()
