"""The only mutator: one record, and the image it leads to.

    edit = ImageEdit(image)
    for offset, record in ...:
        edit.apply(record)
    image = edit.publish(end_offset, epoch)

`apply` decides nothing and refuses nothing: on every replica, in every order of restarts and
checkpoint loads, the same records give the same image. A record that contradicts the image (a
partition of a topic that is gone, a change of a broker's former epoch) changes nothing and is
counted. Upstream stops the process there; we go on, and everybody goes on alike.

Source: KIP-631; upstream's deltas (BrokerRegistration.replay, PartitionRegistration.merge).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast
from uuid import UUID

import msgspec

from coordinator.controller.image import TOPIC, MetadataImage, Resource, TopicImage
from coordinator.controller.security import SecurityEdit
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
from records.types import Epoch, Offset

BLOCK_TIMES_KEPT_MS: Final = 7 * 24 * 3_600_000
"""How far back the times of producer-id blocks are kept: the longest that producer state lives."""

BLOCK_TIME_STEP_MS: Final = 60_000
"""Blocks of one minute become one, with the time of the last: a day is 1,440 entries at most."""

NO_LEADER_CHANGE: Final = -2

_EMPTY: Final[Map[Any, Any]] = Map()


class ImageEdit:
    """An image on its way to the next. Nobody sees it before `publish`."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._features = image.features.edit()
        self._controllers = image.controllers.edit()
        self._brokers = image.brokers.edit()
        self._topics = image.topics.edit()
        self._topic_ids = image.topic_ids.edit()
        self._similar = image.similar.edit()
        self._loads = image.loads.edit()
        self._configs = image.configs.edit()
        self._producer_ids = image.producer_ids
        self._security = SecurityEdit(image.security)
        self._open: dict[UUID, _TopicEdit] = {}  # topics that have changed
        self._records = image.record_count
        self.changed = 0  # records that were replaced, or left the state
        self.contradictions = 0  # records that fit nothing here

    def apply(self, record: MetadataRecord) -> None:
        """One committed record, in its turn."""
        change = _APPLY.get(type(record))
        # None: a batch coordinator's record, or a transaction's mark, and nothing to do for it.
        if change is None or not change(self, record):
            self.contradictions += 1

    def publish(self, offset: Offset, epoch: Epoch) -> MetadataImage:
        """The image after all that was applied; the edit may go on from there."""
        self.close_topics()
        self._image = MetadataImage(
            offset=offset,
            epoch=epoch,
            features=self._features.freeze(),
            controllers=self._controllers.freeze(),
            brokers=self._brokers.freeze(),
            topics=self._topics.freeze(),
            topic_ids=self._topic_ids.freeze(),
            similar=self._similar.freeze(),
            loads=self._loads.freeze(),
            configs=self._configs.freeze(),
            producer_ids=self._producer_ids,
            security=self._security.freeze(),
            record_count=self._records,
        )
        return self._image

    def close_topics(self) -> None:
        """Put changed topics back. Now and then in a long series, so that `publish` is short."""
        for topic_id, topic in self._open.items():
            self._topics.set(topic_id, topic.freeze())
        self._open.clear()

    # --- counting -----------------------------------------------------------------------------

    def _added(self, before: object | None) -> bool:
        """A record came in; the one it replaces, if any, went out."""
        if before is None:
            self._records += 1
        else:
            self.changed += 1
        return True

    def _gone(self, before: object | None, count: int = 1) -> bool:
        if before is None:
            return False
        self._records -= count
        self.changed += count
        return True

    # --- features, controllers, brokers ---------------------------------------------------------

    def _no_op(self, _: NoOpRecord) -> bool:
        return True

    def _feature(self, record: FeatureLevelRecord) -> bool:
        before = self._features.get(record.name)
        if record.feature_level == 0:
            self._features.pop(record.name)
            return self._gone(before) or True
        self._features.set(record.name, record.feature_level)
        return self._added(before)

    def _controller(self, record: RegisterControllerRecord) -> bool:
        before = self._controllers.get(record.controller_id)
        self._controllers.set(record.controller_id, record)
        return self._added(before)

    def broker(self, broker_id: int) -> RegisterBrokerRecord | None:
        """One broker as changed so far."""
        return self._brokers.get(broker_id)

    def _broker(self, record: RegisterBrokerRecord) -> bool:
        before = self._brokers.get(record.broker_id)
        self._brokers.set(record.broker_id, record)
        return self._added(before)

    def _no_broker(self, record: UnregisterBrokerRecord) -> bool:
        before = self._brokers.get(record.broker_id)
        if before is None or before.broker_epoch != record.broker_epoch:
            return False
        self._brokers.pop(record.broker_id)
        return self._gone(before)

    def _broker_change(self, record: BrokerRegistrationChangeRecord) -> bool:
        changes: dict[str, Any] = {}
        if record.fenced:
            changes["fenced"] = record.fenced > 0
        if record.in_controlled_shutdown:
            changes["in_controlled_shutdown"] = record.in_controlled_shutdown > 0
        if record.log_dirs:
            changes["log_dirs"] = record.log_dirs
        if record.cordoned_log_dirs is not None:
            changes["cordoned_log_dirs"] = record.cordoned_log_dirs
        return self._change_broker(record.broker_id, record.broker_epoch, changes)

    def _fence(self, record: FenceBrokerRecord) -> bool:
        return self._change_broker(record.id, record.epoch, {"fenced": True})

    def _unfence(self, record: UnfenceBrokerRecord) -> bool:
        return self._change_broker(record.id, record.epoch, {"fenced": False})

    def _change_broker(self, broker_id: int, epoch: int, changes: dict[str, Any]) -> bool:
        before = self._brokers.get(broker_id)
        if before is None or before.broker_epoch != epoch:
            return False
        self._brokers.set(broker_id, _with(before, **changes))
        return self._added(before)

    # --- topics and partitions ------------------------------------------------------------------

    def _edit_topic(self, topic_id: UUID) -> _TopicEdit | None:
        found = self._open.get(topic_id)
        if found is None:
            topic = self._topics.get(topic_id)
            if topic is None:
                return None
            found = self._open[topic_id] = _TopicEdit(topic)
        return found

    def _topic(self, record: TopicRecord) -> bool:
        if self._edit_topic(record.topic_id) or self._topic_ids.get(record.name) is not None:
            return False
        topic = TopicImage(record.name, record.topic_id, _EMPTY, _EMPTY, _EMPTY)
        self._topics.set(record.topic_id, topic)
        self._topic_ids.set(record.name, record.topic_id)
        alike = plain_name(record.name)
        if alike is not None:
            self._similar.set(alike, (self._similar.get(alike) or frozenset()) | {record.name})
        return self._added(None)

    def _no_topic(self, record: RemoveTopicRecord) -> bool:
        edit = self._edit_topic(record.topic_id)
        if edit is None:
            return False
        topic = edit.freeze()
        for coordinator in topic.coordinators.values():
            self._load(edit, coordinator, -1)
        if len(topic.partitions) > len(topic.coordinators):
            self._load(edit, 0, len(topic.coordinators) - len(topic.partitions))
        del self._open[record.topic_id]
        self._topics.pop(record.topic_id)
        self._topic_ids.pop(topic.name)
        alike = plain_name(topic.name)
        if alike is not None:
            rest = (self._similar.get(alike) or frozenset()) - {topic.name}
            if rest:
                self._similar.set(alike, rest)
            else:
                self._similar.pop(alike)
        settings = self._configs.pop(Resource(TOPIC, topic.name))
        chunks = sum(map(len, topic.chunks.values()))
        count = 1 + len(topic.partitions) + chunks + len(topic.coordinators)
        return self._gone(topic, count + (len(settings) if settings is not None else 0))

    def _partition(self, record: PartitionRecord) -> bool:
        topic = self._edit_topic(record.topic_id)
        if topic is None:
            return False
        before = topic.partitions.get(record.partition_id)
        topic.partitions.set(record.partition_id, record)
        if before is None:
            self._load(topic, 0, 1)
        return self._added(before)

    def _load(self, topic: _TopicEdit, coordinator: int, change: int) -> None:
        """A coordinator has so many of a topic's partitions more."""
        if not topic.is_internal:
            count = (self._loads.get(coordinator) or 0) + change
            if count:
                self._loads.set(coordinator, count)
            else:
                self._loads.pop(coordinator)

    def _partition_change(self, record: PartitionChangeRecord) -> bool:
        topic = self._edit_topic(record.topic_id)
        before = None if topic is None else topic.partitions.get(record.partition_id)
        if topic is None or before is None:
            return False
        topic.partitions.set(record.partition_id, merge_partition(before, record))
        return self._added(before)

    def _clear_elr(self, record: ClearElrRecord) -> bool:
        """Forget eligible leader replicas: of one topic, or of all if it names none."""
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
                        _with(partition, eligible_leader_replicas=None, last_known_elr=None),
                    )
                    self._added(partition)
        return True

    # --- chunks, coordinators -------------------------------------------------------------------

    def _chunk(self, record: ChunkRecord) -> bool:
        topic = self._edit_topic(record.topic_id)
        if topic is None or topic.partitions.get(record.partition_id) is None:
            return False
        chunks = topic.chunks.get(record.partition_id) or ()
        others = [chunk for chunk in chunks if chunk.start_offset != record.start_offset]
        topic.chunks.set(
            record.partition_id, tuple(sorted([*others, record], key=lambda c: c.start_offset))
        )
        return self._added(None if len(others) == len(chunks) else chunks)

    def _chunk_change(self, record: ChunkChangeRecord) -> bool:
        topic = self._edit_topic(record.topic_id)
        chunks = None if topic is None else topic.chunks.get(record.partition_id)
        if topic is None or not chunks:
            return False
        changed = tuple(_change_chunk(chunk, record) for chunk in chunks)
        if changed == chunks:
            return any(chunk.start_offset == record.start_offset for chunk in chunks)
        left = tuple(chunk for chunk in changed if chunk is not None)
        if left:
            topic.chunks.set(record.partition_id, left)
        else:
            topic.chunks.pop(record.partition_id)
        return self._gone(chunks) if len(left) < len(chunks) else self._added(chunks)

    def _mapping(self, record: TopicPartitionToBatchCoordinatorMapping) -> bool:
        topic = self._edit_topic(record.topic_id)
        if topic is None or topic.partitions.get(record.partition_index) is None:
            return False
        before = topic.coordinators.get(record.partition_index)
        self._load(topic, before or 0, -1)
        self._load(topic, record.batch_coordinator_partition_index, 1)
        topic.coordinators.set(record.partition_index, record.batch_coordinator_partition_index)
        return self._added(before)

    # --- settings, producer ids -----------------------------------------------------------------

    def _config(self, record: ConfigRecord) -> bool:
        resource = Resource(record.resource_type, record.resource_name)
        settings = self._configs.get(resource) or _EMPTY
        before = settings.get(record.name)
        if record.value is not None:
            self._configs.set(resource, settings.set(record.name, record.value))
            return self._added(before)
        rest = settings.remove(record.name)
        if rest:
            self._configs.set(resource, rest)
        else:
            self._configs.pop(resource)
        return self._gone(before) or True

    def _block(self, record: ProducerIdsRecord) -> bool:
        if self._producer_ids and record.next_producer_id < self._producer_ids[-1].next_producer_id:
            return False  # ids are never handed out again
        kept = keep_blocks(self._producer_ids, record)
        self._records += len(kept) - len(self._producer_ids)
        self.changed += len(self._producer_ids) + 1 - len(kept)
        self._producer_ids = kept
        return True

    # --- what we only keep ----------------------------------------------------------------------

    def _secure(self, record: MetadataRecord) -> bool:
        before, after = self._security.apply(record)
        if after is not None:
            return self._added(before)
        return self._gone(before)


