"""Golden bytes: the batch coordinator's records, field by field.

They are ours alone: no codec of ours wrote these bytes, but a list of numbers and their sizes, put
down field by field; the protocol types of Kafka 4.3.1 (Schema, CompactArrayOf,
TaggedFieldsSection) wrote those of records that are older than the log ids.

Source: KIP-1164 (what is recorded), KIP-482 (how).
"""

from __future__ import annotations

from uuid import UUID

import pytest

from records.diskless import (
    ControllerEpochRecord,
    CoordinatorState,
    DeleteFenceRecord,
    DisklessBrokerState,
    DisklessPartitionsRecord,
    DisklessPartitionsReleasedRecord,
    DisklessPartitionsRemovedRecord,
    DisklessTombstoneExpiredRecord,
    DisklessTopicState,
    DisklessTopicTombstoneRecord,
    KeptAnswerState,
    LeaseClosedRecord,
    LeaseGrantedRecord,
    LeasesForgottenRecord,
    LeaseState,
    LogStartOffsetsRecord,
    ObjectCommitRecord,
    ObjectsMarkedRecord,
    ObjectsRemovedRecord,
    ObjectsState,
    OrphansFoundRecord,
    ProducersExpiredRecord,
    ProducersState,
    RunsState,
    SteadyTimeRecord,
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
            first_log_id=3,
            controller_epoch=4,
        ),
        0,
        "01 cc08 00"  # frame version 1, type 1100, record version 0
        "00000000000000000000000000000007"  # topic_id
        "04 666f6f"  # topic_name: foo
        "00000001"  # first_partition: 1
        "00000002"  # partition_count: 2
        "0000000000000003"  # first_log_id: 3
        "00000004"  # controller_epoch: 4
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
        DisklessPartitionsReleasedRecord(
            topic_id=UUID(int=7), partitions=(1, 2), controller_epoch=4
        ),
        0,
        "01 da08 00"  # frame version 1, type 1114, record version 0
        "00000000000000000000000000000007"  # topic_id
        "03 00000001 00000002"  # partitions: 1, 2
        "00000004"  # controller_epoch: 4
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
            batch_counts=(11, 12),
            byte_offsets=(13, 14),
            byte_sizes=(15, 16),
            base_offsets=(17, 18),
            record_counts=(19, 20),
            max_timestamps=(21, 22),
            timestamp_types=(23, 24),
            producer_ids=(25, 26),
            producer_epochs=(27, 28),
            base_sequences=(29, 30),
            error_codes=(31, 32),
            duplicates=(33, 34),
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
        "03 0000000b 0000000c"  # batch_counts: 11, 12
        "03 000000000000000d 000000000000000e"  # byte_offsets: 13, 14
        "03 0000000f 00000010"  # byte_sizes: 15, 16
        "03 0000000000000011 0000000000000012"  # base_offsets: 17, 18
        "03 00000013 00000014"  # record_counts: 19, 20
        "03 0000000000000015 0000000000000016"  # max_timestamps: 21, 22
        "03 17 18"  # timestamp_types: 23, 24
        "03 0000000000000019 000000000000001a"  # producer_ids: 25, 26
        "03 001b 001c"  # producer_epochs: 27, 28
        "03 0000001d 0000001e"  # base_sequences: 29, 30
        "03 001f 0020"  # error_codes: 31, 32
        "03 21 22"  # duplicates: 33, 34
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
        LeaseClosedRecord(
            lease_id=1,
            closed_at_ms=1_700_000_000_000,
            end_object_id=2,
            reason=3,
        ),
        0,
        "01 d308 00"  # frame version 1, type 1107, record version 0
        "0000000000000001"  # lease_id: 1
        "0000018bcfe56800"  # closed_at_ms: 1700000000000
        "0000000000000002"  # end_object_id: 2
        "03"  # reason: 3
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
        OrphansFoundRecord(object_ids=(1, 2), marked_at_ms=1_700_000_000_000),
        0,
        "01 db08 00"  # frame version 1, type 1115, record version 0
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
            log_ids=(1, 2),
            producer_ids=(3, 4),
        ),
        0,
        "01 d708 00"  # frame version 1, type 1111, record version 0
        "03 0000000000000001 0000000000000002"  # log_ids: 1, 2
        "03 0000000000000003 0000000000000004"  # producer_ids: 3, 4
        "00",  # no tagged fields
    ),
    Golden(
        ProducersExpiredRecord(
            log_ids=(1,),
            producer_ids=(3,),
            largest_expired_id=5,
        ),
        0,
        "01 d708 00"  # frame version 1, type 1111, record version 0
        "02 0000000000000001"  # log_ids: 1
        "02 0000000000000003"  # producer_ids: 3
        "01 00 08 0000000000000005",  # one tagged field: tag 0, 8 bytes, largest_expired_id 5
    ),
    Golden(
        LeasesForgottenRecord(
            lease_ids=(1, 2),
        ),
        0,
        "01 d808 00"  # frame version 1, type 1112, record version 0
        "03 0000000000000001 0000000000000002"  # lease_ids: 1, 2
        "00",  # no tagged fields
    ),
    Golden(
        ControllerEpochRecord(
            controller_epoch=1,
        ),
        0,
        "01 d908 00"  # frame version 1, type 1113, record version 0
        "00000001"  # controller_epoch: 1
        "00",  # no tagged fields
    ),
    Golden(
        SteadyTimeRecord(steady_ms=9, replaces=1),
        0,
        "01 dc08 00"  # frame version 1, type 1116, record version 0
        "0000000000000009"  # steady_ms: 9
        "01"  # replaces: 1
        "00",  # no tagged fields
    ),
    Golden(
        CoordinatorState(
            controller_epoch=1,
            next_lease_id=2,
            next_object_id=3,
            next_log_id=4,
        ),
        0,
        "01 e008 00"  # frame version 1, type 1120, record version 0
        "00000001"  # controller_epoch: 1
        "0000000000000002"  # next_lease_id: 2
        "0000000000000003"  # next_object_id: 3
        "0000000000000004"  # next_log_id: 4
        "00",  # no tagged fields
    ),
    Golden(
        CoordinatorState(
            controller_epoch=1,
            next_lease_id=2,
            next_object_id=3,
            next_log_id=4,
            largest_expired_id=-1,
            steady_ms=9,
            clock_resets=1,
            notes_deletions=1,
        ),
        0,
        "01 e008 00"  # frame version 1, type 1120, record version 0
        "00000001"  # controller_epoch: 1
        "0000000000000002"  # next_lease_id: 2
        "0000000000000003"  # next_object_id: 3
        "0000000000000004"  # next_log_id: 4
        "04"  # four tagged fields
        "00 08 ffffffffffffffff"  # tag 0, 8 bytes, largest_expired_id -1
        "01 08 0000000000000009"  # tag 1, 8 bytes, steady_ms 9
        "02 04 00000001"  # tag 2, 4 bytes, clock_resets 1
        "03 01 01",  # tag 3, 1 byte, notes_deletions 1
    ),
    Golden(
        DisklessTopicState(
            topic_id=UUID(int=7),
            topic_name="foo",
            first_partition=1,
            log_ids=(2, -1),
            log_start_offsets=(3, 4),
            high_watermarks=(5, 6),
        ),
        0,
        "01 e108 00"  # frame version 1, type 1121, record version 0
        "00000000000000000000000000000007"  # topic_id
        "04 666f6f"  # topic_name: foo
        "00000001"  # first_partition: 1
        "03 0000000000000002 ffffffffffffffff"  # log_ids: 2, -1
        "03 0000000000000003 0000000000000004"  # log_start_offsets: 3, 4
        "03 0000000000000005 0000000000000006"  # high_watermarks: 5, 6
        "00",  # no tagged fields
    ),
    Golden(
        DisklessTopicState(
            topic_id=UUID(int=7),
            topic_name="foo",
            first_partition=1,
            log_ids=(2, -1),
            log_start_offsets=(3, 4),
            high_watermarks=(5, 6),
            deleted_at_ms=1_700_000_000_000,
        ),
        0,
        "01 e108 00"  # frame version 1, type 1121, record version 0
        "00000000000000000000000000000007"  # topic_id
        "04 666f6f"  # topic_name: foo
        "00000001"  # first_partition: 1
        "03 0000000000000002 ffffffffffffffff"  # log_ids: 2, -1
        "03 0000000000000003 0000000000000004"  # log_start_offsets: 3, 4
        "03 0000000000000005 0000000000000006"  # high_watermarks: 5, 6
        "01"  # 1 tagged field
        "  0008 0000018bcfe56800",  # tag 0, 8 bytes: deleted_at_ms, 1700000000000
    ),
    Golden(
        RunsState(
            log_id=1,
            base_offset=2,
            last_offsets=(3, 4),
            object_ids=(5, 6),
            byte_offsets=(7, 8),
            byte_sizes=(9, 10),
            max_timestamps=(11, 12),
            timestamp_types=(13, 14),
        ),
        0,
        "01 e208 00"  # frame version 1, type 1122, record version 0
        "0000000000000001"  # log_id: 1
        "0000000000000002"  # base_offset: 2
        "03 0000000000000003 0000000000000004"  # last_offsets: 3, 4
        "03 0000000000000005 0000000000000006"  # object_ids: 5, 6
        "03 0000000000000007 0000000000000008"  # byte_offsets: 7, 8
        "03 0000000000000009 000000000000000a"  # byte_sizes: 9, 10
        "03 000000000000000b 000000000000000c"  # max_timestamps: 11, 12
        "03 0d 0e"  # timestamp_types: 13, 14
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
            topic_ids=(UUID(int=7),),
            topic_counts=(15, 16),
            topic_indexes=(17, 18),
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
        "02 00000000000000000000000000000007"  # topic_ids: 1 id
        "03 0000000f 00000010"  # topic_counts: 15, 16
        "03 00000011 00000012"  # topic_indexes: 17, 18
        "00",  # no tagged fields
    ),
    Golden(
        ProducersState(
            log_id=1,
            producer_ids=(2, 3),
            producer_epochs=(4, 5),
            appended_at_ms=(6, 7),
            batch_counts=(8, 9),
            base_sequences=(10, 11),
            last_sequences=(12, 13),
            base_offsets=(14, 15),
            append_times=(16, -1),
        ),
        0,
        "01 e408 00"  # frame version 1, type 1124, record version 0
        "0000000000000001"  # log_id: 1
        "03 0000000000000002 0000000000000003"  # producer_ids: 2, 3
        "03 0004 0005"  # producer_epochs: 4, 5
        "03 0000000000000006 0000000000000007"  # appended_at_ms: 6, 7
        "03 08 09"  # batch_counts: 8, 9
        "03 0000000a 0000000b"  # base_sequences: 10, 11
        "03 0000000c 0000000d"  # last_sequences: 12, 13
        "03 000000000000000e 000000000000000f"  # base_offsets: 14, 15
        "03 0000000000000010 ffffffffffffffff"  # append_times: 16, -1
        "00",  # no tagged fields
    ),
    Golden(
        LeaseState(
            lease_id=1,
            broker_id=2,
            broker_epoch=3,
            first_object_id=4,
            end_object_id=5,
            last_committed_id=6,
            skipped=(7, 8),
            fenced=(9, 10),
            granted_at_ms=1_700_000_000_000,
            closed_at_ms=-1,
            orphans=(11, 12),
        ),
        0,
        "01 e508 00"  # frame version 1, type 1125, record version 0
        "0000000000000001"  # lease_id: 1
        "00000002"  # broker_id: 2
        "0000000000000003"  # broker_epoch: 3
        "0000000000000004"  # first_object_id: 4
        "0000000000000005"  # end_object_id: 5
        "0000000000000006"  # last_committed_id: 6
        "03 0000000000000007 0000000000000008"  # skipped: 7, 8
        "03 0000000000000009 000000000000000a"  # fenced: 9, 10
        "0000018bcfe56800"  # granted_at_ms: 1700000000000
        "ffffffffffffffff"  # closed_at_ms: -1
        "03 000000000000000b 000000000000000c"  # orphans: 11, 12
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
            batch_counts=(7, 8),
            log_start_offsets=(9, -1),
            base_offsets=(10, 11),
            append_times=(12, 13),
            error_codes=(14, 15),
            duplicates=(16, 17),
        ),
        0,
        "01 e608 00"  # frame version 1, type 1126, record version 0
        "0000000000000001"  # object_id: 1
        "0000000000000002"  # lease_id: 2
        "0000018bcfe56800"  # committed_at_ms: 1700000000000
        "02 00000000000000000000000000000007"  # topic_ids: 1 id
        "03 00000003 00000004"  # topic_indexes: 3, 4
        "03 00000005 00000006"  # partitions: 5, 6
        "03 00000007 00000008"  # batch_counts: 7, 8
        "03 0000000000000009 ffffffffffffffff"  # log_start_offsets: 9, -1
        "03 000000000000000a 000000000000000b"  # base_offsets: 10, 11
        "03 000000000000000c 000000000000000d"  # append_times: 12, 13
        "03 000e 000f"  # error_codes: 14, 15
        "03 10 11"  # duplicates: 16, 17
        "00",  # no tagged fields
    ),
    Golden(
        DisklessBrokerState(
            broker_id=1,
            broker_epoch=2,
            answered=(3, 4),
        ),
        0,
        "01 e708 00"  # frame version 1, type 1127, record version 0
        "00000001"  # broker_id: 1
        "0000000000000002"  # broker_epoch: 2
        "03 0000000000000003 0000000000000004"  # answered: 3, 4
        "00",  # no tagged fields
    ),
]


@pytest.mark.parametrize("golden", GOLDEN, ids=golden_name)
def test_each_diskless_record_has_its_golden_bytes(golden: Golden) -> None:
    record = golden.message
    assert isinstance(record, MetadataRecord)
    assert encode_record(record, golden.version) == golden.encoded
    assert decode_record(golden.encoded) == record
