"""Golden bytes: what a batch coordinator is asked about objects, and which coordinator is meant.

No Kafka release knows these messages; the bytes were written by hand from the field lists, by the
rules of KIP-482 (compact lengths are one more, tagged fields come last).
"""

from __future__ import annotations

from uuid import UUID

import pytest

from records.codec import decode_message, encode_message
from records.rpc import API
from records.rpc.batch_coordinator import (
    ApplyRetentionRequest,
    ApplyRetentionResponse,
    CommitBatch,
    CommitBatchesRequest,
    DescribeDisklessProducersRequest,
    DescribeDisklessProducersResponse,
    FindBatchesRequest,
    InitDisklessTopicsRequest,
    ListDisklessOffsetsRequest,
    ReleaseDisklessPartitionsRequest,
    ReleaseDisklessPartitionsResponse,
)
from records.rpc.objects import (
    AcceptClockRequest,
    AcceptClockResponse,
    AcquireObjectLeaseRequest,
    AcquireObjectLeaseResponse,
    DeleteFilesRequest,
    DeleteFilesResponse,
    DescribeDisklessObjectRequest,
    DescribeDisklessObjectResponse,
    DescribeDisklessTopicsRequest,
    DescribeDisklessTopicsResponse,
    GetFilesToDeleteRequest,
    GetFilesToDeleteResponse,
    IsSafeToDeleteFileRequest,
    IsSafeToDeleteFileResponse,
    MarkOrphansRequest,
    MarkOrphansResponse,
    ReleaseObjectLeaseRequest,
    ReleaseObjectLeaseResponse,
)
from tests.records.golden import Golden, golden_name

OK = "00000000 0000"  # throttle_time_ms, error_code

