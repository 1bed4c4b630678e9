"""Applies records to an image. Nothing else changes the state.

    edit = ImageEdit(image)
    for offset, record in ...:
        edit.apply(record)
    image = edit.publish(end_offset, epoch)

`apply` decides nothing and refuses nothing: on every replica, in every order of restarts and
checkpoint loads, the same records give the same image. A record that contradicts the image (a
partition of a deleted topic, a change of a broker's former epoch) changes nothing and is counted.
Upstream stops the process there; Esker continues, on every replica alike.

Source: KIP-631; upstream's deltas (BrokerRegistration.replay, PartitionRegistration.merge).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast
from uuid import UUID

import msgspec

from coordinator.controller.image import TOPIC, MetadataImage, Resource, TopicImage
from coordinator.controller.security import SecurityEdit
from coordinator.features import Features
from coordinator.persistent_map import Editor, Map
from records.chunks import ChunkChangeRecord, ChunkRecord, TopicPartitionToBatchCoordinatorMapping
from records.metadata import (
    AccessControlEntryRecord,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
    ZkMigrationStateRecord,
)
from records.schema import MetadataRecord
from records.timelines import PartitionTimelinesRecord, TimelineRecord
from records.types import Epoch, Offset

BLOCK_TIMES_KEPT_MS: Final = 7 * 24 * 3_600_000
"""How long the times of producer-id blocks are kept: the longest lifetime of producer state."""

BLOCK_TIME_STEP_MS: Final = 60_000
"""Blocks of one minute are merged, with the time of the last: at most 1,440 entries a day."""

NO_LEADER_CHANGE: Final = -2

_EMPTY: Final[Map[Any, Any]] = Map()


class ImageEdit:
    """A mutable copy of an image, from which the next image is published."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._features = image.features.recorded.edit()
        self._controllers = image.controllers.edit()
        self._brokers = image.brokers.edit()
        self._topics = image.topics.edit()
        self._topic_ids = image.topic_ids.edit()
        self._similar = image.similar.edit()
        self._loads = image.loads.edit()
        self._configs = image.configs.edit()
        self._producer_ids = image.producer_ids
        self._security = SecurityEdit(image.security)
        self._timeline = image.timeline
        self._open: dict[UUID, _TopicEdit] = {}  # topics that have changed
        self._records = image.record_count
        self.changed = 0  # records of a checkpoint that were replaced or removed
        self.contradictions = 0  # records that contradict the image

    def apply(self, record: MetadataRecord) -> None:
        """Apply one committed record to these pending changes of the cluster image."""
        change = _APPLY.get(type(record))
        # None: a batch coordinator's record or a transaction marker, which change no image.
        if change is None or not change(self, record):
            self.contradictions += 1

    def publish(self, offset: Offset, epoch: Epoch) -> MetadataImage:
        """Return the cluster image as of `offset` with all changes; more changes may follow."""
        self.close_topics()
        self._image = MetadataImage(
            offset=offset,
            epoch=epoch,
            features=Features(self._features.freeze()),
            controllers=self._controllers.freeze(),
            brokers=self._brokers.freeze(),
            topics=self._topics.freeze(),
            topic_ids=self._topic_ids.freeze(),
            similar=self._similar.freeze(),
            loads=self._loads.freeze(),
            configs=self._configs.freeze(),
            producer_ids=self._producer_ids,
            security=self._security.freeze(),
            timeline=self._timeline,
            record_count=self._records,
            file_defaults=self._image.file_defaults,
        )
        return self._image

    def close_topics(self) -> None:
        """Store the topics changed since the last call in the topics of the next cluster image.

        Called now and then in a long series, so that `publish` is short.
        """
        for topic_id, topic in self._open.items():
            self._topics.set(topic_id, topic.freeze())
        self._open.clear()

    # --- counting -----------------------------------------------------------------------------

    def _count_added(self, before: object | None) -> bool:
        """Count a record as changed if it replaces `before`, else as new. Returns True."""
        if before is None:
            self._records += 1
        else:
            self.changed += 1
        return True

    def _count_removed(self, before: object | None, count: int = 1) -> bool:
        if before is None:
            return False
        self._records -= count
        self.changed += count
        return True

    # --- features, controllers, brokers ---------------------------------------------------------

    def _apply_no_op(self, _: NoOpRecord) -> bool:
        return True

    def _apply_feature(self, record: FeatureLevelRecord) -> bool:
        before = self._features.get(record.name)
        if record.feature_level == 0:
            self._features.pop(record.name)
            return self._count_removed(before) or True
        self._features.set(record.name, record.feature_level)
        return self._count_added(before)

    def _apply_controller(self, record: RegisterControllerRecord) -> bool:
        before = self._controllers.get(record.controller_id)
        self._controllers.set(record.controller_id, record)
        return self._count_added(before)

    def broker(self, broker_id: int) -> RegisterBrokerRecord | None:
        """Return a broker's registration with the pending changes; None if there is none."""
        return self._brokers.get(broker_id)

    def _apply_broker(self, record: RegisterBrokerRecord) -> bool:
        before = self._brokers.get(record.broker_id)
        self._brokers.set(record.broker_id, record)
        return self._count_added(before)

    def _apply_unregister_broker(self, record: UnregisterBrokerRecord) -> bool:
        before = self._brokers.get(record.broker_id)
        if before is None or before.broker_epoch != record.broker_epoch:
            return False
        self._brokers.pop(record.broker_id)
        return self._count_removed(before)

    def _apply_broker_change(self, record: BrokerRegistrationChangeRecord) -> bool:
        changes: dict[str, Any] = {}
        if record.fenced:
            changes["fenced"] = record.fenced > 0
        if record.in_controlled_shutdown:
            changes["in_controlled_shutdown"] = record.in_controlled_shutdown > 0
        if record.log_dirs:
            changes["log_dirs"] = record.log_dirs
        if record.cordoned_log_dirs is not None:
            changes["cordoned_log_dirs"] = record.cordoned_log_dirs
        if record.unpreferred_reason is not None:
            changes["unpreferred_reason"] = record.unpreferred_reason
        return self._change_broker(record.broker_id, record.broker_epoch, changes)

    def _apply_fence(self, record: FenceBrokerRecord) -> bool:
        return self._change_broker(record.id, record.epoch, {"fenced": True})

    def _apply_unfence(self, record: UnfenceBrokerRecord) -> bool:
        return self._change_broker(record.id, record.epoch, {"fenced": False})

    def _change_broker(self, broker_id: int, epoch: int, changes: dict[str, Any]) -> bool:
        before = self._brokers.get(broker_id)
        if before is None or before.broker_epoch != epoch:
            return False
        self._brokers.set(broker_id, _replace_fields(before, **changes))
        return self._count_added(before)

    # --- topics and partitions ------------------------------------------------------------------

    def _edit_topic(self, topic_id: UUID) -> _TopicEdit | None:
        found = self._open.get(topic_id)
        if found is None:
            topic = self._topics.get(topic_id)
            if topic is None:
                return None
            found = self._open[topic_id] = _TopicEdit(topic)
        return found

    def _apply_topic(self, record: TopicRecord) -> bool:
        if self._edit_topic(record.topic_id) or self._topic_ids.get(record.name) is not None:
            return False
        topic = TopicImage(record.name, record.topic_id, _EMPTY, _EMPTY, _EMPTY)
        self._topics.set(record.topic_id, topic)
        self._topic_ids.set(record.name, record.topic_id)
        metric = metric_name(record.name)
        if metric is not None:
            self._similar.set(metric, (self._similar.get(metric) or frozenset()) | {record.name})
        return self._count_added(None)

    def _apply_remove_topic(self, record: RemoveTopicRecord) -> bool:
        edit = self._edit_topic(record.topic_id)
        if edit is None:
            return False
        topic = edit.freeze()
        for coordinator in topic.coordinators.values():
            self._change_load(edit, coordinator, -1)
        if len(topic.partitions) > len(topic.coordinators):
            self._change_load(edit, 0, len(topic.coordinators) - len(topic.partitions))
        del self._open[record.topic_id]
        self._topics.pop(record.topic_id)
        self._topic_ids.pop(topic.name)
        metric = metric_name(topic.name)
        if metric is not None:
            rest = (self._similar.get(metric) or frozenset()) - {topic.name}
            if rest:
                self._similar.set(metric, rest)
            else:
                self._similar.pop(metric)
        settings = self._configs.pop(Resource(TOPIC, topic.name))
        chunks = sum(map(len, topic.chunks.values()))
        count = 1 + len(topic.partitions) + chunks + len(topic.coordinators) + len(topic.timelines)
        return self._count_removed(topic, count + (len(settings) if settings is not None else 0))

    def _apply_partition(self, record: PartitionRecord) -> bool:
        topic = self._edit_topic(record.topic_id)
        if topic is None:
            return False
        before = topic.partitions.get(record.partition_id)
        topic.partitions.set(record.partition_id, record)
        if before is None:
            self._change_load(topic, 0, 1)
        return self._count_added(before)

    def _change_load(self, topic: _TopicEdit, coordinator: int, change: int) -> None:
        """Add `change` to a batch coordinator's partition count, unless the topic is internal."""
        if not topic.is_internal:
            count = (self._loads.get(coordinator) or 0) + change
            if count:
                self._loads.set(coordinator, count)
            else:
                self._loads.pop(coordinator)

    def _apply_partition_change(self, record: PartitionChangeRecord) -> bool:
        topic = self._edit_topic(record.topic_id)
        before = None if topic is None else topic.partitions.get(record.partition_id)
        if topic is None or before is None:
            return False
        topic.partitions.set(record.partition_id, merge_partition(before, record))
        return self._count_added(before)

    def _apply_clear_elr(self, record: ClearElrRecord) -> bool:
        """Clear the eligible leader replicas of one topic, or of all topics if none is named."""
        if record.topic_name:
            topic_id = self._topic_ids.get(record.topic_name)
            if topic_id is None:
                return False
            touched = [topic_id]
        else:
            self.publish(self._image.offset, self._image.epoch)
            touched = list(self._image.topics)
        for topic_id in touched:
            topic = self._edit_topic(topic_id)
            assert topic is not None, f"{topic_id} has a name and no topic"
            for index, partition in topic.partitions.freeze().items():
                if partition.eligible_leader_replicas or partition.last_known_elr:
                    topic.partitions.set(
                        index,
                        _replace_fields(
                            partition, eligible_leader_replicas=None, last_known_elr=None
                        ),
                    )
                    self._count_added(partition)
        return True

    # --- chunks, coordinators -------------------------------------------------------------------

    def _apply_chunk(self, record: ChunkRecord) -> bool:
        topic = self._edit_topic(record.topic_id)
        if topic is None or topic.partitions.get(record.partition_id) is None:
            return False
        chunks = topic.chunks.get(record.partition_id) or ()
        others = [chunk for chunk in chunks if chunk.start_offset != record.start_offset]
        topic.chunks.set(
            record.partition_id, tuple(sorted([*others, record], key=lambda c: c.start_offset))
        )
        return self._count_added(None if len(others) == len(chunks) else chunks)

    def _apply_chunk_change(self, record: ChunkChangeRecord) -> bool:
        topic = self._edit_topic(record.topic_id)
        chunks = None if topic is None else topic.chunks.get(record.partition_id)
        if topic is None or not chunks:
            return False
        changed = tuple(_change_chunk(chunk, record) for chunk in chunks)
        if changed == chunks:
            return any(chunk.start_offset == record.start_offset for chunk in chunks)
        remaining = tuple(chunk for chunk in changed if chunk is not None)
        if remaining:
            topic.chunks.set(record.partition_id, remaining)
        else:
            topic.chunks.pop(record.partition_id)
        return (
            self._count_removed(chunks)
            if len(remaining) < len(chunks)
            else self._count_added(chunks)
        )

    def _apply_mapping(self, record: TopicPartitionToBatchCoordinatorMapping) -> bool:
        topic = self._edit_topic(record.topic_id)
        if topic is None or topic.partitions.get(record.partition_index) is None:
            return False
        before = topic.coordinators.get(record.partition_index)
        self._change_load(topic, before or 0, -1)
        self._change_load(topic, record.batch_coordinator_partition_index, 1)
        topic.coordinators.set(record.partition_index, record.batch_coordinator_partition_index)
        return self._count_added(before)

    def _apply_timeline(self, record: TimelineRecord) -> bool:
        before, self._timeline = self._timeline, record
        return self._count_added(before)

    def _apply_partition_timelines(self, record: PartitionTimelinesRecord) -> bool:
        topic = self._edit_topic(record.topic_id)
        if topic is None or topic.partitions.get(record.partition_index) is None:
            return False
        before = topic.timelines.get(record.partition_index)
        topic.timelines.set(record.partition_index, record)
        return self._count_added(before)

    # --- settings, producer ids -----------------------------------------------------------------

    def _apply_config(self, record: ConfigRecord) -> bool:
        resource = Resource(record.resource_type, record.resource_name)
        settings = self._configs.get(resource) or _EMPTY
        before = settings.get(record.name)
        if record.value is not None:
            self._configs.set(resource, settings.set(record.name, record.value))
            return self._count_added(before)
        rest = settings.remove(record.name)
        if rest:
            self._configs.set(resource, rest)
        else:
            self._configs.pop(resource)
        return self._count_removed(before) or True

    def _apply_producer_ids(self, record: ProducerIdsRecord) -> bool:
        if self._producer_ids and record.next_producer_id < self._producer_ids[-1].next_producer_id:
            return False  # ids are never allocated twice
        kept = keep_blocks(self._producer_ids, record)
        self._records += len(kept) - len(self._producer_ids)
        self.changed += len(self._producer_ids) + 1 - len(kept)
        self._producer_ids = kept
        return True

    # --- security -------------------------------------------------------------------------------

    def _apply_security(self, record: MetadataRecord) -> bool:
        before, after = self._security.apply(record)
        if after is not None:
            return self._count_added(before)
        return self._count_removed(before)


