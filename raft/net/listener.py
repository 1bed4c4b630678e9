"""Accepting connections, the bounds they share, and closing what is idle or stalled.

One timer looks at every connection about once a second (`sweep`): the hot paths only count bytes
and read no clock. A connection that is in the middle of something its *peer* has to finish (a frame
half sent, answers not read) must move `stall_bytes` in `stall_ms`; what waits for *us* may wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

from raft.net.connection import Handler, Reply, ServerConnection
from raft.net.errors import QUIET, Reason
from raft.net.frames import Arena, Payload
from raft.net.limits import Limits

log = logging.getLogger("raft.net")

LOG_LINES_PER_SWEEP: Final = 10
SWEEP_MS: Final = 1_000


class Listener:
    """Accepts connections and hands their requests to `handle`.

    `on_close`, if given, is called once for each connection that ends, at once, before its
    transport is gone: to forget parked requests.
    """

    def __init__(
        self,
        handle: Handler,
        *,
        name: str = "listener",
        limits: Limits | None = None,
        on_close: Callable[[ServerConnection], None] | None = None,
    ) -> None:
        self.handle = handle
        self.name = name
        self.limits = limits or Limits()
        self.arena = Arena()
        self.connections: set[ServerConnection] = set()
        self.memory_used = 0  # bytes of requests unanswered or being received
        self.accepted = 0
        self.ended: Counter[Reason] = Counter()  # closed connections by reason
        self.port = 0
        self.draining = False  # closing: answers leave, requests are no longer read
        self._on_close = on_close
        self._server: asyncio.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._dirty: list[ServerConnection] = []
        self._memory_waiters: dict[ServerConnection, None] = {}  # in the order they came
        self._wake_due = False
        self._tasks: set[asyncio.Future[Payload | None]] = set()
        self._lines_left = LOG_LINES_PER_SWEEP
        self._suppressed = 0
        self._all_closed: asyncio.Event = asyncio.Event()

    async def start(self, host: str, port: int, *, backlog: int = 1_024) -> None:
        """Listen; `self.port` is then the port in use (it matters if `port` is 0)."""
        self._loop = asyncio.get_running_loop()
        self._server = await self._loop.create_server(
            lambda: ServerConnection(self), host, port, backlog=backlog, reuse_address=True
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self._schedule_sweep()

    async def close(self, *, drain_ms: int = 0) -> None:
        """Stop accepting, give requests in flight `drain_ms` to be answered, close everything."""
        if self._server is None:
            return
        self._server.close()
        self.draining = True
        for connection in tuple(self.connections):
            self._close_if_drained(connection)
        if self.connections and drain_ms:
            self._all_closed.clear()
            try:
                await asyncio.wait_for(self._all_closed.wait(), drain_ms / 1_000)
            except TimeoutError:
                log.info("listener=%s drained=no left=%d", self.name, len(self.connections))
        for connection in tuple(self.connections):
            connection.abort(Reason.SHUTDOWN)
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        self._server = None
        while self.connections:  # their connection_lost is due in the next tick
            await asyncio.sleep(0)

    def _close_if_drained(self, connection: ServerConnection) -> None:
        if not connection.in_flight:
            connection.close(Reason.SHUTDOWN)

    def sweep(self, now: float) -> None:
        """Close what is idle or stalled at loop time `now` (seconds)."""
        for connection in tuple(self.connections):
            self._check(connection, now)
        if self._suppressed:
            log.warning("listener=%s suppressed_lines=%d", self.name, self._suppressed)
        self._lines_left, self._suppressed = LOG_LINES_PER_SWEEP, 0

    def _check(self, connection: ServerConnection, now: float) -> None:
        limits, watch = self.limits, connection._watch
        stalled: Reason | None
        if connection._write_paused or connection.closed:
            transport = connection._transport
            left = transport.get_write_buffer_size() if transport is not None else 0
            doing, moved = ("writing", 0), connection.bytes_sent - left
            least, patience_ms, stalled = limits.stall_bytes, limits.stall_ms, Reason.WRITE_STALLED
        elif connection._reader.partial and connection._reading:
            doing, moved = ("frame", connection._reader.frames_read), connection.bytes_received
            least, patience_ms, stalled = limits.stall_bytes, limits.stall_ms, Reason.FRAME_STALLED
        elif connection.in_flight or not connection._reading:
            doing, moved = ("waiting", 0), 0  # for us: not the peer's fault
            least, patience_ms, stalled = 0, 0, None
        else:
            doing, moved = ("idle", 0), connection.bytes_received
            least, patience_ms, stalled = 1, limits.idle_ms, Reason.IDLE
        if doing != watch.doing or moved - watch.moved >= least:
            watch.doing, watch.moved, watch.at = doing, moved, now
        elif stalled is not None and (now - watch.at) * 1_000 >= patience_ms:
            connection.abort(stalled, f"{moved - watch.moved} bytes in {now - watch.at:.1f} s")

    def _schedule_sweep(self) -> None:
        assert self._loop is not None, "the listener has not started"
        every_ms = min(SWEEP_MS, self.limits.stall_ms / 2, self.limits.idle_ms / 2)
        self._sweep_timer = self._loop.call_later(every_ms / 1_000, self._on_sweep_timer)

    def _on_sweep_timer(self) -> None:
        assert self._loop is not None, "the listener has not started"
        self.sweep(self._loop.time())
        self._schedule_sweep()

    # --- called by connections

    def _opened(self, connection: ServerConnection) -> None:
        self.accepted += 1
        self.connections.add(connection)
        if len(self.connections) > self.limits.max_connections:
            connection.abort(Reason.TOO_MANY_CONNECTIONS)
        elif self.draining:
            connection.abort(Reason.SHUTDOWN)

    def _ended(self, connection: ServerConnection, reason: Reason, detail: str) -> None:
        """No further answers; the transport may still send what was answered before."""
        self.ended[reason] += 1
        self._memory_waiters.pop(connection, None)
        if reason not in QUIET:
            if self._lines_left:
                self._lines_left -= 1
                log.warning(
                    "listener=%s peer=%s connection=%d closed=%s detail=%r",
                    self.name, connection.peer, connection.id, reason, detail,
                )  # fmt: skip
            else:
                self._suppressed += 1
        if self._on_close is not None:
            self._on_close(connection)

    def _closed(self, connection: ServerConnection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self._all_closed.set()

    def _broken(self, error: AssertionError) -> None:
        assert self._loop is not None, "the listener has not started"
        self._loop.call_exception_handler(
            {"message": f"broken invariant at {self.name}", "exception": error}
        )

    def _flush_soon(self, connection: ServerConnection) -> None:
        """Send at the end of this loop tick, together with what else becomes ready in it."""
        if not connection._flush_due:
            connection._flush_due = True
            self._dirty.append(connection)
            if len(self._dirty) == 1:
                assert self._loop is not None, "the listener has not started"
                self._loop.call_soon(self._flush_all)

    def _flush_all(self) -> None:
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            connection._flush_due = False
            connection._flush()
            if self.draining:
                self._close_if_drained(connection)
            elif not connection._reading:
                connection._resume()

    def _release(self, size: int) -> None:
        """Memory became free; connections that wait for it go on in the next tick."""
        self.memory_used -= size
        assert self.memory_used >= 0, f"{self.name}: {self.memory_used} bytes in use"
        if self._memory_waiters and not self._wake_due:
            assert self._loop is not None, "the listener has not started"
            self._wake_due = True
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        self._wake_due = False
        while self._memory_waiters and self.memory_used < self.limits.memory_bytes:
            connection = next(iter(self._memory_waiters))
            del self._memory_waiters[connection]
            connection._resume()

    def _await(self, answer: Awaitable[Payload | None], reply: Reply) -> None:
        """Send what `answer` results in. A task is kept, and not cancelled when its peer leaves."""
        future = asyncio.ensure_future(answer)
        self._tasks.add(future)
        future.add_done_callback(lambda done: self._on_done(done, reply))

    def _on_done(self, future: asyncio.Future[Payload | None], reply: Reply) -> None:
        self._tasks.discard(future)
        if future.cancelled():
            reply.connection.close(Reason.LOCAL, "the request was cancelled")
        elif (error := future.exception()) is not None:
            reply.fail(error)
        else:
            reply.send(future.result())
