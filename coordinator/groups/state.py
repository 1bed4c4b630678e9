"""The groups as the log defines them: one immutable image after another.

`apply` decides nothing: whether a commit counts was decided before it became a record. Only a
record of a group that does not exist is ignored and counted.

Source: docs/design/state-machines.md#decide-and-apply.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID

from coordinator.persistent_map import Editor, Map
from records.groups import (
    GroupGenerationRecord,
    GroupOffsetsRecord,
    GroupOffsetsRemovedRecord,
    GroupOwnerRecord,
    GroupRemovedRecord,
    GroupsState,
)
from records.schema import MetadataRecord

TopicPartition = tuple[str, int]
"""Topic name and partition."""


class CommittedOffset(NamedTuple):
    """The position from which a group continues to read a partition."""

    offset: int
    leader_epoch: int  # -1: unknown
    metadata: str
    committed_at_ms: int
    expire_at_ms: int  # -1: by retention
    topic_id: UUID  # zero: unknown


_NO_OFFSETS: Final[Map[TopicPartition, CommittedOffset]] = Map()
_NO_MEMBERS: Final[frozenset[str]] = frozenset()


class Group(NamedTuple):
    """A group: its owner, its last completed rebalance, its offsets."""

    ownership_epoch: int
    broker_id: int
    broker_epoch: int
    acquired_at_ms: int
    sequence: int  # of the owner's last commit; 0: none yet
    generation: GroupGenerationRecord | None = None
    member_ids: frozenset[str] = _NO_MEMBERS
    offsets: Map[TopicPartition, CommittedOffset] = _NO_OFFSETS

    @property
    def generation_id(self) -> int:
        """Return the number of the last generation; 0 before the first rebalance."""
        return 0 if self.generation is None else self.generation.generation

    @property
    def record_count(self) -> int:
        """Return the number of records that the group has in a checkpoint."""
        return 1 + (self.generation is not None) + len(self.offsets)


class GroupsImage(NamedTuple):
    """All groups, immutable."""

    groups: Map[str, Group] = Map()
    next_ownership_epoch: int = 1
    record_count: int = 1  # of a checkpoint


class GroupsEdit:
    """A mutable copy of an image, from which the next image is published."""

    def __init__(self, image: GroupsImage) -> None:
        self._groups: Editor[str, Group] = image.groups.edit()
        self._next_ownership_epoch = image.next_ownership_epoch
        self._record_count = image.record_count
        self.changed = 0  # records of a checkpoint that were replaced or removed
        self.contradictions = 0  # records that named no existing group or offset

    def publish(self) -> GroupsImage:
        """Return the image of the groups with all changes; more changes may follow."""
        return GroupsImage(self._groups.freeze(), self._next_ownership_epoch, self._record_count)

    def apply(self, record: MetadataRecord) -> None:
        """Add one committed record to the changes of the next consumer group image."""
        match record:
            case GroupOwnerRecord():
                self._apply_owner(record)
            case GroupGenerationRecord():
                self._apply_generation(record)
            case GroupOffsetsRecord():
                self._apply_offsets(record)
            case GroupOffsetsRemovedRecord():
                self._apply_offsets_removed(record)
            case GroupRemovedRecord():
                group = self._groups.pop(record.group_id)
                if group is None:
                    self.contradictions += 1
                else:
                    self.changed += group.record_count
                    self._record_count -= group.record_count
            case GroupsState():
                self._next_ownership_epoch = record.next_ownership_epoch
            case _:
                self.contradictions += 1

    def _apply_owner(self, record: GroupOwnerRecord) -> None:
        group = self._groups.get(record.group_id)
        owned = Group(
            record.ownership_epoch,
            record.broker_id,
            record.broker_epoch,
            record.acquired_at_ms,
            record.sequence,
        )
        if group is None:
            self._record_count += 1
        else:
            owned = owned._replace(
                generation=group.generation, member_ids=group.member_ids, offsets=group.offsets
            )
            self.changed += 1
        self._groups.set(record.group_id, owned)
        self._next_ownership_epoch = max(self._next_ownership_epoch, record.ownership_epoch + 1)

    def _apply_generation(self, record: GroupGenerationRecord) -> None:
        group = self._groups.get(record.group_id)
        if group is None:
            self.contradictions += 1
            return
        if group.generation is None:
            self._record_count += 1
        else:
            self.changed += 1
        group = group._replace(
            generation=record, member_ids=frozenset(member.member_id for member in record.members)
        )
        self._set_group(record, group)

    def _apply_offsets(self, record: GroupOffsetsRecord) -> None:
        group = self._groups.get(record.group_id)
        if group is None:
            self.contradictions += 1
            return
        offsets = group.offsets.edit()
        committed = 0
        for topic in record.topics:
            name, topic_id = topic.topic_name, topic.topic_id
            for partition in topic.partitions:
                committed += 1
                offsets.set(
                    (name, partition.partition_index),
                    CommittedOffset(
                        partition.committed_offset,
                        partition.leader_epoch,
                        partition.metadata,
                        partition.committed_at_ms,
                        partition.expire_at_ms,
                        topic_id,
                    ),
                )
        frozen = offsets.freeze()
        added = len(frozen) - len(group.offsets)
        self._record_count += added
        self.changed += committed - added
        self._set_group(record, group._replace(offsets=frozen))

    def _set_group(self, record: GroupGenerationRecord | GroupOffsetsRecord, group: Group) -> None:
        """Store a group; raise its sequence number if the record is of the current owner."""
        if record.ownership_epoch == group.ownership_epoch:
            group = group._replace(sequence=max(group.sequence, record.sequence))
        self._groups.set(record.group_id, group)

    def _apply_offsets_removed(self, record: GroupOffsetsRemovedRecord) -> None:
        group = self._groups.get(record.group_id)
        if group is None:
            self.contradictions += 1
            return
        offsets = group.offsets.edit()
        for topic in record.topics:
            for partition in topic.partitions:
                if offsets.pop((topic.topic_name, partition)) is None:
                    self.contradictions += 1
        frozen = offsets.freeze()
        removed = len(group.offsets) - len(frozen)
        self._record_count -= removed
        self.changed += removed
        self._groups.set(record.group_id, group._replace(offsets=frozen))
