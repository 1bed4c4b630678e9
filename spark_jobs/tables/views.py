"""Views beside the records' own tables: other names, and a few other shapes.

    topics, partitions, chunks, object_commits, ...   a table by its plural name
    objects                                           one row for each committed object
    markers                                           one row for each marker of a transaction
    unknown                                           records of types or versions not known here
    coverage                                          which offsets a read is made of

Each row is a change as it stands in the log, not the state after it; for the state at an offset see
`spark_jobs.tables.log_state`. After the log's head was cut, the rows of
a checkpoint come first (`from_checkpoint`), and those are state.

Source: docs/design/pipeline.md#one-input.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

import pyarrow as pa

from records import diskless, groups, transactions
from records.compression import Buffer
from records.frame import METADATA_RECORDS, read_frame
from records.wire import Versions
from spark_jobs.readers.log_position import LogPosition
from spark_jobs.readers.logs import CLUSTER_METADATA, DISKLESS_METADATA
from spark_jobs.tables.commits import OBJECT_SCHEMA, ObjectColumns
from spark_jobs.tables.markers import MARKERS_KEY, MARKERS_SCHEMA, MarkerColumns
from spark_jobs.tables.schemas import (
    OBJECT_COMMIT_KEY,
    RECORD,
    RECORD_OF,
    RECORD_SCHEMA,
    TABLES,
    EnvelopeColumns,
    TableError,
    columns_of,
    schema_of,
)

ALIASES: Final[Mapping[str, str]] = {
    "brokers": "register_broker",
    "chunk_changes": "chunk_change",
    "chunks": "chunk",
    "configs": "config",
    "leases": "lease_granted",
    "log_starts": "log_start_offsets",
    "object_commits": "object_commit",
    "partition_changes": "partition_change",
    "partitions": "partition",
    "records": RECORD,
    "topics": "topic",
}

OBJECTS: Final = "objects"
MARKERS: Final = "markers"
UNKNOWN: Final = "unknown"
COVERAGE: Final = "coverage"

_RECORDS_OF: Final = {OBJECTS: "object_commit", MARKERS: "transaction_markers"}
"""The table with the records that a view shows in another shape."""

VIEWS: Final = (*ALIASES, *_RECORDS_OF, UNKNOWN, COVERAGE)

COVERAGE_SCHEMA: Final = pa.schema(
    [
        pa.field("from_checkpoint", pa.bool_(), nullable=False),
        pa.field("start_offset", pa.int64(), nullable=False),
        pa.field("end_offset", pa.int64(), nullable=False),
    ]
)

CONSUMER_OFFSETS: Final = "__consumer_offsets-"
TRANSACTION_STATE: Final = "__transaction_state-"


class Columns(Protocol):
    """Collects records and returns them as Arrow batches."""

    @property
    def rows(self) -> int:
        """Return the number of rows that `add` collected and `take` has not returned yet."""
        ...

    def add(self, position: LogPosition, value: Buffer) -> None:
        """Collect one record with its position in the log.

        Raises:  RecordError.
        """
        ...

    def take(self) -> pa.RecordBatch:
        """Return the rows that were added since the last call as an Arrow batch."""
        ...


class UnknownColumns(EnvelopeColumns):
    """Collects records of types or versions without a declaration here, as bytes."""

    def add(self, position: LogPosition, value: Buffer) -> None:
        """Collect a record that this release cannot decode, and ignore all other records.

        Raises:  RecordError if it has no frame.
        """
        if not is_known(*read_frame(value)[:2]):
            super().add(position, value)


def is_known(key: int, version: int) -> bool:
    """Return whether this release can decode a record of this type and version."""
    record = METADATA_RECORDS.get(key)
    return record is not None and version in record.schema().versions


def resolve_table(name: str) -> str:
    """Return the full name of the table or view that a name or an alias stands for.

    Raises:  TableError, which names all tables and views.
    """
    found = ALIASES.get(name, name)
    if found not in TABLES and found not in (*_RECORDS_OF, UNKNOWN, COVERAGE):
        names = ", ".join(sorted({*TABLES, *VIEWS}))
        raise TableError(f"there is no table {name!r}; there are: {names}")
    return found


def schema_named(name: str) -> pa.Schema:
    """Return the schema of a table or view.

    Raises:  TableError.
    """
    name = resolve_table(name)
    if name == OBJECTS:
        return OBJECT_SCHEMA
    if name == MARKERS:
        return MARKERS_SCHEMA
    if name == UNKNOWN:
        return RECORD_SCHEMA
    return COVERAGE_SCHEMA if name == COVERAGE else schema_of(name)


def columns_named(name: str) -> tuple[Columns, int | None]:
    """Return an empty collector for a table or view, and the record type that it collects.

    A record type of None stands for all types.

    Raises:  TableError.
    """
    name = resolve_table(name)
    if name == OBJECTS:
        return ObjectColumns(), OBJECT_COMMIT_KEY
    if name == MARKERS:
        return MarkerColumns(), MARKERS_KEY
    if name == UNKNOWN:
        return UnknownColumns(), None
    return columns_of(name)


def versions_named(name: str) -> Versions | None:
    """Return the versions of a table's record type, or None if the table's rows are not decoded."""
    name = resolve_table(name)
    record = RECORD_OF.get(_RECORDS_OF.get(name, name))
    return None if record is None else record.schema().versions


def can_hold(name: str, log: str) -> bool:
    """Return whether a log can hold rows of a table; every log can hold rows of `record`."""
    name = resolve_table(name)
    record = RECORD_OF.get(_RECORDS_OF.get(name, name))
    if record is None:
        return True
    homes = {
        diskless.__name__: DISKLESS_METADATA,
        groups.__name__: CONSUMER_OFFSETS,
        transactions.__name__: TRANSACTION_STATE,
    }
    return log.startswith(homes.get(record.__module__, CLUSTER_METADATA))
