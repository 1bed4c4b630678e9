"""The identity of a connection's peer, as Kafka writes it: a type and a name.

Source: KIP-4 and KIP-11 (KafkaPrincipal).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Principal:
    """The type and name of a peer whose identity was validated, or `ANONYMOUS`."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


USER: Final = "User"
ANONYMOUS: Final = Principal(USER, "ANONYMOUS")
"""The principal of a connection without authentication."""


def parse_principal(text: str) -> Principal:
    """Parse a principal that is written TYPE:NAME. Raises ValueError.

    >>> parse_principal("User:CN=a:b")
    Principal(kind='User', name='CN=a:b')
    """
    kind, colon, name = text.partition(":")
    if not colon or not kind or not name:
        raise ValueError(f"{text[:80]!r} is not a principal as User:NAME")
    return Principal(kind, name)
