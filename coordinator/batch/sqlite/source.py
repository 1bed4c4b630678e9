"""Walks a database from end to end, to write a checkpoint.

Source: coordinator.batch.checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

from coordinator.batch.checkpoint import checkpoint_values
from coordinator.batch.runs import Run, StoredObject
from coordinator.batch.sqlite import database, rows
from coordinator.batch.sqlite.runs import COLUMNS
from coordinator.batch.sqlite.store import Store
from coordinator.batch.sqlite.tables import WholeTable, WriteBackTable
from coordinator.batch.state import (
    Answer,
    AppliedReplacing,
    Broker,
    Cleaning,
    Counters,
    Lease,
    Log,
    LogId,
    Producer,
    ProducerKey,
    Topic,
)
from coordinator.batch.transactions import Aborted, OpenTransactions


class StoreSource:
    """`coordinator.batch.checkpoint.CheckpointSource` over a store with nothing left to flush."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._read = store.connection.execute
        self.topics: WholeTable[UUID, Topic] = store.topics
        self.logs: WholeTable[LogId, Log] = store.logs
        self.producers: WriteBackTable[ProducerKey, Producer] = store.producers
        self.leases: WholeTable[int, Lease] = store.leases
        self.brokers: WholeTable[int, Broker] = store.brokers
        self.answers: WriteBackTable[int, Answer] = store.answers
        self.cleanings: WholeTable[LogId, Cleaning] = store.cleanings
        self.open_transactions: WholeTable[LogId, OpenTransactions] = store.open_transactions
        self.replacing: AppliedReplacing = store.replacing
        self.counters: Counters = store.counters

    def all_objects(self) -> Iterator[tuple[int, StoredObject]]:
        """Yield all objects in the coordinator's database with their object ids, by rising id."""
        query = self._store.deferred_deletes.used_objects(self._store.connection)
        for row in self._read(f"{query} ORDER BY object_id"):
            yield row[0], rows.stored_object(row)

    def all_runs(self, log_id: LogId) -> Iterator[Run]:
        """Yield a partition's undeleted runs of batches, by rising offset."""
        log_start_offset = (self.logs.get(log_id) or (0, 0))[0]
        for row in self._read(
            f"SELECT {COLUMNS} FROM runs WHERE log_id = ? AND last_offset >= ?"
            " ORDER BY last_offset",
            (log_id, log_start_offset),
        ):
            yield rows.unpack_run(row)

    def all_aborted(self, log_id: LogId) -> Iterator[Aborted]:
        """Yield a partition's aborted transactions, by rising last offset."""
        return self._store.aborted_from(log_id, (self.logs.get(log_id) or (0, 0))[0])

    def all_producers(self, log_id: LogId) -> Iterator[tuple[int, Producer]]:
        """Yield a partition's producer states with their producer ids, by rising id."""
        for producer_id, appended_at_ms, row in self._read(
            "SELECT producer_id, appended_at_ms, row FROM producers"
            " WHERE log_id = ? ORDER BY producer_id",
            (log_id,),
        ):
            yield producer_id, rows.unpack_producer(appended_at_ms, row)

    def all_answers(self) -> Iterator[tuple[int, Answer]]:
        """Yield the commit responses kept for retries with their object ids, by rising id."""
        for object_id, row in self._read("SELECT object_id, row FROM answers ORDER BY object_id"):
            yield object_id, rows.unpack_answer(row)


def checkpoint_of(path: Path) -> Iterator[bytes]:
    """Yield the encoded checkpoint records of a database that no other process has open.

    Raises:  sqlite3.Error.
    """
    connection = database.connect(path, cache_kib=database.READER_CACHE_KIB, flushes=False)
    try:
        yield from checkpoint_values(StoreSource(Store(path, connection)))
    finally:
        connection.close()
