"""Brokers' produce and fetch paths on one virtual loop: all real but the sockets.

    async with ClusterWorld(brokers=(1, 2)) as world:
        topic = await world.create("t", partitions=2)
        with_store = RecordsBroker.of(world, 1)
        answer = await broker.produce("t", 0, batch(7))
        answer = await broker.fetch("t", 0, offset=0)

All brokers of a world share one store, which a test may let fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Final
from uuid import UUID

from coordinator.controller.chunk_placement import keeps
from diskless.apis.records import RecordApis
from diskless.fetch.commit_notifications import CommitNotifications
from diskless.fetch.local_segments.cache import LocalSegments, LocalSegmentsSettings
from diskless.fetch.local_segments.filler import SegmentFiller
from diskless.fetch.local_segments.format import TopicPartition
from diskless.fetch.local_segments.warming import ChunkWarming
from diskless.fetch.object_cache import ObjectCache
from diskless.fetch.service import FetchService
from diskless.fetch.staleness import Staleness
from diskless.object_deletion import Cleaner
from diskless.produce.in_flight import InFlight
from diskless.produce.object_writer import WriterSettings
from diskless.produce.service import ProduceService
from diskless.produce.writers import Writers
from diskless.stores.faults import FaultyStore
from diskless.stores.memory import MemoryStore
from diskless.traffic import Traffic
from diskless.transactions.proofs import TransactionProofs
from diskless.zones import ZoneTraffic
from records.batch import TRANSACTIONAL, iter_batches, iter_records
from records.batch_writer import build_batch
from records.rpc.batch_coordinator import CommitBatchesResponse
from records.rpc.fetch import FetchRequest, FetchResponse
from records.rpc.produce import ProduceRequest, ProduceResponse
from records.types import ZERO_UUID
from tests.diskless.calling import Caller, call
from tests.diskless.cluster_world import ClusterWorld
from tests.doubles.inline_executor import InlineExecutor

DELETE_DELAY_MS: Final = 60_000
_asked = FetchRequest.FetchTopic
_sent = ProduceRequest.TopicProduceData

Produced = ProduceResponse.TopicProduceResponse.PartitionProduceResponse
Fetched = FetchResponse.FetchableTopicResponse.PartitionData


def batch(
    *numbers: int,
    now_ms: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    size: int = 1,
    is_transactional: bool = False,
) -> bytes:
    """Build a batch with one record per number; each value begins with its number."""
    return bytes(
        build_batch(
            [(None, b"%08d" % number + bytes(size), now_ms, ()) for number in numbers],
            base_offset=0,
            leader_epoch=-1,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            attributes=TRANSACTIONAL if is_transactional else 0,
        )
    )


def values(records: bytes | memoryview | None) -> list[tuple[int, int]]:
    """Return (offset, number) of each record."""
    return [
        (int(record.offset), int(bytes(record.value or b"")[:8]))
        for each in iter_batches(records or b"")
        for record in iter_records(each)
    ]


class RecordsBroker:
    """The produce and fetch services of one broker; call `end` when done."""

    def __init__(
        self,
        world: ClusterWorld,
        broker_id: int,
        memory: MemoryStore | None = None,
        *,
        seed: int = 1,
        settings: WriterSettings | None = None,
        max_in_flight: int = 1 << 24,
        fetch_type: type[FetchService] = FetchService,
    ) -> None:
        self.world = world
        self.cluster = world.cluster(broker_id)
        self.memory = memory or MemoryStore(world.wall_ms)
        random = Random(seed)
        self.store = FaultyStore(self.memory, random, asyncio.sleep)
        self.fenced = 0
        self.news = CommitNotifications()
        self.cluster.on_image(lambda _: self.news.notify())
        self.cluster.on_commit(lambda _: self.news.notify())
        self.traffic = Traffic(self.cluster.image.topics)
        self.cluster.on_image(self.traffic.on_image)
        self.cache = ObjectCache(self.store)
        self.in_flight = InFlight(max_in_flight)
        self.writers = Writers(
            cluster=self.cluster,
            store=self.store,
            key_prefix="",
            settings=settings or WriterSettings(commit_interval_ms=20, upload_timeout_ms=5_000),
            random=random,
            on_fenced=self._on_fenced,
            on_written=self.cache.add,
            on_committed=self._on_committed,
        )
        self.staleness = Staleness(
            self.cluster.replica_age_ms, file_delete_delay_ms=DELETE_DELAY_MS
        )
        self.produce_service = ProduceService(
            self.cluster,
            writer=self.writers.writer,
            now_ms=world.wall_ms,
            in_flight=self.in_flight,
            closing=self.writers.closing,
            proofs=TransactionProofs(self.cluster),
            traffic=self.traffic,
        )
        self.fetch_service = fetch_type(
            self.cluster,
            cache=self.cache,
            news=self.news,
            staleness=self.staleness,
            traffic=self.traffic,
        )
        self.segments: LocalSegments | None = None
        self.filler: SegmentFiller | None = None
        self.zones = ZoneTraffic(lambda: None)
        self.apis = RecordApis(self.produce_service, self.fetch_service, self.zones)
        self.handlers = self.apis.handlers()
        self.cleaner = Cleaner(
            self.cluster, self.store, key_prefix="", random=random, interval_s=10.0
        )
        self.begin()

    def begin(self) -> None:
        """Write under the epoch that the controller knows."""
        registered = self.world.image.brokers[self.cluster.broker_id]
        if registered.broker_epoch != self.writers.epoch:
            self.writers.begin(registered.broker_epoch)

    def _on_fenced(self) -> None:
        self.fenced += 1

    async def begin_segments(
        self, directory: Path, cluster_id: str = "c-1", **settings: Any
    ) -> LocalSegments:
        """Serve from local segments in a directory, as a broker that starts does."""
        found = self.segments = LocalSegments(
            LocalSegmentsSettings(directory, cluster_id, self.cluster.broker_id, **settings),
            wall_ms=self.world.wall_ms,
            executor=InlineExecutor(),
            keeps=lambda partition, *ends: keeps(
                self.cluster.image, self.cluster.broker_id, *partition, *ends
            ),
        )
        await found.begin()
        self.fetch_service._segments = found
        self.filler = SegmentFiller(
            self.cluster,
            found,
            cache=self.cache,
            look_up=self.fetch_service.runs_of,
            epochs=self.fetch_service.epochs_to_stamp,
            stale_s=3_600.0,
        )
        self.filler.start()
        self.warming = ChunkWarming(
            self.cluster,
            found,
            store=self.store,
            cache=self.cache,
            look_up=self.fetch_service.runs_of,
            epochs=self.fetch_service.epochs_to_stamp,
        )
        self.warming.start()
        return found

    async def end_segments(self) -> None:
        """Stop to serve from local segments; the directory stays."""
        if self.segments is not None and self.filler is not None:
            await self.filler.close()
            await self.warming.close()
            await self.segments.close()
            self.segments = self.filler = self.fetch_service._segments = None

    def _on_committed(self, response: CommitBatchesResponse) -> None:
        if self.filler is not None:
            for topic in response.topics:
                for found in topic.partitions:
                    partition = TopicPartition(topic.topic_id, found.partition_index)
                    self.filler.note_written(partition, found.results[0].assigned_base_offset)

    async def end(self, timeout_s: float = 600.0) -> None:
        """Close the writers, the cleaner and the cache, as a stopping broker does."""
        await self.end_segments()
        await self.writers.close(timeout_s)
        await self.cleaner.close()
        await self.fetch_service.close()
        await self.cache.close()

    # --- what a client does ---------------------------------------------------------------------

    async def produce(
        self,
        topic: str,
        partition: int,
        records: bytes,
        *,
        acks: int = -1,
        timeout_ms: int = 30_000,
        version: int = 12,
        topic_id: UUID = ZERO_UUID,
        caller: Caller | None = None,
        transactional_id: str | None = None,
    ) -> Produced:
        """Produce one batch; return the result of its partition."""
        request = ProduceRequest(
            transactional_id=transactional_id,
            acks=acks,
            timeout_ms=timeout_ms,
            topic_data=(
                _sent(
                    name=topic,
                    topic_id=topic_id,
                    partition_data=(_sent.PartitionProduceData(index=partition, records=records),),
                ),
            ),
        )
        answer = await call(self.handlers, request, ProduceResponse, version=version, caller=caller)
        return answer.responses[0].partition_responses[0]

    async def fetch_all(
        self, request: FetchRequest, version: int = 12, **more: Any
    ) -> FetchResponse:
        """Send a Fetch request; return the response."""
        return await call(self.handlers, request, FetchResponse, version=version, **more)

    async def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        version: int = 12,
        topic_id: UUID = ZERO_UUID,
        max_wait_ms: int = 0,
        max_bytes: int = 1 << 20,
        rack: str = "",
        **more: Any,
    ) -> Fetched:
        """Fetch from one partition; return its result."""
        request = fetching(
            topic, [(partition, offset)], topic_id=topic_id, max_wait_ms=max_wait_ms,
            max_bytes=max_bytes, rack=rack,
        )  # fmt: skip
        answer = await self.fetch_all(request, version, **more)
        return answer.responses[0].partitions[0]


def fetching(
    topic: str,
    places: Sequence[tuple[int, int]],
    *,
    topic_id: UUID = ZERO_UUID,
    max_wait_ms: int = 0,
    max_bytes: int = 1 << 20,
    rack: str = "",
    isolation_level: int = 0,
) -> FetchRequest:
    """Build a Fetch of (partition, offset) pairs of one topic."""
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        rack_id=rack,
        isolation_level=isolation_level,
        topics=(
            _asked(
                topic=topic,
                topic_id=topic_id,
                partitions=tuple(
                    _asked.FetchPartition(
                        partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes
                    )
                    for partition, offset in places
                ),
            ),
        ),
    )
