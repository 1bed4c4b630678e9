"""What the families that ask others share: a call with a time, and the codes they answer with.

A request that is forwarded has two clocks: the client's, and that of whoever carries it out. The
surprise: when the client's is over, the call is not cancelled. It may be carried out all the same,
and to drop it half-way would tell nobody anything; so it goes on, and its answer is nobody's.

Source: KIP-590 (requests forwarded to the controller); docs/design/broker.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from coordinator.errors import CoordinatorError

T = TypeVar("T")

MAX_WAIT_S: Final = 300.0
"""No client is waited for longer, whatever it asks for."""


def seconds(timeout_ms: int) -> float:
    """A client's time-out, bounded."""
    return min(max(0, timeout_ms) / 1_000, MAX_WAIT_S)


class Errands:
    """Calls that somebody waits for, for a time. Belongs to the event loop."""

    def __init__(self) -> None:
        self._under_way: set[asyncio.Task[Any]] = set()

    async def within(self, call: Coroutine[Any, Any, T], timeout_s: float) -> T | None:
        """The result; None if it is not there in time, and then it goes on without us.

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
    """Nobody waits any more; only what must not happen is still told of."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, CoordinatorError):
        task.get_loop().call_exception_handler({"message": "a late call", "exception": error})
