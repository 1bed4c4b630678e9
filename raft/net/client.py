"""The client side: pipelined requests over one connection, answers in request order.

Every request gets exactly one call of its `on_answer`: with the bytes after the response header, or
with a `ConnectionLostError`. Correlation ids only check the order: Kafka answers in order, so an
unexpected id means that the two sides disagree about the stream, and the connection is closed.

A lost connection is reported at once: first to the owner (`on_close`), then to every unanswered
request, in the same call. It distinguishes a dead process (REFUSED, RESET, PEER_CLOSED) from a
silent one (TIMEOUT), which fast failover relies on.

Source: Kafka protocol guide, "Network"; upstream's NetworkClient.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import Final, TypeAlias, cast

from raft.net.client_authentication import SASL_KEYS, AuthenticationError, authenticate
from raft.net.errors import (
    BadHeaderError,
    ConnectError,
    ConnectionLostError,
    Reason,
    RequestTimeoutError,
)
from raft.net.frames import FLUSH_BYTES, Arena, Buffer, Frame, FrameReader, Payload, gather
from raft.net.header import RequestKind, header_tail, skip_tagged_fields
from raft.net.identity import next_connection_id, peer_name
from raft.net.security import OutgoingSecurity, outgoing_security

OnAnswer: TypeAlias = Callable[[Frame | ConnectionLostError], None]
"""Receives the response's body (see `raft.net.Frame`), or the error that prevented it."""

MAX_CORRELATION_ID: Final = 0x7FFF_FFFF
MAX_RESPONSE_BYTES: Final = 0x1000_0000  # a broker may send more than the 100 MiB it accepts

_pack_request = Struct(">ihhi").pack  # length, api key, api version, correlation id
_read_correlation = Struct(">i").unpack_from


_Call: TypeAlias = tuple[int, OnAnswer, float, bool]
"""Correlation id, callback, deadline in loop time, whether the response header is flexible."""

_NEVER: Final = float("inf")


