"""Which cuts are past the retention. Cuts are only as old as the store's clock says.

A cut can be restored for the retention after a *newer* one was written: so there is always a cut
that is at least that old, or the first one. Ages are differences of the store's times of manifests,
and what this broker's own clock has counted since it saw the newest one. A clock that is held
expires none; the newest cut never expires.

Source: docs/design/backup.md#deletion-waits-for-the-backup.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from diskless.backup.bucket import ListedManifest

LISTINGS: Final = 10
"""Listings within one retention: a cut is kept longer by a tenth at most."""


class Expiry:
    """The listed manifests of a cluster, and their ages."""

    def __init__(self, retention_s: float, clock: Callable[[], float]) -> None:
        """Create it without a listing.

        Args:    clock: seconds of a clock that does not go backwards.
        """
        self._retention_ms = retention_s * 1_000
        self._clock = clock
        self._listed: Sequence[ListedManifest] = ()
        self._seen_at = 0.0  # when the newest listed manifest was seen first
        self._listed_at: float | None = None

    def note(self, listed: Sequence[ListedManifest]) -> None:
        """Take a listing of all manifests, the oldest first."""
        self._listed_at = self._clock()
        if not self._listed or not listed or listed[-1].number != self._listed[-1].number:
            self._seen_at = self._listed_at
        self._listed = listed

    def is_due(self) -> bool:
        """Return whether the store should be listed again."""
        wait_s = self._retention_ms / 1_000 / LISTINGS
        return self._listed_at is None or self._clock() - self._listed_at >= wait_s

    def oldest(self) -> ListedManifest | None:
        """Return the oldest cut that can still be restored, or None without a listing."""
        if not self._listed:
            return None
        now_ms = self._listed[-1].modified_ms + (self._clock() - self._seen_at) * 1_000
        found = self._listed[0]
        for newer in self._listed[1:]:
            if now_ms - newer.modified_ms < self._retention_ms:
                break
            found = newer
        return found

    def is_newest_only(self) -> bool:
        """Return whether every cut but the newest listed one is past the retention."""
        return bool(self._listed) and self.oldest() == self._listed[-1]

    def has_before(self, number: int) -> bool:
        """Return whether a listed manifest has a lower number."""
        return any(one.number < number for one in self._listed)

    def forget_before(self, number: int) -> None:
        """Drop the manifests that were deleted from the listing."""
        self._listed = [one for one in self._listed if one.number >= number]
