"""A group's connections to its peers: dialling, versions, and the fate of requests.

Every pair of group and peer has two connections: one for Fetch alone, since on it a Fetch must
follow the answer to the one before (reads rest on that) and may wait half a second, and one for
votes and everything else, which must not wait behind it. Each begins with ApiVersions; requests
wait for its answer. The address is resolved again at every dial.

Nothing is retried here: when a connection ends or cannot be made, its unanswered requests fail, and
the core decides when to send again. The exception is the core's own `Reconnect`, which dials at
once, since a refused connection indicates a dead leader.

Source: `raft.core.events`, rules 5 and 7; KIP-35 (versions).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Final

from raft.core import messages as core
from raft.core.events import (
    Event,
    PeerLost,
    PeerRefused,
    RequestFailed,
    ResponseReceived,
    UnsupportedVersion,
)
from raft.core.voters import Endpoint
from raft.driver.wall_clocks import wall_clock_ms
from raft.net import (
    Arena,
    ClientConnection,
    ConnectError,
    ConnectionLostError,
    Frame,
    Reason,
    RequestKind,
    connect,
)
from raft.net.routes import first_flexible
from raft.net.security import outgoing_security
from raft.wire import fetch as wire_fetch
from raft.wire import responses as wire
from raft.wire.responses import Group, UnexpectedAnswerError
from records.codec import decode_message, encode_parts
from records.errors import RecordError
from records.rpc import API, Request, Response, cluster, fetch
from records.types import NodeId, Offset

log = logging.getLogger("raft.driver")

API_VERSIONS_KEY: Final = 18
API_VERSIONS_VERSION: Final = 3
CONNECT_TIMEOUT_MS: Final = 1_000
SECURE_CONNECT_TIMEOUT_MS: Final = 5_000
"""With TLS or SASL: up to six round trips. On a busy machine they take longer than a second, and a
dial that is given up begins with the first one again: the quorum then elects no leader for long."""
VERSIONS_TIMEOUT_MS: Final = 1_000
MAX_UNANSWERED: Final = 100  # per connection; the core has long given up the first of them
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024  # a Fetch requests 8 MiB; its first batch may be larger

OUR_VERSIONS: Final = {
    0: (3, 13),
    1: (4, 18),
    2: (1, 11),
    18: (0, 4),
    52: (0, 2),
    53: (0, 1),
    54: (0, 1),
    55: (0, 2),
    59: (0, 1),
    60: (0, 2),
}
"""Versions that this node supports as client and server: api key to (lowest, highest)."""

_KEY: Final = {
    core.VoteRequest: 52,
    core.BeginQuorumEpochRequest: 53,
    core.EndQuorumEpochRequest: 54,
    core.DescribeQuorumRequest: 55,
    core.FetchRequest: 1,
}


@cache
def kind_of(api_key: int, version: int) -> RequestKind:
    """Return the kind of request that an api key and version stand for."""
    return RequestKind.of(api_key, version, first_flexible(api_key))


@dataclass(frozen=True, slots=True, kw_only=True)
class DialSettings:
    """Settings that all links of a node share."""

    client_id: str
    arena: Arena
    own_endpoints: tuple[Endpoint, ...]
    on_bad_answer: Callable[[NodeId, str], None]


class PeerLink:
    """One connection to one peer, dialled at the first request."""

    def __init__(
        self,
        *,
        group: Group,
        peer: NodeId,
        endpoint: Endpoint,
        dial_settings: DialSettings,
        post: Callable[[Event], None],
    ) -> None:
        self.peer = peer
        self.log_start_offset: Offset | None = None  # of the peer's last Fetch response
        self._group = group
        self._endpoint = endpoint
        self._dial_settings = dial_settings
        self._post = post
        self._connection: ClientConnection | None = None
        self._versions: dict[int, int] | None = None  # api key -> version; None: not known yet
        self._waiting: dict[int, core.Request] = {}  # to be sent once the connection is open
        self._sent: dict[int, core.Request] = {}  # unanswered
        self._dial: asyncio.Task[None] | None = None
        self._closed = False

    def send(self, request_id: int, request: core.Request) -> None:
        """Send a request to the peer now, or as soon as the connection is open."""
        if self._closed:
            return
        if self._versions is not None and self._connection is not None:
            if len(self._sent) < MAX_UNANSWERED:
                self._transmit(request_id, request)
                return
            self._drop()
        self._waiting[request_id] = request
        if self._dial is None:
            self._dial = asyncio.get_running_loop().create_task(self._open())

    def reconnect(self) -> None:
        """Close the connection to the peer and connect to the peer again without delay.

        A dial in progress goes on, without the requests that wait for it: none has been sent.
        """
        if self._dial is not None:
            self._waiting.clear()
            return
        self._drop()
        if not self._closed:
            self._dial = asyncio.get_running_loop().create_task(self._open())

    def close(self) -> None:
        """Close the connection permanently, without posting events."""
        self._closed = True
        self._drop()

    def _drop(self) -> None:
        """Close the connection and forget its requests, without posting `RequestFailed`."""
        if self._dial is not None:
            self._dial.cancel()
            self._dial = None
        connection, self._connection = self._connection, None
        self._versions = None
        self._waiting.clear()
        self._sent.clear()
        if connection is not None:
            connection.close()

    # --- dialling -----------------------------------------------------------------------------

    async def _open(self) -> None:
        is_plain = outgoing_security() is None
        try:
            connection = await connect(
                self._endpoint.host,
                self._endpoint.port,
                client_id=self._dial_settings.client_id,
                timeout_ms=CONNECT_TIMEOUT_MS if is_plain else SECURE_CONNECT_TIMEOUT_MS,
                arena=self._dial_settings.arena,
                max_response_bytes=MAX_ANSWER_BYTES,
                on_close=self._on_close,
            )
        except ConnectError as error:
            self._dial = None
            if error.reason is Reason.REFUSED:
                self._post(PeerRefused(self.peer))
            self._fail_all()
            return
        self._connection = connection
        if connection.close_reason is not None:  # closed before `connect` returned
            reason = connection.close_reason
            self._on_close(connection, ConnectionLostError(reason, f"{connection} ended early"))
        else:
            self._request_versions(connection)

    def _request_versions(self, connection: ClientConnection) -> None:
        request = cluster.ApiVersionsRequest(
            client_software_name="esker", client_software_version="0"
        )
        kind = kind_of(API_VERSIONS_KEY, API_VERSIONS_VERSION)

        def on_answer(answer: Frame | ConnectionLostError) -> None:
            if connection is not self._connection:
                return
            self._dial = None
            if isinstance(answer, ConnectionLostError):
                return  # `_on_close` has failed the requests already
            try:
                self._versions = read_versions(answer)
            except (RecordError, UnexpectedAnswerError) as error:
                self._dial_settings.on_bad_answer(self.peer, f"ApiVersions: {error}")
                connection.close()
                return
            waiting, self._waiting = self._waiting, {}
            for request_id, request in waiting.items():
                self._transmit(request_id, request)

        connection.send(
            kind,
            tuple(encode_parts(request, API_VERSIONS_VERSION)),
            on_answer,
            timeout_ms=VERSIONS_TIMEOUT_MS,
        )

    def _on_close(self, connection: ClientConnection, error: ConnectionLostError) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        self._versions = None
        self._dial = None
        if error.reason is not Reason.LOCAL:
            self._post(PeerLost(self.peer))
        self._fail_all()

    def _fail_all(self) -> None:
        failed = (*self._waiting, *self._sent)
        self._waiting.clear()
        self._sent.clear()
        for request_id in failed:
            self._post(RequestFailed(request_id))

    # --- requests -----------------------------------------------------------------------------

    def _transmit(self, request_id: int, request: core.Request) -> None:
        connection, versions = self._connection, self._versions
        assert connection is not None, f"nothing to send {request} on"
        assert versions is not None, f"versions of {self.peer} unknown"
        api_key = _KEY[type(request)]
        version = versions.get(api_key, -1)
        pre_vote = isinstance(request, core.VoteRequest) and request.pre_vote
        if version < (2 if pre_vote else OUR_VERSIONS[api_key][0]):
            self._post(UnsupportedVersion(request_id))
            return
        message = self._message(request, version)
        self._sent[request_id] = request

        def on_answer(answer: Frame | ConnectionLostError) -> None:
            if self._sent.pop(request_id, None) is None:
                return  # forgotten with its connection, or failed
            if isinstance(answer, ConnectionLostError):
                self._post(RequestFailed(request_id))
            else:
                self._received(request_id, api_key, version, answer)

        try:
            parts = tuple(encode_parts(message, version))
            connection.send(kind_of(api_key, version), parts, on_answer)
        except ConnectionLostError:
            self._sent.pop(request_id, None)
            self._post(RequestFailed(request_id))

    def _message(self, request: core.Request, version: int) -> Request:
        if isinstance(request, core.FetchRequest):
            return wire_fetch.write_fetch(self._group, request, version, wall_clock_ms())
        assert not isinstance(request, core.FetchSnapshotRequest), "of `raft.driver.fetching`"
        return wire.write_request(self._group, request, self._dial_settings.own_endpoints)

    def _received(self, request_id: int, api_key: int, version: int, answer: Frame) -> None:
        """Post a peer's response to the Raft core, or a failure if the response is undecodable."""
        try:
            message = decode_message(API[api_key].response, answer, version)
            response = _read(message)
        except (RecordError, UnexpectedAnswerError) as error:
            if not isinstance(error, UnexpectedAnswerError):
                self._dial_settings.on_bad_answer(self.peer, f"api key {api_key}: {error}")
            self._post(RequestFailed(request_id))
        else:
            if type(response) is core.FetchResponse and response.log_start_offset is not None:
                self.log_start_offset = response.log_start_offset
            self._post(ResponseReceived(request_id, response))


