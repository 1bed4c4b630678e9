"""Turns an image of groups into the records of a checkpoint.

The records come in the order of group ids, and inside a group its owner, its generation, its
offsets: so replicas with the same groups write the same bytes. The trap is the sorting: a hundred
thousand ids are sorted in runs, with a pause after each, because the node's event loop must go on
while a checkpoint is written.

Source: KIP-630, Snapshot Format; docs/design/snapshots.md#generation-never-blocks-commits.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice
from typing import Final

from coordinator.groups.state import CommittedOffset, Group, GroupsImage, TopicPartition
from records.frame import encode_record
from records.groups import GroupOffsetsRecord, GroupOwnerRecord, GroupsState

_SORT_AT_ONCE: Final = 2_000  # group ids: about a millisecond


def image_values(image: GroupsImage) -> Iterator[bytes]:
    """Yield the groups' encoded records, in the order in which a reader applies records.

    An empty value (b"") marks a pause, at which the caller lets other work run.
    """
    yield encode_record(GroupsState(next_ownership_epoch=image.next_ownership_epoch))
    runs: list[list[str]] = []
    ids = iter(image.groups)
    while run := sorted(islice(ids, _SORT_AT_ONCE)):
        runs.append(run)
        yield b""
    for group_id in heapq.merge(*runs):
        yield from group_values(group_id, image.groups[group_id])


def group_values(group_id: str, group: Group) -> Iterator[bytes]:
    """Yield one group's encoded records: the owner, the generation and the offsets."""
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
    for key in sorted(group.offsets):
        yield encode_record(_offset_record(group_id, group, key, group.offsets[key]))


def _offset_record(
    group_id: str, group: Group, key: TopicPartition, committed: CommittedOffset
) -> GroupOffsetsRecord:
    topic = GroupOffsetsRecord.Topic
    partition = topic.Partition(
        partition_index=key[1],
        committed_offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        committed_at_ms=committed.committed_at_ms,
        expire_at_ms=committed.expire_at_ms,
    )
    return GroupOffsetsRecord(
        group_id=group_id,
        ownership_epoch=group.ownership_epoch,
        sequence=group.sequence,
        topics=(topic(topic_name=key[0], topic_id=committed.topic_id, partitions=(partition,)),),
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
