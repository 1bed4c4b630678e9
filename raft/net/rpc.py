"""Typed calls: send a request message, return its response, at a version both sides support.

    async with await open_rpc("127.0.0.1", 9093) as rpc:
        answer = await rpc.call(DescribeQuorumRequest(topics=(...)), DescribeQuorumResponse)

The first exchange of a connection is ApiVersions at this client's newest version; a server without
that version answers in version 0 with its ranges (UNSUPPORTED_VERSION), and the request is
repeated.
Later calls use the highest version that both sides have. Callers check the error codes inside
answers; an exception means that there is no answer.

For command lines and occasional calls. Hot paths (the quorum's own Fetch) encode by themselves.

Source: KIP-35, KIP-511 (ApiVersions).
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version as installed_version
from typing import Final, Self, TypeVar

from raft.net.client import ClientConnection, connect
from raft.net.errors import NetError, Reason
from raft.net.frames import Frame
from raft.net.header import API_VERSIONS_KEY, RequestKind
from raft.net.security import OutgoingSecurity
from records.codec import decode_message, encode_parts
from records.errors import RecordError
from records.kafka_errors import ErrorCode
from records.rpc.base import Request, Response
from records.rpc.cluster import ApiVersionsRequest, ApiVersionsResponse
from records.schema import Message

R = TypeVar("R", bound=Response)

SOFTWARE_NAME: Final = "esker"


def request_kind(request: type[Message], version: int) -> RequestKind:
    """Return the kind (api key, version, flexibility) of a request class at a version."""
    schema = request.schema()
    assert schema.key is not None, f"{schema.name} is no request"
    flexible = schema.flexible
    return RequestKind.of(
        schema.key, version, flexible.first if flexible.first <= flexible.last else None
    )


class Rpc:
    """One connection with its server's supported versions, made by `open_rpc`."""

    def __init__(self, connection: ClientConnection, timeout_ms: int) -> None:
        self.connection = connection
        self.timeout_ms = timeout_ms
        self.api_versions = ApiVersionsResponse(api_keys=())
        self._ranges: Mapping[int, tuple[int, int]] = {API_VERSIONS_KEY: (0, 4)}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.connection.close()

    def version_for(self, request: type[Request]) -> int:
        """Return the highest version of a request that client and server both support.

        Raises:  NetError if there is none: the server does not serve it, or is too old or new.
        """
        schema = request.schema()
        theirs = self._ranges.get(schema.key or 0)
        if theirs is None:
            raise NetError(
                Reason.UNSUPPORTED, f"{self.connection.peer} does not serve {schema.name}"
            )
        version = min(schema.versions.last, theirs[1])
        if version < max(schema.versions.first, theirs[0]):
            raise NetError(
                Reason.UNSUPPORTED,
                f"{schema.name}: {self.connection.peer} has versions {theirs[0]}-{theirs[1]}, "
                f"we have {schema.versions}",
            )
        return version

    async def call(self, request: Request, response: type[R], version: int | None = None) -> R:
        """Send a request and return its response.

        Raises:  ConnectionLostError (RequestTimeoutError if it took longer than `timeout_ms`);
                 NetError if the server does not serve this request, or its answer is malformed.
        """
        if version is None:
            version = self.version_for(type(request))
        body = await self.exchange(request, version)
        try:
            return decode_message(response, body, version)
        except RecordError as error:
            raise NetError(Reason.BAD_ANSWER, f"{self.connection.peer}: {error}") from error

    async def exchange(self, request: Request, version: int) -> Frame:
        """Send a request and return its response's bytes. Raises ConnectionLostError."""
        kind = request_kind(type(request), version)
        return await self.connection.request(
            kind, tuple(encode_parts(request, version)), timeout_ms=self.timeout_ms
        )

    async def learn_versions(self) -> None:
        """Send ApiVersions to the server, in an older version if the server refuses the newest."""
        newest = ApiVersionsRequest.schema().versions.last
        request = ApiVersionsRequest(
            client_software_name=SOFTWARE_NAME, client_software_version=installed_version("esker")
        )
        body = await self.connection.request(
            request_kind(ApiVersionsRequest, newest),
            tuple(encode_parts(request, newest)),
            timeout_ms=self.timeout_ms,
        )
        refused = int.from_bytes(body[:2], "big") == ErrorCode.UNSUPPORTED_VERSION
        try:
            self.api_versions = decode_message(ApiVersionsResponse, body, 0 if refused else newest)
            if refused:
                known = {api.api_key: api for api in self.api_versions.api_keys}[API_VERSIONS_KEY]
                self._ranges = {API_VERSIONS_KEY: (known.min_version, known.max_version)}
                self.api_versions = await self.call(request, ApiVersionsResponse)
        except (RecordError, KeyError) as error:
            raise NetError(
                Reason.BAD_ANSWER, f"{self.connection.peer} is no Kafka server: {error}"
            ) from error
        self._ranges = {
            api.api_key: (api.min_version, api.max_version) for api in self.api_versions.api_keys
        }


async def open_rpc(
    host: str,
    port: int,
    *,
    client_id: str = SOFTWARE_NAME,
    timeout_ms: int = 5_000,
    security: OutgoingSecurity | None = None,
) -> Rpc:
    """Connect to a server and request its api versions.

    Args:    security: of this connection; None: that of the process.
    Raises:  ConnectError; ConnectionLostError; NetError if the listener is no Kafka server.
    """
    connection = await connect(
        host, port, client_id=client_id, timeout_ms=timeout_ms, security=security
    )
    rpc = Rpc(connection, timeout_ms)
    try:
        await rpc.learn_versions()
    except BaseException:
        connection.close()
        raise
    return rpc
