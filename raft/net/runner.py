"""Runs a program on uvloop if installed, and stops it when an invariant is broken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def loop_factory() -> LoopFactory | None:
    """Return uvloop's loop factory if uvloop is installed, or None for asyncio's own loop."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end like `asyncio.run`, on uvloop where uvloop is installed.

    A failed assertion in any callback or handler ends `main` (by cancellation) and is raised here:
    a process must not continue with a broken invariant. A loop by itself would only log it.
    """
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_stop_on_broken_invariant(main))


async def _stop_on_broken_invariant(main: Coroutine[Any, Any, T]) -> T:
    loop = asyncio.get_running_loop()
    task = loop.create_task(main)
    broken: list[AssertionError] = []

    def on_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, AssertionError):
            broken.append(error)
            task.cancel()
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(on_error)
    try:
        return await task
    finally:
        if broken:
            raise broken[0]
