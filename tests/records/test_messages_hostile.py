"""Bytes that are not what they claim: a typed error that says where, in bounded memory.

Invariant 10 (docs/design/invariants.md): nothing that a client or peer sends, well-formed or not,
stops a node.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from records.codec import decode_message, encode_message
from records.codegen import uvarint
from records.control import VotersRecord
from records.diskless import ObjectCommitRecord
from records.errors import MalformedMessageError, RecordError, UnsupportedVersionError
from records.frame import decode_control_record, decode_record, encode_record
from records.metadata import DelegationTokenRecord, PartitionRecord, TopicRecord
from records.reference_decoder import EXPLAINED_VALUES, reference_decode
from records.rpc.batch_coordinator import CommitBatchesRequest
from records.rpc.cluster import ApiVersionsResponse, MetadataRequest
from records.rpc.fetch import FetchRequest
from records.rpc.produce import ProduceRequest
from records.schema import Message
from records.types import ZERO_UUID
from tests.examples import examples
from tests.records.strategies import MESSAGES, messages, versions_of

pytestmark = pytest.mark.slow

some = settings(
    max_examples=examples(3),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example],
)


def decode_or_explain(cls: type[Message], data: bytes, version: int) -> Message | None:
    """The message, or None for bytes refused the right way; both codecs must say the same."""
    try:
        message = decode_message(cls, data, version)
    except MalformedMessageError as refused:
        error = refused
    else:
        walked = reference_decode(cls, memoryview(data), version)
        assert encode_message(walked, version) == encode_message(message, version)
        return message
    assert (error.message, error.version) == (cls.__name__, version)
    assert 0 <= error.position <= len(data)
    assert error.reason
    assert cls.__name__ in str(error)
    return None


def refused_or_decoded(decode: Callable[[], object]) -> None:
    """Any other exception than a `RecordError` fails the test."""
    with suppress(RecordError):
        decode()


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
@some
@given(st.binary(max_size=64))
def test_arbitrary_bytes_decode_to_a_message_or_raise_malformed_message_error(
    cls: type[Message], data: bytes
) -> None:
    for version in versions_of(cls):
        note(f"{cls.__name__} v{version}")
        decode_or_explain(cls, data, version)


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
@some
@given(st.data())
def test_a_damaged_message_decodes_or_raises_malformed_message_error(
    cls: type[Message], data: st.DataObject
) -> None:
    version = data.draw(st.sampled_from(versions_of(cls)))
    whole = encode_message(data.draw(messages(cls, version)), version)
    cut = data.draw(st.integers(0, len(whole)))
    if cut < len(whole):
        assert decode_or_explain(cls, whole[:cut], version) is None, "a part passed for the whole"
    assert decode_or_explain(cls, whole + b"\0", version) is None, "a byte left over"
    if not whole:
        return  # an old ApiVersions request has no bytes that could be damaged
    flipped = bytearray(whole)
    for bit in data.draw(st.lists(st.integers(0, 8 * len(whole) - 1), min_size=1, max_size=3)):
        flipped[bit // 8] ^= 1 << bit % 8
    decode_or_explain(cls, bytes(flipped), version)


@settings(max_examples=200, deadline=None, database=None)
@given(key=st.binary(max_size=6), value=st.binary(max_size=40))
def test_decoding_an_arbitrary_record_value_raises_only_record_errors(
    key: bytes, value: bytes
) -> None:
    refused_or_decoded(lambda: decode_record(value))
    refused_or_decoded(lambda: decode_control_record(key, value))


@settings(max_examples=200, deadline=None, database=None)
@given(st.sampled_from(range(30)) | st.sampled_from(range(1020, 1130)), st.binary(max_size=40))
def test_decoding_an_arbitrary_body_in_a_valid_frame_raises_only_record_errors(
    key: int, body: bytes
) -> None:
    for version in range(5):
        value = b"\x01" + uvarint(key) + uvarint(version) + body
        refused_or_decoded(partial(decode_record, value))


HUGE_COUNTS = [  # message, version, field, bytes: every array claims about 2^31 elements
    (DelegationTokenRecord, 0, "renewers", "01 01 ffffffff07 0000"),
    (PartitionRecord, 0, "replicas", "00000000" + "00" * 16 + "ffffffff07 0000"),
    (ObjectCommitRecord, 0, "topic_ids", "00" * 45 + "ffffffff07 0000"),
    (CommitBatchesRequest, 0, "topics", "00" * 37 + "ffffffff07 0000"),
    (VotersRecord, 0, "voters", "0000 ffffffff07 0000"),
    (MetadataRequest, 1, "topics", "7fffffff 0000"),
    (MetadataRequest, 9, "topics", "ffffffff07 0000"),
    (ProduceRequest, 3, "topic_data", "ffff 0001 00000000 7fffffff 0000"),
    (ProduceRequest, 9, "transactional_id", "ffffffff0f 0000"),
    (FetchRequest, 18, "tags", "00" * 21 + "01 01 01" + "ffffffff0f 00 ffffffff0f"),
    (ApiVersionsResponse, 0, "api_keys", "0000 7fffffff 0000"),
    (TopicRecord, 0, "name", "ffffffff0f 0000"),
    (TopicRecord, 0, "tags", "01" + "00" * 16 + "ffffffff0f 00 ffffffff0f"),
]


@pytest.mark.parametrize(
    ("cls", "version", "field", "data"), HUGE_COUNTS, ids=lambda x: getattr(x, "__name__", None)
)
def test_the_decoder_refuses_an_array_count_beyond_the_message_before_memory_is_taken(
    cls: type[Message], version: int, field: str, data: str
) -> None:
    raw = bytes.fromhex(data)
    with pytest.raises(MalformedMessageError):
        decode_message(cls, raw, version)  # once, so that only data counts below, not the codec
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessageError) as caught:
            decode_message(cls, raw, version)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.path == field
    assert peak_bytes < 100_000


def test_a_decoding_error_names_message_field_and_byte() -> None:
    good = encode_message(
        PartitionRecord(
            topic_id=ZERO_UUID, replicas=(1,), isr=(), removing_replicas=(), adding_replicas=()
        ),
        0,
    )
    with pytest.raises(MalformedMessageError) as caught:
        decode_message(PartitionRecord, good[:22], 0)
    assert str(caught.value) == (
        "PartitionRecord v0, replicas at byte 21: 1 elements of at least 4 bytes, 1 left"
    )


def test_the_decoder_refuses_a_string_field_that_is_not_utf_8() -> None:
    with pytest.raises(MalformedMessageError, match=r"name at byte .*: not UTF-8"):
        decode_message(TopicRecord, bytes.fromhex("02 ff") + bytes(17), 0)


def test_the_decoder_refuses_an_undeclared_version() -> None:
    with pytest.raises(UnsupportedVersionError, match="TopicRecord has versions 0, not 1"):
        decode_message(TopicRecord, b"", 1)
    record = TopicRecord(name="x", topic_id=ZERO_UUID)
    with pytest.raises(UnsupportedVersionError):
        encode_record(record, 7)


def test_the_search_for_the_error_in_a_huge_malformed_message_stops_at_a_limit() -> None:
    # The slow codec takes about a microsecond a value: of a frame of 100 MB, a minute.
    strings = 3_000_000
    data = b"\1\1" + uvarint(strings + 1) + b"\1" * strings + bytes(10)
    with pytest.raises(MalformedMessageError) as caught:
        decode_message(DelegationTokenRecord, data, 0)
    assert caught.value.path == f"renewers[{EXPLAINED_VALUES - 3}]"
    assert caught.value.position < 2 * EXPLAINED_VALUES
    assert caught.value.reason == "malformed from here on; not examined further"


def test_the_decoder_names_the_field_of_damage_late_in_a_message_of_ordinary_size() -> None:
    columns = {
        field.name: (0,) * 5_000
        for field in ObjectCommitRecord.schema().fields
        if field.default == () and field.name != "topic_ids"
    }
    numbers = {f.name: 0 for f in ObjectCommitRecord.schema().fields if f.default == 0}
    good = encode_message(ObjectCommitRecord(**numbers, **columns, topic_ids=()), 1)
    with pytest.raises(MalformedMessageError, match="transaction_numbers"):
        decode_message(ObjectCommitRecord, good[:-2], 1)
