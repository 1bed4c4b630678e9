"""TLS on the server side of a connection, between the socket and a `ServerConnection`.

    ServerTls(connection, context, handshakes, arena, on_established)  # the socket's protocol

It decrypts into the connection's own buffer and encrypts its responses, by `ssl.MemoryBIO`. To the
socket it is the protocol, to the connection it is the transport. The connection learns of its
transport once the handshake is done: until then it handles no byte.

Why not the event loop's TLS: `create_server(ssl=...)` begins a handshake with each connection that
it accepts, counts none of them, and shows none to `max.connections`. Here a listener bounds the
handshakes in number and in rate, so that strangers cost a quorum's loop no more than that, and each
handshake takes the newest certificate, so that a renewed one needs no restart.

Source: docs/design/security.md#transport.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from raft.net.errors import Reason
from raft.net.frames import Arena, Buffer
from raft.net.identity import peer_name
from raft.net.limits import Limits

BURST_S: Final = 0.1
"""Handshakes that an idle listener begins at once, in seconds of its rate."""

MAX_UNREAD: Final = 16_384 * 2
"""Bytes of a peer whose handshake waits for its turn; a ClientHello is shorter."""

SLICE_BYTES: Final = 256 * 1024  # encrypted at once: bounds the copies of a large response


class Application(Protocol):
    """The protocol inside of TLS: a `ServerConnection`."""

    peer: str

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...

    def get_buffer(self, sizehint: int) -> memoryview: ...

    def buffer_updated(self, nbytes: int) -> None: ...

    def eof_received(self) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


class Handshakes:
    """Bounds the TLS handshakes of one listener: their number, their rate and their duration.

    The loop does one step of one handshake in a turn, 0.5 to 1 ms of cryptography. Why: a hundred
    peers that send at the same time would otherwise hold established connections for as many.
    """

    def __init__(
        self,
        limits: Limits,
        report: Callable[[ServerTls, Reason, str], None],
        connections: Callable[[], int] = lambda: 0,
    ) -> None:
        """Create the limits on concurrent TLS handshakes of one listener.

        Args:  report: called once for each connection that ends before its handshake is done.
               connections: the listener's connections whose handshakes are done.
        """
        self.begun: dict[ServerTls, float] = {}  # with the loop time of their accept
        self.completed = 0
        self.report = report
        self._limits = limits
        self._connections = connections
        self._waiting: deque[ServerTls] = deque()
        self._burst = max(1.0, limits.max_handshakes_per_second * BURST_S)
        self._left = self._burst
        self._steps: deque[ServerTls] = deque()  # that have received bytes
        self._refilled_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, connection: ServerTls) -> None:
        """Admit an accepted connection's handshake now or later, or abort it if too many wait."""
        if self.hold(connection):
            self._waiting.append(connection)
            self._admit()

    def hold(self, connection: ServerTls) -> bool:
        """Count a connection as one that has begun, or abort it if there are too many of them.

        Returns False for an aborted one.
        """
        loop = asyncio.get_running_loop()
        begun, limits = len(self.begun), self._limits
        if begun >= limits.max_handshakes or begun + self._connections() >= limits.max_connections:
            connection.fail(Reason.TOO_MANY_CONNECTIONS, "too many TLS handshakes")
            return False
        self.begun[connection] = loop.time()
        return True

    def remove(self, connection: ServerTls) -> None:
        """Remove a connection whose handshake is done or has failed."""
        self.begun.pop(connection, None)

    def sweep(self, now: float) -> None:
        """Abort handshakes that take too long at loop time `now`, in seconds."""
        oldest = now - self._limits.handshake_timeout_ms / 1_000
        for connection, begun_at in tuple(self.begun.items()):
            if begun_at > oldest:
                break  # the dictionary is in order of arrival
            connection.fail(Reason.HANDSHAKE_STALLED, "the TLS handshake took too long")

    def close(self) -> None:
        """Abort all handshakes, because the listener closes."""
        if self._timer is not None:
            self._timer.cancel()
        for connection in tuple(self.begun):
            connection.fail(Reason.SHUTDOWN, "")

    def _admit(self) -> None:
        """Begin queued TLS handshakes up to the rate limit; set a timer if some are left."""
        loop, rate = asyncio.get_running_loop(), self._limits.max_handshakes_per_second
        now = loop.time()
        self._left = min(self._burst, self._left + (now - self._refilled_at) * rate)
        self._refilled_at = now
        while self._waiting and self._left >= 1:
            connection = self._waiting.popleft()
            if connection in self.begun:
                self._left -= 1
                connection.shake_hands()
        if self._waiting and self._timer is None:
            self._timer = loop.call_later(1 / rate, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._admit()

    def continue_later(self, connection: ServerTls) -> None:
        """Continue a handshake when its turn comes; call it once for each step."""
        self._steps.append(connection)
        if len(self._steps) == 1:
            asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        """Do the next step of one handshake."""
        connection = self._steps.popleft()
        if self._steps:
            asyncio.get_running_loop().call_soon(self._step)
        connection.continue_handshake()


class ServerTls(asyncio.Transport, asyncio.BufferedProtocol):
    """One accepted connection's TLS. Belongs to the event loop."""

    def __init__(
        self,
        application: Application,
        context: Callable[[], ssl.SSLContext],
        handshakes: Handshakes,
        arena: Arena,
        on_established: Callable[[ServerTls], None],
        hold_ms: Callable[[str], int] | None = None,
    ) -> None:
        """Create the TLS layer of one connection.

        Args:  on_established: called before the connection begins; a ValueError refuses the peer.
               hold_ms: see `raft.net.Listener`.
        """
        super().__init__()
        self.application = application
        self._context = context
        self._handshakes = handshakes
        self._arena = arena.view
        self._on_established = on_established
        self._hold_ms = hold_ms
        self._socket: asyncio.Transport | None = None
        self._received, self._unsent = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None  # None until the handshake is admitted
        self._established = False
        self._paused = False
        self._ended = False
        self._delivery_due = False
        self._step_due = False

    # --- the socket's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the accepted socket's transport, and queue the connection's handshake."""
        self._socket = transport  # type: ignore[assignment]  # uvloop's is none by inheritance
        self.application.peer = peer_name(transport)
        hold_ms = 0 if self._hold_ms is None else self._hold_ms(self.application.peer)
        if not hold_ms:
            self._handshakes.add(self)
        elif self._handshakes.hold(self):
            loop = asyncio.get_running_loop()
            loop.call_later(hold_ms / 1_000, self.fail, Reason.THROTTLED, "")

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._arena

    def buffer_updated(self, nbytes: int) -> None:
        if self._ended:
            return
        self._received.write(self._arena[:nbytes])
        if self._established:
            self._deliver()
        elif self._tls is not None:
            self._continue_later()
        elif self._received.pending > MAX_UNREAD:
            self.fail(Reason.OVERSIZED, "too many bytes before the TLS handshake")

    def eof_received(self) -> None:
        if self._established and not self._ended:
            self.application.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        established, self._established = self._established, False
        if established:
            self._ended = True
            self.application.connection_lost(exc)
        else:
            self.fail(Reason.PEER_CLOSED if exc is None else Reason.RESET, "")

    def pause_writing(self) -> None:
        if self._established:
            self.application.pause_writing()

    def resume_writing(self) -> None:
        if self._established:
            self.application.resume_writing()

    # --- the handshake

    def shake_hands(self) -> None:
        """Begin the TLS handshake with this node's newest certificate."""
        self._tls = self._context().wrap_bio(self._received, self._unsent, server_side=True)
        if self._received.pending:
            self._continue_later()

    def _continue_later(self) -> None:
        """Wait for this handshake's turn; a peer that sends much is not read meanwhile."""
        if self._received.pending > MAX_UNREAD and not self._paused:
            self.pause_reading()
        if not self._step_due:
            self._step_due = True
            self._handshakes.continue_later(self)

    def fail(self, reason: Reason, detail: str) -> None:
        """Abort a connection before the end of its handshake, and report the reason."""
        if self._ended:
            return
        self._ended = True
        self._handshakes.remove(self)
        self._handshakes.report(self, reason, detail)
        if self._socket is not None:
            self._socket.abort() if reason is not Reason.TLS_FAILED else self._socket.close()

    def continue_handshake(self) -> None:
        """Do the next step of the handshake with the bytes that have been received."""
        self._step_due = False
        if self._ended:
            return
        assert self._tls is not None, "a handshake that was not admitted"
        try:
            self._tls.do_handshake()
            self._on_established(self)
        except ssl.SSLWantReadError:
            self._send()
            if self._paused:
                self.resume_reading()
            return
        except (ssl.SSLError, ValueError) as error:
            self._send()  # the alert, which tells the peer the reason
            self.fail(Reason.TLS_FAILED, explain(error))
            return
        self._send()
        self._handshakes.remove(self)
        self._handshakes.completed += 1
        self._established = True
        if self._paused:
            self.resume_reading()
        self.application.connection_made(self)
        self._deliver()

    # --- decrypting and encrypting

    def _deliver(self) -> None:
        """Decrypt received bytes into the connection's buffer while the connection reads."""
        self._delivery_due = False
        application, tls = self.application, self._tls
        assert tls is not None
        try:
            while not self._paused and not self._ended:
                buffer = application.get_buffer(-1)
                count = tls.read(len(buffer), buffer)
                if not count:
                    application.eof_received()
                    break
                application.buffer_updated(count)  # type: ignore[arg-type]
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            application.eof_received()
        except ssl.SSLError:
            self.abort()
            return
        self._send()

    def _send(self) -> None:
        if self._unsent.pending and self._socket is not None:
            self._socket.write(self._unsent.read())

    # --- the connection's transport

    def write(self, data: Any) -> None:
        """Encrypt a response and send it."""
        if self._ended or not len(data):
            return
        assert self._tls is not None
        view = memoryview(data)
        try:
            for start in range(0, len(view), SLICE_BYTES):
                self._tls.write(view[start : start + SLICE_BYTES])
                self._send()
        except ssl.SSLError:
            self.abort()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        for data in list_of_data:
            self.write(data)

    def pause_reading(self) -> None:
        self._paused = True
        if self._socket is not None and not self._ended:
            self._socket.pause_reading()

    def resume_reading(self) -> None:
        self._paused = False
        if self._socket is None or self._ended:
            return
        self._socket.resume_reading()
        if self._established and not self._delivery_due:
            # Later: the connection may be handling requests just now.
            self._delivery_due = True
            asyncio.get_running_loop().call_soon(self._deliver_if_open)

    def _deliver_if_open(self) -> None:
        self._delivery_due = False
        if self._established and not self._ended:
            self._deliver()

    def close(self) -> None:
        """Send the end of the TLS stream, and close the socket once its buffers are sent."""
        if self._ended:
            return
        self._ended = True
        if self._tls is not None and self._established:
            with contextlib.suppress(ssl.SSLError):  # the peer's own end is not waited for
                self._tls.unwrap()
            self._send()
        if self._socket is not None:
            self._socket.close()

    def abort(self) -> None:
        self._ended = True
        if self._socket is not None:
            self._socket.abort()

    def is_closing(self) -> bool:
        return self._ended

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return self._tls
        return default if self._socket is None else self._socket.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._socket is not None:
            self._socket.set_write_buffer_limits(high=high, low=low)

    def get_write_buffer_size(self) -> int:
        return 0 if self._socket is None else self._socket.get_write_buffer_size()


def explain(error: Exception) -> str:
    """Return OpenSSL's reason for a failed handshake in one line."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        if error.reason in ("HTTP_REQUEST", "WRONG_VERSION_NUMBER"):
            return f"{error.reason}: this listener speaks TLS"
        return error.reason
    return str(error)[:200]
