"""Finds the tail: objects that brokers appended and whose commits no source has.

Two kinds of ids can be in it: those above the last one that the chosen copy knows to be leased, and
those that an open lease may still have committed. The store is listed below the lost cluster's own
keys, because the key of an object is a function of its id, and because unused ids leave gaps of any
length, so that asking for one id after another never knows its end.

The trap: an id of a closed lease may have an object, too. It was never committed and never will
be: its producer was told so, and has sent the batch again.

Source: docs/design/restore.md#the-tail.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from coordinator.batch.id_ranges import Ranges, contains, without
from coordinator.batch.state import Lease, Tables
from diskless.stores import ByteRange, ObjectNotFoundError, ObjectStorage
from esker.restore.objects import SPREADS
from records.batch import BatchHeader, iter_batches
from records.errors import RecordError
from records.object_keys import ForeignKeyError, ObjectKeys
from records.rpc.batch_coordinator import CommitBatch
from records.wal import APPENDED, DamagedObjectError, read_footer, verify_partition

HIGHEST: Final = 1 << 62
"""Half of the range of an epoch or id: an object that names a higher one is left out."""

_HIGHEST_BROKER: Final = (1 << 31) - 1
_SEQUENCES: Final = 1 << 31


class UncommittedIds(NamedTuple):
    """The object ids of a batch coordinator that may be committed beyond a copy of its log."""

    leased: Ranges  # of leases that are open in the copy, above their last committed ids
    next_object_id: int  # from here on every id

    @classmethod
    def of(cls, tables: Tables) -> UncommittedIds:
        """Return the ids that a batch coordinator in this state could still see committed."""
        leased: list[tuple[int, int]] = []
        for lease in sorted(
            (lease for _, lease in tables.leases.items()), key=lambda one: one.first_object_id
        ):
            leased += _uncommitted(lease)
        return cls(tuple(leased), tables.counters.next_object_id)

    def contains(self, object_id: int) -> bool:
        """Return whether an object with this id may belong to the tail."""
        return object_id >= self.next_object_id or contains(self.leased, object_id)


def _uncommitted(lease: Lease) -> Ranges:
    """Return the ids that the lease's broker may still commit as appended objects."""
    if not lease.is_open or lease.rewrite is not None:
        return ()
    first = lease.last_committed_id + 1
    ids = ((first, lease.end_object_id),) if first < lease.end_object_id else ()
    return without(ids, lease.fenced)


class TailBatch(NamedTuple):
    """A batch of an object of the tail."""

    topic_id: UUID
    partition: int
    is_transactional: bool
    record_count: int
    commit: CommitBatch  # with create time


class TailObject(NamedTuple):
    """An object of the tail, whose bytes were checked."""

    object_id: int
    size_bytes: int
    modified_ms: int  # ms since 1970, by the store's clock
    broker_id: int
    broker_epoch: int
    batches: tuple[TailBatch, ...]  # in the order of their bytes


@dataclass(slots=True)
class Tail:
    """Objects in the store that the chosen copies do not name."""

    objects: dict[int, list[TailObject]] = field(default_factory=dict)
    """By batch coordinator, by rising id."""

    rewritten: int = 0  # objects of rewriters: copies of records that are elsewhere
    damaged: list[str] = field(default_factory=list)  # sentences

    @property
    def highest_broker_epoch(self) -> int:
        """Return the highest broker epoch that an object names, or -1."""
        return max((one.broker_epoch for one in self._all()), default=-1)

    @property
    def highest_producer_id(self) -> int:
        """Return the highest producer id of any batch, or -1."""
        batches = (batch for one in self._all() for batch in one.batches)
        return max((batch.commit.producer_id for batch in batches), default=-1)

    def _all(self) -> Iterator[TailObject]:
        for objects in self.objects.values():
            yield from objects


