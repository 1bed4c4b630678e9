"""The headers in front of every request and response.

A request begins with api key, api version, correlation id and client id; from the version on that
made an api "flexible", tagged fields follow (header v2). A response begins with the correlation
id and, if flexible, tagged fields (header v1). One surprise, kept for ever: that to ApiVersions
never has tagged fields, because a client that does not yet know the server's versions must be able
to read it. Another: the client id stays a plain string in the flexible header.

Which version made an api flexible is the codec's knowledge, so callers bring it as a mapping.

Source: KIP-482 (flexible headers), KIP-511 (ApiVersions), upstream's RequestHeader.json and
ResponseHeader.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Final, NamedTuple

from raft.net.errors import BadHeaderError
from raft.net.frames import Frame

API_VERSIONS_KEY: Final = 18

MAX_TAGGED_FIELDS: Final = 100
"""Largest number of tagged fields in a header. None are assigned yet; decoding a header of a
hundred megabytes would block the event loop."""

_FIXED: Final = Struct(">hhih")  # api key, api version, correlation id, length of the client id
_SHORTEST: Final = Struct(">hhi")
_CORRELATION: Final = Struct(">i")
_new_header: Final = tuple.__new__  # a NamedTuple's own constructor takes twice as long


class RequestHeader(NamedTuple):
    """The header of a request. `body_at` is the position of the body in the frame."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    flexible: bool
    body_at: int


class RequestKind(NamedTuple):
    """An api at one version, as a client sends it."""

    api_key: int
    api_version: int
    flexible: bool  # the request header has tagged fields
    answer_flexible: bool  # so has the response header

    @classmethod
    def of(cls, api_key: int, api_version: int, first_flexible: int | None) -> RequestKind:
        """Return a request's kind: api key, version, and whether the version has tagged fields."""
        flexible = first_flexible is not None and api_version >= first_flexible
        return cls(api_key, api_version, flexible, flexible and api_key != API_VERSIONS_KEY)


def parse_request_header(frame: Frame, first_flexible: Mapping[int, int | None]) -> RequestHeader:
    """Parse the header at the beginning of a request frame.

    Args:    first_flexible: for each api key that is served, the first version with header v2, or
             None if there is none. Whether the *version* is served is for the caller to check:
             ApiVersions answers an unknown one, in its v0 body, with UNSUPPORTED_VERSION.
    Raises:  BadHeaderError if the bytes end early or contradict themselves, or the key is unknown.

    >>> parse_request_header(bytes.fromhex("0012 0003 00000007 0002 6d65 00 aa"), {18: 3})
    RequestHeader(api_key=18, api_version=3, correlation_id=7, client_id='me', flexible=True, body_at=13)
    """  # noqa: E501
    length = len(frame)
    if length < 10:
        raise BadHeaderError(f"a request of {length} bytes")
    api_key, api_version, correlation_id, client_id_length = _FIXED.unpack_from(frame)
    try:
        first = first_flexible[api_key]
    except KeyError:
        client = bytes(frame[10 : 10 + min(100, max(0, client_id_length))])
        raise BadHeaderError(
            f"unknown api key {api_key}, version {api_version}; client id {client!r}"
        ) from None
    if api_version < 0 or client_id_length < -1:
        raise BadHeaderError(f"version {api_version}, client id length {client_id_length}")
    body_at = 10
    client_id = None
    if client_id_length >= 0:
        body_at += client_id_length
        if body_at > length:
            raise BadHeaderError(f"client id of {client_id_length} bytes in a frame of {length}")
        try:
            client_id = bytes(frame[10:body_at]).decode()
        except UnicodeDecodeError as error:
            raise BadHeaderError("client id is not UTF-8") from error
    flexible = first is not None and api_version >= first
    if flexible:
        if body_at < length and frame[body_at] == 0:  # no tagged fields: nearly always
            body_at += 1
        else:
            body_at = skip_tagged_fields(frame, body_at)
    return _new_header(
        RequestHeader, (api_key, api_version, correlation_id, client_id, flexible, body_at)
    )


def skip_tagged_fields(frame: Frame, at: int) -> int:
    """Skip the tagged fields that begin at `at`, and return the position after them.

    Source: KIP-482.

    Raises:  BadHeaderError if they do not end within the frame.
    """
    count, at = _read_uvarint(frame, at)
    if count > MAX_TAGGED_FIELDS:
        raise BadHeaderError(f"{count} tagged fields in a header, at most {MAX_TAGGED_FIELDS}")
    previous = -1
    for _ in range(count):
        tag, at = _read_uvarint(frame, at)
        if tag <= previous:
            raise BadHeaderError(f"tag {tag} after tag {previous}")
        size, at = _read_uvarint(frame, at)
        if size > len(frame) - at:
            raise BadHeaderError(f"tagged field of {size} bytes, {len(frame) - at} are left")
        previous, at = tag, at + size
    return at


def request_header(kind: RequestKind, correlation_id: int, client_id: str | None) -> bytes:
    """Encode a request header: v2 if `kind.flexible`, else v1."""
    return _SHORTEST.pack(kind.api_key, kind.api_version, correlation_id) + header_tail(
        client_id, flexible=kind.flexible
    )


def header_tail(client_id: str | None, *, flexible: bool) -> bytes:
    """Encode the client id and the empty tagged fields (if `flexible`) of a request header."""
    name = b"\xff\xff" if client_id is None else _encode_string(client_id)
    return name + b"\x00" if flexible else name


def response_header(correlation_id: int, *, flexible: bool) -> bytes:
    """Encode a response header: v1 if `flexible`, or else v0, which ApiVersions always needs."""
    return _CORRELATION.pack(correlation_id) + (b"\x00" if flexible else b"")


def _encode_string(text: str) -> bytes:
    encoded = text.encode()
    if len(encoded) > 32_767:
        raise ValueError(f"client id of {len(encoded)} bytes, at most 32767")
    return len(encoded).to_bytes(2, "big") + encoded


def _read_uvarint(frame: Frame, at: int) -> tuple[int, int]:
    """Read an unsigned varint of at most five bytes; return its value and end position."""
    value = 0
    for shift in (0, 7, 14, 21, 28):
        if at >= len(frame):
            raise BadHeaderError("the header ends inside a varint")
        byte = frame[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFF_FFFF:
                break
            return value, at
    raise BadHeaderError("a varint of more than 32 bits")
