"""Collects producers' batches until they become one object.

Batches wait here for at most the commit interval. Then the buffer is closed: the batches of a
partition stand side by side, in the order of arrival, and the closed buffer yields the object's
content, the commit request that describes it, and the waiter of each batch.

The trap: an object belongs to one coordinator, so each coordinator partition has a buffer of its
own, and they close independently.

Source: KIP-1163, Produce path; docs/design/state-machines.md#bounded-work,
docs/design/broker.md#produce.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from coordinator.batch.settings import MAX_BATCHES
from diskless.produce.validation import Accepted
from diskless.transactions.proofs import Proof
from records.rpc.batch_coordinator import (
    CommitBatch,
    CommitBatchesRequest,
    TransactionalBatch,
)
from records.wal import PartitionBatches

OBJECT_FORMAT: Final = 1  # of CommitBatches: a WAL segment object, `records.wal`
MAX_BUFFERED_BATCHES: Final = MAX_BATCHES * 4 // 5
"""Batches of one object: safely below what a coordinator takes, and below 1 MiB of its record."""

NO_SEQUENCE: Final = -1
SEQUENCES: Final = 2**31  # the one after 2147483647 is 0


class AppendResult(NamedTuple):
    """The outcome of one batch: Kafka's error code, 0 if it is committed."""

    error: int
    message: str | None = None
    base_offset: int = -1
    log_append_time: int = -1
    log_start_offset: int = -1


class Waiter(Protocol):
    """Receives the outcome of one batch."""

    def appended(self, result: AppendResult) -> None:
        """Accept the outcome of a batch; the writer calls this once."""


class _Entry(NamedTuple):
    accepted: Accepted
    append_time: bool  # message.timestamp.type=LogAppendTime
    waiter: Waiter
    proof: Proof | None  # of a transactional batch


class ClosedBuffer:
    """The content of a closed buffer, in the order of the object's bytes."""

    def __init__(self, partitions: dict[tuple[UUID, int], list[_Entry]], data_bytes: int) -> None:
        self.data_bytes = data_bytes
        # As the commit has them: by topic, so that each topic stands in it once.
        self._ordered = sorted(partitions.items(), key=lambda item: item[0])

    @property
    def content(self) -> list[PartitionBatches]:
        """Return the buffer's batches by partition, for `wal.build_object`."""
        return [
            PartitionBatches(
                topic_id,
                partition,
                [entry.accepted.batch.view for entry in entries],
                sum(entry.accepted.batch.header.record_count for entry in entries),
            )
            for (topic_id, partition), entries in self._ordered
        ]

    def commit_request(
        self,
        *,
        broker_id: int,
        broker_epoch: int,
        lease_id: int,
        object_id: int,
        object_size: int,
        coordinator_partition: int,
        now_ms: int = 0,
    ) -> CommitBatchesRequest:
        """Build the request that commits this buffer's object at the batch coordinator.

        Args:  now_ms: the wall clock, by which the epochs of transactional producers have an age.
        """
        topic_type = CommitBatchesRequest.Topic
        topics: list[CommitBatchesRequest.Topic] = []
        partitions: list[CommitBatchesRequest.Topic.Partition] = []
        byte_offset, last_topic = 0, None
        for (topic_id, partition), entries in self._ordered:
            if last_topic is not None and topic_id != last_topic:
                topics.append(topic_type(topic_id=last_topic, partitions=tuple(partitions)))
                partitions = []
            last_topic = topic_id
            rows = []
            for entry in entries:
                rows.append(_row(entry, byte_offset))
                byte_offset += len(entry.accepted.batch.view)
            partitions.append(topic_type.Partition(partition_index=partition, batches=tuple(rows)))
        if last_topic is not None:
            topics.append(topic_type(topic_id=last_topic, partitions=tuple(partitions)))
        return CommitBatchesRequest(
            broker_id=broker_id,
            broker_epoch=broker_epoch,
            lease_id=lease_id,
            object_id=object_id,
            object_format=OBJECT_FORMAT,
            object_size=object_size,
            coordinator_partition=coordinator_partition,
            topics=tuple(topics),
            transactional=self._transactional(now_ms),
        )

    def _transactional(self, now_ms: int) -> tuple[TransactionalBatch, ...]:
        """Return the proofs of the transactional batches, by their place in the commit request."""
        entries = (entry for _, entries in self._ordered for entry in entries)
        return tuple(
            TransactionalBatch(
                index,
                entry.proof.number,
                entry.proof.version,
                max(0, now_ms - entry.proof.epoch_began_at_ms),
            )
            for index, entry in enumerate(entries)
            if entry.proof is not None
        )

    def settle_all(self, result: AppendResult) -> None:
        """Report the same outcome to the waiters of all batches."""
        for _, entries in self._ordered:
            for entry in entries:
                entry.waiter.appended(result)

    def settle_each(self, results: Sequence[AppendResult]) -> None:
        """Report to each batch's waiter its result, in the order of the commit request."""
        waiters = [entry.waiter for _, entries in self._ordered for entry in entries]
        for waiter, result in zip(waiters, results, strict=True):
            waiter.appended(result)

    @property
    def batch_count(self) -> int:
        """Return the number of batches in the closed buffer."""
        return sum(len(entries) for _, entries in self._ordered)


