"""SASL mechanisms of servers and clients, without input or output.

    exchange = mechanisms.begin("SCRAM-SHA-512")      # the server's
    outcome = exchange.step(bytes_of_the_client)      # Challenge | Authenticated, or SaslError

    exchange = client_exchange(credentials)           # the client's
    data = exchange.step(None)                        # then exchange.step(bytes_of_the_server)

PLAIN's passwords are those of the listener's own settings (`user_NAME="..."` of its JAAS line, as
in Kafka); SCRAM's verifiers are in the cluster log; OAUTHBEARER's tokens are signed by others.

Source: RFC 4616 (PLAIN), RFC 5802 (SCRAM), RFC 7628 (OAUTHBEARER); KIP-43, KIP-84, KIP-255.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from raft.net.oauthbearer import (
    INVALID_TOKEN,
    OAUTHBEARER,
    CheckToken,
    OauthError,
    TokenError,
    ValidToken,
    parse_first,
)
from raft.net.scram import SCRAM, ScramClient, ScramCredential, ScramError, ScramServer

PLAIN: Final = "PLAIN"
PASSWORD_MECHANISMS: Final = (PLAIN, *SCRAM)
MECHANISMS: Final = (*PASSWORD_MECHANISMS, OAUTHBEARER)
"""The mechanisms here, of clients and of servers; GSSAPI is not among them."""

MAX_NAME: Final = 255  # characters of a user name: more cannot be a principal's here


class SaslError(Exception):
    """The authentication has failed; the message may be shown to the client, the reason not."""

    def __init__(self, message: str, *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message


@dataclass(frozen=True, slots=True)
class Challenge:
    """The server's next bytes; the client's answer to them is awaited."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Authenticated:
    """The identity is validated; `data` are the server's last bytes."""

    user: str
    data: bytes
    lifetime_ms: int | None = None  # of the credential; None: it does not end


class ServerExchange(Protocol):
    """The server's side of one authentication."""

    def step(self, data: bytes) -> Challenge | Authenticated:
        """Process the client's next SASL bytes, and return the server's. Raises SaslError."""


FindCredential = Callable[[str, str], ScramCredential | None]
"""(user, mechanism) -> the verifier, or None for an unknown user."""


@dataclass(frozen=True, slots=True)
class ServerMechanisms:
    """The mechanisms that one listener offers."""

    enabled: Sequence[str]
    plain_users: Mapping[str, str] = field(default_factory=dict, repr=False)
    find_credential: FindCredential = lambda _user, _mechanism: None
    check_token: CheckToken = lambda _token: _refuse_token()
    unknown_salt_key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def begin(self, mechanism: str) -> ServerExchange:
        """Begin a SASL exchange of an enabled mechanism."""
        assert mechanism in self.enabled, f"{mechanism} is not enabled"
        if mechanism == PLAIN:
            return _PlainServer(self.plain_users)
        if mechanism == OAUTHBEARER:
            return _OauthServer(self.check_token)
        return _ScramExchange(mechanism, self.find_credential, self.unknown_salt_key)


def _refuse_token() -> ValidToken:
    raise TokenError("no keys are configured")


class _PlainServer:
    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users

    def step(self, data: bytes) -> Authenticated:
        """Verify the user and password in a PLAIN message. Raises SaslError."""
        parts = bytes(data).split(b"\0")
        failed = "Authentication failed: Invalid username or password"
        if len(parts) != 3 or not parts[1] or not parts[2] or len(parts[1]) > 4 * MAX_NAME:
            raise SaslError("Invalid SASL/PLAIN response: expected 3 tokens, user and password")
        try:
            authzid, user, password = (part.decode() for part in parts)
        except UnicodeDecodeError:
            raise SaslError(failed) from None
        # An unknown user's password is compared, too: the time does not say which users exist.
        expected = self._users.get(user, "")
        matches = hmac.compare_digest(password.encode(), expected.encode())
        if not matches or not expected:
            raise SaslError(failed)
        if authzid and authzid != user:
            raise SaslError("Authentication failed: Client requested an authorization id that is "
                            "different from username")  # fmt: skip
        return Authenticated(user, b"")


