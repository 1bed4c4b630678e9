"""Bytes behind a request's end are ignored, as by Kafka's brokers."""

from __future__ import annotations

import asyncio

import pytest

from diskless.apis.handler import RequestContext, make_handler
from raft.net.header import RequestHeader
from records.codec import decode_message
from records.errors import MalformedMessageError
from records.rpc.cluster import MetadataRequest, MetadataResponse
from tests.diskless.calling import Caller

ALL_TOPICS = bytes.fromhex("00 00 00 0001 00 00")
"""librdkafka 2.16 asks so for the metadata of all topics: three bytes too many, at version 13."""


def test_a_broker_answers_a_request_that_has_trailing_bytes() -> None:
    asked: list[MetadataRequest] = []

    def describe(request: MetadataRequest, _: RequestContext) -> MetadataResponse:
        asked.append(request)
        return MetadataResponse(brokers=(), topics=())

    async def main() -> None:
        handler = make_handler(MetadataRequest, describe)
        header = RequestHeader(3, 13, 7, "rdkafka", True, 0)
        found = handler.serve(Caller(), header, ALL_TOPICS)  # type: ignore[arg-type]
        assert await Caller().answer(found) is not None

    asyncio.run(main())
    assert asked == [MetadataRequest(topics=None, allow_auto_topic_creation=False)]


def test_decoding_a_message_other_than_a_request_refuses_trailing_bytes() -> None:
    assert decode_message(MetadataRequest, ALL_TOPICS, 13, whole=False).topics is None
    with pytest.raises(MalformedMessageError, match="3 bytes left over"):
        decode_message(MetadataRequest, ALL_TOPICS, 13)
    with pytest.raises(MalformedMessageError):
        decode_message(MetadataRequest, ALL_TOPICS[:2], 13, whole=False)
