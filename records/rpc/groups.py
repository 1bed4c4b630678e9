"""Consumer groups: members, generations, assignments, committed offsets.

Source: KIP-62 (heartbeats), KIP-211 (retention of offsets), KIP-345 (static members), KIP-394
(member ids before joining), KIP-709 (offsets of several groups), KIP-800 (reasons).
"""

from typing import Annotated

from records.rpc.base import Request, Response
from records.schema import Message
from records.types import ZERO_UUID
from records.wire import (
    IGNORABLE,
    Array,
    Bool,
    Bytes,
    Int16,
    Int32,
    Int64,
    String,
    Uuid,
    between,
    nullable,
    since,
    until,
)


class OffsetCommitRequest(Request, key=8, versions="2-10", flexible="8+"):
    """Commits a group's offsets. Source: KIP-211 (retention), KIP-345 (static members)."""

    class OffsetCommitRequestTopic(Message):
        class OffsetCommitRequestPartition(Message):
            partition_index: Int32
            committed_offset: Int64
            committed_leader_epoch: Annotated[Int32, since(6), IGNORABLE] = -1
            committed_metadata: String | None

        name: Annotated[String, until(9), IGNORABLE] = ""
        topic_id: Annotated[Uuid, since(10), IGNORABLE] = ZERO_UUID
        partitions: Array[OffsetCommitRequestPartition]

    group_id: String
    generation_id_or_member_epoch: Int32 = -1
    member_id: String
    group_instance_id: Annotated[String | None, since(7)] = None
    retention_time_ms: Annotated[Int64, until(4), IGNORABLE] = -1
    topics: Array[OffsetCommitRequestTopic]


class OffsetCommitResponse(Response, key=8, versions="2-10", flexible="8+"):
    """A result for each partition. Source: the protocol guide."""

    class OffsetCommitResponseTopic(Message):
        class OffsetCommitResponsePartition(Message):
            partition_index: Int32
            error_code: Int16

        name: Annotated[String, until(9), IGNORABLE] = ""
        topic_id: Annotated[Uuid, since(10), IGNORABLE] = ZERO_UUID
        partitions: Array[OffsetCommitResponsePartition]

    throttle_time_ms: Annotated[Int32, since(3), IGNORABLE] = 0
    topics: Array[OffsetCommitResponseTopic]


class OffsetFetchRequest(Request, key=9, versions="1-10", flexible="6+"):
    """Asks for a group's committed offsets. Source: KIP-88, KIP-709 (several groups)."""

    class OffsetFetchRequestTopic(Message):
        name: Annotated[String, until(7)] = ""
        partition_indexes: Annotated[Array[Int32], until(7)] = ()

    class OffsetFetchRequestGroup(Message):
        class OffsetFetchRequestTopics(Message):
            name: Annotated[String, between(8, 9), IGNORABLE] = ""
            topic_id: Annotated[Uuid, since(10), IGNORABLE] = ZERO_UUID
            partition_indexes: Annotated[Array[Int32], since(8)] = ()

        group_id: Annotated[String, since(8)] = ""
        member_id: Annotated[String | None, since(9), IGNORABLE] = None
        member_epoch: Annotated[Int32, since(9), IGNORABLE] = -1
        topics: Annotated[Array[OffsetFetchRequestTopics] | None, since(8)] = ()

    group_id: Annotated[String, until(7)] = ""
    topics: Annotated[Array[OffsetFetchRequestTopic] | None, nullable("2-7"), until(7)] = ()
    groups: Annotated[Array[OffsetFetchRequestGroup], since(8)] = ()
    require_stable: Annotated[Bool, since(7)] = False


class OffsetFetchResponse(Response, key=9, versions="1-10", flexible="6+"):
    """The committed offset of each partition, -1 where there is none. Source: KIP-709."""

    class OffsetFetchResponseTopic(Message):
        class OffsetFetchResponsePartition(Message):
            partition_index: Annotated[Int32, until(7)] = 0
            committed_offset: Annotated[Int64, until(7)] = 0
            committed_leader_epoch: Annotated[Int32, between(5, 7), IGNORABLE] = -1
            metadata: Annotated[String | None, until(7)] = ""
            error_code: Annotated[Int16, until(7)] = 0

        name: Annotated[String, until(7)] = ""
        partitions: Annotated[Array[OffsetFetchResponsePartition], until(7)] = ()

    class OffsetFetchResponseGroup(Message):
        class OffsetFetchResponseTopics(Message):
            class OffsetFetchResponsePartitions(Message):
                partition_index: Annotated[Int32, since(8)] = 0
                committed_offset: Annotated[Int64, since(8)] = 0
                committed_leader_epoch: Annotated[Int32, since(8), IGNORABLE] = -1
                metadata: Annotated[String | None, since(8)] = ""
                error_code: Annotated[Int16, since(8)] = 0

            name: Annotated[String, between(8, 9), IGNORABLE] = ""
            topic_id: Annotated[Uuid, since(10), IGNORABLE] = ZERO_UUID
            partitions: Annotated[Array[OffsetFetchResponsePartitions], since(8)] = ()

        group_id: Annotated[String, since(8)] = ""
        topics: Annotated[Array[OffsetFetchResponseTopics], since(8)] = ()
        error_code: Annotated[Int16, since(8)] = 0

    throttle_time_ms: Annotated[Int32, since(3), IGNORABLE] = 0
    topics: Annotated[Array[OffsetFetchResponseTopic], until(7)] = ()
    error_code: Annotated[Int16, between(2, 7), IGNORABLE] = 0
    groups: Annotated[Array[OffsetFetchResponseGroup], since(8)] = ()