async def find_tail(
    store: ObjectStorage, prefix: str, cluster_id: str, uncommitted: Mapping[int, UncommittedIds]
) -> Tail:
    """List the lost cluster's objects, and read those that may belong to the tail.

    Args:    cluster_id: of the lost cluster. uncommitted: by batch coordinator.
    Raises:  StorageError.
    """
    tail = Tail()
    for coordinator, ids in sorted(uncommitted.items()):
        keys = ObjectKeys(prefix=prefix, cluster_id=cluster_id, coordinator_partition=coordinator)
        found = [
            (object_id, size_bytes, modified_ms)
            async for object_id, size_bytes, modified_ms in _list_objects(store, keys)
            if ids.contains(object_id)
        ]
        objects = tail.objects.setdefault(coordinator, [])
        for object_id, size_bytes, modified_ms in sorted(found):
            key = keys.key(object_id)
            try:
                data = await store.fetch(key, ByteRange(0, size_bytes))
            except ObjectNotFoundError:
                continue  # deleted since: only a plan is made while the lost cluster may live
            try:
                read = _read_object(memoryview(data), cluster_id, object_id, modified_ms)
            except RecordError as error:
                tail.damaged.append(f"{key}: {error}")
                continue
            if read is None:
                tail.rewritten += 1
            else:
                objects.append(read)
    return tail


async def _list_objects(
    store: ObjectStorage, keys: ObjectKeys
) -> AsyncIterator[tuple[int, int, int]]:
    """Yield id, size in bytes and time of each object of one batch coordinator."""
    below = f"{keys.cluster_id}/{keys.coordinator_partition}/"
    for spread in range(SPREADS):
        directory = f"{spread:02x}/{below}"
        if keys.prefix:
            directory = f"{keys.prefix}/{directory}"
        async for stored in store.list_objects(directory):
            try:
                yield keys.object_id(stored.key), stored.size_bytes, stored.modified_ms
            except ForeignKeyError:
                continue


def _read_object(
    data: memoryview, cluster_id: str, object_id: int, modified_ms: int
) -> TailObject | None:
    """Read and check an object; return None for one that a rewriter wrote.

    Raises:  DamagedObjectError and other errors of `records`.
    """
    footer = read_footer(data)
    if footer.object_format != APPENDED:
        return None
    if (footer.cluster_id, footer.object_id) != (cluster_id, object_id):
        raise DamagedObjectError(
            f"it was written as object {footer.object_id} of cluster {footer.cluster_id}"
        )
    if footer.broker_epoch > HIGHEST or footer.broker_id > _HIGHEST_BROKER:
        raise DamagedObjectError(f"broker {footer.broker_id} with epoch {footer.broker_epoch}")
    batches: list[TailBatch] = []
    for row in footer.partitions:
        content = data[row.byte_offset : row.byte_offset + row.size_bytes]
        verify_partition(row, content)
        for batch in iter_batches(content, verify_crc=False):  # verified above
            header = batch.header
            if header.is_control or header.producer_id > HIGHEST or not header.is_dense:
                raise DamagedObjectError(f"no producer sent the batch at {row.byte_offset}")
            batches.append(
                TailBatch(
                    row.topic_id,
                    row.partition,
                    header.is_transactional,
                    header.record_count,
                    _commit_batch(header, row.byte_offset + batch.position),
                )
            )
    return TailObject(
        object_id, len(data), modified_ms, footer.broker_id, footer.broker_epoch, tuple(batches)
    )


def _commit_batch(header: BatchHeader, byte_offset: int) -> CommitBatch:
    """Describe a batch as the broker that uploaded it did, with create time."""
    last_sequence = -1
    if header.base_sequence >= 0:
        last_sequence = (header.base_sequence + header.record_count - 1) % _SEQUENCES
    return CommitBatch(
        byte_offset=byte_offset,
        size=header.size_bytes,
        base_offset=0,
        last_offset=header.last_offset_delta,
        batch_max_timestamp=header.max_timestamp,
        message_timestamp_type=0,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        last_sequence=last_sequence,
    )
