"""Makes the checkpoints with which the logs of a restored cluster begin.

The state of each log is built as a node builds it: the newest checkpoint is loaded, the records
behind it are applied. Then the state is changed for its new life, by the code that applies records
where there is a record for the change:

- every counter jumps over all that the lost cluster can have handed out since (`Jump`);
- leases of object ids are closed, brokers are fenced;
- each partition begins a new timeline where the lost cluster's records were last known to be
  committed, and offsets of groups above that point go back to it;
- a topic that only a batch coordinator knows comes back: otherwise the first controller would take
  it for a left-over of a deleted topic, and delete its objects.

The trap: uncommitted ids of a lease that was open are not marked for deletion. The lost cluster may
have committed and acknowledged them later, in records that no source has.

Source: docs/design/restore.md#one-jump-of-all-counters, docs/design/restore.md#the-four-rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, cast
from uuid import UUID

import msgspec

from coordinator.batch.id_ranges import Ranges
from coordinator.batch.sqlite.machine import CoordinatorMachine, Identity
from coordinator.batch.state import Lease, Topic
from coordinator.controller.apply import ImageEdit
from coordinator.controller.checkpoint import image_records
from coordinator.controller.decide.placement import new_partition
from coordinator.controller.image import MetadataImage
from coordinator.controller.machine import ControllerMachine
from coordinator.groups.checkpoint import image_values as group_values
from coordinator.groups.machine import GroupMachine
from coordinator.image_machine import ImageMachine
from coordinator.transactions.checkpoint import image_values as transaction_values
from coordinator.transactions.machine import TransactionMachine
from coordinator.transactions.state import OPEN
from esker.restore.appending import Appended, append_tail
from esker.restore.errors import RestoreError
from esker.restore.open_transactions import Outcomes, end_in_coordinator, end_in_groups
from esker.restore.plan import Choices, ChosenLog
from esker.restore.tail import HIGHEST, Tail, UncommittedIds
from raft.driver.config import METADATA_GROUP
from raft.segments.files import FileSystem
from raft.wire.responses import Group
from records.batch import Batch
from records.chunks import TopicPartitionToBatchCoordinatorMapping
from records.diskless import (
    LeaseClosedRecord,
    LogStartOffsetsRecord,
    ObjectsState,
)
from records.features import ESKER_VERSION
from records.frame import decode_record, encode_record, read_frame
from records.groups import GroupOffsetsRecord, GroupsState, PendingGroupOffsetsRecord
from records.internal_topics import CONSUMER_OFFSETS, DISKLESS_METADATA, TRANSACTION_STATE
from records.metadata import FeatureLevelRecord, ProducerIdsRecord, TopicRecord
from records.timelines import PartitionTimelinesRecord, TimelineRecord
from records.transactions import TransactionsState, TransactionStateRecord
from records.types import Epoch, Offset, OffsetAndEpoch
from snapshot.names import checkpoint_name
from snapshot.reader import CheckpointReader
from snapshot.surviving_files import read_batches
from snapshot.writer import CheckpointWriter

RESTORED_LEVEL: Final = 5
"""Level of `esker.version` that allows the records of a restored cluster."""

EPOCHS: Final = 1 << 16
IDS: Final = 1 << 20
PRODUCER_IDS: Final = 10 * 1_000
"""Ten blocks of producer ids."""

_DELETE_RECORDS: Final = 0  # the reason of a moved log start

HIGHEST_EPOCH: Final = 1 << 30
"""Half of the range of an epoch, as HIGHEST of an id: a counter above it was poisoned."""

S = TypeVar("S")
M = TypeVar("M", bound=ImageMachine[Any, Any])
TopicPartition = tuple[UUID, int]


class Jump(NamedTuple):
    """The first numbers of the new cluster, above all that the lost one can have handed out."""

    leader_epoch: Epoch  # of all logs
    cluster_offset: Offset  # at which the cluster log goes on
    producer_id: int


@dataclass(slots=True)
class LostOffset:
    """A group's offset that went back, because the records below it may have changed."""

    group_id: str
    topic: str
    partition: int
    committed: int
    now: int


@dataclass(slots=True)
class Restored:
    """The new checkpoints, as files, and what is to be told about them."""

    timeline: int
    jump: Jump
    checkpoints: dict[Group, tuple[Path, OffsetAndEpoch]] = field(default_factory=dict)
    topics: int = 0
    partitions: int = 0
    records: int = 0  # of clients, from log starts to high watermarks
    objects: dict[int, set[int]] = field(default_factory=dict)  # by batch coordinator
    adopted: list[str] = field(default_factory=list)  # topics that only a coordinator knew
    emptied: list[str] = field(default_factory=list)  # partitions that no coordinator knew
    uncertain: list[tuple[str, int, int, int]] = field(default_factory=list)
    """Topic, partition, exact end and high watermark of partitions whose last records were not
    known to be committed."""
    lost_offsets: list[LostOffset] = field(default_factory=list)
    uncommitted: dict[int, UncommittedIds] = field(default_factory=dict)
    """By batch coordinator: the ids of objects that may belong to the tail."""
    appended: Appended = field(default_factory=Appended)  # of the tail
    image: MetadataImage = field(default_factory=MetadataImage)


