"""Golden bytes: records, requests and responses of rewriting, field by field.

No Kafka release knows them; the bytes were written from the field lists of
docs/design/compaction.md, by the rules of KIP-482.
"""

from __future__ import annotations

from uuid import UUID

import pytest

from records.codec import decode_message, encode_message
from records.diskless import (
    CleaningState,
    ObjectsState,
    RewriteLeaseGrantedRecord,
    RewriteLeaseRenewedRecord,
    RewriteLeaseState,
    RunsReplacedRecord,
    RunsState,
)
from records.frame import decode_record, encode_record
from records.rpc import API
from records.rpc.batch_coordinator import FindBatchesResponse
from records.rpc.rewriting import (
    AbortedEntry,
    DescribeCleaningRequest,
    DescribeCleaningResponse,
    ListDisklessObjectsRequest,
    ListDisklessObjectsResponse,
    NewRun,
    ObjectUse,
    ReplaceRunsRequest,
    ReplaceRunsResponse,
    RewriteLeaseRequest,
    RewriteLeaseResponse,
)
from records.schema import MetadataRecord
from tests.records.golden import Golden, golden_name

GOLDEN: list[Golden] = [
    Golden(
        RewriteLeaseGrantedRecord(
            lease_id=1,
            broker_id=2,
            broker_epoch=3,
            plan_id=UUID(int=7),
            first_object_id=4,
            object_count=5,
            granted_at_ms=6,
            closed_lease_ids=(7,),
        ),
        0,
        "01 dd08 00"  # frame version 1, type 1117, record version 0
        "0000000000000001"  # lease_id: 1
        "00000002"  # broker_id: 2
        "0000000000000003"  # broker_epoch: 3
        "00000000000000000000000000000007"  # plan_id: 7
        "0000000000000004"  # first_object_id: 4
        "00000005"  # object_count: 5
        "0000000000000006"  # granted_at_ms: 6
        "02 0000000000000007"  # closed_lease_ids: 7
        "00",  # no tagged fields
    ),
    Golden(
        RewriteLeaseRenewedRecord(
            lease_id=1,
            renewed_at_ms=2,
        ),
        0,
        "01 de08 00"  # frame version 1, type 1118, record version 0
        "0000000000000001"  # lease_id: 1
        "0000000000000002"  # renewed_at_ms: 2
        "00",  # no tagged fields
    ),
    Golden(
        RunsReplacedRecord(
            object_id=1,
            object_format=2,
            size_bytes=3,
            broker_id=-1,
            lease_id=5,
            replaced_at_ms=6,
            closes_object=1,
            topic_ids=(UUID(int=7),),
            topic_indexes=(0,),
            partitions=(8,),
            first_offsets=(9,),
            end_offsets=(10,),
            old_run_counts=(11,),
            old_run_digests=(12,),
            bounds=(-1,),
            flags=(3,),
            run_counts=(2,),
            last_offsets=(13, 14),
            record_counts=(15, 16),
            byte_offsets=(17, 18),
            byte_sizes=(19, 20),
            max_timestamps=(21, 22),
            append_times=(23, 24),
            timestamp_types=(0, 1),
        ),
        0,
        "01 df08 00"  # frame version 1, type 1119, record version 0
        "0000000000000001"  # object_id: 1
        "02"  # object_format: 2
        "0000000000000003"  # size_bytes: 3
        "ffffffff"  # broker_id: -1
        "0000000000000005"  # lease_id: 5
        "0000000000000006"  # replaced_at_ms: 6
        "01"  # closes_object: 1
        "02 00000000000000000000000000000007"  # topic_ids: 7
        "02 00000000"  # topic_indexes: 0
        "02 00000008"  # partitions: 8
        "02 0000000000000009"  # first_offsets: 9
        "02 000000000000000a"  # end_offsets: 10
        "02 0000000b"  # old_run_counts: 11
        "02 000000000000000c"  # old_run_digests: 12
        "02 ffffffffffffffff"  # bounds: -1
        "02 03"  # flags: 3
        "02 00000002"  # run_counts: 2
        "03 000000000000000d 000000000000000e"  # last_offsets: 13, 14
        "03 0000000f 00000010"  # record_counts: 15, 16
        "03 0000000000000011 0000000000000012"  # byte_offsets: 17, 18
        "03 0000000000000013 0000000000000014"  # byte_sizes: 19, 20
        "03 0000000000000015 0000000000000016"  # max_timestamps: 21, 22
        "03 0000000000000017 0000000000000018"  # append_times: 23, 24
        "03 00 01"  # timestamp_types: 0, 1
        "00",  # no tagged fields
    ),
    Golden(
        RunsReplacedRecord(
            object_id=1,
            object_format=2,
            size_bytes=3,
            broker_id=-1,
            lease_id=5,
            replaced_at_ms=6,
            closes_object=1,
            topic_ids=(UUID(int=7),),
            topic_indexes=(0,),
            partitions=(8,),
            first_offsets=(9,),
            end_offsets=(10,),
            old_run_counts=(11,),
            old_run_digests=(12,),
            bounds=(-1,),
            flags=(3,),
            run_counts=(2,),
            last_offsets=(13, 14),
            record_counts=(15, 16),
            byte_offsets=(17, 18),
            byte_sizes=(19, 20),
            max_timestamps=(21, 22),
            append_times=(23, 24),
            timestamp_types=(0, 1),
            ended_counts=(1,),
            ended_producer_ids=(2,),
            ended_first_offsets=(3,),
        ),
        0,
        "01 df08 00"  # frame version 1, type 1119, record version 0
        "0000000000000001"  # object_id: 1
        "02"  # object_format: 2
        "0000000000000003"  # size_bytes: 3
        "ffffffff"  # broker_id: -1
        "0000000000000005"  # lease_id: 5
        "0000000000000006"  # replaced_at_ms: 6
        "01"  # closes_object: 1
        "02 00000000000000000000000000000007"  # topic_ids: 7
        "02 00000000"  # topic_indexes: 0
        "02 00000008"  # partitions: 8
        "02 0000000000000009"  # first_offsets: 9
        "02 000000000000000a"  # end_offsets: 10
        "02 0000000b"  # old_run_counts: 11
        "02 000000000000000c"  # old_run_digests: 12
        "02 ffffffffffffffff"  # bounds: -1
        "02 03"  # flags: 3
        "02 00000002"  # run_counts: 2
        "03 000000000000000d 000000000000000e"  # last_offsets: 13, 14
        "03 0000000f 00000010"  # record_counts: 15, 16
        "03 0000000000000011 0000000000000012"  # byte_offsets: 17, 18
        "03 0000000000000013 0000000000000014"  # byte_sizes: 19, 20
        "03 0000000000000015 0000000000000016"  # max_timestamps: 21, 22
        "03 0000000000000017 0000000000000018"  # append_times: 23, 24
        "03 00 01"  # timestamp_types: 0, 1
        "03"  # tagged fields
        "00 05 02 00000001"  # tag 0, 5 bytes, ended_counts: 1
        "01 09 02 0000000000000002"  # tag 1, 9 bytes, ended_producer_ids: 2
        "02 09 02 0000000000000003",  # tag 2, 9 bytes, ended_first_offsets: 3
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
            append_times=(15, 16),
            record_counts=(17, 18),
            object_formats=(19, 20),
        ),
        1,
        "01 e208 01"  # frame version 1, type 1122, record version 1
        "0000000000000001"  # log_id: 1
        "0000000000000002"  # base_offset: 2
        "03 0000000000000003 0000000000000004"  # last_offsets: 3, 4
        "03 0000000000000005 0000000000000006"  # object_ids: 5, 6
        "03 0000000000000007 0000000000000008"  # byte_offsets: 7, 8
        "03 0000000000000009 000000000000000a"  # byte_sizes: 9, 10
        "03 000000000000000b 000000000000000c"  # max_timestamps: 11, 12
        "03 0d 0e"  # timestamp_types: 13, 14
        "03 000000000000000f 0000000000000010"  # append_times: 15, 16
        "03 0000000000000011 0000000000000012"  # record_counts: 17, 18
        "03 13 14"  # object_formats: 19, 20
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
            marked_at_ms=(-2, -1),
            topic_ids=(UUID(int=7),),
            topic_counts=(15, 16),
            topic_indexes=(17, 18),
            first_deletions_ms=(19, -1),
        ),
        1,
        "01 e308 01"  # frame version 1, type 1123, record version 1
        "03 0000000000000001 0000000000000002"  # object_ids: 1, 2
        "03 0000000000000003 0000000000000004"  # sizes_bytes: 3, 4
        "03 0000000000000005 0000000000000006"  # used_bytes: 5, 6
        "03 07 08"  # formats: 7, 8
        "03 00000009 0000000a"  # broker_ids: 9, 10
        "03 000000000000000b 000000000000000c"  # committed_at_ms: 11, 12
        "03 fffffffffffffffe ffffffffffffffff"  # marked_at_ms: -2, -1
        "02 00000000000000000000000000000007"  # topic_ids: 7
        "03 0000000f 00000010"  # topic_counts: 15, 16
        "03 00000011 00000012"  # topic_indexes: 17, 18
        "03 0000000000000013 ffffffffffffffff"  # first_deletions_ms: 19, -1
        "00",  # no tagged fields
    ),
    Golden(
        RewriteLeaseState(
            lease_id=1,
            broker_id=2,
            broker_epoch=3,
            plan_id=UUID(int=7),
            first_object_id=4,
            end_object_id=5,
            fenced=(6,),
            granted_at_ms=7,
            renewed_at_ms=8,
            closed_at_ms=-1,
            orphans=(),
            opened=(9, 10),
            open_ids=(11,),
            open_sizes=(12,),
            open_formats=(13,),
            open_filled=(14,),
        ),
        0,
        "01 e808 00"  # frame version 1, type 1128, record version 0
        "0000000000000001"  # lease_id: 1
        "00000002"  # broker_id: 2
        "0000000000000003"  # broker_epoch: 3
        "00000000000000000000000000000007"  # plan_id: 7
        "0000000000000004"  # first_object_id: 4
        "0000000000000005"  # end_object_id: 5
        "02 0000000000000006"  # fenced: 6
        "0000000000000007"  # granted_at_ms: 7
        "0000000000000008"  # renewed_at_ms: 8
        "ffffffffffffffff"  # closed_at_ms: -1
        "01"  # orphans: none
        "03 0000000000000009 000000000000000a"  # opened: 9, 10
        "02 000000000000000b"  # open_ids: 11
        "02 000000000000000c"  # open_sizes: 12
        "02 0d"  # open_formats: 13
        "02 000000000000000e"  # open_filled: 14
        "00",  # no tagged fields
    ),
    Golden(
        CleaningState(
            log_ids=(1, 2),
            cleaned_until=(3, 4),
            bounds=(5, -1),
            rewritten_until=(6, 7),
        ),
        0,
        "01 e908 00"  # frame version 1, type 1129, record version 0
        "03 0000000000000001 0000000000000002"  # log_ids: 1, 2
        "03 0000000000000003 0000000000000004"  # cleaned_until: 3, 4
        "03 0000000000000005 ffffffffffffffff"  # bounds: 5, -1
        "03 0000000000000006 0000000000000007"  # rewritten_until: 6, 7
        "00",  # no tagged fields
    ),
]

