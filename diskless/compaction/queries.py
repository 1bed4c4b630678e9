"""What a rewriting broker asks batch coordinators: its own replicas, and their leaders.

Source: docs/design/compaction.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from coordinator.batch.interface import CallTarget
from coordinator.batch.reads import READ_COMMITTED
from coordinator.controller.image import TopicImage
from diskless.cluster import ClusterMember, Replica
from diskless.compaction.leases import RewriteRefusedError
from diskless.compaction.planner import Cleaning
from diskless.fetch.runs_reader import Run, run_of
from records.kafka_errors import ErrorCode
from records.rpc import batch_coordinator, rewriting

LISTED_AT_ONCE: Final = 10_000
MAX_RUNS: Final = 200_000
"""Runs that one pass looks at; the next pass goes on behind the last partition."""

MAX_BYTES: Final = 1 << 40


class RewritingCluster(ClusterMember, Protocol):
    """The part of a `diskless.cluster.Cluster` that rewriting needs."""

    def replica(self, coordinator: int) -> Replica | None: ...

    def leader(self, coordinator: int) -> CallTarget: ...


class Partition(NamedTuple):
    """A partition and its topic."""

    topic: TopicImage
    number: int

    @property
    def name(self) -> tuple[UUID, int]:
        """Return the partition's topic id and index."""
        return self.topic.topic_id, self.number


class CoordinatorQueries:
    """Questions of one broker about runs, objects and the progress of compaction."""

    def __init__(self, cluster: RewritingCluster) -> None:
        """Ask the replicas of this broker and the coordinators' leaders."""
        self._cluster = cluster

    async def runs(self, coordinator: int, partition: Partition) -> list[Run]:
        """Return the live runs of a partition in this broker's replica, at most `MAX_RUNS`."""
        replica = self._cluster.replica(coordinator)
        ends = None if replica is None else replica.ends(*partition.name)
        if ends is None:
            return []
        runs: list[Run] = []
        async for found in self._find(coordinator, partition, *ends):
            runs += map(run_of, found.batches)
            if len(runs) >= MAX_RUNS:
                break
        return runs

    async def aborted(
        self, coordinator: int, partition: Partition, offset: int, end: int
    ) -> tuple[tuple[int, int], ...]:
        """Return the aborted transactions that end at or above an offset and begin below `end`.

        Raises:  RewriteRefusedError if the answers do not reach `end`: with an aborted transaction
                 that is not known a committed record would be lost.
        """
        replica = self._cluster.replica(coordinator)
        ends = None if replica is None else replica.ends(*partition.name)
        at = offset if ends is None else max(offset, ends[0])
        aborted: set[tuple[int, int]] = set()
        async for found in self._find(coordinator, partition, at, end):
            aborted.update((each.producer_id, each.first_offset) for each in found.aborted)
            at = found.batches[-1].last_offset + 1
        if at < end:
            raise RewriteRefusedError(ErrorCode.OFFSET_OUT_OF_RANGE, f"no runs at offset {at}")
        return tuple(aborted)

    async def _find(
        self, coordinator: int, partition: Partition, offset: int, end: int
    ) -> AsyncIterator[batch_coordinator.FindBatchesResponse.Topic.Partition]:
        """Yield answers of this broker's replica about the batches from `offset` to `end`."""
        replica = self._cluster.replica(coordinator)
        while replica is not None and offset < end:
            topic = batch_coordinator.FindBatchesRequest.Topic
            asked = topic.Partition(
                partition_index=partition.number, offset=offset, max_bytes=MAX_BYTES
            )
            answer = await replica.call(
                batch_coordinator.FindBatchesRequest(
                    coordinator_partition=coordinator,
                    max_bytes=MAX_BYTES,
                    topics=(topic(topic_id=partition.topic.topic_id, partitions=(asked,)),),
                    isolation_level=READ_COMMITTED,  # replaced runs end below the stable offset
                )
            )
            found = answer.responses[0].partitions[0]
            if found.error_code or not found.batches:
                return
            yield found
            offset = found.batches[-1].last_offset + 1

    async def objects(self, coordinator: int) -> list[rewriting.ObjectUse]:
        """List all objects that a coordinator knows, each with its used bytes.

        Raises:  RewriteRefusedError if the coordinator answers an error.
        """
        rows: list[rewriting.ObjectUse] = []
        object_id = 0
        while object_id >= 0:
            answer = await self._cluster.leader(coordinator).call(
                rewriting.ListDisklessObjectsRequest(
                    coordinator_partition=coordinator,
                    from_object_id=object_id,
                    max_objects=LISTED_AT_ONCE,
                )
            )
            if answer.error_code:
                raise RewriteRefusedError(answer.error_code, answer.error_message)
            rows += answer.objects
            object_id = answer.next_object_id
        return rows

    async def cleaning(self, coordinator: int, partition: Partition) -> Cleaning | None:
        """Request a partition's compaction progress from the coordinator; None if unknown there.

        Raises:  RewriteRefusedError if the coordinator answers an error for the whole request.
        """
        request = rewriting.DescribeCleaningRequest(
            coordinator_partition=coordinator,
            topics=(
                rewriting.DescribeCleaningRequest.Topic(
                    topic_id=partition.topic.topic_id, partitions=(partition.number,)
                ),
            ),
        )
        answer = await self._cluster.leader(coordinator).call(request)
        if answer.error_code:
            raise RewriteRefusedError(answer.error_code, answer.error_message)
        found = answer.responses[0].partitions[0]
        if found.error_code:
            return None
        return Cleaning(
            found.log_start_offset,
            found.last_stable_offset,
            found.cleaned_until,
            found.bound,
            found.rewritten_until,
        )

    async def last_sequences(self, coordinator: int, partition: Partition) -> dict[int, int]:
        """Request the last sequence number of each producer that a partition knows."""
        request = batch_coordinator.DescribeDisklessProducersRequest(
            coordinator_partition=coordinator,
            topics=(
                batch_coordinator.DescribeDisklessProducersRequest.Topic(
                    topic_id=partition.topic.topic_id, partitions=(partition.number,)
                ),
            ),
        )
        answer = await self._cluster.leader(coordinator).call(request)
        producers = answer.responses[0].partitions[0].producers if answer.responses else ()
        return {each.producer_id: each.last_sequence for each in producers}