_R = TypeVar("_R", bound=MetadataRecord)


def _replace_fields(record: _R, **changes: Any) -> _R:
    """Return a copy of the record with the fields in `changes` replaced."""
    made: _R = msgspec.structs.replace(cast(Any, record), **changes)
    return made


class _TopicEdit:
    """A mutable copy of a topic."""

    __slots__ = ("_topic", "chunks", "coordinators", "is_internal", "partitions", "timelines")

    def __init__(self, topic: TopicImage) -> None:
        self._topic = topic
        self.is_internal = topic.is_internal
        self.partitions: Editor[int, PartitionRecord] = topic.partitions.edit()
        self.chunks: Editor[int, tuple[ChunkRecord, ...]] = topic.chunks.edit()
        self.coordinators: Editor[int, int] = topic.coordinators.edit()
        self.timelines: Editor[int, PartitionTimelinesRecord] = topic.timelines.edit()

    def freeze(self) -> TopicImage:
        return self._topic._replace(
            partitions=self.partitions.freeze(),
            chunks=self.chunks.freeze(),
            coordinators=self.coordinators.freeze(),
            timelines=self.timelines.freeze(),
        )


def merge_partition(before: PartitionRecord, record: PartitionChangeRecord) -> PartitionRecord:
    """Return a copy of a partition with a change applied and a partition epoch higher by one.

    A new leader raises the leader epoch, too.

    Source: upstream's PartitionRegistration.merge; KIP-1114 for the start.
    """
    changes: dict[str, Any] = {"partition_epoch": before.partition_epoch + 1}
    for name in ("isr", "replicas", "removing_replicas", "adding_replicas", "directories"):
        value = getattr(record, name)
        if value is not None:
            changes[name] = value
    for name in ("eligible_leader_replicas", "last_known_elr"):
        value = getattr(record, name)
        if value is not None:
            changes[name] = value or None
    if record.leader != NO_LEADER_CHANGE:
        changes["leader"] = record.leader
        changes["leader_epoch"] = before.leader_epoch + 1
    if record.leader_recovery_state >= 0:
        changes["leader_recovery_state"] = record.leader_recovery_state
    if record.start_offset >= 0:
        changes["start_offset"] = record.start_offset
        changes["start_timestamp"] = record.start_timestamp
    return _replace_fields(before, **changes)


