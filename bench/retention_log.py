"""A coordinator's log of many commits, and the same batches as Parquet for those who read that.

Each object has a hundred batches of partitions that are drawn with a log-normal skew, as many
topics write into one. The log is what a coordinator would have written (metadata log batches of a
few commits, segments of a bounded size), so whoever reads it walks records, checks checksums and
decodes columns. The Parquet files hold what is left once that is done: one row a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from raft.segments.files import RealFileSystem
from raft.segments.log import Log, LogConfig
from records.batch_writer import build_value_batch
from records.diskless import DisklessPartitionsRecord, ObjectCommitRecord
from records.frame import encode_record
from records.uuids import encode_uuid

SEED: Final = 20261121
NOW_MS: Final = 1_700_000_000_000
SPAN_MS: Final = 7 * 24 * 3600 * 1000  # that the log covers, up to now
BATCHES_OF_OBJECT: Final = 100
COMMITS_OF_BATCH: Final = 20
PARTITIONS_OF_TOPIC: Final = 50
PIECES: Final = 20  # Parquet files

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class World:
    """Columns, one row a batch in the order of the log; topics and their settings."""

    partition: Numbers
    base_offset: Numbers
    record_count: Numbers
    object_id: Numbers
    byte_offset: Numbers
    byte_size: Numbers
    timestamp: Numbers
    object_size: Numbers  # by object
    topics: list[UUID]
    retention_ms: Numbers  # by topic; -1: no limit
    retention_bytes: Numbers

    @property
    def partitions(self) -> int:
        """Return the number of partitions of all topics."""
        return len(self.topics) * PARTITIONS_OF_TOPIC


def make_world(batches: int, partitions: int, seed: int = SEED) -> World:
    """Generate a world of batches and partitions, the same for the same seed."""
    rng = np.random.default_rng(seed)
    objects = batches // BATCHES_OF_OBJECT
    weights = rng.lognormal(0, 1.2, partitions)
    drawn = rng.choice(partitions, size=(objects, BATCHES_OF_OBJECT), p=weights / weights.sum())
    partition = np.sort(drawn, axis=1).reshape(-1).astype(np.int64)
    count = len(partition)
    record_count = rng.integers(1, 200, count)
    byte_size = record_count * rng.integers(80, 400, count)
    order = np.argsort(partition, kind="stable")
    summed = np.cumsum(record_count[order]) - record_count[order]
    first = np.searchsorted(partition[order], np.arange(partitions))
    before = summed[np.minimum(first, count - 1)]
    base_offset = np.empty(count, np.int64)
    base_offset[order] = summed - before[partition[order]]
    ends = np.cumsum(byte_size.reshape(objects, -1), axis=1)
    step = SPAN_MS / objects
    jitter = rng.integers(-5_000, 5_000, count)
    at = (NOW_MS - SPAN_MS + np.arange(objects) * step).astype(np.int64)
    topics = partitions // PARTITIONS_OF_TOPIC
    kind = rng.integers(0, 4, topics)  # by time, by size, both, neither
    per_partition = int(byte_size.sum()) // partitions
    return World(
        partition,
        base_offset,
        record_count,
        np.repeat(np.arange(objects, dtype=np.int64), BATCHES_OF_OBJECT),
        (ends - byte_size.reshape(objects, -1)).reshape(-1),
        byte_size,
        np.repeat(at, BATCHES_OF_OBJECT) + jitter,
        ends[:, -1] + 200,
        [UUID(int=topic + 1, version=4) for topic in range(topics)],
        np.where(kind % 2 == 0, rng.integers(SPAN_MS // 10, SPAN_MS, topics), -1),
        np.where((kind == 1) | (kind == 2), rng.integers(per_partition // 5, per_partition), -1),
    )


def write_world(world: World, directory: Path, *, segment_bytes: int) -> int:
    """Write the world's log to a new directory, and return the log's end offset."""
    directory.mkdir(parents=True)
    log = Log.create(
        RealFileSystem(), directory, LogConfig(segment_bytes=segment_bytes), start_offset=0
    )
    offset = 0
    try:
        values: list[bytes] = []
        for value in _values(world):
            values.append(value)
            if len(values) == COMMITS_OF_BATCH:
                offset = _append(log, values, offset)
                values = []
        return _append(log, values, offset)
    finally:
        log.close()


def _append(log: Log, values: list[bytes], offset: int) -> int:
    if values:
        log.append(build_value_batch(values, base_offset=offset, leader_epoch=1, timestamp=NOW_MS))
    return offset + len(values)


def _values(world: World) -> Iterator[bytes]:
    for number, topic in enumerate(world.topics):
        yield encode_record(
            DisklessPartitionsRecord(
                topic_id=topic, topic_name=f"topic-{number}", first_partition=0,
                partition_count=PARTITIONS_OF_TOPIC, first_log_id=number * PARTITIONS_OF_TOPIC,
                controller_epoch=1,
            )
        )  # fmt: skip
    nothing = (-1,) * BATCHES_OF_OBJECT
    for object_id, size in enumerate(world.object_size.tolist()):
        here = slice(object_id * BATCHES_OF_OBJECT, (object_id + 1) * BATCHES_OF_OBJECT)
        partition = world.partition[here]
        groups, counts = np.unique(partition, return_counts=True)
        topics, indexes = np.unique(groups // PARTITIONS_OF_TOPIC, return_inverse=True)
        times = world.timestamp[here].tolist()
        yield encode_record(
            ObjectCommitRecord(
                object_id=object_id, object_format=1, size_bytes=size, broker_id=object_id % 6,
                broker_epoch=1, lease_id=1, committed_at_ms=times[0] + 300,
                topic_ids=tuple(world.topics[topic] for topic in topics.tolist()),
                topic_indexes=tuple(indexes.tolist()),
                partitions=tuple((groups % PARTITIONS_OF_TOPIC).tolist()),
                batch_counts=tuple(counts.tolist()),
                byte_offsets=tuple(world.byte_offset[here].tolist()),
                byte_sizes=tuple(world.byte_size[here].tolist()),
                base_offsets=tuple(world.base_offset[here].tolist()),
                record_counts=tuple(world.record_count[here].tolist()),
                max_timestamps=tuple(times), timestamp_types=(0,) * BATCHES_OF_OBJECT,
                producer_ids=nothing, producer_epochs=nothing, base_sequences=nothing,
                error_codes=(), duplicates=(),
            )
        )  # fmt: skip


def write_parquet(world: World, directory: Path) -> int:
    """Write the world's runs as twenty Parquet files, and return the number of runs.

    Batches of one partition in one object lie back to back, so they are one run. Returns how many.
    """
    directory.mkdir(parents=True)
    same = (world.partition[1:] == world.partition[:-1]) & (
        world.object_id[1:] == world.object_id[:-1]
    )
    first = np.flatnonzero(np.concatenate(([True], ~same)))
    last = np.append(first[1:], len(world.partition)) - 1
    table = pa.table(
        {
            "partition": world.partition[first].astype(np.int32),
            "last_offset": (world.base_offset + world.record_count - 1)[last],
            "timestamp": np.maximum.reduceat(world.timestamp, first),
            "byte_size": np.add.reduceat(world.byte_size, first),
            "object_id": world.object_id[first],
        }
    )
    rows = -(-table.num_rows // PIECES)
    for i in range(PIECES):
        part = table.slice(i * rows, rows)
        pq.write_table(part, directory / f"{i:02}.parquet", compression="zstd")
    objects = {"object_id": np.arange(len(world.object_size)), "size_bytes": world.object_size}
    pq.write_table(pa.table(objects), directory.parent / "objects.parquet")
    return int(table.num_rows)


def topic_ids(world: World) -> list[str]:
    """Return the topic ids in Kafka's base64 text form."""
    return [encode_uuid(topic) for topic in world.topics]
