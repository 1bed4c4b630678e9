"""Bounds the wait for forwarded calls by the client's timeout.

The trap: when the client's timeout is over, the call is not cancelled. The callee may carry it out
all the same, and cancelling would not undo that; so the call continues, and its answer is dropped.

Source: KIP-590 (requests forwarded to the controller); docs/design/broker.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from coordinator.errors import CoordinatorError

T = TypeVar("T")

MAX_WAIT_S: Final = 300.0
"""The longest wait, whatever timeout a client sends."""


def seconds(timeout_ms: int) -> float:
    """Convert a client's timeout from ms to seconds, at most `MAX_WAIT_S`, the longest wait."""
    return min(max(0, timeout_ms) / 1_000, MAX_WAIT_S)


class BoundedCalls:
    """Calls that are awaited for a limited time. Belongs to the event loop."""

    def __init__(self) -> None:
        self._under_way: set[asyncio.Task[Any]] = set()

    async def within(self, call: Coroutine[Any, Any, T], timeout_s: float) -> T | None:
        """Return the call's result, or None at the timeout while the call continues.

        Raises:  what the call raises in that time.
        """
        task = asyncio.get_running_loop().create_task(call)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        done, _ = await asyncio.wait((task,), timeout=max(0.0, timeout_s))
        if done:
            return task.result()
        task.add_done_callback(_late)
        return None


def _late(task: asyncio.Task[Any]) -> None:
    """Log an unexpected error of a call that outlasted its caller's timeout."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, CoordinatorError):
        task.get_loop().call_exception_handler({"message": "a late call", "exception": error})