def _change_chunk(chunk: ChunkRecord, record: ChunkChangeRecord) -> ChunkRecord | None:
    if chunk.start_offset != record.start_offset:
        return chunk
    if not record.replicas:
        return None
    return _replace_fields(
        chunk,
        replicas=record.replicas,
        isr=record.isr,
        removing_replicas=record.removing_replicas,
        adding_replicas=record.adding_replicas,
        directories=chunk.directories if record.directories is None else record.directories,
        chunk_epoch=record.epoch,
        epoch=record.epoch,
    )


def keep_blocks(
    blocks: tuple[ProducerIdsRecord, ...], record: ProducerIdsRecord
) -> tuple[ProducerIdsRecord, ...]:
    """Return the producer id blocks of the last seven days, with the block `record` added.

    Each stands for the ids from the entry before it up to its own end, allocated at its time or
    shortly before. Seven days are kept, counted from the last block: no clock is read here.
    """
    now = record.block_time_ms
    kept = list(blocks)
    if kept and kept[-1].block_time_ms // BLOCK_TIME_STEP_MS == now // BLOCK_TIME_STEP_MS:
        kept.pop()
    kept.append(record)
    first = 0
    # The oldest entry that is kept marks the end of the forgotten ids.
    while len(kept) - first > 1 and kept[first + 1].block_time_ms <= now - BLOCK_TIMES_KEPT_MS:
        first += 1
    return tuple(kept[first:])


