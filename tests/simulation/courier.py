"""How messages travel: as Kafka's bytes, or as they are.

`WireCourier` is the production path: every message becomes its RPC, the RPC becomes bytes at a
protocol version, and back. It takes most of a run's time, so only some schedules use it (the plan
decides from the seed); the others use `DirectCourier`, which hands the core's frozen values over
and differs in nothing else: log bytes are read from the sender's log, and checked and cut into runs
by the receiver, either way.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from raft.core.messages import (
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    Request,
    Response,
)
from raft.interfaces import SnapshotChunk
from raft.segments.segment import Records
from raft.wire.common import UnexpectedAnswerError
from raft.wire.fetch import (
    FetchForm,
    read_batches,
    read_fetch,
    read_fetch_response,
    write_fetch,
    write_fetch_response,
)
from raft.wire.responses import (
    Answering,
    Group,
    read_request,
    read_response,
    write_request,
    write_response,
)
from raft.wire.snapshots import (
    Leader,
    RefusedError,
    read_fetch_snapshot,
    read_fetch_snapshot_response,
    refused_partition,
    served_partition,
    write_fetch_snapshot,
    write_fetch_snapshot_response,
)
from records.codec import decode_message, encode_message
from records.rpc import API
from records.types import METADATA_TOPIC_ID

GROUP: Final = Group("__cluster_metadata", 0, METADATA_TOPIC_ID)
_ANSWERING: Final = Answering(GROUP, None)
_NOBODY: Final = Leader(None, -1, None)
_FORM: Final = FetchForm("", METADATA_TOPIC_ID)
_OLD_FORM: Final = FetchForm(GROUP.topic, UUID(int=0))


class Courier(Protocol):
    """Both ends of the transport."""

    def request(self, request: Request) -> Any: ...

    def read_request(self, payload: Any) -> Request: ...

    def response(self, request: Request, response: Response, records: Records | None) -> Any: ...

    def read_response(self, payload: Any) -> Response: ...

    def piece(
        self, request: FetchSnapshotRequest, error: int, piece: SnapshotChunk | None
    ) -> Any: ...

    def read_piece(self, payload: Any, request: FetchSnapshotRequest) -> SnapshotChunk:
        """Raises RefusedError; UnexpectedAnswerError and others if it makes no sense."""


class DirectCourier:
    """Values travel as they are; log bytes as bytes."""

    def request(self, request: Request) -> Request:
        return request

    def read_request(self, payload: Request) -> Request:
        return payload

    def response(
        self,
        request: Request,  # noqa: ARG002
        response: Response,
        records: Records | None,
    ) -> tuple[Response, bytes]:
        return response, bytes(records.data) if records else b""

    def read_response(self, payload: tuple[Response, bytes]) -> Response:
        response, data = payload
        if data:
            assert isinstance(response, FetchResponse), f"records in {response}"
            return replace(response, batches=read_batches(data))
        return response

    def piece(
        self,
        request: FetchSnapshotRequest,  # noqa: ARG002
        error: int,
        piece: SnapshotChunk | None,
    ) -> tuple[int, SnapshotChunk | None]:
        return error, piece

    def read_piece(
        self, payload: tuple[int, SnapshotChunk | None], request: FetchSnapshotRequest
    ) -> SnapshotChunk:
        error, piece = payload
        if error or piece is None:
            raise RefusedError(error)
        if len(piece.data) > request.max_bytes:
            raise UnexpectedAnswerError(0, f"{len(piece.data)} bytes of {request.max_bytes}")
        return piece


class Packet(NamedTuple):
    """A message's body; key and version stand for the header around it."""

    key: int
    version: int
    body: bytes


class WireCourier:
    """Kafka's bytes, at one version of Fetch and the newest of the others."""

    def __init__(self, fetch_version: int = 18) -> None:
        self._versions = {
            key: api.request.schema().versions[-1] for key, api in API.items() if api.request
        }
        self._versions[1] = fetch_version

    def request(self, request: Request) -> Packet:
        if isinstance(request, FetchRequest):
            version = self._versions[1]
            return Packet(1, version, encode_message(write_fetch(GROUP, request, version), version))
        if isinstance(request, FetchSnapshotRequest):
            version = self._versions[59]
            return Packet(
                59, version, encode_message(write_fetch_snapshot(GROUP, request), version)
            )
        message = write_request(GROUP, request)  # type: ignore[arg-type]
        key = type(message).schema().key
        assert key is not None, f"{message} is no request"
        version = self._versions[key]
        return Packet(key, version, encode_message(message, version))

    def read_request(self, payload: Packet) -> Request:
        message: Any = decode_message(API[payload.key].request, payload.body, payload.version)
        if payload.key == 1:
            return read_fetch(message, payload.version)
        if payload.key == 59:
            (asked,) = read_fetch_snapshot(message)
            assert asked.request is not None, f"a replica asks for {asked}"
            return asked.request
        ref, request = read_request(message)
        assert ref.topic == GROUP.topic, f"{ref} is not the group that was asked for"
        return request

    def response(self, request: Request, response: Response, records: Records | None) -> Packet:
        if isinstance(response, FetchResponse):
            assert isinstance(request, FetchRequest), f"{request} is answered by {response}"
            version = self._versions[1]
            form = _FORM if version >= 13 else _OLD_FORM
            data = records.data if records else b""
            rpc = write_fetch_response(response, _ANSWERING, form, data)
            return Packet(1, version, encode_message(rpc, version))
        message = write_response(response, _ANSWERING)  # type: ignore[arg-type]
        key = type(message).schema().key
        assert key is not None, f"{message} is no response"
        version = self._versions[key]
        return Packet(key, version, encode_message(message, version))

    def read_response(self, payload: Packet) -> Response:
        message: Any = decode_message(API[payload.key].response, payload.body, payload.version)
        return read_fetch_response(message) if payload.key == 1 else read_response(message)

    def piece(
        self, request: FetchSnapshotRequest, error: int, piece: SnapshotChunk | None
    ) -> Packet:
        asked = write_fetch_snapshot(GROUP, request)
        (read,) = read_fetch_snapshot(asked)
        part = served_partition(read, piece, _NOBODY) if piece else refused_partition(read, error)
        message = write_fetch_snapshot_response(asked, (part,), ())
        version = self._versions[59]
        return Packet(59, version, encode_message(message, version))

    def read_piece(self, payload: Packet, request: FetchSnapshotRequest) -> SnapshotChunk:
        response = API[59].response
        assert response is not None
        message: Any = decode_message(response, payload.body, payload.version)
        return read_fetch_snapshot_response(message, GROUP, request)
