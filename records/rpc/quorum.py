"""The quorum's RPCs: voting, the leader's greetings and farewells, and its description.

`topics` and `partitions` are arrays for history's sake: each request names one partition.

Source: KIP-595, KIP-853, KIP-996 (pre-vote).
"""

from typing import Annotated

from records.rpc.base import Request, Response
from records.schema import Message
from records.types import ZERO_UUID
from records.wire import (
    IGNORABLE,
    Array,
    Bool,
    Int16,
    Int32,
    Int64,
    String,
    UInt16,
    Uuid,
    since,
    tag,
    until,
)


class VoteRequest(Request, key=52, versions="0-2"):
    """Asks a voter for its vote, or if it would give it. Source: KIP-595, KIP-996."""

    class TopicData(Message):
        class PartitionData(Message):
            partition_index: Int32
            replica_epoch: Int32  # the candidate's, already incremented
            replica_id: Int32
            replica_directory_id: Annotated[Uuid, since(1), IGNORABLE] = ZERO_UUID
            voter_directory_id: Annotated[Uuid, since(1), IGNORABLE] = ZERO_UUID
            last_offset_epoch: Int32
            last_offset: Int64  # exclusive: the candidate's log end offset
            pre_vote: Annotated[Bool, since(2)] = False

        topic_name: String
        partitions: Array[PartitionData]

    cluster_id: String | None = None
    voter_id: Annotated[Int32, since(1), IGNORABLE] = -1  # who is asked
    topics: Array[TopicData]


class VoteResponse(Response, key=52, versions="0-2"):
    """A voter's answer. Source: KIP-595."""

    class TopicData(Message):
        class PartitionData(Message):
            partition_index: Int32
            error_code: Int16 = 0
            leader_id: Int32
            leader_epoch: Int32
            vote_granted: Bool

        topic_name: String
        partitions: Array[PartitionData]

    class NodeEndpoint(Message):
        node_id: Int32
        host: String
        port: UInt16

    error_code: Int16 = 0
    topics: Array[TopicData]
    node_endpoints: Annotated[Array[NodeEndpoint], since(1), tag(0)] = ()


class BeginQuorumEpochRequest(Request, key=53, versions="0-1", flexible="1+"):
    """A new leader makes itself known to a voter. Source: KIP-595."""

    class TopicData(Message):
        class PartitionData(Message):
            partition_index: Int32
            voter_directory_id: Annotated[Uuid, since(1), IGNORABLE] = ZERO_UUID
            leader_id: Int32
            leader_epoch: Int32

        topic_name: String
        partitions: Array[PartitionData]

    class LeaderEndpoint(Message):
        name: String
        host: String
        port: UInt16

    cluster_id: String | None = None
    voter_id: Annotated[Int32, since(1), IGNORABLE] = -1
    topics: Array[TopicData]
    leader_endpoints: Annotated[Array[LeaderEndpoint], since(1), IGNORABLE] = ()


class BeginQuorumEpochResponse(Response, key=53, versions="0-1", flexible="1+"):
    """The voter's answer. Source: KIP-595."""

    class TopicData(Message):
        class PartitionData(Message):
            partition_index: Int32
            error_code: Int16 = 0
            leader_id: Int32
            leader_epoch: Int32

        topic_name: String
        partitions: Array[PartitionData]

    class NodeEndpoint(Message):
        node_id: Int32
        host: String
        port: UInt16

    error_code: Int16 = 0
    topics: Array[TopicData]
    node_endpoints: Annotated[Array[NodeEndpoint], since(1), tag(0)] = ()


class EndQuorumEpochRequest(Request, key=54, versions="0-1", flexible="1+"):
    """A leader resigns and says who had best follow it. Source: KIP-595."""

    class TopicData(Message):
        class PartitionData(Message):
            class ReplicaInfo(Message):
                candidate_id: Int32
                candidate_directory_id: Uuid

            partition_index: Int32
            leader_id: Int32
            leader_epoch: Int32
            preferred_successors: Annotated[Array[Int32], until(0), IGNORABLE] = ()
            preferred_candidates: Annotated[Array[ReplicaInfo], since(1), IGNORABLE] = ()

        topic_name: String
        partitions: Array[PartitionData]

    class LeaderEndpoint(Message):
        name: String
        host: String
        port: UInt16

    cluster_id: String | None = None
    topics: Array[TopicData]
    leader_endpoints: Annotated[Array[LeaderEndpoint], since(1), IGNORABLE] = ()


class EndQuorumEpochResponse(Response, key=54, versions="0-1", flexible="1+"):
    """The voter's answer. Source: KIP-595."""

    class TopicData(Message):
        class PartitionData(Message):
            partition_index: Int32
            error_code: Int16 = 0
            leader_id: Int32
            leader_epoch: Int32

        topic_name: String
        partitions: Array[PartitionData]

    class NodeEndpoint(Message):
        node_id: Int32
        host: String
        port: UInt16

    error_code: Int16 = 0
    topics: Array[TopicData]
    node_endpoints: Annotated[Array[NodeEndpoint], since(1), tag(0)] = ()


class DescribeQuorumRequest(Request, key=55, versions="0-2"):
    """Asks a leader how its replicas are doing. Source: KIP-595, KIP-836."""

    class TopicData(Message):
        class PartitionData(Message):
            partition_index: Int32

        topic_name: String
        partitions: Array[PartitionData]

    topics: Array[TopicData]


class ReplicaState(Message):
    """A replica's progress as the leader knows it. Times are ms since 1970, -1 if unknown."""

    replica_id: Int32
    replica_directory_id: Annotated[Uuid, since(2)] = ZERO_UUID
    log_end_offset: Int64
    last_fetch_timestamp: Annotated[Int64, since(1), IGNORABLE] = -1
    last_caught_up_timestamp: Annotated[Int64, since(1), IGNORABLE] = -1


class DescribeQuorumResponse(Response, key=55, versions="0-2"):
    """Epoch, high watermark and replicas of the quorum. Source: KIP-595, KIP-836."""

    class TopicData(Message):
        class PartitionData(Message):
            partition_index: Int32
            error_code: Int16 = 0
            error_message: Annotated[String | None, since(2), IGNORABLE] = ""
            leader_id: Int32
            leader_epoch: Int32
            high_watermark: Int64
            current_voters: Array[ReplicaState]
            observers: Array[ReplicaState]

        topic_name: String
        partitions: Array[PartitionData]

    class Node(Message):
        class Listener(Message):
            name: String
            host: String
            port: UInt16

        node_id: Int32
        listeners: Array[Listener]

    error_code: Int16 = 0
    error_message: Annotated[String | None, since(2), IGNORABLE] = ""
    topics: Array[TopicData]
    nodes: Annotated[Array[Node], since(2)] = ()
