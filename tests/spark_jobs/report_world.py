"""Builds a cluster of two hours for tests of the report: the log of a small harbour, with something
for every table.

The coordinator is the real one, over a log in memory, with a manual clock; its records are then
written to disk as a replica would write them. The cluster's log is written by hand, with the
records that a controller writes.

It has six topics of unlike size and retention, one of which has unlimited retention; three brokers,
one of them fenced for a while; a producer whose clock is ahead, one that sends twice, one that
skips sequences; a deleted topic; two elections; chunks; checkpoints.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import sin
from pathlib import Path
from random import Random
from typing import Final, NamedTuple
from uuid import UUID

from coordinator.batch.cluster_view import TopicConfig
from coordinator.batch.settings import CoordinatorSettings
from raft.segments.files import RealFileSystem
from raft.segments.properties import MetaProperties, write_meta_properties
from raft.segments.segment import segment_name
from records.batch import iter_batches
from records.batch_writer import build_value_batch
from records.chunks import ChunkChangeRecord, ChunkRecord
from records.frame import encode_record
from records.metadata import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from records.rpc.batch_coordinator import CommitBatch, CommitBatchesRequest
from records.schema import MetadataRecord
from records.types import Epoch, OffsetAndEpoch
from snapshot.writer import CheckpointWriter
from spark_jobs.readers.logs import CLUSTER_METADATA, ReplicaLogs
from tests.coordinator.batch.actors import Broker, batch, create, delete
from tests.coordinator.batch.quorum_world import ManualClocks, QuorumWorld
from tests.coordinator.batch.subjects import KEYS, START_MS

LOG: Final = "__diskless-metadata-0"
MINUTE: Final = 60_000


class Topic(NamedTuple):
    """One topic of the harbour."""

    name: str
    partitions: int
    kept: float | None  # as a part of all the time there is; None: for ever
    batch_bytes: int
    share: float  # how many of a hundred objects have it
    skew: float = 1.0  # how unequal its partitions are

    def retention_ms(self, length_ms: int) -> int | None:
        return None if self.kept is None else int(self.kept * length_ms)

    @property
    def topic_id(self) -> UUID:
        return UUID(int=0x1000 + sum(ord(letter) << i for i, letter in enumerate(self.name)))


TOPICS: Final = (
    Topic("ship-positions", 12, 0.2, 180_000, 0.95, 1.4),
    Topic("crane-telemetry", 8, 0.33, 90_000, 0.8),
    Topic("gate-events", 6, 0.5, 24_000, 0.6),
    Topic("customs-filings", 3, None, 9_000, 0.35),
    Topic("billing <eu> & more", 2, 20, 15_000, 0.2),
    Topic("debug-traces", 4, 0.12, 60_000, 0.3),
)


@dataclass(frozen=True, slots=True)
class World:
    """The directory of the logs, and their ends."""

    directory: Path
    end_offset: int
    cluster_end_offset: int
    now_ms: int

    @property
    def logs(self) -> ReplicaLogs:
        """The logs of the directory, all of it committed."""
        ends = {LOG: self.end_offset, CLUSTER_METADATA: self.cluster_end_offset}
        return ReplicaLogs(self.directory, ends)


def build(
    directory: Path,
    *,
    seconds: int = 7_200,
    step_ms: int = 1_000,
    seed: int = 11,
    size: float = 1,
    cut: bool = False,
    segment_batches: int = 2_000,
) -> World:
    """Run the harbour for `seconds`, and write its logs.

    Args:  size: of batches, in multiples of what is usual.
           cut: the log's head is gone, a checkpoint from half-time stands for it.
    """
    harbour = _Harbour(seconds * 1_000, step_ms, seed, size, directory / "machine")
    asyncio.run(harbour.live())
    files = RealFileSystem()
    directory.mkdir(exist_ok=True)
    write_meta_properties(
        files, directory, MetaProperties(cluster_id="harbour", node_id=1, directory_id=UUID(int=9))
    )
    end = harbour.write(directory / LOG, cut=cut, segment_batches=segment_batches)
    cluster_end = _write_cluster(directory / CLUSTER_METADATA, seconds * 1_000)
    return World(directory, end, cluster_end, harbour.clocks.now_ms())


class _Harbour:
    def __init__(
        self, length_ms: int, step_ms: int, seed: int, size: float, directory: Path
    ) -> None:
        self.random = Random(seed)
        self.size = size
        self.length_ms, self.step_ms = length_ms, step_ms
        self.clocks = ManualClocks()
        directory.mkdir(parents=True)
        settings = CoordinatorSettings(keys=KEYS, file_delete_delay_ms=2 * MINUTE)
        self.world = QuorumWorld(directory, settings, clocks=self.clocks)
        self.brokers: list[Broker] = []
        self.sequences: dict[tuple[int, str, int], int] = {}
        self.checkpoints: list[tuple[int, int, list[bytes]]] = []
        self.leased: dict[int, int] = {}  # until when
        self.deleted = False

    async def live(self) -> None:
        for topic in TOPICS:
            assert await create(self.world, topic.topic_id, topic.partitions, name=topic.name) == 0
            self.world.view.configs[topic.topic_id] = TopicConfig(
                retention_ms=topic.retention_ms(self.length_ms)
            )
        for broker_id in (1, 2, 3):
            self.brokers.append(Broker(self.world, broker_id))
        steps = self.length_ms // self.step_ms
        for step in range(steps):
            at = step / steps
            self.clocks.elapsed_ms += self.step_ms
            for broker in self.brokers:
                away = broker.broker_id == 3 and 0.42 < at < 0.55
                if not away and self.random.random() < 0.62 + 0.33 * sin(at * 9):
                    await self._commit(broker, at)
            if step % max(1, steps // 60) == 0:
                await self.world.advance(0)
                gone = await self.brokers[0].files()
                if gone:
                    await self.brokers[0].deleted(*gone)
            if step in (steps // 3, 2 * steps // 3):
                self.world.log.depose()
                self.world.elect()
            if step % max(1, steps // 5) == max(1, steps // 5) - 1:
                log = self.world.log
                assert log.leading_epoch is not None
                values = self.world.values()
                self.checkpoints.append((log.end_offset, log.leading_epoch, values))
            if at > 0.8 and not self.deleted:
                self.deleted = True
                assert await delete(self.world, TOPICS[-1].topic_id) == 0
        await self.world.advance(0)
        await self.world.close()

    async def _commit(self, broker: Broker, at: float) -> None:
        if (
            broker.broker_id not in self.leased
            or self.leased[broker.broker_id] < self.clocks.now_ms()
        ):
            self.leased[broker.broker_id] = self.clocks.now_ms() + 10 * MINUTE
            assert (await broker.acquire(2_000)).error_code == 0
        place, topics = 0, []
        for topic in TOPICS:
            if (topic is TOPICS[-1] and self.deleted) or self.random.random() > topic.share:
                continue
            groups = []
            weights = [1 / (1 + index) ** topic.skew for index in range(topic.partitions)]
            count = self.random.randint(1, 3)
            for partition in sorted(
                set(self.random.choices(range(topic.partitions), weights, k=count))
            ):
                made = self._batch(topic, partition, place, at)
                place += made.size
                groups.append(
                    CommitBatchesRequest.Topic.Partition(partition_index=partition, batches=(made,))
                )
            topics.append(
                CommitBatchesRequest.Topic(topic_id=topic.topic_id, partitions=tuple(groups))
            )
        if topics:
            told = await broker.commit(topics=topics, size=place + 70 + 40 * len(topics))
            assert told.error_code == 0, told

    def _batch(self, topic: Topic, partition: int, place: int, at: float) -> CommitBatch:
        random = self.random
        size = max(
            80,
            int(
                self.size
                * topic.batch_bytes
                * random.lognormvariate(0, 0.8)
                * (1 + sin(at * 9) / 2)
            ),
        )
        records = max(1, size // 400)
        late = int(random.lognormvariate(4.7, 0.7)) + (1_500 if 0.6 < at < 0.66 else 0)
        if topic.name == "gate-events" and random.random() < 0.1:
            late = -40  # a clock that is ahead
        producer = TOPICS.index(topic) * 3 + partition % 3
        if producer % 5 == 4:
            return batch(place, records, size=size, time=self.clocks.now_ms() - late)
        key = (producer, topic.name, partition)
        first = self.sequences.get(key, 0)
        chance = random.random()
        if first and chance < 0.01:
            first -= 1 if chance < 0.005 else -7  # cannot be: refused
        else:
            self.sequences[key] = first + records
        return batch(
            place,
            records,
            size=size,
            time=self.clocks.now_ms() - late,
            producer=producer,
            first=first,
        )

    def write(self, directory: Path, *, cut: bool, segment_batches: int) -> int:
        log, files = self.world.log, RealFileSystem()
        directory.mkdir()
        start = self.checkpoints[2][0] if cut else 0
        batches = list(iter_batches(log.read(log.start_offset, 1 << 40)))
        batches = [one for one in batches if one.header.end_offset > start]
        for at in range(0, len(batches), segment_batches):
            part = batches[at : at + segment_batches]
            base = max(start, part[0].header.base_offset)
            (directory / segment_name(base)).write_bytes(b"".join(bytes(one.view) for one in part))
        for offset, epoch, values in self.checkpoints:
            snapshot_id = OffsetAndEpoch(offset, Epoch(epoch))
            with CheckpointWriter.create(files, directory, snapshot_id, last_timestamp=0) as writer:
                writer.append_values(values)
                writer.freeze()
        return log.end_offset


def _write_cluster(directory: Path, length_ms: int) -> int:
    directory.mkdir()
    parts, offset = [], 0
    for at, records in _cluster(length_ms):
        values = [encode_record(record) for record in records]
        timestamp = START_MS + int(at * length_ms)
        parts.append(
            build_value_batch(values, base_offset=offset, leader_epoch=3, timestamp=timestamp)
        )
        offset += len(values)
    (directory / segment_name(0)).write_bytes(b"".join(bytes(part) for part in parts))
    return offset


def _cluster(length_ms: int) -> Iterable[tuple[float, Sequence[MetadataRecord]]]:
    """When, as a part of the whole, and what."""
    for number in (1, 2, 3):
        yield 0.0, [_broker(number)]
        yield 0.004 * number, [_change(number, fenced=-1)]
    yield 0.01, [one for topic in TOPICS for one in _topic(topic, length_ms)]
    yield 0.2, [NoOpRecord()]
    yield 0.42, [_change(3, fenced=1)]
    yield 0.5, [_change(3, fenced=-1)]
    yield 0.52, [_change(3, fenced=1)]
    yield 0.55, [_change(3, fenced=-1)]
    for step, cut in enumerate((0.3, 0.5, 0.7)):
        for topic, partition in ((TOPICS[0], 0), (TOPICS[0], 1), (TOPICS[3], 0)):
            yield cut, _chunked(topic, partition, step)
    moved = ChunkChangeRecord(
        topic_id=TOPICS[0].topic_id,
        partition_id=0,
        start_offset=0,
        replicas=(3,),
        isr=(3,),
        epoch=1,
    )
    yield 0.75, [moved]
    yield 0.85, [_change(2, leaving=1)]
    yield 0.87, [_change(2, fenced=1)]
    yield 0.9, [_change(2, fenced=-1)]
    yield 1.0, [NoOpRecord()]


def _broker(number: int) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=number,
        is_migrating_zk_broker=False,
        incarnation_id=UUID(int=number),
        broker_epoch=number,
        end_points=(),
        features=(),
        rack=f"quay-{number}",
        fenced=True,
        in_controlled_shutdown=False,
        log_dirs=(),
    )


def _change(number: int, *, fenced: int = 0, leaving: int = 0) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(
        broker_id=number, broker_epoch=number, fenced=fenced, in_controlled_shutdown=leaving
    )


def _topic(topic: Topic, length_ms: int) -> Iterable[MetadataRecord]:
    yield TopicRecord(name=topic.name, topic_id=topic.topic_id)
    retention = topic.retention_ms(length_ms) or -1
    yield ConfigRecord(
        resource_type=2, resource_name=topic.name, name="retention.ms", value=str(retention)
    )
    for index in range(topic.partitions):
        leader = 1 + index % 3
        yield PartitionRecord(
            partition_id=index,
            topic_id=topic.topic_id,
            replicas=(leader,),
            isr=(leader,),
            removing_replicas=(),
            adding_replicas=(),
            leader=leader,
            leader_epoch=0,
            partition_epoch=0,
        )


def _chunked(topic: Topic, partition: int, step: int) -> list[MetadataRecord]:
    start, following = step * 40_000, (step + 1) * 40_000
    replica = 1 + (partition + step) % 3
    ended = ChunkRecord(
        partition_id=partition, topic_id=topic.topic_id, start_offset=start,
        stop_offset=following - 1, end_offset=following - 1, chunk_epoch=0, replicas=(replica,),
        directories=(), isr=(replica,), removing_replicas=(), adding_replicas=(), epoch=0,
    )  # fmt: skip
    following_replica = 1 + replica % 3
    return [
        ended,
        PartitionChangeRecord(
            partition_id=partition, topic_id=topic.topic_id, isr=(following_replica,),
            leader=following_replica, replicas=(following_replica,), start_offset=following,
        ),
    ]  # fmt: skip


def with_end(world: World, end_offset: int) -> World:
    """The same, committed only so far."""
    return replace(world, end_offset=end_offset)
