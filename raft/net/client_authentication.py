"""The client's side of SASL: authentication of a new connection, and again before its session ends.

A server says how long a session lasts: `connections.max.reauth.ms`, or until the client's
token expires. After 85 to 95 % of that time the client authenticates anew on the open
connection, by a new token if it has one. The share is random, so that a process's connections do
not do so all at once.

The trap: a server closes a connection on any other request in the middle of an exchange. So
requests are kept back meanwhile (`ClientConnection.hold`); those that were sent before are answered
first, as answers come in order.

Source: KIP-368; docs/design/security.md#sasl.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Final

from raft.net.errors import ConnectionLostError, Reason
from raft.net.header import RequestKind
from raft.net.sasl import (
    ClientExchange,
    Credentials,
    SaslError,
    TokenCredentials,
    TokenExchange,
    client_exchange,
)
from raft.net.token_source import TokenUnavailableError
from records.codec import decode_message, encode_message
from records.errors import RecordError
from records.rpc import security as rpc

if TYPE_CHECKING:
    from raft.net.client import ClientConnection

log = logging.getLogger("raft.net")

SASL_KEYS: Final = (17, 36)
RENEW_FROM, RENEW_TO = 0.85, 0.95  # of a session's lifetime, as in Kafka's clients
SHORTEST_S: Final = 1.0  # a shorter session is not renewed, but ends with its connection
TIMEOUT_S: Final = 10.0


class AuthenticationError(Exception):
    """The server refuses this client's credentials, or does not prove its own identity."""


async def authenticate(
    connection: ClientConnection, credentials: Credentials | TokenCredentials
) -> None:
    """Authenticate an open connection by SASL, and again before each session's end.

    Raises:  AuthenticationError; ConnectionLostError. The connection is closed.
    """
    try:
        lifetime_s = await _exchange(connection, await _begin(credentials))
    except TokenUnavailableError as error:
        connection.close()
        raise AuthenticationError(str(error)) from None
    except BaseException:
        connection.close()
        raise
    _renew_later(connection, credentials, lifetime_s)


def _renew_later(
    connection: ClientConnection, credentials: Credentials | TokenCredentials, lifetime_s: float
) -> None:
    """Renew the session of a connection when most of its lifetime is over (0: it has no end)."""
    if lifetime_s < SHORTEST_S or connection.closed:
        return
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + lifetime_s

    def begin() -> None:
        connection.renewal = loop.create_task(_renew(connection, credentials, ends_at))

    delay_s = lifetime_s * random.uniform(RENEW_FROM, RENEW_TO)
    connection.renewal = loop.call_later(delay_s, begin)


async def _renew(
    connection: ClientConnection, credentials: Credentials | TokenCredentials, ends_at: float
) -> None:
    """Authenticate an open connection again; `ends_at` is its session's end in loop time."""
    try:
        begun = await _begin(credentials)
    except TokenUnavailableError as error:
        log.warning("no re-authentication with %s: %s", connection, error)
        left_s = ends_at - asyncio.get_running_loop().time()
        return _renew_later(connection, credentials, left_s)
    connection.hold()
    try:
        async with asyncio.timeout(TIMEOUT_S):
            lifetime_s = await _exchange(connection, begun)
    except (AuthenticationError, TimeoutError) as error:
        log.warning("re-authentication with %s failed: %s", connection, error or "no answer")
        connection.fail(Reason.AUTHENTICATION_FAILED, f"re-authentication: {error}")
    except ConnectionLostError:
        pass  # its owner knows
    else:
        connection.release()
        _renew_later(connection, credentials, lifetime_s)


async def _begin(credentials: Credentials | TokenCredentials) -> tuple[str, str, ClientExchange]:
    """Return mechanism, what is authenticated, and its exchange. Raises TokenUnavailableError."""
    mechanism = credentials.mechanism
    if isinstance(credentials, Credentials):
        return mechanism, f"user {credentials.user}", client_exchange(credentials)
    return mechanism, "the token", TokenExchange(await asyncio.to_thread(credentials.get_token))


async def _exchange(connection: ClientConnection, begun: tuple[str, str, ClientExchange]) -> float:
    """Exchange SASL's messages; return the session's lifetime in seconds, 0 if it has no end.

    Raises:  AuthenticationError; ConnectionLostError.
    """
    mechanism, who, exchange = begun
    try:
        request = rpc.SaslHandshakeRequest(mechanism=mechanism)
        answer = decode_message(
            rpc.SaslHandshakeResponse,
            await connection.request(RequestKind.of(17, 1, None), encode_message(request, 1)),
            1,
        )
        if answer.error_code:
            offered = ", ".join(answer.mechanisms) or "none"
            raise AuthenticationError(
                f"the server does not take {mechanism}: its mechanisms are {offered}"
            )
        data, lifetime_ms = exchange.step(None), 0
        kind = RequestKind.of(36, 2, 2)
        while data is not None:
            body = encode_message(rpc.SaslAuthenticateRequest(auth_bytes=data), 2)
            response = decode_message(
                rpc.SaslAuthenticateResponse, await connection.request(kind, body), 2
            )
            if response.error_code:
                raise AuthenticationError(f"{who} is refused: {response.error_message}")
            data, lifetime_ms = (
                exchange.step(bytes(response.auth_bytes)),
                response.session_lifetime_ms,
            )
    except (RecordError, SaslError) as error:
        raise AuthenticationError(f"SASL with {connection}: {error}") from None
    return lifetime_ms / 1_000
