"""A question as a function: from its bytes to the answer's, the same for every family.

    def describe(request: DescribeClusterRequest, asker: Asker) -> DescribeClusterResponse: ...

    handlers = {60: served(DescribeClusterRequest, describe)}

The answer may be a value, or the promise of one. None of a question's handlers sees a socket.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from raft.net import Answer, Frame, Payload, RequestHeader, ServerConnection
from raft.net.handlers import Served, payload
from records.codec import decode_message
from records.rpc.base import Request, Response

Q = TypeVar("Q", bound=Request)


class Asker(NamedTuple):
    """Who asks, and in which version: all that an answer may depend on besides the question."""

    version: int
    client_id: str | None
    peer: str  # `host:port`

    @property
    def host(self) -> str:
        """As groups describe their members: a slash and the address."""
        return "/" + self.peer.rpartition(":")[0]


def served(
    kind: type[Q],
    answer: Callable[[Q, Asker], Response | Awaitable[Response]],
    *,
    lowest: int | None = None,
    highest: int | None = None,
) -> Served:
    """A request of this class, at all versions that we know or those named, and who answers it.

    Args:  lowest, highest: versions, both inclusive; by default all that the message has.
    """
    versions = kind.schema().versions

    def serve(connection: ServerConnection, header: RequestHeader, body: Frame) -> Answer:
        request = decode_message(kind, body, header.api_version)
        found: Any = answer(request, Asker(header.api_version, header.client_id, connection.peer))
        if isinstance(found, Response):
            return payload(header, found)
        return _later(header, found)

    first = versions.first if lowest is None else lowest
    last = versions.last if highest is None else highest
    return Served(first, last, serve)


async def _later(header: RequestHeader, promised: Awaitable[Response]) -> Payload:
    return payload(header, await promised)
