"""Cuts a large request into slices, so that others have their turns in between.

What a request asks of ten thousand partitions, or of as many keys, is ten thousand decisions that
have nothing to do with one another. They are decided some at a time, each part once the one before
is answered, and the answers are put together as if it had been one.

The trap: a slice that fails without effect proves that of itself alone. Once another slice was
answered, the outcome of the whole request is unknown.

Source: docs/design/state-machines.md#bounded-work.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Final, TypeVar
from uuid import UUID

from coordinator.batch.decide.objects import MAX_FILES
from coordinator.batch.settings import MAX_PARTITIONS
from coordinator.errors import CoordinatorError
from records.kafka_errors import ErrorCode
from records.rpc.batch_coordinator import (
    DeleteDisklessRecordsRequest,
    DeleteDisklessRecordsResponse,
)
from records.rpc.objects import DeleteFilesRequest, DeleteFilesResponse

SLICE: Final = 500
"""Partitions or keys: 2-4 ms to decide, and as much to apply."""

Q = TypeVar("Q")
R = TypeVar("R")

_Answered = DeleteDisklessRecordsResponse.Topic
_Asked = DeleteDisklessRecordsRequest.Topic
_Row = tuple[UUID, _Asked.Partition]


async def delete_records(
    request: DeleteDisklessRecordsRequest,
    ask: Callable[[DeleteDisklessRecordsRequest], Awaitable[DeleteDisklessRecordsResponse]],
) -> DeleteDisklessRecordsResponse:
    """Send a large DeleteDisklessRecords request as smaller requests; join the responses.

    Repeated rows of a partition are refused.
    """
    if sum(len(topic.partitions) for topic in request.topics) <= SLICE:
        return await ask(request)
    seen: set[tuple[UUID, int]] = set()
    rows: list[_Row] = []
    is_asked: list[bool] = []  # of each row of the request, in order
    for topic in request.topics:
        for partition in topic.partitions:
            key = (topic.topic_id, partition.partition_index)
            is_asked.append(key not in seen and len(rows) < MAX_PARTITIONS)
            if is_asked[-1]:
                seen.add(key)
                rows.append((topic.topic_id, partition))
    slices = [
        DeleteDisklessRecordsRequest(
            topics=tuple(_topics(rows[begin : begin + SLICE])),
            coordinator_partition=request.coordinator_partition,
        )
        for begin in range(0, len(rows), SLICE)
    ]
    answers = await _each(slices, ask)
    told = (row for answer in answers for topic in answer.responses for row in topic.partitions)
    asked = iter(is_asked)
    return DeleteDisklessRecordsResponse(
        responses=tuple(
            _Answered(
                topic_id=topic.topic_id,
                partitions=tuple(
                    next(told) if next(asked) else _not_asked(partition.partition_index)
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        )
    )


def _not_asked(partition: int) -> _Answered.Partition:
    code = ErrorCode.INVALID_REQUEST
    return _Answered.Partition(partition_index=partition, error_code=code, low_watermark=-1)


def _topics(rows: list[_Row]) -> Iterator[_Asked]:
    for topic_id, named in groupby(rows, key=itemgetter(0)):
        yield _Asked(topic_id=topic_id, partitions=tuple(partition for _, partition in named))


async def delete_files(
    request: DeleteFilesRequest,
    ask: Callable[[DeleteFilesRequest], Awaitable[DeleteFilesResponse]],
) -> DeleteFilesResponse:
    """Send a large DeleteFiles request as smaller requests; join the responses.

    A request above the limit is sent whole.
    """
    keys = request.object_keys
    if not SLICE < len(keys) <= MAX_FILES:
        return await ask(request)
    slices = [
        DeleteFilesRequest(
            coordinator_partition=request.coordinator_partition,
            object_keys=keys[begin : begin + SLICE],
        )
        for begin in range(0, len(keys), SLICE)
    ]
    answers = await _each(slices, ask)
    codes = tuple(code for answer in answers for code in answer.key_error_codes)
    return DeleteFilesResponse(key_error_codes=codes)


async def _each(slices: list[Q], ask: Callable[[Q], Awaitable[R]]) -> list[R]:
    answers: list[R] = []
    for part in slices:
        try:
            answers.append(await ask(part))
        except CoordinatorError as error:
            if not answers:
                raise
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            raise CoordinatorError(code, f"some of it was done: {error}") from error
    return answers
