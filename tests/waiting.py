"""How a test waits: for a condition that it names, until one deadline that all tests share.

A test does not sleep and hope. It states what must come true, the wait ends as soon as that is so,
and the deadline ends only what hangs. A longer deadline therefore costs nothing, and a shorter one
only makes a busy machine look like a fault.

    wait_until(lambda: lag() == 0, "the replica has applied everything", state=lag)

A story on an event loop says `await wait_until_async(...)`. A loop with more to do than to ask
holds a `Deadline` of its own. Clocks that a test turns itself need none of this.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any, Final

DEADLINE_S: Final = 120.0
"""Ten processes starting on two busy cores need 20 s; pytest ends a whole test after 300 s."""

FIRST_PAUSE_S: Final = 0.001
LONGEST_PAUSE_S: Final = 0.05
"""Between two questions: short at first, and never so short that asking slows what is awaited."""


class Deadline:
    """The end of one wait, and the pauses until then."""

    def __init__(
        self,
        what: str | Callable[[], Any],
        seconds: float = DEADLINE_S,
        clock: Callable[[], float] = time.monotonic,
        longest_pause_s: float = LONGEST_PAUSE_S,
    ) -> None:
        """
        Args:  what: the condition, in words that follow "not within 120 s:", or the condition.
        """
        self._what = what
        self._seconds = seconds
        self._clock = clock
        self._ends_at = clock() + seconds
        self._pause_s = FIRST_PAUSE_S
        self._longest_pause_s = longest_pause_s

    @property
    def is_over(self) -> bool:
        return self._clock() >= self._ends_at

    def pause_s(self, seen: object = None) -> float:
        """Seconds to sleep before the condition is asked again.

        Args:    seen: the state that was seen last; the error shows it.
        Raises:  AssertionError once the deadline has passed.
        """
        if self.is_over:
            what = self._what if isinstance(self._what, str) else _as_written(self._what)
            raise AssertionError(f"not within {self._seconds:g} s: {what}; last seen: {seen!r}")
        pause_s = min(self._pause_s, self._longest_pause_s)
        self._pause_s = 2 * pause_s
        return pause_s


def _as_written(condition: Callable[[], Any]) -> str:
    try:
        return " ".join(inspect.getsource(condition).split())
    except (OSError, TypeError):  # there is no file: it was sent to a process by value
        return repr(condition)


def wait_until(
    condition: Callable[[], Any],
    what: str | None = None,
    *,
    state: Callable[[], object] | None = None,
    retry_on: tuple[type[Exception], ...] = (),
    deadline_s: float = DEADLINE_S,
    longest_pause_s: float = LONGEST_PAUSE_S,
) -> Any:
    """Call a condition until it returns something true, and return that.

    Args:    what: the condition in words; without them the error quotes its source. state: what the
             error shows, instead of the condition's last value. retry_on: errors that mean "not
             yet". longest_pause_s: shorter where what follows must catch a moment.
    Raises:  AssertionError with `what` and the last state after the deadline.
    """
    deadline = Deadline(what or condition, deadline_s, longest_pause_s=longest_pause_s)
    while True:
        try:
            seen = condition()
        except retry_on as error:
            seen = None
            shown: object = error
        else:
            shown = seen
        if seen:
            return seen
        if state is not None and deadline.is_over:
            shown = state()
        time.sleep(deadline.pause_s(shown))


async def wait_until_async(
    condition: Callable[[], Any],
    what: str | None = None,
    *,
    state: Callable[[], object] | None = None,
    retry_on: tuple[type[Exception], ...] = (),
    deadline_s: float = DEADLINE_S,
    longest_pause_s: float = LONGEST_PAUSE_S,
) -> Any:
    """`wait_until` on an event loop, by the loop's clock; the condition may be a coroutine."""
    clock = asyncio.get_running_loop().time
    deadline = Deadline(what or condition, deadline_s, clock, longest_pause_s)
    while True:
        try:
            seen = condition()
            if inspect.isawaitable(seen):
                seen = await seen
        except retry_on as error:
            seen = None
            shown: object = error
        else:
            shown = seen
        if seen:
            return seen
        if state is not None and deadline.is_over:
            shown = state()
        await asyncio.sleep(deadline.pause_s(shown))
