"""The tables a coordinator's state lives in.

The database is a cache of the replicated log: whatever is in it can be rebuilt from a checkpoint
and the records after it, and nothing in it is older or newer than `meta.applied_offset`, because
that number commits in the same transaction as the rows it stands for.

The trap: runs are keyed by their *last* offset. "The run that holds offset x, and those after it"
is then one walk that begins at `last_offset >= x`, and what a new log start kills is the walk
before it.

`spans` answer "the first run at or after a time" without reading every run: a level-1 span is the
greatest timestamp of 256 runs in a row, a level-2 span of 256 level-1 spans. The last, unfinished
ones stand in the partition's row. They bound from above, since runs under them may be dead.

Source: docs/design/batch-coordinator.md#state-in-sqlite; docs/coordinator-state.md has every
column.
"""

from __future__ import annotations

from typing import Final

SCHEMA_VERSION: Final = 4
"""A file of another version is thrown away and rebuilt."""

SPAN_RUNS: Final = 256
"""Runs under a level-1 span, and level-1 spans under a level-2 one."""

TABLES: Final = """
CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE topics (
    topic_id BLOB PRIMARY KEY,
    row BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE partitions (
    log_id INTEGER PRIMARY KEY,
    log_start_offset INTEGER NOT NULL,
    high_watermark INTEGER NOT NULL,
    live_runs INTEGER NOT NULL,
    live_bytes INTEGER NOT NULL,
    span_runs INTEGER NOT NULL,
    span_max INTEGER NOT NULL,
    span2_spans INTEGER NOT NULL,
    span2_max INTEGER NOT NULL
);
CREATE TABLE runs (
    log_id INTEGER NOT NULL,
    base_offset INTEGER NOT NULL,
    last_offset INTEGER NOT NULL,
    object_id INTEGER NOT NULL,
    byte_offset INTEGER NOT NULL,
    byte_size INTEGER NOT NULL,
    max_timestamp INTEGER NOT NULL,
    appended_at_ms INTEGER NOT NULL,
    timestamp_type INTEGER NOT NULL,
    record_count INTEGER NOT NULL,
    object_format INTEGER NOT NULL,
    marker BLOB,
    PRIMARY KEY (log_id, last_offset)
) WITHOUT ROWID;
CREATE TABLE spans (
    log_id INTEGER NOT NULL,
    level INTEGER NOT NULL,
    last_offset INTEGER NOT NULL,
    max_timestamp INTEGER NOT NULL,
    PRIMARY KEY (log_id, level, last_offset)
) WITHOUT ROWID;
CREATE TABLE objects (
    object_id INTEGER PRIMARY KEY,
    size_bytes INTEGER NOT NULL,
    used_bytes INTEGER NOT NULL CHECK (used_bytes BETWEEN 0 AND size_bytes),
    format INTEGER NOT NULL,
    broker_id INTEGER NOT NULL,
    committed_at_ms INTEGER NOT NULL,
    marked_at_ms INTEGER NOT NULL,
    topic_ids BLOB NOT NULL,
    first_deletion_ms INTEGER NOT NULL DEFAULT -1
);
CREATE INDEX objects_unused ON objects (object_id) WHERE used_bytes = 0 AND marked_at_ms = -1;
CREATE INDEX objects_marked ON objects (marked_at_ms, object_id) WHERE marked_at_ms >= 0;
CREATE TABLE producers (
    log_id INTEGER NOT NULL,
    producer_id INTEGER NOT NULL,
    appended_at_ms INTEGER NOT NULL,
    row BLOB NOT NULL,
    PRIMARY KEY (log_id, producer_id)
) WITHOUT ROWID;
CREATE TABLE cleanings (
    log_id INTEGER PRIMARY KEY,
    cleaned_until INTEGER NOT NULL,
    bound INTEGER NOT NULL,
    rewritten_until INTEGER NOT NULL
);
CREATE TABLE open_transactions (
    log_id INTEGER PRIMARY KEY,
    row BLOB NOT NULL
);
CREATE TABLE aborted (
    log_id INTEGER NOT NULL,
    producer_id INTEGER NOT NULL,
    first_offset INTEGER NOT NULL,
    last_offset INTEGER NOT NULL,
    last_stable_offset INTEGER NOT NULL,
    PRIMARY KEY (log_id, last_offset)
) WITHOUT ROWID;
CREATE TABLE leases (
    lease_id INTEGER PRIMARY KEY,
    row BLOB NOT NULL
);
CREATE TABLE brokers (
    broker_id INTEGER PRIMARY KEY,
    row BLOB NOT NULL
);
CREATE TABLE answers (
    object_id INTEGER PRIMARY KEY,
    row BLOB NOT NULL
);
"""
