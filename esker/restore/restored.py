"""The data of a restore: lost states, new numbers, and the losses to print.

Source: docs/design/restore.md#one-jump-of-all-counters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from coordinator.batch.id_ranges import Ranges
from coordinator.batch.sqlite.machine import CoordinatorMachine
from coordinator.controller.image import MetadataImage
from esker.restore.appending import Appended
from esker.restore.tail import UncommittedIds
from raft.wire.responses import Group
from records.types import Epoch, Offset, OffsetAndEpoch

IDS: Final = 1 << 20
"""Added to the lost cluster's counters of ids and offsets."""

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
    """The ids of objects that may belong to the tail, by batch coordinator."""
    appended: Appended = field(default_factory=Appended)  # of the tail
    image: MetadataImage = field(default_factory=MetadataImage)


@dataclass(slots=True)
class LostCoordinator:
    """The state of one batch coordinator while its checkpoint is made."""

    machine: CoordinatorMachine
    known_ends: dict[TopicPartition, int]  # high watermarks that were known to be committed
    ends: dict[TopicPartition, int]  # high watermarks in the chosen copy, without the tail
    skipped: dict[int, Ranges]  # ids that can never be committed, of each open lease


def held_partitions(machine: CoordinatorMachine) -> Iterator[tuple[TopicPartition, int, int]]:
    """Yield each partition of a batch coordinator with its log start and high watermark."""
    store = machine.store
    for topic_id, topic in store.topics.items():
        if topic.deleted_at_ms >= 0:
            continue
        for index, log_id in enumerate(topic.log_ids):
            found = store.logs.get(log_id) if log_id >= 0 else None
            if found is not None:
                yield (topic_id, index), *found
