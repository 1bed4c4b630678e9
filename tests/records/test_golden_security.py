"""Golden bytes: credentials, delegation tokens and access control, field by field.

Kafka 4.3.1's own MetadataRecordSerde wrote these bytes from the same values.

Source: KIP-801, KIP-900.
"""

from __future__ import annotations

from uuid import UUID

import pytest

from records.frame import decode_record, encode_record
from records.metadata import (
    AccessControlEntryRecord,
    DelegationTokenRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)
from records.schema import MetadataRecord
from tests.records.golden import Golden, golden_name

GOLDEN: list[Golden] = [
    Golden(
        DelegationTokenRecord(
            owner="User:a",
            requester="User:b",
            renewers=("User:c", "User:d"),
            issue_timestamp=1,
            max_timestamp=2,
            expiration_timestamp=3,
            token_id="t1",
        ),
        0,
        "01 0a 00"  # frame version 1, type 10, record version 0
        "07 557365723a61"  # owner: User:a
        "07 557365723a62"  # requester: User:b
        "03 07557365723a63 07557365723a64"  # renewers: User:c, User:d
        "0000000000000001"  # issue_timestamp: 1
        "0000000000000002"  # max_timestamp: 2
        "0000000000000003"  # expiration_timestamp: 3
        "03 7431"  # token_id: t1
        "00",  # no tagged fields
    ),
    Golden(
        UserScramCredentialRecord(
            name="bob",
            mechanism=1,
            salt=b"\x01\x02",
            stored_key=b"\x03",
            server_key=b"",
            iterations=4096,
        ),
        0,
        "01 0b 00"  # frame version 1, type 11, record version 0
        "04 626f62"  # name: bob
        "01"  # mechanism: 1
        "03 0102"  # salt: 2 bytes
        "02 03"  # stored_key: 1 bytes
        "01"  # server_key: 0 bytes
        "00001000"  # iterations: 4096
        "00",  # no tagged fields
    ),
    Golden(
        AccessControlEntryRecord(
            id=UUID(int=0x41),
            resource_type=2,
            resource_name="foo",
            pattern_type=3,
            principal="User:a",
            host="*",
            operation=4,
            permission_type=3,
        ),
        0,
        "01 12 00"  # frame version 1, type 18, record version 0
        "00000000000000000000000000000041"  # id
        "02"  # resource_type: 2
        "04 666f6f"  # resource_name: foo
        "03"  # pattern_type: 3
        "07 557365723a61"  # principal: User:a
        "02 2a"  # host: *
        "04"  # operation: 4
        "03"  # permission_type: 3
        "00",  # no tagged fields
    ),
    Golden(
        RemoveAccessControlEntryRecord(id=UUID(int=0x41)),
        0,
        "01 13 00"  # frame version 1, type 19, record version 0
        "00000000000000000000000000000041"  # id
        "00",  # no tagged fields
    ),
    Golden(
        RemoveUserScramCredentialRecord(name="bob", mechanism=2),
        0,
        "01 16 00"  # frame version 1, type 22, record version 0
        "04 626f62"  # name: bob
        "02"  # mechanism: 2
        "00",  # no tagged fields
    ),
    Golden(
        RemoveDelegationTokenRecord(token_id="t1"),
        0,
        "01 1a 00"  # frame version 1, type 26, record version 0
        "03 7431"  # token_id: t1
        "00",  # no tagged fields
    ),
]


@pytest.mark.parametrize("golden", GOLDEN, ids=golden_name)
def test_each_security_record_has_its_golden_bytes(golden: Golden) -> None:
    record = golden.message
    assert isinstance(record, MetadataRecord)
    assert encode_record(record, golden.version) == golden.encoded
    assert decode_record(golden.encoded) == record
