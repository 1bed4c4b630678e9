"""The frame of a metadata record, the key of a control record, and the varints in both."""

from __future__ import annotations

from uuid import UUID

import pytest

from records import control
from records.codegen import read_uvarint, uvarint
from records.errors import (
    MalformedMessageError,
    UnknownRecordError,
    UnsupportedVersionError,
)
from records.frame import (
    decode_control_record,
    decode_record,
    encode_control_record,
    encode_record,
    lowest_version,
    read_frame,
)
from records.metadata import PartitionRecord
from records.types import ZERO_UUID


def test_the_encoder_writes_a_record_at_the_lowest_version_that_holds_all_its_fields() -> None:
    record = PartitionRecord(
        topic_id=ZERO_UUID, replicas=(), isr=(), removing_replicas=(), adding_replicas=()
    )
    assert lowest_version(record) == 0
    plain = {field.name: getattr(record, field.name) for field in record.schema().fields}
    for changed, version in [
        ({"leader_recovery_state": 1}, 0),
        ({"directories": (UUID(int=5),)}, 1),
        ({"last_known_elr": ()}, 2),
        ({"start_offset": 0}, 3),
    ]:
        changed_record = PartitionRecord(**{**plain, **changed})
        assert lowest_version(changed_record) == version
        assert read_frame(encode_record(changed_record))[:2] == (3, version)
        assert decode_record(encode_record(changed_record)) == changed_record


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", "frame version at byte 0: not an unsigned varint"),
        ("00", "frame version at byte 0: 0, expected 1"),
        ("02", "frame version at byte 0: 2, expected 1"),
        ("00 01 00", "frame version at byte 0: 0, expected 1"),
        ("01", "type at byte 1: not an unsigned varint"),
        ("01 8080 02", "type at byte .*: 32768 is out of range"),
        ("01 02", "version at byte 2: not an unsigned varint"),
        ("01 02 ffffffffff", "version at byte 2: not an unsigned varint"),
        ("01 02 00", "TopicRecord v0, name at byte 0"),
    ],
)
def test_decoding_refuses_a_record_frame_that_kafka_never_writes(value: str, reason: str) -> None:
    with pytest.raises(MalformedMessageError, match=reason):
        decode_record(bytes.fromhex(value))


def test_decoding_a_record_without_a_value_raises_malformed_message_error() -> None:
    with pytest.raises(MalformedMessageError, match="at byte 0: the record's value is null"):
        decode_record(None)
    with pytest.raises(MalformedMessageError, match="null"):
        decode_control_record(None, b"\0\0\0")
    with pytest.raises(MalformedMessageError, match="null"):
        decode_control_record(b"\0\0\0\4", None)


def test_a_control_record_contains_the_version_of_its_encoding() -> None:
    change = control.LeaderChangeMessage(version=1, leader_id=1, voters=(), granting_voters=())
    key, value = encode_control_record(change, 1)
    assert decode_control_record(key, value) == change
    with pytest.raises(ValueError, match="says version 1, is written at 0"):
        encode_control_record(change, 0)


def test_the_decoder_refuses_a_control_record_of_an_unknown_version() -> None:
    with pytest.raises(UnsupportedVersionError):
        decode_control_record(bytes.fromhex("0000 0004"), bytes.fromhex("0001 00"))


@pytest.mark.parametrize("bits", range(33))
def test_varints_around_every_power_of_two_survive_encoding_and_decoding(bits: int) -> None:
    for value in {
        max(0, (1 << bits) - 1),
        min(1 << bits, 2**32 - 1),
        min((1 << bits) + 1, 2**32 - 1),
    }:
        encoded = uvarint(value)
        assert len(encoded) == max(1, (value.bit_length() + 6) // 7)
        assert read_uvarint(b"\xff" + encoded + b"\xff", 1) == (value, 1 + len(encoded))


@pytest.mark.parametrize("encoded", ["ffffffff10", "ffffffffff01", "8080808080"])
def test_the_varint_decoder_refuses_a_varint_of_more_than_32_bits(encoded: str) -> None:
    with pytest.raises(ValueError, match="32 bits"):
        read_uvarint(bytes.fromhex(encoded), 0)


def test_a_record_frame_accepts_types_and_versions_up_to_the_largest_int16() -> None:
    assert read_frame(bytes.fromhex("01 ffff01 ffff01"))[:2] == (32767, 32767)
    with pytest.raises(UnknownRecordError, match="unknown metadata record type 32767"):
        decode_record(bytes.fromhex("01 ffff01 00"))
    with pytest.raises(UnknownRecordError, match="unknown control record type 7"):
        decode_control_record(bytes.fromhex("0000 0007"), b"")
