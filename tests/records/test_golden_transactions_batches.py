"""Golden bytes: the batch coordinator's records and requests of transactions, field by field.

No Kafka release knows them; the bytes were written from the field lists of
docs/design/transactions-batches.md, by the rules of KIP-482.
"""

from __future__ import annotations

from uuid import UUID

import pytest

from records.codec import decode_message, encode_message
from records.diskless import (
    AbortedState,
    ObjectCommitRecord,
    ProducersState,
    RunsState,
    TransactionMarkersRecord,
)
from records.frame import decode_record, encode_record
from records.rpc.batch_coordinator import (
    AbortedTransaction,
    CommitBatchesRequest,
    DescribeDisklessProducersResponse,
    FindBatchesRequest,
    FindBatchesResponse,
    ListDisklessOffsetsRequest,
    TransactionalBatch,
)
from records.rpc.transaction_markers import (
    TransactionMarker,
    WriteTransactionMarkersRequest,
    WriteTransactionMarkersResponse,
)
from records.schema import MetadataRecord
from tests.records.golden import Golden, golden_name

GOLDEN: list[Golden] = [
    Golden(
        ObjectCommitRecord(
            object_id=1,
            object_format=1,
            size_bytes=2,
            broker_id=3,
            broker_epoch=4,
            lease_id=5,
            committed_at_ms=6,
            topic_ids=(UUID(int=7),),
            topic_indexes=(0,),
            partitions=(8,),
            batch_counts=(2,),
            byte_offsets=(9, 10),
            byte_sizes=(11, 12),
            base_offsets=(13, 14),
            record_counts=(15, 16),
            max_timestamps=(17, 18),
            timestamp_types=(0, 1),
            producer_ids=(19, -1),
            producer_epochs=(20, -1),
            base_sequences=(21, -1),
            error_codes=(),
            duplicates=(),
            transaction_numbers=(22, -1),
        ),
        1,
        "01 d008 01"  # frame version 1, type 1104, record version 1
        "0000000000000001"  # object_id: 1
        "01"  # object_format: 1
        "0000000000000002"  # size_bytes: 2
        "00000003"  # broker_id: 3
        "0000000000000004"  # broker_epoch: 4
        "0000000000000005"  # lease_id: 5
        "0000000000000006"  # committed_at_ms: 6
        "02 00000000000000000000000000000007"  # topic_ids: 7
        "02 00000000"  # topic_indexes: 0
        "02 00000008"  # partitions: 8
        "02 00000002"  # batch_counts: 2
        "03 0000000000000009 000000000000000a"  # byte_offsets: 9, 10
        "03 0000000b 0000000c"  # byte_sizes: 11, 12
        "03 000000000000000d 000000000000000e"  # base_offsets: 13, 14
        "03 0000000f 00000010"  # record_counts: 15, 16
        "03 0000000000000011 0000000000000012"  # max_timestamps: 17, 18
        "03 00 01"  # timestamp_types: 0, 1
        "03 0000000000000013 ffffffffffffffff"  # producer_ids: 19, -1
        "03 0014 ffff"  # producer_epochs: 20, -1
        "03 00000015 ffffffff"  # base_sequences: 21, -1
        "01"  # no error_codes
        "01"  # no duplicates
        "03 0000000000000016 ffffffffffffffff"  # transaction_numbers: 22, -1
        "00",  # no tagged fields
    ),
    Golden(
        TransactionMarkersRecord(
            written_at_ms=1,
            topic_ids=(UUID(int=7),),
            topic_indexes=(0, 0),
            partitions=(2, 3),
            offsets=(4, -1),
            producer_ids=(5, 6),
            producer_epochs=(7, 8),
            transaction_numbers=(9, 10),
            outcomes=(0, 1),
            coordinator_epochs=(11, 12),
            first_offsets=(13, -1),
            last_stable_offsets=(14, 15),
        ),
        0,
        "01 8809 00"  # frame version 1, type 1160, record version 0
        "0000000000000001"  # written_at_ms: 1
        "02 00000000000000000000000000000007"  # topic_ids: 7
        "03 00000000 00000000"  # topic_indexes: 0, 0
        "03 00000002 00000003"  # partitions: 2, 3
        "03 0000000000000004 ffffffffffffffff"  # offsets: 4, -1
        "03 0000000000000005 0000000000000006"  # producer_ids: 5, 6
        "03 0007 0008"  # producer_epochs: 7, 8
        "03 0000000000000009 000000000000000a"  # transaction_numbers: 9, 10
        "03 00 01"  # outcomes: 0, 1
        "03 0000000b 0000000c"  # coordinator_epochs: 11, 12
        "03 000000000000000d ffffffffffffffff"  # first_offsets: 13, -1
        "03 000000000000000e 000000000000000f"  # last_stable_offsets: 14, 15
        "00",  # no tagged fields
    ),
    Golden(
        RunsState(
            log_id=1,
            base_offset=2,
            last_offsets=(3, 4),
            object_ids=(5, -1),
            byte_offsets=(6, 0),
            byte_sizes=(7, 0),
            max_timestamps=(8, 9),
            timestamp_types=(0, 0),
            append_times=(10, 11),
            record_counts=(2, 1),
            object_formats=(1, 0),
            marker_producer_ids=(12,),
            marker_epochs=(13,),
            marker_outcomes=(1,),
            marker_coordinator_epochs=(14,),
        ),
        2,
        "01 e208 02"  # frame version 1, type 1122, record version 2
        "0000000000000001"  # log_id: 1
        "0000000000000002"  # base_offset: 2
        "03 0000000000000003 0000000000000004"  # last_offsets: 3, 4
        "03 0000000000000005 ffffffffffffffff"  # object_ids: 5, -1
        "03 0000000000000006 0000000000000000"  # byte_offsets: 6, 0
        "03 0000000000000007 0000000000000000"  # byte_sizes: 7, 0
        "03 0000000000000008 0000000000000009"  # max_timestamps: 8, 9
        "03 00 00"  # timestamp_types: 0, 0
        "03 000000000000000a 000000000000000b"  # append_times: 10, 11
        "03 0000000000000002 0000000000000001"  # record_counts: 2, 1
        "03 01 00"  # object_formats: 1, 0
        "02 000000000000000c"  # marker_producer_ids: 12
        "02 000d"  # marker_epochs: 13
        "02 01"  # marker_outcomes: 1
        "02 0000000e"  # marker_coordinator_epochs: 14
        "00",  # no tagged fields
    ),
    Golden(
        ProducersState(
            log_id=1,
            producer_ids=(2, 3),
            producer_epochs=(4, 5),
            appended_at_ms=(6, 7),
            batch_counts=(1, 0),
            base_sequences=(8,),
            last_sequences=(9,),
            base_offsets=(10,),
            append_times=(-1,),
            open_numbers=(11, -1),
            first_offsets=(12, -1),
            ended_numbers=(10, 13),
            coordinator_epochs=(14, 15),
        ),
        1,
        "01 e408 01"  # frame version 1, type 1124, record version 1
        "0000000000000001"  # log_id: 1
        "03 0000000000000002 0000000000000003"  # producer_ids: 2, 3
        "03 0004 0005"  # producer_epochs: 4, 5
        "03 0000000000000006 0000000000000007"  # appended_at_ms: 6, 7
        "03 01 00"  # batch_counts: 1, 0
        "02 00000008"  # base_sequences: 8
        "02 00000009"  # last_sequences: 9
        "02 000000000000000a"  # base_offsets: 10
        "02 ffffffffffffffff"  # append_times: -1
        "03 000000000000000b ffffffffffffffff"  # open_numbers: 11, -1
        "03 000000000000000c ffffffffffffffff"  # first_offsets: 12, -1
        "03 000000000000000a 000000000000000d"  # ended_numbers: 10, 13
        "03 0000000e 0000000f"  # coordinator_epochs: 14, 15
        "00",  # no tagged fields
    ),
    Golden(
        AbortedState(
            log_id=1,
            producer_ids=(2, 3),
            first_offsets=(4, 5),
            last_offsets=(6, 7),
            last_stable_offsets=(8, 9),
        ),
        0,
        "01 8909 00"  # frame version 1, type 1161, record version 0
        "0000000000000001"  # log_id: 1
        "03 0000000000000002 0000000000000003"  # producer_ids: 2, 3
        "03 0000000000000004 0000000000000005"  # first_offsets: 4, 5
        "03 0000000000000006 0000000000000007"  # last_offsets: 6, 7
        "03 0000000000000008 0000000000000009"  # last_stable_offsets: 8, 9
        "00",  # no tagged fields
    ),
]

