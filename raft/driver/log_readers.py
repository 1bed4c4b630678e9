"""Keeps track of a group's archive readers: each one's durable offset and last Fetch.

An archive is no replica: it does not yet have the records it fetches, and may have read others from
another node. So its Fetches carry, beside the fetch offset, the offset below which its archive is
durable, and the log's start waits for that. Readers are in no log: a reader exists while it
fetches, and a new leader knows of none.

The trap: a new leader without readers may yet get some. The rule (`SnapshotHosting.log_start`)
decides how long it waits for them.

Source: KIP-630, When to Increase the LogStartOffset; docs/design/snapshots.md#where-the-log-starts.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from raft.core.voters import ReplicaKey
from records.types import Offset

MAX_READERS: Final = 32
"""More than any deployment runs; beyond it, the longest silent reader is forgotten."""


class ArchiveReader(NamedTuple):
    """An archive as of its last Fetch."""

    key: ReplicaKey  # the replica key that it fetches with
    offset: Offset  # its archive is durable below this
    last_fetch_ms: int


class ArchiveReaders:
    """The archives that read one group's log while this node leads it."""

    def __init__(self) -> None:
        """Create an empty record of the archives that fetch the log."""
        self._readers: dict[ReplicaKey, ArchiveReader] = {}

    @property
    def all(self) -> tuple[ArchiveReader, ...]:
        """Return all archives that have fetched the log, including any that stopped fetching."""
        return tuple(self._readers.values())

    def record_fetch(self, key: ReplicaKey, offset: Offset, now_ms: int) -> None:
        """Record an archive's Fetch and the offset up to which the archive has stored the log."""
        if key not in self._readers and len(self._readers) >= MAX_READERS:
            silent_longest = min(self._readers.values(), key=lambda reader: reader.last_fetch_ms)
            del self._readers[silent_longest.key]
        self._readers[key] = ArchiveReader(key, offset, now_ms)
