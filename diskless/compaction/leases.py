"""Leases the ids of rewritten objects, and replaces runs of batches under the lease.

A lease is renewed long before it ends, and given back when its ids are used up: by then all objects
of it are closed. A repeated request is judged by the coordinator's state, so that a lost answer is
asked for again.

Source: docs/design/compaction.md#calls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Final, NamedTuple
from uuid import UUID

from coordinator.batch.interface import CallTarget
from coordinator.batch.runs import NO_OBJECT, digest_runs
from coordinator.errors import CoordinatorError
from diskless.compaction.tasks import MAX_OLD_RUNS, RewrittenObject, RewrittenRange
from records.kafka_errors import ErrorCode, error_name
from records.object_keys import ObjectKeys
from records.rpc import rewriting as rpc
from records.wal import FINAL

log = logging.getLogger("diskless.compaction.leases")

LEASED_AT_ONCE: Final = 16
RENEW_AFTER: Final = 3  # a lease is renewed after this part of its timeout
ATTEMPTS: Final = 60
RETRY_S: Final = 0.5


class RewriteRefusedError(Exception):
    """The coordinator refuses to lease ids or to replace runs."""

    def __init__(self, code: int, message: str | None) -> None:
        super().__init__(f"{error_name(code)}: {message or 'refused'}")
        self.code = code


class _Lease(NamedTuple):
    lease_id: int
    ids: Iterator[int]
    timeout_s: float


class Replaced(NamedTuple):
    """The coordinator's answers for the ranges of one rewritten object."""

    old_runs: int  # that were replaced
    new_runs: int
    refused: tuple[tuple[RewrittenRange, int], ...]  # ranges, and their error codes


