"""Headers: golden bytes, and kio as a second opinion. Source: KIP-482, KIP-511."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.request_header.v1.header import RequestHeader as KioV1
from kio.schema.request_header.v2.header import RequestHeader as KioV2
from kio.schema.response_header.v0.header import ResponseHeader as KioResponseV0
from kio.schema.response_header.v1.header import ResponseHeader as KioResponseV1
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i16, i32

from raft.net import (
    BadHeaderError,
    RequestKind,
    parse_request_header,
    request_header,
    response_header,
    skip_tagged_fields,
)

INT32 = st.integers(-(2**31), 2**31 - 1)
CLIENT_IDS = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=50)


def test_a_version_1_request_header_has_its_golden_bytes():
    kind = RequestKind.of(1, 11, first_flexible=12)
    assert request_header(kind, 5, "me") == bytes.fromhex(
        "0001"  # api key: Fetch
        "000b"  # api version
        "00000005"  # correlation id
        "0002 6d65"  # client id: length as int16, UTF-8
    )


def test_a_version_2_request_header_has_its_golden_bytes():
    kind = RequestKind.of(1, 12, first_flexible=12)
    assert request_header(kind, 5, None) == bytes.fromhex(
        "0001 000c 00000005"  # Fetch, version, correlation id
        "ffff"  # no client id: still an int16 length, although the header is flexible
        "00"  # no tagged fields
    )


def test_response_headers_have_their_golden_bytes():
    assert response_header(-2, flexible=False) == bytes.fromhex("fffffffe")
    assert response_header(7, flexible=True) == bytes.fromhex("00000007 00")


def test_the_header_of_an_api_versions_response_is_never_flexible():
    assert RequestKind.of(18, 3, first_flexible=3) == (18, 3, True, False)
    assert RequestKind.of(18, 2, first_flexible=3) == (18, 2, False, False)
    assert RequestKind.of(52, 0, first_flexible=0) == (52, 0, True, True)
    assert RequestKind.of(17, 1, first_flexible=None) == (17, 1, False, False)


@given(st.booleans(), st.integers(0, 99), INT32, CLIENT_IDS)
def test_request_headers_are_encoded_and_decoded_as_by_the_kio_library(
    flexible, version, correlation_id, name
):
    kind = RequestKind(1, version, flexible, flexible)
    ours = request_header(kind, correlation_id, name)
    kio_type = KioV2 if flexible else KioV1
    entity = kio_type(
        request_api_key=i16(1),
        request_api_version=i16(version),
        correlation_id=i32(correlation_id),
        client_id=name,
    )
    assert kio_read(kio_type, ours) == entity
    theirs = kio_write(entity)
    assert theirs == ours
    for frame in (theirs + b"body", memoryview(theirs + b"body")):
        header = parse_request_header(frame, {1: 0 if flexible else None})
        assert bytes(frame[header.body_at :]) == b"body"
        assert header == (1, version, correlation_id, name, flexible, len(theirs))


@given(st.booleans(), INT32)
def test_the_kio_library_decodes_eskers_response_headers(flexible, correlation_id):
    kio_type = KioResponseV1 if flexible else KioResponseV0
    ours = response_header(correlation_id, flexible=flexible)
    assert kio_read(kio_type, ours).correlation_id == correlation_id


class EveryApi(dict):
    """Any api key is known, and flexible from the given version on."""

    def __init__(self, first_flexible: int | None) -> None:
        self.first_flexible = first_flexible

    def __missing__(self, key: int) -> int | None:
        return self.first_flexible


@given(st.binary(max_size=60), st.sampled_from([None, 0]))
def test_random_bytes_parse_as_a_header_within_the_frame_or_raise_an_error(garbage, first_flexible):
    try:
        header = parse_request_header(garbage, EveryApi(first_flexible))
    except BadHeaderError:
        return
    assert 10 <= header.body_at <= len(garbage)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "too short"),
        ("0001 000c 00000005 00", "too short"),
        ("0001 000c 00000005 0009 6d65 00", "client id longer than the frame"),
        ("0001 000c 00000005 fffe 00", "client id length below -1"),
        ("0001 000c 00000005 0001 ff 00", "client id no UTF-8"),
        ("0001 ffff 00000005 ffff 00", "version below 0"),
        ("0002 000c 00000005 ffff 00", "unknown api key"),
        ("0001 000c 00000005 ffff", "tagged fields missing"),
        ("0001 000c 00000005 ffff 01", "a tagged field missing"),
        ("0001 000c 00000005 ffff 01 00 05 00", "a tagged field longer than the frame"),
        ("0001 000c 00000005 ffff 02 01 00 01 00", "a tag twice"),
        ("0001 000c 00000005 ffff ffffffff7f", "a varint above 32 bits"),
        ("0001 000c 00000005 ffff ffffffffffff", "an endless varint"),
        ("0001 000c 00000005 ffff ffffffff0f", "four billion tagged fields"),
    ],
)
def test_decoding_an_invalid_request_header_raises_an_error(text, why):
    with pytest.raises(BadHeaderError):
        parse_request_header(bytes.fromhex(text), {1: 12}), why


def test_the_request_header_parser_skips_unknown_tagged_fields():
    frame = bytes.fromhex("02 00 01 aa 07 02 bbbb") + b"body"
    assert frame[skip_tagged_fields(frame, 0) :] == b"body"


def test_a_client_refuses_to_encode_a_client_id_that_is_too_long():
    with pytest.raises(ValueError, match="32767"):
        request_header(RequestKind.of(1, 0, None), 0, "x" * 40_000)


def kio_write(entity):
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def kio_read(kind, data):
    value = entity_reader(kind)(data, 0)
    return value[0] if isinstance(value, tuple) else value