def metric_name(name: str) -> str | None:
    """Return a topic's name with "." replaced by "_"; None if the name has neither character.

    Metrics replace "." by "_", so two topics must not have the same such name.

    >>> metric_name("a.b"), metric_name("a_b"), metric_name("ab")
    ('a_b', 'a_b', None)
    """
    return name.replace(".", "_") if "." in name or "_" in name else None


_Change = Callable[[ImageEdit, Any], bool]

_APPLY: Final[dict[type[MetadataRecord], _Change]] = {
    NoOpRecord: ImageEdit._apply_no_op,
    FeatureLevelRecord: ImageEdit._apply_feature,
    RegisterControllerRecord: ImageEdit._apply_controller,
    RegisterBrokerRecord: ImageEdit._apply_broker,
    UnregisterBrokerRecord: ImageEdit._apply_unregister_broker,
    BrokerRegistrationChangeRecord: ImageEdit._apply_broker_change,
    FenceBrokerRecord: ImageEdit._apply_fence,
    UnfenceBrokerRecord: ImageEdit._apply_unfence,
    TopicRecord: ImageEdit._apply_topic,
    RemoveTopicRecord: ImageEdit._apply_remove_topic,
    PartitionRecord: ImageEdit._apply_partition,
    PartitionChangeRecord: ImageEdit._apply_partition_change,
    ClearElrRecord: ImageEdit._apply_clear_elr,
    ChunkRecord: ImageEdit._apply_chunk,
    ChunkChangeRecord: ImageEdit._apply_chunk_change,
    TopicPartitionToBatchCoordinatorMapping: ImageEdit._apply_mapping,
    TimelineRecord: ImageEdit._apply_timeline,
    PartitionTimelinesRecord: ImageEdit._apply_partition_timelines,
    ConfigRecord: ImageEdit._apply_config,
    ProducerIdsRecord: ImageEdit._apply_producer_ids,
    ClientQuotaRecord: ImageEdit._apply_security,
    AccessControlEntryRecord: ImageEdit._apply_security,
    RemoveAccessControlEntryRecord: ImageEdit._apply_security,
    UserScramCredentialRecord: ImageEdit._apply_security,
    RemoveUserScramCredentialRecord: ImageEdit._apply_security,
    DelegationTokenRecord: ImageEdit._apply_security,
    RemoveDelegationTokenRecord: ImageEdit._apply_security,
    ZkMigrationStateRecord: ImageEdit._apply_security,
}
