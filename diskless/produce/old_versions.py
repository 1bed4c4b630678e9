"""Produce as it was before record batches: understood just well enough to be refused.

Versions 0 to 2 are announced and not served. librdkafka decides by the lowest version of Produce
whether a broker can take compressed batches, and stops compressing, silently, if that is not 0; no
client of today sends them. One that does is told UNSUPPORTED_VERSION for each partition, in the
form of its own version. With acks=0 nothing can be told, and the connection is closed.

Source: KAFKA-18659 (Kafka 4 announces them too); the protocol guide, Produce.
"""

from __future__ import annotations

import struct
from struct import Struct
from typing import Final

from raft.net import (
    Answer,
    BadHeaderError,
    Frame,
    RequestHeader,
    ServerConnection,
    response_header,
)
from records.kafka_errors import ErrorCode

LAST_VERSION: Final = 2

_BEGIN: Final = Struct(">hii")  # acks, timeout, how many topics
_COUNT: Final = Struct(">i")
_NAME: Final = Struct(">h")
_PARTITION: Final = Struct(">ii")  # index, bytes of messages
_ANSWER: Final = {0: Struct(">ihq"), 1: Struct(">ihq"), 2: Struct(">ihqq")}
_NO_OFFSET: Final = -1
_NO_TIME: Final = -1


def refuse(
    connection: ServerConnection,  # noqa: ARG001 (a handler's)
    header: RequestHeader,
    body: Frame,
) -> Answer:
    """The answer to a Produce of version 0, 1 or 2.

    Raises:  BadHeaderError if it is none, or wants no answer.
    """
    try:
        acks, _, topics = _BEGIN.unpack_from(body)
        if acks == 0:
            raise BadHeaderError(f"Produce version {header.api_version} with acks=0 is not taken")
        told = _refusals(body, topics, header.api_version)
    except struct.error as error:
        raise BadHeaderError(f"Produce version {header.api_version}: {error}") from error
    throttled = b"\0\0\0\0" if header.api_version >= 1 else b""
    return response_header(header.correlation_id, flexible=False) + told + throttled


def _refusals(body: Frame, topics: int, version: int) -> bytes:
    """The same topics and partitions, with an error each; no more than the body really names."""
    form = _ANSWER[version]
    rest = (_NO_OFFSET,) if version < LAST_VERSION else (_NO_OFFSET, _NO_TIME)
    at = _BEGIN.size
    parts = [_COUNT.pack(topics)]
    for _ in range(_checked(topics, body)):
        (size,) = _NAME.unpack_from(body, at)
        end = at + _NAME.size + _checked(size, body)
        (partitions,) = _COUNT.unpack_from(body, end)
        parts += (bytes(body[at:end]), _COUNT.pack(partitions))
        at = end + _COUNT.size
        for _ in range(_checked(partitions, body)):
            index, size = _PARTITION.unpack_from(body, at)
            at += _PARTITION.size + max(0, _checked(size, body, least=-1))
            parts.append(form.pack(index, ErrorCode.UNSUPPORTED_VERSION, *rest))
    return b"".join(parts)


def _checked(count: int, body: Frame, *, least: int = 0) -> int:
    if not least <= count <= len(body):
        raise BadHeaderError(f"a count of {count} in a request of {len(body)} bytes")
    return count
