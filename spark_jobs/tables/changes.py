"""What a log says besides commits: what was made, trimmed, marked, removed and forgotten.

Not one of these records is written for what is appended, so there are few, and they are applied one
by one. Once all of them are known, pieces of the log can be looked at apart: which of their batches
live, and what became of their objects, no longer depends on any other piece.

The surprise is an object that was removed and is there again: an upload that finished late, which a
listing of the store has shown. So what was found is kept apart from what was removed.

Source: docs/design/batch-coordinator.md#deletion, docs/design/batch-coordinator.md#object-leases.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from records.diskless import (
    ObjectsMarkedRecord,
    ObjectsRemovedRecord,
    OrphansFoundRecord,
    ProducersExpiredRecord,
)
from records.schema import MetadataRecord
from spark_jobs.tables.partitions import KEYS as PARTITIONS_KEYS
from spark_jobs.tables.partitions import Partitions


@dataclass(slots=True)
class Changes:
    """As of the last record that was applied. Pickled on its way to those who look at pieces."""

    partitions: Partitions = field(default_factory=Partitions)
    forgotten: dict[tuple[int, int], int] = field(default_factory=dict)
    """Log id and producer id: the log offset of the last time."""
    marked: dict[int, int] = field(default_factory=dict)
    """Object: when, in ms since 1970."""
    removed: set[int] = field(default_factory=set)
    found: dict[int, int] = field(default_factory=dict)
    """Orphans that a listing showed, and that are not removed yet: when they were marked."""

    def apply(self, offset: int, record: MetadataRecord) -> None:
        """One record of a type in `KEYS`, in the order of the log."""
        match record:
            case ProducersExpiredRecord():
                for key in zip(record.log_ids, record.producer_ids, strict=True):
                    self.forgotten[key] = offset
            case ObjectsMarkedRecord():
                for object_id in record.object_ids:
                    self.marked.setdefault(object_id, record.marked_at_ms)
            case ObjectsRemovedRecord():
                self.removed.update(record.object_ids)
                for object_id in record.object_ids:
                    self.found.pop(object_id, None)
            case OrphansFoundRecord():
                for object_id in record.object_ids:
                    self.found.setdefault(object_id, record.marked_at_ms)
            case _:
                self.partitions.apply(record)


_RECORDS: Final[tuple[Any, ...]] = (
    ProducersExpiredRecord,
    ObjectsMarkedRecord,
    ObjectsRemovedRecord,
    OrphansFoundRecord,
)
KEYS: Final = PARTITIONS_KEYS | {record.schema().key for record in _RECORDS}
"""The record types that it knows."""