@dataclass(slots=True)
class _Coordinator:
    """The state of one batch coordinator while its checkpoint is made."""

    machine: CoordinatorMachine
    known_ends: dict[TopicPartition, int]  # high watermarks that were known to be committed
    ends: dict[TopicPartition, int]  # high watermarks in the chosen copy, without the tail
    skipped: dict[int, Ranges]  # ids that can never be committed, of each open lease


def restore_states(
    choices: Choices,
    scratch: Path,
    files: FileSystem,
    missing: Mapping[int, set[int]] | None = None,
    tail: Tail | None = None,
    topic_defaults: Mapping[str, str] | None = None,
) -> Restored:
    """Build the state of each log and write its new checkpoint below `scratch`.

    Args:    missing: ids of objects that the store lacks, by batch coordinator. A partition begins
                 behind those at its start: later retention would have deleted them, too.
             tail: objects to append.
             topic_defaults: of brokers' properties files; they say which topics are compacted.
    Raises:  RestoreError; OSError.
    """
    tail = tail or Tail()
    cluster = load_machine(ControllerMachine(topic_defaults), choices.logs[METADATA_GROUP], files)
    image = cluster.image
    coordinators: dict[int, _Coordinator] = {}
    try:
        for group, log in choices.logs.items():
            if group.topic == DISKLESS_METADATA:
                coordinators[group.partition] = _load_coordinator(log, scratch, files)
        jump = make_jump(choices, image, coordinators, tail)
        restored = Restored(timeline=image.timeline_number + 1, jump=jump)
        for partition, found in coordinators.items():
            store = found.machine.store
            restored.uncommitted[partition] = UncommittedIds.of(store)
            _skip_missing(found.machine, (missing or {}).get(partition, set()))
            objects = tail.objects.get(partition, ())
            append_tail(store, image, partition, objects, restored.appended)
        transactions = TransactionMachine()
        for group, log in choices.logs.items():
            if group.topic == TRANSACTION_STATE:
                load_machine(transactions, log, files)
        outcomes = Outcomes(transactions.image)
        writer = _Writer(files, scratch, choices, restored, outcomes)
        for group, log in choices.logs.items():
            if group.topic == DISKLESS_METADATA:
                writer.write_coordinator(log, coordinators[group.partition])
        writer.write_cluster(cluster, coordinators)
        for group, log in choices.logs.items():
            if group.topic == CONSUMER_OFFSETS:
                writer.write_groups(load_machine(GroupMachine(), log, files), log)
            elif group.topic == TRANSACTION_STATE:
                writer.write_transactions(transactions, log)
    finally:
        for coordinator in coordinators.values():
            coordinator.machine.close()
    return restored


# --- loading -----------------------------------------------------------------------------------


def load_machine(machine: M, log: ChosenLog, files: FileSystem) -> M:
    """Build a state machine's state from the chosen copy of its log, and return the machine."""
    checkpoint = log.copy.checkpoint
    if checkpoint is not None:
        with closing(_checkpoint_of(log, files)) as reader:
            for _ in machine.load(checkpoint, reader.batches()):
                pass
    machine.apply(read_batches(files, log.copy))
    if machine.unknown_records:
        raise RestoreError(
            f"{log.group.name} has {machine.unknown_records} records of a type that this version "
            "of Esker does not know: restore with the version that the cluster had"
        )
    return machine


def _checkpoint_of(log: ChosenLog, files: FileSystem) -> CheckpointReader:
    assert log.copy.checkpoint is not None, "a log without a checkpoint"
    path = log.copy.log.directory / checkpoint_name(log.copy.checkpoint)
    return CheckpointReader(files, path, epoch=log.copy.checkpoint.epoch)


def _load_coordinator(log: ChosenLog, scratch: Path, files: FileSystem) -> _Coordinator:
    """Build a batch coordinator's state, and note the high watermarks known to be committed."""
    directory = scratch / log.group.name
    files.make_directory(directory)
    machine = CoordinatorMachine(directory, Identity("", b"", log.group.name), in_process=True)
    checkpoint = log.copy.checkpoint
    if checkpoint is not None:
        with closing(_checkpoint_of(log, files)) as reader:
            for _ in machine.load(checkpoint, reader.batches()):
                pass
    batches = read_batches(files, log.copy)
    unknown: list[Batch] = []  # the first batch of those not known to be committed

    def committed() -> Iterator[Batch]:
        for batch in batches:
            if batch.header.end_offset > log.known_committed:
                unknown.append(batch)
                return
            yield batch

    machine.apply(committed())
    known_ends = _ends(machine)
    machine.apply(chain(unknown, batches))
    skipped = {
        lease_id: lease.skipped for lease_id, lease in machine.store.leases.items() if lease.is_open
    }
    return _Coordinator(machine, known_ends, _ends(machine), skipped)


