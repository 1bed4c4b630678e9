"""How "no" is said to a client: each response has another place for it.

Source: KIP-345 (LeaveGroup's members), KIP-709 (OffsetFetch's groups), KIP-559 (protocol names).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from coordinator.groups.errors import ErrorCode
from coordinator.groups.events import Asked
from records.rpc.base import Response
from records.rpc.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

NULL_PROTOCOL_VERSION = 7  # of JoinGroup: from here on a protocol's name may be null
GROUPS_VERSION = 8  # of OffsetFetch: from here on it asks for several groups
MEMBERS_VERSION = 3  # of LeaveGroup: from here on it names several members


def refuse(asked: Asked, code: ErrorCode, *, member_id: str | None = None) -> Response:
    """The response that says `code` of the whole request."""
    request: Any = asked.request
    match request:
        case JoinGroupRequest():
            return JoinGroupResponse(
                error_code=int(code),
                protocol_name=None if asked.version >= NULL_PROTOCOL_VERSION else "",
                leader="",
                member_id=request.member_id if member_id is None else member_id,
                members=(),
            )
        case SyncGroupRequest():
            return SyncGroupResponse(error_code=int(code), assignment=b"")
        case HeartbeatRequest():
            return HeartbeatResponse(error_code=int(code))
        case LeaveGroupRequest():
            return LeaveGroupResponse(error_code=int(code))
        case OffsetCommitRequest():
            return commit_answer(request, {}, code)
        case OffsetFetchRequest():
            return _refuse_fetch(request, asked.version, code)
        case DescribeGroupsRequest():
            return DescribeGroupsResponse(
                groups=tuple(described_error(name, code) for name in request.groups)
            )
        case DeleteGroupsRequest():
            return deleted(request.groups_names, code)
        case ListGroupsRequest():
            return ListGroupsResponse(error_code=int(code), groups=())
        case _:
            raise TypeError(f"no request of groups: {request}")


def deleted(names: Iterable[str], code: ErrorCode) -> DeleteGroupsResponse:
    """The same of each of these groups, once."""
    result = DeleteGroupsResponse.DeletableGroupResult
    return DeleteGroupsResponse(
        results=tuple(result(group_id=name, error_code=int(code)) for name in dict.fromkeys(names))
    )


def commit_answer(
    request: OffsetCommitRequest, errors: dict[tuple[int, int], ErrorCode], otherwise: ErrorCode
) -> OffsetCommitResponse:
    """An answer for each partition; `errors` by the places of topic and partition in it."""
    topic_type = OffsetCommitResponse.OffsetCommitResponseTopic
    return OffsetCommitResponse(
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


def _refuse_fetch(request: OffsetFetchRequest, version: int, code: ErrorCode) -> Response:
    if version >= GROUPS_VERSION:
        group_type = OffsetFetchResponse.OffsetFetchResponseGroup
        return OffsetFetchResponse(
            groups=tuple(
                group_type(group_id=group.group_id, topics=(), error_code=int(code))
                for group in request.groups
            )
        )
    topic_type = OffsetFetchResponse.OffsetFetchResponseTopic
    return OffsetFetchResponse(  # the first version has no place for it but with each partition
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


def described_error(
    group_id: str, code: ErrorCode, *, state: str = "", message: str | None = None
) -> DescribeGroupsResponse.DescribedGroup:
    """A group that nothing can be said of."""
    return DescribeGroupsResponse.DescribedGroup(
        error_code=int(code),
        error_message=message,
        group_id=group_id,
        group_state=state,
        protocol_type="",
        protocol_data="",
        members=(),
    )
