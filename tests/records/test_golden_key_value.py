"""Golden bytes: the key-value machine's record. Source: KIP-482 (compact bytes)."""

from __future__ import annotations

import pytest

from records.frame import decode_record, encode_record
from records.key_value import KeyValueState
from records.schema import MetadataRecord
from tests.records.golden import Golden, golden_name

GOLDEN: list[Golden] = [
    Golden(
        KeyValueState(key=b"foo", value=b"\x00\xff"),
        0,
        "01 a609 00"  # frame version 1, type 1190, record version 0
        "04 666f6f"  # key: foo
        "03 00ff"  # value
        "00",  # no tagged fields
    ),
]


@pytest.mark.parametrize("golden", GOLDEN, ids=golden_name)
def test_each_key_value_record_has_its_golden_bytes(golden: Golden) -> None:
    record = golden.message
    assert isinstance(record, MetadataRecord)
    assert encode_record(record, golden.version) == golden.encoded
    assert decode_record(golden.encoded) == record
