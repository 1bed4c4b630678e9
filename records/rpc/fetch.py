"""Fetch and FetchSnapshot: how clients read, and how replicas replicate.

Source: KIP-227 (sessions), KIP-516 (topic ids), KIP-595 (replicas of the quorum), KIP-630
(snapshots), KIP-1166 (the high watermark that a replica knows travels with its Fetch). The tagged
fields from 1000 on are ours: docs/design/snapshots.md#an-archive-holds-the-log-start,
docs/design/forks.md#the-other-side-is-told, docs/design/clocks.md#states-of-a-processs-clock.
"""

from typing import Annotated

from records.rpc.base import Request, Response
from records.schema import Message
from records.types import ZERO_UUID
from records.wire import (
    IGNORABLE,
    Array,
    Int8,
    Int16,
    Int32,
    Int64,
    Records,
    String,
    UInt16,
    Uuid,
    since,
    tag,
    until,
)


class FetchRequest(Request, key=1, versions="4-18", flexible="12+"):
    """Asks for record batches from an offset on. Source: KIP-595, Fetch."""

    class ReplicaState(Message):
        replica_id: Int32 = -1
        replica_epoch: Int64 = -1

    class FetchTopic(Message):
        class FetchPartition(Message):
            partition: Int32
            current_leader_epoch: Annotated[Int32, since(9), IGNORABLE] = -1
            fetch_offset: Int64  # also acknowledges all before it
            last_fetched_epoch: Annotated[Int32, since(12)] = -1
            log_start_offset: Annotated[Int64, since(5), IGNORABLE] = -1
            partition_max_bytes: Int32
            replica_directory_id: Annotated[Uuid, since(17), tag(0), IGNORABLE] = ZERO_UUID
            high_watermark: Annotated[Int64, since(18), tag(1), IGNORABLE] = 2**63 - 1
            # Ours (Java skips the tag): an archive has everything below, and needs what follows.
            archived_offset: Annotated[Int64, since(12), tag(1000), IGNORABLE] = -1
            # Ours: the sender knew everything below to be committed, and holds it.
            floor: Annotated[Int64, since(12), tag(1001), IGNORABLE] = -1

        topic: Annotated[String, until(12), IGNORABLE] = ""
        topic_id: Annotated[Uuid, since(13), IGNORABLE] = ZERO_UUID
        partitions: Array[FetchPartition]

    class ForgottenTopic(Message):
        topic: Annotated[String, until(12), IGNORABLE] = ""
        topic_id: Annotated[Uuid, since(13), IGNORABLE] = ZERO_UUID
        partitions: Array[Int32]

    cluster_id: Annotated[String | None, since(12), tag(0), IGNORABLE] = None
    replica_id: Annotated[Int32, until(14)] = -1
    replica_state: Annotated[ReplicaState, since(15), tag(1)] = ReplicaState()
    max_wait_ms: Int32  # how long the answer may be held back
    min_bytes: Int32
    max_bytes: Int32 = 2**31 - 1
    isolation_level: Int8 = 0
    session_id: Annotated[Int32, since(7), IGNORABLE] = 0
    session_epoch: Annotated[Int32, since(7), IGNORABLE] = -1
    topics: Array[FetchTopic]
    forgotten_topics_data: Annotated[Array[ForgottenTopic], since(7)] = ()
    rack_id: Annotated[String, since(11), IGNORABLE] = ""
    # Ours (Java skips the tag): the sender's wall clock, ms since 1970.
    wall_clock_ms: Annotated[Int64, since(12), tag(1001), IGNORABLE] = -1


class FetchResponse(Response, key=1, versions="4-18", flexible="12+"):
    """Record batches, or why there are none. Source: KIP-595, Fetch."""

    class FetchableTopicResponse(Message):
        class PartitionData(Message):
            class EpochEndOffset(Message):
                epoch: Int32 = -1
                end_offset: Int64 = -1

            class LeaderIdAndEpoch(Message):
                leader_id: Int32 = -1
                leader_epoch: Int32 = -1

            class SnapshotId(Message):
                end_offset: Int64 = -1
                epoch: Int32 = -1

            class AbortedTransaction(Message):
                producer_id: Int64
                first_offset: Int64

            partition_index: Int32
            error_code: Int16 = 0
            high_watermark: Int64
            last_stable_offset: Int64 = -1
            log_start_offset: Annotated[Int64, since(5), IGNORABLE] = -1
            diverging_epoch: Annotated[EpochEndOffset, since(12), tag(0)] = EpochEndOffset()
            current_leader: Annotated[LeaderIdAndEpoch, since(12), tag(1)] = LeaderIdAndEpoch()
            snapshot_id: Annotated[SnapshotId, since(12), tag(2)] = SnapshotId()
            aborted_transactions: Array[AbortedTransaction] | None
            preferred_read_replica: Annotated[Int32, since(11)] = -1
            records: Records | None

        topic: Annotated[String, until(12), IGNORABLE] = ""
        topic_id: Annotated[Uuid, since(13), IGNORABLE] = ZERO_UUID
        partitions: Array[PartitionData]

    class NodeEndpoint(Message):
        node_id: Int32
        host: String
        port: Int32
        rack: String | None = None

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, since(7), IGNORABLE] = 0
    session_id: Annotated[Int32, since(7)] = 0
    responses: Array[FetchableTopicResponse]
    node_endpoints: Annotated[Array[NodeEndpoint], since(16), tag(0)] = ()


class FetchSnapshotRequest(Request, key=59, versions="0-1"):
    """Asks for bytes of a snapshot from a position on. Source: KIP-630, FetchSnapshot."""

    class TopicSnapshot(Message):
        class PartitionSnapshot(Message):
            class SnapshotId(Message):
                end_offset: Int64
                epoch: Int32

            partition: Int32
            current_leader_epoch: Int32
            snapshot_id: SnapshotId
            position: Int64
            replica_directory_id: Annotated[Uuid, since(1), tag(0), IGNORABLE] = ZERO_UUID

        name: String
        partitions: Array[PartitionSnapshot]

    cluster_id: Annotated[String | None, tag(0)] = None
    replica_id: Int32 = -1
    max_bytes: Int32 = 2**31 - 1
    topics: Array[TopicSnapshot]


class FetchSnapshotResponse(Response, key=59, versions="0-1"):
    """Bytes of a snapshot, or why there are none. Source: KIP-630, FetchSnapshot."""

    class TopicSnapshot(Message):
        class PartitionSnapshot(Message):
            class SnapshotId(Message):
                end_offset: Int64
                epoch: Int32

            class LeaderIdAndEpoch(Message):
                leader_id: Int32 = 0
                leader_epoch: Int32 = 0

            index: Int32
            error_code: Int16 = 0
            snapshot_id: SnapshotId
            current_leader: Annotated[LeaderIdAndEpoch, tag(0)] = LeaderIdAndEpoch()
            size: Int64
            position: Int64
            unaligned_records: Records

        name: String
        partitions: Array[PartitionSnapshot]

    class NodeEndpoint(Message):
        node_id: Int32
        host: String
        port: UInt16

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    topics: Array[TopicSnapshot]
    node_endpoints: Annotated[Array[NodeEndpoint], since(1), tag(0)] = ()
