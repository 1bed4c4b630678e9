"""The calls of a batch coordinator as values: which request is which method, and how "no" travels.

A coordinator that cannot answer raises CoordinatorError; over a socket that has to be a response.
Some responses have an error of their own, others only one for each topic or partition: there the
same error stands everywhere, and `refused` finds it again on the other side.

Source: KIP-1164, Public Interfaces;
docs/design/batch-coordinator.md#one-interface-three-implementations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from coordinator.batch.interface import BatchCoordinator, DescribingCoordinator
from coordinator.errors import CoordinatorError
from records.kafka_errors import ErrorCode
from records.rpc.base import Request, Response
from records.rpc.batch_coordinator import (
    ApplyRetentionRequest,
    ApplyRetentionResponse,
    CommitBatchesRequest,
    CommitBatchesResponse,
    DeleteDisklessRecordsRequest,
    DeleteDisklessRecordsResponse,
    DeleteDisklessTopicsRequest,
    DeleteDisklessTopicsResponse,
    FindBatchesRequest,
    FindBatchesResponse,
    InitDisklessTopicsRequest,
    InitDisklessTopicsResponse,
    ListDisklessOffsetsRequest,
    ListDisklessOffsetsResponse,
    ReleaseDisklessPartitionsRequest,
    ReleaseDisklessPartitionsResponse,
)
from records.rpc.objects import (
    AcquireObjectLeaseRequest,
    AcquireObjectLeaseResponse,
    DeleteFilesRequest,
    DeleteFilesResponse,
    DescribeDisklessObjectRequest,
    DescribeDisklessObjectResponse,
    DescribeDisklessTopicsRequest,
    DescribeDisklessTopicsResponse,
    GetFilesToDeleteRequest,
    GetFilesToDeleteResponse,
    IsSafeToDeleteFileRequest,
    IsSafeToDeleteFileResponse,
    MarkOrphansRequest,
    MarkOrphansResponse,
    ReleaseObjectLeaseRequest,
    ReleaseObjectLeaseResponse,
)


class Coordinator(BatchCoordinator, DescribingCoordinator, Protocol):
    """All that a coordinator answers."""


RAISED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    }
)
"""Codes that are no answer: what was raised on the other side."""


@dataclass(frozen=True, slots=True)
class Call:
    """One method, and the messages it travels in."""

    method: str
    request: type[Request]
    response: type[Response]
    refuse: Callable[[Any, int, str], Response]  # (request, error code, message)
    error_of: Callable[[Any], int]  # of a response: the code that stands for all of it, or 0


def _whole(method: str, request: type[Request], response: Any) -> Call:
    """A response with an error of its own."""

    def refuse(_: Any, code: int, message: str) -> Response:
        return response(error_code=int(code), error_message=message)  # type: ignore[no-any-return]

    return Call(method, request, response, refuse, lambda answer: int(answer.error_code))


def _init_topics() -> Call:
    def refuse(request: InitDisklessTopicsRequest, code: int, message: str) -> Response:
        result = InitDisklessTopicsResponse.TopicResult
        return InitDisklessTopicsResponse(
            responses=tuple(
                result(topic_id=topic.topic_id, error_code=int(code), error_message=message)
                for topic in request.topics
            )
        )

    return Call(
        "create_topic_and_partitions",
        InitDisklessTopicsRequest,
        InitDisklessTopicsResponse,
        refuse,
        lambda answer: _common(topic.error_code for topic in answer.responses),
    )


def _delete_topics() -> Call:
    def refuse(request: DeleteDisklessTopicsRequest, code: int, _: str) -> Response:
        result = DeleteDisklessTopicsResponse.TopicResult
        return DeleteDisklessTopicsResponse(
            responses=tuple(
                result(topic_id=topic_id, error_code=int(code)) for topic_id in request.topic_ids
            )
        )

    return Call(
        "delete_topics",
        DeleteDisklessTopicsRequest,
        DeleteDisklessTopicsResponse,
        refuse,
        lambda answer: _common(topic.error_code for topic in answer.responses),
    )


def _by_partition(method: str, request: type[Request], response: Any, **unknown: object) -> Call:
    """An error for each partition; `unknown`: what stands in the other fields then."""

    def refuse(asked: Any, code: int, _: str) -> Response:
        topic_type = response.Topic
        return response(  # type: ignore[no-any-return]
            responses=tuple(
                topic_type(
                    topic_id=topic.topic_id,
                    partitions=tuple(
                        topic_type.Partition(
                            partition_index=partition.partition_index,
                            error_code=int(code),
                            **unknown,
                        )
                        for partition in topic.partitions
                    ),
                )
                for topic in asked.topics
            )
        )

    def error_of(answer: Any) -> int:
        return _common(p.error_code for topic in answer.responses for p in topic.partitions)

    return Call(method, request, response, refuse, error_of)


def _common(codes: Any) -> int:
    """The one code that stands everywhere; 0 if there are several, or nothing is there."""
    found = set(codes)
    return int(found.pop()) if len(found) == 1 else 0


CALLS: Final[tuple[Call, ...]] = (
    _init_topics(),
    _whole("commit_file", CommitBatchesRequest, CommitBatchesResponse),
    _delete_topics(),
    _by_partition(
        "delete_records",
        DeleteDisklessRecordsRequest,
        DeleteDisklessRecordsResponse,
        low_watermark=-1,
    ),
    _by_partition(
        "find_batches",
        FindBatchesRequest,
        FindBatchesResponse,
        log_start_offset=-1,
        high_watermark=-1,
        batches=(),
    ),
    _by_partition(
        "list_offsets",
        ListDisklessOffsetsRequest,
        ListDisklessOffsetsResponse,
        timestamp=-1,
        offset=-1,
    ),
    _whole("acquire_lease", AcquireObjectLeaseRequest, AcquireObjectLeaseResponse),
    _whole("release_lease", ReleaseObjectLeaseRequest, ReleaseObjectLeaseResponse),
    _whole("get_files_to_delete", GetFilesToDeleteRequest, GetFilesToDeleteResponse),
    _whole("delete_files", DeleteFilesRequest, DeleteFilesResponse),
    _whole("is_safe_to_delete_file", IsSafeToDeleteFileRequest, IsSafeToDeleteFileResponse),
    _whole("describe_topics", DescribeDisklessTopicsRequest, DescribeDisklessTopicsResponse),
    _whole("describe_object", DescribeDisklessObjectRequest, DescribeDisklessObjectResponse),
    _by_partition(
        "release_partitions", ReleaseDisklessPartitionsRequest, ReleaseDisklessPartitionsResponse
    ),
    _by_partition(
        "apply_retention", ApplyRetentionRequest, ApplyRetentionResponse, low_watermark=-1
    ),
    _whole("mark_orphans", MarkOrphansRequest, MarkOrphansResponse),
)
"""Every call, by rising api key."""

BY_REQUEST: Final = {call.request: call for call in CALLS}
"""The same, by request class."""


def refused(call: Call, response: Response) -> CoordinatorError | None:
    """What was raised on the other side; None if this is an answer."""
    code = call.error_of(response)
    if code not in RAISED:
        return None
    message = getattr(response, "error_message", None)
    return CoordinatorError(ErrorCode(code), message or "the coordinator says so")
