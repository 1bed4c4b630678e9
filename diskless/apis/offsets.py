"""Answers ListOffsets and OffsetForLeaderEpoch: log start, high watermark, offset by timestamp.

All results come from behind the coordinator's read barrier, and so are never older than the
request. A timestamp is looked up in two steps: the coordinator names the first run that reaches it,
and the run's records show which of them does. The trap is a run that the log start cuts in two: the
record with the greatest timestamp may be in the deleted part. Then the search continues behind that
run.

A partition's leader epoch is always 0, so epoch 0 ends at the high watermark, and there has been no
other.

Source: the protocol guide, ListOffsets; KIP-79, KIP-207, KIP-320, KIP-405 (-4, -5), KIP-734 (-3),
KIP-1023; upstream's ReplicaManager.fetchOffset (which version knows which sentinel);
docs/design/broker.md#staleness-is-bounded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from coordinator.batch.reads import READ_COMMITTED
from coordinator.errors import CoordinatorError
from diskless.apis.delete_records import DeleteRecords
from diskless.apis.forwarding import seconds
from diskless.apis.handler import make_handler
from diskless.apis.partition_offsets import (
    BARRIER_S,
    LATEST,
    MAX_TIMESTAMP,
    CoordinatedPartition,
    ListedOffset,
    OffsetQuery,
    find_partition,
    list_offsets,
)
from diskless.cluster import Cluster
from diskless.fetch.object_cache import ObjectCache
from diskless.fetch.runs_reader import DamagedRunError, Run, run_of
from diskless.fetch.timestamps import TimestampedOffset, first_since, latest
from diskless.loop_turns import Pace
from diskless.stores import ObjectNotFoundError, StorageError
from raft.net.handlers import Served
from records.kafka_errors import ErrorCode
from records.leader_epochs import LeaderEpochs
from records.rpc import partitions
from records.rpc.batch_coordinator import FindBatchesRequest, FindBatchesResponse
from records.rpc.list_offsets import ListOffsetsRequest, ListOffsetsResponse

log = logging.getLogger("diskless.offsets")

EARLIEST_PENDING_UPLOAD: Final = -6
SINCE_VERSION: Final[Mapping[int, int]] = MappingProxyType(
    {-1: 1, -2: 1, MAX_TIMESTAMP: 7, -4: 8, -5: 9, EARLIEST_PENDING_UPLOAD: 11}
)
"""Which version of ListOffsets first knows a sentinel."""

NEVER: Final = 2**15
FIRST_WITH_EPOCH: Final = 4
FIRST_WITH_NOT_AVAILABLE: Final = 5
MAX_PARTITIONS: Final = 100_000
"""Partitions of one request; the others get INVALID_REQUEST."""

LOOK_UP_S: Final = 25.0
"""Timeout of lookups by timestamp if the request has none: most clients wait half a minute."""

MAX_READS: Final = 4  # lookups by timestamp that read objects at the same time
ATTEMPTS: Final = 3  # of a lookup, if the log start moves meanwhile
RUNS_OF_ATTEMPT: Final = 4

_Topic = ListOffsetsResponse.ListOffsetsTopicResponse
_Partition = _Topic.ListOffsetsPartitionResponse
_Ended = partitions.OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
_FoundPartition = FindBatchesResponse.Topic.Partition


class _MovedError(Exception):
    """The listed run is gone: the log start has passed it."""


class Offsets:
    """Looks up offsets for one broker. Belongs to the event loop."""

    def __init__(self, cluster: Cluster, cache: ObjectCache) -> None:
        self._cluster = cluster
        self._cache = cache
        self._reads = asyncio.Semaphore(MAX_READS)

    # --- ListOffsets ----------------------------------------------------------------------------

    async def find(self, request: ListOffsetsRequest, version: int) -> ListOffsetsResponse:
        """Answer ListOffsets; each partition has its own result."""
        timeout_s = seconds(request.timeout_ms) if request.timeout_ms > 0 else BARRIER_S
        look_up_s = timeout_s if request.timeout_ms > 0 else LOOK_UP_S
        deadline = asyncio.get_running_loop().time() + look_up_s
        image, committed = self._cluster.image, request.isolation_level == READ_COMMITTED
        seen: dict[tuple[str, int], int] = {}
        for topic in request.topics:
            for requested in topic.partitions:
                key = (topic.name, requested.partition_index)
                seen[key] = seen.get(key, 0) + 1
        answers: list[ListedOffset] = []
        wanted: list[OffsetQuery] = []
        positions: list[int] = []
        pace = Pace()
        for topic in request.topics:
            for requested in topic.partitions:
                await pace.step()
                place = find_partition(
                    image, topic.name, requested.partition_index, requested.current_leader_epoch
                )
                if (
                    seen[topic.name, requested.partition_index] > 1
                    or len(answers) >= MAX_PARTITIONS
                ):
                    answers.append(ListedOffset(ErrorCode.INVALID_REQUEST))
                elif requested.timestamp < 0 and version < SINCE_VERSION.get(
                    requested.timestamp, NEVER
                ):
                    answers.append(ListedOffset(ErrorCode.UNSUPPORTED_VERSION))
                elif isinstance(place, ErrorCode):
                    answers.append(ListedOffset(place))
                elif requested.timestamp == EARLIEST_PENDING_UPLOAD:  # no upload is ever pending
                    answers.append(ListedOffset(ErrorCode.NONE))
                else:
                    positions.append(len(answers))
                    wanted.append(OffsetQuery(place, requested.timestamp, committed=committed))
                    answers.append(ListedOffset(ErrorCode.NONE))
        listed = await list_offsets(self._cluster, wanted, timeout_s)
        exact = await self._all_exact(wanted, listed, deadline)
        for position, answer in zip(positions, exact, strict=True):
            answers[position] = answer
        in_order = iter(answers)
        epochs_of = dict(zip(positions, (query.place.epochs for query in wanted), strict=True))
        epochs = iter([epochs_of.get(i, LeaderEpochs()) for i in range(len(answers))])
        return ListOffsetsResponse(
            topics=tuple(
                _Topic(
                    name=topic.name,
                    partitions=tuple(
                        _partition(requested.partition_index, next(in_order), version, next(epochs))
                        for requested in topic.partitions
                    ),
                )
                for topic in request.topics
            )
        )

    async def _all_exact(
        self, wanted: list[OffsetQuery], listed: list[ListedOffset], deadline: float
    ) -> list[ListedOffset]:
        """Look up the queried record of every partition concurrently, until the deadline."""
        exact = list(listed)
        todo = iter(
            [
                index
                for index, query in enumerate(wanted)
                if query.timestamp >= 0 or query.timestamp == MAX_TIMESTAMP
            ]
        )

        async def look_up() -> None:
            for index in todo:
                try:
                    async with asyncio.timeout_at(deadline):
                        exact[index] = await self._exact(wanted[index], listed[index])
                except TimeoutError:
                    exact[index] = ListedOffset(ErrorCode.OFFSET_NOT_AVAILABLE)

        await asyncio.gather(*(look_up() for _ in range(MAX_READS)))
        return exact

    async def _exact(self, wanted: OffsetQuery, listed: ListedOffset) -> ListedOffset:
        """Find the record of a query; list offsets again if the record was deleted meanwhile."""
        last: ListedOffset = ListedOffset(ErrorCode.OFFSET_NOT_AVAILABLE)
        for _ in range(ATTEMPTS):
            if listed.error or listed.offset < 0:
                return listed
            try:
                async with self._reads:
                    return await self._look_up(wanted, listed)
            except _MovedError:
                last = ListedOffset(ErrorCode.OFFSET_NOT_AVAILABLE)
            except ObjectNotFoundError as gone:  # its run may be deleted too
                log.warning("action=list_offsets error=%r", str(gone))
                last = ListedOffset(ErrorCode.KAFKA_STORAGE_ERROR)
            except DamagedRunError as damage:
                log.error("action=list_offsets error=%r", str(damage))
                return ListedOffset(ErrorCode.CORRUPT_MESSAGE)
            except StorageError as failure:
                log.warning("action=list_offsets error=%r", str(failure))
                return ListedOffset(ErrorCode.KAFKA_STORAGE_ERROR)
            (listed,) = await list_offsets(self._cluster, [wanted])
        return last

    async def _look_up(self, wanted: OffsetQuery, listed: ListedOffset) -> ListedOffset:
        """Search runs of batches, from the listed offset on, for the record of a query."""
        best: TimestampedOffset | None = None
        for _ in range(RUNS_OF_ATTEMPT):
            run = await self._run(wanted.place, listed.offset)
            if wanted.timestamp >= 0:
                found = await first_since(
                    self._cache, run, from_offset=listed.offset, timestamp=wanted.timestamp
                )
                if found is not None:
                    return ListedOffset(ErrorCode.NONE, found.timestamp, found.offset)
            else:
                found = await latest(self._cache, run, from_offset=listed.offset)
                if found is not None and (best is None or found.timestamp > best.timestamp):
                    best = found
                if best is not None and best.timestamp >= listed.timestamp:
                    return _to_listed_offset(best)
            behind = wanted._replace(from_offset=run.last_offset + 1)
            (listed,) = await list_offsets(self._cluster, [behind])
            if listed.error:
                return listed
            if listed.offset < 0 or (best is not None and listed.timestamp <= best.timestamp):
                return _to_listed_offset(best)
        raise _MovedError

    async def _run(self, place: CoordinatedPartition, offset: int) -> Run:
        """Return the run of batches that contains an offset.

        It comes from the local replica or the coordinator.
        """
        topic = FindBatchesRequest.Topic
        partition = topic.Partition(partition_index=place.partition, offset=offset, max_bytes=1)
        request = FindBatchesRequest(
            coordinator_partition=place.coordinator,
            topics=(topic(topic_id=place.topic_id, partitions=(partition,)),),
            max_bytes=1,
        )
        replica = self._cluster.replica(place.coordinator)
        for coordinator in (replica, self._cluster.leader(place.coordinator)):
            if coordinator is None:
                continue
            try:
                answer = await coordinator.call(request)
            except CoordinatorError:
                continue
            found = answer.responses[0].partitions[0]
            if not found.error_code and found.batches:
                return run_of(found.batches[0])
        raise _MovedError

    # --- OffsetForLeaderEpoch -------------------------------------------------------------------

    async def epoch_ends(
        self, request: partitions.OffsetForLeaderEpochRequest
    ) -> partitions.OffsetForLeaderEpochResponse:
        """Answer OffsetForLeaderEpoch: the current epoch ends at the high watermark.

        An older epoch ends where a restore began the next one.
        """
        image = self._cluster.image
        places = [
            find_partition(image, topic.topic, requested.partition, requested.current_leader_epoch)
            for topic in request.topics
            for requested in topic.partitions
        ]
        wanted = [
            OffsetQuery(place, LATEST)
            for place in places
            if isinstance(place, CoordinatedPartition)
        ]
        listed = iter(await list_offsets(self._cluster, wanted))
        found = iter(
            [
                next(listed) if isinstance(place, CoordinatedPartition) else ListedOffset(place)
                for place in places
            ]
        )
        in_order = iter(places)
        return partitions.OffsetForLeaderEpochResponse(
            topics=tuple(
                _Ended(
                    topic=topic.topic,
                    partitions=tuple(
                        _epoch_end(
                            requested.partition, requested.leader_epoch, next(found), next(in_order)
                        )
                        for requested in topic.partitions
                    ),
                )
                for topic in request.topics
            )
        )


def _to_listed_offset(best: TimestampedOffset | None) -> ListedOffset:
    """Return the ListOffsets result for a record, or an empty result without a record."""
    if best is None or best.timestamp < 0:
        return ListedOffset(ErrorCode.NONE)
    return ListedOffset(ErrorCode.NONE, best.timestamp, best.offset)


def _partition(index: int, found: ListedOffset, version: int, epochs: LeaderEpochs) -> _Partition:
    error = found.error
    if error == ErrorCode.OFFSET_NOT_AVAILABLE and version < FIRST_WITH_NOT_AVAILABLE:
        error = ErrorCode.LEADER_NOT_AVAILABLE
    if error or found.offset < 0:
        return _Partition(partition_index=index, error_code=error)
    return _Partition(
        partition_index=index,
        error_code=ErrorCode.NONE,
        timestamp=found.timestamp,
        offset=found.offset,
        leader_epoch=epochs.at(found.offset) if version >= FIRST_WITH_EPOCH else -1,
    )


def _epoch_end(
    index: int, leader_epoch: int, found: ListedOffset, place: CoordinatedPartition | ErrorCode
) -> _Ended.EpochEndOffset:
    end = None
    if isinstance(place, CoordinatedPartition) and not found.error and leader_epoch >= 0:
        end = place.epochs.end_of(leader_epoch, found.offset)
    epoch, end_offset = end or (-1, -1)
    return _Ended.EpochEndOffset(
        error_code=found.error, partition=index, leader_epoch=epoch, end_offset=end_offset
    )


def handlers(cluster: Cluster, cache: ObjectCache) -> dict[int, Served]:
    """Return the handlers of ListOffsets, DeleteRecords and OffsetForLeaderEpoch, by api key."""
    offsets = Offsets(cluster, cache)
    deleting = DeleteRecords(cluster)
    return {
        2: make_handler(
            ListOffsetsRequest, lambda request, context: offsets.find(request, context.version)
        ),
        21: make_handler(
            partitions.DeleteRecordsRequest, lambda request, _: deleting.delete(request)
        ),
        23: make_handler(
            partitions.OffsetForLeaderEpochRequest, lambda request, _: offsets.epoch_ends(request)
        ),
    }
