"""The requests of brokers that coordinate groups to the leader of the groups' log.

A broker takes a group's ownership and is told all it needs to act; it then commits offsets and
completed rebalances under that ownership. `sequence` counts its commits of one group: the same
number again is the same commit, a lower one is a late copy.

Source: docs/design/groups.md. The numbers, from 1120 on, are ours.
"""

from typing import Annotated

from records.groups import GroupGenerationRecord
from records.rpc.base import Request, Response
from records.schema import Message
from records.types import ZERO_UUID
from records.wire import Array, Bool, Int16, Int32, Int64, String, Uuid, tag

Member = GroupGenerationRecord.Member


class AcquireGroupOwnershipRequest(Request, key=1120, versions="0"):
    """A broker asks to own a group in place of the group's former owner."""

    group_id: String
    broker_id: Int32
    broker_epoch: Int64
    create: Bool  # also if the group is not known; otherwise that is GROUP_ID_NOT_FOUND


class AcquireGroupOwnershipResponse(Response, key=1120, versions="0"):
    """The ownership, and the group's last completed rebalance."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    ownership_epoch: Int64 = -1
    generation: Int32 = 0
    protocol_type: String | None = None
    protocol_name: String | None = None
    leader: String | None = None
    members: Array[Member] = ()


class CommitGroupOffsetsRequest(Request, key=1121, versions="0"):
    """Offsets that members of a group, or somebody outside it, commit."""

    class Commit(Message):
        class Topic(Message):
            class Partition(Message):
                partition_index: Int32
                committed_offset: Int64
                leader_epoch: Int32
                metadata: String
                expire_at_ms: Annotated[Int64, tag(0)] = -1

            topic_name: String
            topic_id: Annotated[Uuid, tag(0)] = ZERO_UUID
            partitions: Array[Partition]

        generation: Int32  # -1: of no generation, which a group without members accepts
        member_id: String
        topics: Array[Topic]

    group_id: String
    ownership_epoch: Int64
    sequence: Int64
    commits: Array[Commit]


class CommitGroupOffsetsResponse(Response, key=1121, versions="0"):
    """An error for each commit, in the order of the request; or one for all."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    commit_errors: Array[Int16] = ()


class CommitGroupGenerationRequest(Request, key=1122, versions="0"):
    """A rebalance is complete, or a static member has another member id."""

    group_id: String
    ownership_epoch: Int64
    sequence: Int64
    generation: Int32
    protocol_type: String | None
    protocol_name: String | None
    leader: String | None
    members: Array[Member]


class CommitGroupGenerationResponse(Response, key=1122, versions="0"):
    """The generation is the group's, whatever happens to whom."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


class FetchGroupStateRequest(Request, key=1123, versions="0"):
    """Asks for a group's committed offsets and last generation, behind the read barrier."""

    class Topic(Message):
        topic_name: String
        partitions: Array[Int32]

    group_id: String
    topics: Array[Topic] | None  # null: all offsets
    with_members: Bool = False
    require_stable: Annotated[Bool, tag(0)] = False  # mark partitions with pending offsets


class FetchGroupStateResponse(Response, key=1123, versions="0"):
    """The committed state of a group, without partitions that have no committed offset."""

    class Topic(Message):
        class Partition(Message):
            partition_index: Int32
            committed_offset: Int64
            leader_epoch: Int32
            metadata: String
            committed_at_ms: Int64
            topic_id: Annotated[Uuid, tag(0)] = ZERO_UUID
            is_unstable: Annotated[Bool, tag(1)] = False  # has pending offsets; may have no other

        topic_name: String
        partitions: Array[Partition]

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    generation: Int32 = 0
    protocol_type: String | None = None
    protocol_name: String | None = None
    leader: String | None = None
    members: Array[Member] = ()
    topics: Array[Topic] = ()


class RemoveGroupRequest(Request, key=1124, versions="0"):
    """Asks for a group without members to be removed, with its offsets. Source: KIP-229."""

    group_id: String
    ownership_epoch: Annotated[Int64, tag(0)] = -1  # -1: under any owner
    sequence: Annotated[Int64, tag(1)] = -1


class RemoveGroupResponse(Response, key=1124, versions="0"):
    """It is gone; or NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


class RemoveGroupOffsetsRequest(Request, key=1125, versions="0"):
    """Asks for committed offsets of a group to be removed, by its owner. Source: KIP-496."""

    class Topic(Message):
        topic_name: String
        partitions: Array[Int32]

    group_id: String
    ownership_epoch: Int64
    sequence: Int64
    topics: Array[Topic]


class RemoveGroupOffsetsResponse(Response, key=1125, versions="0"):
    """Tells that the group has none of these offsets any more, or an error for all."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


class CommitTransactionalOffsetsRequest(Request, key=1126, versions="0"):
    """Commits offsets of a group in open transactions, by the group's owner. Source: KIP-98."""

    class Commit(Message):
        producer_id: Int64
        producer_epoch: Int16
        transaction_number: Int64  # from the proof that it is open
        generation: Int32  # -1 with an empty member id: of a producer that is no member
        member_id: String
        topics: Array[CommitGroupOffsetsRequest.Commit.Topic]

    group_id: String
    ownership_epoch: Int64
    sequence: Int64
    commits: Array[Commit]


class CommitTransactionalOffsetsResponse(Response, key=1126, versions="0"):
    """Returns an error for each commit, in the order of the request; or one for all."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    commit_errors: Array[Int16] = ()


class WriteGroupMarkersRequest(Request, key=1127, versions="0"):
    """Ends transactions in all groups, by the leader of the transaction log.

    The columns have one entry for each transaction. A marker that was written before changes
    nothing.
    """

    producer_ids: Array[Int64]
    transaction_numbers: Array[Int64]
    committed: Array[Bool]  # False: aborted


class WriteGroupMarkersResponse(Response, key=1127, versions="0"):
    """Returns NONE once all markers are in the log, or one error for all."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
