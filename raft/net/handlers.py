"""A served api as a value: its versions, and who answers. So rooms above bring their own requests.

Source: KIP-35 (what is served is announced, version by version).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from raft.net.connection import Answer, ServerConnection
from raft.net.frames import Buffer, Frame
from raft.net.header import API_VERSIONS_KEY, RequestHeader, response_header
from records.codec import encode_parts
from records.rpc.base import Response

Serve: TypeAlias = Callable[[ServerConnection, RequestHeader, Frame], Answer]
"""(connection, header, body) -> an answer, or the promise of one.

What it raises closes the connection: a RecordError is the peer's fault, anything else ours.
"""


class Served(NamedTuple):
    """One api as a node serves it; both versions inclusive."""

    lowest: int
    highest: int
    serve: Serve


def payload(header: RequestHeader, message: Response) -> tuple[Buffer, ...]:
    """A response, header and body, as buffers; record bytes in it are not copied."""
    flexible = header.flexible and header.api_key != API_VERSIONS_KEY
    head = response_header(header.correlation_id, flexible=flexible)
    return (head, *encode_parts(message, header.api_version))