def _row(entry: _Entry, byte_offset: int) -> CommitBatch:
    header = entry.accepted.batch.header
    last_sequence = NO_SEQUENCE
    if header.base_sequence >= 0:
        last_sequence = (header.base_sequence + header.record_count - 1) % SEQUENCES
    return CommitBatch(
        byte_offset=byte_offset,
        size=len(entry.accepted.batch.view),
        base_offset=0,
        last_offset=header.last_offset_delta,
        batch_max_timestamp=entry.accepted.max_timestamp,
        message_timestamp_type=int(entry.append_time),
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        last_sequence=last_sequence,
    )


class AppendBuffer:
    """The open buffer of one coordinator partition."""

    def __init__(self, max_bytes: int) -> None:
        """Create an empty buffer for at most `max_bytes` of batches.

        The setting is diskless.append.buffer.max.bytes.
        """
        self.max_bytes = max_bytes
        self.size_bytes = 0
        self.batch_count = 0
        self._partitions: dict[tuple[UUID, int], list[_Entry]] = {}

    def fits(self, accepted: Accepted) -> bool:
        """Return whether a batch fits into the buffer; an empty buffer takes any batch."""
        if not self.batch_count:
            return True
        size_bytes = self.size_bytes + len(accepted.batch.view)
        return size_bytes <= self.max_bytes and self.batch_count < MAX_BUFFERED_BATCHES

    def add(
        self,
        topic_id: UUID,
        partition: int,
        accepted: Accepted,
        *,
        append_time: bool,
        waiter: Waiter,
        proof: Proof | None = None,
    ) -> None:
        """Add a batch, for which the buffer has space, to the batches of its partition."""
        assert self.fits(accepted), f"{self.size_bytes} bytes, {self.batch_count} batches are in it"
        entries = self._partitions.setdefault((topic_id, partition), [])
        entries.append(_Entry(accepted, append_time, waiter, proof))
        self.size_bytes += len(accepted.batch.view)
        self.batch_count += 1

    @property
    def partition_count(self) -> int:
        """Return the number of partitions that have batches in the buffer."""
        return len(self._partitions)

    @property
    def is_full(self) -> bool:
        """Return whether the buffer has reached its maximum size or number of batches."""
        return self.size_bytes >= self.max_bytes or self.batch_count >= MAX_BUFFERED_BATCHES

    def close(self) -> ClosedBuffer:
        """Return the buffer's batches as a closed buffer, and empty this buffer."""
        closed = ClosedBuffer(self._partitions, self.size_bytes)
        self._partitions, self.size_bytes, self.batch_count = {}, 0, 0
        return closed
