"""Error responses to clients: each kind of response carries its error codes elsewhere.

Source: KIP-345 (LeaveGroup's members), KIP-709 (OffsetFetch's groups), KIP-559 (protocol names).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from coordinator.groups.events import InboundRequest
from records.kafka_errors import ErrorCode
from records.rpc import groups as rpc
from records.rpc.base import Response

NULL_PROTOCOL_VERSION = 7  # JoinGroup: the first version whose protocol name may be null
GROUPS_VERSION = 8  # OffsetFetch: the first version that names several groups
MEMBERS_VERSION = 3  # LeaveGroup: the first version that names several members


def error_response(
    inbound: InboundRequest, code: ErrorCode, *, member_id: str | None = None
) -> Response:
    """Build a response to any group request with `code` for the whole request."""
    request: Any = inbound.request
    match request:
        case rpc.JoinGroupRequest():
            return rpc.JoinGroupResponse(
                error_code=int(code),
                protocol_name=None if inbound.version >= NULL_PROTOCOL_VERSION else "",
                leader="",
                member_id=request.member_id if member_id is None else member_id,
                members=(),
            )
        case rpc.SyncGroupRequest():
            return rpc.SyncGroupResponse(error_code=int(code), assignment=b"")
        case rpc.HeartbeatRequest():
            return rpc.HeartbeatResponse(error_code=int(code))
        case rpc.LeaveGroupRequest():
            return rpc.LeaveGroupResponse(error_code=int(code))
        case rpc.OffsetCommitRequest():
            return commit_response(request, {}, code)
        case rpc.TxnOffsetCommitRequest():
            return transactional_response(request, {}, code)
        case rpc.OffsetFetchRequest():
            return _refuse_fetch(request, inbound.version, code)
        case rpc.DescribeGroupsRequest():
            return rpc.DescribeGroupsResponse(
                groups=tuple(describe_error(name, code) for name in request.groups)
            )
        case rpc.DeleteGroupsRequest():
            return delete_response(request.groups_names, code)
        case rpc.OffsetDeleteRequest():
            return rpc.OffsetDeleteResponse(error_code=int(code), topics=())
        case rpc.ListGroupsRequest():
            return rpc.ListGroupsResponse(error_code=int(code), groups=())
        case _:
            raise TypeError(f"not a group request: {request}")


def delete_response(names: Iterable[str], code: ErrorCode) -> rpc.DeleteGroupsResponse:
    """Build a DeleteGroups response with the same code for every group."""
    result = rpc.DeleteGroupsResponse.DeletableGroupResult
    return rpc.DeleteGroupsResponse(
        results=tuple(result(group_id=name, error_code=int(code)) for name in dict.fromkeys(names))
    )


def commit_response(
    request: rpc.OffsetCommitRequest, errors: dict[tuple[int, int], ErrorCode], otherwise: ErrorCode
) -> rpc.OffsetCommitResponse:
    """Build an OffsetCommit response with the error of each partition.

    `errors` has them by the indexes of topic and partition; the others get `otherwise`.
    """
    topic_type = rpc.OffsetCommitResponse.OffsetCommitResponseTopic
    return rpc.OffsetCommitResponse(
        topics=tuple(
            topic_type(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=tuple(
                    topic_type.OffsetCommitResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=int(errors.get((t, p), otherwise)),
                    )
                    for p, partition in enumerate(topic.partitions)
                ),
            )
            for t, topic in enumerate(request.topics)
        )
    )


def transactional_response(
    request: rpc.TxnOffsetCommitRequest,
    errors: dict[tuple[int, int], ErrorCode],
    otherwise: ErrorCode,
) -> rpc.TxnOffsetCommitResponse:
    """Build a TxnOffsetCommit response with the error of each partition."""
    topic_type = rpc.TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
    return rpc.TxnOffsetCommitResponse(
        topics=tuple(
            topic_type(
                name=topic.name,
                partitions=tuple(
                    topic_type.TxnOffsetCommitResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=int(errors.get((t, p), otherwise)),
                    )
                    for p, partition in enumerate(topic.partitions)
                ),
            )
            for t, topic in enumerate(request.topics)
        )
    )


def _refuse_fetch(request: rpc.OffsetFetchRequest, version: int, code: ErrorCode) -> Response:
    if version >= GROUPS_VERSION:
        group_type = rpc.OffsetFetchResponse.OffsetFetchResponseGroup
        return rpc.OffsetFetchResponse(
            groups=tuple(
                group_type(group_id=group.group_id, topics=(), error_code=int(code))
                for group in request.groups
            )
        )
    topic_type = rpc.OffsetFetchResponse.OffsetFetchResponseTopic
    return rpc.OffsetFetchResponse(  # version 1 has an error code in each partition only
        error_code=int(code),
        topics=tuple(
            topic_type(
                name=topic.name,
                partitions=tuple(
                    topic_type.OffsetFetchResponsePartition(
                        partition_index=index,
                        committed_offset=-1,
                        error_code=int(code),
                    )
                    for index in topic.partition_indexes
                ),
            )
            for topic in request.topics or ()
        ),
    )


def describe_error(
    group_id: str, code: ErrorCode, *, state: str = "", message: str | None = None
) -> rpc.DescribeGroupsResponse.DescribedGroup:
    """Build a DescribeGroups entry for a consumer group that cannot be described."""
    return rpc.DescribeGroupsResponse.DescribedGroup(
        error_code=int(code),
        error_message=message,
        group_id=group_id,
        group_state=state,
        protocol_type="",
        protocol_data="",
        members=(),
    )