GOLDEN: list[Golden] = [
    Golden(
        MarkOrphansRequest(
            coordinator_partition=1, cluster_id="c", expires_at_ms=9, object_keys=("k",)
        ),
        0,
        "00000001 02 63 0000000000000009"  # coordinator_partition, cluster_id, expires_at_ms
        "02 02 6b"  # one key
        "00",
    ),
    Golden(
        AcceptClockRequest(coordinator_partition=1),
        0,
        "00000001"  # coordinator_partition
        "00",
    ),
    Golden(
        AcceptClockResponse(was_held=True, before_ms=8, steady_ms=9),
        0,
        OK + "00"  # no error_message
        "01"  # was_held
        "0000000000000008 0000000000000009"  # before_ms, steady_ms
        "00",
    ),
    Golden(
        MarkOrphansResponse(key_error_codes=(0, 44)),
        0,
        OK + "00"  # no error_message
        "03 0000 002c"  # of the first key NONE, of the second POLICY_VIOLATION
        "00",
    ),
    Golden(
        ApplyRetentionRequest(
            cluster_id="c",
            expires_at_ms=9,
            topics=(
                ApplyRetentionRequest.Topic(
                    topic_id=UUID(int=7),
                    partitions=(
                        ApplyRetentionRequest.Topic.Partition(
                            partition_index=5, log_start_offset=100, reason=2, limit=50
                        ),
                    ),
                ),
            ),
        ),
        0,
        "02 63 0000000000000009"  # cluster_id, expires_at_ms
        "02 00000000000000000000000000000007"  # one topic: its id
        "02 00000005 0000000000000064 02 0000000000000032 00"  # one partition: a row of the plan
        "00 00",
    ),
    Golden(
        ApplyRetentionResponse(
            responses=(
                ApplyRetentionResponse.Topic(
                    topic_id=UUID(int=7),
                    partitions=(
                        ApplyRetentionResponse.Topic.Partition(
                            partition_index=5, error_code=44, low_watermark=-1
                        ),
                    ),
                ),
            )
        ),
        0,
        "00000000"  # throttle_time_ms
        "02 00000000000000000000000000000007"  # one topic: its id
        "02 00000005 002c ffffffffffffffff 00"  # one partition: error_code 44 POLICY_VIOLATION
        "00 00",
    ),
    Golden(
        ReleaseDisklessPartitionsRequest(
            controller_epoch=4,
            topics=(
                ReleaseDisklessPartitionsRequest.Topic(
                    topic_id=UUID(int=7),
                    partitions=(
                        ReleaseDisklessPartitionsRequest.Topic.Partition(partition_index=5),
                    ),
                ),
            ),
            coordinator_partition=1,
        ),
        0,
        "00000004"  # controller_epoch
        "02 00000000000000000000000000000007"  # one topic: its id
        "02 00000005 00"  # one partition: its index
        "00"  # the topic's tagged fields
        "01 00 04 00000001",  # one tagged field, 0, of 4 bytes: coordinator_partition
    ),
    Golden(
        ReleaseDisklessPartitionsResponse(
            responses=(
                ReleaseDisklessPartitionsResponse.Topic(
                    topic_id=UUID(int=7),
                    partitions=(
                        ReleaseDisklessPartitionsResponse.Topic.Partition(
                            partition_index=5, error_code=42
                        ),
                    ),
                ),
            )
        ),
        0,
        "00000000"  # throttle_time_ms
        "02 00000000000000000000000000000007"  # one topic: its id
        "02 00000005 002a 00"  # one partition: index, error_code 42 INVALID_REQUEST
        "00 00",
    ),
    Golden(
        InitDisklessTopicsRequest(
            controller_epoch=4,
            topics=(
                InitDisklessTopicsRequest.Topic(
                    topic_id=UUID(int=7), topic_name="t", num_partitions=2, restored=(1,)
                ),
            ),
        ),
        0,
        "00000004"  # controller_epoch
        "02 00000000000000000000000000000007 02 74 00000002"  # one topic: id, name, num_partitions
        "01 00 05 02 00000001"  # one tagged field, 0, of 5 bytes: restored, one of them
        "00",
    ),
    Golden(
        AcquireObjectLeaseRequest(
            coordinator_partition=1, broker_id=2, broker_epoch=3, object_count=64
        ),
        0,
        "00000001"  # coordinator_partition
        "00000002 0000000000000003"  # broker_id, broker_epoch
        "00000040"  # object_count
        "00",  # no tagged fields
    ),
    Golden(
        AcquireObjectLeaseResponse(
            error_code=77, error_message="no", lease_id=4, first_object_id=256, object_count=64
        ),
        0,
        "00000000 004d"  # throttle_time_ms, error_code: 77 STALE_BROKER_EPOCH
        "03 6e6f"  # error_message: no
        "0000000000000004"  # lease_id
        "0000000000000100 00000040"  # first_object_id, object_count
        "00",
    ),
    Golden(
        ReleaseObjectLeaseRequest(coordinator_partition=0, broker_id=2, broker_epoch=3, lease_id=4),
        0,
        "00000000"  # coordinator_partition
        "00000002 0000000000000003"  # broker_id, broker_epoch
        "0000000000000004"  # lease_id
        "00",
    ),
    Golden(ReleaseObjectLeaseResponse(), 0, OK + "00 00"),  # error_message: null
    Golden(
        GetFilesToDeleteRequest(coordinator_partition=0, max_files=1000),
        0,
        "00000000 000003e8 00",
    ),
    Golden(
        GetFilesToDeleteResponse(
            files=(
                GetFilesToDeleteResponse.File(
                    object_key="a/b", marked_for_deletion_at=1_700_000_000_000
                ),
            )
        ),
        0,
        OK + "00"  # error_message: null
        "02"  # one file
        "04 612f62"  # object_key: a/b
        "0000018bcfe56800"  # marked_for_deletion_at
        "00"  # no tagged fields of the file
        "00",
    ),
    Golden(
        DeleteFilesRequest(coordinator_partition=0, object_keys=("a", "bc")),
        0,
        "00000000"
        "03 02 61 03 6263"  # object_keys: a, bc
        "00",
    ),
    Golden(
        DeleteFilesResponse(key_error_codes=(0, 42)),
        0,
        OK + "00"  # error_message: null
        "03 0000 002a"  # key_error_codes
        "00",
    ),
    Golden(
        IsSafeToDeleteFileRequest(coordinator_partition=0, object_key="a"),
        0,
        "00000000 02 61 00",
    ),
    Golden(
        IsSafeToDeleteFileResponse(is_safe=True),
        0,
        OK + "00 01 00",  # error_message: null, is_safe
    ),
    Golden(
        DescribeDisklessProducersRequest(
            coordinator_partition=0,
            topics=(DescribeDisklessProducersRequest.Topic(topic_id=UUID(int=7), partitions=(1,)),),
        ),
        0,
        "00000000"
        "02 00000000000000000000000000000007"  # one topic: its id
        "02 00000001 00 00",  # one partition
    ),
    Golden(
        DescribeDisklessProducersRequest(coordinator_partition=3, topics=(), producer_id=7),
        0,
        "00000003 01"  # no topic
        "01 00 08 0000000000000007",  # tag 0, producer_id
    ),
    Golden(
        DescribeDisklessProducersResponse(
            responses=(
                DescribeDisklessProducersResponse.Topic(
                    topic_id=UUID(int=7),
                    partitions=(
                        DescribeDisklessProducersResponse.Topic.Partition(
                            partition_index=1,
                            producers=(
                                DescribeDisklessProducersResponse.Topic.Partition.Producer(
                                    producer_id=2,
                                    producer_epoch=3,
                                    last_sequence=4,
                                    appended_at_ms=5,
                                ),
                            ),
                        ),
                    ),
                ),
            ),
        ),
        0,
        OK + "00"  # error_message: null
        "02 00000000000000000000000000000007"  # one topic: its id
        "02 00000001 0000"  # one partition: its index, no error
        "02 0000000000000002 0003"  # one producer: id, epoch
        "00000004 0000000000000005"  # last sequence, time of the last batch
        "00 00 00 00",
    ),
    Golden(
        DescribeDisklessTopicsRequest(coordinator_partition=0, topic_names=("foo",)),
        0,
        "00000000"
        "02 04 666f6f"  # topic_names: foo
        "00",
    ),
    Golden(
        DescribeDisklessTopicsRequest(coordinator_partition=0),
        0,
        "00000000 00 00",  # topic_names: null, all of them
    ),
    Golden(
        DescribeDisklessTopicsRequest(coordinator_partition=0, include_objects=False),
        0,
        "00000000 00 01 00 01 00",  # tagged fields: one; tag 0, of one byte: include_objects, false
    ),
    Golden(
        DescribeDisklessTopicsRequest(coordinator_partition=0, behind_barrier=True),
        0,
        "00000000 00 01 01 01 01",  # tagged fields: one; tag 1, of one byte: behind_barrier, true
    ),
    Golden(
        DescribeDisklessTopicsResponse(
            applied_offset=9,
            topics=(
                DescribeDisklessTopicsResponse.Topic(
                    topic_id=UUID(int=7),
                    topic_name="foo",
                    object_bytes=300,
                    past_object_bytes=200,
                    dead_bytes=100,
                    partitions=(
                        DescribeDisklessTopicsResponse.Topic.Partition(
                            partition_index=5,
                            log_start_offset=1,
                            high_watermark=2,
                            run_count=3,
                            stored_bytes=4,
                        ),
                    ),
                ),
            ),
        ),
        0,
        OK + "00"  # error_message: null
        "0000000000000009"  # applied_offset
        "02"  # one topic
        "00000000000000000000000000000007 04 666f6f 0000"  # topic_id, topic_name, error_code
        "000000000000012c 00000000000000c8 0000000000000064"  # the three sums of objects
        "02"  # one partition
        "00000005"  # partition_index
        "0000000000000001 0000000000000002"  # log_start_offset, high_watermark
        "0000000000000003 0000000000000004"  # run_count, stored_bytes
        "00 00 00",  # no tagged fields: the partition's, the topic's, the answer's
    ),
    Golden(
        DescribeDisklessObjectRequest(coordinator_partition=0, object_key="a"),
        0,
        "00000000 02 61 00",
    ),
    Golden(
        DescribeDisklessObjectResponse(
            applied_offset=9,
            object_id=8,
            object_format=1,
            size_bytes=300,
            used_bytes=200,
            broker_id=2,
            committed_at_ms=1_700_000_000_000,
            marked_at_ms=1_700_000_000_001,
            owners=(
                DescribeDisklessObjectResponse.Owner(
                    topic_id=UUID(int=7),
                    topic_name="foo",
                    partition_index=5,
                    run_count=1,
                    used_bytes=200,
                ),
            ),
        ),
        0,
        OK + "00"  # error_message: null
        "0000000000000009 0000000000000008 01"  # applied_offset, object_id, object_format
        "000000000000012c 00000000000000c8"  # size_bytes, used_bytes
        "00000002 0000018bcfe56800"  # broker_id, committed_at_ms
        "02"  # one owner
        "00000000000000000000000000000007 04 666f6f"  # topic_id, topic_name
        "00000005 00000001 00000000000000c8"  # partition_index, run_count, used_bytes
        "00"  # no tagged fields of the owner
        "01 00 08 0000018bcfe56801",  # one tagged field: tag 0, 8 bytes, marked_at_ms
    ),
    Golden(
        CommitBatchesRequest(
            broker_id=2,
            broker_epoch=3,
            lease_id=4,
            object_id=8,
            object_format=1,
            object_size=300,
            coordinator_partition=1,
            topics=(
                CommitBatchesRequest.Topic(
                    topic_id=UUID(int=7),
                    partitions=(
                        CommitBatchesRequest.Topic.Partition(
                            partition_index=5,
                            batches=(CommitBatch(0, 100, 0, 9, 1, 0, -1, -1, -1, -1),),
                        ),
                    ),
                ),
            ),
        ),
        0,
        "00000002 0000000000000003"  # broker_id, broker_epoch
        "0000000000000004 0000000000000008"  # lease_id, object_id
        "01 000000000000012c"  # object_format, object_size
        "02 00000000000000000000000000000007"  # one topic: topic_id
        "02 00000005"  # one partition: partition_index
        "02"  # one batch
        "0000000000000000 00000064"  # byte_offset, size
        "0000000000000000 0000000000000009"  # base_offset, last_offset
        "0000000000000001 00"  # batch_max_timestamp, message_timestamp_type
        "ffffffffffffffff ffff ffffffff ffffffff"  # no producer
        "00 00 00"  # no tagged fields: the batch's, the partition's, the topic's
        "01 00 04 00000001",  # one tagged field: tag 0, 4 bytes, coordinator_partition
    ),
    Golden(
        ListDisklessOffsetsRequest(
            topics=(
                ListDisklessOffsetsRequest.Topic(
                    topic_id=UUID(int=7),
                    partitions=(
                        ListDisklessOffsetsRequest.Topic.Partition(partition_index=5, timestamp=-2),
                        ListDisklessOffsetsRequest.Topic.Partition(
                            partition_index=6, timestamp=9, from_offset=10
                        ),
                    ),
                ),
            ),
        ),
        0,
        "02 00000000000000000000000000000007"  # one topic: topic_id
        "03"  # two partitions
        "00000005 fffffffffffffffe 00"  # partition_index, timestamp; from the log start
        "00000006 0000000000000009"  # partition_index, timestamp
        "01 00 08 000000000000000a"  # one tagged field: tag 0, 8 bytes, from_offset
        "00 00",  # no tagged fields: the topic's, the request's
    ),
    Golden(
        FindBatchesRequest(topics=(), max_bytes=1),
        0,
        "01 00000001 00",  # the first coordinator needs no tagged field
    ),
]


@pytest.mark.parametrize("golden", GOLDEN, ids=golden_name)
def test_each_coordinator_request_and_response_has_its_golden_bytes(golden: Golden) -> None:
    assert encode_message(golden.message, golden.version).hex(" ") == golden.encoded.hex(" ")
    assert decode_message(type(golden.message), golden.encoded, golden.version) == golden.message


def test_every_message_about_objects_has_golden_bytes() -> None:
    covered = {type(golden.message) for golden in GOLDEN}
    assert {cls for key, api in API.items() if 1100 <= key < 1110 for cls in api} <= covered