RPCS: list[Golden] = [
    Golden(
        CommitBatchesRequest(
            broker_id=1,
            broker_epoch=2,
            lease_id=3,
            object_id=4,
            object_format=1,
            object_size=5,
            topics=(),
            transactional=(TransactionalBatch(6, 7, 1, 8),),
        ),
        0,
        "00000001"  # broker_id: 1
        "0000000000000002"  # broker_epoch: 2
        "0000000000000003"  # lease_id: 3
        "0000000000000004"  # object_id: 4
        "01"  # object_format: 1
        "0000000000000005"  # object_size: 5
        "01"  # no topics
        "01 01 17"  # one tagged field: 1, of 23 bytes
        "02"  # transactional: one row
        "00000006"  # batch_index: 6
        "0000000000000007"  # transaction_number: 7
        "01"  # transaction_version: 1
        "0000000000000008"  # epoch_began_at_ms: 8
        "00",  # no tagged fields of the row
    ),
    Golden(
        WriteTransactionMarkersRequest(
            coordinator_partition=1,
            topic_ids=(UUID(int=7),),
            markers=(TransactionMarker(0, 2, 3, 4, 5, 1, 6),),
        ),
        0,
        "00000001"  # coordinator_partition: 1
        "02 00000000000000000000000000000007"  # topic_ids: 7
        "02"  # markers: one row
        "00000000"  # topic_index: 0
        "00000002"  # partition_index: 2
        "0000000000000003"  # producer_id: 3
        "0004"  # producer_epoch: 4
        "0000000000000005"  # transaction_number: 5
        "01"  # outcome: 1
        "00000006"  # coordinator_epoch: 6
        "00"  # no tagged fields of the row
        "00",  # no tagged fields
    ),
    Golden(
        WriteTransactionMarkersResponse(marker_error_codes=(0, 3)),
        0,
        "00000000"  # throttle_time_ms: 0
        "0000"  # error_code: 0
        "00"  # error_message
        "03 0000 0003"  # marker_error_codes: 0, 3
        "00",  # no tagged fields
    ),
    Golden(
        FindBatchesRequest(topics=(), max_bytes=1, isolation_level=1),
        0,
        "01"  # no topics
        "00000001"  # max_bytes: 1
        "01 01 01 01",  # one tagged field: 1, of 1 byte; isolation_level: 1
    ),
    Golden(
        FindBatchesResponse(
            responses=(
                FindBatchesResponse.Topic(
                    topic_id=UUID(int=7),
                    partitions=(
                        FindBatchesResponse.Topic.Partition(
                            partition_index=1,
                            log_start_offset=2,
                            high_watermark=3,
                            batches=(
                                FindBatchesResponse.Topic.Partition.Batch(
                                    object_key="",
                                    byte_offset=0,
                                    size=0,
                                    base_offset=4,
                                    last_offset=4,
                                    log_append_timestamp=5,
                                    batch_max_timestamp=6,
                                    message_timestamp_type=0,
                                    producer_id=7,
                                    producer_epoch=8,
                                    object_format=0,
                                    record_count=1,
                                    marker_outcome=0,
                                    coordinator_epoch=9,
                                ),
                            ),
                            last_stable_offset=10,
                            aborted=(AbortedTransaction(11, 12),),
                        ),
                    ),
                ),
            ),
        ),
        0,
        "00000000"  # throttle_time_ms: 0
        "02"  # responses: one
        "00000000000000000000000000000007"  # topic_id: 7
        "02"  # partitions: one
        "00000001"  # partition_index: 1
        "0000"  # error_code: 0
        "0000000000000002"  # log_start_offset: 2
        "0000000000000003"  # high_watermark: 3
        "02"  # batches: one
        "01"  # object_key:
        "0000000000000000"  # byte_offset: 0
        "0000000000000000"  # size: 0
        "0000000000000004"  # base_offset: 4
        "0000000000000004"  # last_offset: 4
        "0000000000000005"  # log_append_timestamp: 5
        "0000000000000006"  # batch_max_timestamp: 6
        "00"  # message_timestamp_type: 0
        "0000000000000007"  # producer_id: 7
        "0008"  # producer_epoch: 8
        "ffffffff"  # base_sequence: -1
        "ffffffff"  # last_sequence: -1
        "04 00 01 00"  # four tagged fields of the batch; 0, object_format: 0
        "01 08 0000000000000001"  # 1, record_count: 1
        "02 01 00"  # 2, marker_outcome: 0
        "03 04 00000009"  # 3, coordinator_epoch: 9
        "02 00 08 000000000000000a"  # two tagged fields of the partition; 0, last_stable_offset: 10
        "01 12 02"  # 1, aborted: one row
        "000000000000000b"  # producer_id: 11
        "000000000000000c"  # first_offset: 12
        "00"  # no tagged fields of the row
        "00"  # no tagged fields of the topic
        "00",  # no tagged fields
    ),
    Golden(
        ListDisklessOffsetsRequest(topics=(), isolation_level=1),
        0,
        "01"  # no topics
        "01 01 01 01",  # one tagged field: 1, of 1 byte; isolation_level: 1
    ),
    Golden(
        DescribeDisklessProducersResponse.Topic.Partition.Producer(
            producer_id=1,
            producer_epoch=2,
            last_sequence=3,
            appended_at_ms=4,
            coordinator_epoch=5,
            current_txn_start_offset=6,
            open_number=7,
        ),
        0,
        "0000000000000001"  # producer_id: 1
        "0002"  # producer_epoch: 2
        "00000003"  # last_sequence: 3
        "0000000000000004"  # appended_at_ms: 4
        "03 00 04 00000005"  # three tagged fields; 0, coordinator_epoch: 5
        "01 08 0000000000000006"  # 1, current_txn_start_offset: 6
        "02 08 0000000000000007",  # 2, open_number: 7
    ),
]


@pytest.mark.parametrize("golden", GOLDEN, ids=golden_name)
def test_each_record_of_transactions_has_its_golden_bytes(golden: Golden) -> None:
    assert isinstance(golden.message, MetadataRecord)
    assert encode_record(golden.message).hex(" ") == golden.encoded.hex(" ")
    assert decode_record(golden.encoded) == golden.message


@pytest.mark.parametrize("golden", RPCS, ids=golden_name)
def test_each_request_of_transactions_has_its_golden_bytes(golden: Golden) -> None:
    assert encode_message(golden.message, golden.version).hex(" ") == golden.encoded.hex(" ")
    assert decode_message(type(golden.message), golden.encoded, golden.version) == golden.message
