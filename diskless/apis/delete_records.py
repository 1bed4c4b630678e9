"""DeleteRecords: asks the partitions' coordinators to move log starts forward.

The answer waits, as long as the request allows, until this broker's replica has the new log start
too, so that a client that deletes and then reads through the same broker does not see deleted
records. The result is the coordinator's, whether or not the replica shows it in time.

Source: KIP-107; KIP-630 (internal topics: POLICY_VIOLATION); upstream's ReplicaManager
(deleteRecords) and Partition.deleteRecordsOnLeader (compacted topics: POLICY_VIOLATION).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from coordinator.controller.decide.configs import is_only_compacted
from coordinator.errors import CoordinatorError
from diskless.apis.forwarding import BoundedCalls, seconds
from diskless.apis.partition_offsets import CoordinatedPartition, find_partition, split_chunks
from diskless.cluster import Cluster
from diskless.fetch.commit_notifications import CommitNotifications
from diskless.loop_turns import Pace
from records.internal_topics import INTERNAL_TOPICS
from records.kafka_errors import ErrorCode
from records.rpc.batch_coordinator import DeleteDisklessRecordsRequest, FindBatchesRequest
from records.rpc.partitions import DeleteRecordsRequest, DeleteRecordsResponse

SEEN_HERE_S: Final = 2.0
"""The longest that an answer waits for this broker's own replica."""

LOOK_AGAIN_S: Final = 0.1

_Topic = DeleteRecordsResponse.DeleteRecordsTopicResult
_Partition = _Topic.DeleteRecordsPartitionResult

_CODES: Final[Mapping[int, int]] = {
    ErrorCode.UNKNOWN_TOPIC_ID: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.NOT_LEADER_OR_FOLLOWER,
}
"""The coordinator's codes that clients know by another code; all others are passed on."""


class _Deleted(NamedTuple):
    error: int
    low_watermark: int = -1


class DeleteRecords:
    """Answers DeleteRecords for one broker. Belongs to the event loop."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._calls = BoundedCalls()
        self._news = CommitNotifications()
        cluster.on_commit(lambda _: self._news.notify())

    async def delete(self, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        """Delete the records below the requested offset of each partition."""
        deadline = _now() + seconds(request.timeout_ms)
        image, pace = self._cluster.image, Pace()
        answers: list[_Deleted] = []
        by_coordinator: dict[int, list[tuple[int, CoordinatedPartition, int]]] = {}
        for topic in request.topics:
            for requested in topic.partitions:
                await pace.step()
                place = find_partition(image, topic.name, requested.partition_index)
                if topic.name in INTERNAL_TOPICS or is_only_compacted(image, topic.name):
                    answers.append(_Deleted(ErrorCode.POLICY_VIOLATION))
                elif isinstance(place, ErrorCode):
                    answers.append(_Deleted(place))
                else:
                    of_this = by_coordinator.setdefault(place.coordinator, [])
                    of_this.append((len(answers), place, requested.offset))
                    answers.append(_Deleted(ErrorCode.REQUEST_TIMED_OUT))
        await asyncio.gather(
            *(
                self._delete_at(coordinator, deletions, answers, deadline)
                for coordinator, deletions in by_coordinator.items()
            )
        )
        in_order = iter(answers)
        return DeleteRecordsResponse(
            topics=tuple(
                _Topic(
                    name=topic.name,
                    partitions=tuple(
                        _partition(requested.partition_index, next(in_order))
                        for requested in topic.partitions
                    ),
                )
                for topic in request.topics
            )
        )

    async def _delete_at(
        self,
        coordinator: int,
        deletions: Sequence[tuple[int, CoordinatedPartition, int]],
        answers: list[_Deleted],
        deadline: float,
    ) -> None:
        """Delete records at one batch coordinator, and write the results into `answers`."""
        for chunk in split_chunks(deletions):
            await self._delete_chunk(coordinator, chunk, answers, deadline)

    async def _delete_chunk(
        self,
        coordinator: int,
        deletions: Sequence[tuple[int, CoordinatedPartition, int]],
        answers: list[_Deleted],
        deadline: float,
    ) -> None:
        """Send one deletion request, and wait until the local replica shows the results."""
        topic = DeleteDisklessRecordsRequest.Topic
        request = DeleteDisklessRecordsRequest(
            coordinator_partition=coordinator,
            topics=tuple(
                topic(
                    topic_id=place.topic_id,
                    partitions=(topic.Partition(partition_index=place.partition, offset=offset),),
                )
                for _, place, offset in deletions
            ),
        )
        try:
            answer = await self._calls.within(
                self._cluster.leader(coordinator).call(request), deadline - _now()
            )
        except CoordinatorError as error:
            code = _CODES.get(error.code, ErrorCode.REQUEST_TIMED_OUT)
            for index, _, _ in deletions:
                answers[index] = _Deleted(code)
            return
        if answer is None:
            return
        moved: list[tuple[CoordinatedPartition, int]] = []
        for (index, place, _), response in zip(deletions, answer.responses, strict=True):
            result = response.partitions[0]
            code = _CODES.get(result.error_code, result.error_code)
            answers[index] = _Deleted(code, result.low_watermark)
            if not code:
                moved.append((place, result.low_watermark))
        await self._wait_until_visible(coordinator, moved, min(deadline, _now() + SEEN_HERE_S))

    async def _wait_until_visible(
        self, coordinator: int, moved: list[tuple[CoordinatedPartition, int]], deadline: float
    ) -> None:
        while moved:
            moved = await self._filter_unseen(coordinator, moved)
            left_s = deadline - _now()
            if left_s <= 0:
                return
            if moved:
                await self._news.wait(min(left_s, LOOK_AGAIN_S))

    async def _filter_unseen(
        self, coordinator: int, moved: list[tuple[CoordinatedPartition, int]]
    ) -> list[tuple[CoordinatedPartition, int]]:
        """Return the log start offsets that this broker's replica has not yet applied."""
        replica = self._cluster.replica(coordinator)
        if replica is None:
            return []  # nothing is read here
        topic = FindBatchesRequest.Topic
        request = FindBatchesRequest(
            coordinator_partition=coordinator,
            topics=tuple(
                topic(
                    topic_id=place.topic_id,
                    partitions=(
                        topic.Partition(
                            partition_index=place.partition, offset=low_watermark, max_bytes=0
                        ),
                    ),
                )
                for place, low_watermark in moved
            ),
            max_bytes=0,
        )
        try:
            answer = await replica.call(request)
        except CoordinatorError:
            return []
        return [
            start
            for start, response in zip(moved, answer.responses, strict=True)
            if -1 < response.partitions[0].log_start_offset < start[1]
        ]


def _now() -> float:
    return asyncio.get_running_loop().time()


def _partition(index: int, found: _Deleted) -> _Partition:
    return _Partition(
        partition_index=index,
        low_watermark=-1 if found.error else found.low_watermark,
        error_code=found.error,
    )
