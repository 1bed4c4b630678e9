"""What groups are answered with: Kafka's codes."""

from __future__ import annotations

from enum import IntEnum, unique
from typing import Any


@unique
class ErrorCode(IntEnum):
    """The numbers are Kafka's, the remarks say what for."""

    UNKNOWN_SERVER_ERROR = -1  # an assignment that no record can hold
    NONE = 0
    UNKNOWN_TOPIC_OR_PARTITION = 3
    NOT_LEADER_OR_FOLLOWER = 6  # of the log: decided, and then leadership was lost
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10  # of the log: a generation that no record can hold
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14  # the group's ownership is being taken
    COORDINATOR_NOT_AVAILABLE = 15  # the log of groups has no leader that answers
    NOT_COORDINATOR = 16  # another broker acts for this group
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28  # more offsets than a record holds
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44  # more groups than may be
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    STALE_BROKER_EPOCH = 77
    MEMBER_ID_REQUIRED = 79  # join again with the id that is given
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82  # somebody else came under this instance id
    UNKNOWN_TOPIC_ID = 100


def code_of(response: Any, certain: frozenset[ErrorCode]) -> ErrorCode | None:
    """What the log answered, if it is one of these; None: nobody can say, so ask the same again.

    That covers an answer that never came, a leader that is none, and whatever a peer of another
    make may say.

    >>> code_of(None, frozenset()) is None
    True
    """
    if response is None or response.error_code not in certain:
        return None
    return ErrorCode(response.error_code)
