"""A rewriter, to tell stories about replaced runs of batches with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from coordinator.batch.runs import NO_OBJECT, digest_runs
from records.kafka_errors import ErrorCode
from records.rpc.batch_coordinator import FindBatchesResponse
from records.rpc.rewriting import (
    NO_PLAN,
    DescribeCleaningRequest,
    DescribeCleaningResponse,
    ListDisklessObjectsRequest,
    NewRun,
    ObjectUse,
    ReplaceRunsRequest,
    ReplaceRunsResponse,
    RewriteLeaseRequest,
    RewriteLeaseResponse,
)
from tests.coordinator.batch.actors import TOPIC, find
from tests.coordinator.batch.subjects import KEYS, World

Batch = FindBatchesResponse.Topic.Partition.Batch
Row = ReplaceRunsRequest.Topic.Partition
Answer = ReplaceRunsResponse.Topic.Partition

RUN_BYTES = 10


class Range(NamedTuple):
    """A range of a partition to be rewritten: how many records are left, and under which bound."""

    first: int
    end: int
    bound: int = -1
    flags: int = 0
    partition: int = 0
    removed: int = 0  # records that the compaction removed
    parts: int = 1  # new runs


def object_id_of(run: Batch) -> int:
    """The object of a run; a marker has none."""
    return KEYS.object_id(run.object_key) if run.object_key else NO_OBJECT


def row_of(live: Sequence[Batch], wanted: Range, place: int) -> Row:
    """Rewrite live runs into runs of `RUN_BYTES` each, which lie from `place` on."""
    old = [run for run in live if wanted.first <= run.base_offset < wanted.end]
    counts = [
        run.last_offset - run.base_offset + 1 if run.record_count < 0 else run.record_count
        for run in old
    ]
    size = (wanted.end - wanted.first) // wanted.parts
    ends = [wanted.first + size * part for part in range(1, wanted.parts)] + [wanted.end]
    kept, base, runs = sum(counts) - wanted.removed, wanted.first, []
    for part, end in enumerate(ends):
        count = kept if part == len(ends) - 1 else min(kept, end - base)
        kept -= count
        runs.append(
            NewRun(
                last_offset=end - 1,
                record_count=count,
                byte_offset=place + RUN_BYTES * part,
                size=RUN_BYTES,
                max_timestamp=max((run.batch_max_timestamp for run in old), default=-1),
                append_time=max((run.log_append_timestamp for run in old), default=0),
                timestamp_type=0,
            )
        )
        base = end
    return Row(
        partition_index=wanted.partition,
        first_offset=wanted.first,
        end_offset=wanted.end,
        old_run_count=len(old),
        old_runs_digest=digest_runs((object_id_of(run), run.byte_offset, run.size) for run in old),
        bound=wanted.bound,
        flags=wanted.flags,
        runs=tuple(runs),
    )


class Rewriter:
    """A rewriter of a broker or of a plan. It fills objects out of its newest lease."""

    def __init__(
        self, world: World, broker_id: int = 1, epoch: int = 1, plan_id: UUID = NO_PLAN
    ) -> None:
        self.world = world
        self.owner = {"broker_id": broker_id, "broker_epoch": epoch, "plan_id": plan_id}
        self.lease_id = self.first = self.object_id = -1
        self.place = 0  # bytes of the present object that are filled
        self.last: ReplaceRunsRequest | None = None

    async def ask_lease(self, **fields: object) -> RewriteLeaseResponse:
        request = RewriteLeaseRequest(coordinator_partition=0, **self.owner, **fields)  # type: ignore[arg-type]
        return await self.world.coordinator.call(request)

    async def acquire(self, count: int = 10) -> RewriteLeaseResponse:
        granted = await self.ask_lease(object_count=count)
        if not granted.error_code:
            self.lease_id, self.first = granted.lease_id, granted.first_object_id
            self.object_id, self.place = self.first, 0
        return granted

    async def renew(self) -> int:
        return (await self.ask_lease(lease_id=self.lease_id)).error_code

    async def release(self) -> int:
        return (await self.ask_lease(lease_id=self.lease_id, releases=True)).error_code

    def next_object(self) -> int:
        """Begin another object of the lease; returns its id."""
        self.object_id, self.place = self.object_id + 1, 0
        return self.object_id

    async def plan(self, *ranges: Range, topic: UUID = TOPIC) -> list[Row]:
        """Read the runs there are, and rewrite them."""
        rows = []
        for wanted in ranges:
            (found,) = await find(self.world, (wanted.partition, wanted.first), topic=topic)
            if found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                start = found.log_start_offset
                (found,) = await find(self.world, (wanted.partition, start), topic=topic)
            rows.append(row_of(found.batches, wanted, self.place))
            self.place += RUN_BYTES * wanted.parts
        return rows

    async def send(
        self, rows: Iterable[Row], *, closes: bool = False, size: int = 1_000, topic: UUID = TOPIC
    ) -> ReplaceRunsResponse:
        """Have the coordinator replace runs by those of the present object."""
        rows = tuple(rows)
        named = (ReplaceRunsRequest.Topic(topic_id=topic, partitions=rows),) if rows else ()
        self.last = ReplaceRunsRequest(
            coordinator_partition=0,
            lease_id=self.lease_id,
            object_id=self.object_id,
            object_format=2,
            object_size=size,
            closes_object=closes,
            topics=named,
            **self.owner,  # type: ignore[arg-type]
        )
        return await self.world.coordinator.call(self.last)

    async def replace(self, *ranges: Range, closes: bool = False) -> list[Answer]:
        """Plan and send; returns what became of each range."""
        response = await self.send(await self.plan(*ranges), closes=closes)
        return answers(response)

    async def again(self) -> ReplaceRunsResponse:
        """Send the last request once more."""
        assert self.last is not None
        return await self.world.coordinator.call(self.last)


def answers(response: ReplaceRunsResponse) -> list[Answer]:
    """The outcome for each range of a request that the coordinator judged."""
    assert response.error_code == 0, response
    return [answer for topic in response.topics for answer in topic.partitions]


def codes(response: ReplaceRunsResponse) -> list[int]:
    """The error code of each range."""
    return [answer.error_code for answer in answers(response)]


async def cleaning(world: World, partition: int = 0) -> tuple[int, int, int]:
    """A partition's compaction progress: cleaned_until, bound, rewritten_until."""
    described = await describe(world, partition)
    assert described.error_code == 0, described
    return described.cleaned_until, described.bound, described.rewritten_until


async def describe(world: World, partition: int = 0) -> DescribeCleaningResponse.Topic.Partition:
    """DescribeCleaning of one partition."""
    asked = DescribeCleaningRequest.Topic(topic_id=TOPIC, partitions=(partition,))
    request = DescribeCleaningRequest(coordinator_partition=0, topics=(asked,))
    return (await world.coordinator.call(request)).responses[0].partitions[0]


async def objects(world: World, *, deleted_before_ms: int = -1) -> dict[int, ObjectUse]:
    """All objects that ListDisklessObjects lists, by id, two in an answer."""
    listed: dict[int, ObjectUse] = {}
    following = 0
    while following >= 0:
        request = ListDisklessObjectsRequest(
            coordinator_partition=0,
            from_object_id=following,
            max_objects=2,
            deleted_before_ms=deleted_before_ms,
        )
        answer = await world.coordinator.call(request)
        assert answer.error_code == 0, answer
        listed |= {one.object_id: one for one in answer.objects}
        following = answer.next_object_id
    return listed
