"""Loads a checkpoint into an empty database, a few milliseconds at a time.

Rows come in the order of their keys, so every insert goes to the end of its table, and spans and
tallies are built on the way.

Source: docs/design/batch-coordinator.md#state-in-sqlite; coordinator.batch.checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final
from uuid import UUID

from coordinator.batch.checkpoint import load_record
from coordinator.batch.runs import Run, StoredObject
from coordinator.batch.sqlite.runs import Tally
from coordinator.batch.sqlite.store import Store
from coordinator.batch.sqlite.tables import WholeTable, WriteBackTable
from coordinator.batch.state import (
    Answer,
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
from records.batch import Batch, iter_records
from records.diskless import DisklessTopicState
from records.frame import decode_record
from records.schema import MetadataRecord

SLICE_BYTES: Final = 16 * 1024
"""Bytes of records loaded in one slice: some hundred runs, 2-4 ms."""


class StoreSink:
    """Fills an empty store: a `coordinator.batch.checkpoint.CheckpointSink`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.topics: WholeTable[UUID, Topic] = store.topics
        self.logs: WholeTable[LogId, Log] = store.logs
        self.producers: WriteBackTable[ProducerKey, Producer] = store.producers
        self.leases: WholeTable[int, Lease] = store.leases
        self.brokers: WholeTable[int, Broker] = store.brokers
        self.answers: WriteBackTable[int, Answer] = store.answers
        self.cleanings: WholeTable[LogId, Cleaning] = store.cleanings
        self.open_transactions: WholeTable[LogId, OpenTransactions] = store.open_transactions
        self.counters: Counters = store.counters

    def load(self, record: MetadataRecord) -> None:
        """Add the content of one checkpoint record to the database.

        Raises as `load_record` does; sqlite3.Error.
        """
        store = self._store
        store.begin()
        load_record(self, record)
        if isinstance(record, DisklessTopicState):
            for log_id in record.log_ids:
                if log_id >= 0:
                    store.tallies[log_id] = Tally(log_id)
        store.count_written(1)
        store.flush_if_full()

    def add_objects(self, objects: Iterable[tuple[int, StoredObject]]) -> None:
        """Insert objects from a checkpoint into the database."""
        rows = [
            (object_id, *entry[:6], b"".join(entry.topics), entry.first_deletion_ms)
            for object_id, entry in objects
        ]
        self._store.connection.executemany(
            "INSERT INTO objects VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows
        )
        self._store.object_count += len(rows)

    def add_aborted(self, log_id: LogId, entries: Iterable[Aborted]) -> None:
        """Insert one partition's aborted transactions from a checkpoint into the database."""
        self._store.add_aborted((log_id, *entry) for entry in entries)

    def add_runs(self, log_id: LogId, rows: Iterable[Run]) -> None:
        """Insert one partition's runs of batches from a checkpoint into the database."""
        store = self._store
        store.run_count += store.runs.load(store.tallies[log_id], rows)
        store.logs[log_id] = store.logs[log_id]  # its tally has changed: it is to be written


def load_records(store: Store, batches: Iterable[Batch]) -> Iterator[None]:
    """Fill an empty database from a checkpoint, as a generator that pauses every few ms.

    What is loaded between two slices is measured in bytes: a partition's record has a hundred, one
    of its runs' up to tens of thousands, and a turn of the loop for each would take far longer.

    Raises:  RecordError, MisplacedRecordError, ValueError, KeyError for what is no checkpoint of a
             coordinator; sqlite3.Error.
    """
    sink = StoreSink(store)
    loaded_bytes = 0
    for batch in batches:
        if batch.header.is_control:
            continue
        store.last_timestamp = batch.header.max_timestamp
        for record in iter_records(batch):
            sink.load(decode_record(record.value))
            loaded_bytes += len(record.value or b"")
            if loaded_bytes >= SLICE_BYTES:
                loaded_bytes = 0
                yield
    store.changed_records = 0
