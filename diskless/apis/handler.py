"""Turns a function from request to response into a handler of frames.

    def describe(request: DescribeClusterRequest, context: RequestContext) -> Response: ...

    handlers = {60: make_handler(DescribeClusterRequest, describe)}

The function returns a response or an awaitable of one, and sees no socket.

While a response is awaited, the connection's next request is not read: its response would have to
wait anyhow, and a client that sends a thousand requests at once causes no thousand tasks. (Kafka's
brokers treat every request so.) Some responses are a thousand times as long as their requests, and
a client may not read them: such responses are built *in line*, the next one when this one has left.
A response with very many topics and partitions is encoded in a thread: the loop serves others.
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
        request: Any = decode_message(self._kind, body, header.api_version, whole=False)
        finish: Callable[[Any], Response] | None = None
        access: Access | None = None
        if self._gate is not None:
            asked = self._gate.asked(connection, header.api_version)
            access = asked.access
            guarded = self._gate.reduce(request, asked)
            if guarded is not None:
                request, finish = guarded
                if request is None:
                    return payload(header, finish(None))
        context = RequestContext(
            header.api_version,
            header.client_id,
            connection.peer,
            lambda: not connection.closed,
            access,
            self._client(connection, header, access),
        )
        found: Any = self._answer(request, context)
        if isinstance(found, Response):  # these are short; long ones are awaitables
            return payload(header, found if finish is None else finish(found))
        reply = Reply(connection)
        connection.pause_reading()
        work = _send_when_ready(found, header, reply, finish, in_line=self._in_line)
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


async def _send_when_ready(
    promised: Awaitable[Response],
    header: RequestHeader,
    reply: Reply,
    finish: Callable[[Any], Response] | None,
    *,
    in_line: bool,
) -> None:
    try:
        response = await promised
        if finish is not None:
            response = finish(response)
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
    # A topic counts as one, too: those that a client may not see have no partitions.
    if sum(1 + len(getattr(topic, "partitions", ())) for topic in topics) > LONG_PARTITIONS:
        return await in_thread(_long_payload, header, response)
    return payload(header, response)


def _long_payload(header: RequestHeader, response: Response) -> tuple[Buffer, ...]:
    """Encode a long response; its small buffers are joined, which for 10,000 topics takes 5 ms."""
    return tuple(gather(list(payload(header, response))))
