"""Produce requests that look like one before them, taken without decoding.

A client sends the same request again and again: the same version, client id, topic and partition;
only the correlation id and the records change. So once a request was decoded and found good, its
bytes around the records are remembered. A frame with the same bytes around them says the same, by
construction, and only its one batch is left to be looked at. Whatever differs, in the least, goes
the long way: so this page decides nothing about what is right, only what is known to be.

What is left of the checks is what the records need: one plain batch (uncompressed, of nobody's
transaction), whose header agrees with itself and whose checksum is right.

Source: the protocol guide, Produce; KIP-482 (varint lengths, tagged fields).
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from crc32c import crc32c

from raft.net import Frame, RequestHeader
from raft.net.header import header_tail
from records.batch import (
    COMPRESSION_MASK,
    CONTROL,
    CRC_START,
    HEADER,
    HEADER_SIZE_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    TRANSACTIONAL,
)
from records.codegen import uvarint
from records.compression import Buffer
from records.rpc.produce import ProduceRequest

MAX_FORMS: Final = 16
CORRELATION_END: Final = 8  # api key, version, correlation id

_NOT_PLAIN: Final = COMPRESSION_MASK | CONTROL | TRANSACTIONAL
_LEAST_RECORD_BYTES: Final = 7
_NO_TAGS: Final = b"\x00\x00\x00"  # of partition, topic and request
_start: Final = struct.Struct(">hh").pack
_unpack_header: Final = HEADER.unpack_from
_unpack_int32: Final = struct.Struct(">i").unpack_from


class Success(NamedTuple):
    """An answer around its base offset, without the correlation id."""

    before: bytes
    after: bytes


class _Form(NamedTuple):
    """A request without correlation id and records."""

    start: bytes  # api key and version
    middle: bytes  # from the client id to the length of the records
    records_at: int  # where that length is, in the frame
    tail: bytes
    flexible: bool
    success: Success


class Known(NamedTuple):
    """What is new in a request of a known form."""

    correlation_id: int
    batch: Buffer
    record_count: int
    success: Success


class KnownForms:
    """The forms seen lately, the last one first."""

    def __init__(self) -> None:
        self._forms: list[_Form] = []

    def learn(
        self, header: RequestHeader, request: ProduceRequest, body: Frame, success: Success
    ) -> None:
        """Remember the form of a request that was decoded and found good."""
        records = request.topic_data[0].partition_data[0].records
        tail = _NO_TAGS if header.flexible else b""
        if records is None or bytes(body[len(body) - len(tail) :]) != tail:
            return
        length = uvarint(len(records) + 1) if header.flexible else struct.pack(">i", len(records))
        before = bytes(body[: len(body) - len(tail) - len(records) - len(length)])
        middle = header_tail(header.client_id, flexible=header.flexible) + before
        form = _Form(
            _start(header.api_key, header.api_version),
            middle,
            CORRELATION_END + len(middle),
            tail,
            header.flexible,
            success,
        )
        if form not in self._forms:
            self._forms.insert(0, form)
            del self._forms[MAX_FORMS:]

    def match(self, frame: Frame) -> Known | None:
        """What is new in a frame of a known form; None: decode it."""
        for index, form in enumerate(self._forms):
            at = form.records_at
            if frame[:4] == form.start and frame[CORRELATION_END:at] == form.middle:
                if index:
                    self._forms.insert(0, self._forms.pop(index))
                return _known(frame, form)
        return None


def _known(frame: Frame, form: _Form) -> Known | None:
    """Look at the records: None if they are not one plain and sound batch."""
    size_bytes, at = _length(frame, form)
    end = at + size_bytes
    if size_bytes <= HEADER_SIZE_BYTES or frame[end:] != form.tail or end > len(frame):
        return None
    _, length, _, magic, crc, attributes, last_delta, _, _, _, _, _, count = _unpack_header(
        frame, at
    )
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
    return Known(correlation_id, frame[at:end], count, form.success)


def _length(frame: Frame, form: _Form) -> tuple[int, int]:
    """The size of the records, and where they begin; -1 if there is no length."""
    at = form.records_at
    if not form.flexible:
        return (_unpack_int32(frame, at)[0], at + 4) if len(frame) >= at + 4 else (-1, at)
    value = shift = 0
    for byte in frame[at : at + 5]:
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value - 1, at
        shift += 7
    return -1, at