class _OauthServer:
    def __init__(self, check: CheckToken) -> None:
        self._check = check
        self._refusal: str | None = None

    def step(self, data: bytes) -> Challenge | Authenticated:
        """Validate the token in the client's first message. Raises SaslError.

        A refused token is first answered with an error in JSON, and then, whatever the client
        says to that, the authentication fails (RFC 7628, 3.2.3).
        """
        if self._refusal is not None:
            raise SaslError(INVALID_TOKEN, reason=f"the token is refused: {self._refusal}")
        try:
            first = parse_first(data)
            valid = self._check(first.token)
        except OauthError as error:
            raise SaslError(f"Authentication failed: {error}") from None
        except TokenError as error:
            self._refusal = str(error)
            return Challenge(INVALID_TOKEN.encode())
        if first.authorization_id not in ("", valid.user):
            raise SaslError("Authentication failed: Client requested an authorization id that is "
                            "different from the token's principal name")  # fmt: skip
        return Authenticated(valid.user, b"", valid.lifetime_ms)


class _ScramExchange:
    def __init__(self, mechanism: str, find: FindCredential, unknown_salt_key: bytes) -> None:
        self._mechanism = mechanism
        self._server = ScramServer(
            SCRAM[mechanism],
            lambda user: find(user, mechanism),
            unknown_salt_key=unknown_salt_key,
        )
        self._begun = False

    def step(self, data: bytes) -> Challenge | Authenticated:
        """Process the client's first or final SCRAM message. Raises SaslError."""
        try:
            if not self._begun:
                self._begun = True
                return Challenge(self._server.first(data))
            return Authenticated(self._server.user, self._server.final(data))
        except ScramError:
            raise SaslError(
                "Authentication failed during authentication due to invalid credentials with "
                f"SASL mechanism {self._mechanism}"
            ) from None


# --- the client's side --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Credentials:
    """The user that a client authenticates as."""

    mechanism: str
    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class TokenCredentials:
    """The tokens that a client authenticates with.

    `get_token` may block, and raises `raft.net.token_source.TokenUnavailableError`.
    """

    get_token: Callable[[], str] = field(repr=False)
    mechanism: str = OAUTHBEARER


class ClientExchange(Protocol):
    """The client's side of one authentication."""

    def step(self, data: bytes | None) -> bytes | None:
        """Process the server's SASL bytes (None at first); return the client's, None at the end.

        Raises SaslError if the server does not prove its own identity.
        """


def client_exchange(credentials: Credentials) -> ClientExchange:
    """Begin the client side of a SASL authentication."""
    if credentials.mechanism == PLAIN:
        return _PlainClient(credentials)
    return _ScramClientExchange(credentials)


class TokenExchange:
    """The client side of OAUTHBEARER with one token."""

    def __init__(self, token: str) -> None:
        self._token = token

    def step(self, data: bytes | None) -> bytes | None:
        """Return the token first; then None, or the answer to a refusal (RFC 7628, 3.2.3)."""
        if data is None:
            return f"n,,\x01auth=Bearer {self._token}\x01\x01".encode()
        return b"\x01" if data else None


class _PlainClient:
    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def step(self, data: bytes | None) -> bytes | None:
        """Return the PLAIN message (user and password) in the first step, and None in the next."""
        if data is not None:
            return None
        return f"\0{self._credentials.user}\0{self._credentials.password}".encode()


class _ScramClientExchange:
    def __init__(self, credentials: Credentials) -> None:
        self._client = ScramClient(
            SCRAM[credentials.mechanism], credentials.user, credentials.password
        )
        self._steps = 0

    def step(self, data: bytes | None) -> bytes | None:
        """Return the SCRAM client's first message, then its proof, then None. Raises SaslError."""
        self._steps += 1
        try:
            if self._steps == 1 or data is None:
                return self._client.first()
            if self._steps == 2:
                return self._client.final(data)
            self._client.verify(data)
            return None
        except ScramError as error:
            raise SaslError(str(error)) from None
