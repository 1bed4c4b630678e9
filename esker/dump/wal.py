"""WAL segment objects as items: what the footer says, each partition's bytes, and whether they are
what it says.

Only the footer is read unless records are wanted. Batches stand there as producers sent them, so
their base offsets are 0: where in a partition they are, the coordinator alone knows.

Source: KIP-1163, WAL Segment Objects; `records.wal`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, Protocol

from esker.dump.checks import Progress
from esker.dump.items import BatchItem, Entry, FileEnd, FileStart, Item, RecordItem, Tally
from esker.dump.kinds import Kind
from records.batch import Batch, iter_batches, iter_records
from records.compression import Buffer
from records.errors import RecordError
from records.rpc.objects import DescribeDisklessObjectResponse
from records.uuids import encode_uuid
from records.wal import (
    MAX_FOOTER_BYTES,
    TRAILER,
    DamagedObjectError,
    Footer,
    PartitionBytes,
    footer_range,
    parse_footer,
    verify_partition,
)

MAX_PARTITION_BYTES: Final = 512 * 1024 * 1024
"""Largest part of one partition in one object, held in memory; writers close an object at 8 MiB,
and a single larger batch may have 100."""

DATA: Final = "data"
"""Why a record is shown as bytes: it is somebody's, and has no type that we know."""

_KEY_END: Final = re.compile(r"[0-9a-f]{2}/([A-Za-z0-9_-]{22})/(0|[1-9][0-9]*)/(0|[1-9][0-9]*)$")


class ObjectBytes(Protocol):
    """The bytes of an object in a file or a bucket."""

    @property
    def name(self) -> str:
        """Return the name by which a user requested the object, or else the object's key."""

    @property
    def size_bytes(self) -> int: ...

    def read(self, offset: int, size: int) -> Buffer:
        """Read exactly `size` bytes of the object from `offset`. Raises OSError, StorageError."""

    def close(self) -> None:
        """Close the object after the last read."""


class DamagedWalError(RecordError):
    """The object contradicts its footer, its name or its coordinator."""

    def __init__(self, name: str, reason: str, position: int | None = None) -> None:
        where = name if position is None else f"{name}, position {position}"
        super().__init__(f"{where}: {reason}")
        self.position = position
        self.reason = reason


class Name(NamedTuple):
    """The content of an object's key."""

    cluster_id: str
    coordinator: int
    object_id: int


def parse_name(key: str) -> Name | None:
    """Parse the cluster, coordinator and object id at the end of an object's key.

    >>> parse_name("esker/ce/xBIbbGYlSzqHPEyzl9QSWw/0/4711").object_id
    4711
    """
    found = _KEY_END.search(key)
    return None if found is None else Name(found[1], int(found[2]), int(found[3]))


def footer_of(source: ObjectBytes) -> Footer:
    """Read a WAL object's footer and compare it with the object's name. Raises DamagedWalError."""
    try:
        size = source.size_bytes
        trailer = source.read(max(0, size - TRAILER.size), min(size, TRAILER.size))
        offset, footer_bytes = footer_range(trailer, size)
        assert footer_bytes <= MAX_FOOTER_BYTES, "footer_range checks that"
        footer = parse_footer(source.read(offset, footer_bytes), trailer, size)
    except RecordError as error:
        raise _damaged_error(source, error) from error
    name = parse_name(source.name)
    if name is not None and (name.cluster_id, name.object_id) != (
        footer.cluster_id,
        footer.object_id,
    ):
        reason = (
            f"its footer says object {footer.object_id} of cluster {footer.cluster_id}: "
            "it stands under another one's name"
        )
        raise DamagedWalError(source.name, reason)
    return footer


def read_object(source: ObjectBytes, *, records: bool) -> Iterator[Item]:
    """Yield the contents of a WAL object. Raises DamagedWalError, OSError, StorageError."""
    start = FileStart(source.name, Kind.WAL_OBJECT, source.size_bytes)
    tally = Tally()
    yield start
    footer = footer_of(source)
    shown = {name: value for name, value in footer._asdict().items() if name != "partitions"}
    yield Entry("object", _camel(shown))
    for row in footer.partitions:
        _count(tally, row)
        yield Entry("partition", _camel(row._asdict()))
        if records:
            yield from _records(source, row)
    yield FileEnd(start, tally)


