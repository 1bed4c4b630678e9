"""OAUTHBEARER's messages: what the client sends first, and how a token is refused.

    first = parse_first(b"n,,\x01auth=Bearer TOKEN\x01\x01")     # FirstMessage, or OauthError

Which tokens are valid is decided by a `CheckToken`; `raft.net.tokens` has the one of listeners.

Source: RFC 7628, sections 3.1 and 3.2.2; KIP-255.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

OAUTHBEARER: Final = "OAUTHBEARER"
MAX_MESSAGE: Final = 65_536  # bytes of a client's message; longer ones are not parsed
INVALID_TOKEN: Final = '{"status":"invalid_token"}'
"""The answer to every refused token; it does not say why (RFC 7628, 3.2.2)."""

_FIRST: Final = re.compile(rb"n,(?:a=([^,\x00-\x1f]*))?,\x01(.*)\x01", re.DOTALL)
_PAIR: Final = re.compile(rb"([A-Za-z]+)=([\x20-\x7e\t\r\n]*)")
_BEARER: Final = re.compile(rb"bearer +([A-Za-z0-9_.-]+)", re.IGNORECASE)


class OauthError(Exception):
    """The client's first message is malformed."""


class TokenError(Exception):
    """A token is refused; the text has the reason, for the log of this side alone."""


@dataclass(frozen=True, slots=True)
class ValidToken:
    """The identity that a valid token proves, and for how long."""

    user: str
    lifetime_ms: int  # from now on; at least 1


CheckToken = Callable[[str], ValidToken]
"""Validates a token. Raises TokenError."""


@dataclass(frozen=True, slots=True)
class FirstMessage:
    """A client's first message."""

    authorization_id: str  # empty: the token's own
    token: str = field(repr=False)


def parse_first(data: bytes) -> FirstMessage:
    """Parse a client's first message. Raises OauthError."""
    if len(data) > MAX_MESSAGE:
        raise OauthError(f"a message of {len(data)} bytes, at most {MAX_MESSAGE} are allowed")
    found = _FIRST.fullmatch(data)
    if found is None:
        raise OauthError("Invalid OAUTHBEARER client first message")
    pairs: dict[bytes, bytes] = {}
    for part in found[2].split(b"\x01")[:-1]:
        pair = _PAIR.fullmatch(part)
        if pair is None or pair[1] in pairs:
            raise OauthError("Invalid OAUTHBEARER client first message: a malformed extension")
        pairs[pair[1]] = pair[2]
    bearer = _BEARER.fullmatch(pairs.get(b"auth", b""))
    if bearer is None or not found[2].endswith(b"\x01"):
        raise OauthError("Invalid OAUTHBEARER client first message: 'auth' has no bearer token")
    try:
        name = (found[1] or b"").decode()
    except UnicodeDecodeError:
        raise OauthError("Invalid OAUTHBEARER client first message: not UTF-8") from None
    return FirstMessage(name.replace("=2C", ",").replace("=3D", "="), bearer[1].decode())
