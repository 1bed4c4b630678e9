"""The groups as the log defines them: one immutable image after another.

`apply` decides nothing: whether a commit counts was decided before it became a record. Only a
record of a group that does not exist is ignored and counted.

Source: docs/design/state-machines.md#decide-and-apply.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from coordinator.groups.pending import (
    CommittedOffset,
    PendingOffset,
    PendingOffsets,
    TopicPartition,
    TransactionKey,
)
from coordinator.persistent_map import Editor, Map
from records.groups import (
    EndedGroupTransactionRecord,
    GroupGenerationRecord,
    GroupMarkersRecord,
    GroupOffsetsRecord,
    GroupOffsetsRemovedRecord,
    GroupOwnerRecord,
    GroupProducersExpiredRecord,
    GroupRemovedRecord,
    GroupsState,
    PendingGroupOffsetsRecord,
)
from records.schema import MetadataRecord

TOPIC_DELETED: Final = 1
"""The reason of an offset's removal that leaves the partition's pending offsets."""

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
    pending: PendingOffsets = PendingOffsets()

    @property
    def generation_id(self) -> int:
        """Return the number of the last generation; 0 before the first rebalance."""
        return 0 if self.generation is None else self.generation.generation

    @property
    def record_count(self) -> int:
        """Return the number of records that the consumer group has in a checkpoint."""
        return 1 + (self.generation is not None) + len(self.offsets) + self.pending.total


class TransactionalProducer(NamedTuple):
    """The transactions of one producer id, as far as the groups know them."""

    ended_number: int = -1  # the highest ended; -1: none has
    ended_at_ms: int = -1
    open: Map[int, frozenset[str]] = Map()  # the groups with pending offsets, by number


_NEW_PRODUCER: Final = TransactionalProducer()


class GroupsImage(NamedTuple):
    """All groups, immutable."""

    groups: Map[str, Group] = Map()
    producers: Map[int, TransactionalProducer] = Map()  # by producer id
    next_ownership_epoch: int = 1
    record_count: int = 1  # of a checkpoint


class GroupsEdit:
    """A mutable copy of an image, from which the next image is published."""

    def __init__(self, image: GroupsImage) -> None:
        self._groups: Editor[str, Group] = image.groups.edit()
        self._producers: Editor[int, TransactionalProducer] = image.producers.edit()
        self._next_ownership_epoch = image.next_ownership_epoch
        self._record_count = image.record_count
        self.changed = 0  # records of a checkpoint that were replaced or removed
        self.contradictions = 0  # records that named no existing group or offset

    def publish(self) -> GroupsImage:
        """Return the image of the groups with all changes; more changes may follow."""
        return GroupsImage(
            self._groups.freeze(),
            self._producers.freeze(),
            self._next_ownership_epoch,
            self._record_count,
        )

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
                self._apply_removed(record)
            case PendingGroupOffsetsRecord():
                self._apply_pending(record)
            case GroupMarkersRecord():
                self._apply_markers(record)
            case EndedGroupTransactionRecord():
                self._end(record.producer_id, record.transaction_number, record.ended_at_ms)
            case GroupProducersExpiredRecord():
                self._apply_producers_expired(record)
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
                generation=group.generation,
                member_ids=group.member_ids,
                offsets=group.offsets,
                pending=group.pending,
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
        committed = list(_iter_offsets(record.topics))
        group = self._commit(group, committed)
        group = self._supersede(record.group_id, group, (place for place, _ in committed))
        self._set_group(record, group)

    def _commit(
        self, group: Group, committed: list[tuple[TopicPartition, CommittedOffset]]
    ) -> Group:
        """Return a consumer group with more committed offsets."""
        offsets = group.offsets.edit()
        for place, position in committed:
            offsets.set(place, position)
        frozen = offsets.freeze()
        added = len(frozen) - len(group.offsets)
        self._record_count += added
        self.changed += len(committed) - added
        return group._replace(offsets=frozen)

    def _set_group(
        self,
        record: GroupGenerationRecord | GroupOffsetsRecord | PendingGroupOffsetsRecord,
        group: Group,
    ) -> None:
        """Store a group, with the record's sequence number if the current owner wrote it."""
        if record.ownership_epoch == group.ownership_epoch:
            group = group._replace(sequence=max(group.sequence, record.sequence))
        self._groups.set(record.group_id, group)

    def _apply_offsets_removed(self, record: GroupOffsetsRemovedRecord) -> None:
        group = self._groups.get(record.group_id)
        if group is None:
            self.contradictions += 1
            return
        offsets = group.offsets.edit()
        places = [(topic.topic_name, p) for topic in record.topics for p in topic.partitions]
        for place in places:
            if offsets.pop(place) is None and place not in group.pending.by_partition:
                self.contradictions += 1
        frozen = offsets.freeze()
        removed = len(group.offsets) - len(frozen)
        self._record_count -= removed
        self.changed += removed
        group = group._replace(offsets=frozen)
        if record.reason != TOPIC_DELETED:  # a pending offset may be of the next topic of that name
            group = self._supersede(record.group_id, group, places)
        self._groups.set(record.group_id, group)

    def _apply_removed(self, record: GroupRemovedRecord) -> None:
        group = self._groups.pop(record.group_id)
        if group is None:
            self.contradictions += 1
            return
        self.changed += group.record_count
        self._record_count -= group.record_count
        for key in group.pending.transactions:
            self._note_open(key, record.group_id, is_open=False)

    # --- transactions -------------------------------------------------------------------------

    def _apply_pending(self, record: PendingGroupOffsetsRecord) -> None:
        group = self._groups.get(record.group_id)
        if group is None:
            self.contradictions += 1
            return
        offsets = [
            (place, PendingOffset(key, commit.producer_epoch, committed))
            for commit in record.commits
            for key in [(commit.producer_id, commit.transaction_number)]
            for place, committed in _iter_offsets(commit.topics)
        ]
        before = group.pending.total
        group = self._set_pending(record.group_id, group, *group.pending.add(offsets))
        self.changed += len(offsets) - (group.pending.total - before)
        self._set_group(record, group)

    def _apply_markers(self, record: GroupMarkersRecord) -> None:
        markers = zip(
            record.producer_ids, record.transaction_numbers, record.committed, strict=True
        )
        for producer_id, number, is_committed in markers:
            key = (producer_id, number)
            producer = self._producers.get(producer_id) or _NEW_PRODUCER
            for group_id in sorted(producer.open.get(number, ())):
                group = self._groups.get(group_id)
                assert group is not None, f"open in a group that does not exist: {group_id}"
                pending, changed, committed = group.pending.end(key, is_committed=is_committed)
                self.changed += group.pending.total - pending.total
                group = self._set_pending(group_id, group, pending, changed)
                self._groups.set(group_id, self._commit(group, committed))
            self._end(producer_id, number, record.ended_at_ms)

    def _supersede(self, group_id: str, group: Group, places: Iterable[TopicPartition]) -> Group:
        """Return a consumer group without pending offsets of these partitions."""
        if not group.pending.total:
            return group
        pending, changed = group.pending.supersede(places)
        self.changed += group.pending.total - pending.total
        return self._set_pending(group_id, group, pending, changed)

    def _set_pending(
        self, group_id: str, group: Group, pending: PendingOffsets, changed: set[TransactionKey]
    ) -> Group:
        """Return a group with these pending offsets; record which groups have open transactions."""
        self._record_count += pending.total - group.pending.total
        for key in changed:
            self._note_open(key, group_id, is_open=key in pending.transactions)
        return group._replace(pending=pending)

    def _note_open(self, key: TransactionKey, group_id: str, *, is_open: bool) -> None:
        producer_id, number = key
        producer = self._producers.get(producer_id) or _NEW_PRODUCER
        groups: frozenset[str] = producer.open.get(number, frozenset())
        groups = groups | {group_id} if is_open else groups - {group_id}
        if groups:
            producer = producer._replace(open=producer.open.set(number, groups))
        elif number in producer.open:
            producer = producer._replace(open=producer.open.remove(number))
        self._set_producer(producer_id, producer)

    def _end(self, producer_id: int, number: int, ended_at_ms: int) -> None:
        """Record that a producer id's transactions up to `number` have ended."""
        producer = self._producers.get(producer_id) or _NEW_PRODUCER
        if number > producer.ended_number:
            self._record_count += producer.ended_number < 0
            self.changed += producer.ended_number >= 0
            producer = producer._replace(ended_number=number, ended_at_ms=ended_at_ms)
        self._set_producer(producer_id, producer)

    def _apply_producers_expired(self, record: GroupProducersExpiredRecord) -> None:
        for producer_id in record.producer_ids:
            producer = self._producers.get(producer_id)
            if producer is None or producer.ended_number < 0:
                self.contradictions += 1
                continue
            self._record_count -= 1
            self.changed += 1
            self._set_producer(producer_id, producer._replace(ended_number=-1, ended_at_ms=-1))

    def _set_producer(self, producer_id: int, producer: TransactionalProducer) -> None:
        if producer.ended_number < 0 and not producer.open:
            self._producers.pop(producer_id)
        else:
            self._producers.set(producer_id, producer)


def _iter_offsets(
    topics: Iterable[GroupOffsetsRecord.Topic],
) -> Iterator[tuple[TopicPartition, CommittedOffset]]:
    for topic in topics:
        name, topic_id = topic.topic_name, topic.topic_id
        for partition in topic.partitions:
            yield (
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
