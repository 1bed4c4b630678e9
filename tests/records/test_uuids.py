"""Ids in Kafka's text form: 22 characters of URL-safe base64."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from records.uuids import decode_uuid, encode_uuid


@given(value=st.uuids())
def test_a_uuid_survives_printing_in_22_characters_and_parsing(value):
    assert len(encode_uuid(value)) == 22
    assert decode_uuid(encode_uuid(value)) == value


def test_printed_uuids_use_the_url_safe_base64_alphabet():
    assert encode_uuid(UUID(bytes=b"\xfb\xff" * 8)) == "-__7__v_-__7__v_-__7_w"
    assert encode_uuid(UUID(int=0)) == "A" * 22


@pytest.mark.parametrize(
    "text",
    [
        "",
        "A",
        "A" * 21,
        "A" * 23,
        "A" * 24,
        "A" * 22 + "==",
        "\u0661" * 22,
        "A" * 20 + "\n\n",
    ],
)
def test_parsing_text_that_is_not_a_uuid_raises_an_error_that_names_the_text(text):
    with pytest.raises(ValueError, match="is not a UUID as Kafka writes it"):
        decode_uuid(text)
