"""Stops reading from connections whose clients are throttled, until their time is over.

The answer that says so is sent at once; what the client sends before its time is over waits.

The trap: a connection that is not read does not notice that its peer has gone. So one that is muted
for longer than a connection may be idle is closed then.

Source: KIP-219; upstream's ThrottledChannel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from raft.net import Reason, ServerConnection


class Muting:
    """The muted connections of one broker. Belongs to the event loop."""

    def __init__(self, idle_ms: Callable[[], int]) -> None:
        """Create the set of muted connections.

        Args:  idle_ms: returns how long a connection may be idle.
        """
        self._idle_ms = idle_ms
        self._muted: dict[ServerConnection, tuple[float, asyncio.TimerHandle]] = {}

    def __len__(self) -> int:
        return len(self._muted)

    def mute(self, connection: ServerConnection, throttle_ms: int) -> None:
        """Read no request of a connection for this time, or for the rest of a longer one."""
        if connection.closed:
            return
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + throttle_ms / 1_000
        known = self._muted.get(connection)
        if known is None:
            connection.pause_reading()
        elif known[0] >= ends_at:
            return
        else:
            known[1].cancel()
        idle_ms = self._idle_ms()
        end = self._close if throttle_ms > idle_ms else self._resume
        timer = loop.call_later(min(throttle_ms, idle_ms) / 1_000, end, connection)
        self._muted[connection] = (ends_at, timer)

    def connection_closed(self, connection: ServerConnection) -> None:
        """Forget a closed connection."""
        known = self._muted.pop(connection, None)
        if known is not None:
            known[1].cancel()

    def _resume(self, connection: ServerConnection) -> None:
        del self._muted[connection]
        connection.resume_reading()

    @staticmethod
    def _close(connection: ServerConnection) -> None:
        connection.close(Reason.IDLE, "throttled for longer than a connection may be idle")
