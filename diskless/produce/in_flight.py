"""How much memory producers may hold: requests whose batches are not written yet.

A batch is a view into the request that brought it, so what is held is the whole request, from its
arrival until the outcome of its last batch is known: also after its client has been answered that
time is over, has gone away, or wanted no answer (acks=0). That is what is counted here.

Past the bound a request is not taken. It waits in line, its connection is not read any further, and
it goes on when earlier ones have landed. Nothing else waits: answers leave, and other connections
are served. So a store that is slow makes producers slow, and nothing worse.

The surprise: the bound may be exceeded by one request, or one that is larger than the bound could
never be taken.

Source: docs/design/broker.md#memory-in-flight; KIP-72 is its counterpart in the listener.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class InFlight:
    """The memory of all producers of a broker. Belongs to the event loop."""

    def __init__(self, max_bytes: int) -> None:
        """Args: max_bytes: of requests, esker.append.max.in.flight.bytes."""
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self.peak_bytes = 0
        self.held_back = 0  # requests that had to wait, for metrics
        self._waiting: deque[Callable[[], None]] = deque()
        self._wake_due = False

    @property
    def is_full(self) -> bool:
        """Must a request wait? Also if others wait already: nobody overtakes."""
        return self.used_bytes >= self.max_bytes or bool(self._waiting)

    @property
    def waiting(self) -> int:
        """Requests in line."""
        return len(self._waiting)

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` once there is room, in the order of the calls; it may take memory then."""
        self.held_back += 1
        self._waiting.append(go_on)

    def take(self, size_bytes: int) -> None:
        """These bytes are held from now on."""
        self.used_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)

    def give_back(self, size_bytes: int) -> None:
        """These bytes are free; who waits goes on in the next turn of the loop."""
        self.used_bytes -= size_bytes
        assert self.used_bytes >= 0, f"{self.used_bytes} bytes in flight"
        if self._waiting and not self._wake_due:
            self._wake_due = True
            asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        self._wake_due = False
        while self._waiting and self.used_bytes < self.max_bytes:
            self._waiting.popleft()()
