"""Notifies waiting requests that a commit or a new image has arrived at this broker."""

from __future__ import annotations

import asyncio


class CommitNotifications:
    """Wakes all waiting tasks on each notification. Belongs to the event loop."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        """Wake every current waiter; a later `wait` waits for the next notification."""
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self, timeout_s: float) -> None:
        """Wait for the next notification, or until the timeout."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await asyncio.wait((future,), timeout=timeout_s)
        finally:
            self._waiting.discard(future)
