"""From Produce's writer to Fetch, through a coordinator and a store.

Source: docs/design/broker.md#fetch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, cast
from uuid import UUID

import pytest
from msgspec.structs import replace

from coordinator.batch.cluster_view import StaticView
from coordinator.batch.memory import InMemoryCoordinator
from coordinator.batch.reads import log_ends, stable_ends
from coordinator.batch.settings import CoordinatorSettings
from coordinator.controller.image import MetadataImage
from coordinator.errors import CoordinatorError
from coordinator.features import Features
from coordinator.persistent_map import Map
from diskless.cluster import Cluster
from diskless.fetch import service as fetch
from diskless.fetch.commit_notifications import CommitNotifications
from diskless.fetch.object_cache import ObjectCache
from diskless.fetch.service import FetchService
from diskless.fetch.staleness import Staleness
from diskless.loop_turns import SLICE_PARTITIONS
from diskless.produce.buffer import AppendResult
from diskless.produce.object_writer import Identity, ObjectWriter, WriterSettings
from diskless.stores.faults import Fault, FaultRule, FaultyStore
from diskless.stores.memory import MemoryStore
from records.batch import iter_batches, iter_records
from records.features import ESKER_VERSION
from records.kafka_errors import ErrorCode
from records.marker_batches import marker_batch
from records.object_keys import ObjectKeys
from records.rpc.base import CoordinatorRequest
from records.rpc.batch_coordinator import (
    CommitBatchesRequest,
    CommitBatchesResponse,
    DeleteDisklessRecordsRequest,
    FindBatchesRequest,
    FindBatchesResponse,
    InitDisklessTopicsRequest,
    ListDisklessOffsetsRequest,
    TransactionalBatch,
)
from records.rpc.fetch import FetchRequest, FetchResponse
from records.rpc.transaction_markers import TransactionMarker, WriteTransactionMarkersRequest
from tests.coordinator.controller.test_chunks import with_topic
from tests.diskless.produce_world import Sent, a_batch
from tests.diskless.virtual_time import run
from tests.doubles.intercepted_call import intercept

NOW_MS = 1_700_000_000_000
KEYS = ObjectKeys(prefix="", cluster_id="c-1", coordinator_partition=0)
_topic = FetchRequest.FetchTopic


class Coordinator(InMemoryCoordinator):
    """An in-memory coordinator that is a replica, too."""

    def ends(self, topic_id: UUID, partition: int) -> tuple[int, int] | None:
        return log_ends(self.state, topic_id, partition)

    def stable_ends(self, topic_id: UUID, partition: int) -> tuple[int, int] | None:
        return stable_ends(self.state, topic_id, partition)


class Submitting:
    """An in-memory coordinator with the client's `submit`."""

    def __init__(self, coordinator: InMemoryCoordinator, news: CommitNotifications) -> None:
        self.coordinator = coordinator
        self.news = news
        self.away = False
        self.sequence = 0
        self.number = -1  # of the transaction that batches are sent in; -1: of none

    def submit(self, request: CommitBatchesRequest) -> asyncio.Future[CommitBatchesResponse]:
        return asyncio.ensure_future(self._commit(request))

    async def _commit(self, request: CommitBatchesRequest) -> CommitBatchesResponse:
        if self.number >= 0:
            request = self._in_transaction(request)
        answer = await self.coordinator.call(request)
        self.news.notify()
        return answer

    def _in_transaction(self, request: CommitBatchesRequest) -> CommitBatchesRequest:
        """Let the only batch of an object be one of producer 7's transaction."""
        (topic,) = request.topics
        (partition,) = topic.partitions
        (batch,) = partition.batches
        self.sequence += batch.last_offset + 1
        batch = batch._replace(
            producer_id=7,
            producer_epoch=0,
            base_sequence=self.sequence - batch.last_offset - 1,
            last_sequence=self.sequence - 1,
        )
        partition = replace(partition, batches=(batch,))
        return replace(
            request,
            topics=(replace(topic, partitions=(partition,)),),
            transactional=(TransactionalBatch(0, self.number, 1, 2**62),),
        )

    async def call(self, request: CoordinatorRequest[Any]) -> Any:
        if self.away and isinstance(request, ListDisklessOffsetsRequest):
            raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "nobody leads")
        return await self.coordinator.call(request)


