"""Clocks and timers for leaders: a node's, a simulator's, a test's.

Source: coordinator.batch.leader.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

# Other systems than Linux have no clock of that name; theirs may not count suspended time.
_BOOT_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clocks(Protocol):
    """Clocks and timers, the node's or a simulator's."""

    def now_ms(self) -> int:
        """Return the wall-clock time in ms since 1970."""

    def boot_ms(self) -> int:
        """Return the time in ms of a clock that never jumps and counts suspended time if it can."""

    def monotonic(self) -> float:
        """Return the time in seconds of a clock that never goes back or jumps."""

    def call_soon(self, callback: Callable[[], None]) -> object:
        """Call `callback` in the next turn of the event loop."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> object:
        """Call `callback` after `delay_s` seconds."""


class LoopClocks:
    """The clocks and timers of an asyncio loop and this machine."""

    def __init__(self, loop: asyncio.AbstractEventLoop, now_ms: Callable[[], int]) -> None:
        self._loop = loop
        self.now_ms = now_ms
        self.monotonic = loop.time

    def boot_ms(self) -> int:
        """Return the time since this machine booted, suspended time included, in ms."""
        return time.clock_gettime_ns(_BOOT_CLOCK) // 1_000_000

    def call_soon(self, callback: Callable[[], None]) -> object:
        """Call `callback` in the next turn of the asyncio loop."""
        return self._loop.call_soon(callback)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> object:
        """Call `callback` on the asyncio loop after `delay_s` seconds."""
        return self._loop.call_later(delay_s, callback)