_R = TypeVar("_R", bound=MetadataRecord)


def _with(record: _R, **changes: Any) -> _R:
    """The same record with some fields changed."""
    made: _R = msgspec.structs.replace(cast(Any, record), **changes)
    return made


class _TopicEdit:
    """A topic on its way to the next."""

    __slots__ = ("_topic", "chunks", "coordinators", "is_internal", "partitions")

    def __init__(self, topic: TopicImage) -> None:
        self._topic = topic
        self.is_internal = topic.is_internal
        self.partitions: Editor[int, PartitionRecord] = topic.partitions.edit()
        self.chunks: Editor[int, tuple[ChunkRecord, ...]] = topic.chunks.edit()
        self.coordinators: Editor[int, int] = topic.coordinators.edit()

    def freeze(self) -> TopicImage:
        return self._topic._replace(
            partitions=self.partitions.freeze(),
            chunks=self.chunks.freeze(),
            coordinators=self.coordinators.freeze(),
        )


def merge_partition(before: PartitionRecord, record: PartitionChangeRecord) -> PartitionRecord:
    """The partition after a change. Every change is a partition epoch, a leader's a leader epoch.

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
    return _with(before, **changes)


def _change_chunk(chunk: ChunkRecord, record: ChunkChangeRecord) -> ChunkRecord | None:
    if chunk.start_offset != record.start_offset:
        return chunk
    if not record.replicas:
        return None
    return _with(
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
    """The ends of producer-id blocks that are worth keeping once `record` is the last.

    Each stands for the ids from the entry before it up to its own end, handed out at its time or
    shortly before. Seven days are kept, counted from the last block: no clock is read here.
    """
    now = record.block_time_ms
    kept = list(blocks)
    if kept and kept[-1].block_time_ms // BLOCK_TIME_STEP_MS == now // BLOCK_TIME_STEP_MS:
        kept.pop()
    kept.append(record)
    first = 0
    # The oldest entry that is kept says where the forgotten ids end.
    while len(kept) - first > 1 and kept[first + 1].block_time_ms <= now - BLOCK_TIMES_KEPT_MS:
        first += 1
    return tuple(kept[first:])


def plain_name(name: str) -> str | None:
    """What two topics may not share: metric names take . for _. None: nothing is like it.

    >>> plain_name("a.b"), plain_name("a_b"), plain_name("ab")
    ('a_b', 'a_b', None)
    """
    return name.replace(".", "_") if "." in name or "_" in name else None


_Change = Callable[[ImageEdit, Any], bool]

_APPLY: Final[dict[type[MetadataRecord], _Change]] = {
    NoOpRecord: ImageEdit._no_op,
    FeatureLevelRecord: ImageEdit._feature,
    RegisterControllerRecord: ImageEdit._controller,
    RegisterBrokerRecord: ImageEdit._broker,
    UnregisterBrokerRecord: ImageEdit._no_broker,
    BrokerRegistrationChangeRecord: ImageEdit._broker_change,
    FenceBrokerRecord: ImageEdit._fence,
    UnfenceBrokerRecord: ImageEdit._unfence,
    TopicRecord: ImageEdit._topic,
    RemoveTopicRecord: ImageEdit._no_topic,
    PartitionRecord: ImageEdit._partition,
    PartitionChangeRecord: ImageEdit._partition_change,
    ClearElrRecord: ImageEdit._clear_elr,
    ChunkRecord: ImageEdit._chunk,
    ChunkChangeRecord: ImageEdit._chunk_change,
    TopicPartitionToBatchCoordinatorMapping: ImageEdit._mapping,
    ConfigRecord: ImageEdit._config,
    ProducerIdsRecord: ImageEdit._block,
    ClientQuotaRecord: ImageEdit._secure,
    AccessControlEntryRecord: ImageEdit._secure,
    RemoveAccessControlEntryRecord: ImageEdit._secure,
    UserScramCredentialRecord: ImageEdit._secure,
    RemoveUserScramCredentialRecord: ImageEdit._secure,
    DelegationTokenRecord: ImageEdit._secure,
    RemoveDelegationTokenRecord: ImageEdit._secure,
    ZkMigrationStateRecord: ImageEdit._secure,
}
