"""Packs the values of `coordinator.batch.state` into rows, where no query looks inside.

Source: docs/coordinator-state.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar
from uuid import UUID

import msgpack

from coordinator.batch.runs import Run, RunRow, StoredObject
from coordinator.batch.sqlite.database import DamagedStateError
from coordinator.batch.state import (
    Answer,
    Broker,
    Lease,
    OpenObject,
    Producer,
    ProducerKey,
    Rewrite,
    Topic,
)
from coordinator.batch.transactions import Marker, OpenTransactions, Transactional
from records.diskless import ObjectCommitRecord

_pack: Final = msgpack.Packer().pack


_V = TypeVar("_V")

StoredRun = tuple[Any, ...]
"""A row of the table `runs`: a log id, then the fields of a `Run`, its marker packed."""


def _unpack(row: bytes, make: Callable[[Any], _V]) -> _V:
    """Decode a table row and check the types of its fields. Raises DamagedStateError."""
    try:
        return make(msgpack.unpackb(row, use_list=False))
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise DamagedStateError(f"a row makes no sense: {error}") from error


def pack_topic(topic: Topic) -> bytes:
    """Encode a topic as the bytes of a database row."""
    return bytes(_pack(topic))


def unpack_topic(row: bytes) -> Topic:
    """Decode a topic from the bytes of a database row. Raises DamagedStateError."""
    return _unpack(row, Topic._make)


def pack_lease(lease: Lease) -> bytes:
    """Encode a lease of object ids as the bytes of a database row."""
    return bytes(_pack(lease))


def unpack_lease(row: bytes) -> Lease:
    """Decode a lease from the bytes of a database row. Raises DamagedStateError."""

    def make(fields: Any) -> Lease:
        lease = Lease._make(fields)
        if lease.rewrite is None:
            return lease
        rewrite = Rewrite._make(lease.rewrite)
        open_objects = tuple(map(OpenObject._make, rewrite.open_objects))
        return lease._replace(rewrite=rewrite._replace(open_objects=open_objects))

    return _unpack(row, make)


def pack_broker(broker: Broker) -> bytes:
    """Encode a broker as the bytes of a database row."""
    return bytes(_pack(broker))


def unpack_broker(row: bytes) -> Broker:
    """Decode a broker from the bytes of a database row. Raises DamagedStateError."""
    return _unpack(row, Broker._make)


def pack_answer(answer: Answer) -> bytes:
    """Encode the row of a commit response that is kept for retries as bytes."""
    ids = tuple(topic_id.bytes for topic_id in answer.topic_ids)
    return bytes(_pack(answer._replace(topic_ids=ids)))  # type: ignore[arg-type]


def unpack_answer(row: bytes) -> Answer:
    """Decode the row of a commit response kept for retries. Raises DamagedStateError."""

    def make(fields: Any) -> Answer:
        answer = Answer._make(fields)
        return answer._replace(topic_ids=tuple(UUID(bytes=raw) for raw in answer.topic_ids))  # type: ignore[arg-type]

    return _unpack(row, make)


def pack_open_transactions(transactions: OpenTransactions) -> bytes:
    """Encode the row of a partition's open transactions as bytes."""
    return bytes(_pack(transactions))


def unpack_open_transactions(row: bytes) -> OpenTransactions:
    """Decode the row of a partition's open transactions. Raises DamagedStateError."""
    return _unpack(row, lambda fields: tuple((int(at), int(key)) for at, key in fields))


def run_row(log_id: int, run: Run) -> StoredRun:
    """Return a run of batches as a row for SQLite; a marker's fields are packed into one column."""
    *columns, marker = run
    return (log_id, *columns, None if marker is None else bytes(_pack(marker)))


def unpack_run(row: tuple[Any, ...]) -> Run:
    """Build a Run from the columns of a row of the table `runs`. Raises DamagedStateError."""
    if row[-1] is None:
        return Run._make(row)
    return Run._make((*row[:-1], _unpack(row[-1], Marker._make)))


def producer_rows(
    producers: Mapping[ProducerKey, Producer],
) -> list[tuple[int, int, int, bytes]]:
    """Return producer states as rows for SQLite.

    A row has log id, producer id, time of the last append, and the rest packed.
    """
    pack = _pack
    return [
        (key[0], key[1], value[1], pack((value[0], *value[2:]))) for key, value in producers.items()
    ]


def unpack_producer(appended_at_ms: int, row: bytes) -> Producer:
    """Decode a producer's state from a database row. Raises DamagedStateError."""

    def make(fields: Any) -> Producer:
        epoch, batches, row = fields
        return epoch, appended_at_ms, batches, None if row is None else Transactional._make(row)

    return _unpack(row, make)


# --- objects ------------------------------------------------------------------------------------

ObjectRow = tuple[int, int, int, int, int, int, int, bytes, int]
"""The columns of `objects`; the last but one is 16 bytes for each topic."""


def topics_of(
    record: ObjectCommitRecord, log_ids: Sequence[int], runs: Sequence[RunRow]
) -> list[bytes]:
    """Return the ids of topics with accepted batches in an object, in rising order."""
    filled = {row[0] for row in runs}
    indexes = {
        index
        for index, log_id in zip(record.topic_indexes, log_ids, strict=True)
        if log_id in filled
    }
    return sorted(record.topic_ids[index].bytes for index in indexes)


def stored_object(row: ObjectRow) -> StoredObject:
    """Build a StoredObject from a row of the table `objects`."""
    ids = tuple(row[7][at : at + 16] for at in range(0, len(row[7]), 16))
    return StoredObject(*row[1:7], ids, row[8])
