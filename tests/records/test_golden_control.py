"""Golden bytes: control records, key and value, field by field.

Kafka 4.3.1's own classes wrote the values; the footer's tagged fields are ours, and
Kafka's protocol types wrote those from the field list.

Source: KIP-595, KIP-630, KIP-853.
"""

from __future__ import annotations

from uuid import UUID

import pytest

from records.control import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    Voter,
    VotersRecord,
)
from records.frame import decode_control_record, encode_control_record
from records.schema import ControlRecord
from tests.records.golden import Golden, golden_name

GOLDEN: list[Golden] = [
    Golden(
        LeaderChangeMessage(
            leader_id=1,
            voters=(Voter(voter_id=1), Voter(voter_id=2)),
            granting_voters=(Voter(voter_id=1),),
        ),
        0,
        "0000"  # version: 0
        "00000001"  # leader_id: 1
        "03"  # voters: 2
        "  00000001"  # voter_id: 1
        "  00"  # no tagged fields
        "  00000002"  # voter_id: 2
        "  00"  # no tagged fields
        "02"  # granting_voters: 1
        "  00000001"  # voter_id: 1
        "  00"  # no tagged fields
        "00",  # no tagged fields
    ),
    Golden(
        LeaderChangeMessage(
            version=1,
            leader_id=1,
            voters=(Voter(voter_id=1, voter_directory_id=UUID(int=0x21)),),
            granting_voters=(Voter(voter_id=1, voter_directory_id=UUID(int=0x21)),),
        ),
        1,
        "0001"  # version: 1
        "00000001"  # leader_id: 1
        "02"  # voters: 1
        "  00000001"  # voter_id: 1
        "  00000000000000000000000000000021"  # voter_directory_id
        "  00"  # no tagged fields
        "02"  # granting_voters: 1
        "  00000001"  # voter_id: 1
        "  00000000000000000000000000000021"  # voter_directory_id
        "  00"  # no tagged fields
        "00",  # no tagged fields
    ),
    Golden(
        SnapshotHeaderRecord(last_contained_log_timestamp=1_700_000_000_000),
        0,
        "0000"  # version: 0
        "0000018bcfe56800"  # last_contained_log_timestamp: 1700000000000
        "00",  # no tagged fields
    ),
    Golden(
        SnapshotHeaderRecord(
            last_contained_log_timestamp=1_700_000_000_000,
            epochs=(
                SnapshotHeaderRecord.EpochStart(epoch=3, start_offset=0),
                SnapshotHeaderRecord.EpochStart(epoch=5, start_offset=210),
            ),
        ),
        0,
        "0000"  # version: 0
        "0000018bcfe56800"  # last_contained_log_timestamp: 1700000000000
        "01 e807 1b"  # one tagged field, number 1000, of 27 bytes: epochs
        "03"  # two of them
        "00000003 0000000000000000 00"  # epoch 3 from offset 0 on
        "00000005 00000000000000d2 00",  # epoch 5 from offset 210 on
    ),
    Golden(
        SnapshotFooterRecord(),
        0,
        "0000"  # version: 0
        "00",  # no tagged fields
    ),
    Golden(
        SnapshotFooterRecord(record_count=300, content_crc=0xE3069283),
        0,
        "0000"  # version: 0
        "02"  # 2 tagged fields
        "  e80708 000000000000012c"  # tag 1000, 8 bytes: record_count, 300
        "  e90708 00000000e3069283",  # tag 1001, 8 bytes: content_crc, 3808858755
    ),
    Golden(
        KRaftVersionRecord(k_raft_version=1),
        0,
        "0000"  # version: 0
        "0001"  # k_raft_version: 1
        "00",  # no tagged fields
    ),
    Golden(
        VotersRecord(
            voters=(
                VotersRecord.Voter(
                    voter_id=1,
                    voter_directory_id=UUID(int=0x21),
                    endpoints=(
                        VotersRecord.Voter.Endpoint(name="CONTROLLER", host="c.example", port=9093),
                    ),
                    k_raft_version_feature=VotersRecord.Voter.KRaftVersionFeature(
                        min_supported_version=0, max_supported_version=1
                    ),
                ),
            )
        ),
        0,
        "0000"  # version: 0
        "02"  # voters: 1
        "  00000001"  # voter_id: 1
        "  00000000000000000000000000000021"  # voter_directory_id
        "  02"  # endpoints: 1
        "    0b 434f4e54524f4c4c4552"  # name: CONTROLLER
        "    0a 632e6578616d706c65"  # host: c.example
        "    2385"  # port: 9093
        "    00"  # no tagged fields
        # k_raft_version_feature:
        "    0000"  # min_supported_version: 0
        "    0001"  # max_supported_version: 1
        "    00"  # no tagged fields
        "  00"  # no tagged fields
        "00",  # no tagged fields
    ),
]


@pytest.mark.parametrize("golden", GOLDEN, ids=golden_name)
def test_each_control_record_has_its_golden_bytes(golden: Golden) -> None:
    record = golden.message
    assert isinstance(record, ControlRecord)
    key = bytes([0, 0, 0, record.schema().key or 0])  # key version 0, then the type
    assert encode_control_record(record, golden.version) == (key, golden.encoded)
    assert decode_control_record(key, golden.encoded) == record
