"""Changes the states of a lost cluster for its new life, and writes their checkpoints.

Where there is a record for a change, the code that applies records makes it:

- leases of object ids are closed, brokers are fenced;
- each partition begins a new timeline where the lost cluster's records were last known to be
  committed, and offsets of groups above that point go back to it;
- a topic that only a batch coordinator knows comes back: otherwise the first controller would take
  it for a left-over of a deleted topic, and delete its objects.

The trap: uncommitted ids of a lease that was open are not marked for deletion. The lost cluster may
have committed and acknowledged them later, in records that no source has.

Source: docs/design/restore.md#the-four-rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar, cast
from uuid import UUID

import msgspec

from coordinator.batch.id_ranges import Ranges
from coordinator.batch.sqlite.machine import CoordinatorMachine
from coordinator.batch.state import Lease, Topic
from coordinator.controller.apply import ImageEdit
from coordinator.controller.checkpoint import image_records
from coordinator.controller.decide.placement import new_partition
from coordinator.controller.image import MetadataImage
from coordinator.controller.machine import ControllerMachine
from coordinator.groups.checkpoint import image_values as group_values
from coordinator.groups.machine import GroupMachine
from coordinator.transactions.checkpoint import image_values as transaction_values
from coordinator.transactions.machine import TransactionMachine
from coordinator.transactions.state import OPEN
from esker.restore.open_transactions import Outcomes, end_in_coordinator, end_in_groups
from esker.restore.plan import Choices, ChosenLog
from esker.restore.restored import (
    IDS,
    LostCoordinator,
    LostOffset,
    Restored,
    held_partitions,
)
from raft.driver.config import METADATA_GROUP
from raft.segments.files import FileSystem
from records.chunks import TopicPartitionToBatchCoordinatorMapping
from records.diskless import (
    LeaseClosedRecord,
    ObjectsState,
)
from records.features import ESKER_VERSION
from records.frame import decode_record, encode_record, read_frame
from records.groups import GroupOffsetsRecord, GroupsState, PendingGroupOffsetsRecord
from records.metadata import FeatureLevelRecord, ProducerIdsRecord, TopicRecord
from records.timelines import PartitionTimelinesRecord, TimelineRecord
from records.transactions import TransactionsState, TransactionStateRecord
from records.types import Offset, OffsetAndEpoch
from snapshot.writer import CheckpointWriter

RESTORED_LEVEL: Final = 5
"""Level of `esker.version` that allows the records of a restored cluster."""

S = TypeVar("S")


def _values_of(machine: CoordinatorMachine) -> Iterator[bytes]:
    frozen = machine.freeze()
    try:
        yield from frozen.values()
    finally:
        frozen.close()


class StateWriter:
    """Changes the states for the new cluster and writes their checkpoints."""

    def __init__(
        self,
        files: FileSystem,
        scratch: Path,
        choices: Choices,
        restored: Restored,
        outcomes: Outcomes,
    ) -> None:
        self._files = files
        self._scratch = scratch
        self._choices = choices
        self._restored = restored
        self._outcomes = outcomes

    def write_coordinator(self, log: ChosenLog, coordinator: LostCoordinator) -> None:
        """Write a batch coordinator's checkpoint: leases closed, counters above the lost ones.

        Transactions that no marker would end are ended.
        """
        machine, restored = coordinator.machine, self._restored
        store = machine.store
        store.begin()
        for lease_id, lease in sorted(store.leases.items()):
            if lease.is_open:
                closed_at_ms = max(store.counters.steady_ms, lease.granted_at_ms, 0)
                store.apply(_closing(lease_id, lease, closed_at_ms))
                skipped = coordinator.skipped.get(lease_id, ())
                store.leases[lease_id] = _without_orphans(store.leases[lease_id], skipped)
        for lease_id, lease in sorted(store.leases.items()):
            if lease.rewrite is not None and lease.orphans:
                store.leases[lease_id] = lease._replace(orphans=())
        end_in_coordinator(store, self._outcomes, machine.last_timestamp)
        store.counters.next_lease_id += IDS
        store.counters.next_object_id += IDS
        objects = restored.objects.setdefault(log.group.partition, set())
        objects_key = ObjectsState.schema().key

        def values() -> Iterator[bytes]:
            for value in _values_of(machine):
                if read_frame(value)[0] == objects_key:  # most values are runs, slow to decode
                    record = cast(ObjectsState, decode_record(value))
                    objects.update(
                        object_id
                        for object_id, used in zip(
                            record.object_ids, record.used_bytes, strict=True
                        )
                        if used
                    )
                yield value

        self._write(log, values(), machine.last_timestamp)

    def write_cluster(
        self, cluster: ControllerMachine, coordinators: Mapping[int, LostCoordinator]
    ) -> None:
        """Write the cluster log's checkpoint: a new timeline, brokers fenced."""
        image = cluster.image
        log, restored = self._choices.logs[METADATA_GROUP], self._restored
        edit = ImageEdit(image)
        edit.apply(FeatureLevelRecord(name=ESKER_VERSION, feature_level=RESTORED_LEVEL))
        edit.apply(self._timeline(image, coordinators))
        for broker_id in sorted(image.brokers):
            edit.apply(_replace(image.brokers[broker_id], fenced=True))
        newest = image.producer_ids[-1] if image.producer_ids else None
        edit.apply(
            ProducerIdsRecord(
                broker_id=newest.broker_id if newest else -1,
                next_producer_id=restored.jump.producer_id,
                block_time_ms=newest.block_time_ms if newest else -1,
            )
        )
        self._adopt(edit, image, coordinators)
        adopted = edit.publish(restored.jump.cluster_offset, restored.jump.leader_epoch)
        for record in self._partition_timelines(adopted, image, coordinators):
            edit.apply(record)
        restored.image = edit.publish(restored.jump.cluster_offset, restored.jump.leader_epoch)
        values = map(encode_record, image_records(restored.image))
        self._write(log, values, cluster.last_timestamp, restored.jump.cluster_offset)

    def _timeline(
        self, image: MetadataImage, coordinators: Mapping[int, LostCoordinator]
    ) -> TimelineRecord:
        """Return the record that names the lost cluster as the newest ancestor."""
        ancestor = TimelineRecord.Ancestor(
            cluster_id=self._choices.cluster_id,
            object_ids_below=tuple(
                coordinators[index].machine.store.counters.next_object_id
                if index in coordinators
                else 0
                for index in range(image.coordinator_count)
            ),
        )
        before = () if image.timeline is None else image.timeline.ancestors
        return TimelineRecord(timeline=self._restored.timeline, ancestors=(*before, ancestor))

    def _adopt(
        self,
        edit: ImageEdit,
        image: MetadataImage,
        coordinators: Mapping[int, LostCoordinator],
    ) -> None:
        """Add the topics and partitions that batch coordinators have and the cluster log lacks."""
        names = set(image.topic_ids)
        created: set[UUID] = set()
        replicas = tuple(sorted(image.brokers)[:1]) or (0,)
        for coordinator, found in sorted(coordinators.items()):
            for topic_id, topic in sorted(found.machine.store.topics.items(), key=_by_id):
                if topic.deleted_at_ms >= 0 or topic_id in image.topics:
                    continue
                if topic_id not in created:
                    created.add(topic_id)
                    name = topic.name
                    if name in names:
                        name = f"{topic.name[:200]}.restored-{topic_id.hex[:8]}"
                    names.add(name)
                    edit.apply(TopicRecord(name=name, topic_id=topic_id))
                    self._restored.adopted.append(name)
                for index, log_id in enumerate(topic.log_ids):
                    if log_id >= 0:
                        edit.apply(new_partition(topic_id, index, replicas))
                        if coordinator:
                            edit.apply(
                                TopicPartitionToBatchCoordinatorMapping(
                                    partition_index=index,
                                    topic_id=topic_id,
                                    batch_coordinator_partition_index=coordinator,
                                )
                            )

    def _partition_timelines(
        self,
        adopted: MetadataImage,
        image: MetadataImage,
        coordinators: Mapping[int, LostCoordinator],
    ) -> Iterator[PartitionTimelinesRecord]:
        """Yield where each partition's new timeline begins: at its exact end."""
        restored = self._restored
        known = {c: found.known_ends for c, found in coordinators.items()}
        held = {
            c: {place: (start, end) for place, start, end in held_partitions(found.machine)}
            for c, found in coordinators.items()
        }
        for topic in adopted.iter_topics():
            if topic.is_internal:
                continue
            restored.topics += 1
            for index in sorted(topic.partitions):
                place, coordinator = (topic.topic_id, index), topic.coordinator(index)
                found = held.get(coordinator, {}).get(place)
                start, end = found or (0, 0)
                if found is None:
                    restored.emptied.append(f"{topic.name}-{index}")
                exact_end = known.get(coordinator, {}).get(place, start)
                exact_end = max(start, min(exact_end, end))
                restored.partitions += 1
                restored.records += end - start
                copied = coordinators[coordinator].ends[place] if found else end
                if exact_end < copied:
                    restored.uncertain.append((topic.name, index, exact_end, copied))
                epochs = image.leader_epochs(topic, index).begin(restored.timeline, exact_end)
                timelines, first_offsets = zip(*epochs.starts, strict=True)
                yield PartitionTimelinesRecord(
                    topic_id=topic.topic_id,
                    partition_index=index,
                    timelines=timelines,
                    first_offsets=first_offsets,
                )

    def write_groups(self, machine: GroupMachine, log: ChosenLog) -> None:
        """Write the group log's checkpoint: no offset is above its partition's exact end.

        Pending offsets whose transaction no marker would end are ended.
        """
        image = end_in_groups(machine.image, self._outcomes, machine.last_timestamp)

        def values() -> Iterator[bytes]:
            for value in group_values(image):
                if not value:
                    continue  # a pause
                record = decode_record(value)
                match record:
                    case GroupsState():
                        owners = record.next_ownership_epoch + IDS
                        yield encode_record(GroupsState(next_ownership_epoch=owners))
                    case GroupOffsetsRecord():
                        topics = self._limited(record.group_id, record.topics)
                        yield encode_record(_replace(record, topics=topics))
                    case PendingGroupOffsetsRecord():
                        commits = tuple(
                            _replace(commit, topics=self._limited(record.group_id, commit.topics))
                            for commit in record.commits
                        )
                        yield encode_record(_replace(record, commits=commits))
                    case _:
                        yield bytes(value)

        self._write(log, values(), machine.last_timestamp)

    def _limited(
        self, group_id: str, topics: Iterable[GroupOffsetsRecord.Topic]
    ) -> tuple[GroupOffsetsRecord.Topic, ...]:
        """Return committed offsets, none above its partition's exact end; note those that were."""
        image, limited = self._restored.image, []
        for topic in topics:
            found = image.topic(topic.topic_name)
            partitions = []
            for partition in topic.partitions:
                index, offset = partition.partition_index, partition.committed_offset
                if found is not None and index in found.partitions:
                    exact_end = image.leader_epochs(found, index).starts[-1][1]
                    if offset > exact_end:
                        lost = LostOffset(group_id, topic.topic_name, index, offset, exact_end)
                        self._restored.lost_offsets.append(lost)
                        partition = _replace(partition, committed_offset=exact_end)
                partitions.append(partition)
            limited.append(_replace(topic, partitions=tuple(partitions)))
        return tuple(limited)

    def write_transactions(self, machine: TransactionMachine, log: ChosenLog) -> None:
        """Write the transaction log's checkpoint: later transactions have higher numbers.

        A batch coordinator may have seen transactions that this copy lacks, and refuses their
        numbers. An open transaction keeps its number, and ends under it: an Ongoing one is aborted.
        """

        def values() -> Iterator[bytes]:
            for value in transaction_values(self._outcomes.image):
                if not value:
                    continue  # a pause
                record = decode_record(value)
                match record:
                    case TransactionsState():
                        owners = record.next_ownership_epoch + IDS
                        yield encode_record(TransactionsState(next_ownership_epoch=owners))
                    case TransactionStateRecord(state=state) if state not in OPEN:
                        number = record.transaction_number + IDS
                        yield encode_record(_replace(record, transaction_number=number))
                    case _:
                        yield bytes(value)

        self._write(log, values(), machine.last_timestamp)

    def _write(
        self,
        log: ChosenLog,
        values: Iterable[bytes],
        last_timestamp: int,
        end_offset: Offset | None = None,
    ) -> None:
        """Write a log's new checkpoint.

        It ends one record above the copy at least: a record of the new epoch, which no copy of the
        lost cluster has.
        """
        chosen = log.choice.chosen
        end = end_offset or Offset(max(chosen.end, chosen.committed) + 1)
        snapshot_id = OffsetAndEpoch(end, self._restored.jump.leader_epoch)
        directory = self._scratch / "checkpoints" / log.group.name
        self._files.make_directory(directory)
        with CheckpointWriter.create(
            self._files, directory, snapshot_id, last_timestamp=last_timestamp
        ) as writer:
            writer.append_values(values)
            path = writer.freeze()
        self._restored.checkpoints[log.group] = (path, snapshot_id)


def _replace(record: S, **changes: Any) -> S:
    """Return a copy of a record or of a part of one, with the fields in `changes` replaced."""
    made: S = msgspec.structs.replace(cast(Any, record), **changes)
    return made


def _by_id(item: tuple[UUID, Topic]) -> bytes:
    return item[0].bytes


def _without_orphans(lease: Lease, skipped: Ranges) -> Lease:
    """Return a closed lease whose only orphans are the ids that could never be committed.

    Ids that the tail passed over have objects whose batches were listed, and those above its last
    object may have been committed in records that no source has.
    """
    return lease._replace(orphans=skipped)


def _closing(lease_id: int, lease: Lease, closed_at_ms: int) -> LeaseClosedRecord:
    """Return the record that closes a lease and makes no id of it an orphan."""
    return LeaseClosedRecord(
        lease_id=lease_id,
        closed_at_ms=closed_at_ms,
        end_object_id=lease.last_committed_id + 1,
        reason=0,
    )
