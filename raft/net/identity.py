"""Ids of connections, growing with time, and names of peers and hosts."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable
from itertools import count
from typing import Final

NODE_URI: Final = "esker:node:"
"""What the URI of a node begins with in its certificate; the node id follows."""

next_connection_id: Callable[[], int] = count(1).__next__
"""Returns the next connection id, for servers and clients alike: never reused, always larger."""


def canonical_address(text: str) -> str:
    """Return an address in one notation, whichever it is written in.

    >>> canonical_address("0:0:0:0:0:0:0:1"), canonical_address("::ffff:10.0.0.7")
    ('::1', '10.0.0.7')
    """
    try:
        parsed = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return text
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)


def address_of(peer: str) -> str:
    """Return the address of a peer that is named `host:port`.

    >>> address_of("::ffff:10.0.0.7:4711"), address_of("::1:4711")
    ('10.0.0.7', '::1')
    """
    return canonical_address(peer.rpartition(":")[0])


def peer_name(transport: asyncio.BaseTransport) -> str:
    """Return the peer's address as `host:port` for log lines."""
    address = transport.get_extra_info("peername")
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "?"


def normal_host(host: str) -> str:
    """Return a host as certificates' names are compared with it.

    >>> normal_host("Node-1.Example."), normal_host("0:0::1")
    ('node-1.example', '::1')
    """
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host.lower().rstrip(".")