class JoinGroupRequest(Request, key=11, versions="0-9", flexible="6+"):
    """A member joins its group, or joins it again. Source: KIP-62, KIP-345, KIP-394, KIP-800."""

    class JoinGroupRequestProtocol(Message):
        name: String
        metadata: Bytes

    group_id: String
    session_timeout_ms: Int32
    rebalance_timeout_ms: Annotated[Int32, since(1), IGNORABLE] = -1
    member_id: String
    group_instance_id: Annotated[String | None, since(5)] = None
    protocol_type: String
    protocols: Array[JoinGroupRequestProtocol]
    reason: Annotated[String | None, since(8), IGNORABLE] = None


class JoinGroupResponse(Response, key=11, versions="0-9", flexible="6+"):
    """The generation that begins; to its leader also all members. Source: KIP-62, KIP-559."""

    class JoinGroupResponseMember(Message):
        member_id: String
        group_instance_id: Annotated[String | None, since(5), IGNORABLE] = None
        metadata: Bytes

    throttle_time_ms: Annotated[Int32, since(2), IGNORABLE] = 0
    error_code: Int16
    generation_id: Int32 = -1
    protocol_type: Annotated[String | None, since(7), IGNORABLE] = None
    protocol_name: Annotated[String | None, nullable("7+")]
    leader: String
    skip_assignment: Annotated[Bool, since(9)] = False
    member_id: String
    members: Array[JoinGroupResponseMember]


class SyncGroupRequest(Request, key=14, versions="0-5", flexible="4+"):
    """The leader hands in the assignment; the others ask for theirs. Source: KIP-62, KIP-559."""

    class SyncGroupRequestAssignment(Message):
        member_id: String
        assignment: Bytes

    group_id: String
    generation_id: Int32
    member_id: String
    group_instance_id: Annotated[String | None, since(3)] = None
    protocol_type: Annotated[String | None, since(5), IGNORABLE] = None
    protocol_name: Annotated[String | None, since(5), IGNORABLE] = None
    assignments: Array[SyncGroupRequestAssignment]


class SyncGroupResponse(Response, key=14, versions="0-5", flexible="4+"):
    """A member's assignment. Source: KIP-62, KIP-559."""

    throttle_time_ms: Annotated[Int32, since(1), IGNORABLE] = 0
    error_code: Int16
    protocol_type: Annotated[String | None, since(5), IGNORABLE] = None
    protocol_name: Annotated[String | None, since(5), IGNORABLE] = None
    assignment: Bytes


class HeartbeatRequest(Request, key=12, versions="0-4", flexible="4+"):
    """A member lives. Source: KIP-62, KIP-345."""

    group_id: String
    generation_id: Int32
    member_id: String
    group_instance_id: Annotated[String | None, since(3)] = None


class HeartbeatResponse(Response, key=12, versions="0-4", flexible="4+"):
    """NONE, or the error that tells the member to join again. Source: KIP-62."""

    throttle_time_ms: Annotated[Int32, since(1), IGNORABLE] = 0
    error_code: Int16


class LeaveGroupRequest(Request, key=13, versions="0-5", flexible="4+"):
    """Members leave their group. Source: KIP-62, KIP-345, KIP-800."""

    class MemberIdentity(Message):
        member_id: Annotated[String, since(3)] = ""
        group_instance_id: Annotated[String | None, since(3)] = None
        reason: Annotated[String | None, since(5), IGNORABLE] = None

    group_id: String
    member_id: Annotated[String, until(2)] = ""
    members: Annotated[Array[MemberIdentity], since(3)] = ()


class LeaveGroupResponse(Response, key=13, versions="0-5", flexible="4+"):
    """A result for each member. Source: KIP-345."""

    class MemberResponse(Message):
        member_id: Annotated[String, since(3)] = ""
        group_instance_id: Annotated[String | None, since(3)] = ""
        error_code: Annotated[Int16, since(3)] = 0

    throttle_time_ms: Annotated[Int32, since(1), IGNORABLE] = 0
    error_code: Int16
    members: Annotated[Array[MemberResponse], since(3)] = ()


