"""Turns an image of groups into the records of a checkpoint.

The records come in the order of producer ids, then of group ids, and inside a group its owner, its
generation, its offsets, its pending offsets: so replicas with the same groups write the same bytes.
The trap is the sorting: a hundred thousand ids are sorted in runs, with a pause after each, because
the node's event loop must go on while a checkpoint is written.

Source: KIP-630, Snapshot Format; docs/design/snapshots.md#generation-never-blocks-commits.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from typing import Final, TypeVar

from coordinator.groups.pending import CommittedOffset, PendingOffset, TopicPartition
from coordinator.groups.state import Group, GroupsImage
from records.frame import encode_record
from records.groups import (
    EndedGroupTransactionRecord,
    GroupOffsetsRecord,
    GroupOwnerRecord,
    GroupsState,
    PendingGroupOffsetsRecord,
)

_SORT_AT_ONCE: Final = 2_000  # group ids or producer ids: about a millisecond

K = TypeVar("K", str, int)


def image_values(image: GroupsImage) -> Iterator[bytes]:
    """Yield encoded records that restore all consumer groups if applied in this order.

    An empty value (b"") marks a pause, at which the caller lets other work run.
    """
    yield encode_record(GroupsState(next_ownership_epoch=image.next_ownership_epoch))
    for producer_id in heapq.merge(*(yield from _sorted_runs(image.producers))):
        producer = image.producers[producer_id]
        if producer.ended_number >= 0:
            yield encode_record(
                EndedGroupTransactionRecord(
                    producer_id=producer_id,
                    transaction_number=producer.ended_number,
                    ended_at_ms=producer.ended_at_ms,
                )
            )
    for group_id in heapq.merge(*(yield from _sorted_runs(image.groups))):
        yield from group_values(group_id, image.groups[group_id])


def _sorted_runs(keys: Iterable[K]) -> Generator[bytes, None, list[list[K]]]:
    """Sort the keys in bounded parts, yielding b"" as a pause after each; return the parts."""
    runs: list[list[K]] = []
    remaining = iter(keys)
    while run := sorted(islice(remaining, _SORT_AT_ONCE)):
        runs.append(run)
        yield b""
    return runs


def group_values(group_id: str, group: Group) -> Iterator[bytes]:
    """Yield one consumer group's encoded records: the owner, the generation, and all offsets."""
    yield encode_record(
        GroupOwnerRecord(
            group_id=group_id,
            ownership_epoch=group.ownership_epoch,
            broker_id=group.broker_id,
            broker_epoch=group.broker_epoch,
            acquired_at_ms=group.acquired_at_ms,
            sequence=group.sequence,
        )
    )
    if group.generation is not None:
        yield encode_record(group.generation)
    for place in sorted(group.offsets):
        yield encode_record(
            GroupOffsetsRecord(
                group_id=group_id,
                ownership_epoch=group.ownership_epoch,
                sequence=group.sequence,
                topics=(_topic(place, group.offsets[place]),),
            )
        )
    for place in sorted(group.pending.by_partition):
        for pending in group.pending.by_partition[place]:
            yield encode_record(_pending_record(group_id, group, place, pending))


def _pending_record(
    group_id: str, group: Group, place: TopicPartition, pending: PendingOffset
) -> PendingGroupOffsetsRecord:
    producer_id, number = pending.transaction
    commit = PendingGroupOffsetsRecord.Commit(
        producer_id=producer_id,
        producer_epoch=pending.producer_epoch,
        transaction_number=number,
        topics=(_topic(place, pending.committed),),
    )
    return PendingGroupOffsetsRecord(
        group_id=group_id,
        ownership_epoch=group.ownership_epoch,
        sequence=group.sequence,
        commits=(commit,),
    )


def _topic(place: TopicPartition, committed: CommittedOffset) -> GroupOffsetsRecord.Topic:
    """Build a record's topic entry with one committed offset."""
    topic_name, index = place
    partition = GroupOffsetsRecord.Topic.Partition(
        partition_index=index,
        committed_offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        committed_at_ms=committed.committed_at_ms,
        expire_at_ms=committed.expire_at_ms,
    )
    return GroupOffsetsRecord.Topic(
        topic_name=topic_name, topic_id=committed.topic_id, partitions=(partition,)
    )


class FrozenGroups:
    """An image of groups to be written to a checkpoint; see `raft.interfaces.Frozen`.

    Images are immutable, so nothing needs to be copied.
    """

    def __init__(self, image: GroupsImage) -> None:
        self._image: GroupsImage | None = image

    def values(self) -> Iterator[bytes]:
        """Yield the encoded records of the frozen image of the groups."""
        assert self._image is not None, "the frozen image is closed"
        return image_values(self._image)

    def close(self) -> None:
        """Release the reference to the frozen image of the groups."""
        self._image = None