def _read(message: Response) -> core.Response:
    if isinstance(message, fetch.FetchResponse):
        return wire_fetch.read_fetch_response(message)
    return wire.read_response(message)  # type: ignore[arg-type]


def read_versions(answer: Frame) -> dict[int, int]:
    """Return the highest version of each API, by api key, that this node and a peer support.

    Raises:  RecordError, UnexpectedAnswerError.
    """
    error = int.from_bytes(answer[:2], "big", signed=True)
    version = 0 if error else API_VERSIONS_VERSION  # a server that is too old answers in version 0
    message = decode_message(cluster.ApiVersionsResponse, answer, version)
    if error and not message.api_keys:
        raise UnexpectedAnswerError(error, "ApiVersions")
    agreed = {}
    for api in message.api_keys:
        ours = OUR_VERSIONS.get(api.api_key)
        if ours is not None:
            highest = min(ours[1], api.max_version)
            if highest >= max(ours[0], api.min_version):
                agreed[api.api_key] = highest
    return agreed


class PeerLinks:
    """All connections of one group: two per peer, one of them for Fetch alone."""

    def __init__(
        self,
        group: Group,
        peers: dict[NodeId, Endpoint],
        dial_settings: DialSettings,
        post: Callable[[Event], None],
    ) -> None:
        def link(peer: NodeId, endpoint: Endpoint) -> PeerLink:
            return PeerLink(
                group=group, peer=peer, endpoint=endpoint, dial_settings=dial_settings, post=post
            )

        self._fetch = {peer: link(peer, endpoint) for peer, endpoint in peers.items()}
        self._control = {peer: link(peer, endpoint) for peer, endpoint in peers.items()}

    def send(self, peer: NodeId, request_id: int, request: core.Request) -> None:
        """Send a request over the peer's connection for this kind of request."""
        links = self._fetch if isinstance(request, core.FetchRequest) else self._control
        links[peer].send(request_id, request)

    def reconnect(self, peer: NodeId) -> None:
        """Close the Fetch connection to a peer and open a new Fetch connection without delay."""
        self._fetch[peer].reconnect()

    def log_start_offset(self, peer: NodeId) -> Offset | None:
        """Return the log start offset in a peer's last Fetch response; None without a response."""
        link = self._fetch.get(peer)
        return link.log_start_offset if link is not None else None

    def close(self) -> None:
        """Close this node's connections to all other quorum nodes."""
        for link in (*self._fetch.values(), *self._control.values()):
            link.close()
