"""Golden bytes: the records of groups, and what is asked of their log.

No Kafka release knows these messages; the bytes were written by hand from the field lists, by the
rules of KIP-482 (compact lengths are one more, tagged fields come last).
"""

from __future__ import annotations

from uuid import UUID

import pytest

from records.codec import decode_message, encode_message
from records.frame import decode_record, encode_record
from records.groups import (
    EndedGroupTransactionRecord,
    GroupGenerationRecord,
    GroupMarkersRecord,
    GroupOffsetsRecord,
    GroupOffsetsRemovedRecord,
    GroupOwnerRecord,
    GroupProducersExpiredRecord,
    GroupRemovedRecord,
    GroupsState,
    PendingGroupOffsetsRecord,
)
from records.rpc.group_log import (
    AcquireGroupOwnershipRequest,
    AcquireGroupOwnershipResponse,
    CommitGroupGenerationRequest,
    CommitGroupGenerationResponse,
    CommitGroupOffsetsRequest,
    CommitGroupOffsetsResponse,
    CommitTransactionalOffsetsRequest,
    CommitTransactionalOffsetsResponse,
    FetchGroupStateRequest,
    FetchGroupStateResponse,
    RemoveGroupOffsetsRequest,
    RemoveGroupOffsetsResponse,
    RemoveGroupRequest,
    RemoveGroupResponse,
    WriteGroupMarkersRequest,
    WriteGroupMarkersResponse,
)
from records.rpc.groups import DeleteGroupsRequest, DeleteGroupsResponse
from records.schema import MetadataRecord
from tests.records.golden import Golden, golden_name

MEMBER = GroupGenerationRecord.Member(
    member_id="m",
    group_instance_id="i",
    client_id="c",
    client_host="/h",
    session_timeout_ms=6000,
    rebalance_timeout_ms=60_000,
    subscription=b"\x01",
    assignment=b"\x02\x03",
)
MEMBER_BYTES = (
    "02 6d 02 69 02 63 03 2f68"  # member id, instance id, client id, client host
    "00001770 0000ea60"  # session and rebalance timeout
    "02 01 03 0203"  # subscription, assignment
    "00"
)

GOLDEN: list[Golden] = [
    Golden(
        GroupOwnerRecord(
            group_id="g", ownership_epoch=5, broker_id=1, broker_epoch=9, acquired_at_ms=256
        ),
        0,
        "01 fe08 00"  # frame version 1, type 1150, record version 0
        "02 67"  # group: g
        "0000000000000005 00000001 0000000000000009"  # ownership epoch, broker and its epoch
        "0000000000000100"  # acquired at
        "00",
    ),
    Golden(
        GroupOwnerRecord(
            group_id="g",
            ownership_epoch=5,
            broker_id=1,
            broker_epoch=9,
            acquired_at_ms=256,
            sequence=3,
        ),
        0,
        "01 fe08 00"
        "02 67"
        "0000000000000005 00000001 0000000000000009"
        "0000000000000100"
        "01 00 08 0000000000000003",  # one tagged field: sequence
    ),
    Golden(
        GroupGenerationRecord(
            group_id="g",
            ownership_epoch=5,
            sequence=1,
            generation=2,
            protocol_type="t",
            protocol_name=None,
            leader="m",
            members=(MEMBER,),
            completed_at_ms=256,
        ),
        0,
        "01 ff08 00"
        "02 67"
        "0000000000000005 0000000000000001"  # ownership epoch, sequence
        "00000002"  # generation
        "02 74 00 02 6d"  # protocol type, no protocol, leader
        f"02 {MEMBER_BYTES}"  # one member
        "0000000000000100"  # completed at
        "00",
    ),
    Golden(
        GroupOffsetsRecord(
            group_id="g",
            ownership_epoch=5,
            sequence=1,
            topics=(
                GroupOffsetsRecord.Topic(
                    topic_name="t",
                    topic_id=UUID(int=7),
                    partitions=(
                        GroupOffsetsRecord.Topic.Partition(
                            partition_index=3,
                            committed_offset=42,
                            leader_epoch=-1,
                            metadata="x",
                            committed_at_ms=256,
                            expire_at_ms=512,
                        ),
                    ),
                ),
            ),
        ),
        0,
        "01 8009 00"
        "02 67"
        "0000000000000005 0000000000000001"
        "02 02 74"  # one topic: t
        "02 00000003 000000000000002a ffffffff 02 78 0000000000000100"  # one partition
        "01 00 08 0000000000000200"  # its expiry
        "01 00 10 00000000000000000000000000000007"  # the topic's id
        "00",
    ),
    Golden(
        GroupOffsetsRemovedRecord(
            group_id="g",
            topics=(GroupOffsetsRemovedRecord.Topic(topic_name="t", partitions=(3,)),),
            reason=1,
        ),
        0,
        "01 8109 00 02 67 02 02 74 02 00000003 00 01 00",
    ),
    Golden(GroupRemovedRecord(group_id="g", reason=1), 0, "01 8209 00 02 67 01 00"),
    Golden(GroupsState(next_ownership_epoch=6), 0, "01 8309 00 0000000000000006 00"),
    Golden(
        PendingGroupOffsetsRecord(
            group_id="g",
            ownership_epoch=5,
            sequence=6,
            commits=(
                PendingGroupOffsetsRecord.Commit(
                    producer_id=7,
                    producer_epoch=2,
                    transaction_number=9,
                    topics=(
                        GroupOffsetsRecord.Topic(
                            topic_name="t",
                            partitions=(
                                GroupOffsetsRecord.Topic.Partition(
                                    partition_index=3,
                                    committed_offset=42,
                                    leader_epoch=-1,
                                    metadata="x",
                                    committed_at_ms=256,
                                ),
                            ),
                        ),
                    ),
                ),
            ),
        ),
        0,
        "01 8409 00"  # frame version 1, type 1156, record version 0
        "02 67 0000000000000005 0000000000000006"  # group, ownership epoch, sequence
        "02 0000000000000007 0002 0000000000000009"  # one commit: producer id, epoch, number
        "02 02 74 02 00000003 000000000000002a ffffffff 02 78 0000000000000100 00 00"
        "00 00",
    ),
    Golden(
        GroupMarkersRecord(
            producer_ids=(7, 8),
            transaction_numbers=(9, 1),
            committed=(True, False),
            ended_at_ms=256,
        ),
        0,
        "01 8509 00"  # frame version 1, type 1157, record version 0
        "03 0000000000000007 0000000000000008"  # producer ids
        "03 0000000000000009 0000000000000001"  # numbers
        "03 01 00"  # committed, aborted
        "0000000000000100 00",
    ),
    Golden(
        EndedGroupTransactionRecord(producer_id=7, transaction_number=9, ended_at_ms=256),
        0,
        "01 8609 00"  # frame version 1, type 1158, record version 0
        "0000000000000007 0000000000000009 0000000000000100 00",
    ),
    Golden(
        GroupProducersExpiredRecord(producer_ids=(7,)),
        0,
        "01 8709 00 02 0000000000000007 00",  # type 1159, record version 0, one producer id
    ),
]

