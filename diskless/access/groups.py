"""Guards of group requests: the group is allowed or denied, and then each topic of the request.

Source: upstream's KafkaApis (handleOffsetCommitRequest, handleOffsetFetchRequest, ...).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from coordinator.controller.api_operations import CHECKS
from coordinator.controller.authorizer import ResourceType
from coordinator.controller.guarding import (
    AUTHORIZATION_FAILED,
    Asked,
    Guard,
    Guarded,
    is_allowed,
    needs,
    refused,
    replace,
    split,
    without_denied,
)
from coordinator.groups.error_responses import describe_error, error_response
from coordinator.groups.events import InboundRequest
from diskless.access.topics import DENIED, is_topic_allowed
from records.kafka_errors import ErrorCode
from records.rpc import groups as rpc
from records.rpc.base import Response

GROUP: Final = ResourceType.GROUP
TOPIC: Final = ResourceType.TOPIC
TRANSACTIONAL_ID: Final = ResourceType.TRANSACTIONAL_ID
DENIED_GROUP: Final = AUTHORIZATION_FAILED[GROUP]

COMMITS_BY_ID: Final = 10  # OffsetCommit: the first version that gives topics by id
FETCHES_BY_ID: Final = 10
FIRST_WITH_ONE_ERROR: Final = 2  # OffsetFetch: before, each partition has the error
FETCHES_GROUPS: Final = 8  # OffsetFetch: the first version that names several groups

_COMMITTED: Final = rpc.OffsetCommitResponse.OffsetCommitResponseTopic
_IN_TRANSACTION: Final = rpc.TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
_FETCHED: Final = rpc.OffsetFetchResponse.OffsetFetchResponseTopic
_FETCHED_GROUP: Final = rpc.OffsetFetchResponse.OffsetFetchResponseGroup
_DELETED: Final = rpc.OffsetDeleteResponse.OffsetDeleteResponseTopic


def _refuse(request: Any, asked: Asked, code: ErrorCode = DENIED_GROUP) -> Guarded:
    """Refuse a whole group request."""
    inbound = InboundRequest(0, request, asked.version, "", "", "")
    return refused(error_response(inbound, code, member_id=""))


def _member(api_key: int) -> Guard:
    """Return the guard of an API that needs one operation on its group and nothing else."""
    (check,) = CHECKS[api_key]

    def guard(request: Any, asked: Asked) -> Guarded | None:
        if is_allowed(check, asked.access, request.group_id):
            return None
        return _refuse(request, asked)

    return guard


def _with_topics(api_key: int, deny: Callable[[Any], Any], by_id_from: int | None = None) -> Guard:
    """Return the guard of an API that needs operations on a group and on each topic.

    Args:  by_id_from: the first version that gives topics by id, if there is one.
    """
    of_group, of_topic = needs(api_key, GROUP), needs(api_key, TOPIC)
    of_id = [check for check in CHECKS[api_key] if check.kind is TRANSACTIONAL_ID]

    def guard(request: Any, asked: Asked) -> Guarded | None:
        for check in of_id:
            if not is_allowed(check, asked.access, request.transactional_id):
                return _refuse(request, asked, AUTHORIZATION_FAILED[TRANSACTIONAL_ID])
        if not is_allowed(of_group, asked.access, request.group_id):
            return _refuse(request, asked)
        by_id = by_id_from is not None and asked.version >= by_id_from
        return without_denied(
            request,
            "topics",
            "topics",
            lambda topic: is_topic_allowed(of_topic, asked, topic, by_id=by_id),
            deny,
        )

    return guard


def _denied_commit(topic: Any) -> Any:
    return _COMMITTED(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=tuple(
            _COMMITTED.OffsetCommitResponsePartition(
                partition_index=one.partition_index, error_code=DENIED
            )
            for one in topic.partitions
        ),
    )


def _denied_in_transaction(topic: Any) -> Any:
    return _IN_TRANSACTION(
        name=topic.name,
        partitions=tuple(
            _IN_TRANSACTION.TxnOffsetCommitResponsePartition(
                partition_index=one.partition_index, error_code=DENIED
            )
            for one in topic.partitions
        ),
    )


def _denied_deletion(topic: Any) -> Any:
    return _DELETED(
        name=topic.name,
        partitions=tuple(
            _DELETED.OffsetDeleteResponsePartition(
                partition_index=one.partition_index, error_code=DENIED
            )
            for one in topic.partitions
        ),
    )


# --- OffsetFetch --------------------------------------------------------------------------------

_FETCHES: Final = needs(9, GROUP)
_FETCHES_TOPIC: Final = needs(9, TOPIC)


def offset_fetch(request: rpc.OffsetFetchRequest, asked: Asked) -> Guarded | None:
    """Deny groups and topics; offsets of all topics are shown for those that may be described."""
    if asked.version < FETCHES_GROUPS:
        return _fetch_of_one_group(request, asked)
    groups, denied = split(
        request.groups, lambda group: is_allowed(_FETCHES, asked.access, group.group_id)
    )
    reduced, denied_topics = [], {}
    for group in groups:
        allowed, hidden = split(group.topics or (), lambda topic: _may_fetch(topic, asked))
        denied_topics[group.group_id] = hidden
        wants_all = group.topics is None
        reduced.append(group if wants_all else replace(group, topics=tuple(allowed)))

    def finish_group(group: Any) -> Any:
        if group.error_code:
            return group
        shown = [topic for topic in group.topics if _may_fetch(topic, asked)]
        hidden = [_denied_fetch_in_group(one) for one in denied_topics.get(group.group_id, ())]
        return replace(group, topics=(*shown, *hidden))

    def finish(response: Any) -> Response:
        refusals = [
            _FETCHED_GROUP(group_id=group.group_id, topics=(), error_code=int(DENIED_GROUP))
            for group in denied
        ]
        made: Response = replace(response, groups=(*map(finish_group, response.groups), *refusals))
        return made

    return Guarded(replace(request, groups=tuple(reduced)), finish)


def _may_fetch(topic: Any, asked: Asked) -> bool:
    by_id = asked.version >= FETCHES_BY_ID
    return is_topic_allowed(_FETCHES_TOPIC, asked, topic, by_id=by_id)


def _fetch_of_one_group(request: rpc.OffsetFetchRequest, asked: Asked) -> Guarded | None:
    if not is_allowed(_FETCHES, asked.access, request.group_id):
        if asked.version < FIRST_WITH_ONE_ERROR:
            return _refuse(request, asked)
        return refused(rpc.OffsetFetchResponse(error_code=int(DENIED_GROUP)))
    if request.topics is not None:
        return without_denied(
            request, "topics", "topics", lambda topic: _may_fetch(topic, asked), _denied_fetch
        )

    def finish(response: Any) -> Response:
        shown = tuple(topic for topic in response.topics if _may_fetch(topic, asked))
        made: Response = replace(response, topics=shown)
        return made

    return Guarded(request, finish)


def _denied_fetch(topic: Any) -> Any:
    return _FETCHED(
        name=topic.name,
        partitions=tuple(
            _FETCHED.OffsetFetchResponsePartition(
                partition_index=index, committed_offset=-1, error_code=DENIED
            )
            for index in topic.partition_indexes
        ),
    )


def _denied_fetch_in_group(topic: Any) -> Any:
    result = _FETCHED_GROUP.OffsetFetchResponseTopics
    return result(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=tuple(
            result.OffsetFetchResponsePartitions(
                partition_index=index, committed_offset=-1, error_code=DENIED
            )
            for index in topic.partition_indexes
        ),
    )


# --- lists of groups ----------------------------------------------------------------------------

_DESCRIBES: Final = needs(15, GROUP)
_LISTS: Final = needs(16, GROUP)
_DELETES: Final = needs(42, GROUP)


def describe_groups(request: rpc.DescribeGroupsRequest, asked: Asked) -> Guarded | None:
    """Deny groups, and say which operations the client may do on the others, if it asks."""
    allowed, denied = split(
        request.groups, lambda group: is_allowed(_DESCRIBES, asked.access, group)
    )
    with_operations = request.include_authorized_operations
    if not denied and not with_operations:
        return None

    def finish_group(group: Any) -> Any:
        if group.error_code or not with_operations:
            return group
        bits = asked.access.operations(GROUP, group.group_id)
        return replace(group, authorized_operations=bits)

    def finish(response: Any) -> Response:
        refusals = (describe_error(name, DENIED_GROUP) for name in denied)
        made: Response = replace(response, groups=(*map(finish_group, response.groups), *refusals))
        return made

    return Guarded(replace(request, groups=tuple(allowed)), finish)


def list_groups(request: rpc.ListGroupsRequest, asked: Asked) -> Guarded | None:
    """Show the groups that the client may describe; all of them if it may describe the cluster."""
    all_of_them = _LISTS.unless
    assert all_of_them is not None, "ListGroups without a check of the cluster"
    if asked.access.allows_cluster(all_of_them.operation, logs=False):
        return None

    def finish(response: Any) -> Response:
        shown = tuple(
            group
            for group in response.groups
            if asked.access.allows(_LISTS.operation, GROUP, group.group_id, logs=False)
        )
        made: Response = replace(response, groups=shown)
        return made

    return Guarded(request, finish)


def _denied_group(name: str) -> Any:
    result = rpc.DeleteGroupsResponse.DeletableGroupResult
    return result(group_id=name, error_code=int(DENIED_GROUP))


def delete_groups(request: rpc.DeleteGroupsRequest, asked: Asked) -> Guarded | None:
    """Deny groups that the client may not delete."""
    return without_denied(
        request,
        "groups_names",
        "results",
        lambda name: is_allowed(_DELETES, asked.access, name),
        _denied_group,
    )


GUARDS: Final[Mapping[int, Guard]] = {
    8: _with_topics(8, _denied_commit, COMMITS_BY_ID),
    9: offset_fetch,
    **{key: _member(key) for key in (11, 12, 13, 14)},
    15: describe_groups,
    16: list_groups,
    28: _with_topics(28, _denied_in_transaction),
    42: delete_groups,
    47: _with_topics(47, _denied_deletion),
}
"""The guards of group requests, by api key."""
