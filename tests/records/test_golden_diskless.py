"""Golden bytes: the batch coordinator's records, field by field.

They are ours alone: the protocol types of Kafka 4.3.1 (Schema, CompactArrayOf,
TaggedFieldsSection) wrote these bytes from our field lists.

Source: KIP-1164 (what is recorded), KIP-482 (how).
"""

from __future__ import annotations

from uuid import UUID

import pytest

from records.diskless import (
    CoordinatorState,
    DeleteFenceRecord,
    DisklessPartitionsRecord,
    DisklessPartitionsRemovedRecord,
    DisklessPartitionState,
    DisklessTombstoneExpiredRecord,
    DisklessTopicTombstoneRecord,
    KeptAnswerState,
    LeaseClosedRecord,
    LeaseGrantedRecord,
    LeaseState,
    LogStartOffsetsRecord,
    ObjectCommitRecord,
    ObjectsMarkedRecord,
    ObjectsRemovedRecord,
    ObjectsState,
    ProducersExpiredRecord,
    ProducersState,
    RunsState,
)
from records.frame import decode_record, encode_record
from records.schema import MetadataRecord
from tests.records.golden import Golden, golden_name

GOLDEN: list[Golden] = [
    Golden(
        DisklessPartitionsRecord(
            topic_id=UUID(int=7),
            topic_name="foo",
            first_partition=1,
            partition_count=2,
            controller_epoch=3,
        ),
        0,
        "01 cc08 00"  # frame version 1, type 1100, record version 0
        "00000000000000000000000000000007"  # topic_id
        "04 666f6f"  # topic_name: foo
        "00000001"  # first_partition: 1
        "00000002"  # partition_count: 2
        "00000003"  # controller_epoch: 3
        "00",  # no tagged fields
    ),
    Golden(
        DisklessTopicTombstoneRecord(
            topic_id=UUID(int=7), controller_epoch=1, deleted_at_ms=1_700_000_000_000
        ),
        0,
        "01 cd08 00"  # frame version 1, type 1101, record version 0
        "00000000000000000000000000000007"  # topic_id
        "00000001"  # controller_epoch: 1
        "0000018bcfe56800"  # deleted_at_ms: 1700000000000
        "00",  # no tagged fields
    ),
    Golden(
        DisklessPartitionsRemovedRecord(topic_id=UUID(int=7), partitions=(1, 2)),
        0,
        "01 ce08 00"  # frame version 1, type 1102, record version 0
        "00000000000000000000000000000007"  # topic_id
        "03 00000001 00000002"  # partitions: 1, 2
        "00",  # no tagged fields
    ),
    Golden(
        DisklessTombstoneExpiredRecord(topic_id=UUID(int=7)),
        0,
        "01 cf08 00"  # frame version 1, type 1103, record version 0
        "00000000000000000000000000000007"  # topic_id
        "00",  # no tagged fields
    ),
    Golden(
        ObjectCommitRecord(
            object_id=1,
            object_format=2,
            size_bytes=3,
            broker_id=4,
            broker_epoch=5,
            lease_id=6,
            committed_at_ms=1_700_000_000_000,
            topic_ids=(UUID(int=7),),
            topic_indexes=(7, 8),
            partitions=(9, 10),
            byte_offsets=(11, 12),
            byte_sizes=(13, 14),
            base_offsets=(15, 16),
            record_counts=(17, 18),
            max_timestamps=(19, 20),
            timestamp_types=(21, 22),
            producer_ids=(23, 24),
            producer_epochs=(25, 26),
            base_sequences=(27, 28),
            error_codes=(29, 30),
            duplicates=(31, 32),
        ),
        0,
        "01 d008 00"  # frame version 1, type 1104, record version 0
        "0000000000000001"  # object_id: 1
        "02"  # object_format: 2
        "0000000000000003"  # size_bytes: 3
        "00000004"  # broker_id: 4
        "0000000000000005"  # broker_epoch: 5
        "0000000000000006"  # lease_id: 6
        "0000018bcfe56800"  # committed_at_ms: 1700000000000
        "02 00000000000000000000000000000007"  # topic_ids: 1 id
        "03 00000007 00000008"  # topic_indexes: 7, 8
        "03 00000009 0000000a"  # partitions: 9, 10
        "03 000000000000000b 000000000000000c"  # byte_offsets: 11, 12
        "03 0000000d 0000000e"  # byte_sizes: 13, 14
        "03 000000000000000f 0000000000000010"  # base_offsets: 15, 16
        "03 00000011 00000012"  # record_counts: 17, 18
        "03 0000000000000013 0000000000000014"  # max_timestamps: 19, 20
        "03 15 16"  # timestamp_types: 21, 22
        "03 0000000000000017 0000000000000018"  # producer_ids: 23, 24
        "03 0019 001a"  # producer_epochs: 25, 26
        "03 0000001b 0000001c"  # base_sequences: 27, 28
        "03 001d 001e"  # error_codes: 29, 30
        "03 1f 20"  # duplicates: 31, 32
        "00",  # no tagged fields
    ),
    Golden(
        LogStartOffsetsRecord(
            topic_ids=(UUID(int=7),),
            topic_indexes=(1, 2),
            partitions=(3, 4),
            log_start_offsets=(5, 6),
            reason=7,
        ),
        0,
        "01 d108 00"  # frame version 1, type 1105, record version 0
        "02 00000000000000000000000000000007"  # topic_ids: 1 id
        "03 00000001 00000002"  # topic_indexes: 1, 2
        "03 00000003 00000004"  # partitions: 3, 4
        "03 0000000000000005 0000000000000006"  # log_start_offsets: 5, 6
        "07"  # reason: 7
        "00",  # no tagged fields
    ),
    Golden(
        LeaseGrantedRecord(
            lease_id=1,
            broker_id=2,
            broker_epoch=3,
            first_object_id=4,
            object_count=5,
            granted_at_ms=1_700_000_000_000,
            closed_lease_ids=(6, 7),
        ),
        0,
        "01 d208 00"  # frame version 1, type 1106, record version 0
        "0000000000000001"  # lease_id: 1
        "00000002"  # broker_id: 2
        "0000000000000003"  # broker_epoch: 3
        "0000000000000004"  # first_object_id: 4
        "00000005"  # object_count: 5
        "0000018bcfe56800"  # granted_at_ms: 1700000000000
        "03 0000000000000006 0000000000000007"  # closed_lease_ids: 6, 7
        "00",  # no tagged fields
    ),
    Golden(
        LeaseClosedRecord(lease_id=1, closed_at_ms=1_700_000_000_000, reason=2),
        0,
        "01 d308 00"  # frame version 1, type 1107, record version 0
        "0000000000000001"  # lease_id: 1
        "0000018bcfe56800"  # closed_at_ms: 1700000000000
        "02"  # reason: 2
        "00",  # no tagged fields
    ),
    Golden(
        DeleteFenceRecord(object_ids=(1, 2), fenced_at_ms=1_700_000_000_000),
        0,
        "01 d408 00"  # frame version 1, type 1108, record version 0
        "03 0000000000000001 0000000000000002"  # object_ids: 1, 2
        "0000018bcfe56800"  # fenced_at_ms: 1700000000000
        "00",  # no tagged fields
    ),
    Golden(
        ObjectsMarkedRecord(object_ids=(1, 2), marked_at_ms=1_700_000_000_000),
        0,
        "01 d508 00"  # frame version 1, type 1109, record version 0
        "03 0000000000000001 0000000000000002"  # object_ids: 1, 2
        "0000018bcfe56800"  # marked_at_ms: 1700000000000
        "00",  # no tagged fields
    ),
    Golden(
        ObjectsRemovedRecord(object_ids=(1, 2)),
        0,
        "01 d608 00"  # frame version 1, type 1110, record version 0
        "03 0000000000000001 0000000000000002"  # object_ids: 1, 2
        "00",  # no tagged fields
    ),
    Golden(
        ProducersExpiredRecord(
            topic_ids=(UUID(int=7),), topic_indexes=(1, 2), partitions=(3, 4), producer_ids=(5, 6)
        ),
        0,
        "01 d708 00"  # frame version 1, type 1111, record version 0
        "02 00000000000000000000000000000007"  # topic_ids: 1 id
        "03 00000001 00000002"  # topic_indexes: 1, 2
        "03 00000003 00000004"  # partitions: 3, 4
        "03 0000000000000005 0000000000000006"  # producer_ids: 5, 6
        "00",  # no tagged fields
    ),
    Golden(
        CoordinatorState(controller_epoch=1, next_lease_id=2, next_object_id=3),
        0,
        "01 e008 00"  # frame version 1, type 1120, record version 0
        "00000001"  # controller_epoch: 1
        "0000000000000002"  # next_lease_id: 2
        "0000000000000003"  # next_object_id: 3
        "00",  # no tagged fields
    ),
    Golden(
        DisklessPartitionState(
            topic_id=UUID(int=7),
            topic_name="foo",
            partition=1,
            log_start_offset=2,
            high_watermark=3,
        ),
        0,
        "01 e108 00"  # frame version 1, type 1121, record version 0
        "00000000000000000000000000000007"  # topic_id
        "04 666f6f"  # topic_name: foo
        "00000001"  # partition: 1
        "0000000000000002"  # log_start_offset: 2
        "0000000000000003"  # high_watermark: 3
        "00",  # no tagged fields
    ),
    Golden(
        DisklessPartitionState(
            topic_id=UUID(int=7),
            topic_name="foo",
            partition=4,
            log_start_offset=5,
            high_watermark=6,
            deleted_at_ms=1_700_000_000_000,
        ),
        0,
        "01 e108 00"  # frame version 1, type 1121, record version 0
        "00000000000000000000000000000007"  # topic_id
        "04 666f6f"  # topic_name: foo
        "00000004"  # partition: 4
        "0000000000000005"  # log_start_offset: 5
        "0000000000000006"  # high_watermark: 6
        "01"  # 1 tagged field
        "  0008 0000018bcfe56800",  # tag 0, 8 bytes: deleted_at_ms, 1700000000000
    ),
    Golden(
        RunsState(
            topic_id=UUID(int=7),
            partition=1,
            base_offsets=(2, 3),
            last_offsets=(4, 5),
            object_ids=(6, 7),
            byte_offsets=(8, 9),
            byte_sizes=(10, 11),
            max_timestamps=(12, 13),
            appended_at_ms=(14, 15),
            timestamp_types=(16, 17),
        ),
        0,
        "01 e208 00"  # frame version 1, type 1122, record version 0
        "00000000000000000000000000000007"  # topic_id
        "00000001"  # partition: 1
        "03 0000000000000002 0000000000000003"  # base_offsets: 2, 3
        "03 0000000000000004 0000000000000005"  # last_offsets: 4, 5
        "03 0000000000000006 0000000000000007"  # object_ids: 6, 7
        "03 0000000000000008 0000000000000009"  # byte_offsets: 8, 9
        "03 000000000000000a 000000000000000b"  # byte_sizes: 10, 11
        "03 000000000000000c 000000000000000d"  # max_timestamps: 12, 13
        "03 000000000000000e 000000000000000f"  # appended_at_ms: 14, 15
        "03 10 11"  # timestamp_types: 16, 17
        "00",  # no tagged fields
    ),
    Golden(
        ObjectsState(
            object_ids=(1, 2),
            sizes_bytes=(3, 4),
            used_bytes=(5, 6),
            formats=(7, 8),
            broker_ids=(9, 10),
            committed_at_ms=(11, 12),
            marked_at_ms=(13, 14),
            fenced=(15, 16),
        ),
        0,
        "01 e308 00"  # frame version 1, type 1123, record version 0
        "03 0000000000000001 0000000000000002"  # object_ids: 1, 2
        "03 0000000000000003 0000000000000004"  # sizes_bytes: 3, 4
        "03 0000000000000005 0000000000000006"  # used_bytes: 5, 6
        "03 07 08"  # formats: 7, 8
        "03 00000009 0000000a"  # broker_ids: 9, 10
        "03 000000000000000b 000000000000000c"  # committed_at_ms: 11, 12
        "03 000000000000000d 000000000000000e"  # marked_at_ms: 13, 14
        "03 0f 10"  # fenced: 15, 16
        "00",  # no tagged fields
    ),
    Golden(
        ProducersState(
            topic_id=UUID(int=7),
            partition=1,
            producer_ids=(2, 3),
            producer_epochs=(4, 5),
            base_sequences=(6, 7),
            last_sequences=(8, 9),
            base_offsets=(10, 11),
            appended_at_ms=(12, 13),
        ),
        0,
        "01 e408 00"  # frame version 1, type 1124, record version 0
        "00000000000000000000000000000007"  # topic_id
        "00000001"  # partition: 1
        "03 0000000000000002 0000000000000003"  # producer_ids: 2, 3
        "03 0004 0005"  # producer_epochs: 4, 5
        "03 00000006 00000007"  # base_sequences: 6, 7
        "03 00000008 00000009"  # last_sequences: 8, 9
        "03 000000000000000a 000000000000000b"  # base_offsets: 10, 11
        "03 000000000000000c 000000000000000d"  # appended_at_ms: 12, 13
        "00",  # no tagged fields
    ),
    Golden(
        LeaseState(
            lease_id=1,
            broker_id=2,
            broker_epoch=3,
            first_object_id=4,
            object_count=5,
            last_committed_id=6,
            granted_at_ms=1_700_000_000_000,
            closed_at_ms=1_700_000_000_000,
        ),
        0,
        "01 e508 00"  # frame version 1, type 1125, record version 0
        "0000000000000001"  # lease_id: 1
        "00000002"  # broker_id: 2
        "0000000000000003"  # broker_epoch: 3
        "0000000000000004"  # first_object_id: 4
        "00000005"  # object_count: 5
        "0000000000000006"  # last_committed_id: 6
        "0000018bcfe56800"  # granted_at_ms: 1700000000000
        "0000018bcfe56800"  # closed_at_ms: 1700000000000
        "00",  # no tagged fields
    ),
    Golden(
        KeptAnswerState(
            object_id=1,
            lease_id=2,
            committed_at_ms=1_700_000_000_000,
            topic_ids=(UUID(int=7),),
            topic_indexes=(3, 4),
            partitions=(5, 6),
            base_offsets=(7, 8),
            log_start_offsets=(9, 10),
            error_codes=(11, 12),
            duplicates=(13, 14),
        ),
        0,
        "01 e608 00"  # frame version 1, type 1126, record version 0
        "0000000000000001"  # object_id: 1
        "0000000000000002"  # lease_id: 2
        "0000018bcfe56800"  # committed_at_ms: 1700000000000
        "02 00000000000000000000000000000007"  # topic_ids: 1 id
        "03 00000003 00000004"  # topic_indexes: 3, 4
        "03 00000005 00000006"  # partitions: 5, 6
        "03 0000000000000007 0000000000000008"  # base_offsets: 7, 8
        "03 0000000000000009 000000000000000a"  # log_start_offsets: 9, 10
        "03 000b 000c"  # error_codes: 11, 12
        "03 0d 0e"  # duplicates: 13, 14
        "00",  # no tagged fields
    ),
]


@pytest.mark.parametrize("golden", GOLDEN, ids=golden_name)
def test_a_record_is_these_bytes(golden: Golden) -> None:
    record = golden.message
    assert isinstance(record, MetadataRecord)
    assert encode_record(record, golden.version) == golden.encoded
    assert decode_record(golden.encoded) == record