def _ends(machine: CoordinatorMachine) -> dict[TopicPartition, int]:
    """Return the high watermark of each partition of a batch coordinator."""
    return {place: end for place, _, end in _partitions(machine)}


def _partitions(machine: CoordinatorMachine) -> Iterator[tuple[TopicPartition, int, int]]:
    """Yield each partition of a batch coordinator with its log start and high watermark."""
    store = machine.store
    for topic_id, topic in store.topics.items():
        if topic.deleted_at_ms >= 0:
            continue
        for index, log_id in enumerate(topic.log_ids):
            found = store.logs.get(log_id) if log_id >= 0 else None
            if found is not None:
                yield (topic_id, index), *found


def _skip_missing(machine: CoordinatorMachine, missing: set[int]) -> None:
    """Move log starts behind the runs at the start of partitions whose objects are missing."""
    if not missing:
        return
    store = machine.store
    moved: list[tuple[TopicPartition, int]] = []
    for place, start, end in _partitions(machine):
        log_id = store.topics.get(place[0]).log_ids[place[1]]  # type: ignore[union-attr]
        new_start = start
        for run in store.runs_from(log_id, start) if start < end else ():
            if run.object_id not in missing:
                break
            new_start = run.last_offset + 1
        if new_start > start:
            moved.append((place, new_start))
    store.begin()
    for (topic_id, index), new_start in moved:
        store.apply(
            LogStartOffsetsRecord(
                topic_ids=(topic_id,),
                topic_indexes=(0,),
                partitions=(index,),
                log_start_offsets=(new_start,),
                reason=_DELETE_RECORDS,
            )
        )
    store.delete_dead_runs(1 << 60)


# --- counters ----------------------------------------------------------------------------------


def make_jump(
    choices: Choices, image: MetadataImage, coordinators: Mapping[int, _Coordinator], tail: Tail
) -> Jump:
    """Return the first numbers of the new cluster.

    Raises:  RestoreError if a counter is above half of its range.
    """
    cluster = choices.logs[METADATA_GROUP]
    ends = [cluster.choice.chosen.end, cluster.choice.chosen.committed]
    ends += [end for other in cluster.choice.others for end in (other.log.end, other.log.committed)]
    broker_epochs = [record.broker_epoch for record in image.brokers.values()]
    broker_epochs.append(tail.highest_broker_epoch)
    producer_ids = [image.next_producer_id, tail.highest_producer_id + 1]
    controller_epochs = [choices.highest_epoch]
    for coordinator in coordinators.values():
        store = coordinator.machine.store
        broker_epochs += [broker.epoch for _, broker in store.brokers.items()]
        controller_epochs.append(store.counters.controller_epoch)
        producer_ids.append(highest_producer_id(coordinator.machine) + 1)
        _refuse_poisoned("object ids", store.counters.next_object_id, HIGHEST)
        _refuse_poisoned("lease ids", store.counters.next_lease_id, HIGHEST)
    for name, value, most in (
        ("leader epochs", max(controller_epochs), HIGHEST_EPOCH),
        ("broker epochs", max([*ends, *broker_epochs]), HIGHEST),
        ("producer ids", max(producer_ids), HIGHEST),
    ):
        _refuse_poisoned(name, value, most)
    return Jump(
        leader_epoch=Epoch(max(controller_epochs) + EPOCHS),
        cluster_offset=Offset(max([*ends, *broker_epochs]) + IDS),
        producer_id=max(producer_ids) + PRODUCER_IDS,
    )


def _refuse_poisoned(name: str, value: int, most: int) -> None:
    if value > most:
        raise RestoreError(
            f"{name} have reached {value}, more than half of their range: a faulty node or a "
            "stranger has used them up; leave out the source that has them"
        )


def highest_producer_id(machine: CoordinatorMachine) -> int:
    """Return the highest producer id in a batch coordinator's state, or -1 without producers."""
    machine.flush()
    store = machine.store
    return max(-1, store.counters.largest_expired_id, store.highest_producer_id())


def _values_of(machine: CoordinatorMachine) -> Iterator[bytes]:
    frozen = machine.freeze()
    try:
        yield from frozen.values()
    finally:
        frozen.close()


# --- writing -----------------------------------------------------------------------------------


class _Writer:
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

    def write_coordinator(self, log: ChosenLog, coordinator: _Coordinator) -> None:
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
        self, cluster: ControllerMachine, coordinators: Mapping[int, _Coordinator]
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
        self, image: MetadataImage, coordinators: Mapping[int, _Coordinator]
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
        coordinators: Mapping[int, _Coordinator],
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
        coordinators: Mapping[int, _Coordinator],
    ) -> Iterator[PartitionTimelinesRecord]:
        """Yield where each partition's new timeline begins: at its exact end."""
        restored = self._restored
        known = {c: found.known_ends for c, found in coordinators.items()}
        held = {
            c: {place: (start, end) for place, start, end in _partitions(found.machine)}
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
