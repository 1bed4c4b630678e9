"""An event loop whose clock moves only when nothing is left to do: hours pass in milliseconds.

Nothing here waits for real time, so nothing may be awaited that the network brings, and the work of
a thread is done at once, by the loop. A loop with nothing to do and nobody to wake it would hang
for ever: it says so instead.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.SelectSelector):
    """A selector that advances the clock instead of waiting."""

    def __init__(self, advance: Callable[[float], None]) -> None:
        super().__init__()
        self._advance = advance

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AssertionError("everybody waits, and nothing will ever happen")
        if timeout > 0:
            self._advance(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module."""

    def __init__(self) -> None:
        self._now = 1_000.0
        super().__init__(_Selector(self._pass))

    def time(self) -> float:
        return self._now

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Call a function now, in no time; return its future, which is done."""
        del executor
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def _pass(self, seconds: float) -> None:
        self._now += seconds


def run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run `work()` on a new virtual loop and return its result."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work())
