"""Turns a function from request to response into a handler of frames.

    def describe(request: DescribeClusterRequest, context: RequestContext) -> Response: ...

    handlers = {60: make_handler(DescribeClusterRequest, describe)}

The function returns a response or an awaitable of one, and sees no socket.

While a response is awaited, the connection's next request is not read: its response would have to
wait anyhow, and a client that sends a thousand requests at once causes no thousand tasks. (Kafka's
brokers treat every request so.) Some responses are a thousand times as long as their requests, and
a client may not read them: such responses are built *in line*, the next one when this one has left.
A response with very many partitions is encode in a thread, so that the loop serves others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, NamedTuple, TypeVar

from raft.net import Answer, Frame, Reply, RequestHeader, ServerConnection
from raft.net.handlers import Served, payload
from records.codec import decode_message
from records.compression import Buffer
from records.rpc.base import Request, Response

Q = TypeVar("Q", bound=Request)

LONG_PARTITIONS: Final = 2_000
"""A response with more partitions is encode in a thread: some 4 ms of work."""

_under_way: set[asyncio.Task[None]] = set()  # a loop itself keeps no task alive


class RequestContext(NamedTuple):
    """The client of a request, and the request's version."""

    version: int
    client_id: str | None
    peer: str  # `host:port`
    is_connected: Callable[[], bool] = lambda: True

    @property
    def host(self) -> str:
        """Return the client's address after a slash, as group descriptions show a host."""
        return "/" + self.peer.rpartition(":")[0]


def make_handler(
    kind: type[Q],
    answer: Callable[[Q, RequestContext], Response | Awaitable[Response]],
    *,
    lowest: int | None = None,
    highest: int | None = None,
    in_line: bool = False,
) -> Served:
    """Return a handler that decodes requests of this class and encodes the responses.

    Args:  answer: the function from request to response.
           lowest, highest: versions, both inclusive; by default all that the message has.
           in_line: build the next response only when this one has left.
    """
    versions = kind.schema().versions

    def serve(connection: ServerConnection, header: RequestHeader, body: Frame) -> Answer:
        request = decode_message(kind, body, header.api_version, whole=False)
        found: Any = answer(
            request,
            RequestContext(
                header.api_version,
                header.client_id,
                connection.peer,
                lambda: not connection.closed,
            ),
        )
        if isinstance(found, Response):
            return payload(header, found)  # these are short; long ones are awaitables
        reply = Reply(connection)
        connection.pause_reading()
        task = asyncio.get_running_loop().create_task(
            _send_when_ready(found, header, reply, in_line=in_line), name="question"
        )
        _under_way.add(task)
        task.add_done_callback(_under_way.discard)
        return reply

    first = versions.first if lowest is None else lowest
    last = versions.last if highest is None else highest
    return Served(first, last, serve)


async def _send_when_ready(
    promised: Awaitable[Response], header: RequestHeader, reply: Reply, *, in_line: bool
) -> None:
    try:
        response = await promised
        reply.send(await encode(header, response, getattr(response, "topics", ())))
        if in_line:
            await reply.wait_until_sent()
    except Exception as error:  # an assertion too: the connection tells the loop
        reply.fail(error)
    finally:
        reply.connection.resume_reading()


async def encode(
    header: RequestHeader, response: Response, topics: Iterable[Any]
) -> tuple[Buffer, ...]:
    """Encode a response, in a thread if its topics have very many partitions."""
    if sum(len(getattr(topic, "partitions", ())) for topic in topics) > LONG_PARTITIONS:
        return await asyncio.to_thread(payload, header, response)
    return payload(header, response)
