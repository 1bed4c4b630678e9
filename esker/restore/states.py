"""Builds the states of a lost cluster's logs, and has their new checkpoints written.

The state of each log is built as a node builds it: the newest checkpoint is loaded, the records
behind it are applied. Then every counter jumps over all that the lost cluster can have handed out
since (`Jump`), and `StateWriter` changes the state for its new life.

Source: docs/design/restore.md#one-jump-of-all-counters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeVar

from coordinator.batch.sqlite.machine import CoordinatorMachine, Identity
from coordinator.controller.image import MetadataImage
from coordinator.controller.machine import ControllerMachine
from coordinator.groups.machine import GroupMachine
from coordinator.image_machine import ImageMachine
from coordinator.transactions.machine import TransactionMachine
from esker.restore.appending import append_tail
from esker.restore.errors import RestoreError
from esker.restore.open_transactions import Outcomes
from esker.restore.plan import Choices, ChosenLog
from esker.restore.restored import (
    IDS,
    Jump,
    LostCoordinator,
    Restored,
    TopicPartition,
    held_partitions,
)
from esker.restore.state_checkpoints import StateWriter
from esker.restore.tail import HIGHEST, Tail, UncommittedIds
from raft.driver.config import METADATA_GROUP
from raft.segments.files import FileSystem
from records.batch import Batch
from records.diskless import (
    LogStartOffsetsRecord,
)
from records.internal_topics import CONSUMER_OFFSETS, DISKLESS_METADATA, TRANSACTION_STATE
from records.types import Epoch, Offset
from snapshot.names import checkpoint_name
from snapshot.reader import CheckpointReader
from snapshot.surviving_files import read_batches

EPOCHS: Final = 1 << 16
PRODUCER_IDS: Final = 10 * 1_000
"""Ten blocks of producer ids."""

_DELETE_RECORDS: Final = 0  # the reason of a moved log start

HIGHEST_EPOCH: Final = 1 << 30
"""Half of the range of an epoch, as HIGHEST of an id: a counter above it was poisoned."""

M = TypeVar("M", bound=ImageMachine[Any, Any])


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
    coordinators: dict[int, LostCoordinator] = {}
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
        writer = StateWriter(files, scratch, choices, restored, outcomes)
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


def _load_coordinator(log: ChosenLog, scratch: Path, files: FileSystem) -> LostCoordinator:
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
    return LostCoordinator(machine, known_ends, _ends(machine), skipped)


def _ends(machine: CoordinatorMachine) -> dict[TopicPartition, int]:
    """Return the high watermark of each partition of a batch coordinator."""
    return {place: end for place, _, end in held_partitions(machine)}


def _skip_missing(machine: CoordinatorMachine, missing: set[int]) -> None:
    """Move log starts behind the runs at the start of partitions whose objects are missing."""
    if not missing:
        return
    store = machine.store
    moved: list[tuple[TopicPartition, int]] = []
    for place, start, end in held_partitions(machine):
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
    choices: Choices, image: MetadataImage, coordinators: Mapping[int, LostCoordinator], tail: Tail
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
