"""The server side of a connection: requests as they come, answers in the order of requests.

A handler gets `(connection, frame)` and returns the answer (without length prefix: the header and
body of a response), None if the request has no answer (Produce with acks=0), a `Reply` to be sent
later, or an awaitable of bytes or None. Requests of one connection are handled as they arrive, also
while earlier ones wait; their answers leave in request order, whatever order they become ready in.

Back-pressure is one rule: a connection is not read while it has too many or too large requests
without an answer, while its peer does not read, or while all connections together hold too much.
Bytes that were already received then wait in place.

Bad bytes never reach further than their connection: a bad length, a bad header, a RecordError of
the handler, and also a bug in it, closes it with one log line. An AssertionError is different: it
goes to the loop's exception handler, and `raft.net.run` stops the process.

Source: Kafka protocol guide, "Network" (ordering, pipelining); KIP-72 (memory bound).
"""

from __future__ import annotations

import asyncio
import traceback
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias, cast

from raft.net.errors import BadHeaderError, Reason
from raft.net.frames import (
    ARENA_BYTES,
    COPY_BYTES,
    FLUSH_BYTES,
    SHORT_LENGTHS,
    Buffer,
    Frame,
    FrameReader,
    Payload,
    gather,
    length_prefix,
)
from raft.net.identity import next_connection_id, peer_name
from records.errors import RecordError

if TYPE_CHECKING:
    from raft.net.listener import Listener


class Reply:
    """A place in the order of answers. The handler returns it; `send` may come before or after.

    Sending to a connection that has ended does nothing: whoever waits need not know.
    """

    __slots__ = ("_left", "_payload", "_ready", "_request_bytes", "connection")

    def __init__(self, connection: ServerConnection) -> None:
        self.connection = connection
        self._payload: Payload | None = None
        self._ready = False
        self._left = False  # it was handed to the transport's buffer
        self._request_bytes = 0

    def send(self, payload: Payload | None) -> None:
        """Answer with these bytes (None: no answer after all). Once only."""
        assert not self._ready, f"second answer to one request: {self.connection}"
        self._payload = payload
        self._ready = True
        self.connection._on_ready(self)

    @property
    def is_next(self) -> bool:
        """Would an answer leave at once? No other is due before it on its connection."""
        waiting = self.connection._waiting
        return bool(waiting) and waiting[0] is self

    async def wait_until_sent(self) -> None:
        """Wait until the peer has read this answer but for what buffers hold, or is gone.

        For handlers whose answers are large: what is not made yet takes no memory.
        """
        connection = self.connection
        while connection.close_reason is None and (
            not self._left or connection._out or connection._write_paused
        ):
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            connection._drained.append(future)
            await future

    def fail(self, error: BaseException) -> None:
        """There will be no answer: close the connection, as if the handler had raised `error`."""
        self.connection._on_handler_error(error)


Answer: TypeAlias = Payload | Reply | Awaitable[Payload | None] | None
Handler: TypeAlias = Callable[["ServerConnection", Frame], Answer]


class Watch:
    """What a connection was doing when the sweep last saw it make progress."""

    __slots__ = ("at", "doing", "moved")

    def __init__(self) -> None:
        self.at = 0.0  # loop time
        self.doing: tuple[str, int] = ("new", 0)
        self.moved = 0  # bytes in the direction that matters for `doing`


