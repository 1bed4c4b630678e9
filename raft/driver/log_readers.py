"""Who reads a group's log to keep it: archives, each with what it has and when it last said so.

An archive is no replica: what it fetches it has not got yet, and what it has got it may have read
elsewhere. So its Fetches say, beside where to read, how far its archive is durable, and the log's
start waits for that. Nothing of it is in any log: a reader lives while it fetches, and a new leader
knows of none.

The surprise is that a leader's silence about readers means nothing at first; how long it waits for
those that there may be is for the rule (`Keeping.log_start`) to say.

Source: KIP-630, When to Increase the LogStartOffset; docs/design/snapshots.md#where-the-log-starts.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from raft.core.voters import ReplicaKey
from records.types import Offset

MAX_READERS: Final = 32
"""More than anybody runs; the one that is silent longest makes room."""


class Reader(NamedTuple):
    """An archive, as its last Fetch showed it."""

    key: ReplicaKey  # as whom it fetches
    offset: Offset  # it has everything below, durably
    last_fetch_ms: int


class Readers:
    """Of one group, while we lead it."""

    def __init__(self) -> None:
        """Nobody heard of."""
        self._known: dict[ReplicaKey, Reader] = {}

    @property
    def known(self) -> tuple[Reader, ...]:
        """All, the silent ones too."""
        return tuple(self._known.values())

    def heard(self, key: ReplicaKey, offset: Offset, now_ms: int) -> None:
        """A Fetch of a reader came in."""
        if key not in self._known and len(self._known) >= MAX_READERS:
            silent_longest = min(self._known.values(), key=lambda one: one.last_fetch_ms)
            del self._known[silent_longest.key]
        self._known[key] = Reader(key, offset, now_ms)
