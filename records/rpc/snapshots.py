"""A node's checkpoints: what it has of each group, and "take one now".

Each node speaks of itself, leader or not: who wants to see the whole quorum asks every node. There
are no such RPCs upstream, where an operator looks into the directories.

Source: KIP-630 (snapshots are each replica's own).
"""

from typing import Annotated

from records.rpc.base import Request, Response
from records.schema import Message
from records.wire import Array, Bool, Int16, Int32, Int64, String, tag


class DescribeSnapshotsRequest(Request, key=1110, versions="0"):
    """Asks a node where its logs begin and which checkpoints it has; no topics: of every group."""

    class Topic(Message):
        topic_name: String
        partitions: Array[Int32]

    topics: Array[Topic] = ()


class DescribeSnapshotsResponse(Response, key=1110, versions="0"):
    """One replica's logs and checkpoints, group by group."""

    class Group(Message):
        class Snapshot(Message):
            end_offset: Int64  # exclusive
            epoch: Int32
            size: Int64  # bytes of the file

        topic_name: String
        partition_index: Int32
        error_code: Int16 = 0
        leader_id: Int32 = -1  # as far as this node knows
        leader_epoch: Int32 = -1
        log_start_offset: Int64 = -1
        log_end_offset: Int64 = -1
        high_watermark: Int64 = -1
        log_size: Int64 = -1  # bytes of all segments
        applied_offset: Int64 = -1  # of the state machine; exclusive
        generating: Bool = False  # a checkpoint is being written now
        receiving: Bool = False  # one is being fetched from the leader
        snapshots: Array[Snapshot] = ()  # oldest first
        floor: Annotated[Int64, tag(0)] = -1  # all below is known here to be committed
        doubt: Annotated[String, tag(1)] = ""  # why the group has stopped on this node: a fork

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    cluster_id: String = ""
    node_id: Int32 = -1
    groups: Array[Group] = ()


class TakeSnapshotRequest(Request, key=1111, versions="0"):
    """Asks a node to write a checkpoint of one group's state now, whatever its policy says."""

    topic_name: String
    partition_index: Int32
    timeout_ms: Int32 = 60_000  # the longest that the answer may be waited for


class TakeSnapshotResponse(Response, key=1111, versions="0"):
    """The checkpoint that is now durable. It is not written anew where nothing was applied since.

    Error codes: UNKNOWN_TOPIC_OR_PARTITION, INVALID_REQUEST (nothing to take: the group has no
    state machine here, or nothing is committed yet), KAFKA_STORAGE_ERROR, REQUEST_TIMED_OUT (it is
    still being written).
    """

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    end_offset: Int64 = -1  # exclusive
    epoch: Int32 = -1
    size: Int64 = -1  # bytes of the file