class ServerConnection(asyncio.BufferedProtocol):
    """One accepted connection. `context` is the handler's to use."""

    __slots__ = (
        "_backlog",
        "_drained",
        "_flush_due",
        "_handle",
        "_held",
        "_in_flight_bytes",
        "_out",
        "_out_bytes",
        "_reader",
        "_reading",
        "_reserved",
        "_serving",
        "_transport",
        "_waiting",
        "_watch",
        "_write_paused",
        "bytes_received",
        "bytes_sent",
        "close_reason",
        "context",
        "id",
        "listener",
        "peer",
    )

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.id = next_connection_id()
        self.peer = "?"
        self.context: object = None
        self.close_reason: Reason | None = None  # None while open
        self.bytes_received = 0
        self.bytes_sent = 0  # handed to the transport
        self._handle = listener.handle
        self._reader = FrameReader(listener.arena, max_frame_bytes=listener.limits.max_frame_bytes)
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[Reply] = deque()  # requests without an answer, in order
        self._in_flight_bytes = 0
        self._backlog: deque[Frame] = deque()  # complete frames not handled yet
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._reserved = 0  # of the listener's memory, for the frame being received
        self._reading = True
        self._write_paused = False
        self._serving: list[Frame] | None = None
        self._flush_due = False
        self._held = 0  # how often, and not let go
        self._drained: list[asyncio.Future[None]] = []  # who waits for the peer to read
        self._watch = Watch()

    def __repr__(self) -> str:
        return f"<connection {self.id} from {self.peer} at {self.listener.name}>"

    @property
    def closed(self) -> bool:
        """Whether answers can no longer be sent."""
        return self.close_reason is not None

    @property
    def writable(self) -> bool:
        """False while the peer reads more slowly than we answer: hold large answers back."""
        return not self._write_paused

    @property
    def in_flight(self) -> int:
        """Requests handled whose answers have not been handed to the transport."""
        return len(self._waiting)

    # --- called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self.peer = peer_name(transport)
        self._transport.set_write_buffer_limits(high=self.listener.limits.write_high_water_bytes)
        self.listener._opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._reader.lend()

    def buffer_updated(self, nbytes: int) -> None:
        self.bytes_received += nbytes
        if self.close_reason is not None:
            return
        reader = self._reader
        frames = reader.received(nbytes)
        if self._backlog or not self._may_serve():
            self._backlog.extend(frames)
        elif frames:
            self._serve(frames)
        if (
            self._reserved
            or self._backlog
            or reader.wanted
            or reader.error is not None
            or not self._reading
            or (self._waiting and not self._may_serve())
        ):
            self._settle()

    def eof_received(self) -> None:
        self.close(Reason.TRUNCATED if self._reader.partial else Reason.PEER_CLOSED)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.close_reason is None:
            self._ended(Reason.PEER_CLOSED if exc is None else Reason.RESET)
        self._transport = None
        self.listener._closed(self)

    def pause_writing(self) -> None:
        self._write_paused = True
        self._update_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._tell_drained()
        self._resume()

    # --- for handlers

    def close(self, reason: Reason = Reason.LOCAL, detail: str = "") -> None:
        """Close after what has been answered is sent. Requests without an answer get none."""
        if self.close_reason is None:
            self._flush()
            self._ended(reason, detail)
            if self._transport is not None:
                self._transport.close()

    def abort(self, reason: Reason, detail: str = "") -> None:
        """Close at once; what the peer has not read is dropped."""
        if self.close_reason is None:
            self._ended(reason, detail)
        if self._transport is not None:
            self._transport.abort()

    def pause_reading(self) -> None:
        """Read no more until `go_on`: what came last waits for memory. Answers still leave.

        For a handler that returns a Reply; the socket is left alone from then on. Who holds twice
        lets go twice.
        """
        self._held += 1

    def resume_reading(self) -> None:
        """Read again, after `hold`."""
        assert self._held, f"{self} is not held"
        self._held -= 1
        if not self._held:
            self._resume()

    def _tell_drained(self) -> None:
        """Who waits for an answer to leave looks again."""
        waiting, self._drained = self._drained, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    # --- requests

    def _may_serve(self) -> bool:
        """Whether one more request may be handled now.

        A connection without a request in flight always gets one: others' large requests may fill
        the shared memory, and heartbeats and votes must still pass.
        """
        listener = self.listener
        if self._write_paused or self._held or listener.draining or self.close_reason is not None:
            return False
        if not self._waiting:
            return True
        limits = listener.limits
        return (
            len(self._waiting) < limits.max_in_flight_requests
            and self._in_flight_bytes < limits.max_in_flight_bytes
            and listener.memory_used < limits.memory_bytes
        )

    def _serve(self, frames: list[Frame]) -> None:
        """Handle frames until a bound is reached; the rest waits in the backlog."""
        handle, waiting, append = self._handle, self._waiting, self._out.append
        out_bytes = 0
        self._serving = frames  # emptied, which ends the loop, when the connection ends
        left = iter(frames)
        for frame in left:
            try:
                answer = handle(self, frame)
            except Exception as error:
                self._on_handler_error(error)
                break
            if type(answer) is bytes and not waiting:
                size = len(answer)
                append(SHORT_LENGTHS[size] if size <= COPY_BYTES else length_prefix(size))
                append(answer)
                out_bytes += size
                if out_bytes < FLUSH_BYTES:
                    continue
            elif type(answer) is tuple and not waiting:
                out_bytes += self._put(answer)
                if out_bytes < FLUSH_BYTES:
                    continue
            elif answer is not None:
                self._take_in(answer, len(frame))
            if out_bytes:
                self._out_bytes += out_bytes
                out_bytes = 0
                if self._out_bytes >= FLUSH_BYTES:
                    self._flush()
            if not self._may_serve():
                self._backlog.extend(left)
                break
        self._serving = None
        if self._out:
            self._out_bytes += out_bytes
            self._flush()

    def _take_in(self, answer: Answer, request_bytes: int) -> None:
        """Put an answer that is not plain bytes, or not the next to leave, into the order."""
        if self.close_reason is not None:  # by the handler itself
            return
        if isinstance(answer, Reply):
            assert answer.connection is self, f"{self} got a reply of {answer.connection}"
            assert not answer._request_bytes, f"one reply returned for two requests: {self}"
            reply = answer
        else:
            reply = Reply(self)
            if isinstance(answer, bytes | bytearray | memoryview | tuple | list):
                reply._payload, reply._ready = answer, True
            else:
                assert isinstance(answer, Awaitable), f"handler returned {type(answer)}"
                self.listener._await(answer, reply)
        reply._request_bytes = max(request_bytes, 1)
        self._waiting.append(reply)
        self._in_flight_bytes += reply._request_bytes
        self.listener.memory_used += reply._request_bytes
        if reply._ready:
            self._on_ready(reply)

    def _on_ready(self, reply: Reply) -> None:
        """An answer became ready: if it is next, it and those ready behind it leave."""
        waiting = self._waiting
        if not waiting or waiting[0] is not reply:
            return
        while waiting and waiting[0]._ready:
            reply = waiting.popleft()
            reply._left = True
            self._in_flight_bytes -= reply._request_bytes
            self.listener._release(reply._request_bytes)
            if reply._payload is not None:
                self._out_bytes += self._put(reply._payload)
        if self._serving is None:
            self.listener._flush_soon(self)

    def _put(self, payload: Payload) -> int:
        """Append an answer to what leaves next; its size."""
        parts = payload if isinstance(payload, tuple | list) else (payload,)
        size = sum(map(len, parts))
        self._out.append(length_prefix(size))
        self._out += parts
        return size

    def _flush(self) -> None:
        """Hand the answers that are ready to the transport."""
        out = self._out
        if not out or self._transport is None or self.close_reason is not None:
            return
        small, self._out_bytes = self._out_bytes <= FLUSH_BYTES, 0
        if small:
            data = b"".join(out)
            out.clear()
            self.bytes_sent += len(data)
            self._transport.write(data)
        else:
            parts = gather(out)
            out.clear()
            self.bytes_sent += sum(map(len, parts))
            self._transport.writelines(parts)
        if self._drained and not self._write_paused:
            self._tell_drained()

    def _on_handler_error(self, error: BaseException) -> None:
        if isinstance(error, AssertionError):
            self.listener._broken(error)
            self.abort(Reason.INVARIANT, repr(error))
        elif isinstance(error, BadHeaderError):
            self.close(Reason.MALFORMED, error.message)
        elif isinstance(error, RecordError):
            self.close(Reason.MALFORMED, f"{type(error).__name__}: {error}")
        else:
            self.close(Reason.FAILED, f"{type(error).__name__}: {error} at {origin(error)}")

    # --- reading and pausing

    def _settle(self) -> None:
        """Look at what came after the last complete frame, once that is handled; read on or not."""
        if self.close_reason is not None:
            return
        reader, listener = self._reader, self.listener
        if not self._backlog:
            if self._reserved and not reader.receiving:  # the frame it was for is handled
                reserved, self._reserved = self._reserved, 0
                listener._release(reserved)
            if reader.error is not None:
                self.close(reader.error.reason, reader.error.message)
            elif reader.wanted and (
                reader.wanted <= ARENA_BYTES or listener.memory_used < listener.limits.memory_bytes
            ):
                self._reserved = reader.wanted
                listener.memory_used += reader.wanted
                reader.grant()
        self._update_reading()

    def _update_reading(self) -> None:
        """Read the socket if and only if what it brings can be handled."""
        if self._transport is None or self.close_reason is not None:
            return
        # A frame begun is always received to its end: else its memory would never be free again.
        wish = self._reader.receiving or (
            not self._reader.wanted and not self._backlog and self._may_serve()
        )
        if wish and not self._reading:
            self._reading = True
            self._transport.resume_reading()
        elif not wish:
            if self._reading:
                self._reading = False
                self._transport.pause_reading()
            if self.listener.memory_used >= self.listener.limits.memory_bytes:
                self.listener._memory_waiters[self] = None

    def _resume(self) -> None:
        """A bound may no longer be reached: handle what waits, then read on."""
        if self.close_reason is not None or self._serving is not None:
            return
        if self._backlog and self._may_serve():
            frames = list(self._backlog)
            self._backlog.clear()
            self._serve(frames)
        self._settle()

    # --- ending

    def _ended(self, reason: Reason, detail: str = "") -> None:
        self.close_reason = reason
        self._tell_drained()
        self.listener._release(self._in_flight_bytes + self._reserved)
        self._in_flight_bytes = self._reserved = 0
        self._waiting.clear()
        self._backlog.clear()
        self._out.clear()
        if self._serving is not None:
            self._serving.clear()
        self._reader.discard()
        self.listener._ended(self, reason, detail)


def origin(error: BaseException) -> str:
    """The line that raised, as `file:line`: enough to find a bug behind a malformed request."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    return f"{last[0].filename.rsplit('/', 1)[-1]}:{last[0].lineno}" if last else "?"