class DescribeGroupsRequest(Request, key=15, versions="0-6", flexible="5+"):
    """Asks what groups are made of. Source: KIP-40, KIP-345."""

    groups: Array[String]
    include_authorized_operations: Annotated[Bool, since(3)] = False


class DescribeGroupsResponse(Response, key=15, versions="0-6", flexible="5+"):
    """Each group's state and members. Source: KIP-40, KIP-345, KIP-1043."""

    class DescribedGroup(Message):
        class DescribedGroupMember(Message):
            member_id: String
            group_instance_id: Annotated[String | None, since(4), IGNORABLE] = None
            client_id: String
            client_host: String
            member_metadata: Bytes
            member_assignment: Bytes

        error_code: Int16
        error_message: Annotated[String | None, since(6)] = None
        group_id: String
        group_state: String
        protocol_type: String
        protocol_data: String
        members: Array[DescribedGroupMember]
        authorized_operations: Annotated[Int32, since(3)] = -2_147_483_648

    throttle_time_ms: Annotated[Int32, since(1), IGNORABLE] = 0
    groups: Array[DescribedGroup]


class ListGroupsRequest(Request, key=16, versions="0-5", flexible="3+"):
    """Asks for the groups of a broker. Source: KIP-40, KIP-518, KIP-848."""

    states_filter: Annotated[Array[String], since(4)] = ()
    types_filter: Annotated[Array[String], since(5)] = ()


class ListGroupsResponse(Response, key=16, versions="0-5", flexible="3+"):
    """Each group's id, state and type. Source: KIP-518, KIP-848."""

    class ListedGroup(Message):
        group_id: String
        protocol_type: String
        group_state: Annotated[String, since(4), IGNORABLE] = ""
        group_type: Annotated[String, since(5), IGNORABLE] = ""

    throttle_time_ms: Annotated[Int32, since(1), IGNORABLE] = 0
    error_code: Int16
    groups: Array[ListedGroup]


class DeleteGroupsRequest(Request, key=42, versions="0-2", flexible="2+"):
    """Asks for groups without members to be removed, with their offsets. Source: KIP-229."""

    groups_names: Array[String]


class DeleteGroupsResponse(Response, key=42, versions="0-2", flexible="2+"):
    """A result for each group. Source: KIP-229."""

    class DeletableGroupResult(Message):
        group_id: String
        error_code: Int16

    throttle_time_ms: Int32 = 0
    results: Array[DeletableGroupResult]


class OffsetDeleteRequest(Request, key=47, versions="0", flexible="none"):
    """Deletes a group's committed offsets of some partitions. Source: KIP-496."""

    class OffsetDeleteRequestTopic(Message):
        class OffsetDeleteRequestPartition(Message):
            partition_index: Int32

        name: String
        partitions: Array[OffsetDeleteRequestPartition]

    group_id: String
    topics: Array[OffsetDeleteRequestTopic]


class OffsetDeleteResponse(Response, key=47, versions="0", flexible="none"):
    """Returns a result for each partition, or one error for all. Source: KIP-496."""

    class OffsetDeleteResponseTopic(Message):
        class OffsetDeleteResponsePartition(Message):
            partition_index: Int32
            error_code: Int16 = 0

        name: String
        partitions: Array[OffsetDeleteResponsePartition]

    error_code: Int16 = 0
    throttle_time_ms: Int32 = 0
    topics: Array[OffsetDeleteResponseTopic]


class TxnOffsetCommitRequest(Request, key=28, versions="0-5", flexible="3+"):
    """Commits a group's offsets in a transaction. Source: KIP-98, KIP-447 (members), KIP-890."""

    class TxnOffsetCommitRequestTopic(Message):
        class TxnOffsetCommitRequestPartition(Message):
            partition_index: Int32
            committed_offset: Int64
            committed_leader_epoch: Annotated[Int32, since(2), IGNORABLE] = -1
            committed_metadata: String | None

        name: String
        partitions: Array[TxnOffsetCommitRequestPartition]

    transactional_id: String
    group_id: String
    producer_id: Int64
    producer_epoch: Int16
    generation_id: Annotated[Int32, since(3)] = -1
    member_id: Annotated[String, since(3)] = ""
    group_instance_id: Annotated[String | None, since(3)] = None
    topics: Array[TxnOffsetCommitRequestTopic]


class TxnOffsetCommitResponse(Response, key=28, versions="0-5", flexible="3+"):
    """Returns a result for each partition. Source: KIP-98."""

    class TxnOffsetCommitResponseTopic(Message):
        class TxnOffsetCommitResponsePartition(Message):
            partition_index: Int32
            error_code: Int16

        name: String
        partitions: Array[TxnOffsetCommitResponsePartition]

    throttle_time_ms: Int32 = 0
    topics: Array[TxnOffsetCommitResponseTopic]
