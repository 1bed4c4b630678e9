"""A coordinator in memory whose objects are files with real batches, for plans of merges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from diskless.fetch.object_cache import ObjectCache
from diskless.fetch.runs_reader import read_runs, run_of
from diskless.stores.directory import PATH, DirectoryStorage
from records.batch import iter_batches, iter_records
from records.batch_writer import build_batch
from records.frame import encode_record
from records.metadata import ConfigRecord, TopicRecord
from records.rpc.batch_coordinator import CommitBatchesRequest
from records.schema import MetadataRecord
from records.wal import PartitionBatches, build_object
from spark_jobs.readers.logs import CLUSTER_METADATA
from spark_jobs.readers.object_store import DirectoryStore
from tests.coordinator.batch.actors import OTHER_TOPIC, TOPIC, Broker, batch, create, find, results
from tests.coordinator.batch.subjects import KEYS, MemoryWorld
from tests.spark_jobs.orphans_world import Values

NAMES = {TOPIC: "orders", OTHER_TOPIC: "visits"}


@dataclass
class Log:
    """The values of a log in memory."""

    values: list[bytes]

    def end_offset(self) -> int:
        return len(self.values)

    def spans(self, end_offset: int, **_: Any) -> list[Any]:
        return [Values(self.values[:end_offset], end_offset=end_offset)]


class MergeWorld:
    """Two topics of two partitions each; `logs` is what jobs read (`spark_jobs.readers.logs`)."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "objects"
        self.directory.mkdir(parents=True)
        self.store = DirectoryStore(self.directory)
        self.world = MemoryWorld()
        self.world.view.raise_level(3)
        self.broker = Broker(self.world)
        self.configs: dict[str, str] = {}
        self.records: list[bytes] = []

    async def begin(self) -> None:
        for topic, name in NAMES.items():
            assert await create(self.world, topic, name=name) == 0
        await self.broker.acquire(1_000)

    async def append(
        self, content: Mapping[tuple[UUID, int], int], *, value: bytes = b"v" * 50
    ) -> int:
        """Write and commit an object with so many records of each partition; return its id."""
        object_id, now_ms = self.broker.next_id, self.world.now_ms()
        parts, topics, position = [], {}, 0
        for (topic, partition), count in sorted(content.items()):
            rows = [(b"k%d" % i, b"%d-" % object_id + value, now_ms, ()) for i in range(count)]
            data = bytes(build_batch(rows, base_offset=0, leader_epoch=-1))
            parts.append(PartitionBatches(topic, partition, [data], count))
            group = CommitBatchesRequest.Topic.Partition(
                partition_index=partition,
                batches=(batch(position, count, size=len(data), time=now_ms),),
            )
            topics.setdefault(topic, []).append(group)
            position += len(data)
        owner = {"cluster_id": KEYS.cluster_id, "broker_id": 1, "broker_epoch": 1}
        buffers, size = build_object(parts, object_id=object_id, **owner)
        assert self.store.write_new(KEYS.key(object_id), b"".join(buffers))
        answer = await self.broker.commit(
            topics=[
                CommitBatchesRequest.Topic(topic_id=topic, partitions=tuple(groups))
                for topic, groups in topics.items()
            ],
            size=size,
        )
        assert not any(result.error_code for result in results(answer))
        return object_id

    def gather(self) -> list[bytes]:
        """Return all records of the coordinator's log."""
        log = self.world.coordinator.log
        self.records += [encode_record(record) for _, record in log]
        log.clear()
        return self.records

    # --- the logs ---------------------------------------------------------------------------

    cluster_id = KEYS.cluster_id

    def names(self) -> list[str]:
        return [CLUSTER_METADATA, "__diskless-metadata-0"]

    def log(self, name: str) -> Log:
        if name == CLUSTER_METADATA:
            return Log([encode_record(record) for record in self._topics()])
        return Log(list(self.gather()))

    def _topics(self) -> Iterator[MetadataRecord]:
        for topic, name in NAMES.items():
            yield TopicRecord(name=name, topic_id=topic)
            for key, value in self.configs.items():
                yield ConfigRecord(resource_type=2, resource_name=name, name=key, value=value)

    # --- a consumer -------------------------------------------------------------------------

    async def runs(self, topic: UUID = TOPIC, partition: int = 0) -> list[Any]:
        (found,) = await find(self.world, (partition, 0), topic=topic)
        return list(found.batches)

    async def read(
        self, topic: UUID = TOPIC, partition: int = 0, end: int = 1 << 62
    ) -> list[tuple[int, bytes]]:
        """Return offset and value of each record in runs below an offset."""
        store = DirectoryStorage.configured({PATH: str(self.directory)})
        cache = ObjectCache(store)
        try:
            found = await self.runs(topic, partition)
            runs = [run_of(each) for each in found if each.last_offset < end]
            data = await read_runs(cache, runs, from_offset=0, max_bytes=1 << 30)
        finally:
            await cache.close()
            await store.close()
        return [
            (record.offset, bytes(record.value or b""))
            for each in iter_batches(data)
            for record in iter_records(each)
        ]
