"""The batch coordinator's state as a state machine of its log, kept in SQLite.

The file is a cache: it names its owner (cluster, log directory, group), and another owner's file,
one of another schema, or one that SQLite cannot read, is replaced by an empty one. Damage that is
met later stops the node; the file is deleted first, or the next start would meet the same damage.
The host checks whether the file agrees with the *log* (`applied`); if not, it calls `reset` and
rebuilds from the newest checkpoint and the log after it.

The host calls `apply` with slices of batches; a transaction goes on across slices until enough has
gathered, so at rest the last few commits are not in the file, and are applied again after a crash.

Source: docs/design/batch-coordinator.md#state-in-sqlite; raft.interfaces.StateMachine.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgpack

from coordinator.batch.log_records import records_of
from coordinator.batch.sqlite import database
from coordinator.batch.sqlite.deferred_deletes import RUNS_WITH_SLICE
from coordinator.batch.sqlite.frozen import FrozenState
from coordinator.batch.sqlite.loading import load_records
from coordinator.batch.sqlite.schema import SPAN_RUNS
from coordinator.batch.sqlite.source import checkpoint_of
from coordinator.batch.sqlite.store import Store
from records.batch import Batch
from records.types import OffsetAndEpoch

FILE_NAME: Final = "coordinator.db"
COPY_SUFFIX: Final = ".copy"
LOADING_SUFFIX: Final = ".loading"


class Identity(NamedTuple):
    """The cluster, directory and log whose state a file holds."""

    cluster_id: str
    directory_id: bytes  # of the log directory that holds the log, 16 bytes
    group: str  # topic-partition


class CoordinatorMachine:
    """See the module. `store` is the state; it is another object after `load` and `reset`."""

    def __init__(
        self,
        directory: Path,
        identity: Identity,
        *,
        in_process: bool = False,
        span_runs: int = SPAN_RUNS,
    ) -> None:
        """Open the coordinator's state in `directory`, or create an empty state.

        Args:    in_process: checkpoints are scanned here and now, in no thread and no child, and
                 nothing is flushed: for tests and simulations.
        Raises:  OSError, sqlite3.Error.
        """
        self.path = directory / FILE_NAME
        self._identity = identity
        self._in_process = in_process
        self._span_runs = span_runs
        self._listeners: list[Callable[[], None]] = []
        self._changed_when_frozen = 0
        self.on_damage: Callable[[BaseException], None] | None = None  # a read was the end of it
        self.on_wanted: Callable[[], None] | None = None  # a read waits for more to be applied
        self.rebuilds = 0  # how often a state was thrown away
        self.loads = 0
        for suffix in (COPY_SUFFIX, LOADING_SUFFIX):
            database.remove(self._beside(suffix))
        self.store = self._open() or self._begin()

    # -- a StateMachine ------------------------------------------------------------------------

    @property
    def applied(self) -> OffsetAndEpoch:
        """Return the offset after the last applied record, and that record's epoch."""
        return self.store.applied

    @property
    def last_timestamp(self) -> int:
        """Return the timestamp of the last applied batch in ms since 1970."""
        return self.store.last_timestamp

    @property
    def changed_records(self) -> int:
        """Return the number of rows replaced or deleted since the newest checkpoint."""
        return self.store.changed_records

    @property
    def total_records(self) -> int:
        """Return the number of rows in the tables of the state."""
        return self.store.record_count

    @property
    def checkpointable(self) -> bool:
        """Return True, because a checkpoint may be taken after any record."""
        return True

    def apply(self, batches: Iterable[Batch]) -> None:
        """Apply the committed batches of records that follow the offset `applied`.

        Raises:  UnreadableRecordError for a record this version does not know; sqlite3.Error. The
                 file then stays as of its last transaction, and this machine is of no use any more.
        """
        store = self.store
        try:
            for batch in batches:
                header = batch.header
                store.begin()
                if not header.is_control:
                    for _, record in records_of(batch):
                        store.apply(record)
                    store.last_timestamp = header.max_timestamp
                store.applied = OffsetAndEpoch(header.end_offset, header.leader_epoch)
                store.flush_if_full()
            store.delete_dead_runs(RUNS_WITH_SLICE)
        except BaseException as error:
            store.is_torn = True
            self._delete_damaged(error)
            raise
        for listener in self._listeners:
            listener()

    def load(self, snapshot_id: OffsetAndEpoch, batches: Iterable[Batch]) -> Iterator[None]:
        """Load a checkpoint in several steps into a new file that then replaces the state.

        Raises:  what a record that makes no sense raises; the state is then what it was.
        """
        path = self._beside(LOADING_SUFFIX)
        connection = database.create(path, flushes=False)
        try:
            connection.execute("PRAGMA journal_mode = OFF")
            self._mark(connection)
            loaded = Store(path, connection, span_runs=self._span_runs)
            yield from load_records(loaded, batches)
            loaded.applied = snapshot_id
            loaded.begin()
            loaded.flush()
        finally:
            connection.close()
        if not self._in_process:
            yield from _flush_file(path)
        self.store.close()
        database.remove(self.path)
        path.replace(self.path)
        self.store = self._open() or self._begin()
        assert self.applied == snapshot_id, f"loaded {snapshot_id}, and there is {self.applied}"
        self.loads += 1
        for listener in self._listeners:
            listener()

    def freeze(self) -> FrozenState:
        """Return a view of the current state for a checkpoint; later records do not change it."""
        self.store.begin()
        self.flush()
        self._changed_when_frozen = self.store.changed_records
        scan = checkpoint_of if self._in_process else None
        return FrozenState(
            self.path, self._beside(COPY_SUFFIX), self.applied, scan, self.handle_read_error
        )

    def checkpointed(self, snapshot_id: OffsetAndEpoch, record_count: int) -> None:  # noqa: ARG002
        """Count as changed only the rows changed since the new checkpoint's state was frozen."""
        self.store.changed_records -= min(self._changed_when_frozen, self.store.changed_records)
        self._changed_when_frozen = 0

    # -- besides -------------------------------------------------------------------------------

    def watch(self, listener: Callable[[], None]) -> None:
        """Register `listener` to be called whenever the offset `applied` has changed."""
        self._listeners.append(listener)

    def request_apply(self) -> None:
        """Request that committed records are applied soon, because a read waits for them."""
        if self.on_wanted is not None:
            self.on_wanted()

    def flush(self) -> None:
        """Commit the applied records to the SQLite file. Raises sqlite3.Error."""
        try:
            self.store.flush()
        except sqlite3.Error as error:
            self._delete_damaged(error)
            raise

    def handle_read_error(self, error: BaseException) -> None:
        """Delete a database that a read found damaged; call `on_damage` if the state is unusable.

        It is called if the state cannot be used. That is damage, or what was to be written for the
        read found no room: then the file is right, and this process cannot go on with it.
        """
        self._delete_damaged(error)
        if self.store.is_torn and self.on_damage is not None:
            self.on_damage(error)

    def _delete_damaged(self, error: BaseException) -> None:
        """Delete the database file if the error means damage; the next start rebuilds it."""
        if database.is_damage(error):
            self.store.is_torn = True
            database.remove(self.path)

    def reset(self) -> None:
        """Replace the state by an empty state, because the state disagrees with the log."""
        self.store.close()
        self.store = self._begin()
        for listener in self._listeners:
            listener()

    def close(self) -> None:
        """Commit the applied records, unless an apply has failed, and close the file."""
        try:
            if not self.store.is_torn:
                self.flush()
        finally:
            self.store.close()

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)

    def _open(self) -> Store | None:
        """Open the state's file, or return None if it is unreadable or has another identity."""
        connection = database.open_existing(self.path, flushes=not self._in_process)
        if connection is None:
            return None
        try:
            found = connection.execute("SELECT value FROM meta WHERE name = 'identity'").fetchone()
            if found is not None and found[0] == msgpack.packb(self._identity):
                return Store(self.path, connection, span_runs=self._span_runs)
        except (sqlite3.Error, ValueError, TypeError, msgpack.UnpackException):
            pass  # not what we wrote: a cache that cannot be read is no cache
        connection.close()
        return None

    def _begin(self) -> Store:
        connection = database.create(self.path, flushes=not self._in_process)
        self._mark(connection)
        self.rebuilds += 1
        return Store(self.path, connection, span_runs=self._span_runs)

    def _mark(self, connection: sqlite3.Connection) -> None:
        connection.execute(
            "INSERT INTO meta VALUES ('identity', ?)", (msgpack.packb(self._identity),)
        )


def _flush_file(path: Path) -> Iterator[None]:
    """Flush a closed database file in a separate thread; yield until the flush has ended.

    Raises OSError.
    """
    errors: list[OSError] = []

    def flush() -> None:
        try:
            database.make_durable(path)
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=flush, name="coordinator-flush", daemon=True)
    thread.start()
    while thread.is_alive():
        yield
    if errors:
        raise errors[0]
