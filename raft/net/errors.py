"""Why connections end: the reasons, and the errors that carry them.

Everything here is the bytes' or the network's fault, so it is typed and caught; a broken invariant
of our own is an `AssertionError` and is not (`raft.net.run` stops the process on one).
"""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Why a connection ended, was refused or never came to be. A label of metrics and log lines."""

    PEER_CLOSED = "peer_closed"
    RESET = "reset"
    LOCAL = "local"  # closed by us, nothing wrong
    SHUTDOWN = "shutdown"
    IDLE = "idle"
    TRUNCATED = "truncated_frame"  # the peer closed in the middle of a frame
    NEGATIVE_LENGTH = "negative_length"
    OVERSIZED = "oversized_frame"
    TLS = "tls_on_plaintext_port"
    HTTP = "http_on_kafka_port"
    MALFORMED = "malformed_request"
    FAILED = "handler_failed"  # ours: an exception that says nothing about the request's bytes
    ACKS_0_FAILED = (
        "error_at_acks_0"  # a request that wants no answer failed: nothing else could tell
    )
    FRAME_STALLED = "frame_stalled"  # half a frame, then too little
    WRITE_STALLED = "write_stalled"  # the peer does not read its answers
    TOO_MANY_CONNECTIONS = "too_many_connections"
    INVARIANT = "invariant"  # ours: an assertion failed while handling a request
    UNRESOLVED = "unresolved"  # the name has no address
    REFUSED = "refused"  # somebody answered that nobody listens there
    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    MISMATCH = "correlation_mismatch"
    BAD_ANSWER = "bad_answer"
    UNSUPPORTED = "unsupported_version"  # no version of a request that both sides have


QUIET: frozenset[Reason] = frozenset(
    {Reason.PEER_CLOSED, Reason.RESET, Reason.LOCAL, Reason.SHUTDOWN, Reason.IDLE}
)
"""Reasons that happen every day: counted, not logged."""


class NetError(Exception):
    """Something a peer or the network did. `reason` says what, for counters and decisions."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.message = message


class BadFrameError(NetError):
    """A length prefix that cannot begin a frame. Where the next frame starts is now unknown."""


class BadHeaderError(NetError):
    """A request or response header whose bytes contradict themselves, or an unknown api key."""

    def __init__(self, message: str) -> None:
        super().__init__(Reason.MALFORMED, message)


class ConnectError(NetError):
    """No connection came to be; `reason` tells REFUSED, TIMEOUT, UNRESOLVED, UNREACHABLE apart."""

    def __init__(self, reason: Reason, *, host: str, port: int, message: str) -> None:
        super().__init__(reason, f"{host}:{port}: {message}")
        self.host = host
        self.port = port


class ConnectionLostError(NetError):
    """The connection ended before the answer came: whether the request was executed is unknown."""


class RequestTimeoutError(ConnectionLostError):
    """No answer in time. The connection is closed too: answers come in order, so those behind a
    late one are late as well. Source: upstream's NetworkClient, handleTimedOutRequests."""
