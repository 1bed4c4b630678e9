"""Staying connected to one server: reconnect at once after a loss, back off after failures.

Losing a connection that worked is news and worth one immediate attempt: its outcome tells a dead
process (REFUSED, at once) from a restarted one. Each failure after that waits longer. A connection
that ended without one answer counts as a failure, or a server that accepts and closes would be
called as fast as the loop turns.

Source: KIP-580 (exponential back-off with jitter), DESIGN §5 (fast failover).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Final

from raft.net.client import ClientConnection, connect
from raft.net.errors import ConnectError, ConnectionLostError, NetError
from raft.net.frames import Arena

BASE_MS: Final = 20
MOST_MS: Final = 1_000


class Backoff:
    """How long to wait after the n-th failure in a row: `base_ms`, doubled each time, up to
    `most_ms`, and then spread over the half below it, so that many peers do not return together.

    >>> backoff = Backoff(Random(1), base_ms=100, most_ms=350)
    >>> [50 <= backoff.next_ms() <= 100, 100 <= backoff.next_ms() <= 200]
    [True, True]
    >>> all(175 <= backoff.next_ms() <= 350 for _ in range(2_000))
    True
    """

    def __init__(self, random: Random, *, base_ms: float = BASE_MS, most_ms: float = MOST_MS):
        self._random = random
        self._base_ms = base_ms
        self._most_ms = most_ms
        self._next_ms = base_ms

    def next_ms(self) -> float:
        """Count a failure; how long to wait now, in milliseconds."""
        full, self._next_ms = self._next_ms, min(self._next_ms * 2, self._most_ms)
        return full * self._random.uniform(0.5, 1)

    def reset(self) -> None:
        """It worked: the next failure waits `base_ms` again."""
        self._next_ms = self._base_ms


class Link:
    """One connection to `host:port`, made again whenever it is lost, until `close`.

    `on_up(connection)` follows every successful connect. `on_down(error)` follows every loss
    (ConnectionLostError) and every failed attempt (ConnectError), at once; `error.reason` says
    which. `host` and `port` may be changed; the next attempt uses them.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        random: Random,
        on_up: Callable[[ClientConnection], None],
        on_down: Callable[[NetError], None],
        client_id: str | None = None,
        connect_timeout_ms: int = 5_000,
        arena: Arena | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.connection: ClientConnection | None = None  # None while down
        self.backoff = Backoff(random)
        self._on_up = on_up
        self._on_down = on_down
        self._client_id = client_id
        self._connect_timeout_ms = connect_timeout_ms
        self._arena = arena
        self._ended: asyncio.Future[None] | None = None
        self._poked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to connect, in a task of the running loop."""
        assert self._task is None, f"link to {self.host}:{self.port} started twice"
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(_raise_in_loop)

    def retry_now(self) -> None:
        """There is reason to believe the server is back: do not wait out the back-off."""
        self._poked.set()

    async def close(self) -> None:
        """Close the connection, if there is one, and stop; no callback comes after this."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        if self.connection is not None:
            connection, self.connection = self.connection, None
            connection.close()

    async def _run(self) -> None:
        while True:
            try:
                worked = await self._live_once()
            except ConnectError as error:
                self._on_down(error)
                worked = False
            if worked:
                self.backoff.reset()
                continue
            self._poked.clear()
            try:
                async with asyncio.timeout(self.backoff.next_ms() / 1_000):
                    await self._poked.wait()
            except TimeoutError:
                pass  # waited long enough

    async def _live_once(self) -> bool:
        """Connect and stay until the connection ends; whether it ever answered."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lost: list[ConnectionLostError] = []

        def on_close(connection: ClientConnection, error: ConnectionLostError) -> None:
            lost.append(error)
            if self.connection is connection:  # else it was lost before we were told it exists
                self.connection = None
                self._on_down(error)
            if not ended.done():
                ended.set_result(None)

        connection = await connect(
            self.host,
            self.port,
            client_id=self._client_id,
            timeout_ms=self._connect_timeout_ms,
            arena=self._arena,
            on_close=on_close,
        )
        if lost:
            self._on_down(lost[0])
            return False
        self.connection = connection
        self._on_up(connection)
        await ended
        return connection.answers > 0


def _raise_in_loop(task: asyncio.Task[None]) -> None:
    """A callback of the owner raised: that is a bug of ours, and nobody awaits the task."""
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler(
            {"message": "a callback of a link raised", "exception": error, "task": task}
        )