def _camel(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with camel-case names, as Kafka writes names.

    >>> _camel({"object_id": 7})
    {'objectId': 7}
    """
    return {
        first + "".join(map(str.capitalize, rest)): value
        for name, value in fields.items()
        for first, *rest in [name.split("_")]
    }


def verify_object(
    source: ObjectBytes,
    *,
    deep: bool = False,
    known: DescribeDisklessObjectResponse | None = None,
    progress: Progress | None = None,
) -> Tally:
    """Check a WAL object's footer, name and bytes of every partition; return the counts.

    Args:    deep: also take every batch apart into its records.
             known: what the coordinator knows of this object, to be compared.
    Raises:  DamagedWalError for the first thing that is wrong; OSError, StorageError.
    """
    tally = Tally()
    footer = footer_of(source)
    if known is not None:
        _compare(source, footer, known, tally)
    for row in footer.partitions:
        data = _bytes_of(source, row)
        try:
            try:
                verify_partition(row, data)
            except DamagedObjectError:
                _find_fault(data)
                reason = (
                    f"the bytes of partition {row.partition} of topic "
                    f"{encode_uuid(row.topic_id)} are not those that the footer describes"
                )
                raise DamagedWalError(source.name, reason, row.byte_offset) from None
            if deep:
                for batch in iter_batches(data):
                    for _ in iter_records(batch):
                        pass
        except DamagedWalError:
            raise
        except RecordError as error:
            raise _damaged_error(source, error, row.byte_offset) from error
        _count(tally, row)
        if progress is not None:
            progress(row.byte_offset + row.size_bytes)
    return tally


def _find_fault(data: Buffer) -> None:
    """Raise the error of the first damaged batch in `data`; do nothing without damage."""
    for _ in iter_batches(data):
        pass


def _compare(
    source: ObjectBytes, footer: Footer, known: DescribeDisklessObjectResponse, tally: Tally
) -> None:
    """Check that the coordinator's metadata and the footer describe the same WAL object."""
    said = (known.object_id, known.size_bytes, known.broker_id)
    found = (footer.object_id, source.size_bytes, footer.broker_id)
    if said != found:
        reason = f"id, bytes, broker are {found}; the coordinator has {said}"
        raise DamagedWalError(source.name, reason)
    sizes = {(row.topic_id, row.partition): row.size_bytes for row in footer.partitions}
    for owner in known.owners:
        size_bytes = sizes.get((owner.topic_id, owner.partition_index))
        if size_bytes is None or owner.used_bytes > size_bytes:
            reason = (
                f"the coordinator has {owner.used_bytes} bytes of "
                f"{owner.topic_name}-{owner.partition_index} here, the footer {size_bytes or 0}"
            )
            raise DamagedWalError(source.name, reason)
    used = f"{known.used_bytes} of {footer.data_bytes} bytes are live"
    marked = ", marked for deletion" if known.marked_at_ms >= 0 else ""
    tally.remarks.append(f"as its coordinator has it: {used}{marked}")


def _count(tally: Tally, row: PartitionBytes) -> None:
    tally.entries += 1
    tally.batches += row.batch_count
    tally.records += row.record_count


def _records(source: ObjectBytes, row: PartitionBytes) -> Iterator[Item]:
    data = _bytes_of(source, row)
    try:
        for batch in iter_batches(data):
            position = row.byte_offset + batch.position
            yield BatchItem(position, batch.header)
            yield from (
                RecordItem(record, None, 0, DATA)
                for record in iter_records(Batch(position, batch.header, batch.view))
            )
    except RecordError as error:
        raise _damaged_error(source, error, row.byte_offset) from error


def _bytes_of(source: ObjectBytes, row: PartitionBytes) -> Buffer:
    if row.size_bytes > MAX_PARTITION_BYTES:
        reason = f"{row.size_bytes} bytes of one partition: no broker writes that"
        raise DamagedWalError(source.name, reason, row.byte_offset)
    return source.read(row.byte_offset, row.size_bytes)


def _damaged_error(
    source: ObjectBytes, error: RecordError, begin: int | None = None
) -> DamagedWalError:
    """Return the error for a damaged object, with the position of the damage in the object."""
    position = None if begin is None else begin + (getattr(error, "position", None) or 0)
    return DamagedWalError(source.name, str(getattr(error, "reason", error)), position)
