"""The contract about transactions: numbers, markers, and what a partition answers.

Source: docs/design/transactions-batches.md.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from records.rpc.batch_coordinator import (
    CommitBatch,
    CommitBatchesRequest,
    DescribeDisklessProducersRequest,
    FindBatchesRequest,
    FindBatchesResponse,
    ListDisklessOffsetsRequest,
    TransactionalBatch,
)
from records.rpc.transaction_markers import (
    TransactionMarker,
    WriteTransactionMarkersRequest,
    WriteTransactionMarkersResponse,
)
from tests.coordinator.batch.actors import (
    OTHER_TOPIC,
    TOPIC,
    Broker,
    batch,
    create,
    delete,
    delete_records,
    groups,
    results,
)
from tests.coordinator.batch.contract_base import Told
from tests.coordinator.batch.rewriter_actor import Range, Rewriter, describe
from tests.coordinator.batch.subjects import SETTINGS, World

ABORT, COMMIT = 0, 1
UNSUPPORTED, INVALID, NOT_AVAILABLE = 35, 42, 15
OUT_OF_ORDER, FENCED, INVALID_TXN_STATE, NOT_ENOUGH_REPLICAS = 45, 47, 48, 19
UNKNOWN_ID, UNKNOWN_PARTITION = 100, 3

LONG_AGO_MS = 0
PARTITION = 0
EXPIRATION_MS = SETTINGS.producer_expiration_ms


async def begin(world: World) -> Broker:
    """One topic, and a broker with a lease, at the level of transactions."""
    world.view.raise_level(4)
    await create(world)
    broker = Broker(world)
    await broker.acquire()
    return broker


async def send(
    broker: Broker,
    *batches: CommitBatch,
    numbers: tuple[int, ...] = (),
    version: int = 1,
    began_ms: int = 2**62,
    partition: int = PARTITION,
) -> list[tuple[int, int]]:
    """Commit batches, those with a number as transactional; return error codes and offsets."""
    object_id, broker.next_id = broker.next_id, broker.next_id + 1
    proofs = tuple(
        TransactionalBatch(index, number, version, began_ms)
        for index, number in enumerate(numbers)
        if number >= 0
    )
    broker.last = CommitBatchesRequest(
        broker_id=broker.broker_id,
        broker_epoch=broker.epoch,
        lease_id=broker.lease_id,
        object_id=object_id,
        object_format=1,
        object_size=1_000,
        topics=groups(*batches, partition=partition),
        transactional=proofs,
    )
    response = await broker.world.coordinator.call(broker.last)
    return [(one.error_code, one.assigned_base_offset) for one in results(response)]


def marker(
    number: int,
    outcome: int = COMMIT,
    *,
    producer: int = 7,
    epoch: int = 0,
    partition: int = PARTITION,
    coordinator_epoch: int = 3,
) -> TransactionMarker:
    """A marker for a partition of the first topic."""
    return TransactionMarker(0, partition, producer, epoch, number, outcome, coordinator_epoch)


async def mark(
    world: World, *markers: TransactionMarker, topic: UUID = TOPIC
) -> WriteTransactionMarkersResponse:
    """Write markers for partitions of one topic."""
    request = WriteTransactionMarkersRequest(
        coordinator_partition=0, topic_ids=(topic,), markers=markers
    )
    return await world.coordinator.call(request)


async def codes(world: World, *markers: TransactionMarker, topic: UUID = TOPIC) -> list[int]:
    """Write markers, and return the code of each."""
    response = await mark(world, *markers, topic=topic)
    assert response.error_code == 0, response
    return list(response.marker_error_codes)


async def look(
    world: World, offset: int = 0, *, isolation: int = 1
) -> FindBatchesResponse.Topic.Partition:
    """FindBatches of the first partition."""
    partition = FindBatchesRequest.Topic.Partition(
        partition_index=PARTITION, offset=offset, max_bytes=10**6
    )
    request = FindBatchesRequest(
        topics=(FindBatchesRequest.Topic(topic_id=TOPIC, partitions=(partition,)),),
        max_bytes=10**6,
        isolation_level=isolation,
    )
    return (await world.coordinator.call(request)).responses[0].partitions[0]


async def stable(world: World) -> int:
    """The last stable offset of the first partition, asked in three ways that agree."""
    found = await look(world)
    at = found.high_watermark if found.last_stable_offset == -1 else found.last_stable_offset
    assert await listed(world) == at
    assert (await describe(world)).last_stable_offset == at
    return at


async def listed(world: World, timestamp: int = -1) -> int:
    """ListOffsets of the first partition, for a reader of committed records."""
    partition = ListDisklessOffsetsRequest.Topic.Partition(
        partition_index=PARTITION, timestamp=timestamp
    )
    request = ListDisklessOffsetsRequest(
        topics=(ListDisklessOffsetsRequest.Topic(topic_id=TOPIC, partitions=(partition,)),),
        isolation_level=1,
    )
    return (await world.coordinator.call(request)).responses[0].partitions[0].offset


async def producers(world: World) -> dict[int, tuple[int, int, int, int]]:
    """Epoch, open number, its first offset and coordinator epoch of each known producer."""
    request = DescribeDisklessProducersRequest(
        coordinator_partition=0,
        topics=(DescribeDisklessProducersRequest.Topic(topic_id=TOPIC, partitions=(PARTITION,)),),
    )
    answer = await world.coordinator.call(request)
    return {
        one.producer_id: (
            one.producer_epoch,
            one.open_number,
            one.current_txn_start_offset,
            one.coordinator_epoch,
        )
        for one in answer.responses[0].partitions[0].producers
    }


def entries(found: FindBatchesResponse.Topic.Partition) -> list[tuple[int, int]]:
    """The aborted transactions of an answer."""
    return [(one.producer_id, one.first_offset) for one in found.aborted]


def of(producer: int, first: int = 0, records: int = 1, **fields: Any) -> CommitBatch:
    """A batch of a producer, at byte offset 0 unless it says another."""
    return batch(fields.pop("at", 0), records, producer=producer, first=first, **fields)


class TransactionStories(Told):
    """Numbers, markers, the last stable offset and aborted transactions."""

    def test_the_last_stable_offset_waits_for_the_marker_of_the_oldest_open_transaction(
        self,
    ) -> None:
        async def story(world: World) -> None:
            broker = await begin(world)
            assert await send(broker, batch(0, 5)) == [(0, 0)]
            assert await send(broker, of(7, records=2), numbers=(1,)) == [(0, 5)]
            assert await send(broker, of(8), numbers=(4,)) == [(0, 7)]
            assert await stable(world) == 5
            assert await codes(world, marker(4, producer=8)) == [0]
            assert await stable(world) == 5
            await world.restart()
            assert await codes(world, marker(1)) == [0]
            assert await stable(world) == 10
            run = (await look(world, 9)).batches[0]
            assert (run.object_format, run.object_key, run.size, run.record_count) == (0, "", 0, 1)
            assert (run.producer_id, run.producer_epoch, run.marker_outcome) == (7, 0, COMMIT)
            assert (run.base_offset, run.last_offset, run.coordinator_epoch) == (9, 9, 3)
            await world.checkpoint()

        self.tell(story)

    def test_read_committed_look_ups_end_at_the_last_run_below_the_last_stable_offset(self) -> None:
        async def story(world: World) -> None:
            broker = await begin(world)
            together = (of(8, at=0), of(7, at=100), of(7, 1, at=200), of(9, at=300))
            sent = await send(broker, *together, numbers=(2, 1, 1, -1))
            assert sent == [(0, 0), (0, 1), (0, 2), (0, 3)]
            assert await codes(world, marker(2, producer=8)) == [0]
            found = await look(world)
            assert [(run.base_offset, run.last_offset) for run in found.batches] == [(0, 0)]
            assert found.last_stable_offset == 1 < found.high_watermark
            assert (await look(world, 1)).batches == ()
            assert len((await look(world, isolation=0)).batches) == 4
            assert await listed(world, timestamp=1) == -1  # the marker, above the stable offset
            assert await codes(world, marker(1)) == [0]
            assert await listed(world, timestamp=1) == 4

        self.tell(story)

    def test_find_batches_returns_an_aborted_transaction_whose_records_are_in_the_response(
        self,
    ) -> None:
        async def story(world: World) -> None:
            broker = await begin(world)
            await send(broker, of(7), numbers=(1,))
            await send(broker, of(8), numbers=(5,))
            assert await codes(world, marker(5, ABORT, producer=8), marker(1, ABORT)) == [0, 0]
            await send(broker, of(7, 1), numbers=(2,))
            assert await codes(world, marker(2)) == [0]
            await world.restart()
            assert entries(await look(world)) == [(8, 1), (7, 0)]
            assert entries(await look(world, 3)) == [(7, 0)]  # up to its marker, at 3
            assert entries(await look(world, 4)) == []
            assert entries(await look(world, isolation=0)) == []
            await delete_records(world, 3)
            assert entries(await look(world, 3)) == [(7, 0)]
            await delete_records(world, 4)
            assert entries(await look(world, 4)) == []
            await world.checkpoint()

        self.tell(story)

    def test_an_open_transaction_whose_records_are_deleted_holds_back_later_records(self) -> None:
        async def story(world: World) -> None:
            broker = await begin(world)
            await send(broker, of(7, records=2), batch(at=100), numbers=(1,))
            assert await stable(world) == 0
            await delete_records(world, 1)  # inside of the transaction's only batch
            assert await stable(world) == 1
            await delete_records(world, 2)
            assert await stable(world) == 2
            await world.restart()
            assert await stable(world) == 2
            assert (await look(world, 2)).batches == ()
            await world.checkpoint()
            assert await codes(world, marker(1, ABORT)) == [0]
            assert await stable(world) == 4
            assert entries(await look(world, 2)) == [(7, 0)]  # up to its marker, at 3

        self.tell(story)

    def test_a_repeated_transaction_marker_writes_no_record_and_succeeds(self) -> None:
        async def story(world: World) -> None:
            broker = await begin(world)
            await send(broker, of(7), numbers=(1,))
            assert await codes(world, marker(1), marker(1, partition=1)) == [0, 0]
            assert await stable(world) == 2
            assert await codes(world, marker(1), marker(1, partition=1)) == [0, 0]
            assert await stable(world) == 2
            await world.restart()
            await send(broker, of(7, 1), numbers=(2,))
            assert await codes(world, marker(1), marker(1, partition=1)) == [0, 0]
            assert await stable(world) == 2
            assert (await producers(world))[7] == (0, 2, 2, 3)

        self.tell(story)

    def test_a_marker_of_a_transaction_without_batches_refuses_its_late_batches(self) -> None:
        async def story(world: World) -> None:
            broker = await begin(world)
            assert await codes(world, marker(3, ABORT)) == [0]
            assert await stable(world) == 1
            assert entries(await look(world)) == []
            assert await send(broker, of(7), numbers=(3,)) == [(NOT_ENOUGH_REPLICAS, -1)]
            assert await send(broker, of(7, 5), numbers=(4,)) == [(OUT_OF_ORDER, -1)]
            assert await send(broker, of(7), numbers=(4,)) == [(0, 1)]

        self.tell(story)

    def test_the_coordinator_refuses_a_batch_of_an_ended_or_other_transaction_retriably(
        self,
    ) -> None:
        async def story(world: World) -> None:
            broker = await begin(world)
            await send(broker, of(7), numbers=(2,))
            assert await send(broker, of(7, 1), numbers=(3,)) == [(NOT_ENOUGH_REPLICAS, -1)]
            assert await send(broker, of(7, 1)) == [(INVALID_TXN_STATE, -1)]
            assert await send(broker, of(7), numbers=(1,)) == [(0, 0)]  # a duplicate, first of all
            assert await codes(world, marker(2, epoch=1)) == [0]
            assert await send(broker, of(7, 1), numbers=(2,)) == [(NOT_ENOUGH_REPLICAS, -1)]
            assert await send(broker, of(7, 1), numbers=(3,)) == [(FENCED, -1)]
            assert await send(broker, of(7, epoch=1), numbers=(3,)) == [(0, 2)]

        self.tell(story)

    def test_a_transaction_marker_of_the_same_epoch_keeps_the_producers_sequence(self) -> None:
        async def story(world: World) -> None:
            broker = await begin(world)
            await send(broker, of(7), numbers=(1,))
            await codes(world, marker(1))
            assert await send(broker, of(7), numbers=(2,)) == [(0, 0)]  # a late duplicate
            assert await send(broker, of(7, 1), numbers=(2,)) == [(0, 2)]
            await codes(world, marker(2, epoch=1))
            assert await send(broker, of(7, 2, epoch=1), numbers=(3,)) == [(OUT_OF_ORDER, -1)]
            assert await send(broker, of(7, epoch=1), numbers=(3,)) == [(0, 4)]

        self.tell(story)

    def test_a_marker_with_a_higher_transaction_number_does_not_end_the_lower_open_transaction(
        self,
    ) -> None:
        async def story(world: World) -> None:
            broker = await begin(world)
            await send(broker, of(7), numbers=(1,))
            assert await codes(world, marker(2)) == [0]
            assert await stable(world) == 0
            assert (await producers(world))[7] == (0, 1, 0, 3)
            assert await send(broker, of(7, 1), numbers=(1,)) == [(NOT_ENOUGH_REPLICAS, -1)]
            assert await send(broker, of(7, 1), numbers=(3,)) == [(NOT_ENOUGH_REPLICAS, -1)]
            await world.restart()
            assert await codes(world, marker(1, ABORT)) == [0]
            assert await stable(world) == 2
            assert entries(await look(world)) == [(7, 0)]
            assert await send(broker, of(7, 1), numbers=(3,)) == [(0, 2)]
            await world.checkpoint()

        self.tell(story)

    def test_only_an_old_epoch_of_tv1_may_begin_above_sequence_0_without_producer_state(
        self,
    ) -> None:
        async def story(world: World) -> None:
            broker = await begin(world)
            world.view.handed_out[7] = LONG_AGO_MS
            await world.advance(1)
            old = {"numbers": (1,), "began_ms": world.now_ms() - EXPIRATION_MS - 60_000}
            assert await send(broker, of(7, 9), **old, version=2) == [(OUT_OF_ORDER, -1)]
            young = world.now_ms() - EXPIRATION_MS // 2
            assert await send(broker, of(7, 9), numbers=(1,), began_ms=young) == [
                (OUT_OF_ORDER, -1)
            ]
            assert await send(broker, of(7, 9), **old) == [(0, 0)]

        self.tell(story)

    def test_a_producer_with_an_open_transaction_does_not_expire(self) -> None:
        async def story(world: World) -> None:
            broker = await begin(world)
            await send(broker, of(7), of(8, at=100), numbers=(1,))
            for _ in range(3):
                await world.advance(EXPIRATION_MS)
                await world.advance(1)
            assert set(await producers(world)) == {7}
            await codes(world, marker(1))
            await world.advance(EXPIRATION_MS + 60_000)
            await world.advance(1)
            await world.advance(1)
            assert await producers(world) == {}
            assert await stable(world) == 3

        self.tell(story)

    def test_markers_for_unknown_partitions_and_for_deleted_topics_get_different_codes(
        self,
    ) -> None:
        async def story(world: World) -> None:
            broker = await begin(world)
            assert await codes(world, marker(1), topic=OTHER_TOPIC) == [UNKNOWN_PARTITION]
            assert await codes(world, marker(1, partition=9)) == [UNKNOWN_PARTITION]
            await send(broker, of(7), numbers=(1,))
            await delete(world)
            assert await codes(world, marker(1)) == [UNKNOWN_ID]
            await world.advance(1)
            await world.checkpoint()

        self.tell(story)

    def test_the_coordinator_refuses_only_the_malformed_markers_of_a_request(self) -> None:
        async def story(world: World) -> None:
            await begin(world)
            wrong = (
                marker(-1),
                marker(1, 2),
                marker(1, producer=-1),
                marker(1, epoch=-1),
                marker(1)._replace(topic_index=1),
            )
            answered = await codes(world, *wrong, marker(1), marker(1, ABORT))
            assert answered == [INVALID] * 5 + [0, INVALID]
            assert await stable(world) == 1
            response = await mark(world, *(marker(2),) * 10_001)
            assert response.error_code == 10

        self.tell(story)

    def test_the_coordinator_refuses_markers_and_transactional_batches_below_the_feature_level(
        self,
    ) -> None:
        async def story(world: World) -> None:
            broker = await begin(world)
            world.view.raise_level(3)
            response = await mark(world, marker(1))
            assert (response.error_code, response.marker_error_codes) == (UNSUPPORTED, ())
            assert "esker.version 4" in (response.error_message or "")
            assert await send(broker, of(7)) == [(0, 0)]

        self.tell(story)

    def test_the_coordinator_replaces_runs_only_below_the_last_stable_offset(self) -> None:
        async def story(world: World) -> None:
            broker = await begin(world)
            await send(broker, of(7, records=10), numbers=(1,))
            await codes(world, marker(1, ABORT))
            await send(broker, of(7, 10, 10), numbers=(2,))
            rewriter = Rewriter(world)
            assert (await rewriter.acquire()).error_code == 0
            await world.advance(1)
            above = await rewriter.replace(Range(11, 21))
            assert [one.error_code for one in above] == [1]
            below = await rewriter.replace(Range(0, 11))
            assert [one.error_code for one in below] == [0]
            found = await look(world)
            assert [(run.object_format, run.record_count) for run in found.batches] == [(2, 11)]
            assert entries(found) == [(7, 0)]
            await world.restart()
            await world.checkpoint()

        self.tell(story)
