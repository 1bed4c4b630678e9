"""That something was committed: told by the observers of the logs, waited for by Fetches."""

from __future__ import annotations

import asyncio


class News:
    """One piece of news wakes everybody who waits. Belongs to the event loop."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def tell(self) -> None:
        """Wake all who wait now; who comes later waits for the next piece."""
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self, timeout_s: float) -> None:
        """Until there is news, or the time is over."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await asyncio.wait((future,), timeout=timeout_s)
        finally:
            self._waiting.discard(future)
