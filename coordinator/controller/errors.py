"""What the controller answers with: Kafka's codes, and how a decision refuses one item.

A refusal is a value that ends the decision of one item, not of the request beside it: the others go
on. It is raised inside `decide` only, and caught there.
"""

from __future__ import annotations

from enum import IntEnum, unique


@unique
class ErrorCode(IntEnum):
    """The codes the controller uses. The numbers are Kafka's, the remarks say what for."""

    NONE = 0
    UNKNOWN_TOPIC_OR_PARTITION = 3
    NOT_LEADER_OR_FOLLOWER = 6  # decided, and then leadership was lost: the outcome is unknown
    REQUEST_TIMED_OUT = 7  # done, but its coordinator does not know yet
    COORDINATOR_NOT_AVAILABLE = 15  # it has no leader that we know of
    INVALID_TOPIC_EXCEPTION = 17  # a name against the rules, or an internal topic
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41  # nothing was decided: ask the active controller
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44  # more than may be asked for at once
    STALE_BROKER_EPOCH = 77
    INVALID_UPDATE_VERSION = 95  # a stale chunk epoch; a feature level that cannot be
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_CLUSTER_ID = 104
    UNSUPPORTED_VERSION = 35  # a finalised feature that a node does not support
    INVALID_REGISTRATION = 119


class RefusedError(Exception):
    """One item of a request is refused; nothing of it is done."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
