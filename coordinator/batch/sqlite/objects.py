"""Marks, adds and removes rows of objects. Each function returns how many rows changed.

Objects that are committed are added in bulk by the store, with their runs.

Source: docs/design/batch-coordinator.md#deletion.
"""

from __future__ import annotations

import sqlite3

from coordinator.batch.runs import found_orphan
from records.diskless import ObjectsMarkedRecord, ObjectsRemovedRecord, OrphansFoundRecord


def mark(connection: sqlite3.Connection, record: ObjectsMarkedRecord) -> int:
    """Mark unmarked objects of a record for deletion; return the number of ids in the record."""
    connection.executemany(
        "UPDATE objects SET marked_at_ms = ? WHERE object_id = ? AND marked_at_ms = -1",
        [(record.marked_at_ms, object_id) for object_id in record.object_ids],
    )
    return len(record.object_ids)


def add_found(connection: sqlite3.Connection, record: OrphansFoundRecord) -> int:
    """Insert missing rows of orphans that a store listing found; return how many were inserted."""
    *columns, _ = found_orphan(record.marked_at_ms)
    added = connection.executemany(
        "INSERT OR IGNORE INTO objects VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [(object_id, *columns, b"") for object_id in record.object_ids],
    )
    return added.rowcount


def remove(connection: sqlite3.Connection, record: ObjectsRemovedRecord) -> int:
    """Delete the given objects' rows from the table `objects`; return how many were deleted."""
    gone = connection.executemany(
        "DELETE FROM objects WHERE object_id = ?",
        [(object_id,) for object_id in record.object_ids],
    )
    return gone.rowcount
