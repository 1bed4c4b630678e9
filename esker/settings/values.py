"""Parses the text of settings: numbers, words, endpoints, voters.

Each raises ValueError with a sentence that names what is wrong; `esker.settings.config` adds the
key.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from coordinator.controller.config_defs import ConfigDef
from raft.net.identity import canonical_address
from raft.net.limits import UNLIMITED
from raft.net.security import PROTOCOLS
from records.object_keys import check_key
from records.types import NodeId

T = TypeVar("T")

MEBIBYTE: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a listener: a host name or address, and a port (0 to 65535)."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def integer(least: int, most: int) -> Callable[[str], int]:
    """Return a parser of settings that accepts whole numbers between two inclusive bounds."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a whole number") from None
        if not least <= value <= most:
            raise ValueError(f"{value} is not between {least} and {most}")
        return value

    return parse


def checked(definition: ConfigDef, convert: Callable[[str], T]) -> Callable[[str], T]:
    """Return a parser that also checks a setting's text against the controller's definition."""

    def parse(text: str) -> T:
        wrong = definition.check(text)
        if wrong is not None:
            raise ValueError(f"{text[:80]!r}: {wrong}")
        return convert(text)

    return parse


def boolean(text: str) -> bool:
    """Parse the text `true` or `false` of a setting."""
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def words(text: str) -> tuple[str, ...]:
    """Parse a setting's comma-separated list into its words."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def parse_endpoint(text: str) -> Endpoint:
    """Parse HOST:PORT, with an IPv6 address in brackets.

    >>> parse_endpoint("[::1]:9093")
    Endpoint(host='::1', port=9093)
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or len(port) > 5 or int(port) > 65535:
        raise ValueError(f"{text!r} is not HOST:PORT")
    if "/" in host:
        raise ValueError(f"{text!r} is not HOST:PORT: it names a protocol, too")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: an IPv6 address stands in brackets")
    return Endpoint(host, int(port))


def listeners(text: str) -> dict[str, Endpoint]:
    """Parse a comma-separated list of `NAME://HOST:PORT` listeners."""
    found: dict[str, Endpoint] = {}
    for part in words(text):
        name, separator, address = part.partition("://")
        if not separator or not name:
            raise ValueError(f"{part!r} is not NAME://HOST:PORT")
        if name in found:
            raise ValueError(f"listener {name} stands twice")
        found[name] = parse_endpoint(address)
    return found


def connections_by_address(text: str) -> dict[str, int]:
    """Parse a comma-separated list of `ADDRESS:COUNT`; a host name is no address.

    >>> connections_by_address("10.0.0.7:5, ::1:100")
    {'10.0.0.7': 5, '::1': 100}
    """
    found: dict[str, int] = {}
    for part in words(text):
        address, _, count = part.rpartition(":")
        try:
            canonical = str(ipaddress.ip_address(canonical_address(address)))
        except ValueError:
            raise ValueError(f"{part!r} is not ADDRESS:COUNT") from None
        if canonical in found:
            raise ValueError(f"{address} stands twice")
        found[canonical] = integer(0, UNLIMITED)(count)
    return found


node_id_of = integer(0, 2**31 - 1)


def voters_of(text: str) -> dict[NodeId, Endpoint]:
    """Parse a comma-separated list of voters, each written `ID@HOST:PORT`."""
    voters: dict[NodeId, Endpoint] = {}
    for part in words(text):
        node, at, address = part.partition("@")
        if not at or not node.isdecimal():
            raise ValueError(f"{part!r} is not ID@HOST:PORT")
        node_id = NodeId(node_id_of(node))
        if node_id in voters:
            raise ValueError(f"voter {node} stands twice")
        endpoint = parse_endpoint(address)
        if is_wildcard(endpoint.host) or endpoint.port == 0:
            raise ValueError(f"{part!r}: others cannot connect to {endpoint}")
        voters[node_id] = endpoint
    if not voters:
        raise ValueError("no voters")
    return voters


def protocol_map(text: str) -> dict[str, str]:
    """Parse a comma-separated list of `NAME:PROTOCOL` into a mapping."""
    pairs: dict[str, str] = {}
    for part in words(text):
        name, _, protocol = part.partition(":")
        if protocol not in PROTOCOLS:
            raise ValueError(f"{part!r}: no protocol of {', '.join(PROTOCOLS)}")
        pairs[name] = protocol
    return pairs


def is_wildcard(host: str) -> bool:
    """Return whether a host name or address stands for all addresses of this machine."""
    try:
        return host == "" or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is reachable only from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


MILLISECONDS = integer(1, 2**31 - 1)


def key_prefix(text: str) -> str:
    """Parse a prefix of object keys that is not empty. Raises ValueError."""
    try:
        check_key(text)
    except ValueError:
        raise ValueError(
            "is one or more names of letters, digits and `_=.,@+-`, joined by slashes"
        ) from None
    return text


def ratio(text: str) -> float:
    """Parse the text of a setting as a number between 0 and 1."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
    if not 0 <= value <= 1:  # not a number is no ratio either
        raise ValueError(f"{text} is not between 0 and 1")
    return value


def one_of(*words: str) -> Callable[[str], str]:
    """Return a parser of settings that accepts only these words."""

    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"{text!r} is none of {', '.join(words)}")
        return text

    return parse
