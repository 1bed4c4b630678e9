"""Generates random logs of a coordinator quickly, from a seed."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final
from uuid import UUID

from records.diskless import (
    DisklessPartitionsRecord,
    DisklessPartitionsRemovedRecord,
    DisklessTopicTombstoneRecord,
    LogStartOffsetsRecord,
    ObjectCommitRecord,
    ObjectsMarkedRecord,
    ObjectsRemovedRecord,
    OrphansFoundRecord,
    ProducersExpiredRecord,
)
from records.schema import MetadataRecord

TOPICS: Final = tuple(UUID(int=n) for n in range(1, 5))
PARTITIONS: Final = 3
NAMES: Final = {topic_id: f"t{topic_id.int}" for topic_id in TOPICS}


def random_log(random: Random, batches: int | None = None) -> list[list[MetadataRecord]]:
    """Generate batches of records; times are between 0 and 1000, and not sorted."""
    world = _World(random)
    found: list[list[MetadataRecord]] = [list(world.created())]
    for _ in range(random.randint(0, 25) if batches is None else batches):
        found.append([world.next() for _ in range(random.randint(1, 3))])
    return found


class _World:
    def __init__(self, random: Random) -> None:
        self._random = random
        self._ends = {(topic, i): [0, 0] for topic in TOPICS for i in range(PARTITIONS)}
        self._deleted: set[UUID] = set()
        self._objects = 0
        self._epochs: dict[tuple[UUID, int, int], int] = {}  # of producers in partitions

    def created(self) -> Iterator[MetadataRecord]:
        for number, topic in enumerate(TOPICS):
            yield DisklessPartitionsRecord(
                topic_id=topic, topic_name=NAMES[topic], first_partition=0,
                partition_count=PARTITIONS, first_log_id=number * PARTITIONS, controller_epoch=1,
            )  # fmt: skip

    def next(self) -> MetadataRecord:
        what = self._random.random()
        if what < 0.15:
            return self._trimmed()
        if what < 0.18 and len(self._deleted) < 2:
            topic = self._random.choice(TOPICS)
            if topic not in self._deleted:
                self._deleted.add(topic)
                return DisklessTopicTombstoneRecord(
                    topic_id=topic, deleted_at_ms=1, controller_epoch=1
                )
        if what < 0.22 and self._deleted:
            return DisklessPartitionsRemovedRecord(
                topic_id=self._random.choice(sorted(self._deleted)),
                partitions=(self._random.randrange(PARTITIONS),),
            )
        if what < 0.25:
            return ObjectsMarkedRecord(object_ids=(self._random.randint(0, 9),), marked_at_ms=1)
        if what < 0.28:
            return OrphansFoundRecord(object_ids=(self._orphan(),), marked_at_ms=2)
        if what < 0.31:
            return ObjectsRemovedRecord(object_ids=(self._random.randint(1_000, 1_005),))
        if what < 0.35 and self._epochs:
            return self._forgotten()
        return self._commit()

    def _orphan(self) -> int:
        """Return an object that was never committed, or a known one."""
        return self._random.choice([self._random.randint(0, 9), self._random.randint(1_000, 1_005)])

    def _forgotten(self) -> MetadataRecord:
        """Forget a producer, so that it may begin at any epoch."""
        topic, index, producer = self._random.choice(sorted(self._epochs))
        del self._epochs[topic, index, producer]
        log_id = TOPICS.index(topic) * PARTITIONS + index
        return ProducersExpiredRecord(log_ids=(log_id,), producer_ids=(producer,))

    def _producer(self, topic: UUID, index: int) -> tuple[int, int, int]:
        """Return one of a few producers, whose epochs rise; or none."""
        producer = self._random.choice([-1, 7, 8])
        if producer < 0:
            return -1, -1, -1
        key = topic, index, producer
        epoch = self._epochs.get(key, self._random.randint(0, 3))
        self._epochs[key] = epoch + int(self._random.random() < 0.1)
        return producer, self._epochs[key], self._random.randint(0, 2**31 - 1)

    def _trimmed(self) -> MetadataRecord:
        topic, index = self._random.choice(sorted(self._ends))
        log = self._ends[topic, index]
        log[0] = self._random.randint(log[0], log[1])
        return LogStartOffsetsRecord(
            topic_ids=(topic,), topic_indexes=(0,), partitions=(index,),
            log_start_offsets=(log[0],), reason=0,
        )  # fmt: skip

    def _commit(self) -> ObjectCommitRecord:
        """Commit batches of some partitions, a few of them refused or duplicates."""
        random = self._random
        places = random.sample(sorted(self._ends), random.randint(1, 4))
        topics = sorted({topic for topic, _ in places})
        groups = sorted((topics.index(topic), index) for topic, index in places)
        counts = [random.randint(1, 4) for _ in groups]
        rows = []
        at = 0
        for (topic, index), count in zip(groups, counts, strict=True):
            log = self._ends[topics[topic], index]
            dead = topics[topic] in self._deleted
            for _ in range(count):
                records, size = random.randint(1, 9), random.randint(60, 90)
                outcome = 3 if dead else random.choice([0] * 8 + [1, 2])
                base = -1 if outcome else log[1]
                if not outcome:
                    log[1] += records
                kind = int(random.random() < 0.1)
                time = random.choice([-1, random.randint(0, 1_000), random.randint(0, 1_000)])
                producer = (-1, -1, -1) if outcome else self._producer(topics[topic], index)
                rows.append(
                    (at, size, base, records, time, kind, *producer,
                     {1: 45, 3: 3}.get(outcome, 0), int(outcome == 2))
                )  # fmt: skip
                at += size
        self._objects += 1
        columns = list(zip(*rows, strict=True))
        return ObjectCommitRecord(
            object_id=self._objects, object_format=1, size_bytes=at + 33, broker_id=1,
            broker_epoch=1, lease_id=1, committed_at_ms=random.randint(0, 1_000),
            topic_ids=tuple(topics), topic_indexes=tuple(topic for topic, _ in groups),
            partitions=tuple(index for _, index in groups), batch_counts=tuple(counts),
            byte_offsets=columns[0], byte_sizes=columns[1], base_offsets=columns[2],
            record_counts=columns[3], max_timestamps=columns[4], timestamp_types=columns[5],
            producer_ids=columns[6], producer_epochs=columns[7], base_sequences=columns[8],
            error_codes=columns[9] if any(columns[9]) else (),
            duplicates=columns[10] if any(columns[10]) else (),
        )  # fmt: skip
