"""SCRAM-SHA-256 and SCRAM-SHA-512: both sides of the exchange, without input or output.

    client = ScramClient(SHA_512, "alice", "secret")         server = ScramServer(SHA_512, find)
    client.first()                      ->  server.first(...)
    client.final(...)                   <-
                                        ->  server.final(...)
    client.verify(...)                  <-

A server has a *verifier* (`ScramCredential`), never a password. An unknown user's exchange goes on
with an invented salt, the same for each attempt, and fails at its end: the answers do not say which
users exist.

Source: RFC 5802, RFC 7677; KIP-84 (Kafka's mechanisms and their least iterations). Channel binding
is not offered, as in Kafka.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

MIN_ITERATIONS: Final = 4_096
MAX_ITERATIONS: Final = 16_384
MAX_MESSAGE: Final = 4_096  # bytes of a client's message
_GS2_HEADERS: Final = ("n,", "y,")  # of a client that asks for no channel binding


class ScramError(Exception):
    """The other side's message is malformed, or does not prove that it knows the password."""


@dataclass(frozen=True, slots=True)
class ScramHash:
    """A SCRAM mechanism: its name, Kafka's number of it, and its hash."""

    mechanism: str
    number: int
    algorithm: str

    def hmac(self, key: bytes, data: bytes) -> bytes:
        """Return the HMAC of `data` under a key."""
        return hmac.digest(key, data, self.algorithm)

    def hash(self, data: bytes) -> bytes:
        """Return the hash of `data`."""
        return hashlib.new(self.algorithm, data).digest()

    @property
    def size(self) -> int:
        """Return the length of a digest in bytes."""
        return hashlib.new(self.algorithm).digest_size

    def salt_password(self, password: str, salt: bytes, iterations: int) -> bytes:
        """Return the salted password, whose computation takes milliseconds of CPU."""
        return hashlib.pbkdf2_hmac(self.algorithm, password.encode(), salt, iterations)

    def credential(self, salted_password: bytes, salt: bytes, iterations: int) -> ScramCredential:
        """Return the SCRAM verifier that a server stores for a salted password."""
        client_key = self.hmac(salted_password, b"Client Key")
        return ScramCredential(
            salt=salt,
            iterations=iterations,
            stored_key=self.hash(client_key),
            server_key=self.hmac(salted_password, b"Server Key"),
        )


SHA_256: Final = ScramHash("SCRAM-SHA-256", 1, "sha256")
SHA_512: Final = ScramHash("SCRAM-SHA-512", 2, "sha512")
SCRAM: Final = {one.mechanism: one for one in (SHA_256, SHA_512)}
"""The SCRAM mechanisms by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredential:
    """The verifier of one user's password for one mechanism."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


class ScramServer:
    """The server's side of one exchange: `first`, then `final`."""

    def __init__(
        self,
        scram: ScramHash,
        find: Callable[[str], ScramCredential | None],
        *,
        unknown_salt_key: bytes,
        nonce: Callable[[], str] = lambda: secrets.token_urlsafe(24),
    ) -> None:
        """Create the server side of a SCRAM exchange.

        Args:  find: returns a user's verifier, or None for an unknown user.
               unknown_salt_key: the secret from which an unknown user's salt is invented.
        """
        self.user = ""  # known after `first`, proven after `final`
        self._scram = scram
        self._find = find
        self._unknown_salt_key = unknown_salt_key
        self._make_nonce = nonce
        self._credential: ScramCredential | None = None
        self._messages = ""  # of the exchange so far, as both sides sign it
        self._nonce = ""
        self._gs2 = ""

    def first(self, message: bytes) -> bytes:
        """Process the client's first message; return the server's first one. Raises ScramError."""
        text = _text(message)
        header = next((h for h in _GS2_HEADERS if text.startswith(h)), None)
        if header is None:
            raise ScramError("channel binding is not supported")
        authzid, comma, bare = text[len(header) :].partition(",")
        if not comma:
            raise ScramError("the client's first message has no user")
        attributes = _attributes(bare)
        if list(attributes)[:2] != ["n", "r"] or not attributes["n"] or not attributes["r"]:
            raise ScramError("the client's first message has no user and nonce")
        self.user = _unescape(attributes["n"])
        if authzid and authzid != f"a={attributes['n']}":
            raise ScramError("a client may not act for another user")
        self._gs2 = header + authzid + ","
        self._credential = self._find(self.user)
        salt, iterations = self._offer(self._credential)
        self._nonce = attributes["r"] + self._make_nonce()
        answer = f"r={self._nonce},s={_b64(salt)},i={iterations}"
        self._messages = f"{bare},{answer}"
        return answer.encode()

    def final(self, message: bytes) -> bytes:
        """Verify the client's proof, and return the server's signature. Raises ScramError."""
        text = _text(message)
        without_proof, comma, proof_text = text.rpartition(",p=")
        attributes = _attributes(without_proof)
        if not comma or list(attributes)[:2] != ["c", "r"]:
            raise ScramError("the client's final message is malformed")
        if _unb64(attributes["c"]) != self._gs2.encode():
            raise ScramError("the channel binding of the two messages differs")
        if attributes["r"] != self._nonce:
            raise ScramError("the nonce is not that of this exchange")
        proof, credential = _unb64(proof_text), self._credential
        signed = f"{self._messages},{without_proof}".encode()
        if credential is None or len(proof) != self._scram.size:
            raise ScramError("invalid credentials")
        signature = self._scram.hmac(credential.stored_key, signed)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        if not hmac.compare_digest(self._scram.hash(client_key), credential.stored_key):
            raise ScramError("invalid credentials")
        return b"v=" + _b64(self._scram.hmac(credential.server_key, signed)).encode()

    def _offer(self, credential: ScramCredential | None) -> tuple[bytes, int]:
        if credential is not None:
            return credential.salt, credential.iterations
        salt = hmac.digest(self._unknown_salt_key, self.user.encode(), "sha256")
        return salt[:24], MIN_ITERATIONS


