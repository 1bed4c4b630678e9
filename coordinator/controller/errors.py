"""The controller's error codes, and how a decision refuses one item of a request.

A refusal ends the decision of one item; the other items of the request are decided. It is raised
inside `decide` only, and caught there.
"""

from __future__ import annotations

from typing import Final

from records.kafka_errors import ErrorCode

CONTROLLER_CODES: Final = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,  # leadership was lost after deciding: outcome unknown
        ErrorCode.REQUEST_TIMED_OUT,  # committed, but the batch coordinator has not confirmed it
        ErrorCode.COORDINATOR_NOT_AVAILABLE,  # the batch coordinator has no known leader
        ErrorCode.INVALID_TOPIC_EXCEPTION,  # an illegal topic name, or an internal topic
        ErrorCode.UNSUPPORTED_VERSION,  # a node does not support a finalized feature
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.NOT_CONTROLLER,  # nothing was decided: ask the active controller
        ErrorCode.INVALID_REQUEST,
        ErrorCode.POLICY_VIOLATION,  # the request exceeds a limit
        ErrorCode.STALE_BROKER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,  # a stale chunk epoch, or an impossible feature level
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        ErrorCode.BROKER_ID_NOT_REGISTERED,
        ErrorCode.INCONSISTENT_CLUSTER_ID,
        ErrorCode.INVALID_REGISTRATION,
    }
)
"""The codes that the controller answers with; any other code of a batch coordinator is passed on
as COORDINATOR_NOT_AVAILABLE."""


class RefusedError(Exception):
    """One item of a request is refused, and nothing of it is carried out."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
