"""The wall clocks of other voters, as their Fetches tell them.

A Fetch carries its sender's wall clock. What is kept is the difference to this node's, so it does
not age by itself; a clock that may have been set since is dropped after a minute.

Source: docs/design/clocks.md#states-of-a-processs-clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from records.types import NodeId

KEPT_S: Final = 60.0
"""The time after a voter's last Fetch for which the clock in it is used."""


def wall_clock_ms() -> int:
    """Return this node's wall clock in ms since 1970."""
    return time.time_ns() // 1_000_000


class VoterWallClocks:
    """The differences of the voters' wall clocks to this node's.

    >>> clocks = VoterWallClocks(wall_ms=lambda: 5_000, monotonic=lambda: 0.0)
    >>> clocks.note(NodeId(2), 5_700)
    >>> clocks.differences_ms([NodeId(2), NodeId(3)])
    (700,)
    """

    def __init__(
        self,
        wall_ms: Callable[[], int] = wall_clock_ms,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall_ms = wall_ms
        self._monotonic = monotonic
        self._noted: dict[NodeId, tuple[float, int]] = {}  # when, and the clock's difference

    def note(self, voter: NodeId, voter_wall_ms: int) -> None:
        """Record the wall clock of a voter whose Fetch has just arrived."""
        self._noted[voter] = (self._monotonic(), voter_wall_ms - self._wall_ms())

    def differences_ms(self, voters: Iterable[NodeId]) -> tuple[int, ...]:
        """Return the ms by which each of these voters' wall clocks is ahead of this node's clock.

        Voters that did not fetch in the last minute are left out.
        """
        since_s = self._monotonic() - KEPT_S
        noted = (self._noted.get(voter) for voter in voters)
        return tuple(entry[1] for entry in noted if entry is not None and entry[0] >= since_s)
