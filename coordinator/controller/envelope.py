"""Forwards a client's request to the controller in an Envelope, with the client's principal.

    response = await send(rpc, request, CreateTopicsResponse, client)      # a broker
    forwarded = unwrap(envelope, first_flexible)                           # the controller
    EnvelopeResponse(response_data=wrap_response(forwarded.header, response))

The trap: a controller that lost its leadership says NOT_CONTROLLER inside the response; the
envelope has to say so itself, or the broker would take it for the answer.

Source: KIP-590; upstream's EnvelopeUtils and DefaultKafkaPrincipalBuilder.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeVar

from coordinator.controller.access import Client, java_host
from coordinator.controller.errors import RefusedError
from coordinator.errors import CoordinatorError
from raft.net.errors import NetError, Reason
from raft.net.frames import Frame
from raft.net.header import RequestHeader, parse_request_header, request_header
from raft.net.principal import Principal
from raft.net.rpc import Rpc, request_kind
from records.codec import decode_message, encode_message, encode_parts
from records.errors import RecordError
from records.kafka_errors import ErrorCode
from records.rpc.base import Request, Response
from records.rpc.security import DefaultPrincipalData, EnvelopeRequest, EnvelopeResponse

log = logging.getLogger("coordinator.controller")

R = TypeVar("R", bound=Response)

CORRELATION_ID: Final = 0
"""Of the request in an envelope: the envelope has its own, by which answers are told apart."""

MAX_PRINCIPAL_BYTES: Final = 64 * 1024
PRINCIPAL_VERSION: Final = 0


class Forwarded(NamedTuple):
    """The request in an envelope, and the client that sent it to a broker."""

    client: Client
    header: RequestHeader
    body: Frame


def wrap(request: Request, version: int, client: Client) -> EnvelopeRequest:
    """Put a client's request into an envelope."""
    header = request_header(request_kind(type(request), version), CORRELATION_ID, client.client_id)
    principal = DefaultPrincipalData(
        type=client.principal.kind, name=client.principal.name, token_authenticated=False
    )
    return EnvelopeRequest(
        request_data=b"".join((header, *encode_parts(request, version))),
        request_principal=PRINCIPAL_VERSION.to_bytes(2, "big")
        + encode_message(principal, PRINCIPAL_VERSION),
        client_host_address=_packed(client.host),
        client_request_version=-1 if client.version is None else client.version,
    )


def _packed(host: str) -> bytes:
    """Return an address as bytes; 0.0.0.0 for a peer without an address."""
    try:
        return ipaddress.ip_address(host).packed
    except ValueError:
        return bytes(4)


def unwrap(envelope: EnvelopeRequest, first_flexible: Mapping[int, int | None]) -> Forwarded:
    """Take the client and the request's header and body out of an envelope.

    Args:    first_flexible: the APIs that may be forwarded, each with the first version that has
             tagged fields.
    Raises:  RefusedError with the error code of the envelope.
    """
    host = bytes(envelope.client_host_address)
    if len(host) not in (4, 16):
        text = f"a client address of {len(host)} bytes"
        raise RefusedError(ErrorCode.INVALID_REQUEST, text)
    principal = _principal(bytes(envelope.request_principal or b""))
    data = bytes(envelope.request_data)
    key = int.from_bytes(data[:2], "big")
    if len(data) >= 2 and key not in first_flexible:
        text = f"api key {key} may not be forwarded"
        raise RefusedError(ErrorCode.INVALID_REQUEST, text)
    try:
        header = parse_request_header(memoryview(data), first_flexible)
    except NetError as error:
        raise RefusedError(ErrorCode.UNSUPPORTED_VERSION, str(error)) from None
    version = envelope.client_request_version
    client = Client(
        principal,
        java_host(host),
        header.client_id or "",
        header.api_version if version < 0 else version,
    )
    return Forwarded(client, header, memoryview(data)[header.body_at :])


def _principal(data: bytes) -> Principal:
    """Decode a client's principal. Raises RefusedError."""
    if data[:2] != PRINCIPAL_VERSION.to_bytes(2, "big") or len(data) > MAX_PRINCIPAL_BYTES:
        text = f"a principal of {len(data)} bytes in an unknown version"
        raise RefusedError(ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE, text)
    try:
        found = decode_message(DefaultPrincipalData, data[2:], PRINCIPAL_VERSION)
    except RecordError as error:
        raise RefusedError(
            ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE, f"a malformed principal: {error}"
        ) from None
    return Principal(found.type, found.name)


async def send(rpc: Rpc, request: Request, response: type[R], client: Client) -> R:
    """Send a client's request to a controller in an envelope, and return the response to it.

    Raises:  as `Rpc.call`; CoordinatorError if the controller refuses the envelope, as it does if
             this node may not do CLUSTER_ACTION.
    """
    version = rpc.version_for(type(request))
    answer = await rpc.call(wrap(request, version, client), EnvelopeResponse)
    kind = request_kind(type(request), version)
    head = 5 if kind.flexible else 4  # the correlation id, and no tagged fields
    data = bytes(answer.response_data or b"")
    peer = rpc.connection.peer
    if answer.error_code or len(data) < head:
        code = ErrorCode(answer.error_code)
        if code is ErrorCode.NOT_CONTROLLER:
            raise NetError(Reason.UNSUPPORTED, f"{peer} is not the controller")
        text = f"{peer} refuses to take a request that this node forwards: {code.name}"
        log.error("action=forward error=%r", text)
        raise CoordinatorError(code, text)
    try:
        return decode_message(response, data[head:], version)
    except RecordError as error:
        raise NetError(Reason.BAD_ANSWER, f"{peer}: {error}") from error
