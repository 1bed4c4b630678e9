"""A random life, beside models too simple to be wrong: a dict for each log, a set for the store.

Brokers upload to the model store and commit, sometimes twice, late or never; records and topics are
deleted; leaders change, clocks jump, and what may be deleted is. After every step invariants 4 to 8
are looked at. A run is its seed: repeat one with `-k "invariants and 3"`.

Source: docs/design/invariants.md.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from random import Random
from uuid import UUID

import pytest

from records.rpc.batch_coordinator import CommitBatch, CommitBatchesRequest, CommitBatchResult
from tests.coordinator.batch.actors import (
    Broker,
    batch,
    create,
    delete,
    delete_records,
    find,
    mark_orphans,
    results,
)
from tests.coordinator.batch.subjects import KEYS, SETTINGS, MemoryWorld
from tests.examples import seeds

pytestmark = pytest.mark.slow

STEPS = 400
PARTITIONS = 2
SEEDS = seeds(4)

Log = list[tuple[int, int, int]]
"""The object, byte and number in its batch of each offset's record."""


class Life:
    """One random workload."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        settings = replace(SETTINGS, maintenance_limit=7, lease_timeout_ms=200_000)
        self.world = MemoryWorld(settings)
        self.seen: Counter[str] = Counter()
        self.topics = [UUID(int=number) for number in (1, 2)]
        self.logs: dict[tuple[UUID, int], Log] = {}
        self.starts: dict[tuple[UUID, int], int] = {}
        self.store: set[int] = set()  # objects that exist
        self.gone: set[int] = set()  # objects that were deleted
        self.brokers: list[Broker] = []
        self.next: dict[tuple[UUID, int, int], int] = {}  # what each producer sends next
        self.written: dict[tuple[UUID, int, int], list[tuple[int, int]]] = {}  # first, count
        self.sent: list[tuple[Broker, CommitBatchesRequest, list[CommitBatchResult] | int]] = []
        self.late: list[tuple[Broker, CommitBatchesRequest]] = []

    async def begin(self) -> None:
        for topic in self.topics:
            await self.create(topic)
        for broker_id in (1, 2):
            broker = Broker(self.world, broker_id)
            await broker.acquire(20)
            self.brokers.append(broker)

    async def run(self) -> None:
        await self.begin()
        steps = [self.commit] * 12 + [self.retry] * 3 + [self.arrive_late] * 2
        steps += [self.delete_some, self.pass_time, self.lead_anew, self.clean, self.new_epoch]
        steps += [self.is_it_safe, self.upload_again, self.sweep]
        for number in range(STEPS):
            await self.random.choice(steps)()
            if number % 100 == 99:
                await self.delete_topic()
            self.world.coordinator.state.check_invariants()
            await self.check()
        await self.end()

    # --- steps

    async def create(self, topic: UUID) -> None:
        assert await create(self.world, topic, PARTITIONS, name=f"t{topic.int}") == 0
        for partition in range(PARTITIONS):
            self.logs[topic, partition] = []
            self.starts[topic, partition] = 0

    async def commit(self) -> None:
        broker = self.random.choice(self.brokers)
        lease = self.world.coordinator.state.leases.get(broker.lease_id)
        if lease is None or not lease.is_open or broker.next_id >= lease.end_object_id:
            assert (await broker.acquire(20)).error_code == 0
        request = self.request(broker)
        broker.next_id += 1
        if self.random.random() < 0.1:
            self.seen["burnt"] += 1  # its upload failed
            return
        self.store.add(request.object_id)
        if self.random.random() < 0.15:
            self.late.append((broker, request))
            return
        await self.send(broker, request)

    def request(self, broker: Broker) -> CommitBatchesRequest:
        random = self.random
        place = 0
        topics = []
        for topic in random.sample(self.topics, random.randint(1, 2)):
            groups = []
            for partition in random.sample(range(PARTITIONS), random.randint(1, PARTITIONS)):
                batches = []
                for _ in range(random.randint(1, 3)):
                    batches.append(self.batch(topic, partition, place))
                    place += 100 + 10 * (random.random() < 0.1)
                groups.append(
                    CommitBatchesRequest.Topic.Partition(
                        partition_index=partition, batches=tuple(batches)
                    )
                )
            topics.append(CommitBatchesRequest.Topic(topic_id=topic, partitions=tuple(groups)))
        return CommitBatchesRequest(
            broker_id=broker.broker_id,
            broker_epoch=broker.epoch,
            lease_id=broker.lease_id,
            object_id=broker.next_id,
            object_format=1,
            object_size=place + 100,
            topics=tuple(topics),
        )

    def batch(self, topic: UUID, partition: int, place: int) -> CommitBatch:
        producer = self.random.randint(-1, 2)
        count = self.random.randint(1, 4)
        if producer < 0:
            return batch(place, count)
        key = (topic, partition, producer)
        written = self.written.get(key, [])
        dice = self.random.random()
        if written and dice < 0.2:  # it never heard the answer
            first, count = self.random.choice(written[-5:])
        else:
            first = self.next.get(key, 0) + (dice > 0.95)
            self.next[key] = first + count
        return batch(place, count, producer=producer, first=first)

    async def send(self, broker: Broker, request: CommitBatchesRequest) -> None:
        response = await broker.again(request)
        if response.error_code:
            assert response.error_code in (55, 77), response
            self.seen[f"refused {response.error_code}"] += 1
            self.sent.append((broker, request, response.error_code))
            return
        told = results(response)
        self.sent.append((broker, request, told))
        answers = iter(told)
        for topic in request.topics:
            for group in topic.partitions:
                place = (topic.topic_id, group.partition_index)
                for row in group.batches:
                    self.accept(request.object_id, place, row, next(answers))

    def accept(
        self,
        object_id: int,
        place: tuple[UUID, int],
        row: CommitBatch,
        answer: CommitBatchResult,
    ) -> None:
        log, key = self.logs.get(place), (*place, row.producer_id)
        written = self.written.setdefault(key, [])
        batch_of = (row.base_sequence, row.last_offset - row.base_offset + 1)
        if answer.error_code:
            self.seen[f"batch refused {answer.error_code}"] += 1
            assert answer.assigned_base_offset == -1
            self.next[key] = sum(written[-1]) if written else 0  # it begins where it was
            return
        assert log is not None, "accepted by a topic that is deleted"
        if answer.is_duplicate:
            self.seen["duplicates"] += 1
            assert batch_of in written[-5:]
            held = log[answer.assigned_base_offset]
            assert held[2] == 0, f"a duplicate of no batch's first record: {held}"
            return
        if row.producer_id >= 0:
            expected = sum(written[-1]) if written else 0
            assert batch_of[0] == expected, "a gap, or written twice"  # invariant 6
            written.append(batch_of)
            self.seen["in sequence"] += 1
        assert answer.assigned_base_offset == len(log)  # invariant 5: no gap, nothing twice
        count = row.last_offset - row.base_offset + 1
        log.extend((object_id, row.byte_offset, number) for number in range(count))

    async def retry(self) -> None:
        if not self.sent:
            return
        broker, request, told = self.random.choice(self.sent[-100:])
        response = await broker.again(request)
        if isinstance(told, int):
            assert response.error_code in (55, 77)
        elif response.error_code == 0:
            assert results(response) == told  # invariant 6, over objects
            self.seen["retried"] += 1
        else:
            self.seen[f"retried {response.error_code}"] += 1
            forgotten = request.lease_id not in self.world.coordinator.state.leases
            assert response.error_code == 46 or (response.error_code == 55 and forgotten)

    async def arrive_late(self) -> None:
        if self.late:
            await self.send(*self.late.pop(self.random.randrange(len(self.late))))

    async def delete_some(self) -> None:
        topic, partition = key = self.random.choice(sorted(self.logs))
        offset = self.random.randint(0, len(self.logs[key]))
        code, low = await delete_records(self.world, offset, topic, partition)
        self.starts[key] = max(self.starts[key], offset)
        assert (code, low) == (0, self.starts[key])

    async def delete_topic(self) -> None:
        topic = self.random.choice(self.topics)
        self.topics[self.topics.index(topic)] = UUID(int=topic.int + 2)
        assert await delete(self.world, topic) == 0
        for partition in range(PARTITIONS):
            del self.logs[topic, partition], self.starts[topic, partition]
        await self.create(UUID(int=topic.int + 2))

    async def pass_time(self) -> None:
        await self.world.advance(self.random.choice((0, 1_000, 70_000, 300_000)))

    async def lead_anew(self) -> None:
        self.world.jump(self.random.choice((0, 0, 10**7, -(10**7))))
        await self.world.restart()
        self.seen["leaders"] += 1

    async def new_epoch(self) -> None:
        broker = self.random.choice(self.brokers)
        newer = Broker(self.world, broker.broker_id, broker.epoch + 1)
        assert (await newer.acquire(20)).error_code == 0
        self.brokers[self.brokers.index(broker)] = newer

    async def is_it_safe(self) -> None:
        if not self.store:
            return
        object_id = self.random.choice(sorted(self.store))
        if await self.brokers[0].is_safe(object_id):
            self.delete_from_store({object_id})
            self.seen["safe"] += 1

    def delete_from_store(self, object_ids: set[int]) -> None:
        self.gone |= object_ids & self.store
        self.store -= object_ids

    async def upload_again(self) -> None:
        """An upload that a broker gave up long ago reaches the store."""
        if self.gone:
            self.store.add(self.random.choice(sorted(self.gone)))

    async def sweep(self) -> None:
        """Mark any object as an orphan: live data must survive it."""
        believed = self.random.sample(sorted(self.store | self.gone), k=min(3, len(self.store)))
        codes = await mark_orphans(self.world, *believed)
        assert isinstance(codes, list)
        assert set(codes) <= {0, 44}
        self.seen.update(f"swept {code}" for code in codes)

    async def clean(self, limit: int = 10) -> None:
        files = await self.brokers[0].files(limit=limit)
        self.delete_from_store(set(files))
        assert set(await self.brokers[0].deleted(*files)) <= {0}
        self.seen["cleaned"] += len(files)

    # --- what must be true

    async def check(self) -> None:
        (topic, partition), log = self.random.choice(sorted(self.logs.items()))
        start = self.starts[topic, partition]
        found = (await find(self.world, (partition, start), topic=topic))[0]
        assert (found.log_start_offset, found.high_watermark) == (start, len(log))
        told: list[int] = []
        for run in found.batches:
            object_id = KEYS.object_id(run.object_key)
            assert object_id in self.store, f"{object_id} is referred to and gone"  # invariant 7
            span = range(run.base_offset, run.last_offset + 1)
            for offset in span:
                held, place, _ = log[offset]
                assert held == object_id
                assert run.byte_offset <= place < run.byte_offset + run.size
            told += span
        assert told[-1:] == ([len(log) - 1] if start < len(log) else [])
        assert sorted(set(told)) == told  # every offset once, rising

    async def end(self) -> None:
        """Delete everything and close all brokers: then the store is empty (invariant 7)."""
        self.late.clear()
        for topic in self.topics:
            await delete(self.world, topic)
        for broker in self.brokers:
            await broker.acquire(1)
            await broker.release()
        for _ in range(200):
            await self.world.advance(100_000)
            await mark_orphans(self.world, *self.store)
            await self.clean()
        assert not self.store
        state = self.world.coordinator.state
        assert not state.objects
        assert not state.leases
        assert not state.answers
        await self.world.advance(2 * SETTINGS.tombstone_retention_ms)
        assert len(self.world.coordinator.state.checkpoint()) == 3  # counters, two brokers


def lived(seed: int) -> Counter[str]:
    """The events that a workload covered."""
    life = Life(seed)
    asyncio.run(life.run())
    return life.seen


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_workload_keeps_the_batch_coordinators_invariants(seed: int) -> None:
    lived(seed)


def test_the_random_coordinator_workload_covers_retries_refusals_and_leader_changes() -> None:
    seen = lived(0)
    wanted = ("duplicates", "in sequence", "refused 55", "refused 77", "batch refused 45", "burnt")
    missing = [
        what
        for what in (*wanted, "leaders", "cleaned", "safe", "swept 0", "swept 44")
        if not seen[what]
    ]
    assert not missing, f"{missing} never happened: {dict(seen)}"
    assert seen["retried 46"] or seen["retried"], dict(seen)
