"""A produce path between a store and a coordinator that fail, driven by one seed.

The coordinator is a model too simple to be wrong: it decides commits in the order they were
submitted, gives offsets without gaps, answers an object it knows with its first answer, and refuses
an id below one it has committed. Around that, answers are lost, leaders are away, leases refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import UUID

from coordinator.errors import CoordinatorError, OutcomeUnknownError
from diskless.produce.buffer import AppendResult
from diskless.produce.closing import BufferClosing, ClosingSettings
from diskless.produce.object_writer import Identity, ObjectWriter, WriterSettings
from diskless.produce.validation import Accepted, TopicRules, validate
from diskless.stores.faults import Fault, FaultRule, FaultyStore
from diskless.stores.memory import MemoryStore
from records.batch_writer import build_batch
from records.kafka_errors import ErrorCode
from records.object_keys import ObjectKeys
from records.rpc import batch_coordinator as rpc
from records.rpc import objects

KEYS = ObjectKeys(prefix="t", cluster_id="Ck3xYz", coordinator_partition=0)
TOPICS = (UUID(int=1), UUID(int=2))
NOW_MS = 1_700_000_000_000


@dataclass
class ModelCoordinator:
    """See the module."""

    random: Random
    lost: float = 0.0  # how often a decided commit's answer is lost
    away: float = 0.0  # how often nobody takes a call
    offsets: dict[tuple[UUID, int], int] = field(default_factory=dict)
    answers: dict[int, rpc.CommitBatchesResponse] = field(default_factory=dict)
    placed: list[tuple[UUID, int, int, int, int, int]] = field(default_factory=list)
    next_id: int = 0
    highest: int = -1
    repeated: int = 0
    _turn: asyncio.Future[None] | None = None

    async def call(self, request: Any) -> Any:
        if isinstance(request, objects.ReleaseObjectLeaseRequest):
            assert request.end_object_id > self.highest
            return objects.ReleaseObjectLeaseResponse()
        assert isinstance(request, objects.AcquireObjectLeaseRequest), request
        await asyncio.sleep(self.random.random() * 0.02)
        if self.random.random() < self.away:
            raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "nobody leads")
        first, self.next_id = self.next_id, self.next_id + request.object_count
        return objects.AcquireObjectLeaseResponse(
            lease_id=first, first_object_id=first, object_count=request.object_count
        )

    def submit(
        self, request: rpc.CommitBatchesRequest
    ) -> asyncio.Future[rpc.CommitBatchesResponse]:
        loop = asyncio.get_running_loop()
        before, self._turn = self._turn, loop.create_future()
        return loop.create_task(self._commit(request, before, self._turn))

    async def _commit(
        self,
        request: rpc.CommitBatchesRequest,
        before: asyncio.Future[None] | None,
        turn: asyncio.Future[None],
    ) -> rpc.CommitBatchesResponse:
        try:
            if before is not None:
                await before
            await asyncio.sleep(self.random.random() * 0.02)
            if self.random.random() < self.away:
                raise CoordinatorError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "nobody leads")
            answer = self._decide(request)
        finally:
            turn.set_result(None)
        if self.random.random() < self.lost:
            await asyncio.sleep(self.random.random())
            raise OutcomeUnknownError(ErrorCode.REQUEST_TIMED_OUT, "the answer was lost")
        return answer

    def _decide(self, request: rpc.CommitBatchesRequest) -> rpc.CommitBatchesResponse:
        object_id = request.object_id
        if object_id in self.answers:
            self.repeated += 1
            return self.answers[object_id]
        if object_id < self.highest:
            return rpc.CommitBatchesResponse(error_code=ErrorCode.OPERATION_NOT_ATTEMPTED)
        self.highest = object_id
        topic_type = rpc.CommitBatchesResponse.Topic
        topics = []
        for topic in request.topics:
            partitions = []
            for partition in topic.partitions:
                where = (topic.topic_id, partition.partition_index)
                results = []
                for row in partition.batches:
                    base = self.offsets.get(where, 0)
                    self.offsets[where] = base + row.last_offset + 1
                    self.placed.append((*where, base, object_id, row.byte_offset, row.size))
                    results.append(rpc.CommitBatchResult(0, base, -1, 0, False))
                partitions.append(
                    topic_type.Partition(
                        partition_index=partition.partition_index, results=tuple(results)
                    )
                )
            topics.append(topic_type(topic_id=topic.topic_id, partitions=tuple(partitions)))
        answer = rpc.CommitBatchesResponse(topics=tuple(topics))
        self.answers[object_id] = answer
        return answer


@dataclass
class Sent:
    """One batch that was sent, its partition and its outcomes."""

    number: int
    where: tuple[UUID, int]
    accepted: Accepted
    results: list[AppendResult] = field(default_factory=list)

    def appended(self, result: AppendResult) -> None:
        self.results.append(result)


def a_batch(number: int, records: int, size: int) -> Accepted:
    value = b"%08d" % number + bytes(size)
    built = build_batch(
        [(None, value, NOW_MS, ()) for _ in range(records)], base_offset=0, leader_epoch=-1
    )
    outcome = validate(built, 9, TopicRules(), NOW_MS)
    assert isinstance(outcome, Accepted)
    return outcome


def never_early() -> BufferClosing:
    """Return a closing that leaves every buffer to its size and the commit interval."""
    return BufferClosing(ClosingSettings(quiet_ms=0), buffers=list, received_at=lambda: 0.0)


class World:
    """One writer from start to close, with producers that send for some seconds."""

    def __init__(
        self,
        seed: int,
        *,
        writer: type[ObjectWriter] = ObjectWriter,
        settings: WriterSettings | None = None,
    ) -> None:
        self.random = random = Random(seed)
        self.note = f"reproduce: World({seed:#x}, writer={writer.__name__})"
        self.memory = MemoryStore(lambda: NOW_MS)
        self.store = FaultyStore(self.memory, random, asyncio.sleep, self._rules())
        self.coordinator = ModelCoordinator(
            random,
            lost=random.choice((0, 0.1, 0.5)),
            away=random.choice((0, 0, 0.1)),
        )
        self.settings = settings or WriterSettings(
            commit_interval_ms=random.choice((1, 50, 250)),
            buffer_max_bytes=random.choice((500, 5_000, 1_000_000)),
            max_uploads=random.choice((1, 3, 8)),
            upload_timeout_ms=random.choice((300, 3_000)),
            lease_ids=random.choice((1, 3, 100)),
        )
        self.sent: list[Sent] = []
        self.writer_type = writer
        self.fenced = 0

    def _rules(self) -> list[FaultRule]:
        upload = frozenset({"upload"})
        return [
            FaultRule(fault=fault, operations=upload, probability=probability, delay_s=delay_s)
            for fault, probability, delay_s in (
                (Fault.ERROR, self.random.choice((0, 0.1, 0.4)), 0.05),
                (Fault.REFUSED, self.random.choice((0, 0.02)), 0.0),
                (Fault.LOST_ANSWER, self.random.choice((0, 0.1, 0.4)), 0.1),
                (Fault.SLOW, self.random.choice((0.1, 0.5)), self.random.choice((0.01, 0.5))),
            )
        ]

    def a_writer(self) -> ObjectWriter:
        """Create the writer on the running loop."""
        return self.writer_type(
            store=self.store,
            coordinator=self.coordinator,
            keys=KEYS,
            identity=Identity(cluster_id="Ck3xYz", broker_id=1, broker_epoch=5),
            settings=self.settings,
            random=self.random,
            on_fenced=self._on_fenced,
        )

    async def live(self, batches: int = 40, during: Callable[[], None] | None = None) -> None:
        writer = self.a_writer()
        for number in range(batches):
            where = (self.random.choice(TOPICS), self.random.randrange(2))
            records, size = self.random.randint(1, 4), self.random.choice((1, 100, 2_000))
            sent = Sent(number, where, a_batch(number, records, size))
            self.sent.append(sent)
            writer.append(*where, sent.accepted, append_time=False, waiter=sent)
            if self.random.random() < 0.7:
                await asyncio.sleep(self.random.random() * 0.2)
            if during is not None:
                during()
        await writer.close(600)
        assert writer.in_flight_bytes == 0, f"{writer.in_flight_bytes} bytes never landed"

    def _on_fenced(self) -> None:
        self.fenced += 1

    def check(self) -> None:
        """Assert one outcome per batch, and acknowledged batches stored once, in order."""
        placed = {
            (topic, partition, base): (object_id, at, size)
            for topic, partition, base, object_id, at, size in self.coordinator.placed
        }
        last: dict[tuple[UUID, int], int] = {}
        bodies = [self._bytes(*place) for place in placed.values()]
        assert len(set(bodies)) == len(bodies), "a batch is stored twice"
        for sent in self.sent:
            assert len(sent.results) == 1, f"batch {sent.number}: {sent.results}"
            result, body = sent.results[0], bytes(sent.accepted.batch.view)
            if result.error:
                assert body not in bodies, f"batch {sent.number}: {result}, but it is stored"
                continue
            found = placed.get((*sent.where, result.base_offset))
            assert found is not None, f"batch {sent.number}: nothing is at {result.base_offset}"
            assert self._bytes(*found) == body, f"batch {sent.number}: other bytes are there"
            assert last.get(sent.where, -1) < result.base_offset, f"batch {sent.number}: overtaken"
            last[sent.where] = result.base_offset

    def _bytes(self, object_id: int, at: int, size: int) -> bytes:
        stored = self.memory.objects.get(KEYS.key(object_id))
        assert stored is not None, f"object {object_id} is committed and not there"
        return stored[0][at : at + size]
