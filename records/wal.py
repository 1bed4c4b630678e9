"""WAL segment objects: many partitions' batches in one object with a footer that locates them.

    batches, back to back, those of a partition together
    footer     msgpack, see `Footer`
    trailer    24 bytes: footer size (uint32), footer CRC-32C (uint32), object size (int64), magic

The coordinator alone knows which offsets the batches have, and needs none of this to serve them.
The footer is for who has the object and nothing else: a person with `esker dump-log`, an audit that
compares the bucket with the log, a disaster recovery. It says who wrote the object, as which id, in
which cluster, and what each byte range is.

The surprise: in the objects that brokers append, batches stand as producers sent them, with base
offset 0. Offsets are decided after the object is written, are kept elsewhere, and are put into a
batch when it is read. Rewritten objects hold batches with their offsets; the footer's first field
tells the two formats apart.

Source: KIP-1163, Data Format and WAL Segment Objects; docs/design/broker.md#wal-segment-objects.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgpack
from crc32c import crc32c

from records.batch import iter_batches
from records.compression import Buffer
from records.errors import RecordError

MARKER: Final = 0
"""Format of a transaction marker, which lies in no object."""

APPENDED: Final = 1
"""Format of the objects that brokers append: batches as producers sent them, at offset 0."""

FINAL: Final = 2
"""Format of rewritten objects: batches in final form (`records.final_batches`)."""

MAGIC: Final = b"EskrWAL1"
TRAILER: Final = struct.Struct(">IIq8s")
MAX_FOOTER_BYTES: Final = 16 * 1024 * 1024  # 10,000 partitions need half a megabyte
MAX_PARTITIONS: Final = 100_000


class DamagedObjectError(RecordError):
    """An object whose bytes contradict its footer, or that has none."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"not a whole WAL segment object: {reason}")
        self.reason = reason


class PartitionBytes(NamedTuple):
    """The part of an object that belongs to one partition."""

    topic_id: UUID
    partition: int
    byte_offset: int
    size_bytes: int
    batch_count: int
    record_count: int
    crc: int  # CRC-32C of these bytes


class Footer(NamedTuple):
    """The content of an object's footer."""

    cluster_id: str
    object_id: int
    broker_id: int
    broker_epoch: int
    partitions: tuple[PartitionBytes, ...]  # by rising byte offset, without gaps
    data_bytes: int  # where the footer begins
    object_format: int  # APPENDED or FINAL


class PartitionBatches(NamedTuple):
    """Validated batches of one partition, to be written."""

    topic_id: UUID
    partition: int
    batches: Sequence[Buffer]
    record_count: int
    batch_count: int | None = None  # None: each buffer is a batch; else some hold several


def build_object(
    content: Iterable[PartitionBatches],
    *,
    cluster_id: str,
    object_id: int,
    broker_id: int,
    broker_epoch: int,
    object_format: int = APPENDED,
) -> tuple[list[Buffer], int]:
    """Return a WAL object's content as buffers in order, and its size in bytes."""
    parts: list[Buffer] = []
    rows: list[tuple[bytes, int, int, int, int, int, int]] = []
    position = 0
    for topic_id, partition, batches, record_count, batch_count in content:
        begin, crc = position, 0
        for batch in batches:
            crc = crc32c(batch, crc)
            position += len(batch)
        parts.extend(batches)
        size_bytes = position - begin
        count = len(batches) if batch_count is None else batch_count
        rows.append((topic_id.bytes, partition, begin, size_bytes, count, record_count, crc))
    assert len(rows) <= MAX_PARTITIONS, f"{len(rows)} partitions in one object"
    footer = msgpack.packb([object_format, cluster_id, object_id, broker_id, broker_epoch, rows])
    size_bytes = position + len(footer) + TRAILER.size
    parts += [footer, TRAILER.pack(len(footer), crc32c(footer), size_bytes, MAGIC)]
    return parts, size_bytes


