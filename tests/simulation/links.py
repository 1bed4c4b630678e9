"""A process's connections: requests and answers, to its peers and from them."""

from __future__ import annotations

from typing import Any

from raft.core.effects import Reconnect, Respond, RespondFetch, Send
from raft.core.events import (
    ConnectionClosed,
    PeerLost,
    PeerRefused,
    Received,
    RequestFailed,
    ResponseReceived,
)
from raft.core.messages import FetchRequest, Request, Response
from records.types import NodeId
from tests.simulation.network import Connection
from tests.simulation.part import Part


class Links(Part):
    """Connections have numbers that one process never uses twice."""

    def __init__(self) -> None:
        self._inbound: dict[int, Connection] = {}
        self._requests: dict[tuple[int, int], Request] = {}  # unanswered, by connection
        self._accepted = 0
        self._outbound: dict[tuple[int, bool], Connection] = {}
        self._outstanding: dict[int, Connection] = {}

    # -- as their client ---------------------------------------------------------------------------

    def _on_send(self, effect: Send) -> None:
        peer, request_id, request = effect
        self.checker.requests(self, request)
        key = (peer, isinstance(request, FetchRequest))
        connection = self._outbound.get(key)
        if connection is None:
            connection = self._outbound[key] = self.shared.network.dial(self, peer)
        self._outstanding[request_id] = connection
        connection.request(request_id, self.shared.courier.request(request))

    def _on_reconnect(self, effect: Reconnect) -> None:
        key = (effect.peer, True)
        old = self._outbound.pop(key, None)
        if old is not None:
            old.close()
            self._fail_outstanding(old)
        self._outbound[key] = self.shared.network.dial(self, effect.peer)

    def _fail_outstanding(self, connection: Connection) -> None:
        for request_id in [r for r, c in self._outstanding.items() if c is connection]:
            del self._outstanding[request_id]
            self.handle(RequestFailed(request_id))

    def _forget(self, connection: Connection) -> None:
        for key, known in tuple(self._outbound.items()):
            if known is connection:
                del self._outbound[key]

    def dial_failed(self, connection: Connection, *, refused: bool) -> None:
        """Nobody listens there, or nobody answers."""
        self._forget(connection)
        if refused:
            self.handle(PeerRefused(NodeId(connection.server_id)))
        self._fail_outstanding(connection)

    def connection_lost(self, connection: Connection) -> None:
        """An outbound connection was reset."""
        self._forget(connection)
        if connection.established:
            self.handle(PeerLost(NodeId(connection.server_id)))
        self._fail_outstanding(connection)

    def deliver_response(self, connection: Connection, request_id: int, payload: Any) -> None:
        """An answer arrived; one that nobody waits for is dropped."""
        if self._outstanding.get(request_id) is connection:
            del self._outstanding[request_id]
            response = self.shared.courier.read_response(payload)
            self.handle(ResponseReceived(request_id, response))

    # -- as their server ---------------------------------------------------------------------------

    def accepted(self, connection: Connection) -> int:
        """The kernel took a connection; its number is never used again by this process."""
        self._accepted += 1
        self._inbound[self._accepted] = connection
        return self._accepted

    def deliver_request(self, connection: Connection, correlation: int, payload: Any) -> None:
        request = self.shared.courier.read_request(payload)
        self._requests[connection.number, correlation] = request
        self.handle(Received(connection.number, correlation, request))

    def inbound_closed(self, connection: Connection) -> None:
        """An inbound connection is gone."""
        if self._inbound.pop(connection.number, None) is not None:
            self.handle(ConnectionClosed(connection.number))

    def _on_respond(self, effect: Respond) -> None:
        self._answer(*effect)

    def _on_respond_fetch(self, effect: RespondFetch) -> None:
        connection, correlation, response, offset, end, max_bytes = effect
        records = self.log.read(offset, max_bytes=max_bytes, end_offset=end)
        self._answer(connection, correlation, response, records)

    def _answer(
        self, number: int, correlation: int, response: Response, records: object = None
    ) -> None:
        request = self._requests.pop((number, correlation))
        self.checker.responds(self, request, response)
        connection = self._inbound.get(number)
        if connection is not None:
            payload = self.shared.courier.response(request, response, records)
            connection.respond(correlation, payload)
