"""Golden bytes: topics, partitions, settings and quotas, field by field.

Kafka 4.3.1's own MetadataRecordSerde wrote these bytes from the same values. Version 3 of the two
partition records is KIP-1114's, unknown to that release: its protocol types wrote those from the
field list.

Source: KIP-631, KIP-858, KIP-966, KIP-546; KIP-1114.
"""

from __future__ import annotations

from uuid import UUID

import pytest

from records.frame import decode_record, encode_record
from records.metadata import (
    ClearElrRecord,
    ClientQuotaRecord,
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from records.schema import MetadataRecord
from tests.records.golden import Golden, golden_name

GOLDEN: list[Golden] = [
    Golden(
        TopicRecord(name="foo", topic_id=UUID(int=7)),
        0,
        "01 02 00"  # frame version 1, type 2, record version 0
        "04 666f6f"  # name: foo
        "00000000000000000000000000000007"  # topic_id
        "00",  # no tagged fields
    ),
    Golden(
        PartitionRecord(
            partition_id=5,
            topic_id=UUID(int=7),
            replicas=(1, 2, 3),
            isr=(2, 3),
            removing_replicas=(1,),
            adding_replicas=(),
            leader=2,
            leader_epoch=4,
            partition_epoch=6,
        ),
        0,
        "01 03 00"  # frame version 1, type 3, record version 0
        "00000005"  # partition_id: 5
        "00000000000000000000000000000007"  # topic_id
        "04 00000001 00000002 00000003"  # replicas: 1, 2, 3
        "03 00000002 00000003"  # isr: 2, 3
        "02 00000001"  # removing_replicas: 1
        "01"  # adding_replicas: empty
        "00000002"  # leader: 2
        "00000004"  # leader_epoch: 4
        "00000006"  # partition_epoch: 6
        "00",  # no tagged fields
    ),
    Golden(
        PartitionRecord(
            partition_id=5,
            topic_id=UUID(int=7),
            replicas=(1, 2),
            isr=(2,),
            removing_replicas=(),
            adding_replicas=(),
            leader=-1,
            leader_recovery_state=1,
            leader_epoch=4,
            partition_epoch=6,
            directories=(UUID(int=0x21), UUID(int=0x22)),
            eligible_leader_replicas=(1,),
            last_known_elr=(2,),
        ),
        2,
        "01 03 02"  # frame version 1, type 3, record version 2
        "00000005"  # partition_id: 5
        "00000000000000000000000000000007"  # topic_id
        "03 00000001 00000002"  # replicas: 1, 2
        "02 00000002"  # isr: 2
        "01"  # removing_replicas: empty
        "01"  # adding_replicas: empty
        "ffffffff"  # leader: -1
        "00000004"  # leader_epoch: 4
        "00000006"  # partition_epoch: 6
        "03 00000000000000000000000000000021 00000000000000000000000000000022"  # directories: 2 ids
        "03"  # 3 tagged fields
        "  0001 01"  # tag 0, 1 bytes: leader_recovery_state, 1
        "  0105 02 00000001"  # tag 1, 5 bytes: eligible_leader_replicas, 1
        "  0205 02 00000002",  # tag 2, 5 bytes: last_known_elr, 2
    ),
    Golden(
        PartitionRecord(
            partition_id=5,
            topic_id=UUID(int=7),
            replicas=(1,),
            isr=(1,),
            removing_replicas=(),
            adding_replicas=(),
            leader=1,
            leader_epoch=4,
            partition_epoch=6,
            directories=(UUID(int=0x21),),
            start_offset=300,
            start_timestamp=1_700_000_000_000,
        ),
        3,
        "01 03 03"  # frame version 1, type 3, record version 3
        "00000005"  # partition_id: 5
        "00000000000000000000000000000007"  # topic_id
        "02 00000001"  # replicas: 1
        "02 00000001"  # isr: 1
        "01"  # removing_replicas: empty
        "01"  # adding_replicas: empty
        "00000001"  # leader: 1
        "00000004"  # leader_epoch: 4
        "00000006"  # partition_epoch: 6
        "02 00000000000000000000000000000021"  # directories: 1 id
        "02"  # 2 tagged fields
        "  0308 000000000000012c"  # tag 3, 8 bytes: start_offset, 300
        "  0408 0000018bcfe56800",  # tag 4, 8 bytes: start_timestamp, 1700000000000
    ),
    Golden(
        ConfigRecord(resource_type=2, resource_name="foo", name="retention.ms", value="-1"),
        0,
        "01 04 00"  # frame version 1, type 4, record version 0
        "02"  # resource_type: 2
        "04 666f6f"  # resource_name: foo
        "0d 726574656e74696f6e2e6d73"  # name: retention.ms
        "03 2d31"  # value: -1
        "00",  # no tagged fields
    ),
    Golden(
        ConfigRecord(resource_type=4, resource_name="", name="x", value=None),
        0,
        "01 04 00"  # frame version 1, type 4, record version 0
        "04"  # resource_type: 4
        "01"  # resource_name: empty
        "02 78"  # name: x
        "00"  # value: null
        "00",  # no tagged fields
    ),
    Golden(
        PartitionChangeRecord(partition_id=5, topic_id=UUID(int=7)),
        0,
        "01 05 00"  # frame version 1, type 5, record version 0
        "00000005"  # partition_id: 5
        "00000000000000000000000000000007"  # topic_id
        "00",  # no tagged fields
    ),
    Golden(
        PartitionChangeRecord(
            partition_id=5,
            topic_id=UUID(int=7),
            isr=(2, 3),
            leader=2,
            replicas=(1, 2, 3),
            removing_replicas=(1,),
            adding_replicas=(),
            leader_recovery_state=0,
            directories=(UUID(int=0x21),),
            eligible_leader_replicas=(1,),
            last_known_elr=(3,),
        ),
        2,
        "01 05 02"  # frame version 1, type 5, record version 2
        "00000005"  # partition_id: 5
        "00000000000000000000000000000007"  # topic_id
        "09"  # 9 tagged fields
        "  0009 03 00000002 00000003"  # tag 0, 9 bytes: isr, 2, 3
        "  0104 00000002"  # tag 1, 4 bytes: leader, 2
        "  020d 04 00000001 00000002 00000003"  # tag 2, 13 bytes: replicas, 1, 2, 3
        "  0305 02 00000001"  # tag 3, 5 bytes: removing_replicas, 1
        "  0401 01"  # tag 4, 1 bytes: adding_replicas, empty
        "  0501 00"  # tag 5, 1 bytes: leader_recovery_state, 0
        "  0605 02 00000001"  # tag 6, 5 bytes: eligible_leader_replicas, 1
        "  0705 02 00000003"  # tag 7, 5 bytes: last_known_elr, 3
        "  0811 02 00000000000000000000000000000021",  # tag 8, 17 bytes: directories, 1 id
    ),
    Golden(
        PartitionChangeRecord(
            partition_id=5,
            topic_id=UUID(int=7),
            leader=-1,
            start_offset=300,
            start_timestamp=1_700_000_000_000,
        ),
        3,
        "01 05 03"  # frame version 1, type 5, record version 3
        "00000005"  # partition_id: 5
        "00000000000000000000000000000007"  # topic_id
        "03"  # 3 tagged fields
        "  0104 ffffffff"  # tag 1, 4 bytes: leader, -1
        "  0908 000000000000012c"  # tag 9, 8 bytes: start_offset, 300
        "  0a08 0000018bcfe56800",  # tag 10, 8 bytes: start_timestamp, 1700000000000
    ),
    Golden(
        RemoveTopicRecord(topic_id=UUID(int=7)),
        0,
        "01 09 00"  # frame version 1, type 9, record version 0
        "00000000000000000000000000000007"  # topic_id
        "00",  # no tagged fields
    ),
    Golden(
        ClientQuotaRecord(
            entity=(
                ClientQuotaRecord.EntityData(entity_type="user", entity_name="bob"),
                ClientQuotaRecord.EntityData(entity_type="ip", entity_name=None),
            ),
            key="producer_byte_rate",
            value=1024.0,
            remove=False,
        ),
        0,
        "01 0e 00"  # frame version 1, type 14, record version 0
        "03"  # entity: 2
        "  05 75736572"  # entity_type: user
        "  04 626f62"  # entity_name: bob
        "  00"  # no tagged fields
        "  03 6970"  # entity_type: ip
        "  00"  # entity_name: null
        "  00"  # no tagged fields
        "13 70726f64756365725f627974655f72617465"  # key: producer_byte_rate
        "4090000000000000"  # value: 1024.0
        "00"  # remove: false
        "00",  # no tagged fields
    ),
    Golden(
        ClearElrRecord(topic_name="foo"),
        0,
        "01 1c 00"  # frame version 1, type 28, record version 0
        "04 666f6f"  # topic_name: foo
        "00",  # no tagged fields
    ),
]


@pytest.mark.parametrize("golden", GOLDEN, ids=golden_name)
def test_each_topic_record_has_its_golden_bytes(golden: Golden) -> None:
    record = golden.message
    assert isinstance(record, MetadataRecord)
    assert encode_record(record, golden.version) == golden.encoded
    assert decode_record(golden.encoded) == record
