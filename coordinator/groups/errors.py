"""The error codes that groups use, and how to read the log's answer."""

from __future__ import annotations

from typing import Any, Final

from records.kafka_errors import ErrorCode

GROUP_CODES: Final = frozenset(
    {
        ErrorCode.UNKNOWN_SERVER_ERROR,  # an assignment that exceeds the size of a record
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,  # the log lost its leadership after deciding
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.MESSAGE_TOO_LARGE,  # a generation that exceeds the size of a record
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,  # this broker is acquiring the group's ownership
        ErrorCode.COORDINATOR_NOT_AVAILABLE,  # no leader of the group log answers
        ErrorCode.NOT_COORDINATOR,  # another broker coordinates this group
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.INVALID_SESSION_TIMEOUT,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE,  # more offsets than a record holds
        ErrorCode.INVALID_REQUEST,
        ErrorCode.POLICY_VIOLATION,  # the number of groups has reached its limit
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.STALE_BROKER_EPOCH,
        ErrorCode.MEMBER_ID_REQUIRED,  # join again with the member id in the response
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        ErrorCode.FENCED_INSTANCE_ID,  # another member has taken over this instance id
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
"""The codes that the log may give each offset of a commit; any other makes its answer invalid."""


def code_of(response: Any, certain: frozenset[ErrorCode]) -> ErrorCode | None:
    """Return the response's error code if it is in `certain`, or None for an unknown outcome.

    The outcome is unknown if no response came, if the node is not the leader, or if its code is
    one that this version does not use. The caller then repeats the same request.

    >>> code_of(None, frozenset()) is None
    True
    """
    if response is None or response.error_code not in certain:
        return None
    return ErrorCode(response.error_code)
