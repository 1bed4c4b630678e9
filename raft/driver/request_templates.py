"""Matches Produce requests against templates of earlier ones, to accept them without decoding.

A client sends the same request again and again: the same version, client id, topic and partition;
only the correlation id and the records change. So once a request was decoded and found valid, its
bytes around the records are kept as a template. A frame with the same bytes around its records, and
as many bytes for their length, means the same, by construction, and only its one batch is left to
be checked. A frame that differs at all is decoded: this module never decides what is valid, only
what equals something valid.

The remaining checks are of the records: one plain batch (uncompressed, not transactional, no
control batch), whose header is consistent and whose checksum is right.

Source: the protocol guide, Produce; KIP-482 (varint lengths, tagged fields).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, TypeAlias

import msgspec
from crc32c import crc32c

from raft.net import Frame, RequestHeader
from raft.net.header import header_tail
from records.batch import (
    COMPRESSION_MASK,
    CONTROL,
    CRC_START,
    HEADER_SIZE_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    TRANSACTIONAL,
)
from records.codec import encode_message
from records.codegen import uvarint
from records.compression import Buffer
from records.rpc.produce import ProduceRequest

MAX_TEMPLATES: Final = 48  # of 16 clients, whose records' lengths take one to three bytes

_NOT_PLAIN: Final = COMPRESSION_MASK | CONTROL | TRANSACTIONAL
_LEAST_RECORD_BYTES: Final = 7
_NO_TAGS: Final = b"\x00\x00\x00"  # of partition, topic and request
_start: Final = struct.Struct(">hh").pack
_int32_length: Final = struct.Struct(">i").pack
_CHECKED: Final = "8xi4xbIhi30xi"
"""The fields of a batch's header that are compared: length, magic, CRC, attributes, last offset
delta and record count, at their places in `records.batch.HEADER`."""

Success: TypeAlias = tuple[bytes, bytes, Callable[[int, bytes, int, bytes], bytes]]
"""The encoded answer before and after its base offset, without the correlation id; and what packs
correlation id, before, base offset and after. This and `MatchedRequest` are plain tuples: named
ones take twice the time to make, and to take apart."""

MatchedRequest: TypeAlias = tuple[int, Buffer, int, Success]
"""The parts of a request that its template does not determine, and the form of its answer:
correlation id, batch, number of records, success."""


def success_of(before: bytes, after: bytes) -> Success:
    """Build the encoded success response to requests that differ in correlation id and offset.

    >>> before, after, pack = success_of(b"b", b"aa")
    >>> pack(1, before, 2, after)
    b'\\x00\\x00\\x00\\x01b\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x02aa'
    """
    return before, after, struct.Struct(f">i{len(before)}sq{len(after)}s").pack


@dataclass(slots=True)
class _Template:
    """The bytes of a request except its correlation id, its records and their length."""

    start: bytes  # api key and version
    middle: bytes  # from the client id to the length of the records
    tail: bytes
    success: Success = field(compare=False)
    encode_length: Callable[[int], bytes]  # of the records
    records_at: int  # in the frame
    least_bytes: int  # of a frame that `unpack` can read
    unpack: Callable[[Buffer], tuple[bytes, int, bytes, bytes, int, int, int, int, int, int]] = (
        field(compare=False)
    )  # start, correlation id, middle, length of the records, and what `_CHECKED` says


def _bytes_before_length(request: ProduceRequest, version: int, end: bytes) -> bytes | None:
    """Return the encoded request up to the length of its records; None if it has unknown tags.

    Args:  end: the encoded length of no records, and all that follows it.
    """
    replace: Any = msgspec.structs.replace  # its types know no messages
    (topic,) = request.topic_data
    (partition,) = topic.partition_data
    topic = replace(topic, partition_data=(replace(partition, records=b""),))
    encoded = encode_message(replace(request, topic_data=(topic,)), version)
    return encoded[: -len(end)] if encoded.endswith(end) else None


@lru_cache(maxsize=4096)
def _compact_length(size_bytes: int) -> bytes:
    return uvarint(size_bytes + 1)


class RequestTemplates:
    """A cache of request templates, most recently matched first."""

    def __init__(self) -> None:
        self._templates: list[_Template] = []

    def learn(
        self, header: RequestHeader, request: ProduceRequest, body: Frame, success: Success
    ) -> None:
        """Keep the bytes around a decoded Produce request's records, to match later requests.

        A request that is encoded in another way than we encode it is not kept: what stands where
        its records should end could be something else.
        """
        records = request.topic_data[0].partition_data[0].records
        if records is None:
            return
        tail = _NO_TAGS if header.flexible else b""
        encode_length = _compact_length if header.flexible else _int32_length
        before = _bytes_before_length(request, header.api_version, encode_length(0) + tail)
        length = encode_length(len(records))
        if before is None or body != b"".join((before, length, records, tail)):
            return
        length_bytes = len(length)
        middle = header_tail(header.client_id, flexible=header.flexible) + before
        form = struct.Struct(f">4si{len(middle)}s{length_bytes}s{_CHECKED}")
        template = _Template(
            start=_start(header.api_key, header.api_version),
            middle=middle,
            tail=tail,
            success=success,
            encode_length=encode_length,
            records_at=form.size - HEADER_SIZE_BYTES,
            least_bytes=form.size,
            unpack=form.unpack_from,
        )
        if template not in self._templates:
            self._templates.insert(0, template)
            del self._templates[MAX_TEMPLATES:]

    def match(self, frame: Frame) -> MatchedRequest | None:
        """Match a frame against the templates.

        Return None if none matches, or if the records are not one plain, valid batch.
        """
        frame_bytes = len(frame)
        for template in self._templates:
            if frame_bytes < template.least_bytes:
                continue
            (
                start,
                correlation_id,
                middle,
                size,
                length,
                magic,
                crc,
                attributes,
                last_delta,
                count,
            ) = template.unpack(frame)
            if start != template.start or middle != template.middle:
                continue
            size_bytes = length + LOG_OVERHEAD_BYTES
            at = template.records_at
            end = at + size_bytes
            if (
                size_bytes <= HEADER_SIZE_BYTES
                or end > frame_bytes
                or size != template.encode_length(size_bytes)
                or frame[end:] != template.tail
                or magic != MAGIC
                or attributes & _NOT_PLAIN
                or count < 1
                or last_delta != count - 1
                or count * _LEAST_RECORD_BYTES > size_bytes - HEADER_SIZE_BYTES
                or crc32c(frame[at + CRC_START : end]) != crc
            ):
                continue
            if template is not self._templates[0]:
                self._templates.remove(template)
                self._templates.insert(0, template)
            return correlation_id, frame[at:end], count, template.success
        return None
