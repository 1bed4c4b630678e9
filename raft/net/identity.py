"""Ids of connections, growing with time, and names of peers for log lines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

next_connection_id: Callable[[], int] = count(1).__next__
"""Returns the next connection id, for servers and clients alike: never reused, always larger."""


def peer_name(transport: asyncio.BaseTransport) -> str:
    """Return the peer's address as `host:port` for log lines."""
    address = transport.get_extra_info("peername")
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "?"
