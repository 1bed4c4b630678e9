"""A database read for an overview: whole tables, so never on the event loop.

A connection of its own sees the state as of one moment, and holds the WAL for as long as that
takes: for a person's question now and then, not for programs.

Source: coordinator.batch.describe; KIP-1163, Command line tools.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from coordinator.batch.runs import MARKER, StoredObject
from coordinator.batch.sqlite import database, rows
from coordinator.batch.sqlite.store import Store
from coordinator.batch.sqlite.tables import WholeTable
from coordinator.batch.state import Log, LogId, Topic

T = TypeVar("T")


class StoreDescribed:
    """`coordinator.batch.describe.Described` over a store in a read transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._read = store.connection.execute
        self.applied_offset: int = store.applied.offset
        self.topics: WholeTable[UUID, Topic] = store.topics
        self.logs: WholeTable[LogId, Log] = store.logs
        self._objects = store.deferred_deletes.used_objects(store.connection)

    def _log_start(self, log_id: LogId) -> int:
        log = self.logs.get(log_id)
        return 0 if log is None else log[0]

    def run_totals(self, log_id: LogId) -> tuple[int, int]:
        """Count a partition's undeleted runs of batches and their bytes in the database."""
        totals = self._store.run_totals(log_id)
        if totals is not None:
            return totals
        count, size_bytes = self._read(
            "SELECT COUNT(*), IFNULL(SUM(byte_size), 0) FROM runs"
            " WHERE log_id = ? AND last_offset >= ?",
            (log_id, self._log_start(log_id)),
        ).fetchone()
        return int(count), int(size_bytes)

    def objects_with_runs_of(self, log_ids: Sequence[LogId]) -> Iterator[int]:
        """Yield the ids of objects with an undeleted run of batches of these partitions."""
        for log_id in log_ids:
            for (object_id,) in self._read(
                "SELECT DISTINCT object_id FROM runs WHERE log_id = ? AND last_offset >= ?"
                f" AND object_format != {MARKER}",
                (log_id, self._log_start(log_id)),
            ):
                yield object_id

    def stored_objects(self, from_object_id: int = 0) -> Iterator[tuple[int, StoredObject]]:
        """Yield the objects in the database from an object id on, with their ids, by rising id."""
        query = f"{self._objects} WHERE object_id >= ? ORDER BY object_id"
        for row in self._read(query, (from_object_id,)):
            yield row[0], rows.stored_object(row)

    def stored_object(self, object_id: int) -> StoredObject | None:
        """Read an object's row by its object id; return None if there is no such object."""
        found = self._read(f"{self._objects} WHERE object_id = ?", (object_id,)).fetchone()
        return None if found is None else rows.stored_object(found)

    def run_totals_in_object(self, log_id: LogId, object_id: int) -> tuple[int, int]:
        """Count a partition's undeleted runs of batches in one object, and their bytes."""
        count, size_bytes = self._read(
            "SELECT COUNT(*), IFNULL(SUM(byte_size), 0) FROM runs"
            " WHERE log_id = ? AND last_offset >= ? AND object_id = ?",
            (log_id, self._log_start(log_id), object_id),
        ).fetchone()
        return int(count), int(size_bytes)


def described(path: Path, ask: Callable[[StoreDescribed], T]) -> T:
    """Call `ask` with a reader of the database as of its last commit, and return the result.

    Raises sqlite3.Error.
    """
    connection = database.connect(path, cache_kib=database.READER_CACHE_KIB)
    try:
        connection.execute("BEGIN")
        return ask(StoreDescribed(Store(path, connection)))
    finally:
        connection.close()
