"""Every test that asks for `on_loop` runs twice: on asyncio's own loop and on uvloop."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from raft.net import Listener, loop_factory
from tests.ports import free_port
from tests.waiting import DEADLINE_S

LOOPS = {"asyncio": asyncio.SelectorEventLoop, "uvloop": loop_factory()}


@pytest.fixture(params=[name for name, factory in LOOPS.items() if factory])
def on_loop(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Runs a coroutine to its end; errors that a loop would only log fail it."""

    def run(main: Coroutine[Any, Any, Any]) -> Any:
        unexpected: list[dict[str, Any]] = []

        async def guarded() -> Any:
            asyncio.get_running_loop().set_exception_handler(lambda _, c: unexpected.append(c))
            async with asyncio.timeout(DEADLINE_S):
                return await main

        try:
            with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
                return runner.run(guarded())
        finally:
            tracemalloc.stop()  # whoever failed before it did: the next one counts its own
            assert not unexpected, unexpected

    return run


@pytest.fixture
def unused_port() -> int:
    """A loopback port without a listener."""
    return free_port()


def sweep_by_hand(listener: Listener) -> None:
    """Stop the listener's own sweeps, so that the test decides their times."""
    listener._sweep_timer.cancel()
