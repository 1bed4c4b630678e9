"""A process's connections: requests and answers, to its peers and from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from raft.core.effects import Reconnect, Respond, RespondFetch, Send
from raft.core.events import (
    ConnectionClosed,
    PeerLost,
    PeerRefused,
    Received,
    RequestFailed,
    ResponseReceived,
)
from raft.core.messages import (
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    Request,
    Response,
)
from raft.interfaces import SnapshotChunk
from records.types import NodeId, Offset
from tests.simulation.network import Connection
from tests.simulation.part import Part

FETCH: Final = "fetch"
OTHER: Final = "other"
APART: Final = "snapshot"
"""Kinds of connection to one peer."""

STRANGER: Final = -1
"""The number of the one connection that nobody of ours made."""


class Links(Part):
    """Connections have numbers that one process never uses twice."""

    leader_log_start: Offset
    piece_lost: Callable[[int], None]
    piece_arrived: Callable[[int, FetchSnapshotRequest, Any], None]

    def __init__(self) -> None:
        self._inbound: dict[int, Connection] = {}
        self._requests: dict[tuple[int, int], Request] = {}  # unanswered, by connection
        self._accepted = 0
        self._strangers = 0
        self._outbound: dict[tuple[int, str], Connection] = {}
        self._outstanding: dict[int, Connection] = {}
        self._pieces: dict[int, FetchSnapshotRequest] = {}  # asked for apart from the core

    # -- as their client ---------------------------------------------------------------------------

    def _on_send(self, effect: Send) -> None:
        peer, request_id, request = effect
        self.checker.requests(self, request)
        self._ask_by(
            FETCH if isinstance(request, FetchRequest) else OTHER, peer, request_id, request
        )

    def _ask_by(self, kind: str, peer: int, number: int, request: Request) -> None:
        connection = self._outbound.get((peer, kind))
        if connection is None:
            connection = self._outbound[peer, kind] = self.shared.network.dial(self, peer)
        self._outstanding[number] = connection
        connection.request(number, self.shared.courier.request(request))

    def send_apart(self, peer: int, number: int, request: FetchSnapshotRequest) -> None:
        """Ask by the connection that only downloads use; `number` is below 0."""
        self._pieces[number] = request
        self._ask_by(APART, peer, number, request)

    def close_apart(self, peer: int) -> None:
        """That connection is of no use any more."""
        old = self._outbound.pop((peer, APART), None)
        if old is not None:
            old.close()
            self._fail_outstanding(old)

    def _on_reconnect(self, effect: Reconnect) -> None:
        key = (effect.peer, FETCH)
        old = self._outbound.pop(key, None)
        if old is not None:
            old.close()
            self._fail_outstanding(old)
        self._outbound[key] = self.shared.network.dial(self, effect.peer)

    def _fail_outstanding(self, connection: Connection) -> None:
        for request_id in [r for r, c in self._outstanding.items() if c is connection]:
            del self._outstanding[request_id]
            if request_id in self._pieces:
                del self._pieces[request_id]
                self.job(self.piece_lost, request_id)
            else:
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
            asked = self._pieces.pop(request_id, None)
            if asked is not None:
                self.job(self.piece_arrived, request_id, asked, payload)
                return
            response = self.shared.courier.read_response(payload)
            self.handle(ResponseReceived(request_id, response))
            if isinstance(response, FetchResponse) and response.log_start_offset is not None:
                self.job(self._leader_told, connection.server_id, response)

    def _leader_told(self, peer: int, response: FetchResponse) -> None:
        """Where the log of the leader we follow starts."""
        if self.quorum.leader_id == peer and self.quorum.epoch == response.epoch:
            assert response.log_start_offset is not None
            self.leader_log_start = response.log_start_offset

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

    def deliver_strangers_request(self, request: Request) -> None:
        """A request of somebody who is no member; what it is answered is checked, not delivered."""
        self._strangers += 1
        self._requests[STRANGER, self._strangers] = request
        self.handle(Received(STRANGER, self._strangers, request))

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

    def answer_piece(
        self, number: int, correlation: int, error: int, piece: SnapshotChunk | None
    ) -> None:
        """A piece of a checkpoint, or why there is none."""
        request = self._requests.pop((number, correlation))
        assert isinstance(request, FetchSnapshotRequest), f"{request} is answered by a piece"
        self.checker.says(self, self.quorum.epoch)
        connection = self._inbound.get(number)
        if connection is not None:
            connection.respond(correlation, self.shared.courier.piece(request, error, piece))

    def _answer(
        self, number: int, correlation: int, response: Response, records: object = None
    ) -> None:
        request = self._requests.pop((number, correlation))
        self.checker.responds(self, request, response)
        connection = self._inbound.get(number)
        if connection is not None and isinstance(request, FetchSnapshotRequest):
            error = response.error
            connection.respond(correlation, self.shared.courier.piece(request, error, None))
        elif connection is not None:
            payload = self.shared.courier.response(request, response, records)
            connection.respond(correlation, payload)
