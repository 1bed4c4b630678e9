"""Elections of leaders, reassignments of replicas, and the sizes of logs.

Partitions of this cluster have no replicas to elect or to move: their records are in object
storage. The requests are served because tools send them.

Source: KIP-113 and KIP-827 (log directories), KIP-455 (reassignments), KIP-460 (elections).
"""

from typing import Annotated

from records.rpc.base import Request, Response
from records.schema import Message
from records.wire import IGNORABLE, Array, Bool, Int8, Int16, Int32, Int64, String, since


class DescribeLogDirsRequest(Request, key=35, versions="1-5", flexible="2+"):
    """Asks for the sizes of partitions in a broker's directories. Source: KIP-113."""

    class DescribableLogDirTopic(Message):
        topic: String
        partitions: Array[Int32]

    topics: Array[DescribableLogDirTopic] | None


class DescribeLogDirsResponse(Response, key=35, versions="1-5", flexible="2+"):
    """Returns a broker's directories and their partitions. Source: KIP-113, KIP-827."""

    class DescribeLogDirsResult(Message):
        class DescribeLogDirsTopic(Message):
            class DescribeLogDirsPartition(Message):
                partition_index: Int32
                partition_size: Int64
                offset_lag: Int64
                is_future_key: Bool

            name: String
            partitions: Array[DescribeLogDirsPartition]

        error_code: Int16 = 0
        log_dir: String
        topics: Array[DescribeLogDirsTopic]
        total_bytes: Annotated[Int64, since(4), IGNORABLE] = -1
        usable_bytes: Annotated[Int64, since(4), IGNORABLE] = -1
        is_cordoned: Annotated[Bool, since(5), IGNORABLE] = False

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, since(3), IGNORABLE] = 0
    results: Array[DescribeLogDirsResult]


class ElectLeadersRequest(Request, key=43, versions="0-2", flexible="2+"):
    """Asks for elections of partition leaders. Source: KIP-460."""

    class TopicPartitions(Message):
        topic: String
        partitions: Array[Int32]

    election_type: Annotated[Int8, since(1)] = 0
    topic_partitions: Array[TopicPartitions] | None
    timeout_ms: Int32 = 60000


class ElectLeadersResponse(Response, key=43, versions="0-2", flexible="2+"):
    """Returns a result for each partition. Source: KIP-460."""

    class ReplicaElectionResult(Message):
        class PartitionResult(Message):
            partition_id: Int32
            error_code: Int16 = 0
            error_message: String | None

        topic: String
        partition_result: Array[PartitionResult]

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, since(1)] = 0
    replica_election_results: Array[ReplicaElectionResult]


class AlterPartitionReassignmentsRequest(Request, key=45, versions="0-1"):
    """Gives partitions other replicas, or cancels that. Source: KIP-455."""

    class ReassignableTopic(Message):
        class ReassignablePartition(Message):
            partition_index: Int32
            replicas: Array[Int32] | None = None

        name: String
        partitions: Array[ReassignablePartition]

    timeout_ms: Int32 = 60000
    allow_replication_factor_change: Annotated[Bool, since(1)] = True
    topics: Array[ReassignableTopic]


class AlterPartitionReassignmentsResponse(Response, key=45, versions="0-1"):
    """Returns a result for each partition. Source: KIP-455."""

    class ReassignableTopicResponse(Message):
        class ReassignablePartitionResponse(Message):
            partition_index: Int32
            error_code: Int16 = 0
            error_message: String | None

        name: String
        partitions: Array[ReassignablePartitionResponse]

    throttle_time_ms: Int32 = 0
    allow_replication_factor_change: Annotated[Bool, since(1), IGNORABLE] = True
    error_code: Int16 = 0
    error_message: String | None
    responses: Array[ReassignableTopicResponse]


class ListPartitionReassignmentsRequest(Request, key=46, versions="0"):
    """Asks which partitions are moving to other replicas. Source: KIP-455."""

    class ListPartitionReassignmentsTopics(Message):
        name: String
        partition_indexes: Array[Int32]

    timeout_ms: Int32 = 60000
    topics: Array[ListPartitionReassignmentsTopics] | None = None


class ListPartitionReassignmentsResponse(Response, key=46, versions="0"):
    """Returns the replicas of each partition that is moving. Source: KIP-455."""

    class OngoingTopicReassignment(Message):
        class OngoingPartitionReassignment(Message):
            partition_index: Int32
            replicas: Array[Int32]
            adding_replicas: Array[Int32]
            removing_replicas: Array[Int32]

        name: String
        partitions: Array[OngoingPartitionReassignment]

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None
    topics: Array[OngoingTopicReassignment]
