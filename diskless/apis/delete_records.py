"""DeleteRecords: a log start moves forward, decided by the partition's coordinator.

The answer waits, as long as the request allows, until this broker's replica has the new log start
too, so that who deletes and then reads through the same broker does not see what is gone. That is
a courtesy: what was decided is answered, seen here or not.

Source: KIP-107; KIP-630 (internal topics: POLICY_VIOLATION); upstream's ReplicaManager
(deleteRecords).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from coordinator.controller.image import INTERNAL_TOPICS
from coordinator.errors import CoordinatorError
from diskless.apis.forwarding import Errands, seconds
from diskless.apis.partition_offsets import Place, cut, find_place
from diskless.cluster import Cluster
from diskless.fetch.commit_notifications import News
from diskless.loop_turns import Pace
from records.kafka_errors import ErrorCode
from records.rpc.batch_coordinator import DeleteDisklessRecordsRequest, FindBatchesRequest
from records.rpc.partitions import DeleteRecordsRequest, DeleteRecordsResponse

SEEN_HERE_S: Final = 2.0
"""How long an answer is held back for this broker's own replica, at most."""

LOOK_AGAIN_S: Final = 0.1

_Topic = DeleteRecordsResponse.DeleteRecordsTopicResult
_Partition = _Topic.DeleteRecordsPartitionResult

_CODES: Final[Mapping[int, int]] = {
    ErrorCode.UNKNOWN_TOPIC_ID: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.NOT_LEADER_OR_FOLLOWER,
}
"""As clients know it; what is not here is the same to them."""


class _Deleted(NamedTuple):
    error: int
    low_watermark: int = -1


class DeleteRecords:
    """For one broker. Belongs to the event loop."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._errands = Errands()
        self._news = News()
        cluster.on_commit(lambda _: self._news.tell())

    async def delete(self, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        """The answer; each partition stands or falls alone."""
        deadline = _now() + seconds(request.timeout_ms)
        image, pace = self._cluster.image, Pace()
        answers: list[_Deleted] = []
        by_coordinator: dict[int, list[tuple[int, Place, int]]] = {}
        for topic in request.topics:
            for asked in topic.partitions:
                await pace.step()
                place = find_place(image, topic.name, asked.partition_index)
                if topic.name in INTERNAL_TOPICS:
                    answers.append(_Deleted(ErrorCode.POLICY_VIOLATION))
                elif isinstance(place, ErrorCode):
                    answers.append(_Deleted(place))
                else:
                    some = by_coordinator.setdefault(place.coordinator, [])
                    some.append((len(answers), place, asked.offset))
                    answers.append(_Deleted(ErrorCode.REQUEST_TIMED_OUT))
        await asyncio.gather(
            *(
                self._at(coordinator, some, answers, deadline)
                for coordinator, some in by_coordinator.items()
            )
        )
        told = iter(answers)
        return DeleteRecordsResponse(
            topics=tuple(
                _Topic(
                    name=topic.name,
                    partitions=tuple(
                        _partition(asked.partition_index, next(told)) for asked in topic.partitions
                    ),
                )
                for topic in request.topics
            )
        )

    async def _at(
        self,
        coordinator: int,
        some: Sequence[tuple[int, Place, int]],
        answers: list[_Deleted],
        deadline: float,
    ) -> None:
        """What one coordinator says, into the answers; the rest stays timed out."""
        for piece in cut(some):
            await self._some(coordinator, piece, answers, deadline)

    async def _some(
        self,
        coordinator: int,
        some: Sequence[tuple[int, Place, int]],
        answers: list[_Deleted],
        deadline: float,
    ) -> None:
        topic = DeleteDisklessRecordsRequest.Topic
        request = DeleteDisklessRecordsRequest(
            coordinator_partition=coordinator,
            topics=tuple(
                topic(
                    topic_id=place.topic_id,
                    partitions=(topic.Partition(partition_index=place.partition, offset=offset),),
                )
                for _, place, offset in some
            ),
        )
        try:
            answer = await self._errands.within(
                self._cluster.leader(coordinator).call(request), deadline - _now()
            )
        except CoordinatorError as error:
            code = _CODES.get(error.code, ErrorCode.REQUEST_TIMED_OUT)
            for at, _, _ in some:
                answers[at] = _Deleted(code)
            return
        if answer is None:
            return
        moved: list[tuple[Place, int]] = []
        for (at, place, _), told in zip(some, answer.responses, strict=True):
            result = told.partitions[0]
            code = _CODES.get(result.error_code, result.error_code)
            answers[at] = _Deleted(code, result.low_watermark)
            if not code:
                moved.append((place, result.low_watermark))
        await self._until_seen(coordinator, moved, min(deadline, _now() + SEEN_HERE_S))

    async def _until_seen(
        self, coordinator: int, moved: list[tuple[Place, int]], deadline: float
    ) -> None:
        while moved:
            moved = await self._unseen(coordinator, moved)
            left_s = deadline - _now()
            if left_s <= 0:
                return
            if moved:
                await self._news.wait(min(left_s, LOOK_AGAIN_S))

    async def _unseen(
        self, coordinator: int, moved: list[tuple[Place, int]]
    ) -> list[tuple[Place, int]]:
        """Of these log starts, those that our replica does not have yet."""
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
            one
            for one, told in zip(moved, answer.responses, strict=True)
            if -1 < told.partitions[0].log_start_offset < one[1]
        ]


def _now() -> float:
    return asyncio.get_running_loop().time()


def _partition(index: int, found: _Deleted) -> _Partition:
    return _Partition(
        partition_index=index,
        low_watermark=-1 if found.error else found.low_watermark,
        error_code=found.error,
    )