class ScramClient:
    """The client's side of one exchange: `first`, `final`, then `verify`."""

    def __init__(
        self,
        scram: ScramHash,
        user: str,
        password: str,
        nonce: Callable[[], str] = lambda: secrets.token_urlsafe(24),
    ) -> None:
        self._scram = scram
        self._password = password
        self._nonce = nonce()
        self._bare = f"n={_escape(user)},r={self._nonce}"
        self._server_signature = b""

    def first(self) -> bytes:
        """Return the client's first message."""
        return f"n,,{self._bare}".encode()

    def final(self, message: bytes) -> bytes:
        """Return the client's proof for the server's first message. Raises ScramError."""
        text = _text(message)
        attributes = _attributes(text)
        if list(attributes)[:3] != ["r", "s", "i"]:
            raise ScramError("the server's first message is malformed")
        nonce, salt = attributes["r"], _unb64(attributes["s"])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ScramError("the server's nonce does not continue the client's")
        if not attributes["i"].isdecimal() or len(attributes["i"]) > 9:
            raise ScramError("the server's iterations are no number")
        iterations = int(attributes["i"])
        if not MIN_ITERATIONS <= iterations <= 1_000_000:  # more would be a denial of service
            raise ScramError(f"the server asks for {iterations} iterations")
        without_proof = f"c={_b64(b'n,,')},r={nonce}"
        signed = f"{self._bare},{text},{without_proof}".encode()
        salted = self._scram.salt_password(self._password, salt, iterations)
        client_key = self._scram.hmac(salted, b"Client Key")
        signature = self._scram.hmac(self._scram.hash(client_key), signed)
        self._server_signature = self._scram.hmac(self._scram.hmac(salted, b"Server Key"), signed)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        return f"{without_proof},p={_b64(proof)}".encode()

    def verify(self, message: bytes) -> None:
        """Check the server's signature, which proves the server's identity. Raises ScramError."""
        text = _text(message)
        if not text.startswith("v=") or not hmac.compare_digest(
            _unb64(text[2:].partition(",")[0]), self._server_signature
        ):
            raise ScramError("the server does not prove that it knows this user")


def _text(message: bytes) -> str:
    if len(message) > MAX_MESSAGE:
        raise ScramError(f"a message of {len(message)} bytes, at most {MAX_MESSAGE} are allowed")
    try:
        return bytes(message).decode()
    except UnicodeDecodeError:
        raise ScramError("a message that is not UTF-8") from None


def _attributes(text: str) -> dict[str, str]:
    """Split `a=..,b=..` into attributes. Raises ScramError for a malformed or repeated one."""
    found: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not equals or len(key) != 1 or key in found:
            raise ScramError("a malformed attribute")
        found[key] = value
    return found


def _escape(user: str) -> str:
    return user.replace("=", "=3D").replace(",", "=2C")


def _unescape(text: str) -> str:
    user = text.replace("=2C", ",").replace("=3D", "=")
    if _escape(user) != text:
        raise ScramError("a malformed user name")
    return user


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _unb64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ScramError("malformed base64") from None
