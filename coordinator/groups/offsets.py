"""Translates offset requests between clients and the group log: names, ids, versions.

An offset belongs to a topic, not to a name: it is stored with the topic's id, and is not returned
once another topic has that name.

Source: KIP-709 (several groups), KIP-848's topic ids in OffsetCommit and OffsetFetch v10.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from coordinator.groups.error_responses import GROUPS_VERSION
from coordinator.groups.events import Topics
from coordinator.groups.settings import MAX_FETCH_BYTES, MAX_OFFSETS
from records.kafka_errors import ErrorCode
from records.rpc import group_log
from records.rpc import groups as rpc
from records.rpc.base import Response
from records.types import ZERO_UUID

IDS_VERSION = 10
"""OffsetCommit and OffsetFetch: the first version that names topics by their ids."""

_LATEST_MS: Final = 2**63 - 1

CommitTopic = group_log.CommitGroupOffsetsRequest.Commit.Topic
Errors = dict[tuple[int, int], ErrorCode]


def has_too_many_offsets(
    request: rpc.OffsetCommitRequest | rpc.TxnOffsetCommitRequest | rpc.OffsetDeleteRequest,
) -> bool:
    """Return whether the request has more offsets than one log record may contain."""
    return sum(len(topic.partitions) for topic in request.topics) > MAX_OFFSETS


def without_transaction(request: rpc.TxnOffsetCommitRequest) -> rpc.OffsetCommitRequest:
    """Convert a TxnOffsetCommit request into an OffsetCommit request with the same offsets."""
    topic_type = rpc.OffsetCommitRequest.OffsetCommitRequestTopic
    return rpc.OffsetCommitRequest(
        group_id=request.group_id,
        generation_id_or_member_epoch=request.generation_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        topics=tuple(
            topic_type(
                name=topic.name,
                partitions=tuple(
                    topic_type.OffsetCommitRequestPartition(
                        partition_index=partition.partition_index,
                        committed_offset=partition.committed_offset,
                        committed_leader_epoch=partition.committed_leader_epoch,
                        committed_metadata=partition.committed_metadata,
                    )
                    for partition in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )


def validate_commit(
    request: rpc.OffsetCommitRequest,
    version: int,
    topics: Topics,
    *,
    max_metadata: int,
    wall_ms: int,
) -> tuple[tuple[CommitTopic, ...], Errors]:
    """Return the topics that can be committed, and the errors of the other partitions.

    Errors are keyed by the indexes of topic and partition in the request.
    """
    errors: Errors = {}
    wanted = []
    expire_at_ms = -1
    if request.retention_time_ms >= 0:
        expire_at_ms = min(wall_ms + request.retention_time_ms, _LATEST_MS)
    for t, topic in enumerate(request.topics):
        name = topics.name(topic.topic_id) if version >= IDS_VERSION else topic.name
        count = None if name is None else topics.partition_count(name)
        unknown = (
            ErrorCode.UNKNOWN_TOPIC_ID
            if version >= IDS_VERSION
            else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
        partitions = []
        for p, partition in enumerate(topic.partitions):
            metadata = partition.committed_metadata or ""
            if name is None or count is None:
                errors[t, p] = unknown
            elif not 0 <= partition.partition_index < count:
                errors[t, p] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif len(metadata) > max_metadata or len(metadata.encode()) > max_metadata:
                errors[t, p] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                partitions.append(
                    CommitTopic.Partition(
                        partition_index=partition.partition_index,
                        committed_offset=partition.committed_offset,
                        leader_epoch=partition.committed_leader_epoch,
                        metadata=metadata,
                        expire_at_ms=expire_at_ms,
                    )
                )
        if partitions and name is not None:
            wanted.append(
                CommitTopic(
                    topic_name=name,
                    topic_id=topics.topic_id(name) or ZERO_UUID,
                    partitions=tuple(partitions),
                )
            )
    return tuple(wanted), errors


DeletedTopic = group_log.RemoveGroupOffsetsRequest.Topic


def validate_deletion(
    request: rpc.OffsetDeleteRequest, topics: Topics, is_subscribed: Callable[[str], bool]
) -> tuple[tuple[DeletedTopic, ...], Errors]:
    """Return the partitions with deletable offsets, and the errors of the other partitions.

    Errors are keyed by the indexes of topic and partition in the request. Source: KIP-496.
    """
    errors: Errors = {}
    deleted = []
    for t, topic in enumerate(request.topics):
        count = topics.partition_count(topic.name) or 0
        subscribed = count > 0 and is_subscribed(topic.name)
        partitions = []
        for p, partition in enumerate(topic.partitions):
            if not 0 <= partition.partition_index < count:
                errors[t, p] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif subscribed:
                errors[t, p] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            else:
                partitions.append(partition.partition_index)
        if partitions:
            deleted.append(DeletedTopic(topic_name=topic.name, partitions=tuple(partitions)))
    return tuple(deleted), errors


def deletion_response(request: rpc.OffsetDeleteRequest, errors: Errors) -> rpc.OffsetDeleteResponse:
    """Build an OffsetDelete response with the error of each partition."""
    topic_type = rpc.OffsetDeleteResponse.OffsetDeleteResponseTopic
    return rpc.OffsetDeleteResponse(
        topics=tuple(
            topic_type(
                name=topic.name,
                partitions=tuple(
                    topic_type.OffsetDeleteResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=int(errors.get((t, p), ErrorCode.NONE)),
                    )
                    for p, partition in enumerate(topic.partitions)
                ),
            )
            for t, topic in enumerate(request.topics)
        )
    )


class FetchTopic(NamedTuple):
    """A topic in an OffsetFetch, by name or by id as the client named it."""

    name: str | None  # None: an unknown id
    topic_id: UUID
    partitions: Sequence[int]


class FetchGroup(NamedTuple):
    """A group in an OffsetFetch."""

    group_id: str
    topics: Sequence[FetchTopic] | None  # None: all topics with offsets
    require_stable: bool


def requested_groups(
    request: rpc.OffsetFetchRequest, version: int, topics: Topics
) -> list[FetchGroup]:
    """Return the groups that an OffsetFetch request of any version names."""
    if version < GROUPS_VERSION:
        wanted = (
            None
            if request.topics is None
            else [FetchTopic(t.name, ZERO_UUID, t.partition_indexes) for t in request.topics]
        )
        return [FetchGroup(request.group_id, wanted, request.require_stable)]
    return [
        FetchGroup(
            group.group_id,
            None
            if group.topics is None
            else [
                FetchTopic(
                    topics.name(topic.topic_id) if version >= IDS_VERSION else topic.name,
                    topic.topic_id,
                    topic.partition_indexes,
                )
                for topic in group.topics
            ],
            request.require_stable,
        )
        for group in request.groups
    ]


def fetch_request(group: FetchGroup) -> group_log.FetchGroupStateRequest:
    """Build the group log's request for one consumer group's offsets."""
    return group_log.FetchGroupStateRequest(
        group_id=group.group_id,
        topics=None
        if group.topics is None
        else tuple(
            group_log.FetchGroupStateRequest.Topic(
                topic_name=topic.name, partitions=tuple(topic.partitions)
            )
            for topic in group.topics
            if topic.name is not None
        ),
        require_stable=group.require_stable,
    )


def resolve_names(group: FetchGroup, topics: Topics) -> FetchGroup:
    """Return the consumer group with its topic ids resolved to the names in the cluster image."""
    if group.topics is None:
        return group
    return group._replace(
        topics=[
            topic if not topic.topic_id.int else topic._replace(name=topics.name(topic.topic_id))
            for topic in group.topics
        ]
    )


def needs_newer_image(
    group: FetchGroup, state: group_log.FetchGroupStateResponse | None, version: int, topics: Topics
) -> bool:
    """Return whether an offset may be missing because the cluster image is too old.

    An id that is missing in the image may belong to a new topic; so may the id of a committed
    offset if the image has another id by that name.
    """
    if any(topic.name is None for topic in group.topics or ()):
        return True
    for topic in () if state is None else state.topics:
        current = topics.topic_id(topic.topic_name)
        if current is None:
            if version >= IDS_VERSION:
                return True
        elif any(partition.topic_id not in (ZERO_UUID, current) for partition in topic.partitions):
            return True
    return False


def exceeds_fetch_limit(request: group_log.FetchGroupStateRequest) -> bool:
    """Return whether a FetchGroupState request is too large for the group log.

    It may be, because a client may repeat topics.
    """
    topics = request.topics or ()
    size = sum(len(topic.topic_name.encode()) + 8 + 4 * len(topic.partitions) for topic in topics)
    return size > MAX_FETCH_BYTES


FetchedGroup = tuple[FetchGroup, ErrorCode, group_log.FetchGroupStateResponse | None]


def fetch_response(found: Sequence[FetchedGroup], version: int, topics: Topics) -> Response:
    """Build an OffsetFetch response from the result of each consumer group."""
    if version < GROUPS_VERSION:
        group, code, state = found[0]
        partition_type: Any = rpc.OffsetFetchResponse.OffsetFetchResponseTopic
        return rpc.OffsetFetchResponse(
            error_code=int(code),
            topics=_topic_responses(group, code, state, topics, version, partition_type),
        )
    group_type = rpc.OffsetFetchResponse.OffsetFetchResponseGroup
    return rpc.OffsetFetchResponse(
        groups=tuple(
            group_type(
                group_id=group.group_id,
                error_code=int(code),
                topics=()
                if code
                else _topic_responses(
                    group, code, state, topics, version, group_type.OffsetFetchResponseTopics
                ),
            )
            for group, code, state in found
        )
    )


StoredOffset = group_log.FetchGroupStateResponse.Topic.Partition


def _topic_responses(
    group: FetchGroup,
    code: ErrorCode,
    state: group_log.FetchGroupStateResponse | None,
    topics: Topics,
    version: int,
    topic_type: Any,
) -> tuple[Any, ...]:
    """Build the responses of one consumer group's requested topics."""
    stored: dict[str, dict[int, StoredOffset]] = {
        topic.topic_name: {partition.partition_index: partition for partition in topic.partitions}
        for topic in (() if state is None else state.topics)
    }
    wanted = group.topics
    if wanted is None:
        wanted = [
            FetchTopic(name, topics.topic_id(name) or ZERO_UUID, sorted(partitions))
            for name, partitions in stored.items()
        ]
        if version >= IDS_VERSION:  # a deleted topic has no id to be named by
            wanted = [topic for topic in wanted if topic.topic_id != ZERO_UUID]
    answers = []
    for topic in wanted:
        current = None if topic.name is None else topics.topic_id(topic.name)
        known = stored.get(topic.name or "", {})
        error = ErrorCode.UNKNOWN_TOPIC_ID if topic.name is None else code
        partitions = tuple(
            _partition_response(topic_type, index, _if_same_topic(known.get(index), current), error)
            for index in topic.partitions
        )
        if version >= IDS_VERSION:
            answers.append(topic_type(topic_id=topic.topic_id, partitions=partitions))
        else:
            answers.append(topic_type(name=topic.name or "", partitions=partitions))
    return tuple(answers)


def _if_same_topic(committed: StoredOffset | None, current: UUID | None) -> StoredOffset | None:
    """Return the committed offset, or None if it belongs to an earlier topic of the same name."""
    if committed is None or current is None or committed.topic_id in (ZERO_UUID, current):
        return committed
    return None


def _partition_response(
    topic_type: Any, index: int, committed: StoredOffset | None, error: ErrorCode
) -> Any:
    is_old = topic_type is rpc.OffsetFetchResponse.OffsetFetchResponseTopic
    partition_type = (
        topic_type.OffsetFetchResponsePartition
        if is_old
        else topic_type.OffsetFetchResponsePartitions
    )
    if committed is not None and committed.is_unstable and not error:
        error = ErrorCode.UNSTABLE_OFFSET_COMMIT
    if committed is None or error:
        return partition_type(
            partition_index=index,
            committed_offset=-1,
            committed_leader_epoch=-1,
            metadata="",
            error_code=int(error),
        )
    return partition_type(
        partition_index=index,
        committed_offset=committed.committed_offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        error_code=0,
    )
