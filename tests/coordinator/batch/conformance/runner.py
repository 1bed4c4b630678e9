"""Runs the conformance table against any batch coordinator.

A coordinator is handed over as a `Subject`, which can let time pass and begin again. Every row has
a topic, a broker and producers of its own, so one coordinator may run the whole table. With
`restarts` it begins again after every step: what a row claims must not hang on memory.

Source: docs/design/batch-coordinator.md#one-interface-three-implementations.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final, Protocol
from uuid import UUID

from coordinator.batch.interface import BatchCoordinator
from records.rpc.batch_coordinator import (
    CommitBatch,
    CommitBatchesRequest,
    CommitBatchResult,
    DeleteDisklessRecordsRequest,
    FindBatchesRequest,
    InitDisklessTopicsRequest,
    ListDisklessOffsetsRequest,
)
from records.rpc.objects import AcquireObjectLeaseRequest
from tests.coordinator.batch.conformance.steps import (
    AGEING,
    ANCIENT,
    LAST,
    At,
    Batch,
    Delete,
    Duplicate,
    Find,
    Lookup,
    Outcome,
    Put,
    Refused,
    Row,
    Step,
    Wait,
    describe,
)

SIZE_BYTES: Final = 100
"""Of every batch."""

PARTITIONS: Final = 2
"""Of every row's topic."""

LEASE_IDS: Final = 100

_PRODUCERS_OF_A_ROW: Final = 10


class Subject(Protocol):
    """A coordinator under test, and its world."""

    @property
    def coordinator(self) -> BatchCoordinator:
        """The coordinator under test; another one after `restart`."""

    def handed_out_ms(self, producer_id: int, ago_ms: int | None) -> None:
        """Set how long ago the cluster view has a producer id handed out; None: unknown."""

    async def advance(self, ms: int) -> None:
        """Let time pass, and the leader's maintenance do what is due."""

    async def restart(self) -> None:
        """Begin again from what is durable, under a new leader."""


class Nonconformity(AssertionError):
    """A coordinator answered otherwise than a row says."""

    def __init__(self, row: Row, step: Step, answer: object) -> None:
        super().__init__(f"{row.claim} ({row.source}): {describe(step)}; it answered {answer}")
        self.row = row
        self.step = step
        self.answer = answer


async def run_row(row: Row, number: int, subject: Subject, *, restarts: bool = False) -> None:
    """Run one row. Args: number: tells it from every other row that this subject has run.

    Raises:  Nonconformity.
    """
    run = _Run(row, number, subject)
    await run.begin()
    for step in row.steps:
        await run.take(step)
        if restarts:
            await subject.restart()


async def run_table(
    rows: Sequence[Row], subject: Subject, *, restarts: bool = False
) -> list[Nonconformity]:
    """Run all rows against one coordinator; returns what was wrong."""
    wrong = []
    for number, row in enumerate(rows):
        try:
            await run_row(row, number, subject, restarts=restarts)
        except Nonconformity as found:
            wrong.append(found)
    return wrong


