"""Refuses Produce versions 0 to 2, which precede record batches, in their own wire format.

Versions 0 to 2 are announced and not served. librdkafka decides by the lowest version of Produce
whether a broker can take compressed batches, and silently stops compressing if that is not 0; no
client of today sends them. One that does gets UNSUPPORTED_VERSION for each partition, in the format
of its own version. A request with acks=0 has no response, so its connection is closed.

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


def refuse(header: RequestHeader, body: Frame) -> Answer:
    """Answer a Produce request of version 0, 1 or 2 with an error for each partition.

    Raises:  BadHeaderError if the body is malformed, or the request has acks=0.
    """
    try:
        acks, _, topics = _BEGIN.unpack_from(body)
        if acks == 0:
            raise BadHeaderError(f"Produce version {header.api_version} with acks=0 is not taken")
        refusals = _refusals(body, topics, header.api_version)
    except struct.error as error:
        raise BadHeaderError(f"Produce version {header.api_version}: {error}") from error
    throttle_time = b"\0\0\0\0" if header.api_version >= 1 else b""
    return response_header(header.correlation_id, flexible=False) + refusals + throttle_time


def _refusals(body: Frame, topics: int, version: int) -> bytes:
    """Encode an error response for every partition of an old Produce request."""
    form = _ANSWER[version]
    rest = (_NO_OFFSET,) if version < LAST_VERSION else (_NO_OFFSET, _NO_TIME)
    position = _BEGIN.size
    parts = [_COUNT.pack(topics)]
    for _ in range(_check_count(topics, body)):
        (size,) = _NAME.unpack_from(body, position)
        end = position + _NAME.size + _check_count(size, body)
        (partitions,) = _COUNT.unpack_from(body, end)
        parts += (bytes(body[position:end]), _COUNT.pack(partitions))
        position = end + _COUNT.size
        for _ in range(_check_count(partitions, body)):
            index, size = _PARTITION.unpack_from(body, position)
            position += _PARTITION.size + max(0, _check_count(size, body, least=-1))
            parts.append(form.pack(index, ErrorCode.UNSUPPORTED_VERSION, *rest))
    return b"".join(parts)


def _check_count(count: int, body: Frame, *, least: int = 0) -> int:
    """Return an array's count, or raise BadHeaderError if the body is too short for the items."""
    if not least <= count <= len(body):
        raise BadHeaderError(f"a count of {count} in a request of {len(body)} bytes")
    return count
