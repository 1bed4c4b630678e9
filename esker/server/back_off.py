"""Decides when a process that has ended is started again.

    back_off = BackOff()
    back_off.ended(ready_s=None)     # 0.0: at once
    back_off.ended(ready_s=None)     # 0.5, then 1.0, 2.0, ... 30.0
    back_off.ended(ready_s=60.0)     # 0.0: it had been ready for long, and begins anew

Source: docs/design/processes.md#when-something-fails.
"""

from __future__ import annotations

from typing import Final

FIRST_S: Final = 0.5
LONGEST_S: Final = 30.0
STABLE_S: Final = 10.0  # ready for this long: what comes next is another story
CRASHES: Final = 3  # deaths in a row that make a crash loop


class BackOff:
    """The deaths in a row of one process."""

    def __init__(self) -> None:
        self.deaths = 0

    def ended(self, ready_s: float | None) -> float:
        """Count a death; return the seconds to wait before the process is started again.

        Args:  ready_s: for how long it had been ready; None: it was not.
        """
        if ready_s is not None and ready_s >= STABLE_S:
            self.deaths = 0
        wait_s = min(FIRST_S * 2.0 ** (self.deaths - 1), LONGEST_S) if self.deaths else 0.0
        self.deaths += 1
        return wait_s

    def is_crash_loop(self, ready_s: float | None) -> bool:
        """Return whether the process dies again and again, and has not been ready for long since.

        Args:  ready_s: as in `ended`, of the process that runs now.
        """
        return self.deaths >= CRASHES and (ready_s is None or ready_s < STABLE_S)
