"""Marks, adds and removes rows of objects. Each function returns how many rows changed.

Objects that are committed are added in bulk by the store, with their runs.

Source: docs/design/batch-coordinator.md#deletion.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from coordinator.batch.runs import NOT_MARKED, OPEN, found_orphan
from records.diskless import (
    ObjectsMarkedRecord,
    ObjectsRemovedRecord,
    OrphansFoundRecord,
    RunsReplacedRecord,
)


def mark(connection: sqlite3.Connection, record: ObjectsMarkedRecord) -> int:
    """Mark a record's unmarked objects for deletion; return the number of ids in the record."""
    connection.executemany(
        "UPDATE objects SET marked_at_ms = ? WHERE object_id = ? AND marked_at_ms = -1",
        [(record.marked_at_ms, object_id) for object_id in record.object_ids],
    )
    return len(record.object_ids)


def add_found(connection: sqlite3.Connection, record: OrphansFoundRecord) -> int:
    """Insert missing rows of orphans that a store listing found; return the number of new rows."""
    *columns, _, died_ms = found_orphan(record.marked_at_ms)
    added = connection.executemany(
        "INSERT OR IGNORE INTO objects VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [(object_id, *columns, b"", died_ms) for object_id in record.object_ids],
    )
    return added.rowcount


def close(connection: sqlite3.Connection, object_ids: Iterable[int]) -> None:
    """Close objects, so that rewriters add no more runs of batches to these objects."""
    connection.executemany(
        "UPDATE objects SET marked_at_ms = ? WHERE object_id = ? AND marked_at_ms = ?",
        [(NOT_MARKED, object_id, OPEN) for object_id in object_ids],
    )


def fill(
    connection: sqlite3.Connection,
    record: RunsReplacedRecord,
    used_bytes: int,
    topic_ids: Iterable[bytes],
) -> bool:
    """Add the bytes of new runs to a rewritten object; return whether the object is new."""
    found = connection.execute(
        "SELECT topic_ids FROM objects WHERE object_id = ?", (record.object_id,)
    ).fetchone()
    raw = b"" if found is None else found[0]
    topics = {raw[at : at + 16] for at in range(0, len(raw), 16)} | set(topic_ids)
    mark = NOT_MARKED if record.closes_object else OPEN
    if found is None:
        row = (record.object_id, record.size_bytes, 0, record.object_format, record.broker_id)
        connection.execute(
            "INSERT INTO objects VALUES (?, ?, ?, ?, ?, ?, ?, ?, -1)",
            (*row, record.replaced_at_ms, mark, b""),
        )
    connection.execute(
        "UPDATE objects SET used_bytes = used_bytes + ?, marked_at_ms = ?, topic_ids = ?"
        " WHERE object_id = ?",
        (used_bytes, mark, b"".join(sorted(topics)), record.object_id),
    )
    return found is None


def remove(connection: sqlite3.Connection, record: ObjectsRemovedRecord) -> int:
    """Delete a record's objects from the table `objects`; return the number of deleted rows."""
    gone = connection.executemany(
        "DELETE FROM objects WHERE object_id = ?",
        [(object_id,) for object_id in record.object_ids],
    )
    return gone.rowcount
