"""A Produce is scanned before it is decoded. Source: invariant 10 (docs/design/invariants.md)."""

from __future__ import annotations

import time
from contextlib import suppress
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskless.produce import bounds as produce_bounds
from diskless.produce.bounds import MAX_NAMED
from raft.net import BadHeaderError, RequestHeader
from records.codec import encode_message
from records.rpc.produce import ProduceRequest
from tests.records.strategies import messages

pytestmark = pytest.mark.slow

_topic = ProduceRequest.TopicProduceData
VERSIONS = range(3, 14)


def check(body: bytes, version: int) -> None:
    header = RequestHeader(0, version, 7, "its", version >= 9, 0)
    produce_bounds.check(header, memoryview(body))


def naming(topics: int, partitions: int, *, size: int = 0) -> ProduceRequest:
    """Build a Produce with this many topics, partitions each, and bytes each."""
    kind = _topic.PartitionProduceData
    some = tuple(kind(index=index, records=bytes(size)) for index in range(partitions))
    return ProduceRequest(
        acks=1,
        timeout_ms=1,
        topic_data=tuple(_topic(name="t", partition_data=some) for _ in range(topics)),
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_a_broker_refuses_a_produce_request_with_too_many_topics_or_partitions(
    version: int,
) -> None:
    check(encode_message(naming(1, MAX_NAMED - 1), version), version)
    check(encode_message(naming(10, 10, size=100_000), version), version)
    for topics, partitions in ((1, MAX_NAMED), (2, MAX_NAMED // 2), (MAX_NAMED + 1, 0)):
        with pytest.raises(BadHeaderError, match=r"names more than 20000.*'its'"):
            check(encode_message(naming(topics, partitions), version), version)


@pytest.mark.parametrize("version", [9, 12, 13])
def test_the_item_limit_of_a_produce_request_also_counts_its_tagged_fields(version: int) -> None:
    body = encode_message(naming(1, 1), version)[:-1]
    many = b"\xc0\xd1\x26" + b"".join(  # 633,024 of them
        bytes((0x80 | (tag & 0x7F), 0x80 | (tag >> 7 & 0x7F), tag >> 14, 0))
        for tag in range(128 * 128, 128 * 128 + 30_000)
    )
    with pytest.raises(BadHeaderError, match="names more than"):
        check(body + many, version)


def test_a_broker_refuses_a_produce_of_a_hundred_megabytes_of_empty_partitions_at_once() -> None:
    """Decoding them would take minutes and gigabytes."""
    partitions = 13_000_000
    body = pack(">hhii", -1, 1, 1_000, 1) + b"\0\1t" + pack(">i", partitions)
    body += pack(">ii", 0, -1) * partitions
    begun = time.process_time()
    with pytest.raises(BadHeaderError):
        check(body, 3)
    assert time.process_time() - begun < 1.0


@settings(max_examples=60, deadline=None)
@given(data=st.data(), version=st.sampled_from(VERSIONS))
def test_the_fast_scan_of_a_produce_request_reads_no_byte_past_the_requests_end(
    data: st.DataObject, version: int
) -> None:
    body = encode_message(data.draw(messages(ProduceRequest, version)), version)
    scan = produce_bounds._Scan(body, version)
    scan.request()
    assert scan._position == len(body)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), version=st.sampled_from(VERSIONS), keep=st.floats(0, 1), more=st.binary())
def test_the_fast_scan_or_the_decoder_refuses_a_damaged_produce_request(
    data: st.DataObject, version: int, keep: float, more: bytes
) -> None:
    body = encode_message(data.draw(messages(ProduceRequest, version)), version)
    damaged = body[: int(len(body) * keep)] + more
    with suppress(BadHeaderError):  # a count that lies, and then forty thousand nothings
        check(damaged + bytes(produce_bounds.SHORT_BYTES), version)
