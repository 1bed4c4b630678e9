"""The bytes of a segment's `.runs` file: which offsets lie where in its `.log`, and of which run.

A header and entries of one size, big endian. Each entry has the CRC of its range of the `.log`, and
a CRC of its own that begins with the owner: so an entry of another cluster, topic or partition is
no entry here, however it got into the file.

Source: docs/design/local-segments.md#files.
"""

from __future__ import annotations

import re
import struct
from hashlib import blake2b
from typing import Final, NamedTuple
from uuid import UUID

from crc32c import crc32c

from diskless.fetch.runs_reader import Run
from records.compression import Buffer
from records.uuids import decode_uuid, encode_uuid

LOG_SUFFIX: Final = ".log"
RUNS_SUFFIX: Final = ".runs"

MAGIC: Final = b"ESKERRUN"
VERSION: Final = 1

TAIL: Final = 0
CATCH_UP: Final = 1
KIND_NAMES: Final = {TAIL: "tail", CATCH_UP: "catch-up"}

_HEADER: Final = struct.Struct(">8shhq16s")
_ENTRY: Final = struct.Struct(">qqqII16s")
_CRC: Final = struct.Struct(">I")
_RUN: Final = struct.Struct(">qqqqqqq")

HEADER_BYTES: Final = _HEADER.size + _CRC.size
ENTRY_BYTES: Final = _ENTRY.size + _CRC.size

_SEGMENT_NAME: Final = re.compile(r"\d{20}\.(?:log|runs)")


class TopicPartition(NamedTuple):
    """A partition, by the id of its topic."""

    topic_id: UUID
    partition: int

    @property
    def directory_name(self) -> str:
        """Return the name of the directory with the partition's segments."""
        return f"{encode_uuid(self.topic_id)}-{self.partition}"


class Header(NamedTuple):
    """The header of a `.runs` file."""

    kind: int
    created_ms: int
    owner: bytes


class Entry(NamedTuple):
    """A range of a segment: whole batches of one run."""

    first_offset: int  # behind the batch before the range
    last_offset: int  # inclusive
    position: int  # in the .log
    size_bytes: int
    crc: int
    identity: bytes

    @property
    def end_position(self) -> int:
        """Return the position in the .log behind the range."""
        return self.position + self.size_bytes


def identify(run: Run) -> bytes:
    """Return the identity of a run: equal for runs of equal bytes and offsets only.

    An object key is never used twice and an object never changes, so nothing else is needed.
    """
    numbers = _RUN.pack(
        run.byte_offset,
        run.size_bytes,
        run.base_offset,
        run.last_offset,
        run.timestamp_type,
        run.append_time,
        run.object_format,
    )
    return blake2b(
        b"%b%b\0%b" % (numbers, run.object_key.encode(), run.control), digest_size=16
    ).digest()


def owner_of(cluster_id: str, partition: TopicPartition, base_offset: int) -> bytes:
    """Return the digest that binds a segment to its cluster, partition and name."""
    text = f"{cluster_id}/{partition.directory_name}/{base_offset}"
    return blake2b(text.encode(), digest_size=16).digest()


def encode_header(header: Header) -> bytes:
    """Return the first bytes of a `.runs` file."""
    fields = _HEADER.pack(MAGIC, VERSION, header.kind, header.created_ms, header.owner)
    return fields + _CRC.pack(crc32c(fields))


def decode_header(data: Buffer) -> Header | None:
    """Return the header of a `.runs` file; None if this is none, or of a later version."""
    view = memoryview(data)
    if len(view) < HEADER_BYTES:
        return None
    magic, version, kind, created_ms, owner = _HEADER.unpack_from(view)
    (crc,) = _CRC.unpack_from(view, _HEADER.size)
    is_whole = crc == crc32c(view[: _HEADER.size])
    if not is_whole or magic != MAGIC or version != VERSION or kind not in KIND_NAMES:
        return None
    return Header(kind, created_ms, owner)


def encode_entry(entry: Entry, owner: bytes) -> bytes:
    """Return an entry of a segment with this owner."""
    fields = _ENTRY.pack(*entry)
    return fields + _CRC.pack(crc32c(fields, crc32c(owner)))


def decode_entries(data: Buffer, owner: bytes, log_bytes: int) -> bytearray:
    """Return the sound entries at the begin of `data`, in their encoded form.

    The first entry that is torn, another owner's, out of order, or of bytes behind the end of the
    `.log` ends them.
    """
    view, seed = memoryview(data), crc32c(owner)
    sound = bytearray()
    end_offset = end_position = 0
    for begin in range(0, len(view) - ENTRY_BYTES + 1, ENTRY_BYTES):
        fields = view[begin : begin + _ENTRY.size]
        (crc,) = _CRC.unpack_from(view, begin + _ENTRY.size)
        if crc != crc32c(fields, seed):
            break
        entry = Entry(*_ENTRY.unpack(fields))
        is_behind = entry.first_offset >= end_offset and entry.position >= end_position
        is_range = entry.first_offset <= entry.last_offset and entry.end_position <= log_bytes
        if not is_behind or not is_range:
            break
        end_offset, end_position = entry.last_offset + 1, entry.end_position
        sound += view[begin : begin + ENTRY_BYTES]
    return sound


def entry_at(entries: bytes | bytearray, index: int) -> Entry:
    """Return one of some encoded entries."""
    return Entry(*_ENTRY.unpack_from(entries, index * ENTRY_BYTES))


def parse_directory_name(name: str) -> TopicPartition | None:
    """Return the partition whose segments a directory of this name has; None for another name."""
    topic_id, _, partition = name.rpartition("-")
    try:
        found = TopicPartition(decode_uuid(topic_id), int(partition))
    except ValueError:
        return None
    return found if found.directory_name == name else None


def parse_segment_name(name: str) -> int | None:
    """Return the base offset in the name of a segment's file; None for another name."""
    return int(name[:20]) if _SEGMENT_NAME.fullmatch(name) else None
