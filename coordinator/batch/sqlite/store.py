"""A coordinator's state in SQLite: committed records in, tables and runs out.

A transaction spans several commits: it stays open from one call to the next until enough has
gathered, and the applied offset commits with it. What is in an open transaction is read like the
rest, on the same connection; a crash loses it, and the log brings it back.

Where rows are found: `topics`, `logs`, `leases` and `brokers` are small and in memory whole;
`producers` and `answers` are cached; runs and objects are SQLite's alone. So memory does not grow
with the number of batches.

Source: docs/design/batch-coordinator.md#state-in-sqlite; docs/coordinator-state.md.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Final
from uuid import UUID

import msgpack

from coordinator.batch.applying import (
    apply_commit,
    apply_markers,
    apply_record,
    ended_objects,
    log_ids_of_markers,
)
from coordinator.batch.runs import (
    Run,
    StoredObject,
    aborted_of,
    marker_runs,
    ranges_of,
    runs_of,
)
from coordinator.batch.sqlite import database, deferred_deletes, objects, rows
from coordinator.batch.sqlite.deferred_deletes import (
    ABOVE_EVERY_OFFSET,
    DeferredDeletes,
    earlier_sql,
)
from coordinator.batch.sqlite.runs import Dead, Runs, Tally
from coordinator.batch.sqlite.schema import SPAN_RUNS
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
    log_ids_of,
)
from coordinator.batch.transactions import Aborted, OpenTransactions
from records.diskless import (
    DisklessPartitionsRecord,
    DisklessPartitionsReleasedRecord,
    DisklessPartitionsRemovedRecord,
    LeaseClosedRecord,
    LogStartOffsetsRecord,
    ObjectCommitRecord,
    ObjectsMarkedRecord,
    ObjectsRemovedRecord,
    OrphansFoundRecord,
    RewriteLeaseGrantedRecord,
    RunsReplacedRecord,
    TransactionMarkersRecord,
)
from records.schema import MetadataRecord
from records.types import Epoch, Offset, OffsetAndEpoch

COMMIT_ROWS: Final = 12_000
"""Runs and commits that make a transaction full. What is written then is a row for each partition
and producer that changed, and the pages."""

DRAIN_ROWS: Final = 400
"""Runs, or partitions that were created, that are given to SQLite at once: about a ms."""

CACHED_PRODUCERS: Final = 20_000
"""Number of producers in each of two generations of the cache: 10-20 MB when full."""

CACHED_ANSWERS: Final = 128

_IDLE_WINDOW: Final = 2
"""Producers looked at, for each that a sweep may return."""


class Store:
    """See the module. Satisfies `state.Tables`, `reads.Runs` and `reads.Candidates`."""

    def __init__(
        self, path: Path, connection: sqlite3.Connection, *, span_runs: int = SPAN_RUNS
    ) -> None:
        """Read the coordinator's state from an open SQLite database.

        Raises sqlite3.Error, and the errors of rows that cannot be decoded.
        """
        self.path = path
        self.connection = connection
        self.wal = database.WalKeeper(path)
        self.runs = Runs(connection, span_runs=span_runs)
        self._objects: list[rows.ObjectRow] = []
        self._is_open = False  # a transaction
        self.is_torn = False  # it holds half of something, and is never to be committed
        self._torn_by: sqlite3.Error | None = None
        self._gathered = 0
        self._touched = 0  # partitions made or moved since tables were last written
        self._idle_after: ProducerKey = (-1, -1)
        self.flushes = 0
        self._read_meta()
        self._read_tables()

    def _read_meta(self) -> None:
        read = self.connection.execute
        pending = read("SELECT value FROM meta WHERE name = 'graves'").fetchone()
        self.deferred_deletes = DeferredDeletes(
            self.runs, deferred_deletes.unpacked(None if pending is None else pending[0])
        )
        found = read("SELECT value FROM meta WHERE name = 'state'").fetchone()
        numbers: tuple[int, ...] = (0, 0, 0, 0, 0, 0, 0, 0, *astuple(Counters()))
        if found is not None:
            numbers = msgpack.unpackb(found[0], use_list=False)
        offset, epoch, self.last_timestamp, self.changed_records = numbers[:4]
        self.applied = OffsetAndEpoch(Offset(offset), Epoch(epoch))
        self.run_count, self.object_count, producers, answers = numbers[4:8]
        self.counters = Counters(*numbers[8:])
        self.producers: WriteBackTable[ProducerKey, Producer] = WriteBackTable(
            self._load_producer, self._store_producers, capacity=CACHED_PRODUCERS, count=producers
        )
        self.answers: WriteBackTable[int, Answer] = WriteBackTable(
            self._load_answer, self._store_answers, capacity=CACHED_ANSWERS, count=answers
        )

    def _read_tables(self) -> None:
        read = self.connection.execute
        topics = {
            UUID(bytes=topic_id): rows.unpack_topic(row)
            for topic_id, row in read("SELECT topic_id, row FROM topics")
        }
        leases = {
            lease_id: rows.unpack_lease(row)
            for lease_id, row in read("SELECT lease_id, row FROM leases")
        }
        brokers = {
            broker_id: rows.unpack_broker(row)
            for broker_id, row in read("SELECT broker_id, row FROM brokers")
        }
        logs: dict[LogId, Log] = {}
        self.tallies: dict[LogId, Tally] = {}
        for log_id, log_start_offset, high_watermark, *tally in read("SELECT * FROM partitions"):
            logs[log_id] = (log_start_offset, high_watermark)
            self.tallies[log_id] = Tally(log_id, *tally)
        cleanings = {
            log_id: Cleaning(*row)
            for log_id, *row in read(
                "SELECT log_id, cleaned_until, bound, rewritten_until FROM cleanings"
            )
        }
        self.cleanings: WholeTable[LogId, Cleaning] = WholeTable(cleanings, self._store_cleanings)
        open_transactions = {
            log_id: rows.unpack_open_transactions(row)
            for log_id, row in read("SELECT log_id, row FROM open_transactions")
        }
        self.open_transactions: WholeTable[LogId, OpenTransactions] = WholeTable(
            open_transactions, self._store_open_transactions
        )
        self.replacing = AppliedReplacing()
        self.topics: WholeTable[UUID, Topic] = WholeTable(topics, self._store_topics)
        self.logs: WholeTable[LogId, Log] = WholeTable(logs, self._store_logs)
        self.leases: WholeTable[int, Lease] = WholeTable(leases, self._store_leases)
        self.brokers: WholeTable[int, Broker] = WholeTable(brokers, self._store_brokers)

    def highest_producer_id(self) -> int:
        """Return the highest producer id of any partition, or -1; unflushed ones are not seen."""
        query = "SELECT coalesce(max(producer_id), -1) FROM producers"
        return int(self.connection.execute(query).fetchone()[0])

    @property
    def record_count(self) -> int:
        """Return the number of rows in all tables that a checkpoint of the state contains."""
        whole = len(self.topics) + len(self.logs) + len(self.leases) + len(self.brokers)
        whole += len(self.cleanings)
        cached = self.producers.count + self.answers.count
        return 1 + whole + cached + self.run_count + self.object_count

    # -- applying ------------------------------------------------------------------------------

    def apply(self, record: MetadataRecord) -> None:
        """Apply one committed log record to the database. Raises sqlite3.Error.

        After an error the state must be opened anew.
        """
        self.begin()
        self._gathered += 1
        match record:
            case ObjectCommitRecord():
                self._commit(record)
            case DisklessPartitionsRecord():
                apply_record(self, record)
                first = record.first_log_id
                for log_id in range(first, first + record.partition_count):
                    self.tallies[log_id] = Tally(log_id)
                self._touched += record.partition_count
            case LogStartOffsetsRecord():
                apply_record(self, record)
                self._move_log_starts(record)
            case DisklessPartitionsRemovedRecord() | DisklessPartitionsReleasedRecord():
                topic = self.topics[record.topic_id]
                apply_record(self, record)
                self._remove_logs([topic.log_ids[partition] for partition in record.partitions])
            case ObjectsMarkedRecord():
                self._drain()
                self.changed_records += objects.mark(self.connection, record)
            case OrphansFoundRecord():
                self._drain()
                added = objects.add_found(self.connection, record)
                self.object_count += added
                self.changed_records += added
            case ObjectsRemovedRecord():
                apply_record(self, record)
                self._drain()
                gone = objects.remove(self.connection, record)
                self.object_count -= gone
                self.changed_records += gone
            case RunsReplacedRecord():
                apply_record(self, record)
                self._replace(record)
            case TransactionMarkersRecord():
                self._add_markers(record)
            case LeaseClosedRecord() | RewriteLeaseGrantedRecord():
                ended = ended_objects(self, record)
                apply_record(self, record)
                if ended:
                    objects.close(self.connection, ended)
                    self.changed_records += len(ended)
            case _:
                apply_record(self, record)

    @property
    def _dies_ms(self) -> int:
        """Return the time to record for an object's first deleted run, or -1 to record no time."""
        return self.counters.steady_ms if self.counters.notes_deletions else -1

    def _replace(self, record: RunsReplacedRecord) -> None:
        """Replace runs of batches and their spans, and update the used bytes of the objects."""
        self._drain()
        used_bytes, topics = 0, set()
        for replaced in ranges_of(record):
            topic_id = record.topic_ids[replaced.topic_index]
            log_id = self.topics[topic_id].log_ids[replaced.partition]
            log = self.logs[log_id]
            dead, new = self.runs.replace(self.tallies[log_id], replaced, log[0], self._dies_ms)
            self._subtract_dead(dead)
            self.run_count += len(new)
            used_bytes += sum(run.byte_size for run in new)
            topics.add(topic_id.bytes)
            self.logs[log_id] = log  # its tally has changed: it is to be written
            self.connection.executemany(
                "DELETE FROM aborted WHERE log_id = ? AND producer_id = ? AND first_offset = ?"
                " AND last_offset BETWEEN ? AND ?",
                [
                    (log_id, *entry, entry[1], replaced.end_offset - 1)
                    for entry in replaced.ended_aborted
                ],
            )
        self.object_count += objects.fill(self.connection, record, used_bytes, topics)
        self._gathered += len(record.last_offsets)

    def _add_markers(self, record: TransactionMarkersRecord) -> None:
        """Apply transaction markers; insert their runs, and the transactions that they abort."""
        log_ids = log_ids_of_markers(self, record)
        apply_markers(self, record, log_ids)
        new = [rows.run_row(log_ids[index], run) for index, run in marker_runs(record)]
        self.runs.add(self.tallies, new)
        self.run_count += len(new)
        self._gathered += len(new)
        self.add_aborted((log_ids[index], *entry) for index, entry in aborted_of(record))

    def add_aborted(self, entries: Iterable[tuple[int, ...]]) -> None:
        """Insert rows of aborted transactions: a log id, then the fields of `Aborted`."""
        put = "INSERT INTO aborted VALUES (?, ?, ?, ?, ?)"
        self.connection.executemany(put, entries)

    def _commit(self, record: ObjectCommitRecord) -> None:
        log_ids = log_ids_of(self, record)
        new = runs_of(record, log_ids)
        apply_commit(self, record, log_ids)
        self.runs.add(self.tallies, new)
        self.run_count += len(new)
        self.object_count += 1
        self._gathered += len(new)
        self._objects.append(
            (
                record.object_id,
                record.size_bytes,
                sum(row[5] for row in new),
                record.object_format,
                record.broker_id,
                record.committed_at_ms,
                -1,
                b"".join(rows.topics_of(record, log_ids, new)),
                -1,
            )
        )

    def _move_log_starts(self, record: LogStartOffsetsRecord) -> None:
        self._drain()
        self._touched += len(record.partitions)
        left = deferred_deletes.RUNS_WITH_RECORD
        for index, partition, offset in zip(
            record.topic_indexes, record.partitions, record.log_start_offsets, strict=True
        ):
            log_id = self.topics[record.topic_ids[index]].log_ids[partition]
            tally = self.tallies[log_id]
            dead = self.deferred_deletes.enqueue(log_id, tally, offset, self._dies_ms, left)
            left = max(0, left - max(deferred_deletes.PARTITION_COST, self._subtract_dead(dead)))

    def delete_dead_runs(self, limit: int) -> None:
        """Delete up to `limit` queued rows of deleted runs of batches. Raises sqlite3.Error."""
        if not self.deferred_deletes:
            return
        self.begin()
        self._drain()
        for log_id, dead in self.deferred_deletes.delete_some(self.tallies, limit):
            self._subtract_dead(dead)
            log = self.logs.get(log_id)
            if log is not None:
                self.logs[log_id] = log  # its tally has changed: it is to be written
        self.flush_if_full()

    def _subtract_dead(self, dead: list[Dead]) -> int:
        """Subtract deleted runs' bytes from their objects' used bytes; return the number of runs.

        The count is of runs.
        """
        self.connection.executemany(
            "UPDATE objects SET used_bytes = used_bytes - ?1,"
            f" first_deletion_ms = {earlier_sql('first_deletion_ms', '?2')} WHERE object_id = ?3",
            [(piece.size_bytes, piece.since_ms, piece.object_id) for piece in dead],
        )
        count = sum(piece.run_count for piece in dead)
        self.run_count -= count
        self.changed_records += count + len(dead)
        self._gathered += count
        return count

    def _remove_logs(self, log_ids: list[LogId]) -> None:
        """Delete partitions' rows and producers; delete or queue their runs of batches."""
        self._drain()
        self.producers.flush()
        left = deferred_deletes.RUNS_WITH_RECORD
        for log_id in log_ids:
            tally = self.tallies.pop(log_id, None)
            if tally is None:
                continue
            dead = self.deferred_deletes.enqueue(
                log_id, tally, ABOVE_EVERY_OFFSET, self._dies_ms, max(0, left)
            )
            left -= max(deferred_deletes.PARTITION_COST, self._subtract_dead(dead))
            gone = self.connection.execute("DELETE FROM producers WHERE log_id = ?", (log_id,))
            self.producers.count -= gone.rowcount
            self.changed_records += gone.rowcount + 1
        removed = frozenset(log_ids)
        self.producers.forget(lambda key: key[0] in removed)

    # -- transactions --------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin an SQLite transaction if none is open.

        Raises sqlite3.Error, also once the state is torn.
        """
        if self.is_torn or self._is_open != self.connection.in_transaction:
            anew = sqlite3.OperationalError(f"{self.path} is to be opened anew, after an error")
            raise self._torn_by or anew
        if not self._is_open:
            self.connection.execute("BEGIN")
            self._is_open = True

    def count_written(self, rows: int) -> None:
        """Add `rows` to the count of rows that the open transaction has written."""
        self._gathered += rows

    def flush_if_full(self) -> None:
        """Write waiting rows once they are many; commit once the transaction wrote many rows.

        Raises sqlite3.Error.
        """
        if len(self.runs) >= DRAIN_ROWS:
            self._drain()
        if self._touched >= DRAIN_ROWS:
            self._write_tables()
        if self._gathered >= COMMIT_ROWS and not self.wal.puts_off_commits:
            self.flush()

    def flush(self) -> None:
        """Commit the applied records and their end offset together. Raises sqlite3.Error."""
        if not self._is_open:
            return
        self.begin()
        self.is_torn = True  # unless it succeeds: SQLite may roll back where it fails
        try:
            self._drain()
            self._write_tables()
            self.changed_records += self.leases.flush() + self.brokers.flush()
            self.changed_records += self.producers.flush() + self.answers.flush()
            self.write_state()
            self.connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._torn_by = error  # later calls raise it
            raise
        self._is_open = self.is_torn = False
        self._gathered = 0
        self.flushes += 1
        self.wal.tidy()

    def write_state(self) -> None:
        """Write applied offset and counts to the table `meta`; the caller ends the transaction."""
        numbers = (
            self.applied.offset,
            self.applied.epoch,
            self.last_timestamp,
            self.changed_records,
            self.run_count,
            self.object_count,
            self.producers.count,
            self.answers.count,
            *astuple(self.counters),
        )
        put = "INSERT OR REPLACE INTO meta VALUES (?, ?)"
        self.connection.execute(put, ("state", msgpack.packb(numbers)))
        if self.deferred_deletes.is_changed:
            self.connection.execute(put, ("graves", self.deferred_deletes.packed()))

    def _write_tables(self) -> None:
        """Write changed topics and partitions to SQLite, and count these rows."""
        self.changed_records += self.topics.flush() + self.logs.flush() + self.cleanings.flush()
        self.changed_records += self.open_transactions.flush()
        self._gathered, self._touched = self._gathered + self._touched, 0

    def _drain(self) -> None:
        """Write the runs of batches and objects that wait in memory to SQLite."""
        self.runs.drain()
        if self._objects:
            self.connection.executemany(
                "INSERT INTO objects VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", self._objects
            )
            self._objects.clear()

    def close(self) -> None:
        """Close the database file; changes that were not flushed are lost."""
        self.wal.close()
        self.connection.close()

    # -- rows of the tables --------------------------------------------------------------------

    def _put(self, table: str, columns: int, written: list[tuple[object, ...]]) -> None:
        marks = ", ".join("?" * columns)
        self.connection.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", written)

    def _delete(self, table: str, where: str, gone: list[tuple[object, ...]]) -> None:
        if gone:
            self.connection.executemany(f"DELETE FROM {table} WHERE {where}", gone)

    def _store_topics(self, changed: Mapping[UUID, Topic | None]) -> None:
        self._delete(
            "topics", "topic_id = ?", [(key.bytes,) for key, row in changed.items() if row is None]
        )
        self._put(
            "topics",
            2,
            [(k.bytes, rows.pack_topic(v)) for k, v in changed.items() if v is not None],
        )

    def _store_logs(self, changed: Mapping[LogId, Log | None]) -> None:
        gone = [(log_id,) for log_id, log in changed.items() if log is None]
        self._delete("partitions", "log_id = ?", list(gone))
        tallies = self.tallies
        self._put(
            "partitions",
            9,
            [(k, *log, *tallies[k].row()) for k, log in changed.items() if log is not None],
        )

    def _store_cleanings(self, changed: Mapping[LogId, Cleaning | None]) -> None:
        gone = [(log_id,) for log_id, row in changed.items() if row is None]
        self._delete("cleanings", "log_id = ?", list(gone))
        self._put("cleanings", 4, [(k, *row) for k, row in changed.items() if row is not None])

    def _store_open_transactions(self, changed: Mapping[LogId, OpenTransactions | None]) -> None:
        gone = [(log_id,) for log_id, row in changed.items() if row is None]
        self._delete("open_transactions", "log_id = ?", list(gone))
        pack = rows.pack_open_transactions
        left = [(log_id, pack(row)) for log_id, row in changed.items() if row is not None]
        self._put("open_transactions", 2, list(left))

    def _store_leases(self, changed: Mapping[int, Lease | None]) -> None:
        self._delete("leases", "lease_id = ?", [(k,) for k, v in changed.items() if v is None])
        self._put(
            "leases", 2, [(k, rows.pack_lease(v)) for k, v in changed.items() if v is not None]
        )

    def _store_brokers(self, changed: Mapping[int, Broker | None]) -> None:
        self._put(
            "brokers", 2, [(k, rows.pack_broker(v)) for k, v in changed.items() if v is not None]
        )

    def _store_answers(self, changed: Mapping[int, Answer | None]) -> None:
        self._delete("answers", "object_id = ?", [(k,) for k, v in changed.items() if v is None])
        self._put(
            "answers", 2, [(k, rows.pack_answer(v)) for k, v in changed.items() if v is not None]
        )

    def _store_producers(self, changed: Mapping[ProducerKey, Producer | None]) -> None:
        gone = [key for key, value in changed.items() if value is None]
        if gone:
            self._delete("producers", "log_id = ? AND producer_id = ?", list(gone))
            changed = {key: value for key, value in changed.items() if value is not None}
        self.connection.executemany(
            "INSERT OR REPLACE INTO producers VALUES (?, ?, ?, ?)",
            rows.producer_rows(changed),  # type: ignore[arg-type]
        )

    def _load_producer(self, key: ProducerKey) -> Producer | None:
        found = self.connection.execute(
            "SELECT appended_at_ms, row FROM producers WHERE log_id = ? AND producer_id = ?", key
        ).fetchone()
        return None if found is None else rows.unpack_producer(*found)

    def _load_answer(self, object_id: int) -> Answer | None:
        found = self.connection.execute(
            "SELECT row FROM answers WHERE object_id = ?", (object_id,)
        ).fetchone()
        return None if found is None else rows.unpack_answer(found[0])

    # -- reads.Runs ----------------------------------------------------------------------------

    def runs_from(self, log_id: LogId, offset: int) -> Iterator[Run]:
        """Yield a partition's runs of batches from the run that contains `offset` on."""
        return self.runs.walk(log_id, offset)

    def aborted_from(self, log_id: LogId, offset: int) -> Iterator[Aborted]:
        """Yield a partition's aborted transactions that end at or above an offset, by end."""
        for row in self.connection.execute(
            "SELECT producer_id, first_offset, last_offset, last_stable_offset FROM aborted"
            " WHERE log_id = ? AND last_offset >= ? ORDER BY last_offset",
            (log_id, offset),
        ):
            yield Aborted._make(row)

    def first_run_since(self, log_id: LogId, timestamp: int, from_offset: int) -> Run | None:
        """Return the first run from an offset on that has a record at or after `timestamp`."""
        return self.runs.first_since(log_id, from_offset, timestamp)

    def run_of_max_timestamp(self, log_id: LogId, from_offset: int) -> Run | None:
        """Return the first of the runs from an offset on that have the greatest max timestamp."""
        greatest = self.runs.greatest_time(log_id, from_offset)
        return None if greatest is None else self.runs.first_since(log_id, from_offset, greatest)

    def run_totals(self, log_id: LogId) -> tuple[int, int] | None:
        """Return the number and total bytes of a partition's undeleted runs, or None if unknown.

        None while dead runs await deletion.
        """
        tally = self.tallies[log_id]
        return None if log_id in self.deferred_deletes else (tally.runs, tally.bytes)

    # -- reads.Candidates ----------------------------------------------------------------------

    def stored_object(self, object_id: int) -> StoredObject | None:
        """Read an object's row by its object id; return None if there is no such object."""
        self._drain_to_read()
        found = self.connection.execute(
            "SELECT * FROM objects WHERE object_id = ?", (object_id,)
        ).fetchone()
        return None if found is None else rows.stored_object(found)

    def unused_objects(self, limit: int) -> list[int]:
        """Return up to `limit` ids of objects with all batches deleted and no deletion mark."""
        self._drain_to_read()
        return [
            object_id
            for (object_id,) in self.connection.execute(
                "SELECT object_id FROM objects WHERE used_bytes = 0 AND marked_at_ms = -1"
                " ORDER BY object_id LIMIT ?",
                (limit,),
            )
        ]

    def marked_objects(self, first_ms: int, last_ms: int, limit: int) -> list[tuple[int, int]]:
        """Return up to `limit` (mark time, object id) pairs of marks set in a time range."""
        self._drain_to_read()
        return self.connection.execute(
            "SELECT marked_at_ms, object_id FROM objects"
            " WHERE marked_at_ms >= MAX(?, 0) AND marked_at_ms >= 0 AND marked_at_ms <= ?"
            " ORDER BY marked_at_ms, object_id LIMIT ?",
            (first_ms, last_ms, limit),
        ).fetchall()

    def producer_count(self) -> int:
        """Return the number of producer states; those of the newest commits may be missing."""
        return self.producers.count

    def idle_producers(self, appended_before_ms: int, limit: int) -> list[ProducerKey]:
        """Return (log id, producer id) pairs of producers whose last append was before a time.

        Each call looks at some producers, and the next one continues from there.
        """
        self.flush()
        window = limit * _IDLE_WINDOW
        seen = self.connection.execute(
            "SELECT log_id, producer_id, appended_at_ms FROM producers"
            " WHERE (log_id, producer_id) > (?, ?) ORDER BY log_id, producer_id LIMIT ?",
            (*self._idle_after, window),
        ).fetchall()
        if len(seen) < window:
            seen += self.connection.execute(
                "SELECT log_id, producer_id, appended_at_ms FROM producers"
                " WHERE (log_id, producer_id) <= (?, ?) ORDER BY log_id, producer_id LIMIT ?",
                (*self._idle_after, window - len(seen)),
            ).fetchall()
        idle: list[ProducerKey] = []
        for log_id, producer_id, appended_at_ms in seen:
            if len(idle) == limit:
                break
            self._idle_after = (log_id, producer_id)
            if appended_at_ms < appended_before_ms:
                idle.append((log_id, producer_id))
        return idle

    def producers_of(self, log_id: LogId, limit: int) -> list[ProducerKey]:
        """Return (log id, producer id) pairs of up to `limit` producers of a partition."""
        self.flush()
        return self.connection.execute(
            "SELECT log_id, producer_id FROM producers WHERE log_id = ? LIMIT ?", (log_id, limit)
        ).fetchall()

    def last_offset_of_runs(self, log_id: LogId, limit: int) -> int | None:
        """Return the last offset of a partition's first `limit` undeleted runs of batches."""
        log = self.logs.get(log_id)
        return None if log is None else self.runs.end_of(log_id, log[0], limit)

    def _drain_to_read(self) -> None:
        if self._is_open:
            self._drain()