OK = "00000000 0000 00"  # throttle_time_ms, error_code, error_message

MESSAGES: list[Golden] = [
    Golden(
        RewriteLeaseRequest(
            coordinator_partition=1,
            lease_id=2,
            releases=True,
            broker_id=3,
            broker_epoch=4,
            plan_id=UUID(int=7),
            object_count=5,
        ),
        0,
        "00000001 0000000000000002 01"  # coordinator_partition, lease_id, releases
        "00000003 0000000000000004"  # broker_id, broker_epoch
        "00000000000000000000000000000007 00000005"  # plan_id, object_count
        "00",
    ),
    Golden(
        RewriteLeaseResponse(lease_id=1, first_object_id=2, object_count=3, timeout_ms=4),
        0,
        f"{OK} 0000000000000001 0000000000000002"  # lease_id, first_object_id
        "00000003 0000000000000004 00",  # object_count, timeout_ms
    ),
    Golden(
        ReplaceRunsRequest(
            coordinator_partition=1,
            lease_id=2,
            broker_id=3,
            broker_epoch=4,
            object_id=5,
            object_format=2,
            object_size=6,
            closes_object=True,
            topics=(
                ReplaceRunsRequest.Topic(
                    topic_id=UUID(int=7),
                    partitions=(
                        ReplaceRunsRequest.Topic.Partition(
                            partition_index=8,
                            first_offset=9,
                            end_offset=10,
                            old_run_count=11,
                            old_runs_digest=12,
                            bound=13,
                            flags=3,
                            runs=(NewRun(14, 15, 16, 17, 18, 19, 1),),
                            ended_aborted=(AbortedEntry(20, 21),),
                        ),
                    ),
                ),
            ),
        ),
        0,
        "00000001 0000000000000002"  # coordinator_partition, lease_id
        "00000003 0000000000000004"  # broker_id, broker_epoch
        "00000000000000000000000000000000"  # plan_id: none
        "0000000000000005 02 0000000000000006 01"  # object: id, format, size, closes_object
        "02 00000000000000000000000000000007"  # one topic: topic_id
        "02 00000008"  # one partition: partition_index
        "0000000000000009 000000000000000a"  # first_offset, end_offset
        "0000000b 000000000000000c"  # old_run_count, old_runs_digest
        "000000000000000d 03"  # bound, flags
        "02 000000000000000e 0000000f"  # one run: last_offset, record_count
        "0000000000000010 0000000000000011"  # byte_offset, size
        "0000000000000012 0000000000000013 01"  # max_timestamp, append_time, timestamp_type
        "00"  # no tagged fields: the run's
        "02 0000000000000014 0000000000000015 00"  # one aborted entry
        "00 00 00",  # no tagged fields: the partition's, the topic's, the request's
    ),
    Golden(
        ReplaceRunsResponse(
            topics=(
                ReplaceRunsResponse.Topic(
                    topic_id=UUID(int=7),
                    partitions=(
                        ReplaceRunsResponse.Topic.Partition(
                            partition_index=1, cleaned_until=2, bound=3, rewritten_until=4
                        ),
                    ),
                ),
            ),
        ),
        0,
        f"{OK} 02 00000000000000000000000000000007"  # one topic: topic_id
        "02 00000001 0000 00"  # one partition: partition_index, error_code, error_message
        "0000000000000002 0000000000000003 0000000000000004"  # cleaned_until, bound, rewritten
        "00 00 00",
    ),
    Golden(
        DescribeCleaningRequest(
            coordinator_partition=1,
            topics=(DescribeCleaningRequest.Topic(topic_id=UUID(int=7), partitions=(2,)),),
        ),
        0,
        "00000001 02 00000000000000000000000000000007"  # coordinator_partition; one topic
        "02 00000002 00 00",  # one partition
    ),
    Golden(
        DescribeCleaningResponse(
            responses=(
                DescribeCleaningResponse.Topic(
                    topic_id=UUID(int=7),
                    partitions=(
                        DescribeCleaningResponse.Topic.Partition(
                            partition_index=1,
                            log_start_offset=2,
                            high_watermark=3,
                            last_stable_offset=4,
                            cleaned_until=5,
                            bound=6,
                            rewritten_until=7,
                            run_count=8,
                            stored_bytes=9,
                        ),
                    ),
                ),
            ),
        ),
        0,
        f"{OK} 02 00000000000000000000000000000007"  # one topic: topic_id
        "02 00000001 0000"  # one partition: partition_index, error_code
        "0000000000000002 0000000000000003 0000000000000004"  # log start, high watermark, LSO
        "0000000000000005 0000000000000006 0000000000000007"  # cleaned_until, bound, rewritten
        "0000000000000008 0000000000000009"  # run_count, stored_bytes
        "00 00 00",
    ),
    Golden(
        ListDisklessObjectsRequest(
            coordinator_partition=1, from_object_id=2, max_objects=3, deleted_before_ms=4
        ),
        0,
        "00000001 0000000000000002 00000003 0000000000000004 00",
    ),
    Golden(
        ListDisklessObjectsResponse(
            applied_offset=1, next_object_id=2, objects=(ObjectUse(3, 4, 5, 2, 6, 7, -2, 8),)
        ),
        0,
        f"{OK} 0000000000000001 0000000000000002"  # applied_offset, next_object_id
        "02 0000000000000003 0000000000000004 0000000000000005"  # object_id, size, used
        "02 00000006 0000000000000007"  # object_format, broker_id, committed_at_ms
        "fffffffffffffffe 0000000000000008 00 00",  # marked_at_ms, first_deletion_ms
    ),
    Golden(
        FindBatchesResponse.Topic.Partition.Batch(
            object_key="k",
            byte_offset=1,
            size=2,
            base_offset=3,
            last_offset=4,
            log_append_timestamp=5,
            batch_max_timestamp=6,
            message_timestamp_type=0,
            object_format=2,
            record_count=7,
        ),
        0,
        "02 6b 0000000000000001 0000000000000002"  # object_key, byte_offset, size
        "0000000000000003 0000000000000004"  # base_offset, last_offset
        "0000000000000005 0000000000000006 00"  # log_append_timestamp, batch_max_timestamp, type
        "ffffffffffffffff ffff ffffffff ffffffff"  # no producer
        "02 00 01 02"  # two tagged fields: tag 0, 1 byte, object_format
        "01 08 0000000000000007",  # tag 1, 8 bytes, record_count
    ),
]


@pytest.mark.parametrize("golden", GOLDEN, ids=golden_name)
def test_each_log_record_about_rewritten_objects_has_its_golden_bytes(golden: Golden) -> None:
    record = golden.message
    assert isinstance(record, MetadataRecord)
    assert encode_record(record, golden.version).hex(" ") == golden.encoded.hex(" ")
    assert decode_record(golden.encoded) == record


@pytest.mark.parametrize("golden", MESSAGES, ids=golden_name)
def test_each_message_about_rewritten_objects_has_its_golden_bytes(golden: Golden) -> None:
    assert encode_message(golden.message, golden.version).hex(" ") == golden.encoded.hex(" ")
    assert decode_message(type(golden.message), golden.encoded, golden.version) == golden.message


def test_every_declared_message_about_rewritten_objects_has_golden_bytes() -> None:
    covered = {type(golden.message) for golden in MESSAGES}
    assert {cls for key, api in API.items() if 1116 <= key < 1120 for cls in api} <= covered
