"""A SASL gate and a connection without a socket: what frames do to both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from raft.net.authentication import SaslGate
from raft.net.connection import Reply
from raft.net.header import RequestKind, request_header
from raft.net.principal import ANONYMOUS
from raft.net.sasl import ServerMechanisms
from raft.net.scram import SHA_256, ScramClient, ScramCredential
from records.codec import decode_message, encode_message
from records.rpc import API
from records.rpc.base import Request

USER: Final = "alice"
PASSWORD: Final = "secret"
SALT: Final = b"salt-of-a-user"
METADATA_KEY: Final = 3
_VERIFIER: Final = SHA_256.credential(SHA_256.salt_password(PASSWORD, SALT, 4096), SALT, 4096)


def find(user: str, mechanism: str) -> ScramCredential | None:
    return _VERIFIER if (user, mechanism) == (USER, "SCRAM-SHA-256") else None


def frame_of(request: Request, version: int) -> bytes:
    """The frame of a request, without its length."""
    schema = request.schema()
    first = schema.flexible.first if schema.flexible.first <= schema.flexible.last else None
    kind = RequestKind.of(schema.key, version, first)
    return request_header(kind, 7, "fuzz") + encode_message(request, version)


class Connection:
    """The part of a `ServerConnection` that a gate uses."""

    def __init__(self) -> None:
        self.principal = ANONYMOUS
        self.authentication: Any = None
        self.closed = False
        self.close_reason: Any = None
        self.allowed: int | None = None
        self.sent: list[bytes | None] = []

    def allow_frames(self, size: int) -> None:
        self.allowed = size

    def close(self, reason: Any = None, detail: str = "") -> None:
        self.closed, self.close_reason = True, (reason, detail)

    def _on_ready(self, reply: Reply) -> None:
        self.sent.append(_joined(reply._payload))


class World:
    """One connection behind a gate; `now` is its clock."""

    def __init__(
        self,
        lifetime_ms: int = 0,
        enabled: tuple[str, ...] = ("PLAIN", "SCRAM-SHA-256"),
        gate: type[SaslGate] = SaslGate,
        new_mechanisms: Callable[..., ServerMechanisms] = ServerMechanisms,
    ) -> None:
        self.now = 0.0
        self.handled: list[int] = []  # api keys of requests that reached the handler
        self.connection = Connection()
        self.gate = gate(
            new_mechanisms(enabled=enabled, plain_users={USER: PASSWORD}, find_credential=find),
            self._handle,
            name="test",
            max_frame_bytes=1_000_000,
            lifetime_ms=lifetime_ms,
            clock=lambda: self.now,
            call_later=lambda _, then: then(),
        )

    def _handle(self, connection: Any, frame: Any) -> bytes:  # noqa: ARG002 (a handler's)
        self.handled.append(int.from_bytes(frame[:2], "big"))
        return b"handled"

    def send(self, frame: bytes) -> bytes | None:
        """The answer to a frame, now or later."""
        answer = self.gate.handle(self.connection, frame)
        if isinstance(answer, Reply):
            return self.connection.sent[-1]
        return _joined(answer)

    def ask(self, request: Request, version: int) -> Any:
        """The decoded answer to a request."""
        answer = self.send(frame_of(request, version))
        assert answer is not None
        key = request.schema().key
        flexible = (key, version) == (36, 2)
        return decode_message(API[key].response, answer[5 if flexible else 4 :], version)


def scram_first() -> tuple[ScramClient, bytes]:
    client = ScramClient(SHA_256, USER, PASSWORD)
    return client, client.first()


def _joined(payload: Any) -> bytes | None:
    if payload is None:
        return None
    return b"".join(payload) if isinstance(payload, tuple | list) else bytes(payload)
