"""The handlers of Produce and Fetch, and the memory bound of Fetch responses.

A Fetch may wait for half a minute. It does so in a task of its own: the connection is read further,
and responses keep their order. When a client disconnects, its waiting Fetches are cancelled at
once, so that ten thousand clients that connect and disconnect leave nothing behind.

Responses are large, and a client may read them slowly, or never. So the Fetches of one connection
are processed one after the other, the next only when the response before it has left; and all
responses of a broker that are being built or read share one bound. Near it responses get smaller,
down to one batch each, so that a slow client does not block the others.

Source: KIP-74 (the first batch is whole); docs/design/broker.md#fetch; invariant 10
(docs/design/invariants.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from coordinator.controller.guarding import replace
from diskless.access.gate import Gate
from diskless.apis.handler import encode
from diskless.fetch.service import FetchService
from diskless.produce.old_versions import LAST_VERSION
from diskless.produce.service import ProduceService
from diskless.request_time import timed
from diskless.zones import ZoneTraffic
from raft.net import Frame, Reply, RequestHeader, ServerConnection
from raft.net.connection import Answer
from raft.net.handlers import Served
from records.codec import decode_message
from records.compression import Buffer
from records.rpc.fetch import FetchRequest
from records.rpc.produce import ProduceRequest

PRODUCE: Final = 0  # api keys
FETCH: Final = 1
MAX_ANSWER_BYTES: Final = 256 * 1024 * 1024
"""The bound of all Fetch responses that are being built or read; one batch each may exceed it."""

MAX_IN_LINE: Final = 16
"""Fetches of one connection that wait for each other; past that, its socket is not read."""

SHARE: Final = 4  # a response takes at most a quarter of what is left


class RecordApis:
    """Serves Produce and Fetch for all listeners of a broker. Belongs to the event loop."""

    def __init__(
        self,
        produce: ProduceService,
        fetch: FetchService,
        zones: ZoneTraffic,
        *,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
        gate: Gate | None = None,
        fetch_limit: Callable[[ServerConnection, str | None], int | None] = lambda *_: None,
    ) -> None:
        """Create the handlers of Produce and Fetch.

        Args:  gate: says what consumers may read; None: everything.
               fetch_limit: returns the most bytes that a client, given by its connection and its
                   client id, may fetch at once; None: no quota.
        """
        self._produce = produce
        self._fetch = fetch
        self._zones = zones
        self._max_answer_bytes = max_answer_bytes
        self._gate = gate
        self._fetch_limit = fetch_limit
        self._tasks: dict[ServerConnection, list[asyncio.Task[None]]] = {}  # in request order
        self._unread_bytes = 0  # of responses that have not left

    def handlers(self) -> dict[int, Served]:
        """Return the handlers of Produce and Fetch, by api key.

        Produce is announced from version 0, so that librdkafka compresses; the service refuses the
        versions before record batches (`diskless.produce.old_versions`).
        """
        fetch, produce = FetchRequest.schema().versions, ProduceRequest.schema().versions
        assert produce.first == LAST_VERSION + 1, f"Produce is served from {produce.first}"
        return {
            PRODUCE: Served(0, produce.last, self._serve_produce),
            FETCH: Served(fetch.first, fetch.last, self._serve_fetch),
        }

    def connection_closed(self, connection: ServerConnection) -> None:
        """Cancel the pending Fetch requests of a closed connection.

        Registered as a listener's `on_close`.
        """
        for task in self._tasks.pop(connection, ()):
            task.cancel()

    @property
    def fetches(self) -> int:
        """Return the number of Fetch requests that are waiting or being answered."""
        return sum(map(len, self._tasks.values()))

    def _serve_produce(
        self, connection: ServerConnection, header: RequestHeader, body: Frame
    ) -> Answer:
        self._zones.produced(header.client_id, len(body))
        return self._produce.serve(connection, header, body)

    def _serve_fetch(
        self, connection: ServerConnection, header: RequestHeader, body: Frame
    ) -> Reply:
        request = decode_message(FetchRequest, body, header.api_version, whole=False)
        reply = Reply(connection)
        line = self._tasks.setdefault(connection, [])
        before = line[-1] if line else None
        task = asyncio.get_running_loop().create_task(
            timed(self._answer(request, header, reply, before)), name="fetch"
        )
        line.append(task)
        if len(line) == MAX_IN_LINE:
            connection.pause_reading()
        task.add_done_callback(lambda done: self._on_done(done, connection))
        return reply

    async def _answer(
        self,
        request: FetchRequest,
        header: RequestHeader,
        reply: Reply,
        before: asyncio.Task[None] | None,
    ) -> None:
        connection = reply.connection
        if before is not None:
            await asyncio.wait([before])
        client = f"{header.client_id}@{connection.peer.rpartition(':')[0]}"
        finish: Callable[[Any], Any] | None = None
        if self._gate is not None:
            asked = self._gate.asked(connection, header.api_version)
            guarded = self._gate.reduce(request, asked)
            if guarded is not None:
                assert isinstance(guarded.request, FetchRequest), f"{guarded}"
                request, finish = guarded.request, guarded.finish
        limit = self._fetch_limit(connection, header.client_id)
        if limit is not None:
            max_bytes = min(request.max_bytes, limit)
            min_bytes = min(request.min_bytes, max_bytes)
            request = replace(request, max_bytes=max_bytes, min_bytes=min_bytes)
        try:
            answer = await self._fetch.fetch(
                request, header.api_version, client=client, room=self._room
            )
            if finish is not None:
                answer = finish(answer)
            parts = await encode(header, answer, answer.responses)
            batch_bytes = sum(
                len(one.records or b"") for topic in answer.responses for one in topic.partitions
            )
            self._zones.fetched(header.client_id, request.rack_id, batch_bytes)
        except Exception as error:
            reply.fail(error)
            return
        held_bytes = _held_bytes(parts)
        self._unread_bytes += held_bytes
        try:
            reply.send(parts)
            await reply.wait_until_sent()
        finally:
            self._unread_bytes -= held_bytes

    def _room(self) -> int:
        """Return the number of bytes that one Fetch response may use at present."""
        used = self._fetch.reading_bytes + self._unread_bytes
        return max(0, self._max_answer_bytes - used) // SHARE

    def _on_done(self, task: asyncio.Task[None], connection: ServerConnection) -> None:
        line = self._tasks.get(connection)
        if line is not None:
            line.remove(task)
            if len(line) == MAX_IN_LINE - 1:
                connection.resume_reading()
            if not line:
                del self._tasks[connection]


def _held_bytes(parts: Sequence[Buffer]) -> int:
    """Return the memory that an answer keeps: a view keeps all of the buffer that it is a part of.

    Buffers that several views share count once. A mapped file counts as much as is sent of it.
    """
    size_bytes, shared = 0, {}
    for part in parts:
        base = part.obj if type(part) is memoryview else None
        if type(base) is bytes:
            shared[id(base)] = len(base)
        else:
            size_bytes += len(part)
    return size_bytes + sum(shared.values())