class RewriteLeases:
    """The rewrite leases of one owner at one batch coordinator. Belongs to the event loop."""

    def __init__(
        self,
        coordinator: CallTarget,
        keys: ObjectKeys,
        *,
        broker_id: int = -1,
        broker_epoch: int = -1,
        plan_id: UUID = rpc.NO_PLAN,
        at_once: int = LEASED_AT_ONCE,
    ) -> None:
        """Prepare to lease object ids for the rewritten objects of a broker or of a plan.

        Args:    at_once: ids of one lease. It is released before the next one is granted, so
                 objects that are written together need one lease.
        """
        self._coordinator = coordinator
        self._keys = keys
        self._at_once = at_once
        self._owner = {
            "coordinator_partition": keys.coordinator_partition,
            "broker_id": broker_id,
            "broker_epoch": broker_epoch,
            "plan_id": plan_id,
        }
        self._lease: _Lease | None = None
        self._leases: dict[int, _Lease] = {}  # by object id, until the object is closed
        self._renewed_at = 0.0

    async def ensure(self) -> None:
        """Acquire a lease of object ids if there is none, or renew a lease that becomes old.

        A task begins only with a lease, so that its objects may replace runs at the end.

        Raises:  RewriteRefusedError, CoordinatorError.
        """
        loop = asyncio.get_running_loop()
        if self._lease is None:
            await self._acquire()
        elif loop.time() - self._renewed_at > self._lease.timeout_s / RENEW_AFTER:
            try:
                await self._ask(lease_id=self._lease.lease_id)
                self._renewed_at = loop.time()
            except RewriteRefusedError as error:
                log.warning("action=renew lease=%d error=%r", self._lease.lease_id, str(error))
                self._lease = None
                await self._acquire()

    async def next_id(self) -> int:
        """Return a leased object id that no object has had.

        Raises:  RewriteRefusedError, CoordinatorError.
        """
        for _ in range(2):
            await self.ensure()
            assert self._lease is not None, "no lease after it was granted"
            object_id = next(self._lease.ids, None)
            if object_id is not None:
                self._leases[object_id] = self._lease
                return object_id
            await self.release()
        raise AssertionError("a lease without ids")

    async def release(self) -> None:
        """Release the lease of object ids; after a failed request the lease expires."""
        lease, self._lease = self._lease, None
        self._leases.clear()
        if lease is not None:
            try:
                await self._ask(lease_id=lease.lease_id, releases=True)
            except (CoordinatorError, RewriteRefusedError) as error:
                log.info("action=release lease=%d error=%r", lease.lease_id, str(error))

    async def _acquire(self) -> None:
        answer = await self._ask(object_count=self._at_once)
        ids = range(answer.first_object_id, answer.first_object_id + answer.object_count)
        self._lease = _Lease(answer.lease_id, iter(ids), answer.timeout_ms / 1_000)
        self._renewed_at = asyncio.get_running_loop().time()

    async def _ask(self, **fields: object) -> rpc.RewriteLeaseResponse:
        request = rpc.RewriteLeaseRequest(**self._owner, **fields)  # type: ignore[arg-type]
        answer = await self._coordinator.call(request)
        if answer.error_code:
            raise RewriteRefusedError(answer.error_code, answer.error_message)
        return answer

    # --- replacing ------------------------------------------------------------------------------

    async def replace(self, written: RewrittenObject) -> Replaced:
        """Replace the old runs of an object's ranges at the coordinator, and close the object.

        Raises:  RewriteRefusedError, CoordinatorError: the runs may or may not be replaced.
        """
        lease = self._leases.pop(written.object_id)
        batches = list(_requests(written.ranges))
        old_runs = new_runs = 0
        refused: list[tuple[RewrittenRange, int]] = []
        for index, ranges in enumerate(batches):
            left = list(ranges)
            for attempt in range(ATTEMPTS):
                if attempt:
                    await asyncio.sleep(RETRY_S)
                closes = index == len(batches) - 1
                codes = await self._send(lease, written, left, closes=closes)
                if codes is None:
                    continue
                again = []
                for each, code in zip(left, codes, strict=True):
                    if code == ErrorCode.NONE:
                        old_runs += len(each.old_runs)
                        new_runs += len(each.runs)
                    elif code == ErrorCode.COORDINATOR_NOT_AVAILABLE:
                        again.append(each)
                    else:
                        refused.append((each, code))
                left = again
                if not left:
                    break
            refused += [(each, int(ErrorCode.COORDINATOR_NOT_AVAILABLE)) for each in left]
        return Replaced(old_runs, new_runs, tuple(refused))

    async def _send(
        self,
        lease: _Lease,
        written: RewrittenObject,
        ranges: list[RewrittenRange],
        *,
        closes: bool,
    ) -> list[int] | None:
        """Send one ReplaceRuns request; return each range's error code, None without an answer."""
        topics: dict[UUID, list[rpc.ReplaceRunsRequest.Topic.Partition]] = {}
        for each in ranges:
            topics.setdefault(each.topic_id, []).append(self._partition(each))
        request = rpc.ReplaceRunsRequest(
            **self._owner,  # type: ignore[arg-type]
            lease_id=lease.lease_id,
            object_id=written.object_id,
            object_format=FINAL,
            object_size=written.size_bytes,
            closes_object=closes,
            topics=tuple(
                rpc.ReplaceRunsRequest.Topic(topic_id=topic_id, partitions=tuple(partitions))
                for topic_id, partitions in topics.items()
            ),
        )
        try:
            answer = await self._coordinator.call(request)
        except CoordinatorError as error:
            log.info("action=replace object=%d error=%r", written.object_id, str(error))
            return None
        if answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE:
            return None
        if answer.error_code:
            if self._lease is lease:
                self._lease = None
            raise RewriteRefusedError(answer.error_code, answer.error_message)
        codes = {
            (topic.topic_id, partition.partition_index): partition.error_code
            for topic in answer.topics
            for partition in topic.partitions
        }
        return [codes[each.topic_id, each.partition] for each in ranges]

    def _partition(self, each: RewrittenRange) -> rpc.ReplaceRunsRequest.Topic.Partition:
        rows = zip(each.runs, each.byte_offsets, strict=True)
        return rpc.ReplaceRunsRequest.Topic.Partition(
            partition_index=each.partition,
            first_offset=each.old_runs[0].base_offset,
            end_offset=each.old_runs[-1].last_offset + 1,
            old_run_count=len(each.old_runs),
            old_runs_digest=digest_runs(
                (NO_OBJECT, 0, 0)  # a marker: its bytes lie in no object
                if run.is_marker
                else (self._keys.object_id(run.object_key), run.byte_offset, run.size_bytes)
                for run in each.old_runs
            ),
            bound=each.bound,
            flags=each.flags,
            ended_aborted=tuple(rpc.AbortedEntry(*entry) for entry in each.ended_aborted),
            runs=tuple(
                rpc.NewRun(
                    run.last_offset,
                    run.record_count,
                    byte_offset,
                    run.size_bytes,
                    run.max_timestamp,
                    run.append_time,
                    run.timestamp_type,
                )
                for run, byte_offset in rows
            ),
        )


def _requests(ranges: tuple[RewrittenRange, ...]) -> Iterator[list[RewrittenRange]]:
    """Divide ranges into requests of limited size, each with at most one range of a partition."""
    group: list[RewrittenRange] = []
    old_runs = new_runs = 0
    names: set[tuple[UUID, int]] = set()
    for each in ranges:
        old_runs += len(each.old_runs)
        new_runs += len(each.runs)
        name = each.topic_id, each.partition
        if group and (max(old_runs, new_runs) > MAX_OLD_RUNS or name in names):
            yield group
            group, old_runs, new_runs, names = [], len(each.old_runs), len(each.runs), set()
        group.append(each)
        names.add(name)
    if group:
        yield group
