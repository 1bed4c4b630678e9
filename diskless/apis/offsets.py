"""ListOffsets and OffsetForLeaderEpoch: where partitions begin, end, and were at a time.

All of it is decided behind the coordinator's read barrier, and so never older than the question. A
time is looked up in two steps: the coordinator names the first run that reaches it, and the run's
records say which of them does. The surprise is the run that the log start cuts in two: what made it
late may lie in the part that is gone. Then the search goes on behind that run.

A partition's leader epoch is 0 for ever, so epoch 0 ends at the high watermark, and there has been
no other.

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

from coordinator.errors import CoordinatorError
from diskless.apis.delete_records import DeleteRecords
from diskless.apis.forwarding import seconds
from diskless.apis.handler import served
from diskless.apis.partition_offsets import (
    BARRIER_S,
    LATEST,
    MAX_TIMESTAMP,
    Listed,
    Place,
    Wanted,
    find_place,
    list_offsets,
)
from diskless.cluster import Cluster
from diskless.fetch.object_cache import ObjectCache
from diskless.fetch.runs_reader import LEADER_EPOCH, DamagedRunError, Run
from diskless.fetch.timestamps import Stamped, first_since, latest
from diskless.loop_turns import Pace
from diskless.stores import ObjectNotFoundError, StorageError
from raft.net.handlers import Served
from records.kafka_errors import ErrorCode
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
"""Of one request: who has more asks twice."""

LOOK_UP_S: Final = 25.0
"""For look-ups by time of a client that does not say how long it waits: most wait half a minute."""

MAX_READS: Final = 4  # look-ups by time that read objects at the same time
ATTEMPTS: Final = 3  # of a look-up under which the log start moves
RUNS_OF_ATTEMPT: Final = 4

_Topic = ListOffsetsResponse.ListOffsetsTopicResponse
_Partition = _Topic.ListOffsetsPartitionResponse
_Ended = partitions.OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
_FoundPartition = FindBatchesResponse.Topic.Partition


class _MovedError(Exception):
    """What was listed is not there any more: the log start has passed it."""


class Offsets:
    """Look-ups of offsets, for one broker. Belongs to the event loop."""

    def __init__(self, cluster: Cluster, cache: ObjectCache) -> None:
        self._cluster = cluster
        self._cache = cache
        self._reads = asyncio.Semaphore(MAX_READS)

    # --- ListOffsets ----------------------------------------------------------------------------

    async def find(self, request: ListOffsetsRequest, version: int) -> ListOffsetsResponse:
        """The answer; each partition stands or falls alone."""
        timeout_s = seconds(request.timeout_ms) if request.timeout_ms > 0 else BARRIER_S
        look_up_s = timeout_s if request.timeout_ms > 0 else LOOK_UP_S
        deadline = asyncio.get_running_loop().time() + look_up_s
        image = self._cluster.image
        seen: dict[tuple[str, int], int] = {}
        for topic in request.topics:
            for asked in topic.partitions:
                key = (topic.name, asked.partition_index)
                seen[key] = seen.get(key, 0) + 1
        answers: list[Listed] = []
        wanted: list[Wanted] = []
        positions: list[int] = []
        pace = Pace()
        for topic in request.topics:
            for asked in topic.partitions:
                await pace.step()
                place = find_place(
                    image, topic.name, asked.partition_index, asked.current_leader_epoch
                )
                if seen[topic.name, asked.partition_index] > 1 or len(answers) >= MAX_PARTITIONS:
                    answers.append(Listed(ErrorCode.INVALID_REQUEST))
                elif asked.timestamp < 0 and version < SINCE_VERSION.get(asked.timestamp, NEVER):
                    answers.append(Listed(ErrorCode.UNSUPPORTED_VERSION))
                elif isinstance(place, ErrorCode):
                    answers.append(Listed(place))
                elif asked.timestamp == EARLIEST_PENDING_UPLOAD:  # nothing is ever uploaded later
                    answers.append(Listed(ErrorCode.NONE))
                else:
                    positions.append(len(answers))
                    wanted.append(Wanted(place, asked.timestamp))
                    answers.append(Listed(ErrorCode.NONE))
        listed = await list_offsets(self._cluster, wanted, timeout_s)
        exact = await self._all_exact(wanted, listed, deadline)
        for at, answer in zip(positions, exact, strict=True):
            answers[at] = answer
        told = iter(answers)
        return ListOffsetsResponse(
            topics=tuple(
                _Topic(
                    name=topic.name,
                    partitions=tuple(
                        _partition(asked.partition_index, next(told), version)
                        for asked in topic.partitions
                    ),
                )
                for topic in request.topics
            )
        )

    async def _all_exact(
        self, wanted: list[Wanted], listed: list[Listed], deadline: float
    ) -> list[Listed]:
        """Records instead of runs, a few at the same time, as many as there is time for."""
        exact = list(listed)
        todo = iter(
            [
                at
                for at, one in enumerate(wanted)
                if one.timestamp >= 0 or one.timestamp == MAX_TIMESTAMP
            ]
        )

        async def look_up() -> None:
            for at in todo:
                try:
                    async with asyncio.timeout_at(deadline):
                        exact[at] = await self._exact(wanted[at], listed[at])
                except TimeoutError:
                    exact[at] = Listed(ErrorCode.OFFSET_NOT_AVAILABLE)

        await asyncio.gather(*(look_up() for _ in range(MAX_READS)))
        return exact

    async def _exact(self, wanted: Wanted, listed: Listed) -> Listed:
        """The record itself, where a run was named."""
        last: Listed = Listed(ErrorCode.OFFSET_NOT_AVAILABLE)
        for _ in range(ATTEMPTS):
            if listed.error or listed.offset < 0:
                return listed
            try:
                async with self._reads:
                    return await self._look_up(wanted, listed)
            except _MovedError:
                last = Listed(ErrorCode.OFFSET_NOT_AVAILABLE)
            except ObjectNotFoundError as gone:  # of a run that may be gone too
                log.warning("action=list_offsets error=%r", str(gone))
                last = Listed(ErrorCode.KAFKA_STORAGE_ERROR)
            except DamagedRunError as damage:
                log.error("action=list_offsets error=%r", str(damage))
                return Listed(ErrorCode.CORRUPT_MESSAGE)
            except StorageError as failure:
                log.warning("action=list_offsets error=%r", str(failure))
                return Listed(ErrorCode.KAFKA_STORAGE_ERROR)
            (listed,) = await list_offsets(self._cluster, [wanted])
        return last

    async def _look_up(self, wanted: Wanted, listed: Listed) -> Listed:
        """Read the run that is named, and those behind it as far as need be."""
        best: Stamped | None = None
        for _ in range(RUNS_OF_ATTEMPT):
            run = await self._run(wanted.place, listed.offset)
            if wanted.timestamp >= 0:
                found = await first_since(
                    self._cache, run, from_offset=listed.offset, timestamp=wanted.timestamp
                )
                if found is not None:
                    return Listed(ErrorCode.NONE, found.timestamp, found.offset)
            else:
                found = await latest(self._cache, run, from_offset=listed.offset)
                if found is not None and (best is None or found.timestamp > best.timestamp):
                    best = found
                if best is not None and best.timestamp >= listed.timestamp:
                    return _told(best)
            behind = wanted._replace(from_offset=run.last_offset + 1)
            (listed,) = await list_offsets(self._cluster, [behind])
            if listed.error:
                return listed
            if listed.offset < 0 or (best is not None and listed.timestamp <= best.timestamp):
                return _told(best)
        raise _MovedError

    async def _run(self, place: Place, offset: int) -> Run:
        """The run that holds an offset: by our own replica, or by the coordinator."""
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
                return _as_run(found.batches[0])
        raise _MovedError

    # --- OffsetForLeaderEpoch -------------------------------------------------------------------

    async def epoch_ends(
        self, request: partitions.OffsetForLeaderEpochRequest
    ) -> partitions.OffsetForLeaderEpochResponse:
        """Epoch 0 ends at the high watermark; of others nothing is known."""
        image = self._cluster.image
        places = [
            find_place(image, topic.topic, asked.partition, asked.current_leader_epoch)
            for topic in request.topics
            for asked in topic.partitions
        ]
        wanted = [Wanted(place, LATEST) for place in places if isinstance(place, Place)]
        listed = iter(await list_offsets(self._cluster, wanted))
        found = iter(
            [next(listed) if isinstance(place, Place) else Listed(place) for place in places]
        )
        return partitions.OffsetForLeaderEpochResponse(
            topics=tuple(
                _Ended(
                    topic=topic.topic,
                    partitions=tuple(
                        _epoch_end(asked.partition, asked.leader_epoch, next(found))
                        for asked in topic.partitions
                    ),
                )
                for topic in request.topics
            )
        )


def _told(best: Stamped | None) -> Listed:
    """A greatest timestamp; of records that all have none there is none."""
    if best is None or best.timestamp < 0:
        return Listed(ErrorCode.NONE)
    return Listed(ErrorCode.NONE, best.timestamp, best.offset)


def _as_run(batch: _FoundPartition.Batch) -> Run:
    return Run(
        batch.object_key,
        batch.byte_offset,
        batch.size,
        batch.base_offset,
        batch.last_offset,
        batch.message_timestamp_type,
        batch.log_append_timestamp,
    )


def _partition(index: int, found: Listed, version: int) -> _Partition:
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
        leader_epoch=LEADER_EPOCH if version >= FIRST_WITH_EPOCH else -1,
    )


def _epoch_end(index: int, leader_epoch: int, found: Listed) -> _Ended.EpochEndOffset:
    known = not found.error and leader_epoch == LEADER_EPOCH
    return _Ended.EpochEndOffset(
        error_code=found.error,
        partition=index,
        leader_epoch=LEADER_EPOCH if known else -1,
        end_offset=found.offset if known else -1,
    )


def handlers(cluster: Cluster, cache: ObjectCache) -> dict[int, Served]:
    """By api key."""
    offsets = Offsets(cluster, cache)
    deleting = DeleteRecords(cluster)
    return {
        2: served(ListOffsetsRequest, lambda request, asker: offsets.find(request, asker.version)),
        21: served(partitions.DeleteRecordsRequest, lambda request, _: deleting.delete(request)),
        23: served(
            partitions.OffsetForLeaderEpochRequest, lambda request, _: offsets.epoch_ends(request)
        ),
    }
