"""Virtual time: one heap of what is to happen, drawn from one seed.

Nothing in a simulation happens by itself: every delivery, timer, end of a flush and fault is an
entry of this heap, and entries are carried out in order of time, then of creation. Time is an
integer of microseconds, and chance comes from `random.Random` streams seeded by integers: so a run
is a function of its seed, on any machine and under any PYTHONHASHSEED.

A stream per concern (network, each disk, client, plan): taking a fault out of a plan then leaves
the numbers that the others draw in place, which is what lets a failure shrink.
"""

from __future__ import annotations

import hashlib
import re
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any, Final

MS: Final = 1000
"""Microseconds in a millisecond."""
SECOND: Final = 1_000_000
"""Microseconds in a second."""

_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")


def stream(seed: int, *names: int | str) -> Random:
    """An independent source of chance for one concern of one schedule.

    (By way of a digest, since `hash` of a string differs from one Python process to the next.)
    """
    text = "/".join(map(str, (seed, *names)))
    return Random(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()))


class Trace:
    """A running hash of everything that happened, and the last lines of it to read."""

    def __init__(self, *, keep_lines: int = 400) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self.lines: deque[str] = deque(maxlen=keep_lines)

    def note(self, line: str) -> None:
        """One line; addresses of objects are no part of what happened."""
        line = _ADDRESS.sub("", line)
        self._hash.update(line.encode() + b"\n")
        self.lines.append(line)

    @property
    def digest(self) -> str:
        """Equal for equal runs."""
        return self._hash.hexdigest()


class World:
    """The clock that all clocks derive from, and the heap."""

    def __init__(self, trace: Trace | None = None) -> None:
        self.now_us = 0
        self.events = 0
        self.trace = trace
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._created = 0

    def at(self, time_us: int, action: Callable[..., None], *args: object) -> None:
        """Do it at `time_us`, or now if that is past."""
        self._created += 1
        heappush(self._heap, (max(time_us, self.now_us), self._created, action, args))

    def after(self, delay_us: int, action: Callable[..., None], *args: object) -> None:
        """Do it `delay_us` from now."""
        self._created += 1
        heappush(self._heap, (self.now_us + delay_us, self._created, action, args))

    def run(self, until_us: int, done: Callable[[], bool] | None = None) -> bool:
        """Let things happen up to `until_us`; sooner if `done()`, which is the answer."""
        heap = self._heap
        while heap and heap[0][0] <= until_us:
            self.now_us, _, action, args = heappop(heap)
            self.events += 1
            action(*args)
            if done is not None and done():
                return True
        self.now_us = max(self.now_us, until_us)
        return False

    def note(self, who: object, what: object) -> None:
        """For the trace; costs nothing to speak of unless somebody wants one."""
        if self.trace is not None:
            self.trace.note(f"{self.now_us / SECOND:10.6f} {who} {what}")