class _ClusterOf:
    """The part of a cluster that Fetch reads; a test may replace the broker's image or replica."""

    broker_id = 1

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @property
    def image(self) -> MetadataImage:
        return self._broker.image

    def replica(self, _: int) -> Coordinator | None:
        return self._broker.replica

    def leader(self, _: int) -> Submitting:
        return self._broker.leader


class Broker:
    """The produce and the fetch path of one broker; topic t has two partitions."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self.topic_id = image.topic_ids["t"]
        self.news = CommitNotifications()
        self.memory = MemoryStore(lambda: NOW_MS)
        self.store = FaultyStore(self.memory, Random(1), asyncio.sleep)
        settings = CoordinatorSettings(keys=KEYS)
        view = StaticView(finalized=Features(Map[str, int]().set(ESKER_VERSION, 4)))
        self.coordinator = Coordinator(settings, view, lambda: NOW_MS)
        self.leader = Submitting(self.coordinator, self.news)
        self.replica: Coordinator | None = self.coordinator
        self.age_ms: float | None = 0.0  # of the replica
        self.cache = ObjectCache(self.store)
        self.service = FetchService(
            cast(Cluster, _ClusterOf(self)),
            cache=self.cache,
            news=self.news,
            staleness=Staleness(lambda _: self.age_ms, file_delete_delay_ms=60_000),
        )
        self.writer = ObjectWriter(
            store=self.store,
            coordinator=self.leader,
            keys=KEYS,
            identity=Identity(cluster_id="c-1", broker_id=1, broker_epoch=5),
            settings=WriterSettings(commit_interval_ms=10),
            random=Random(1),
            on_fenced=lambda: None,
        )

    async def begin(self) -> None:
        topic = InitDisklessTopicsRequest.Topic(
            topic_id=self.topic_id, topic_name="t", num_partitions=2
        )
        request = InitDisklessTopicsRequest(controller_epoch=1, topics=(topic,))
        answer = await self.coordinator.call(request)
        assert answer.responses[0].error_code == 0

    def send(self, number: int, partition: int = 0, records: int = 2) -> Sent:
        sent = Sent(number, (self.topic_id, partition), a_batch(number, records, 10))
        self.writer.append(*sent.where, sent.accepted, append_time=False, waiter=sent)
        return sent

    async def mark(self, number: int, outcome: int, producer: int = 7, epoch: int = 0) -> None:
        """Write a marker of the first partition."""
        marker = TransactionMarker(0, 0, producer, epoch, number, outcome, 3)
        request = WriteTransactionMarkersRequest(
            coordinator_partition=0, topic_ids=(self.topic_id,), markers=(marker,)
        )
        assert (await self.coordinator.call(request)).marker_error_codes == (0,)
        self.news.notify()

    async def produce(self, *numbers: int, partition: int = 0) -> list[AppendResult]:
        sent = [self.send(number, partition) for number in numbers]
        while not all(one.results for one in sent):
            await asyncio.sleep(0.01)
        return [one.results[0] for one in sent]

    async def fetch(
        self,
        offset: int,
        partition: int = 0,
        *,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        version: int = 12,
        topic: str = "t",
        topic_id: UUID = UUID(int=0),  # noqa: B008
        leader_epoch: int = -1,
        isolation: int = 0,
    ) -> FetchResponse.FetchableTopicResponse.PartitionData:
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation_level=isolation,
            topics=(
                _topic(
                    topic=topic,
                    topic_id=topic_id,
                    partitions=(
                        _topic.FetchPartition(
                            partition=partition,
                            fetch_offset=offset,
                            partition_max_bytes=max_bytes,
                            current_leader_epoch=leader_epoch,
                        ),
                    ),
                ),
            ),
        )
        answer = await self.service.fetch(request, version)
        return answer.responses[0].partitions[0]


def numbers(data: bytes | memoryview | None) -> list[tuple[int, int]]:
    """Return (offset, number of the batch) of each record."""
    return [
        (int(record.offset), int(bytes(record.value or b"")[:8]))
        for batch in iter_batches(data or b"")
        for record in iter_records(batch)
    ]


def claim(work: Callable[[Broker], Awaitable[None]]) -> None:
    async def on_loop() -> None:
        broker = Broker(with_topic().image)
        await broker.begin()
        await work(broker)
        await broker.writer.close(10)
        await broker.cache.close()

    run(on_loop)


def test_a_fetch_returns_acknowledged_records_at_the_offsets_of_their_acknowledgement() -> None:
    async def work(broker: Broker) -> None:
        results = await broker.produce(7, 8, 9)
        assert [result.base_offset for result in results] == [0, 2, 4]
        found = await broker.fetch(0)
        assert numbers(found.records) == [(0, 7), (1, 7), (2, 8), (3, 8), (4, 9), (5, 9)]
        assert (found.high_watermark, found.last_stable_offset, found.log_start_offset) == (6, 6, 0)
        assert numbers((await broker.fetch(3)).records)[0] == (2, 8)
        assert (await broker.fetch(6)).records == b""
        assert (await broker.fetch(0, partition=1)).high_watermark == 0

    claim(work)


def test_a_read_committed_fetch_ends_before_an_open_transaction_and_waits_for_its_end() -> None:
    async def work(broker: Broker) -> None:
        await broker.produce(1)
        broker.leader.number = 5
        await broker.produce(2)
        broker.leader.number = -1
        await broker.produce(3)
        found = await broker.fetch(0, isolation=1)
        assert numbers(found.records) == [(0, 1), (1, 1)]
        assert (found.last_stable_offset, found.high_watermark) == (2, 6)
        assert found.aborted_transactions == ()
        assert len(numbers((await broker.fetch(0)).records)) == 6
        waiting = asyncio.ensure_future(broker.fetch(2, isolation=1, max_wait_ms=30_000))
        await broker.produce(4, partition=1)
        await asyncio.sleep(1)
        assert not waiting.done()
        await broker.mark(5, 0)
        found = await waiting
        assert (found.last_stable_offset, found.high_watermark) == (7, 7)
        aborted = found.aborted_transactions or ()
        assert [(one.producer_id, one.first_offset) for one in aborted] == [(7, 2)]
        *batches, marker = iter_batches(found.records or b"")
        assert [batch.header.base_offset for batch in batches] == [2, 4]
        assert bytes(marker.view) == marker_batch(
            base_offset=6,
            timestamp=NOW_MS,
            producer_id=7,
            producer_epoch=0,
            outcome=0,
            coordinator_epoch=3,
        )
        everything = await broker.fetch(0)
        assert everything.aborted_transactions is None
        assert [batch.header.is_control for batch in iter_batches(everything.records or b"")] == [
            False,
            False,
            False,
            True,
        ]
        assert len((await broker.fetch(6)).records or b"") == 78

    claim(work)


def test_a_waiting_read_committed_fetch_looks_up_again_only_at_another_stable_offset() -> None:
    async def work(broker: Broker) -> None:
        look_up, looked_up = broker.service._look_up, 0

        async def counted(*given: Any) -> Any:
            nonlocal looked_up
            looked_up += 1
            assert looked_up < 100, "the Fetch does not wait"
            return await look_up(*given)

        broker.service._look_up = counted  # type: ignore[method-assign]
        broker.leader.number = 5
        await broker.produce(1)
        broker.leader.number = -1
        waiting = asyncio.ensure_future(broker.fetch(0, isolation=1, max_wait_ms=30_000))
        await broker.produce(2)
        assert (looked_up, waiting.done()) == (1, False)
        await broker.mark(5, 1)
        assert (await waiting).last_stable_offset == 5
        assert looked_up == 2

    claim(work)


def test_a_fetch_waits_for_min_bytes_and_at_most_max_wait() -> None:
    async def work(broker: Broker) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert (await broker.fetch(0, max_wait_ms=500)).records == b""
        assert 0.5 <= loop.time() - began < 0.6
        waiting = asyncio.ensure_future(broker.fetch(0, max_wait_ms=30_000))
        await asyncio.sleep(1)
        assert not waiting.done()
        await broker.produce(1)
        began = loop.time()
        assert numbers((await waiting).records) == [(0, 1), (1, 1)]
        assert loop.time() - began < 0.1
        enough = asyncio.ensure_future(broker.fetch(0, max_wait_ms=30_000, min_bytes=150))
        await asyncio.sleep(0.1)
        assert not enough.done()
        await broker.produce(2)
        assert len(numbers((await enough).records)) == 4

    claim(work)


def test_a_waiting_fetch_is_not_woken_by_commits_to_other_partitions() -> None:
    async def work(broker: Broker) -> None:
        looked_up = 0

        async def counted(request: FindBatchesRequest) -> FindBatchesResponse:
            nonlocal looked_up
            looked_up += 1
            return await real(request)

        real = intercept(broker.coordinator, FindBatchesRequest, counted)
        waiting = asyncio.ensure_future(broker.fetch(0, max_wait_ms=30_000))
        for number in range(10):
            await broker.produce(number, partition=1)
        assert looked_up == 1
        await broker.produce(77)
        assert numbers((await waiting).records) == [(0, 77), (1, 77)]
        assert looked_up == 2

    claim(work)


def test_a_stopping_broker_redirects_its_consumers_at_once() -> None:
    async def work(broker: Broker) -> None:
        await broker.produce(1)
        waiting = asyncio.ensure_future(broker.fetch(2, max_wait_ms=30_000))
        await asyncio.sleep(0.1)
        began = asyncio.get_running_loop().time()
        broker.service.leave()
        assert (await waiting).error_code == 6
        assert (await broker.fetch(0)).error_code == 6
        assert asyncio.get_running_loop().time() == began

    claim(work)


def test_a_fetch_returns_its_first_batch_whole_even_above_max_bytes() -> None:
    async def work(broker: Broker) -> None:
        await broker.produce(1, 2)
        assert numbers((await broker.fetch(0, max_bytes=1)).records) == [(0, 1), (1, 1)]

    claim(work)


@pytest.mark.parametrize("at_once", [1, 200])
def test_a_fetch_with_tiny_max_bytes_returns_one_batch_per_response(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """The request's max_bytes bounds the response, whatever the partitions' bounds are."""

    async def work(broker: Broker) -> None:
        monkeypatch.setattr("diskless.fetch.service.LOOKED_UP_AT_ONCE", at_once)
        await asyncio.gather(*(broker.produce(1, 2, 3, partition=index) for index in (0, 1)))
        partitions = tuple(
            _topic.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20)
            for index in (0, 1)
        )
        topics = (_topic(topic="t", partitions=partitions),)
        request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1, topics=topics)
        for _ in range(2):
            answer = await broker.service.fetch(request, 12)
            found = [numbers(one.records) for one in answer.responses[0].partitions]
            assert sorted(found) == [[], [(0, 1), (1, 1)]]
        small = (await broker.service.fetch(request, 12, room=lambda: 0)).responses[0]
        assert sum(len(numbers(one.records)) for one in small.partitions) == 2

    claim(work)


def test_successive_fetches_begin_with_different_partitions() -> None:
    async def work(broker: Broker) -> None:
        await broker.produce(1, partition=0)
        await broker.produce(2, partition=1)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=1,
            topics=(
                _topic(
                    topic="t",
                    partitions=tuple(
                        _topic.FetchPartition(
                            partition=index, fetch_offset=0, partition_max_bytes=1
                        )
                        for index in (0, 1)
                    ),
                ),
            ),
        )
        served = []
        for _ in range(4):
            answer = await broker.service.fetch(request, 12)
            served.append([bool(part.records) for part in answer.responses[0].partitions])
        assert served == [[False, True], [True, False]] * 2

    claim(work)


def test_a_fetch_of_missing_topics_or_partitions_gets_unknown_topic_errors() -> None:
    async def work(broker: Broker) -> None:
        assert (await broker.fetch(0, topic="nowhere")).error_code == 3
        assert (await broker.fetch(0, partition=9)).error_code == 3
        assert (await broker.fetch(0, version=13, topic_id=UUID(int=9))).error_code == 100
        assert (await broker.fetch(0, topic="__consumer_offsets")).error_code == 3
        assert (await broker.fetch(0, version=13, topic_id=broker.topic_id)).error_code == 0
        assert (await broker.fetch(0, leader_epoch=0)).error_code == 0
        assert (await broker.fetch(0, leader_epoch=1)).error_code == 75
        session = FetchRequest(max_wait_ms=0, min_bytes=1, session_id=5, topics=())
        assert (await broker.service.fetch(session, 12)).error_code == 70

    claim(work)


def test_the_coordinator_decides_whether_a_fetch_offset_is_out_of_range() -> None:
    async def work(broker: Broker) -> None:
        await broker.produce(1, 2, 3)
        topic = DeleteDisklessRecordsRequest.Topic
        await broker.coordinator.call(
            DeleteDisklessRecordsRequest(
                topics=(
                    topic(
                        topic_id=broker.topic_id,
                        partitions=(topic.Partition(partition_index=0, offset=2),),
                    ),
                )
            )
        )
        below, above = await broker.fetch(0), await broker.fetch(7)
        assert (below.error_code, below.log_start_offset, below.high_watermark) == (1, 2, 6)
        assert above.error_code == 1
        broker.leader.away = True
        assert (await broker.fetch(0)).error_code == 78
        assert (await broker.fetch(2)).error_code == 0  # no leader is needed for what is known

    claim(work)


def test_a_fetch_beyond_the_end_of_a_lagging_replica_gets_no_offset_out_of_range() -> None:
    async def work(broker: Broker) -> None:
        await broker.produce(1)
        behind = Broker(broker.image)
        await behind.begin()
        broker.replica = behind.coordinator  # has heard of the topic, not of the batch
        found = await broker.fetch(2)
        assert (found.error_code, found.records) == (0, b"")
        assert found.high_watermark == 2
        broker.replica = None
        assert (await broker.fetch(0)).error_code == 6

    claim(work)


def test_a_fetch_of_a_missing_referenced_object_returns_a_storage_error() -> None:
    async def work(broker: Broker) -> None:
        await broker.produce(1)
        kept, broker.memory.objects = broker.memory.objects, {}
        assert (await broker.fetch(0)).error_code == 56
        broker.memory.objects = kept
        assert (await broker.fetch(0)).error_code == 0

    claim(work)


def test_a_fetch_at_the_offset_of_a_deleted_record_gets_offset_out_of_range() -> None:
    async def work(broker: Broker) -> None:
        await broker.produce(1)
        behind = Broker(broker.image)  # knows the batch, and not that it was deleted
        await behind.begin()
        await behind.produce(1)
        broker.replica = behind.coordinator
        topic = DeleteDisklessRecordsRequest.Topic
        partition = topic.Partition(partition_index=0, offset=-1)
        topics = (topic(topic_id=broker.topic_id, partitions=(partition,)),)
        await broker.coordinator.call(DeleteDisklessRecordsRequest(topics=topics))
        broker.memory.objects.clear()
        found = await broker.fetch(0)
        assert (found.error_code, found.log_start_offset) == (1, 2)
        await behind.writer.close(10)

    claim(work)


def test_fetch_errors_distinguish_a_failing_store_from_damaged_records() -> None:
    async def work(broker: Broker) -> None:
        await broker.produce(1)
        broker.store.rules = (FaultRule(fault=Fault.ERROR),)
        assert (await broker.fetch(0)).error_code == 56
        broker.store.rules = (FaultRule(fault=Fault.DAMAGED),)
        assert (await broker.fetch(0)).error_code == 2
        broker.store.rules = ()
        broker.cache.forget(KEYS.key(0))
        assert (await broker.fetch(0)).error_code == 0

    claim(work)


def wide(partitions: int, *, max_wait_ms: int) -> FetchRequest:
    """Build a Fetch of many partitions, of which only the last exists."""
    partition = _topic.FetchPartition
    asked = [
        partition(partition=at, fetch_offset=0, partition_max_bytes=1 << 20)
        for at in (*range(1, partitions), 0)
    ]
    return FetchRequest(
        max_wait_ms=max_wait_ms, min_bytes=1, topics=(_topic(topic="t", partitions=tuple(asked)),)
    )


def test_a_fetch_of_thousands_of_partitions_yields_to_other_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At most one slice of partitions is processed between two turns of the loop."""

    async def story(broker: Broker) -> None:
        done = most = 0

        def counted(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any) -> Any:
                nonlocal done
                done += 1
                return function(*args)

            return call

        async def watch() -> None:
            nonlocal done, most
            while True:
                most, done = max(most, done), 0
                await asyncio.sleep(0)

        monkeypatch.setattr(fetch, "_resolve", counted(fetch._resolve))
        monkeypatch.setattr(broker.service, "_response", counted(broker.service._response))
        watching = asyncio.ensure_future(watch())
        await asyncio.sleep(0)
        tasks = len(asyncio.all_tasks())
        fetching = asyncio.ensure_future(broker.service.fetch(wide(5_000, max_wait_ms=0), 12))
        while not fetching.done():
            await asyncio.sleep(0)
            assert len(asyncio.all_tasks()) <= tasks + 3, "a task for each partition"
        assert len(fetching.result().responses[0].partitions) == 5_000
        assert 0 < most <= 3 * SLICE_PARTITIONS
        watching.cancel()

    claim(story)


