"""The records of consumer groups: what `__consumer_offsets-0` holds.

Upstream keeps groups in a compacted topic with keys. This log has no keys and is never compacted:
its checkpoints hold what is left, in the same records, each group's owner before its generation and
its offsets, one offset a record.

*Every record of a group says under which ownership it was written.* A broker that acts for a group
first takes its ownership, by a record, and numbers what it writes from then on. So a former owner's
commit, or a late copy of one that was answered long ago, is found out by the group alone.

Source: docs/design/groups.md; KIP-211 (retention of offsets), KIP-345 (static members). The
numbers, from 1150 on, are ours.
"""

from typing import Annotated

from records.schema import Message, MetadataRecord
from records.types import ZERO_UUID
from records.wire import Array, Bool, Bytes, Int8, Int16, Int32, Int64, String, Uuid, tag


class GroupOwnerRecord(MetadataRecord, key=1150, versions="0"):
    """A broker owns a group from now on; owners with a lower ownership epoch are fenced."""

    group_id: String
    ownership_epoch: Int64  # rises with every owner of any group, so none is ever used twice
    broker_id: Int32
    broker_epoch: Int64
    acquired_at_ms: Int64  # ms since 1970
    sequence: Annotated[Int64, tag(0)] = 0  # in checkpoints: of the owner's last commit


class GroupGenerationRecord(MetadataRecord, key=1151, versions="0"):
    """A rebalance is complete: the group's members and their assignments.

    Also written when the last member has left, without members; and at the same generation when a
    static member came back under another member id. Source: KIP-62, KIP-345.
    """

    class Member(Message):
        member_id: String
        group_instance_id: String | None
        client_id: String
        client_host: String
        session_timeout_ms: Int32
        rebalance_timeout_ms: Int32
        subscription: Bytes  # of the protocol that was chosen
        assignment: Bytes

    group_id: String
    ownership_epoch: Int64
    sequence: Int64  # of this commit under this ownership
    generation: Int32
    protocol_type: String | None
    protocol_name: String | None
    leader: String | None  # its member id
    members: Array[Member]
    completed_at_ms: Int64  # ms since 1970


class GroupOffsetsRecord(MetadataRecord, key=1152, versions="0"):
    """Offsets that a group committed. Source: KIP-211; upstream's OffsetCommitValue."""

    class Topic(Message):
        class Partition(Message):
            partition_index: Int32
            committed_offset: Int64  # the next one to read
            leader_epoch: Int32  # -1: not told
            metadata: String
            committed_at_ms: Int64  # ms since 1970
            expire_at_ms: Annotated[Int64, tag(0)] = -1  # what old clients asked for

        topic_name: String
        topic_id: Annotated[Uuid, tag(0)] = ZERO_UUID  # zero: not told
        partitions: Array[Partition]

    group_id: String
    ownership_epoch: Int64
    sequence: Int64
    topics: Array[Topic]


class GroupOffsetsRemovedRecord(MetadataRecord, key=1153, versions="0"):
    """Offsets of a group are removed. Source: KIP-211."""

    class Topic(Message):
        topic_name: String
        partitions: Array[Int32]

    group_id: String
    topics: Array[Topic]
    reason: Int8  # 0 expired, 1 their topic was deleted, 2 a client asked for it


class GroupRemovedRecord(MetadataRecord, key=1154, versions="0"):
    """A group is removed, with its offsets and its ownership."""

    group_id: String
    reason: Int8  # 0 nothing was left of it, 1 somebody asked for it


class GroupsState(MetadataRecord, key=1155, versions="0"):
    """The counter of ownership epochs, which outlives its groups. First in checkpoints only."""

    next_ownership_epoch: Int64


class PendingGroupOffsetsRecord(MetadataRecord, key=1156, versions="0"):
    """Holds offsets of open transactions, which count once their transaction is committed.

    In a checkpoint each record has one offset. Source: KIP-98.
    """

    class Commit(Message):
        producer_id: Int64
        producer_epoch: Int16
        transaction_number: Int64  # under its transactional id
        topics: Array[GroupOffsetsRecord.Topic]

    group_id: String
    ownership_epoch: Int64
    sequence: Int64
    commits: Array[Commit]


class GroupMarkersRecord(MetadataRecord, key=1157, versions="0"):
    """Ends transactions for all groups: their pending offsets count, or are dropped.

    The columns have one entry for each transaction. Source: KIP-98.
    """

    producer_ids: Array[Int64]
    transaction_numbers: Array[Int64]
    committed: Array[Bool]  # False: aborted
    ended_at_ms: Int64  # ms since 1970


class EndedGroupTransactionRecord(MetadataRecord, key=1158, versions="0"):
    """Holds the highest ended transaction of a producer id. In checkpoints only."""

    producer_id: Int64
    transaction_number: Int64
    ended_at_ms: Int64  # ms since 1970


class GroupProducersExpiredRecord(MetadataRecord, key=1159, versions="0"):
    """Forgets the ended transactions of producer ids that have been silent for long."""

    producer_ids: Array[Int64]
