"""Golden bytes: chunks (KIP-1114) and the mapping of partitions to coordinators (KIP-1164).

No Kafka release knows these records: the protocol types of 4.3.1 (Schema, CompactArrayOf,
TaggedFieldsSection) wrote them from the KIPs' field lists.
"""

from __future__ import annotations

from uuid import UUID

import pytest

from records.chunks import (
    ChunkChangeRecord,
    ChunkRecord,
    TopicPartitionToBatchCoordinatorMapping,
)
from records.frame import decode_record, encode_record
from records.schema import MetadataRecord
from tests.records.golden import Golden, golden_name

GOLDEN: list[Golden] = [
    Golden(
        ChunkRecord(
            partition_id=5,
            topic_id=UUID(int=7),
            start_offset=0,
            start_timestamp=1_700_000_000_000,
            stop_offset=298,
            end_offset=299,
            chunk_epoch=1,
            replicas=(1, 2),
            directories=(UUID(int=0x21), UUID(int=0x22)),
            isr=(1, 2),
            removing_replicas=(),
            adding_replicas=(3,),
            epoch=1,
        ),
        0,
        "01 8408 00"  # frame version 1, type 1028, record version 0
        "00000005"  # partition_id: 5
        "00000000000000000000000000000007"  # topic_id
        "0000000000000000"  # start_offset: 0
        "0000018bcfe56800"  # start_timestamp: 1700000000000
        "000000000000012a"  # stop_offset: 298
        "000000000000012b"  # end_offset: 299
        "00000001"  # chunk_epoch: 1
        "03 00000001 00000002"  # replicas: 1, 2
        "03 00000000000000000000000000000021 00000000000000000000000000000022"  # directories: 2 ids
        "03 00000001 00000002"  # isr: 1, 2
        "01"  # removing_replicas: empty
        "02 00000003"  # adding_replicas: 3
        "00000001"  # epoch: 1
        "00",  # no tagged fields
    ),
    Golden(
        ChunkChangeRecord(partition_id=5, topic_id=UUID(int=7), start_offset=0, epoch=2),
        0,
        "01 8508 00"  # frame version 1, type 1029, record version 0
        "00000005"  # partition_id: 5
        "00000000000000000000000000000007"  # topic_id
        "0000000000000000"  # start_offset: 0
        "00000002"  # epoch: 2
        "00",  # no tagged fields
    ),
    Golden(
        ChunkChangeRecord(
            partition_id=5,
            topic_id=UUID(int=7),
            start_offset=0,
            replicas=(3,),
            directories=(UUID(int=0x23),),
            isr=(3,),
            removing_replicas=(1,),
            adding_replicas=(4,),
            epoch=2,
        ),
        0,
        "01 8508 00"  # frame version 1, type 1029, record version 0
        "00000005"  # partition_id: 5
        "00000000000000000000000000000007"  # topic_id
        "0000000000000000"  # start_offset: 0
        "00000002"  # epoch: 2
        "05"  # 5 tagged fields
        "  0005 02 00000003"  # tag 0, 5 bytes: replicas, 3
        "  0111 02 00000000000000000000000000000023"  # tag 1, 17 bytes: directories, 1 id
        "  0205 02 00000003"  # tag 2, 5 bytes: isr, 3
        "  0305 02 00000001"  # tag 3, 5 bytes: removing_replicas, 1
        "  0405 02 00000004",  # tag 4, 5 bytes: adding_replicas, 4
    ),
    Golden(
        TopicPartitionToBatchCoordinatorMapping(
            partition_index=5, topic_id=UUID(int=7), batch_coordinator_partition_index=1
        ),
        0,
        "01 8608 00"  # frame version 1, type 1030, record version 0
        "00000005"  # partition_index: 5
        "00000000000000000000000000000007"  # topic_id
        "00000001"  # batch_coordinator_partition_index: 1
        "00",  # no tagged fields
    ),
]


@pytest.mark.parametrize("golden", GOLDEN, ids=golden_name)
def test_each_chunk_record_has_its_golden_bytes(golden: Golden) -> None:
    record = golden.message
    assert isinstance(record, MetadataRecord)
    assert encode_record(record, golden.version) == golden.encoded
    assert decode_record(golden.encoded) == record
