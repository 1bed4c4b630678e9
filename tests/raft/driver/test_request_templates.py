"""A template match of a Produce request yields exactly what decoding it yields, or None."""

from __future__ import annotations

import random

import pytest

from raft.driver.request_templates import RequestTemplates, success_of
from raft.net import RequestHeader, parse_request_header, request_header
from raft.net.header import RequestKind
from records.batch_writer import build_value_batch
from records.codec import decode_message, encode_message
from records.codegen import uvarint
from records.rpc.produce import ProduceRequest

SUCCESS = success_of(b"before", b"after")


def frame_of(
    values: list[bytes],
    *,
    version: int,
    correlation_id: int,
    client_id: str = "c",
    topic: str = "t",
) -> bytes:
    data = ProduceRequest.TopicProduceData
    batch = build_value_batch(values, base_offset=0, leader_epoch=-1, timestamp=0)
    request = ProduceRequest(
        acks=-1, timeout_ms=1,
        topic_data=(
            data(
                name=topic,
                partition_data=(data.PartitionProduceData(index=0, records=bytes(batch)),),
            ),
        ),
    )  # fmt: skip
    kind = RequestKind.of(0, version, 9)
    return request_header(kind, correlation_id, client_id) + encode_message(request, version)


def parsed(frame: bytes) -> tuple[RequestHeader, ProduceRequest, bytes]:
    header = parse_request_header(frame, {0: 9})
    body = frame[header.body_at :]
    return header, decode_message(ProduceRequest, body, header.api_version), body


def learnt(frame: bytes) -> RequestTemplates:
    templates = RequestTemplates()
    templates.learn(*parsed(frame), SUCCESS)
    return templates


@pytest.mark.parametrize("version", [3, 8, 9, 12])
@pytest.mark.parametrize("size", [1, 40, 90, 20_000])
def test_a_node_parses_a_produce_frame_with_the_bytes_of_an_earlier_request_by_template(
    version: int, size: int
) -> None:
    templates = learnt(frame_of([b"z" * size, b"first"], version=version, correlation_id=1))
    frame = frame_of([b"x" * size, b"y"], version=version, correlation_id=77)
    for one in (frame, memoryview(frame)):
        known = templates.match(one)
        assert known is not None
        correlation_id, batch, record_count, success = known
        records = parsed(frame)[1].topic_data[0].partition_data[0].records
        assert (correlation_id, bytes(batch)) == (77, bytes(records or b""))
        assert (record_count, success) == (2, SUCCESS)


def test_a_produce_frame_of_another_client_topic_or_version_matches_no_request_template() -> None:
    templates = learnt(frame_of([b"v"], version=9, correlation_id=1))
    assert templates.match(frame_of([b"v"], version=9, correlation_id=1, client_id="d")) is None
    assert templates.match(frame_of([b"v"], version=9, correlation_id=1, topic="u")) is None
    assert templates.match(frame_of([b"v"], version=10, correlation_id=1)) is None


def test_a_produce_frame_whose_length_of_records_has_more_bytes_matches_no_request_template() -> (
    None
):
    templates = learnt(frame_of([b"v"], version=9, correlation_id=1))
    longer = frame_of([b"v" * 100], version=9, correlation_id=1)
    assert templates.match(longer) is None
    templates.learn(*parsed(longer), SUCCESS)
    assert templates.match(longer) is not None
    assert templates.match(frame_of([b"w"], version=9, correlation_id=2)) is not None


@pytest.mark.parametrize("version", [8, 9])
@pytest.mark.parametrize("length", [-(2**31), -13, -1, 0, 48, 49, 2**31 - 13, 2**31 - 1])
def test_a_produce_frame_whose_batch_claims_another_length_matches_no_request_template(
    version: int, length: int
) -> None:
    frame = frame_of([b"some value"], version=version, correlation_id=5)
    records = bytes(parsed(frame)[1].topic_data[0].partition_data[0].records or b"")
    at = frame.index(records) + 8
    claimed = frame[:at] + length.to_bytes(4, "big", signed=True) + frame[at + 4 :]
    assert learnt(frame).match(claimed) is None


def test_no_template_is_made_of_a_request_in_another_encoding_than_ours() -> None:
    """The end of its records is elsewhere: a frame could match that cannot be decoded."""
    frame = frame_of([b"z" * 200], version=9, correlation_id=1)
    _, request, body = parsed(frame)
    records = bytes(request.topic_data[0].partition_data[0].records or b"")
    at = frame.index(records)
    assert body.endswith(records + b"\0\0\0")
    others = {
        "a length of three bytes": frame[: at - 1] + bytes([frame[at - 1] | 0x80, 0]) + frame[at:],
        "an unknown tagged field of zeros": frame[:-1] + bytes([1, 99, 5]) + bytes(5),
        "a number of tags in two bytes": frame[:-3] + b"\x80\0\0\0",
        "its own records in a tagged field": (
            frame[:-1] + bytes([1, 99]) + uvarint(len(records) + 5) + frame[at - 2 :]
        ),
    }
    for what, other in others.items():
        assert parsed(other)[1].topic_data[0].partition_data[0].records == records, what
        templates = learnt(other)
        assert templates.match(other) is None, what
        assert templates.match(frame) is None, what
    assert learnt(frame).match(frame) is not None


def test_a_produce_frame_with_a_changed_byte_matches_a_template_only_in_ignored_fields() -> None:
    """A damaged frame never gets through; only the correlation id, and what no checksum covers of
    the batch (its base offset and epoch), may differ."""
    frame = frame_of([b"some value"], version=9, correlation_id=5)
    templates = learnt(frame)
    records = bytes(parsed(frame)[1].topic_data[0].partition_data[0].records or b"")
    batch_at = frame.index(records)
    free = {*range(4, 8), *range(batch_at, batch_at + 8), *range(batch_at + 12, batch_at + 16)}
    chance = random.Random(1)
    for at in range(len(frame)):
        damaged = bytearray(frame)
        damaged[at] ^= 1 << chance.randrange(8)
        assert (templates.match(bytes(damaged)) is not None) == (at in free), f"byte {at}"
    for end in range(len(frame)):
        assert templates.match(frame[:end]) is None, f"cut at {end}"
    assert templates.match(frame + b"\x00") is None
