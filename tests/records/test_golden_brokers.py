"""Golden bytes: brokers, controllers, features and metadata transactions, field by field.

Kafka 4.3.1's own MetadataRecordSerde wrote these bytes from the same values; tags 1000 are ours.
Kafka's protocol types wrote that of ProducerIdsRecord from the field list; those of brokers are
written out by hand.

Source: KIP-631, KIP-730, KIP-841, KIP-868, KIP-919.
"""

from __future__ import annotations

from uuid import UUID

import pytest

from records.codec import decode_message, encode_message
from records.frame import decode_record, encode_record
from records.metadata import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    NoOpRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    ZkMigrationStateRecord,
)
from records.rpc.brokers import BrokerHeartbeatResponse
from records.schema import MetadataRecord
from tests.records.golden import Golden, golden_name

GOLDEN: list[Golden] = [
    Golden(
        RegisterBrokerRecord(
            broker_id=1,
            incarnation_id=UUID(int=0x11),
            broker_epoch=2,
            end_points=(
                RegisterBrokerRecord.BrokerEndpoint(
                    name="PLAINTEXT", host="a.example", port=9092, security_protocol=0
                ),
            ),
            features=(
                RegisterBrokerRecord.BrokerFeature(
                    name="metadata.version", min_supported_version=7, max_supported_version=29
                ),
            ),
            rack=None,
        ),
        0,
        "01 00 00"  # frame version 1, type 0, record version 0
        "00000001"  # broker_id: 1
        "00000000000000000000000000000011"  # incarnation_id
        "0000000000000002"  # broker_epoch: 2
        "02"  # end_points: 1
        "  0a 504c41494e54455854"  # name: PLAINTEXT
        "  0a 612e6578616d706c65"  # host: a.example
        "  2384"  # port: 9092
        "  0000"  # security_protocol: 0
        "  00"  # no tagged fields
        "02"  # features: 1
        "  11 6d657461646174612e76657273696f6e"  # name: metadata.version
        "  0007"  # min_supported_version: 7
        "  001d"  # max_supported_version: 29
        "  00"  # no tagged fields
        "00"  # rack: null
        "01"  # fenced: true
        "00",  # no tagged fields
    ),
    Golden(
        RegisterBrokerRecord(
            broker_id=1,
            is_migrating_zk_broker=True,
            incarnation_id=UUID(int=0x11),
            broker_epoch=2,
            end_points=(),
            features=(),
            rack="r1",
            fenced=False,
            in_controlled_shutdown=True,
            log_dirs=(UUID(int=0x21), UUID(int=0x22)),
            cordoned_log_dirs=(UUID(int=0x22),),
        ),
        4,
        "01 00 04"  # frame version 1, type 0, record version 4
        "00000001"  # broker_id: 1
        "01"  # is_migrating_zk_broker: true
        "00000000000000000000000000000011"  # incarnation_id
        "0000000000000002"  # broker_epoch: 2
        "01"  # end_points: empty
        "01"  # features: empty
        "03 7231"  # rack: r1
        "00"  # fenced: false
        "01"  # in_controlled_shutdown: true
        "02"  # 2 tagged fields
        "  0021 03 00000000000000000000000000000021"  # tag 0, 33 bytes: log_dirs, the first
        "  00000000000000000000000000000022"  # and the second
        "  0111 02 00000000000000000000000000000022",  # tag 1, 17 bytes: cordoned_log_dirs, 1 id
    ),
    Golden(
        UnregisterBrokerRecord(broker_id=1, broker_epoch=2),
        0,
        "01 01 00"  # frame version 1, type 1, record version 0
        "00000001"  # broker_id: 1
        "0000000000000002"  # broker_epoch: 2
        "00",  # no tagged fields
    ),
    Golden(
        FenceBrokerRecord(id=1, epoch=2),
        0,
        "01 07 00"  # frame version 1, type 7, record version 0
        "00000001"  # id: 1
        "0000000000000002"  # epoch: 2
        "00",  # no tagged fields
    ),
    Golden(
        UnfenceBrokerRecord(id=1, epoch=2),
        0,
        "01 08 00"  # frame version 1, type 8, record version 0
        "00000001"  # id: 1
        "0000000000000002"  # epoch: 2
        "00",  # no tagged fields
    ),
    Golden(
        FeatureLevelRecord(name="kraft.version", feature_level=1),
        0,
        "01 0c 00"  # frame version 1, type 12, record version 0
        "0e 6b726166742e76657273696f6e"  # name: kraft.version
        "0001"  # feature_level: 1
        "00",  # no tagged fields
    ),
    Golden(
        ProducerIdsRecord(broker_id=1, broker_epoch=2, next_producer_id=1000),
        0,
        "01 0f 00"  # frame version 1, type 15, record version 0
        "00000001"  # broker_id: 1
        "0000000000000002"  # broker_epoch: 2
        "00000000000003e8"  # next_producer_id: 1000
        "00",  # no tagged fields
    ),
    Golden(
        ProducerIdsRecord(
            broker_id=1, broker_epoch=2, next_producer_id=1000, block_time_ms=1_700_000_000_000
        ),
        0,
        "01 0f 00"  # frame version 1, type 15, record version 0
        "00000001"  # broker_id: 1
        "0000000000000002"  # broker_epoch: 2
        "00000000000003e8"  # next_producer_id: 1000
        "01"  # 1 tagged field
        "  e80708 0000018bcfe56800",  # tag 1000, 8 bytes: block_time_ms, 1700000000000
    ),
    Golden(
        BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=2),
        0,
        "01 11 00"  # frame version 1, type 17, record version 0
        "00000001"  # broker_id: 1
        "0000000000000002"  # broker_epoch: 2
        "00",  # no tagged fields
    ),
    Golden(
        BrokerRegistrationChangeRecord(
            broker_id=1,
            broker_epoch=2,
            fenced=-1,
            in_controlled_shutdown=1,
            log_dirs=(UUID(int=0x21),),
            cordoned_log_dirs=(),
        ),
        3,
        "01 11 03"  # frame version 1, type 17, record version 3
        "00000001"  # broker_id: 1
        "0000000000000002"  # broker_epoch: 2
        "04"  # 4 tagged fields
        "  0001 ff"  # tag 0, 1 bytes: fenced, -1
        "  0101 01"  # tag 1, 1 bytes: in_controlled_shutdown, 1
        "  0211 02 00000000000000000000000000000021"  # tag 2, 17 bytes: log_dirs, 1 id
        "  0301 01",  # tag 3, 1 bytes: cordoned_log_dirs, empty
    ),
    Golden(
        BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=2, unpreferred_reason="full"),
        0,
        "01 11 00"  # frame version 1, type 17, record version 0
        "00000001"  # broker_id: 1
        "0000000000000002"  # broker_epoch: 2
        "01"  # 1 tagged field
        "  e80705 05 66756c6c",  # tag 1000, 5 bytes: unpreferred_reason, "full"
    ),
    Golden(
        BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=2, unpreferred_reason=""),
        0,
        "01 11 00"  # frame version 1, type 17, record version 0
        "00000001"  # broker_id: 1
        "0000000000000002"  # broker_epoch: 2
        "01"  # 1 tagged field
        "  e80701 01",  # tag 1000, 1 byte: unpreferred_reason, empty: preferred again
    ),
    Golden(
        RegisterBrokerRecord(
            broker_id=1,
            incarnation_id=UUID(int=0x11),
            broker_epoch=2,
            end_points=(),
            features=(),
            rack=None,
            unpreferred_reason="full",
        ),
        0,
        "01 00 00"  # frame version 1, type 0, record version 0
        "00000001"  # broker_id: 1
        "00000000000000000000000000000011"  # incarnation_id
        "0000000000000002"  # broker_epoch: 2
        "01"  # end_points: none
        "01"  # features: none
        "00"  # rack: null
        "01"  # fenced: true
        "01"  # 1 tagged field
        "  e80705 05 66756c6c",  # tag 1000, 5 bytes: unpreferred_reason, "full"
    ),
    Golden(
        NoOpRecord(),
        0,
        "01 14 00"  # frame version 1, type 20, record version 0
        "00",  # no tagged fields
    ),
    Golden(
        ZkMigrationStateRecord(zk_migration_state=2),
        0,
        "01 15 00"  # frame version 1, type 21, record version 0
        "02"  # zk_migration_state: 2
        "00",  # no tagged fields
    ),
    Golden(
        BeginTransactionRecord(),
        0,
        "01 17 00"  # frame version 1, type 23, record version 0
        "00",  # no tagged fields
    ),
    Golden(
        BeginTransactionRecord(name="bootstrap"),
        0,
        "01 17 00"  # frame version 1, type 23, record version 0
        "01"  # 1 tagged field
        "  000a 0a 626f6f747374726170",  # tag 0, 10 bytes: name, bootstrap
    ),
    Golden(
        EndTransactionRecord(),
        0,
        "01 18 00"  # frame version 1, type 24, record version 0
        "00",  # no tagged fields
    ),
    Golden(
        AbortTransactionRecord(),
        0,
        "01 19 00"  # frame version 1, type 25, record version 0
        "00",  # no tagged fields
    ),
    Golden(
        AbortTransactionRecord(reason="failover"),
        0,
        "01 19 00"  # frame version 1, type 25, record version 0
        "01"  # 1 tagged field
        "  0009 09 6661696c6f766572",  # tag 0, 9 bytes: reason, failover
    ),
    Golden(
        RegisterControllerRecord(
            controller_id=3,
            incarnation_id=UUID(int=0x31),
            zk_migration_ready=False,
            end_points=(
                RegisterControllerRecord.ControllerEndpoint(
                    name="CONTROLLER", host="c.example", port=65535, security_protocol=1
                ),
            ),
            features=(
                RegisterControllerRecord.ControllerFeature(
                    name="kraft.version", min_supported_version=0, max_supported_version=1
                ),
            ),
        ),
        0,
        "01 1b 00"  # frame version 1, type 27, record version 0
        "00000003"  # controller_id: 3
        "00000000000000000000000000000031"  # incarnation_id
        "00"  # zk_migration_ready: false
        "02"  # end_points: 1
        "  0b 434f4e54524f4c4c4552"  # name: CONTROLLER
        "  0a 632e6578616d706c65"  # host: c.example
        "  ffff"  # port: 65535
        "  0001"  # security_protocol: 1
        "  00"  # no tagged fields
        "02"  # features: 1
        "  0e 6b726166742e76657273696f6e"  # name: kraft.version
        "  0000"  # min_supported_version: 0
        "  0001"  # max_supported_version: 1
        "  00"  # no tagged fields
        "00",  # no tagged fields
    ),
]


@pytest.mark.parametrize("golden", GOLDEN, ids=golden_name)
def test_each_broker_record_has_its_golden_bytes(golden: Golden) -> None:
    record = golden.message
    assert isinstance(record, MetadataRecord)
    assert encode_record(record, golden.version) == golden.encoded
    assert decode_record(golden.encoded) == record


def test_a_heartbeat_response_carries_the_controllers_wall_clock_in_tag_1000() -> None:
    response = BrokerHeartbeatResponse(
        is_caught_up=True, is_fenced=False, should_shut_down=False, wall_clock_ms=1_700_000_000_000
    )
    expected = bytes.fromhex(
        "00000000 0000"  # throttle time, error code
        "01 00 00"  # caught up, not fenced, no shutdown
        "01 e80708 0000018bcfe56800"  # one tagged field: 1000, 8 bytes: wall_clock_ms
    )
    assert encode_message(response, 1) == expected
    assert decode_message(BrokerHeartbeatResponse, expected, 1) == response
