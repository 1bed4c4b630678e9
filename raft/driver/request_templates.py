"""Matches Produce requests against templates of earlier ones, to accept them without decoding.

A client sends the same request again and again: the same version, client id, topic and partition;
only the correlation id and the records change. So once a request was decoded and found valid, its
bytes around the records are kept as a template. A frame with the same bytes around its records
means the same, by construction, and only its one batch is left to be checked. A frame that differs
at all is decoded: this module never decides what is valid, only what equals something valid.

The remaining checks are of the records: one plain batch (uncompressed, not transactional, no
control batch), whose header is consistent and whose checksum is right.

Source: the protocol guide, Produce; KIP-482 (varint lengths, tagged fields).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

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
from records.codegen import uvarint
from records.compression import Buffer
from records.rpc.produce import ProduceRequest

MAX_TEMPLATES: Final = 16
CORRELATION_END: Final = 8  # api key, version, correlation id

_NOT_PLAIN: Final = COMPRESSION_MASK | CONTROL | TRANSACTIONAL
_LEAST_RECORD_BYTES: Final = 7
_NO_TAGS: Final = b"\x00\x00\x00"  # of partition, topic and request
_new_tuple: Final = tuple.__new__  # cheaper than a named tuple's own
_start: Final = struct.Struct(">hh").pack
_unpack_checked: Final = struct.Struct(">8xi4xbIhi30xi").unpack_from
"""Reads the fields of a batch's header that are compared: length, magic, CRC, attributes, last
offset delta and record count, at their places in `records.batch.HEADER`."""

_unpack_int32: Final = struct.Struct(">i").unpack_from


class Success(NamedTuple):
    """The encoded answer before and after its base offset, without the correlation id."""

    before: bytes
    after: bytes
    pack: Callable[[int, bytes, int, bytes], bytes]  # of correlation id, before, base offset, after


def success_of(before: bytes, after: bytes) -> Success:
    """Build the encoded success response to requests that differ in correlation id and offset.

    >>> before, after, pack = success_of(b"b", b"aa")
    >>> pack(1, before, 2, after)
    b'\\x00\\x00\\x00\\x01b\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x02aa'
    """
    return Success(before, after, struct.Struct(f">i{len(before)}sq{len(after)}s").pack)


class _Template(NamedTuple):
    """The bytes of a request except its correlation id and records."""

    start: bytes  # api key and version
    middle: bytes  # from the client id to the length of the records
    records_at: int  # where that length is, in the frame
    tail: bytes
    flexible: bool
    success: Success


class MatchedRequest(NamedTuple):
    """The parts of a request that its template does not determine."""

    correlation_id: int
    batch: Buffer
    record_count: int
    success: Success


class RequestTemplates:
    """A cache of request templates, most recently matched first."""

    def __init__(self) -> None:
        self._templates: list[_Template] = []

    def learn(
        self, header: RequestHeader, request: ProduceRequest, body: Frame, success: Success
    ) -> None:
        """Keep the bytes around a decoded Produce request's records, to match later requests."""
        records = request.topic_data[0].partition_data[0].records
        tail = _NO_TAGS if header.flexible else b""
        if records is None or bytes(body[len(body) - len(tail) :]) != tail:
            return
        length = uvarint(len(records) + 1) if header.flexible else struct.pack(">i", len(records))
        before = bytes(body[: len(body) - len(tail) - len(records) - len(length)])
        middle = header_tail(header.client_id, flexible=header.flexible) + before
        template = _Template(
            _start(header.api_key, header.api_version),
            middle,
            CORRELATION_END + len(middle),
            tail,
            header.flexible,
            success,
        )
        if template not in self._templates:
            self._templates.insert(0, template)
            del self._templates[MAX_TEMPLATES:]

    def match(self, frame: Frame) -> MatchedRequest | None:
        """Match a frame against the templates; return None if the frame needs full decoding."""
        for index, template in enumerate(self._templates):
            at = template.records_at
            if frame[:4] == template.start and frame[CORRELATION_END:at] == template.middle:
                if index:
                    self._templates.insert(0, self._templates.pop(index))
                return _match_records(frame, template)
        return None


def _match_records(frame: Frame, template: _Template) -> MatchedRequest | None:
    """Return the request in a matching frame, or None if its records are not one valid batch."""
    size_bytes, at = _length(frame, template)
    end = at + size_bytes
    if size_bytes <= HEADER_SIZE_BYTES or frame[end:] != template.tail or end > len(frame):
        return None
    length, magic, crc, attributes, last_delta, count = _unpack_checked(frame, at)
    if (
        magic != MAGIC
        or length + LOG_OVERHEAD_BYTES != size_bytes
        or attributes & _NOT_PLAIN
        or count < 1
        or last_delta != count - 1
        or count * _LEAST_RECORD_BYTES > size_bytes - HEADER_SIZE_BYTES
        or crc32c(frame[at + CRC_START : end]) != crc
    ):
        return None
    (correlation_id,) = _unpack_int32(frame, 4)
    return _new_tuple(MatchedRequest, (correlation_id, frame[at:end], count, template.success))


def _length(frame: Frame, template: _Template) -> tuple[int, int]:
    """Return the size of a frame's records and their position, or size -1 if malformed."""
    at = template.records_at
    if not template.flexible:
        return (_unpack_int32(frame, at)[0], at + 4) if len(frame) >= at + 4 else (-1, at)
    if len(frame) > at + 1 and frame[at + 1] < 0x80 <= frame[at]:  # most have two bytes
        return (frame[at + 1] << 7 | frame[at] & 0x7F) - 1, at + 2
    value = shift = 0
    for byte in frame[at : at + 5]:
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value - 1, at
        shift += 7
    return -1, at