class ClientConnection(asyncio.BufferedProtocol):
    """An open connection to one server, made by `connect`. A later connection has a larger `id`."""

    __slots__ = (
        "_calls",
        "_client_id",
        "_flush_due",
        "_held",
        "_loop",
        "_next_correlation_id",
        "_on_close",
        "_out",
        "_out_bytes",
        "_reader",
        "_receiving",
        "_tails",
        "_timer",
        "_timer_at",
        "_transport",
        "_write_paused",
        "answers",
        "close_reason",
        "context",
        "id",
        "peer",
        "renewal",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        client_id: str | None,
        arena: Arena,
        max_response_bytes: int,
        on_close: Callable[[ClientConnection, ConnectionLostError], None] | None,
    ) -> None:
        self.id = next_connection_id()
        self.peer = "?"
        self.context: object = None
        self.close_reason: Reason | None = None  # None while open
        self._loop = loop
        self._client_id = client_id
        self._tails = (
            header_tail(client_id, flexible=False),
            header_tail(client_id, flexible=True),
        )
        self._reader = FrameReader(arena, max_frame_bytes=max_response_bytes)
        self._on_close = on_close
        self._transport: asyncio.Transport | None = None
        self._calls: deque[_Call] = deque()
        self._next_correlation_id = 0
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._held: tuple[list[Buffer], deque[_Call]] | None = None  # None: not held back
        self.renewal: asyncio.TimerHandle | asyncio.Task[None] | None = None
        self._flush_due = False
        self._receiving = False
        self._write_paused = False
        self.answers = 0  # received so far
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def __repr__(self) -> str:
        return f"<connection {self.id} to {self.peer}>"

    def __str__(self) -> str:
        return self.peer  # for error messages

    @property
    def closed(self) -> bool:
        """Return whether the connection can no longer send requests."""
        return self.close_reason is not None

    @property
    def in_flight(self) -> int:
        """Return the number of requests that are not answered yet."""
        return len(self._calls) + (0 if self._held is None else len(self._held[1]))

    @property
    def writable(self) -> bool:
        """Return whether the server reads fast enough for large requests to be sent."""
        return not self._write_paused

    # --- requests

    def send(
        self,
        kind: RequestKind,
        body: Payload,
        on_answer: OnAnswer | None,
        *,
        timeout_ms: float | None = None,
    ) -> int:
        """Send one request, and return its correlation id.

        Requests of one loop tick are sent in one write.

        Args:    on_answer: called once, never from inside this call. None: no answer is expected.
        Raises:  ConnectionLostError if the connection is closed already.
        """
        if self.close_reason is not None:
            raise ConnectionLostError(self.close_reason, f"{self} is closed")
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & MAX_CORRELATION_ID
        api_key, api_version, flexible, answer_flexible = kind
        tail = self._tails[flexible]
        out, calls = self._out, self._calls
        if self._held is not None and api_key not in SASL_KEYS:
            out, calls = self._held
        if type(body) is bytes:
            size = 8 + len(tail) + len(body)
            out.append(_pack_request(size, api_key, api_version, correlation_id) + tail)
            out.append(body)
        else:
            parts = body if isinstance(body, tuple | list) else (body,)
            size = 8 + len(tail) + sum(map(len, parts))
            out.append(_pack_request(size, api_key, api_version, correlation_id) + tail)
            out += parts
        self._out_bytes += size
        if on_answer is not None:
            deadline = _NEVER
            if timeout_ms is not None:
                deadline = self._loop.time() + timeout_ms / 1_000
                self._watch_deadline(deadline)
            calls.append((correlation_id, on_answer, deadline, answer_flexible))
        if not self._flush_due and not self._receiving:
            self._flush_due = True
            self._loop.call_soon(self._flush)
        return correlation_id

    def request(
        self, kind: RequestKind, body: Payload, *, timeout_ms: float | None = None
    ) -> asyncio.Future[Frame]:
        """Send one request, and return a future of the response's body."""
        future: asyncio.Future[Frame] = self._loop.create_future()

        def on_answer(answer: Frame | ConnectionLostError) -> None:
            if future.done():  # the awaiting task was cancelled
                return
            if isinstance(answer, ConnectionLostError):
                future.set_exception(answer)
            else:
                future.set_result(answer)

        self.send(kind, body, on_answer, timeout_ms=timeout_ms)
        return future

    def hold(self) -> None:
        """Keep further requests back, but those of SASL: a server closes on others meanwhile."""
        assert self._held is None, f"{self} is held already"
        self._held = ([], deque())

    def release(self) -> None:
        """Send the requests that were kept back, in their order; no effect without `hold`."""
        if self._held is None:
            return
        (out, calls), self._held = self._held, None
        self._out += out
        self._out_bytes = sum(map(len, self._out))
        self._calls += calls
        if not self._flush_due and not self._receiving:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def fail(self, reason: Reason, message: str) -> None:
        """End the connection at once; its owner and requests in flight get the reason."""
        self._end(ConnectionLostError(reason, f"{self}: {message}"))

    def close(self) -> None:
        """Close the connection after its buffers are sent; requests in flight fail immediately."""
        self._flush()
        if self._transport is not None and self.close_reason is None:
            self._transport.close()
        self._end(ConnectionLostError(Reason.LOCAL, f"{self} closed by its owner"))

    # --- called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self.peer = peer_name(transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._reader.lend()

    def buffer_updated(self, nbytes: int) -> None:
        if self.close_reason is not None:
            return
        frames = self._reader.received(nbytes)
        self._receiving = True
        try:
            self._hand_out(frames)
        finally:
            self._receiving = False
        if self._reader.error is not None:
            self.fail(self._reader.error.reason, self._reader.error.message)
        elif self._reader.wanted:
            self._reader.grant()
        if self._out:
            self._flush()

    def eof_received(self) -> None:
        self._end(ConnectionLostError(Reason.PEER_CLOSED, f"{self} closed by its peer"))

    def connection_lost(self, exc: Exception | None) -> None:
        reason = Reason.PEER_CLOSED if exc is None else Reason.RESET
        self._end(ConnectionLostError(reason, f"{self}: {exc or 'closed by its peer'}"))
        self._transport = None

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False

    # --- inside

    def _hand_out(self, frames: list[Frame]) -> None:
        """Pass each response to its request's caller; end the connection if any is out of order."""
        calls = self._calls
        for frame in frames:
            if not calls or len(frame) < 4:
                self.fail(Reason.BAD_ANSWER, f"{len(frame)} bytes, {len(calls)} answers due")
                return
            (correlation_id,) = _read_correlation(frame)
            expected, on_answer, _, flexible = calls[0]
            if correlation_id != expected:
                self.fail(Reason.MISMATCH, f"answer {correlation_id}, expected {expected}")
                return
            body_at = 4
            if flexible:
                try:
                    body_at = 5 if frame[4:5] == b"\x00" else skip_tagged_fields(frame, 4)
                except BadHeaderError as error:
                    self.fail(Reason.BAD_ANSWER, error.message)
                    return
            calls.popleft()
            self.answers += 1
            on_answer(frame[body_at:])

    def _flush(self) -> None:
        self._flush_due = False
        if self._transport is None or not self._out or self.close_reason is not None:
            return
        small = self._out_bytes <= FLUSH_BYTES
        parts = (b"".join(self._out),) if small else gather(self._out)
        self._out.clear()
        self._out_bytes = 0
        if len(parts) == 1:
            self._transport.write(parts[0])
        else:
            self._transport.writelines(parts)

    def _watch_deadline(self, deadline: float) -> None:
        if self._timer is None or deadline < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(deadline, self._on_timer)
            self._timer_at = deadline  # uvloop's timer does not say, if it is due at once

    def _on_timer(self) -> None:
        """End the connection if a request is overdue, or set the timer for the next deadline."""
        self._timer = None
        calls = (*self._calls, *(() if self._held is None else self._held[1]))
        if self.close_reason is not None or not calls:
            return
        earliest = min(deadline for _, _, deadline, _ in calls)
        if earliest <= self._loop.time():
            self._end(RequestTimeoutError(Reason.TIMEOUT, f"{self}: no answer in time"))
        elif earliest != _NEVER:
            self._watch_deadline(earliest)

    def _end(self, error: ConnectionLostError) -> None:
        if self.close_reason is not None:
            return
        self.close_reason = error.reason
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None and error.reason is not Reason.LOCAL:
            self._transport.abort()
        if self.renewal is not None:
            self.renewal.cancel()
            self.renewal = None
        self.release()
        self._out.clear()
        self._reader.discard()
        calls = tuple(self._calls)
        self._calls.clear()
        if self._on_close is not None:
            self._on_close(self, error)
        for _, on_answer, _, _ in calls:
            on_answer(error)


