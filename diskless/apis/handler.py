"""Turns a function from request to response into a handler of frames.

    def describe(request: DescribeClusterRequest, context: RequestContext) -> Response: ...

    handlers = {60: make_handler(DescribeClusterRequest, describe)}

The function returns a response or an awaitable of one, and sees no socket.

While a response is awaited, the connection's next request is not read: its response would have to
wait anyhow, and a client that sends a thousand requests at once causes no thousand tasks. (Kafka's
brokers treat every request so.) Some responses are a thousand times as long as their requests, and
a client may not read them: such responses are built *in line*, the next one when this one has left.
A long request is decoded in a thread, and a response with very many topics and partitions is
encoded in one: the loop serves others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, Generic, NamedTuple, TypeVar

from coordinator.controller.access import Access, Client, host_of
from diskless.access.gate import Gate
from diskless.request_time import in_thread, timed
from raft.net import Answer, Frame, Reply, RequestHeader, ServerConnection
from raft.net.frames import gather
from raft.net.handlers import Served, payload
from records.codec import decode_message
from records.compression import Buffer
from records.rpc.base import Request, Response

Q = TypeVar("Q", bound=Request)

LONG_PARTITIONS: Final = 2_000
"""A response with more topics and partitions, or entries, is encoded in a thread: 4 ms of work."""

LONG_REQUEST_BYTES: Final = 64 * 1024
"""A longer request is decoded in a thread: 2,500 names of topics take 1 to 2 ms."""

_under_way: set[asyncio.Task[None]] = set()  # a loop itself keeps no task alive


class RequestContext(NamedTuple):
    """The client of a request, and the request's version."""

    version: int
    client_id: str | None
    peer: str  # `host:port`
    is_connected: Callable[[], bool] = lambda: True
    access: Access | None = None  # what the client may do; None: everything
    client: Client | None = None  # to name to the controller; None: no need

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
    first = versions.first if lowest is None else lowest
    last = versions.last if highest is None else highest
    return Served(first, last, MessageHandler(kind, answer, in_line=in_line))


class MessageHandler(Generic[Q]):
    """Decodes requests of one class, and encodes the responses."""

    def __init__(
        self,
        kind: type[Q],
        answer: Callable[[Q, RequestContext], Response | Awaitable[Response]],
        *,
        in_line: bool,
        gate: Gate | None = None,
        names_clients: Callable[[], bool] = lambda: False,
    ) -> None:
        """Create a handler; `make_handler` has the arguments.

        Args:  gate: reduces each request to what its client may ask for; None: everything.
               names_clients: whether the controller has to know the client, for its quotas.
        """
        self._kind = kind
        self._answer = answer
        self._in_line = in_line
        self._gate = gate
        self._names_clients = names_clients

    def on_broker(self, gate: Gate | None, names_clients: Callable[[], bool]) -> MessageHandler[Q]:
        """Return a handler of the same requests that knows their clients."""
        return MessageHandler(
            self._kind,
            self._answer,
            in_line=self._in_line,
            gate=gate,
            names_clients=names_clients,
        )

    def _client(
        self, connection: ServerConnection, header: RequestHeader, access: Access | None
    ) -> Client | None:
        """Return the client to name to the controller, or None if it need not be known."""
        if access is None and not self._names_clients():
            return None
        host = host_of(connection.peer) if access is None else access.client.host
        return Client(connection.principal, host, header.client_id or "", header.api_version)

    def __call__(self, connection: ServerConnection, header: RequestHeader, body: Frame) -> Answer:
        """Answer a request at once, or later through a `Reply`."""
        if len(body) > LONG_REQUEST_BYTES:
            return self._reply_later(
                connection, header, self._answer_long(connection, header, body)
            )
        found = self._begin(connection, header, self._decode(header, body))
        if isinstance(found, Response):  # these are short; long ones are awaitables
            return payload(header, found)
        return self._reply_later(connection, header, found)

    def _decode(self, header: RequestHeader, body: Frame) -> Q:
        return decode_message(self._kind, body, header.api_version, whole=False)

    async def _answer_long(
        self, connection: ServerConnection, header: RequestHeader, body: Frame
    ) -> Response:
        """Decode a long request in a thread, and answer it."""
        found = self._begin(connection, header, await in_thread(self._decode, header, body))
        return found if isinstance(found, Response) else await found

    def _begin(
        self, connection: ServerConnection, header: RequestHeader, request: Any
    ) -> Response | Awaitable[Response]:
        """Hand the allowed part of a request to the function, and complete its response."""
        finish: Callable[[Any], Response] | None = None
        access: Access | None = None
        if self._gate is not None:
            asked = self._gate.asked(connection, header.api_version)
            access = asked.access
            guarded = self._gate.reduce(request, asked)
            if guarded is not None:
                request, finish = guarded
                if request is None:
                    return finish(None)
        context = RequestContext(
            header.api_version,
            header.client_id,
            connection.peer,
            lambda: not connection.closed,
            access,
            self._client(connection, header, access),
        )
        found = self._answer(request, context)
        if finish is None:
            return found
        return finish(found) if isinstance(found, Response) else _finished(found, finish)

    def _reply_later(
        self, connection: ServerConnection, header: RequestHeader, promised: Awaitable[Response]
    ) -> Reply:
        """Return a reply that is sent when the response is there; read nothing until then."""
        reply = Reply(connection)
        connection.pause_reading()
        work = _send_when_ready(promised, header, reply, in_line=self._in_line)
        task = asyncio.get_running_loop().create_task(timed(work), name="question")
        _under_way.add(task)
        task.add_done_callback(_under_way.discard)
        return reply


def on_broker(served: Served, gate: Gate | None, names_clients: Callable[[], bool]) -> Served:
    """Return a served api that knows its clients, if `make_handler` made it.

    The handlers of Produce, Fetch and group requests decode for themselves, and have the gate.

    Args:  gate: says what a client may do; None: everything.
           names_clients: whether the controller has to know for whom requests are forwarded.
    """
    if isinstance(served.serve, MessageHandler):
        return served._replace(serve=served.serve.on_broker(gate, names_clients))
    return served


async def _finished(promised: Awaitable[Response], finish: Callable[[Any], Response]) -> Response:
    return finish(await promised)


async def _send_when_ready(
    promised: Awaitable[Response],
    header: RequestHeader,
    reply: Reply,
    *,
    in_line: bool,
) -> None:
    try:
        response = await promised
        if len(getattr(response, "entries", None) or ()) > LONG_PARTITIONS:
            reply.send(await in_thread(_long_payload, header, response))
        else:
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
    """Encode a response, in a thread if it has very many topics and partitions."""
    left = LONG_PARTITIONS
    for topic in topics:
        # A topic counts as one, too: those that a client may not see have no partitions.
        left -= 1 + len(getattr(topic, "partitions", ()))
        if left < 0:
            return await in_thread(_long_payload, header, response)
    return payload(header, response)


def _long_payload(header: RequestHeader, response: Response) -> tuple[Buffer, ...]:
    """Encode a long response; its small buffers are joined, which for 10,000 topics takes 5 ms."""
    return tuple(gather(list(payload(header, response))))
