"""A coordinator's database as people's questions read it: on a connection of its own, in a thread.

An overview may read millions of rows, and the event loop has commits to decide. So it is read as of
one transaction, beside the writer: whatever is not flushed yet is not in it, and the answer says
how far it goes. The read holds the WAL back while it lasts, seconds at most.

Source: KIP-1163, Command line tools; https://www.sqlite.org/isolation.html.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from uuid import UUID

import msgpack

from coordinator.runs import StoredObject
from coordinator.sqlite import rows
from coordinator.sqlite.database import READER_CACHE_KIB, connect
from coordinator.sqlite.store import stored_object
from coordinator.state import Log, LogId, Topic


class DatabaseDescribed:
    """One moment of a database. Satisfies `coordinator.describe.Described`."""

    def __init__(self, path: Path) -> None:
        self._connection = connect(path, cache_kib=READER_CACHE_KIB)
        read = self._connection.execute
        read("BEGIN")
        found = read("SELECT value FROM meta WHERE name = 'state'").fetchone()
        self.applied_offset: int = msgpack.unpackb(found[0])[0] if found is not None else 0
        self.topics: dict[UUID, Topic] = {
            UUID(bytes=topic_id): rows.unpack_topic(row)
            for topic_id, row in read("SELECT topic_id, row FROM topics")
        }
        self.logs: dict[LogId, Log] = {}
        self._totals: dict[LogId, tuple[int, int]] = {}
        for log_id, log_start, high_watermark, live_runs, live_bytes in read(
            "SELECT log_id, log_start_offset, high_watermark, live_runs, live_bytes FROM partitions"
        ):
            self.logs[log_id] = (log_start, high_watermark)
            self._totals[log_id] = (live_runs, live_bytes)

    def close(self) -> None:
        """Let go of the moment."""
        self._connection.close()

    def run_totals(self, log_id: LogId) -> tuple[int, int]:
        """See Described."""
        return self._totals.get(log_id, (0, 0))

    def objects_with_runs_of(self, log_ids: Sequence[LogId]) -> Iterator[int]:
        """See Described."""
        for log_id in log_ids:
            for (object_id,) in self._connection.execute(
                "SELECT DISTINCT object_id FROM runs WHERE log_id = ?", (log_id,)
            ):
                yield object_id

    def stored_objects(self) -> Iterable[tuple[int, StoredObject]]:
        """See Described."""
        for found in self._connection.execute("SELECT * FROM objects"):
            yield found[0], stored_object(found)

    def stored_object(self, object_id: int) -> StoredObject | None:
        """See Described."""
        found = self._connection.execute(
            "SELECT * FROM objects WHERE object_id = ?", (object_id,)
        ).fetchone()
        return None if found is None else stored_object(found)

    def run_totals_in_object(self, log_id: LogId, object_id: int) -> tuple[int, int]:
        """See Described. Reads the partition's runs: none is found by its object."""
        count, size = self._connection.execute(
            "SELECT COUNT(*), COALESCE(SUM(byte_size), 0) FROM runs"
            " WHERE log_id = ? AND object_id = ?",
            (log_id, object_id),
        ).fetchone()
        return count, size


@contextmanager
def described(path: Path) -> Iterator[DatabaseDescribed]:
    """The database as of now, for a thread that may take its time. Raises sqlite3.Error."""
    with closing(DatabaseDescribed(path)) as moment:
        yield moment
