"""What the families that ask others share: a call with a time, and the codes they answer with.

A request that is forwarded has two clocks: the client's, and that of whoever carries it out. The
surprise: when the client's is over, the call is not cancelled. It may be carried out all the same,
and to drop it half-way would tell nobody anything; so it goes on, and its answer is nobody's.

Source: KIP-590 (requests forwarded to the controller); docs/design/broker.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from enum import IntEnum, unique
from typing import Any, Final, TypeVar

from coordinator.batch.interface import CoordinatorError

T = TypeVar("T")

MAX_WAIT_S: Final = 300.0
"""No client is waited for longer, whatever it asks for."""


@unique
class ErrorCode(IntEnum):
    """The codes that these families answer with. The numbers are Kafka's."""

    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2  # the store's bytes are not those that were committed
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5  # OFFSET_NOT_AVAILABLE to clients that do not know it
    NOT_LEADER_OR_FOLLOWER = 6  # nothing was decided: ask again
    REQUEST_TIMED_OUT = 7  # it may be done, or not, or later
    COORDINATOR_NOT_AVAILABLE = 15
    INVALID_TOPIC_EXCEPTION = 17  # an internal one, which has no batches
    UNSUPPORTED_VERSION = 35
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    KAFKA_STORAGE_ERROR = 56
    UNKNOWN_LEADER_EPOCH = 75
    OFFSET_NOT_AVAILABLE = 78  # no read barrier is to be had


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
