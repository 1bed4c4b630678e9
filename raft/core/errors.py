"""Kafka's error codes, as far as the quorum answers with them.

A refusal is no exception: it is a value in the response, and the sender reads from it what to do
next. Source: Kafka protocol guide, "Error Codes".
"""

from __future__ import annotations

from enum import IntEnum, unique


@unique
class ErrorCode(IntEnum):
    """An error code of the wire protocol (int16); the names are Kafka's."""

    NONE = 0
    NOT_LEADER_OR_FOLLOWER = 6  # ask the leader named beside it
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8  # shutting down
    UNSUPPORTED_VERSION = 35
    INVALID_REQUEST = 42  # contradicts itself, or what this node knows
    FENCED_LEADER_EPOCH = 74  # the sender's epoch is old; the newer one is beside it
    UNKNOWN_LEADER_EPOCH = 75  # the sender's epoch is ahead of this node's; retry
    THROTTLING_QUOTA_EXCEEDED = 89  # too many bytes wait to be committed
    INCONSISTENT_VOTER_SET = 94
    SNAPSHOT_NOT_FOUND = 98
    INCONSISTENT_CLUSTER_ID = 104
    INVALID_VOTER_KEY = 125  # (id, directory id) is another disk's
