"""A question as a function: from its bytes to the answer's, the same for every family.

    def describe(request: DescribeClusterRequest, asker: Asker) -> DescribeClusterResponse: ...

    handlers = {60: served(DescribeClusterRequest, describe)}

The answer may be a value, or the promise of one. None of a question's handlers sees a socket.

While an answer is promised the next request of that connection is not looked at; its answer would
have to wait anyhow, and a client that sends a thousand questions in one go has no thousand tasks
here. (Kafka's brokers treat every request so.) Some answers are a thousand times as long as their
questions, and a client may read none of them: such answers are made *in line*, the next one when
this one has left. One of very many partitions is put into bytes in a thread, so that the loop has
its turns meanwhile; nobody changes it any more.
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
"""An answer that names more is long: some 4 ms of encoding."""

_under_way: set[asyncio.Task[None]] = set()  # a loop itself keeps no task alive


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
    in_line: bool = False,
) -> Served:
    """A request of this class, at all versions that we know or those named, and who answers it.

    Args:  lowest, highest: versions, both inclusive; by default all that the message has.
           in_line: see the module.
    """
    versions = kind.schema().versions

    def serve(connection: ServerConnection, header: RequestHeader, body: Frame) -> Answer:
        request = decode_message(kind, body, header.api_version, whole=False)
        found: Any = answer(request, Asker(header.api_version, header.client_id, connection.peer))
        if isinstance(found, Response):
            return payload(header, found)  # the short ones; the others are promised
        reply = Reply(connection)
        connection.hold()
        task = asyncio.get_running_loop().create_task(
            _keep(found, header, reply, in_line=in_line), name="question"
        )
        _under_way.add(task)
        task.add_done_callback(_under_way.discard)
        return reply

    first = versions.first if lowest is None else lowest
    last = versions.last if highest is None else highest
    return Served(first, last, serve)


async def _keep(
    promised: Awaitable[Response], header: RequestHeader, reply: Reply, *, in_line: bool
) -> None:
    try:
        response = await promised
        reply.send(await encoded(header, response, getattr(response, "topics", ())))
        if in_line:
            await reply.left()
    except Exception as error:  # an assertion too: the connection tells the loop
        reply.fail(error)
    finally:
        reply.connection.go_on()


async def encoded(
    header: RequestHeader, response: Response, topics: Iterable[Any]
) -> tuple[Buffer, ...]:
    """The answer's bytes; made in a thread if these topics of it have very many partitions."""
    if sum(len(getattr(topic, "partitions", ())) for topic in topics) > LONG_PARTITIONS:
        return await asyncio.to_thread(payload, header, response)
    return payload(header, response)
