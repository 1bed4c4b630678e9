"""Bounds the age of a replica's answers: the time since it is known to have held everything.

A leader's statement (`raft.interfaces.CommittedAsOf`) says: what was committed at this time is
below this offset. Once that is applied here, the replica was up to date at that time. The newest
such time counts.

The trap: an idle log is not an old one. Where nothing is committed, statements still arrive, with
the same offset and later times; a replica that is cut off gets none, and it ages, however complete
it believes itself to be.

Its limit: a leader that was deposed and does not know it yet still makes statements, as long as
check-quorum lets it (one and a half fetch timeouts, some seconds).

Source: KIP-1164, read-only coordinators; docs/design/broker.md#staleness-is-bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from raft.interfaces import CommittedAsOf, ReplicatedLog

WORDS_KEPT: Final = 64  # not applied yet; past that the newest stands for those before it


class Freshness:
    """The age of one replica of a log. Call `note` when something is committed or applied."""

    def __init__(self, log: ReplicatedLog, applied: Callable[[], int]) -> None:
        """Create the age measurement of a replica that applies the records of `log`.

        Args:  applied: everything below this offset is in the state.
        """
        self._log = log
        self._applied = applied
        self._words: deque[CommittedAsOf] = deque()
        self._level_at_s: float | None = None

    def note(self) -> None:
        """Update the latest time at which the replica is known to have had every committed record.

        A high watermark that is not applied yet is recorded with the time of its announcement.
        """
        word, words = self._log.committed_as_of, self._words
        if word is not None and (not words or word.at_s > words[-1].at_s):
            if words and (
                words[-1].high_watermark == word.high_watermark or len(words) == WORDS_KEPT
            ):
                words.pop()
            words.append(word)
        applied = self._applied()
        while words and words[0].high_watermark <= applied:
            at_s = words.popleft().at_s
            self._level_at_s = at_s if self._level_at_s is None else max(self._level_at_s, at_s)

    def age_ms(self, now_s: float) -> float | None:
        """Return the ms since the replica last had every committed record; None if unknown."""
        self.note()
        if self._level_at_s is None or self._log.in_doubt:
            return None
        return max(0.0, now_s - self._level_at_s) * 1_000
