"""The time by which a batch coordinator deletes: all leaders share it, and no wall clock steps it.

Steady time is kept as a distance to this process's boot-time clock. A process takes it from stamps
in the log that were written while it ran. Only a process that leads and has noted none compares the
newest stamp with its wall clock, and if they are far apart, the clock is *held*: nothing is old.

The trap: a stamp is always late, never early, so the greatest time that follows from any stamp is
the best one, and a late replay does no harm.

Source: docs/design/clocks.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

STAMP_INTERVAL_MS: Final = 30_000
"""Time between two stamps. A process that starts learns steady time within it."""

TRUSTED_DIFFERENCE_MS: Final = 3_600_000
"""A wall clock that is nearer to the newest stamp is believed by a process that starts."""

AGREED_DIFFERENCE_MS: Final = 24 * 3_600_000
"""The largest difference to the newest stamp that a majority of wall clocks may decide."""

AGREEMENT_MS: Final = 60_000
"""Wall clocks that agree differ by at most this."""

NO_STAMP: Final = -1
"""Stands for the newest stamp of a log that has none."""


class SteadyClock:
    """Steady time as one process knows it. See the module.

    >>> clock = SteadyClock(lambda: 5_000)
    >>> clock.read(NO_STAMP, 1_000_000, lambda: False)
    1000000
    >>> held = SteadyClock(lambda: 5_000)
    >>> held.read(1_000_000, 8_000_000, lambda: False) is None
    True
    """

    def __init__(self, boot_ms: Callable[[], int]) -> None:
        """Create a clock that has no steady time until `note` or `read` sets it.

        Args:  boot_ms: a clock that never steps and also counts suspended time.
        """
        self._boot_ms = boot_ms
        self._ahead_ms: int | None = None  # of the boot-time clock

    def note(self, steady_ms: int, *, replaces: bool) -> None:
        """Advance the clock to a steady time from the log; with `replaces`, also move it back.

        Args:  replaces: whether steady time was set, perhaps back.
        """
        ahead_ms = steady_ms - self._boot_ms()
        if replaces or self._ahead_ms is None or ahead_ms > self._ahead_ms:
            self._ahead_ms = ahead_ms

    def read(self, stamp_ms: int, wall_ms: int, voters_agree: Callable[[], bool]) -> int | None:
        """Return the steady time for a leader, or None while the clock is held.

        Args:  stamp_ms: the newest stamp in the log, or NO_STAMP.
               voters_agree: whether a majority of voters have this process's wall clock.
        """
        if self._ahead_ms is None:
            started_ms = _start(stamp_ms, wall_ms, voters_agree)
            if started_ms is None:
                return None
            self._ahead_ms = started_ms - self._boot_ms()
        return self._ahead_ms + self._boot_ms()


def _start(stamp_ms: int, wall_ms: int, voters_agree: Callable[[], bool]) -> int | None:
    """Return the steady time that a new process begins with; None if the clock is held."""
    if stamp_ms == NO_STAMP:
        return wall_ms
    difference_ms = abs(wall_ms - stamp_ms)
    if difference_ms < TRUSTED_DIFFERENCE_MS:
        return max(wall_ms, stamp_ms)
    return wall_ms if difference_ms <= AGREED_DIFFERENCE_MS and voters_agree() else None
