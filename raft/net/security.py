"""The security of listeners and of outgoing connections: TLS, SASL, or both.

    Listener(handle, security=ListenerSecurity(tls=contexts, sasl=mechanisms))

    with outgoing(OutgoingSecurity(tls=contexts, sasl=credentials)):
        connection = await connect(host, port)      # and whatever this task starts

All connections that one node, or one command, opens lead to listeners of the same kind, so their
security belongs to the task that starts the node or the command. It is a context variable: tasks
and callbacks inherit it, and two nodes in one process (tests, `esker dev`) keep theirs apart.

Source: docs/design/security.md#transport.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from raft.net.certificates import TlsContexts
from raft.net.sasl import Credentials, ServerMechanisms

PLAINTEXT: Final = "PLAINTEXT"
SSL: Final = "SSL"
SASL_PLAINTEXT: Final = "SASL_PLAINTEXT"
SASL_SSL: Final = "SASL_SSL"
PROTOCOLS: Final = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)
"""Kafka's security protocols; the number of each is its index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSecurity:
    """The security of one listener; without both parts it is PLAINTEXT."""

    tls: TlsContexts | None = None
    sasl: ServerMechanisms | None = None
    session_lifetime_ms: int = 0  # connections.max.reauth.ms; 0: SASL sessions do not end


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingSecurity:
    """The security of the connections that a node or a command opens."""

    tls: TlsContexts | None = None
    sasl: Credentials | None = None


_OUTGOING: ContextVar[OutgoingSecurity | None] = ContextVar("outgoing_security", default=None)


def outgoing_security() -> OutgoingSecurity | None:
    """Return the security of connections that the current task opens, or None for PLAINTEXT."""
    return _OUTGOING.get()


def use_outgoing(security: OutgoingSecurity | None) -> None:
    """Set the security of the connections that this task, and all that it starts, open."""
    _OUTGOING.set(security)


@contextmanager
def outgoing(security: OutgoingSecurity | None) -> Iterator[None]:
    """Use a security for the connections that the body, and all that it starts, open."""
    token = _OUTGOING.set(security)
    try:
        yield
    finally:
        _OUTGOING.reset(token)
