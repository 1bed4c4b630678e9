"""Which marked objects deletion has to leave, because a cut that can be restored may need them.

An object is needed by a restore from each cut that was taken before the record that marked it. The
batch coordinator does not keep that record's offset, and the time of a mark is a leader's clock, so
it proves no order. So this broker notes for each marked object in its own replica an offset below
which the mark is applied: that of the replica when the mark was first seen.

The trap: an object that is not noted may have been marked by any record. It is held, unless it is
an uncommitted id of a closed lease: no cut names it, and none ever will.

Source: docs/design/backup.md#deletion-waits-for-the-backup.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Final, Protocol

from records.internal_topics import DISKLESS_METADATA

PAGE: Final = 2_000  # marks read at once
FULL_SCANS: Final = 10  # every so many passes all marks are read, not only later ones


class MarkedObjects(Protocol):
    """The part of a `coordinator.batch.replica.ReadOnlyCoordinator` that the hold reads."""

    @property
    def applied_offset(self) -> int: ...

    def marked_objects(self, first_ms: int, limit: int) -> list[tuple[int, int]]: ...

    def is_orphan(self, object_id: int) -> bool: ...


class Releases(Protocol):
    """The part of a `diskless.backup.shipper.Shipper` that the hold asks."""

    def is_released(self, log_name: str, applied_below: int) -> bool: ...


class DeletionHold:
    """The marks that this broker has seen, and where. Belongs to the event loop."""

    def __init__(self, backup: Releases, replica: Callable[[int], MarkedObjects | None]) -> None:
        """Create a hold that has seen no mark, so that it releases none.

        Args:    replica: this broker's replica of a batch coordinator, if it has one.
        """
        self._backup = backup
        self._replica = replica
        self._seen: defaultdict[int, dict[int, int]] = defaultdict(dict)  # object id: offset
        self._seen_ms: defaultdict[int, int] = defaultdict(int)  # newest mark that was seen
        self._passes: defaultdict[int, int] = defaultdict(int)

    async def note(self, coordinator: int) -> None:
        """Note the marks that the replica of a batch coordinator has now."""
        replica = self._replica(coordinator)
        if replica is None:
            return
        is_full = self._passes[coordinator] % FULL_SCANS == 0
        self._passes[coordinator] += 1
        before = self._seen[coordinator]
        seen: dict[int, int] = {} if is_full else before
        first_ms, limit = 0 if is_full else self._seen_ms[coordinator], PAGE
        while True:
            applied = replica.applied_offset
            page = replica.marked_objects(first_ms, limit)
            for _, object_id in page:
                seen.setdefault(object_id, before.get(object_id, applied))
            if len(page) < limit:
                break
            if page[-1][0] == first_ms:
                limit *= 2  # more objects than a page were marked by one record
            first_ms = page[-1][0]
            await asyncio.sleep(0)
        self._seen[coordinator] = seen
        if page:
            self._seen_ms[coordinator] = page[-1][0]

    def is_held(self, coordinator: int, object_id: int) -> bool:
        """Return whether an object that the coordinator lists must stay in the store for now."""
        marked_below = self._seen[coordinator].get(object_id)
        if marked_below is None:
            replica = self._replica(coordinator)
            return replica is None or not replica.is_orphan(object_id)
        return not self._backup.is_released(f"{DISKLESS_METADATA}-{coordinator}", marked_below)
