"""A coordinator's state as of one offset, read while commits go on.

A reader that stays in a SQLite database for long makes its WAL grow by gigabytes and halves the
rate of writing. So no reader stays in the live file for long: a read transaction pins the state, a
thread copies the pages with SQLite's backup API, which needs neither the interpreter nor a lock
that a writer wants, and that is the end of the transaction: a quarter of a second for a million
runs. A child process then scans the copy and sends the checkpoint's records through a pipe.

The trap: `values` yields *nothing*, an empty buffer, while the next record is not there yet. Its
caller runs on an event loop and must not wait.

Pages that no one reads in ordinary work are read here, so damage is often met here first. The
copy's pages are the file's: the file's owner is notified, and treats it as damage that it met
itself.

Source: docs/design/snapshots.md#generation-never-blocks-commits,
docs/design/batch-coordinator.md#state-in-sqlite; measured in docs/coordinator-state.md.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgpack

from coordinator.batch.sqlite import database
from records.types import OffsetAndEpoch

NOTHING_YET: Final = b""
LENGTH_BYTES: Final = 4  # big-endian, before each value in the pipe; 0 ends them
_READ_BYTES: Final = 256 * 1024
_PIPE_BYTES: Final = 1024 * 1024


DAMAGED_STATUS: Final = 3
"""The child's exit status for damage: a retry would meet it again."""


class ScanFailedError(OSError):
    """The copy could not be made or read; the next checkpoint tries again."""


class FrozenState:
    """See the module. `close` it, read to the end or not."""

    def __init__(
        self,
        live: Path,
        copy: Path,
        as_of: OffsetAndEpoch,
        scan: Callable[[Path], Iterator[bytes]] | None,
        met: Callable[[BaseException], object] = lambda _: None,
    ) -> None:
        """Begin a read transaction on the database `live`, and start to copy the database.

        Args:  copy: where to; replaced. as_of: what is applied there: another reader of the file
               may not see what its writer does, if the WAL was removed.
               scan: reads the copy here and now instead of in a thread and a child, for tests.
               met: called by `values` with SQLite's errors, and with damage that SQLite does not
               see.
        """
        self._copy_path = copy
        self._met = met
        self._scan = scan
        self._error: OSError | sqlite3.Error | None = None
        self._thread: threading.Thread | None = None
        self._child: subprocess.Popen[bytes] | None = None
        try:
            database.remove(copy)
            reader = _pin(live, as_of, flushes=scan is None)
        except (OSError, sqlite3.Error) as error:
            self._error = error  # raised by `values`
            return
        if scan is not None:
            self._make_copy(reader)
        else:
            self._thread = threading.Thread(
                target=self._make_copy, args=(reader,), name="coordinator-copy", daemon=True
            )
            self._thread.start()

    def _make_copy(self, reader: sqlite3.Connection) -> None:
        try:
            with contextlib.closing(reader):
                target = sqlite3.connect(self._copy_path, isolation_level=None)
                with contextlib.closing(target):
                    target.execute("PRAGMA journal_mode = OFF")
                    target.execute("PRAGMA synchronous = OFF")
                    reader.backup(target, pages=-1)
        except sqlite3.Error as error:
            self._error = error

    def values(self) -> Iterator[bytes]:
        """Yield the checkpoint's encoded records, or empty bytes while no record is ready.

        Raises:  ScanFailedError.
        """
        while self._thread is not None and self._thread.is_alive():
            yield NOTHING_YET
        try:
            if self._error is not None:
                raise self._error
            yield from (
                self._scan(self._copy_path) if self._scan is not None else self._scan_values()
            )
        except sqlite3.Error as error:
            self._met(error)
            raise ScanFailedError(f"the state could not be copied and read: {error}") from error

    def _scan_values(self) -> Iterator[bytes]:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "coordinator.batch.sqlite.scan", str(self._copy_path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            pipesize=_PIPE_BYTES if sys.platform == "linux" else -1,
        )
        assert self._child.stdout is not None
        fd = self._child.stdout.fileno()
        os.set_blocking(fd, False)
        received = bytearray()
        values: deque[bytes] = deque()
        ended = False
        while not ended:
            try:
                data = os.read(fd, _READ_BYTES)
            except BlockingIOError:
                yield NOTHING_YET
                continue
            if not data:
                break
            received += data
            ended = _cut(received, values)
            while values:
                yield values.popleft()
        while self._child.poll() is None and ended:
            yield NOTHING_YET
        status = self._child.wait()
        if status == DAMAGED_STATUS:
            raise database.DamagedStateError("the copy of the database is damaged, as it must be")
        if not ended or status != 0:
            raise ScanFailedError(f"the scan ended with status {status}")

    def close(self) -> None:
        """Stop the child process, wait for a copy in progress, and delete the copy."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            assert self._child.stdout is not None
            self._child.stdout.close()
            self._child = None
        if self._thread is not None:
            self._thread.join()
        database.remove(self._copy_path)


def _pin(live: Path, as_of: OffsetAndEpoch, *, flushes: bool) -> sqlite3.Connection:
    """Return a connection whose read transaction sees the state committed as of `as_of`."""
    reader = database.connect(live, cache_kib=database.READER_CACHE_KIB, flushes=flushes)
    try:
        reader.execute("BEGIN")
        found = reader.execute("SELECT value FROM meta WHERE name = 'state'").fetchone()
        seen = () if found is None else tuple(msgpack.unpackb(found[0])[:2])
        if seen != as_of:
            raise database.DamagedStateError(f"it has what is below {seen}, and not {as_of}")
    except BaseException:
        reader.close()
        raise
    return reader


def _cut(received: bytearray, values: deque[bytes]) -> bool:
    """Move complete records from the bytes `received` to `values`; return True at the end mark."""
    position = 0
    while len(received) - position >= LENGTH_BYTES:
        begin = position + LENGTH_BYTES
        size = int.from_bytes(received[position:begin], "big")
        if size == 0:
            return True
        if len(received) - begin < size:
            break
        values.append(bytes(received[begin : begin + size]))
        position = begin + size
    del received[:position]
    return False