def footer_range(trailer: Buffer, size_bytes: int) -> tuple[int, int]:
    """Return the offset and size in bytes of a WAL object's footer, read from its trailer.

    Raises:  DamagedObjectError.
    """
    if len(trailer) != TRAILER.size:
        raise DamagedObjectError(f"{size_bytes} bytes are too few")
    footer_bytes, _, object_bytes, magic = TRAILER.unpack(trailer)
    if magic != MAGIC:
        raise DamagedObjectError(f"it ends in {bytes(magic)!r}")
    if object_bytes != size_bytes:
        raise DamagedObjectError(f"{size_bytes} bytes, written as {object_bytes}")
    offset = size_bytes - TRAILER.size - footer_bytes
    if offset < 0 or footer_bytes > MAX_FOOTER_BYTES:
        raise DamagedObjectError(f"a footer of {footer_bytes} bytes")
    return offset, footer_bytes


def parse_footer(footer: Buffer, trailer: Buffer, size_bytes: int) -> Footer:
    """Parse the footer of a WAL object, and check that its values agree with each other.

    Args:    size_bytes: of the whole object.
    Raises:  DamagedObjectError.
    """
    data_bytes, footer_bytes = footer_range(trailer, size_bytes)
    if len(footer) != footer_bytes or crc32c(footer) != TRAILER.unpack(trailer)[1]:
        raise DamagedObjectError("the footer's checksum is wrong")
    try:
        fields: Any = msgpack.unpackb(footer, max_array_len=MAX_PARTITIONS)
        version, cluster_id, object_id, broker_id, broker_epoch, rows = fields
        if version not in (APPENDED, FINAL):
            known = f"{APPENDED} and {FINAL}"
            raise DamagedObjectError(f"format {version!r}, this version reads {known}")
        partitions = tuple(_partition_bytes(*row) for row in rows)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise DamagedObjectError(f"the footer cannot be read: {error}") from None
    numbers = [object_id, broker_id, broker_epoch, *(n for row in partitions for n in row[1:])]
    if type(cluster_id) is not str or not all(map(_is_number, numbers)):
        raise DamagedObjectError("the footer holds what no footer can")
    position = 0
    for row in partitions:
        if row.byte_offset != position:
            raise DamagedObjectError(f"a gap at byte {position}: {row}")
        position += row.size_bytes
    if position != data_bytes:
        raise DamagedObjectError(f"{data_bytes} bytes of batches, {position} are accounted for")
    return Footer(cluster_id, object_id, broker_id, broker_epoch, partitions, data_bytes, version)


def _partition_bytes(topic_id: object, *numbers: int) -> PartitionBytes:
    """Build a partition's footer row; raise TypeError or ValueError for invalid values."""
    if not isinstance(topic_id, bytes):
        raise TypeError(f"topic id {topic_id!r}")
    return PartitionBytes(UUID(bytes=topic_id), *numbers)


def _is_number(value: object) -> bool:
    """Return whether a value from a footer is an integer from 0 to below 2**63."""
    return type(value) is int and 0 <= value < 1 << 63


def read_footer(whole: Buffer) -> Footer:
    """Read and check the footer of a WAL object that is held whole in memory.

    Raises DamagedObjectError.
    """
    view = memoryview(whole)
    trailer = view[-TRAILER.size :] if len(view) >= TRAILER.size else view[:0]
    offset, size_bytes = footer_range(trailer, len(view))
    return parse_footer(view[offset : offset + size_bytes], trailer, len(view))


def verify_partition(row: PartitionBytes, data: Buffer) -> None:
    """Check a partition's bytes in a WAL object against the footer, and check every batch.

    Raises:  DamagedObjectError; CorruptBatchError and IncompleteBatchError of `records`.
    """
    if len(data) != row.size_bytes or crc32c(data) != row.crc:
        raise DamagedObjectError(f"{row}: other bytes stand there")
    batch_count = record_count = 0
    for _, batch, _ in iter_batches(data):
        batch_count += 1
        record_count += batch.record_count
    if (batch_count, record_count) != (row.batch_count, row.record_count):
        raise DamagedObjectError(f"{row}: holds {batch_count} batches, {record_count} records")
