"""Bounds the memory of Produce requests whose batches are not written yet.

A batch is a view into the request that brought it, so the whole request stays in memory from its
arrival until the outcome of its last batch is known: also after its client has timed out, has
disconnected, or wanted no answer (acks=0). This module counts those bytes.

Past the bound a request waits in line, and its connection is not read any further, until earlier
requests have been written. Nothing else waits: answers leave, and other connections are served. So
a slow store makes producers slow, and nothing worse.

The trap: one request may exceed the bound; otherwise a request larger than the bound could never
be taken.

Source: docs/design/broker.md#memory-in-flight; KIP-72 is its counterpart in the listener.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class InFlight:
    """Counts the request memory of all producers of a broker. Belongs to the event loop."""

    def __init__(self, max_bytes: int) -> None:
        """Limit the memory of all requests in flight to `max_bytes`.

        The setting is esker.append.max.in.flight.bytes.
        """
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self.peak_bytes = 0
        self.held_back = 0  # requests that had to wait, for metrics
        self._waiting: deque[Callable[[], None]] = deque()
        self._wake_due = False

    @property
    def is_full(self) -> bool:
        """Return whether a new request must wait, because memory is used up or requests wait."""
        return self.used_bytes >= self.max_bytes or bool(self._waiting)

    @property
    def waiting(self) -> int:
        """Return the number of requests that wait for memory."""
        return len(self._waiting)

    def wait(self, resume: Callable[[], None]) -> None:
        """Queue `resume`, which may acquire memory, to be called once memory is free."""
        self.held_back += 1
        self._waiting.append(resume)

    def acquire(self, size_bytes: int) -> None:
        """Count these bytes of memory as used by requests in flight."""
        self.used_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)

    def release(self, size_bytes: int) -> None:
        """Count these bytes of memory as free; waiting requests resume in the next loop turn."""
        self.used_bytes -= size_bytes
        assert self.used_bytes >= 0, f"{self.used_bytes} bytes in flight"
        if self._waiting and not self._wake_due:
            self._wake_due = True
            asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        self._wake_due = False
        while self._waiting and self.used_bytes < self.max_bytes:
            self._waiting.popleft()()
