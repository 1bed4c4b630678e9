"""A served api as a value: its versions and its handler, so that services can add requests.

Source: KIP-35 (servers announce the versions of each api).
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
"""(connection, header, body) -> an answer, or a deferred one.

An exception closes the connection: a RecordError as the peer's fault, any other as the server's.
"""


class Served(NamedTuple):
    """Versions and handler of one api; both versions inclusive."""

    lowest: int
    highest: int
    serve: Serve


def payload(header: RequestHeader, message: Response) -> tuple[Buffer, ...]:
    """Encode a response, header and body, as buffers, without copying its record bytes."""
    flexible = header.flexible and header.api_key != API_VERSIONS_KEY
    head = response_header(header.correlation_id, flexible=flexible)
    return (head, *encode_parts(message, header.api_version))
