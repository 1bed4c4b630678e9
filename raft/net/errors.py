"""Reasons for the end of connections, and the errors that carry them.

All of them are faults of a peer or the network, so they are typed and caught; a broken invariant of
this program is an `AssertionError`, on which `raft.net.run` stops the process.
"""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """The reason for an ended or failed connection; a label of metrics and log lines."""

    PEER_CLOSED = "peer_closed"
    RESET = "reset"
    LOCAL = "local"  # closed by this side, without a fault
    SHUTDOWN = "shutdown"
    IDLE = "idle"
    THROTTLED = "throttled"
    TRUNCATED = "truncated_frame"  # the peer closed in the middle of a frame
    NEGATIVE_LENGTH = "negative_length"
    OVERSIZED = "oversized_frame"
    TLS = "tls_on_plaintext_port"
    TLS_FAILED = "tls_handshake_failed"
    HANDSHAKE_STALLED = "handshake_stalled"  # TLS or SASL took too long
    AUTHENTICATION_FAILED = "authentication_failed"
    EXPIRED = "expired"  # the peer's certificate, or its SASL session
    HTTP = "http_on_kafka_port"
    MALFORMED = "malformed_request"
    FAILED = "handler_failed"  # an exception of the handler that no malformed request explains
    ACKS_0_FAILED = "error_at_acks_0"  # a failed request without an answer to carry the error
    FRAME_STALLED = "frame_stalled"  # half a frame, then too little
    WRITE_STALLED = "write_stalled"  # the peer does not read its answers
    TOO_MANY_CONNECTIONS = "too_many_connections"
    INVARIANT = "invariant"  # an assertion of this program failed while handling a request
    UNRESOLVED = "unresolved"  # the name has no address
    REFUSED = "refused"  # the host refused: no process listens on the port
    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    MISMATCH = "correlation_mismatch"
    BAD_ANSWER = "bad_answer"
    UNSUPPORTED = "unsupported_version"  # no version of a request that both sides have


QUIET: frozenset[Reason] = frozenset(
    {Reason.PEER_CLOSED, Reason.RESET, Reason.LOCAL, Reason.SHUTDOWN, Reason.IDLE, Reason.THROTTLED}
)
"""Ordinary reasons: counted, not logged."""


class NetError(Exception):
    """A fault of a peer or the network, with its reason for counters and decisions."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message


class BadFrameError(NetError):
    """A length prefix out of bounds, after which the start of the next frame is unknown."""


class BadHeaderError(NetError):
    """A malformed request or response header, or an unknown api key."""

    def __init__(self, message: str) -> None:
        super().__init__(Reason.MALFORMED, message)


class ConnectError(NetError):
    """A connection could not be opened: REFUSED, TIMEOUT, UNRESOLVED or UNREACHABLE."""

    def __init__(self, reason: Reason, *, host: str, port: int, message: str) -> None:
        super().__init__(reason, f"{host}:{port}: {message}")
        self.host = host
        self.port = port


class ConnectionLostError(NetError):
    """The connection ended before the answer arrived; the request may have been executed."""


class RequestTimeoutError(ConnectionLostError):
    """A request was not answered in time.

    The connection is closed too: answers arrive in order, so those behind a late one are late as
    well. Source: upstream's NetworkClient, handleTimedOutRequests.
    """
