"""The security of listeners and of outgoing connections: TLS, SASL, or both.

    Listener(handle, security=ListenerSecurity(tls=contexts, sasl=mechanisms))

    with outgoing(OutgoingSecurity(tls=contexts, sasl=credentials)):
        connection = await connect(host, port)      # and all others of this process

All connections that one process opens, a node or a command, lead to listeners of the same kind. So
their security is one value of the process, which `connect` alone reads. (A context variable would
not do: callbacks that a disk thread posts to the loop run in the thread's context.)

The trap: two `with` blocks that overlap, in tasks or threads, leave the first security behind. A
part of a process with a security of its own gives that to `connect`.

Source: docs/design/security.md#transport.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from raft.net.certificates import TlsContexts
from raft.net.sasl import Credentials, ServerMechanisms, TokenCredentials

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
    sasl: Credentials | TokenCredentials | None = None
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The client properties that it was made of, for connections of other processes."""


_of_process: list[OutgoingSecurity | None] = [None]


def outgoing_security() -> OutgoingSecurity | None:
    """Return the security of the connections that this process opens, or None for PLAINTEXT."""
    return _of_process[0]


def use_outgoing(security: OutgoingSecurity | None) -> None:
    """Set the security of the connections that this process opens from now on."""
    _of_process[0] = security


@contextmanager
def outgoing(security: OutgoingSecurity | None) -> Iterator[None]:
    """Use this security for connections that the process opens in a `with` block."""
    before = outgoing_security()
    use_outgoing(security)
    try:
        yield
    finally:
        use_outgoing(before)