@pytest.mark.parametrize(("partitions", "scans"), [(1, 1_000), (20_000, 5)])
def test_a_waiting_fetch_of_thousands_of_partitions_does_not_check_them_at_every_commit(
    monkeypatch: pytest.MonkeyPatch, partitions: int, scans: int
) -> None:
    """A thousand commits of other partitions in a second; its own still wakes it."""

    async def story(broker: Broker) -> None:
        looks = 0
        ends = broker.service._ends

        def counted(asked: Any) -> Any:
            nonlocal looks
            looks += asked.partition == 0
            return ends(asked)

        monkeypatch.setattr(broker.service, "_ends", counted)
        monkeypatch.setattr(fetch, "_resolve", everything_there(fetch._resolve))
        request = wide(partitions, max_wait_ms=30_000)
        fetching = asyncio.ensure_future(broker.service.fetch(request, 12))
        await asyncio.sleep(0.5)
        looks = 0
        for _ in range(1_000):
            await asyncio.sleep(0.001)
            broker.news.notify()
        assert scans / 2 <= looks <= scans + 1
        await broker.produce(1)
        async with asyncio.timeout(2):
            (*_, own) = (await fetching).responses[0].partitions
        assert own.records

    claim(story)


def everything_there(place: Callable[..., Any]) -> Callable[..., Any]:
    """Let every partition number resolve to partition 1."""

    def placed(image: Any, version: int, topic: Any, asked: Any, committed: bool) -> Any:
        found = FetchRequest.FetchTopic.FetchPartition(
            partition=min(asked.partition, 1), fetch_offset=0, partition_max_bytes=1 << 20
        )
        return place(image, version, topic, found, committed)

    return placed