RPCS: list[Golden] = [
    Golden(
        AcquireGroupOwnershipRequest(group_id="g", broker_id=1, broker_epoch=9, create=True),
        0,
        "02 67 00000001 0000000000000009 01 00",
    ),
    Golden(
        AcquireGroupOwnershipResponse(
            ownership_epoch=5, generation=2, protocol_type="t", leader="m", members=(MEMBER,)
        ),
        0,
        "00000000 0000 00"  # throttle time, error, message
        "0000000000000005 00000002"  # ownership epoch, generation
        "02 74 00 02 6d"  # protocol type, no protocol, leader
        f"02 {MEMBER_BYTES} 00",
    ),
    Golden(
        CommitGroupOffsetsRequest(
            group_id="g",
            ownership_epoch=5,
            sequence=1,
            commits=(
                CommitGroupOffsetsRequest.Commit(
                    generation=2,
                    member_id="m",
                    topics=(
                        CommitGroupOffsetsRequest.Commit.Topic(
                            topic_name="t",
                            partitions=(
                                CommitGroupOffsetsRequest.Commit.Topic.Partition(
                                    partition_index=3,
                                    committed_offset=42,
                                    leader_epoch=0,
                                    metadata="",
                                ),
                            ),
                        ),
                    ),
                ),
            ),
        ),
        0,
        "02 67 0000000000000005 0000000000000001"
        "02 00000002 02 6d"  # one commit: generation, member
        "02 02 74 02 00000003 000000000000002a 00000000 01 00 00"  # one topic, one partition
        "00 00",
    ),
    Golden(
        CommitGroupOffsetsResponse(commit_errors=(0, 22)), 0, "00000000 0000 00 03 0000 0016 00"
    ),
    Golden(
        CommitGroupGenerationRequest(
            group_id="g",
            ownership_epoch=5,
            sequence=1,
            generation=2,
            protocol_type="t",
            protocol_name="p",
            leader="m",
            members=(MEMBER,),
        ),
        0,
        f"02 67 0000000000000005 0000000000000001 00000002 02 74 02 70 02 6d02 {MEMBER_BYTES} 00",
    ),
    Golden(CommitGroupGenerationResponse(error_code=16), 0, "00000000 0010 00 00"),
    Golden(
        FetchGroupStateRequest(
            group_id="g",
            topics=(FetchGroupStateRequest.Topic(topic_name="t", partitions=(3,)),),
        ),
        0,
        "02 67 02 02 74 02 00000003 00 00 00",
    ),
    Golden(
        FetchGroupStateResponse(
            topics=(
                FetchGroupStateResponse.Topic(
                    topic_name="t",
                    partitions=(
                        FetchGroupStateResponse.Topic.Partition(
                            partition_index=3,
                            committed_offset=42,
                            leader_epoch=-1,
                            metadata="x",
                            committed_at_ms=256,
                        ),
                    ),
                ),
            )
        ),
        0,
        "00000000 0000 00 00000000 00 00 00 01"  # no generation, no members
        "02 02 74 02 00000003 000000000000002a ffffffff 02 78 0000000000000100 00 00"
        "00",
    ),
    Golden(
        FetchGroupStateRequest(group_id="g", topics=(), require_stable=True),
        0,
        "02 67 01 00 01 00 01 01",  # group, no topics, without members; tag 0 of one byte: true
    ),
    Golden(
        FetchGroupStateResponse(
            topics=(
                FetchGroupStateResponse.Topic(
                    topic_name="t",
                    partitions=(
                        FetchGroupStateResponse.Topic.Partition(
                            partition_index=3,
                            committed_offset=-1,
                            leader_epoch=-1,
                            metadata="",
                            committed_at_ms=-1,
                            is_unstable=True,
                        ),
                    ),
                ),
            )
        ),
        0,
        "00000000 0000 00 00000000 00 00 00 01"  # no generation, no members
        "02 02 74 02 00000003 ffffffffffffffff ffffffff 01 ffffffffffffffff"
        "01 01 01 01"  # one tagged field: tag 1 of one byte, true
        "00 00",
    ),
    Golden(
        CommitTransactionalOffsetsRequest(
            group_id="g",
            ownership_epoch=5,
            sequence=6,
            commits=(
                CommitTransactionalOffsetsRequest.Commit(
                    producer_id=7,
                    producer_epoch=2,
                    transaction_number=9,
                    generation=-1,
                    member_id="",
                    topics=(
                        CommitGroupOffsetsRequest.Commit.Topic(
                            topic_name="t",
                            partitions=(
                                CommitGroupOffsetsRequest.Commit.Topic.Partition(
                                    partition_index=3,
                                    committed_offset=42,
                                    leader_epoch=-1,
                                    metadata="x",
                                ),
                            ),
                        ),
                    ),
                ),
            ),
        ),
        0,
        "02 67 0000000000000005 0000000000000006"  # group, ownership epoch, sequence
        "02 0000000000000007 0002 0000000000000009"  # one commit: producer id, epoch, number
        "ffffffff 01"  # no generation, no member
        "02 02 74 02 00000003 000000000000002a ffffffff 02 78 00 00"
        "00 00",
    ),
    Golden(
        CommitTransactionalOffsetsResponse(commit_errors=(0, 15)),
        0,
        "00000000 0000 00 03 0000 000f 00",
    ),
    Golden(
        WriteGroupMarkersRequest(producer_ids=(7,), transaction_numbers=(9,), committed=(True,)),
        0,
        "02 0000000000000007 02 0000000000000009 02 01 00",
    ),
    Golden(WriteGroupMarkersResponse(error_code=15), 0, "00000000 000f 00 00"),
    Golden(RemoveGroupRequest(group_id="g"), 0, "02 67 00"),
    Golden(
        RemoveGroupRequest(group_id="g", ownership_epoch=5, sequence=6),
        0,
        "02 67 02 00 08 0000000000000005 01 08 0000000000000006",
    ),
    Golden(
        RemoveGroupOffsetsRequest(
            group_id="g",
            ownership_epoch=5,
            sequence=6,
            topics=(RemoveGroupOffsetsRequest.Topic(topic_name="foo", partitions=(1,)),),
        ),
        0,
        "02 67 0000000000000005 0000000000000006"  # group, ownership epoch, sequence
        "02 04 666f6f 02 00000001 00 00",  # one topic with one partition
    ),
    Golden(RemoveGroupOffsetsResponse(error_code=16), 0, "00000000 0010 00 00"),
    Golden(RemoveGroupResponse(error_code=68), 0, "00000000 0044 00 00"),
    Golden(DeleteGroupsRequest(groups_names=("g",)), 0, "00000001 0001 67"),
    Golden(DeleteGroupsRequest(groups_names=("g",)), 2, "02 02 67 00"),
    Golden(
        DeleteGroupsResponse(
            results=(DeleteGroupsResponse.DeletableGroupResult(group_id="g", error_code=68),)
        ),
        0,
        "00000000 00000001 0001 67 0044",
    ),
    Golden(
        DeleteGroupsResponse(
            results=(DeleteGroupsResponse.DeletableGroupResult(group_id="g", error_code=0),)
        ),
        2,
        "00000000 02 02 67 0000 00 00",
    ),
]


@pytest.mark.parametrize("golden", GOLDEN, ids=golden_name)
def test_each_consumer_group_record_has_its_golden_bytes(golden: Golden) -> None:
    record = golden.message
    assert isinstance(record, MetadataRecord)
    assert encode_record(record, golden.version) == golden.encoded
    assert decode_record(golden.encoded) == record


@pytest.mark.parametrize("golden", RPCS, ids=golden_name)
def test_each_consumer_group_message_has_its_golden_bytes(golden: Golden) -> None:
    assert encode_message(golden.message, golden.version) == golden.encoded
    assert decode_message(type(golden.message), golden.encoded, golden.version) == golden.message
