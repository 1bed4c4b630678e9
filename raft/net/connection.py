"""The server side of a connection: handles requests as they arrive, answers in their order.

A handler takes `(connection, frame)` and returns the answer (without length prefix: the header and
body of a response), None if the request has no answer (Produce with acks=0), a `Reply` to be sent
later, or an awaitable of bytes or None. Requests of one connection are handled as they arrive, also
while earlier ones wait; their answers are sent in request order, whenever they become ready.

Back-pressure is one rule: a connection is not read while it has too many or too large requests
without an answer, while its peer does not read, or while all connections together hold too much.
Bytes that were already received then wait in place.

Malformed bytes affect their own connection only: a bad length, a bad header, a RecordError of the
handler, and also a bug in it, closes it with one log line. An AssertionError is different: it is
passed to the loop's exception handler, and `raft.net.run` stops the process.

Source: Kafka protocol guide, "Network" (ordering, pipelining); KIP-72 (memory bound).
"""

from __future__ import annotations

import asyncio
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias, cast

from raft.net.connection_set import ConnectionSet
from raft.net.errors import NetError, Reason
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
from raft.net.principal import ANONYMOUS, Principal
from records.errors import RecordError


class Reply:
    """A deferred answer. The handler returns it; `send` may be called before or after that.

    Sending to a connection that has ended does nothing.
    """

    __slots__ = ("_change", "_payload", "_ready", "_request_bytes", "_sent", "connection")

    def __init__(self, connection: ServerConnection) -> None:
        self.connection = connection
        self._change: Callable[[Payload | None], Payload | None] | None = None
        self._payload: Payload | None = None
        self._ready = False
        self._sent = False  # it was handed to the transport's buffer
        self._request_bytes = 0

    def send(self, payload: Payload | None) -> None:
        """Send the response to a request, or no response if `payload` is None.

        May be called only once.
        """
        assert not self._ready, f"second answer to one request: {self.connection}"
        self._set(payload)
        self.connection._on_ready(self)

    def _set(self, payload: Payload | None) -> None:
        self._payload = payload if self._change is None else self._change(payload)
        self._ready = True

    @staticmethod
    def send_all(answers: Iterable[tuple[Reply, Payload]]) -> None:
        """Send each reply its response, as `send` does, but flush each connection only once."""
        connections: dict[ServerConnection, None] = {}  # in order
        try:
            for reply, payload in answers:
                assert not reply._ready, f"second answer to one request: {reply.connection}"
                if reply._change is None:
                    reply._payload, reply._ready = payload, True
                else:
                    reply._set(payload)
                connections[reply.connection] = None
        finally:
            for connection in connections:
                connection._send_ready()

    def on_send(self, change: Callable[[Payload | None], Payload | None]) -> None:
        """Send what `change` returns for the response, instead of the response itself.

        For whoever passes a handler's Reply on: it must not have been returned yet.
        """
        if self._ready:
            self._payload = change(self._payload)
        else:
            self._change = change

    @property
    def is_next(self) -> bool:
        """Return whether a response sent now need not wait for responses to earlier requests."""
        waiting = self.connection._waiting
        return bool(waiting) and waiting[0] is self

    async def wait_until_sent(self) -> None:
        """Wait until the socket has accepted this response or the connection has ended.

        For handlers with large answers: one that is not built yet takes no memory.
        """
        connection = self.connection
        while connection.close_reason is None and (
            not self._sent or connection._out or connection._write_paused
        ):
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            connection._drained.append(future)
            await future

    def fail(self, error: BaseException) -> None:
        """Close the connection without a response, as if the handler had raised `error`."""
        self.connection._on_handler_error(error)


Answer: TypeAlias = Payload | Reply | Awaitable[Payload | None] | None
Handler: TypeAlias = Callable[["ServerConnection", Frame], Answer]


