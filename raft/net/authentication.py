"""Authenticates the connections of a SASL listener before any of their requests is handled.

    gate = SaslGate(mechanisms, handle, limits=limits, lifetime_ms=0)
    ServerConnection(shared, gate.handle)

Until an identity is validated a connection may send ApiVersions, SaslHandshake and
SaslAuthenticate, and nothing else; version 0 of SaslHandshake is followed by bare SASL bytes
without a request header. A finished exchange sets `connection.principal`. SaslHandshake on an
authenticated connection begins a re-authentication, which must name the same user by the same
mechanism.

```text
NEW -- ApiVersions --> NEW
NEW -- SaslHandshake 0 --> BARE        NEW -- SaslHandshake 1 --> WRAPPED
BARE, WRAPPED -- bytes of the client --> BARE, WRAPPED | DONE | closed
DONE -- SaslHandshake --> WRAPPED, as re-authentication
```

A session ends with the credential (a token's), or after `lifetime_ms`, whichever comes first. A
refusal is answered after `FAILURE_DELAY_S`, and then the connection is closed.

Source: KIP-43, KIP-152, KIP-368 (re-authentication); upstream's SaslServerAuthenticator;
docs/design/security.md#sasl.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from raft.net.connection import Answer, Handler, Reply, ServerConnection
from raft.net.errors import BadHeaderError, NetError, Reason
from raft.net.frames import Frame
from raft.net.handlers import Served, payload
from raft.net.header import API_VERSIONS_KEY, RequestHeader, parse_request_header
from raft.net.principal import USER, Principal
from raft.net.sasl import (
    Authenticated,
    Challenge,
    SaslError,
    ServerExchange,
    ServerMechanisms,
)
from records.codec import decode_message
from records.kafka_errors import ErrorCode
from records.rpc.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

log = logging.getLogger("raft.net")

HANDSHAKE_KEY: Final = 17
AUTHENTICATE_KEY: Final = 36
FIRST_FLEXIBLE: Final = {API_VERSIONS_KEY: 3, HANDSHAKE_KEY: None, AUTHENTICATE_KEY: 2}
HIGHEST: Final = {HANDSHAKE_KEY: 1, AUTHENTICATE_KEY: 2}
MAX_API_VERSIONS: Final = 16  # requests of one connection before its authentication
FAILURE_DELAY_S: Final = 0.1  # connection.failed.authentication.delay.ms


class State(Enum):
    """What a connection of a SASL listener may send next."""

    NEW = auto()
    BARE = auto()  # SASL bytes without a header
    WRAPPED = auto()  # SaslAuthenticate
    DONE = auto()
    FAILED = auto()


class Authentication:
    """The SASL state of one connection."""

    __slots__ = ("asked_versions", "exchange", "expires_at", "mechanism", "state", "was_done")

    def __init__(self) -> None:
        self.state = State.NEW
        self.mechanism = ""
        self.exchange: ServerExchange | None = None
        self.expires_at: float | None = None  # loop time; None: the session does not end
        self.asked_versions = 0
        self.was_done = False  # a re-authentication


class SaslGate:
    """The authentication of one listener's connections."""

    def __init__(
        self,
        mechanisms: ServerMechanisms,
        handle: Handler,
        *,
        name: str,
        max_frame_bytes: int,
        lifetime_ms: int = 0,
        clock: Callable[[], float] | None = None,
        call_later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        """Create the SASL gate of a listener, which serves only authenticated connections.

        Args:  handle: handles the requests of authenticated connections.
               max_frame_bytes: the longest frame of an authenticated connection.
               lifetime_ms: connections.max.reauth.ms; 0: sessions do not end.
               clock, call_later: those of the running loop by default.
        """
        self.outcomes: Counter[tuple[str, bool]] = Counter()  # by mechanism, and whether it passed
        self._mechanisms = mechanisms
        self._handle = handle
        self._name = name
        self._max_frame_bytes = max_frame_bytes
        self._lifetime_ms = lifetime_ms
        self._clock = clock
        self._call_later = call_later

    def handle(self, connection: ServerConnection, frame: Frame) -> Answer:
        """Answer an authentication frame of a connection, or serve its authenticated request.

        Raises:  NetError or RecordError, which closes the connection.
        """
        session = connection.authentication
        if session is None:
            session = connection.authentication = Authentication()
        assert isinstance(session, Authentication), f"{session}"
        if session.state is State.DONE:
            key = int.from_bytes(frame[:2], "big")
            if key not in HIGHEST:
                if session.expires_at is not None and self._now() > session.expires_at:
                    raise NetError(Reason.EXPIRED, f"the session of {connection.principal} is over")
                return self._handle(connection, frame)
        if session.state is State.FAILED:
            return None  # what follows a refusal is not read
        if session.state is State.BARE:
            return self._step(connection, session, None, bytes(frame))
        header = parse_request_header(frame, FIRST_FLEXIBLE)
        body = frame[header.body_at :]
        if header.api_key == API_VERSIONS_KEY:
            return self._versions(connection, session, frame)
        if header.api_version > HIGHEST[header.api_key]:
            raise BadHeaderError(f"api key {header.api_key} has no version {header.api_version}")
        if header.api_key == HANDSHAKE_KEY:
            return self._begin(connection, session, header, body)
        if session.state is not State.WRAPPED:
            return payload(header, refuse_authentication())
        request = decode_message(SaslAuthenticateRequest, body, header.api_version)
        return self._step(connection, session, header, bytes(request.auth_bytes))

    def _now(self) -> float:
        return asyncio.get_running_loop().time() if self._clock is None else self._clock()

    def _versions(
        self, connection: ServerConnection, session: Authentication, frame: Frame
    ) -> Answer:
        session.asked_versions += 1
        if session.state is not State.NEW or session.asked_versions > MAX_API_VERSIONS:
            raise BadHeaderError("ApiVersions in the middle of an authentication")
        return self._handle(connection, frame)

    def _begin(
        self,
        connection: ServerConnection,
        session: Authentication,
        header: RequestHeader,
        body: Frame,
    ) -> Answer:
        """Begin a SASL exchange of the requested mechanism, or refuse an unknown mechanism."""
        request = decode_message(SaslHandshakeRequest, body, header.api_version)
        enabled = tuple(self._mechanisms.enabled)
        again = session.state is State.DONE
        if session.state is State.WRAPPED:
            code = ErrorCode.ILLEGAL_SASL_STATE
        elif request.mechanism not in enabled or (again and request.mechanism != session.mechanism):
            code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
        else:
            session.was_done = again
            session.mechanism = request.mechanism
            session.exchange = self._mechanisms.begin(request.mechanism)
            wrapped = header.api_version > 0
            session.state = State.WRAPPED if wrapped else State.BARE
            return payload(header, SaslHandshakeResponse(mechanisms=enabled))
        answer = SaslHandshakeResponse(error_code=code, mechanisms=enabled)
        detail = f"SASL mechanism {request.mechanism[:40]!r}: {code.name}"
        return self._refuse(connection, session, payload(header, answer), detail)

    def _step(
        self,
        connection: ServerConnection,
        session: Authentication,
        header: RequestHeader | None,
        data: bytes,
    ) -> Answer:
        """Pass the client's SASL bytes to the exchange, and answer with the server's bytes."""
        assert session.exchange is not None, "bytes of no exchange"
        try:
            outcome = session.exchange.step(data)
            if isinstance(outcome, Authenticated):
                self._check_same(connection, session, outcome)
        except SaslError as error:
            self.outcomes[session.mechanism, False] += 1
            answer: Answer = None
            if header is not None:
                answer = payload(
                    header,
                    SaslAuthenticateResponse(
                        error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
                        error_message=str(error),
                        auth_bytes=b"",
                    ),
                )
            return self._refuse(connection, session, answer, f"{session.mechanism}: {error.reason}")
        lifetime_ms = 0
        if isinstance(outcome, Authenticated):
            lifetime_ms = self._finish(connection, session, outcome)
        if header is None:
            return outcome.data
        return payload(
            header,
            SaslAuthenticateResponse(
                error_message=None, auth_bytes=outcome.data, session_lifetime_ms=lifetime_ms
            ),
        )

    def _check_same(
        self, connection: ServerConnection, session: Authentication, outcome: Authenticated
    ) -> None:
        if session.was_done and connection.principal != Principal(USER, outcome.user):
            raise SaslError("Cannot change principals during re-authentication")

    def _finish(
        self, connection: ServerConnection, session: Authentication, outcome: Authenticated
    ) -> int:
        """Set the connection's principal; return the session's lifetime in ms, 0 if unlimited."""
        self.outcomes[session.mechanism, True] += 1
        session.state, session.exchange = State.DONE, None
        connection.principal = Principal(USER, outcome.user)
        connection.allow_frames(self._max_frame_bytes)
        lifetime_ms = min(self._lifetime_ms or math.inf, outcome.lifetime_ms or math.inf)
        if lifetime_ms == math.inf:
            session.expires_at = None
            return 0
        session.expires_at = self._now() + lifetime_ms / 1_000
        return int(lifetime_ms)

    def _refuse(
        self, connection: ServerConnection, session: Authentication, answer: Answer, detail: str
    ) -> Answer:
        """Answer an error after a pause, which slows password guessing; close the connection."""
        session.state, session.exchange = State.FAILED, None
        reply = Reply(connection)

        def send() -> None:
            if not connection.closed:
                reply.send(answer)  # type: ignore[arg-type]  # bytes, buffers or None
                connection.close(Reason.AUTHENTICATION_FAILED, detail)

        call_later = self._call_later or asyncio.get_running_loop().call_later
        call_later(FAILURE_DELAY_S, send)
        return reply


# --- where there is nothing to authenticate -----------------------------------------------------


def refuse_handshake() -> SaslHandshakeResponse:
    """Refuse a SaslHandshake on a listener without SASL or after the authentication."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=())


def refuse_authentication() -> SaslAuthenticateResponse:
    """Refuse a SaslAuthenticate on a listener without SASL or after the authentication."""
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
        auth_bytes=b"",
    )


def announced() -> dict[int, Served]:
    """Return handlers that list the SASL APIs in ApiVersions and refuse misplaced SASL requests."""
    return {
        HANDSHAKE_KEY: Served(0, 1, lambda _c, header, _b: payload(header, refuse_handshake())),
        AUTHENTICATE_KEY: Served(
            0, 2, lambda _c, header, _b: payload(header, refuse_authentication())
        ),
    }


__all__ = ["Authentication", "Challenge", "SaslGate", "State", "announced"]