async def connect(
    host: str,
    port: int,
    *,
    client_id: str | None = None,
    timeout_ms: int = 5_000,
    arena: Arena | None = None,
    max_response_bytes: int = MAX_RESPONSE_BYTES,
    on_close: Callable[[ClientConnection, ConnectionLostError], None] | None = None,
    security: OutgoingSecurity | None = None,
) -> ClientConnection:
    """Open a connection to a server, trying all addresses of its name in turn.

    Args:    timeout_ms: in total; each address gets an equal share of the remaining time.
             arena: share one between connections of one loop; None: a new one (64 KiB).
             on_close: called once when the connection ends, before its requests are failed.
             security: of this connection; None: that of the process.
    Raises:  ConnectError; its `reason` is REFUSED only if every address refused.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_ms / 1_000
    security = security or outgoing_security()
    tls = None if security is None or security.tls is None else security.tls.current()
    server_name = None if tls is None else host
    try:
        async with asyncio.timeout_at(deadline):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except TimeoutError:
        raise ConnectError(
            Reason.TIMEOUT, host=host, port=port, message="resolving the name took too long"
        ) from None
    except OSError as error:
        raise ConnectError(Reason.UNRESOLVED, host=host, port=port, message=str(error)) from error
    addresses = list(dict.fromkeys(str(info[4][0]) for info in found))

    def protocol() -> ClientConnection:
        return ClientConnection(
            loop, client_id=client_id, arena=arena or Arena(),
            max_response_bytes=max_response_bytes, on_close=on_close,
        )  # fmt: skip

    failure = ConnectError(Reason.UNRESOLVED, host=host, port=port, message="no address")
    for left in range(len(addresses), 0, -1):
        address = addresses[-left]
        try:
            async with asyncio.timeout((deadline - loop.time()) / left):
                _, connection = await loop.create_connection(
                    protocol, address, port, ssl=tls, server_hostname=server_name
                )
                if security is not None and security.sasl is not None:
                    await authenticate(connection, security.sasl)
        except (AuthenticationError, ssl.SSLError) as error:
            why = (
                f"certificate refused: {error.verify_message}"
                if isinstance(error, ssl.SSLCertVerificationError)
                else str(error)
            )
            raise ConnectError(
                Reason.AUTHENTICATION_FAILED, host=host, port=port, message=why
            ) from error
        except ConnectionLostError as error:
            failure = ConnectError(error.reason, host=host, port=port, message=error.message)
        except (TimeoutError, OSError) as error:
            where = "" if address == host else f"{address}: "
            why = getattr(error, "strerror", None) or str(error) or "too slow"
            this = ConnectError(reason_of(error), host=host, port=port, message=f"{where}{why}")
            this.__cause__ = error
            worse = failure.reason is Reason.UNRESOLVED or this.reason is not Reason.REFUSED
            failure = this if worse else failure
        else:
            return connection
    raise failure


def reason_of(error: OSError) -> Reason:
    """Classify the error of a failed connection attempt."""
    if isinstance(error, ConnectionRefusedError):
        return Reason.REFUSED
    if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        return Reason.TIMEOUT
    return Reason.UNREACHABLE