class Progress:
    """A connection's activity when `check_progress` last saw it make progress."""

    __slots__ = ("doing", "moved", "seen_at")

    def __init__(self) -> None:
        self.seen_at = 0.0  # loop time
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
        "_progress",
        "_reader",
        "_reading",
        "_reserved",
        "_serving",
        "_shared",
        "_transport",
        "_waiting",
        "_write_paused",
        "accepted_at",
        "authentication",
        "bytes_received",
        "bytes_sent",
        "certificate_names",
        "close_reason",
        "context",
        "expires_at",
        "id",
        "peer",
        "principal",
    )

    def __init__(self, shared: ConnectionSet[ServerConnection], handle: Handler) -> None:
        self._shared = shared
        self.id = next_connection_id()
        self.peer = "?"
        self.context: object = None
        self.principal: Principal = ANONYMOUS
        self.certificate_names: frozenset[str] = frozenset()  # none if SASL names the peer
        self.authentication: object = None  # of the listener's gate, if it has one
        self.accepted_at = 0.0  # loop time
        self.expires_at: float | None = None  # loop time: the end of the peer's certificate
        self.close_reason: Reason | None = None  # None while open
        self.bytes_received = 0
        self.bytes_sent = 0  # handed to the transport
        self._handle = handle
        self._reader = FrameReader(shared.arena, max_frame_bytes=shared.limits.max_frame_bytes)
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
        self._held = 0  # calls of `pause_reading` not yet resumed
        self._drained: list[asyncio.Future[None]] = []  # of `Reply.wait_until_sent`
        self._progress = Progress()

    def __repr__(self) -> str:
        return f"<connection {self.id} from {self.peer} at {self._shared.name}>"

    @property
    def closed(self) -> bool:
        """Return whether the connection can no longer send responses."""
        return self.close_reason is not None

    @property
    def writable(self) -> bool:
        """Return whether the peer reads fast enough for large responses to be sent."""
        return not self._write_paused

    @property
    def in_flight(self) -> int:
        """Return the number of handled requests whose responses are not yet being sent."""
        return len(self._waiting)

    # --- called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self.peer = peer_name(transport)
        self.accepted_at = asyncio.get_running_loop().time()
        self._transport.set_write_buffer_limits(high=self._shared.limits.write_high_water_bytes)
        self._shared.add(self)

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
        self._shared.remove(self)

    def pause_writing(self) -> None:
        self._write_paused = True
        self._update_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._notify_drained()
        self.resume()

    # --- for handlers

    def close(self, reason: Reason = Reason.LOCAL, detail: str = "") -> None:
        """Close the connection after sending ready responses, dropping all other requests."""
        if self.close_reason is None:
            self._flush()
            self._ended(reason, detail)
            if self._transport is not None:
                self._transport.close()

    def abort(self, reason: Reason, detail: str = "") -> None:
        """Close the connection without delay, and drop responses that the peer has not read."""
        if self.close_reason is None:
            self._ended(reason, detail)
        if self._transport is not None:
            self._transport.abort()

    def allow_frames(self, max_frame_bytes: int) -> None:
        """Set the maximum size in bytes of the request frames that the peer sends from now on."""
        self._reader.limit(max_frame_bytes)

    def pause_reading(self) -> None:
        """Stop reading requests until `resume_reading`, while responses are still sent.

        For a handler that returns a Reply and whose request waits for memory. Calls are counted:
        two pauses need two resumes.
        """
        self._held += 1

    def resume_reading(self) -> None:
        """Undo one `pause_reading`; reading resumes once every pause is undone."""
        assert self._held, f"{self} is not held"
        self._held -= 1
        if not self._held:
            self.resume()

    def _notify_drained(self) -> None:
        """Wake the tasks that wait in `Reply.wait_until_sent`."""
        waiting, self._drained = self._drained, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    # --- requests

    def _may_serve(self) -> bool:
        """Return whether one more request may be handled now.

        A connection without a request in flight may always have one handled: others' large
        requests may fill the shared memory, and heartbeats and votes must still pass.
        """
        shared = self._shared
        if self._write_paused or self._held or shared.draining or self.close_reason is not None:
            return False
        if not self._waiting:
            return True
        limits = shared.limits
        return (
            len(self._waiting) < limits.max_in_flight_requests
            and self._in_flight_bytes < limits.max_in_flight_bytes
            and shared.memory_used < limits.memory_bytes
        )

    def _serve(self, frames: list[Frame]) -> None:
        """Serve request frames until this connection reaches a limit; keep the other frames."""
        handle, waiting, append = self._handle, self._waiting, self._out.append
        out_bytes = 0
        self._serving = frames  # emptied, which ends the loop, when the connection ends
        remaining = iter(frames)
        for frame in remaining:
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
                out_bytes += self._append(answer)
                if out_bytes < FLUSH_BYTES:
                    continue
            elif answer is not None:
                self._enqueue(answer, len(frame))
            if out_bytes:
                self._out_bytes += out_bytes
                out_bytes = 0
                if self._out_bytes >= FLUSH_BYTES:
                    self._flush()
            if not self._may_serve():
                self._backlog.extend(remaining)
                break
        self._serving = None
        if self._out:
            self._out_bytes += out_bytes
            self._flush()

    def _enqueue(self, answer: Answer, request_bytes: int) -> None:
        """Queue a response that is not plain bytes, or that must follow earlier responses."""
        if self.close_reason is not None:  # by the handler itself
            return
        if type(answer) is Reply:
            assert answer.connection is self, f"{self} got a reply of {answer.connection}"
            assert not answer._request_bytes, f"one reply returned for two requests: {self}"
            reply = answer
        else:
            reply = Reply(self)
            if isinstance(answer, bytes | bytearray | memoryview | tuple | list):
                reply._payload, reply._ready = answer, True
            else:
                assert isinstance(answer, Awaitable), f"handler returned {type(answer)}"
                self._send_when_done(answer, reply)
        reply._request_bytes = request_bytes = request_bytes or 1
        self._waiting.append(reply)
        self._in_flight_bytes += request_bytes
        self._shared.reserve(request_bytes)
        if reply._ready:
            self._on_ready(reply)

    def _on_ready(self, reply: Reply) -> None:
        """Send a ready response if it is the next in order, and the ready responses after it."""
        if self._waiting and self._waiting[0] is reply:
            self._send_ready()

    def _send_ready(self) -> None:
        """Send the ready responses that wait for no response to an earlier request."""
        waiting = self._waiting
        if not waiting or not waiting[0]._ready:
            return
        released = out_bytes = 0
        try:
            while waiting and waiting[0]._ready:
                reply = waiting.popleft()
                reply._sent = True
                released += reply._request_bytes
                if reply._payload is not None:
                    out_bytes += self._append(reply._payload)
        finally:
            self._in_flight_bytes -= released
            self._out_bytes += out_bytes
            self._shared.release(released)
        if self._serving is None and not self._flush_due:
            self._flush_due = True
            self._shared.flush_soon(self)

    def _send_when_done(self, answer: Awaitable[Payload | None], reply: Reply) -> None:
        """Send the result of the awaitable `answer` as the response when it is done."""
        future = asyncio.ensure_future(answer)
        self._shared.keep_until_done(future)
        future.add_done_callback(lambda done: _send_result(reply, done))

    def _append(self, payload: Payload) -> int:
        """Append a response to the output buffers, and return its size in bytes."""
        if type(payload) is bytes:
            size = len(payload)
            self._out += (length_prefix(size), payload)
            return size
        parts = payload if isinstance(payload, tuple | list) else (payload,)
        size = sum(map(len, parts))
        self._out.append(length_prefix(size))
        self._out += parts
        return size

    def _flush(self) -> None:
        """Pass the responses that are ready to the transport."""
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
            self._notify_drained()

    def _on_handler_error(self, error: BaseException) -> None:
        if isinstance(error, AssertionError):
            self._shared.report_broken_invariant(error)
            self.abort(Reason.INVARIANT, repr(error))
        elif isinstance(error, NetError):
            self.close(error.reason, error.message)
        elif isinstance(error, RecordError):
            self.close(Reason.MALFORMED, f"{type(error).__name__}: {error}")
        else:
            self.close(Reason.FAILED, f"{type(error).__name__}: {error} at {origin(error)}")

    # --- reading and pausing

    def _settle(self) -> None:
        """Reserve memory for an incomplete frame, or let it wait until memory is free."""
        if self.close_reason is not None:
            return
        reader, shared = self._reader, self._shared
        if self._reserved:
            shared.received_at = asyncio.get_running_loop().time()
        if not self._backlog:
            if self._reserved and not reader.receiving:  # the frame it was for is handled
                reserved, self._reserved = self._reserved, 0
                shared.release(reserved)
            if reader.error is not None:
                self.close(reader.error.reason, reader.error.message)
            elif reader.wanted and (reader.wanted <= ARENA_BYTES or shared.has_memory):
                self._reserved = reader.wanted
                shared.reserve(reader.wanted)
                reader.grant()
        self._update_reading()

    def _update_reading(self) -> None:
        """Resume or pause reading from the socket, as the limits on requests require."""
        if self._transport is None or self.close_reason is not None:
            return
        # A frame begun is always received to its end: else its memory would never be released.
        can_handle = self._reader.receiving or (
            not self._reader.wanted and not self._backlog and self._may_serve()
        )
        if can_handle and not self._reading:
            self._reading = True
            self._transport.resume_reading()
        elif not can_handle:
            if self._reading:
                self._reading = False
                self._transport.pause_reading()
            if not self._shared.has_memory:
                self._shared.wait_for_memory(self)

    def resume(self) -> None:
        """Serve waiting frames and read further requests, as far as the limits allow."""
        if self.close_reason is not None or self._serving is not None:
            return
        if self._backlog and self._may_serve():
            frames = list(self._backlog)
            self._backlog.clear()
            self._serve(frames)
        self._settle()

    # --- called by the listener and its connection set

    def flush_turn(self) -> None:
        """Send the ready responses at the end of a turn of the event loop.

        Then close if draining, or read on.
        """
        self._flush_due = False
        self._flush()
        if self._shared.draining:
            self.close_if_drained()
        elif not self._reading:
            self.resume()

    def close_if_drained(self) -> None:
        """Close the connection unless requests in flight still wait for their responses."""
        if not self._waiting:
            self.close(Reason.SHUTDOWN)

    def check_progress(self, now: float) -> None:
        """Abort the connection if it is idle or stalled at loop time `now`, in seconds."""
        limits, progress = self._shared.limits, self._progress
        stalled: Reason | None
        if self._write_paused or self.closed:
            transport = self._transport
            unsent = transport.get_write_buffer_size() if transport is not None else 0
            doing, moved = ("writing", 0), self.bytes_sent - unsent
            least, patience_ms, stalled = limits.stall_bytes, limits.stall_ms, Reason.WRITE_STALLED
        elif self._reader.partial and self._reading:
            doing, moved = ("frame", self._reader.frames_read), self.bytes_received
            least, patience_ms, stalled = limits.stall_bytes, limits.stall_ms, Reason.FRAME_STALLED
        elif self._waiting or not self._reading:
            doing, moved = ("waiting", 0), 0  # for this server: not the peer's fault
            least, patience_ms, stalled = 0, 0, None
        else:
            doing, moved = ("idle", 0), self.bytes_received
            least, patience_ms, stalled = 1, limits.idle_ms, Reason.IDLE
        if doing != progress.doing or moved - progress.moved >= least:
            progress.doing, progress.moved, progress.seen_at = doing, moved, now
        elif stalled is not None and (now - progress.seen_at) * 1_000 >= patience_ms:
            detail = f"{moved - progress.moved} bytes in {now - progress.seen_at:.1f} s"
            self.abort(stalled, detail)

    # --- ending

    def _ended(self, reason: Reason, detail: str = "") -> None:
        self.close_reason = reason
        self._notify_drained()
        self._shared.release(self._in_flight_bytes + self._reserved)
        self._in_flight_bytes = self._reserved = 0
        self._waiting.clear()
        self._backlog.clear()
        self._out.clear()
        if self._serving is not None:
            self._serving.clear()
        self._reader.discard()
        self._shared.report_end(self, reason, detail)


def _send_result(reply: Reply, future: asyncio.Future[Payload | None]) -> None:
    if future.cancelled():
        reply.connection.close(Reason.LOCAL, "the request was cancelled")
    elif (error := future.exception()) is not None:
        reply.fail(error)
    else:
        reply.send(future.result())


def origin(error: BaseException) -> str:
    """Return the source line that raised `error`, as `file:line`."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    return f"{last[0].filename.rsplit('/', 1)[-1]}:{last[0].lineno}" if last else "?"