class _Run:
    """One row in progress."""

    def __init__(self, row: Row, number: int, subject: Subject) -> None:
        self.row = row
        self.number = number
        self.subject = subject
        self.topic_id = UUID(int=0xC0FFEE << 64 | number + 1)
        self.lease_id = self.next_object_id = -1

    async def begin(self) -> None:
        topic = InitDisklessTopicsRequest.Topic(
            topic_id=self.topic_id, topic_name=f"row-{self.number}", num_partitions=PARTITIONS
        )
        request = InitDisklessTopicsRequest(controller_epoch=1, topics=(topic,))
        created = await self.subject.coordinator.call(request)
        assert created.responses[0].error_code == 0, created
        self.subject.handed_out_ms(self._producer(ANCIENT), None)
        self.subject.handed_out_ms(self._producer(AGEING), 0)
        await self._lease()

    async def _lease(self) -> None:
        request = AcquireObjectLeaseRequest(
            coordinator_partition=0,
            broker_id=1_000 + self.number,
            broker_epoch=1,
            object_count=LEASE_IDS,
        )
        granted = await self.subject.coordinator.call(request)
        assert granted.error_code == 0, granted
        self.lease_id, self.next_object_id = granted.lease_id, granted.first_object_id

    def _producer(self, name: int) -> int:
        return name if name < 0 else self.number * _PRODUCERS_OF_A_ROW + name

    async def take(self, step: Step) -> None:
        match step:
            case Put(batches):
                await self._put(step, batches)
            case Wait(ms):
                await self.subject.advance(ms)
                await self._lease()  # the one before may be over
            case Delete():
                await self._delete(step)
            case Lookup():
                await self._lookup(step)
            case Find():
                await self._find(step)

    def _check(self, step: Step, expected: object, answer: object) -> None:
        if answer != expected:
            raise Nonconformity(self.row, step, answer)

    async def _put(self, step: Put, batches: Sequence[Batch]) -> None:
        topic = CommitBatchesRequest.Topic
        at = 0
        groups = []
        for partition, members in groupby(batches, key=lambda batch: batch.partition):
            rows = []
            for batch in members:
                rows.append(self._wire(batch, at))
                at += SIZE_BYTES
            groups.append(topic.Partition(partition_index=partition, batches=tuple(rows)))
        request = CommitBatchesRequest(
            broker_id=1_000 + self.number,
            broker_epoch=1,
            lease_id=self.lease_id,
            object_id=self.next_object_id,
            object_format=1,
            object_size=at,
            topics=(topic(topic_id=self.topic_id, partitions=tuple(groups)),),
        )
        self.next_object_id += 1
        response = await self.subject.coordinator.call(request)
        self._check(step, 0, response.error_code)
        results = [r for t in response.topics for p in t.partitions for r in p.results]
        outcomes = [_outcome(result) for result in results]
        self._check(step, [batch.outcome for batch in batches], outcomes)
        again = await self.subject.coordinator.call(request)
        self._check(step, response, again)  # a retry of the object gets the first answer

    def _wire(self, batch: Batch, at: int) -> CommitBatch:
        return CommitBatch(
            byte_offset=at,
            size=SIZE_BYTES,
            base_offset=0,
            last_offset=batch.records - 1,
            batch_max_timestamp=batch.time,
            message_timestamp_type=int(batch.append_time),
            producer_id=self._producer(batch.producer),
            producer_epoch=batch.epoch,
            base_sequence=batch.first,
            last_sequence=(batch.first + batch.records - 1) & LAST,
        )

    async def _delete(self, step: Delete) -> None:
        topic = DeleteDisklessRecordsRequest.Topic
        group = topic.Partition(partition_index=0, offset=step.offset)
        request = DeleteDisklessRecordsRequest(
            topics=(topic(topic_id=self.topic_id, partitions=(group,)),)
        )
        response = await self.subject.coordinator.call(request)
        answer = response.responses[0].partitions[0]
        self._check(
            step, (step.error_code, step.low_watermark), (answer.error_code, answer.low_watermark)
        )

    async def _lookup(self, step: Lookup) -> None:
        topic = ListDisklessOffsetsRequest.Topic
        group = topic.Partition(partition_index=step.partition, timestamp=step.timestamp)
        request = ListDisklessOffsetsRequest(
            topics=(topic(topic_id=self.topic_id, partitions=(group,)),)
        )
        response = await self.subject.coordinator.call(request)
        answer = response.responses[0].partitions[0]
        self._check(
            step,
            (step.error_code, step.offset, step.found),
            (answer.error_code, answer.offset, answer.timestamp),
        )

    async def _find(self, step: Find) -> None:
        topic = FindBatchesRequest.Topic
        group = topic.Partition(partition_index=0, offset=step.offset, max_bytes=step.max_bytes)
        request = FindBatchesRequest(
            topics=(topic(topic_id=self.topic_id, partitions=(group,)),), max_bytes=step.max_bytes
        )
        response = await self.subject.coordinator.call(request)
        answer = response.responses[0].partitions[0]
        runs = tuple((batch.base_offset, batch.last_offset) for batch in answer.batches)
        self._check(step, (step.error_code, step.runs), (answer.error_code, runs))


def _outcome(result: CommitBatchResult) -> Outcome:
    error_code, offset, _, _, is_duplicate = result
    if error_code:
        return Refused(error_code)
    return Duplicate(offset) if is_duplicate else At(offset)
