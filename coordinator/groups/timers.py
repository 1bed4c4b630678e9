"""Many deadlines, most of which never come: each heartbeat moves one to a later time.

A deadline that is moved leaves its entry in the heap where it is; when that entry comes up, it is
put back at the later time. So a heartbeat costs one update of a dictionary.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple


class TimerKey(NamedTuple):
    """Names a timer: its group, its kind and its member."""

    group_id: str
    kind: str
    member_id: str = ""


class Timers:
    """Deadlines by key, in ms on the caller's clock."""

    def __init__(self) -> None:
        self._deadlines: dict[TimerKey, int] = {}
        self._entries: dict[TimerKey, int] = {}  # the earliest that the heap has of a key
        self._heap: list[tuple[int, TimerKey]] = []

    def set(self, key: TimerKey, at_ms: int) -> None:
        """Set a timer's deadline, in place of an earlier deadline."""
        self._deadlines[key] = at_ms
        entry = self._entries.get(key)
        if entry is None or entry > at_ms:
            self._entries[key] = at_ms
            heapq.heappush(self._heap, (at_ms, key))

    def cancel(self, key: TimerKey) -> None:
        """Cancel a timer if it is set."""
        self._deadlines.pop(key, None)

    def is_set(self, key: TimerKey) -> bool:
        """Return whether the timer is set."""
        return key in self._deadlines

    @property
    def next_ms(self) -> int | None:
        """Return the time in ms by which to call `pop_due`, or None if no timer is set."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> TimerKey | None:
        """Remove and return a timer that is due; None if no timer is due."""
        while self._heap and self._heap[0][0] <= now_ms:
            at_ms, key = heapq.heappop(self._heap)
            if self._entries.get(key) != at_ms:
                continue  # an earlier entry of this key was there
            del self._entries[key]
            deadline = self._deadlines.get(key)
            if deadline is None:
                continue
            if deadline > now_ms:
                self._entries[key] = deadline
                heapq.heappush(self._heap, (deadline, key))
                continue
            del self._deadlines[key]
            return key
        return None
