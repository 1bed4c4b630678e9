"""Every message at every version: what is written is read back, and two codecs agree on the bytes.

The slow interpreter walks the schema field by field; the generated functions are what runs. A
mistake in one of them is a difference between them, a mistake in both a failed golden test
(`test_golden_*`) or a quarrel with kio (`test_messages_kio`).
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from records.codec import decode_message, encode_message, encode_parts
from records.reference_decoder import reference_decode
from records.reference_encoder import reference_encode
from records.schema import UNKNOWN_TAGGED_FIELDS, Message
from tests.examples import examples
from tests.records.strategies import (
    CASES,
    MESSAGES,
    UNKNOWN_TAGS,
    case_name,
    messages,
    versions_of,
)

pytestmark = pytest.mark.slow

Case = tuple[type[Message], int]
every_case = pytest.mark.parametrize("case", CASES, ids=case_name)
few = settings(
    max_examples=examples(3),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example],
)


@every_case
@few
@given(st.data())
def test_a_message_survives_the_generated_codec_and_the_reference_codec_alike(
    case: Case, data: st.DataObject
) -> None:
    cls, version = case
    message = data.draw(messages(cls, version))
    encoded = encode_message(message, version)
    assert encoded == reference_encode(message, version)
    assert encoded == b"".join(encode_parts(message, version))
    decoded = decode_message(cls, encoded, version)
    assert decoded == message
    assert decode_message(cls, bytearray(encoded), version) == message
    assert decode_message(cls, memoryview(encoded), version) == message
    assert reference_decode(cls, memoryview(encoded), version) == message
    assert encode_message(decoded, version) == encoded


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_omitted_fields_decode_to_their_defaults_at_every_version(cls: type[Message]) -> None:
    required = {field.name: field.default for field in cls.schema().fields if field.required}
    message = cls(**required)
    for version in versions_of(cls):
        assert decode_message(cls, encode_message(message, version), version) == message


FLEXIBLE = [cls for cls in MESSAGES if cls.schema().versions.last in cls.schema().flexible]


@pytest.mark.parametrize("cls", FLEXIBLE, ids=lambda cls: cls.__name__)
@settings(max_examples=examples(3), deadline=None, database=None)
@given(st.data())
def test_unknown_tagged_fields_survive_decoding_and_encoding(
    cls: type[Message], data: st.DataObject
) -> None:
    version = cls.schema().versions.last
    message = data.draw(messages(cls, version))
    unknown = data.draw(UNKNOWN_TAGS.filter(bool))
    values = {field.name: getattr(message, field.name) for field in cls.schema().fields}
    sent = cls(**values, **{UNKNOWN_TAGGED_FIELDS: unknown})
    received = decode_message(cls, encode_message(sent, version), version)
    assert received.unknown_tagged_fields == unknown
    assert received == sent
