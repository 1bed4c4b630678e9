"""Which connection is this? Ids that grow, and names for log lines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

next_connection_id: Callable[[], int] = count(1).__next__
"""Ids of connections, server's and clients' alike: never reused, later is larger."""


def peer_name(transport: asyncio.BaseTransport) -> str:
    """The other end as `host:port`, for log lines."""
    address = transport.get_extra_info("peername")
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "?"
