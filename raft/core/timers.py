"""Named deadlines on the driver's clock.

The driver holds one timer, armed at the earliest deadline. A deadline that moves back costs
nothing: the tick comes early and the timer is armed again.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum, unique
from typing import Final

from raft.core.effects import SetTimer
from raft.core.gate import Gate

NEVER: Final = 2**63 - 1
"""A time that does not come."""


@unique
class Timer(IntEnum):
    """The purpose of a deadline. (An int, since its hash is on the hot path.)"""

    ELECTION = 1  # the role's time is up: campaign, or give up campaigning
    FETCH = 2  # no successful Fetch from the leader for too long
    SILENCE = 3  # the connection to the leader is lost and the leader silent since
    FAILOVER = 4  # the leader is taken for dead; campaign, unless another voter was quicker
    PRE_VOTE = 5  # repeat the pre-votes that were not granted
    BEGIN = 6  # look for voters that do not fetch
    CHECK_QUORUM = 7  # a majority may have been silent for too long
    PARKED = 8  # a parked Fetch has waited long enough
    REQUESTS = 9  # a request expires or may be repeated
    TELL = 10  # in doubt: tell the voters again


class Timers:
    """The time of the present step, and the deadlines set."""

    def __init__(self, gate: Gate) -> None:
        self.now_ms = 0
        self.deadlines: dict[Timer, int] = {}
        self._gate = gate
        self._armed_ms = NEVER

    def set(self, timer: Timer, at_ms: int) -> None:
        """Set the deadline of a timer, in place of an earlier or later deadline."""
        self.deadlines[timer] = at_ms
        if at_ms < self._armed_ms:
            self._armed_ms = at_ms
            self._gate.emit(SetTimer(at_ms))

    def set_in(self, timer: Timer, delay_ms: int) -> None:
        """Set the deadline of a timer to `delay_ms` from now, in place of any other deadline."""
        self.set(timer, self.now_ms + delay_ms)

    def set_earlier(self, timer: Timer, at_ms: int) -> None:
        """Set the deadline of a timer, unless an earlier deadline is set."""
        if at_ms < self.deadlines.get(timer, NEVER):
            self.set(timer, at_ms)

    def clear(self, *timers: Timer) -> None:
        """Remove the deadlines of these timers, so that the timers do not expire."""
        for timer in timers:
            self.deadlines.pop(timer, None)

    def due(self) -> Iterator[Timer]:
        """Remove and yield the timers whose deadlines have passed, the earliest first.

        A timer that was moved or cleared while an earlier one was handled is skipped.
        """
        for at_ms, timer in sorted((at_ms, timer) for timer, at_ms in self.deadlines.items()):
            if at_ms > self.now_ms:
                return
            if self.deadlines.get(timer) == at_ms:
                del self.deadlines[timer]
                yield timer

    def rearm(self) -> None:
        """Set the driver's timer to the earliest deadline that remains after a timer event."""
        self._armed_ms = min(self.deadlines.values(), default=NEVER)
        if self._armed_ms != NEVER:
            self._gate.emit(SetTimer(self._armed_ms))
