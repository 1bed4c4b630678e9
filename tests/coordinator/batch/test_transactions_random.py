"""Random transactions: what a partition answers, against a plain list of what was appended.

The state in memory decides and applies; a database applies the same records. After every few steps
both have the same checkpoint, and a state that is loaded from it is the same.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import NamedTuple

import pytest

from coordinator.batch.checkpoint import checkpoint_values
from coordinator.batch.decide.markers import decide_markers
from coordinator.batch.memory import InMemoryCoordinator, InMemoryState
from coordinator.batch.reads import find_batches
from coordinator.batch.sqlite import database
from coordinator.batch.sqlite.source import StoreSource
from coordinator.batch.sqlite.store import Store
from coordinator.batch.transactions import ABORTED
from records.diskless import TransactionMarkersRecord
from records.rpc.batch_coordinator import (
    CommitBatch,
    CommitBatchesRequest,
    DeleteDisklessRecordsRequest,
    FindBatchesRequest,
    FindBatchesResponse,
    TransactionalBatch,
)
from records.rpc.transaction_markers import TransactionMarker, WriteTransactionMarkersRequest
from tests.coordinator.batch.actors import TOPIC, Broker, batch, create, groups
from tests.coordinator.batch.subjects import SETTINGS, MemoryWorld
from tests.examples import seeds

PRODUCERS = 3
NO_NUMBER = -1


class Appended(NamedTuple):
    """A batch or marker of the only partition."""

    first: int
    end: int
    producer: int
    number: int  # NO_NUMBER: not transactional
    outcome: int = -1  # of a marker


class Life:
    """A coordinator, its database, and the list of what it appended."""

    def __init__(self, path: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = MemoryWorld()
        self.world.view.raise_level(4)
        self.store = Store(path, database.create(path, flushes=False), span_runs=4)
        self.applied = 0
        self.appended: list[Appended] = []
        self.log_start = 0
        self.next_number = [1] * PRODUCERS
        self.sequence = [0] * PRODUCERS
        self.object_id = self.lease_id = -1

    @property
    def coordinator(self) -> InMemoryCoordinator:
        return self.world.coordinator

    async def begin(self) -> None:
        await create(self.world)
        broker = Broker(self.world)
        await broker.acquire(1_000)
        self.lease_id, self.object_id = broker.lease_id, broker.first

    def open_number(self, producer: int) -> int:
        """The transaction that the list says is open."""
        found = NO_NUMBER
        for one in self.appended:
            if one.producer == producer and one.number != NO_NUMBER:
                found = one.number if one.outcome < 0 else NO_NUMBER
        return found

    def number_of_batch(self, producer: int) -> int:
        """Mostly the open number or the next; sometimes an old one, or none."""
        now = self.open_number(producer)
        if now == NO_NUMBER:
            now = self.next_number[producer]
        return self.rng.choice((now, now, now, now, max(1, now - 1), now + 1, NO_NUMBER))

    async def commit(self) -> None:
        batches, numbers = [], []
        sequences = dict(enumerate(self.sequence))
        for index in range(self.rng.randint(1, 4)):
            producer, records = self.rng.randrange(-1, PRODUCERS), self.rng.randint(1, 3)
            first = sequences.get(producer, 0)
            number = NO_NUMBER if producer < 0 else self.number_of_batch(producer)
            batches.append(batch(100 * index, records, producer=producer, first=first))
            numbers.append(number)
            if producer >= 0 and self.accepts(producer, number, batches, numbers):
                sequences[producer] = first + records
        request = CommitBatchesRequest(
            broker_id=1, broker_epoch=1, lease_id=self.lease_id, object_id=self.object_id,
            object_format=1, object_size=1_000, topics=groups(*batches),
            transactional=tuple(
                TransactionalBatch(index, number, 1, 2**62)
                for index, number in enumerate(numbers) if number != NO_NUMBER
            ),
        )  # fmt: skip
        self.object_id += 1
        answer = await self.coordinator.call(request)
        for one, number, result in zip(
            batches, numbers, answer.topics[0].partitions[0].results, strict=True
        ):
            if result.error_code or result.is_duplicate:
                continue
            first, records = result.assigned_base_offset, one.last_offset + 1
            self.appended.append(Appended(first, first + records, one.producer_id, number))
            if one.producer_id >= 0:
                self.sequence[one.producer_id] = one.base_sequence + records
            if number != NO_NUMBER:
                ended = [
                    there.number
                    for there in self.appended
                    if there.producer == one.producer_id and there.outcome >= 0
                ]
                assert number > max(ended, default=0), "a batch of an ended transaction"
                self.next_number[one.producer_id] = number

    def accepts(
        self, producer: int, number: int, batches: list[CommitBatch], numbers: list[int]
    ) -> bool:
        """Whether a batch will be accepted, as far as later ones of its object depend on it."""
        now = self.open_number(producer)
        for one, other in zip(batches[:-1], numbers[:-1], strict=True):
            if one.producer_id == producer and other != NO_NUMBER and now == NO_NUMBER:
                now = other if other >= self.next_number[producer] else now
        if number == NO_NUMBER:
            return now == NO_NUMBER
        return number == now or (now == NO_NUMBER and number >= self.next_number[producer])

    def mark(self) -> None:
        rows = []
        for producer in self.rng.sample(range(PRODUCERS), self.rng.randint(1, PRODUCERS)):
            now = self.open_number(producer)
            number = now if now != NO_NUMBER else self.next_number[producer]
            number = self.rng.choice((number, number, number, max(1, number - 1)))
            rows.append(TransactionMarker(0, 0, producer, 0, number, self.rng.randrange(2), 5))
        request = WriteTransactionMarkersRequest(
            coordinator_partition=0, topic_ids=(TOPIC,), markers=tuple(rows)
        )
        decision = decide_markers(request, self.coordinator.state, self.coordinator.context())
        assert set(self.coordinator.commit(decision).marker_error_codes) == {0}
        for record in decision.records:
            assert isinstance(record, TransactionMarkersRecord)
            for offset, producer, number, outcome in zip(
                record.offsets,
                record.producer_ids,
                record.transaction_numbers,
                record.outcomes,
                strict=True,
            ):
                assert offset >= 0, "no lower number was left open"
                self.appended.append(Appended(offset, offset + 1, producer, number, outcome))
                self.next_number[producer] = max(self.next_number[producer], number + 1)

    async def trim(self) -> None:
        end = self.appended[-1].end if self.appended else 0
        offset = self.rng.randint(self.log_start, end)
        partition = DeleteDisklessRecordsRequest.Topic.Partition(partition_index=0, offset=offset)
        topic = DeleteDisklessRecordsRequest.Topic(topic_id=TOPIC, partitions=(partition,))
        await self.coordinator.call(DeleteDisklessRecordsRequest(topics=(topic,)))
        self.log_start = offset

    # --- what must be true ----------------------------------------------------------------------

    def transactions(self) -> dict[tuple[int, int], list[Appended]]:
        found: dict[tuple[int, int], list[Appended]] = {}
        for one in self.appended:
            if one.number != NO_NUMBER:
                found.setdefault((one.producer, one.number), []).append(one)
        return found

    def check(self) -> None:
        end = self.appended[-1].end if self.appended else 0
        transactions = self.transactions().values()
        open_ones = [parts[0].first for parts in transactions if parts[-1].outcome < 0]
        stable = max(self.log_start, min([*open_ones, end]))
        offset = self.rng.randint(self.log_start, end)
        found = self.look(offset)
        told = found.high_watermark if found.last_stable_offset < 0 else found.last_stable_offset
        assert (told, found.high_watermark) == (stable, end)
        if offset >= stable:
            assert found.batches == ()
            return
        assert found.batches[-1].last_offset + 1 == stable
        expected = sorted(
            (parts[-1].first, producer, parts[0].first)
            for (producer, _), parts in self.transactions().items()
            if len(parts) > 1
            and parts[-1].outcome == ABORTED
            and parts[-1].first >= offset
            and parts[0].first < stable
        )
        told_entries = [(one.producer_id, one.first_offset) for one in found.aborted]
        assert told_entries == [(producer, first) for _, producer, first in expected]
        markers = [
            (one.first, one.producer, one.outcome)
            for one in self.appended
            if one.outcome >= 0 and offset <= one.first < stable
        ]
        assert markers == [
            (run.base_offset, run.producer_id, run.marker_outcome)
            for run in found.batches
            if run.object_format == 0
        ]

    def look(self, offset: int) -> FindBatchesResponse.Topic.Partition:
        partition = FindBatchesRequest.Topic.Partition(
            partition_index=0, offset=offset, max_bytes=10**6
        )
        request = FindBatchesRequest(
            topics=(FindBatchesRequest.Topic(topic_id=TOPIC, partitions=(partition,)),),
            max_bytes=10**6,
            isolation_level=1,
        )
        state = self.coordinator.state
        told = find_batches(request, state, state, SETTINGS)
        assert find_batches(request, self.store, self.store, SETTINGS) == told
        return told.responses[0].partitions[0]

    def compare(self) -> None:
        state = self.coordinator.state
        state.check_invariants()
        values = state.checkpoint()
        self.store.flush()
        assert list(checkpoint_values(StoreSource(self.store))) == values
        assert vars(InMemoryState.load(values, state.applied_offset)) == vars(state)

    def replicate(self) -> None:
        for _, record in self.coordinator.log[self.applied :]:
            self.store.apply(record)
        self.applied = len(self.coordinator.log)


@pytest.mark.parametrize("seed", seeds(12))
def test_random_transactions_of_a_partition_agree_with_a_list_model(
    tmp_path: Path, seed: int
) -> None:
    asyncio.run(live(tmp_path, seed))


async def live(tmp_path: Path, seed: int) -> None:
    """One life of a partition with three producers."""
    life = Life(tmp_path / "state.db", seed)
    await life.begin()
    for step in range(60):
        match life.rng.randrange(10):
            case 0:
                await life.trim()
            case 1 | 2 | 3:
                life.mark()
            case _:
                await life.commit()
        life.replicate()
        life.check()
        if step % 10 == 0:
            life.compare()
    life.compare()
    life.store.close()
    assert any(one.outcome == ABORTED for one in life.appended), f"seed {seed}: none was aborted"
