"""The one transport: Kafka frames over asyncio protocols, server and client side.

It handles frames, headers, order, bounds and time-outs, not elections, records or codecs: bodies
are bytes. Everything runs on one event loop; no method is thread-safe.

**Serving.** A handler gets a connection and a frame (one request, without its length) and returns
the answer, or a `Reply` for a later one:

    apis = {18: 3, 52: 0}  # api key -> first flexible version, of what is served here

    def handle(connection: ServerConnection, frame: Frame) -> Answer:
        header = parse_request_header(frame, apis)
        body = frame[header.body_at :]
        if header.api_key == 18:  # answered now: bytes, or a tuple of buffers (not copied)
            return response_header(header.correlation_id, flexible=False) + api_versions(body)
        reply = Reply(connection)  # answered later, in the order of requests: reply.send(payload)
        parked[connection.id].append((header, reply))
        return reply

    listener = Listener(handle, name="controller", limits=Limits(), on_close=forget_parked)
    await listener.start("127.0.0.1", 9093)  # then listener.port
    ...
    await listener.close(drain_ms=500)

It may also return None (no answer, as Produce with acks=0) or an awaitable. Any exception of the
handler closes that connection, with one log line and a count in `listener.ended`: as malformed if
it is a BadHeaderError or a RecordError, else as a failure of this server. An AssertionError is
passed to the loop's exception handler, so that `run` stops the process.

**Requests.** Callbacks are cheap, futures convenient:

    connection = await connect(host, port, client_id="node-1", on_close=lost)  # or ConnectError
    fetch = RequestKind.of(1, 17, first_flexible=12)
    connection.send(fetch, body, on_answer, timeout_ms=2_000)  # on_answer(Frame | error)
    answer = await connection.request(fetch, body, timeout_ms=2_000)

`on_answer` is called exactly once, with the body after the response header or with a
`ConnectionLostError`. `on_close(connection, error)` is called first and at once; `error.reason` (a
`Reason`) distinguishes a dead peer (REFUSED, RESET, PEER_CLOSED) from a silent one (TIMEOUT).

**Frames** are bytes up to 4 KiB and memoryviews above (of memory that is never written again): the
same code reads both, `bytes(frame)` copies either. Nothing needs to be given back.

**Identity.** `connection.id`, on both sides, grows with every connection of this process and is
never used again: "on the same connection" is an equality of ids, "later" a comparison.

**Order.** Requests of one connection are handled in the order sent and answered in that order;
across connections there is no order.

Modules: `frames` and `header` parse bytes; `listener`, `connection` and `connection_set` serve,
`client` sends requests, both within `limits`; `identity` numbers connections. `security` says which
TLS (`tls`, `certificates`) and SASL (`authentication`, `sasl`, `scram`) a listener and outgoing
connections have, and `principal` as whom a peer is known. Above them, for code
that uses messages: `handlers` and `routes` (handlers by api key and version), `rpc` (a typed call).
`runner` runs the loop.
"""

from raft.net.client import ClientConnection, OnAnswer, connect
from raft.net.connection import Answer, Handler, Reply, ServerConnection
from raft.net.errors import (
    BadFrameError,
    BadHeaderError,
    ConnectError,
    ConnectionLostError,
    NetError,
    Reason,
    RequestTimeoutError,
)
from raft.net.frames import Arena, Buffer, Frame, Payload
from raft.net.header import (
    API_VERSIONS_KEY,
    RequestHeader,
    RequestKind,
    parse_request_header,
    request_header,
    response_header,
    skip_tagged_fields,
)
from raft.net.limits import Limits
from raft.net.listener import Listener
from raft.net.runner import loop_factory, run

__all__ = [
    "API_VERSIONS_KEY",
    "Answer",
    "Arena",
    "BadFrameError",
    "BadHeaderError",
    "Buffer",
    "ClientConnection",
    "ConnectError",
    "ConnectionLostError",
    "Frame",
    "Handler",
    "Limits",
    "Listener",
    "NetError",
    "OnAnswer",
    "Payload",
    "Reason",
    "Reply",
    "RequestHeader",
    "RequestKind",
    "RequestTimeoutError",
    "ServerConnection",
    "connect",
    "loop_factory",
    "parse_request_header",
    "request_header",
    "response_header",
    "run",
    "skip_tagged_fields",
]
