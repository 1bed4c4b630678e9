"""Encoding of responses by handlers."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from diskless.apis import handler as serving
from diskless.apis.handler import (
    LONG_PARTITIONS,
    LONG_REQUEST_BYTES,
    RequestContext,
    make_handler,
)
from raft.net.connection import Reply
from raft.net.handlers import payload
from raft.net.header import RequestHeader
from records.codec import decode_message, encode_message
from records.errors import MalformedMessageError
from records.rpc.cluster import MetadataRequest, MetadataResponse
from tests.diskless.calling import Caller, call

FEW_BUFFERS = 10


@pytest.mark.parametrize(
    ("partitions", "denied"),
    [(1, 0), (LONG_PARTITIONS - 2, 0), (LONG_PARTITIONS - 1, 0), (1, LONG_PARTITIONS - 2)],
)
def test_a_broker_encodes_a_response_with_very_many_topics_and_partitions_in_a_thread(
    monkeypatch: pytest.MonkeyPatch, partitions: int, denied: int
) -> None:
    """A hundred thousand partitions would block the loop for a tenth of a second.

    Args:  denied: topics without partitions.
    """
    topic = MetadataResponse.MetadataResponseTopic
    answer = MetadataResponse(
        brokers=(),
        cluster_id="c",
        controller_id=1,
        topics=tuple(
            topic(
                name=name,
                partitions=tuple(
                    topic.MetadataResponsePartition(
                        partition_index=index, leader_id=1, replica_nodes=(1,), isr_nodes=(1,)
                    )
                    for index in some
                ),
            )
            for name, some in (("a", range(1)), ("b", range(partitions - 1)))
        )
        + tuple(topic(name=f"denied-{index}", partitions=()) for index in range(denied)),
    )
    where: list[bool] = []
    buffers: list[int] = []

    def watched(header: Any, response: Any) -> Any:
        where.append(threading.current_thread() is threading.main_thread())
        return payload(header, response)

    async def answered(_: MetadataRequest, __: RequestContext) -> MetadataResponse:
        await asyncio.sleep(0)
        return answer

    class Peer(Caller):
        def _on_ready(self, reply: Reply) -> None:
            assert isinstance(reply._payload, tuple)
            buffers.append(len(reply._payload))
            super()._on_ready(reply)

    async def story() -> None:
        handlers = {3: make_handler(MetadataRequest, answered, in_line=True)}
        request = MetadataRequest(topics=None)
        assert await call(handlers, request, MetadataResponse, 12, caller=Peer()) == answer

    monkeypatch.setattr(serving, "payload", watched)
    asyncio.run(story())
    is_short = 2 + partitions + denied <= LONG_PARTITIONS
    assert where == [is_short]
    assert is_short or buffers[0] <= FEW_BUFFERS


def naming(size: int) -> tuple[MetadataRequest, bytes]:
    """Return a request for topics, and its bytes at version 1: one more than `size` of them."""
    name = MetadataRequest.MetadataRequestTopic
    names = [name(name="n" * 248) for _ in range(size // 250)]
    rest = size + 1 - 4 - 250 * len(names)
    request = MetadataRequest(topics=(*names, name(name="n" * (rest - 2))))
    return request, encode_message(request, 1)


@pytest.mark.parametrize("more", [-1, 0])
def test_a_broker_decodes_a_request_above_64_kib_in_a_thread(
    monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    request, body = naming(LONG_REQUEST_BYTES + more)
    where: list[bool] = []
    answer = MetadataResponse(brokers=(), topics=())

    def watched(*arguments: Any, **named: Any) -> Any:
        where.append(threading.current_thread() is threading.main_thread())
        return decode_message(*arguments, **named)

    def answered(asked: MetadataRequest, _: RequestContext) -> MetadataResponse:
        assert asked == request
        return answer

    async def story() -> None:
        caller: Any = Caller()
        header = RequestHeader(3, 1, 7, "client", False, 0)
        reply = make_handler(MetadataRequest, answered).serve(caller, header, body)
        assert caller.held is (more == 0), "the next request would overtake this one"
        assert await caller.answer(reply) == b"".join(payload(header, answer))
        await asyncio.sleep(0)
        assert not caller.held

    monkeypatch.setattr(serving, "decode_message", watched)
    asyncio.run(story())
    assert where == [more < 0]


def test_a_long_request_that_is_malformed_fails_its_connection_alone() -> None:
    _, body = naming(LONG_REQUEST_BYTES + 1)
    failed: list[BaseException] = []

    class Peer(Caller):
        def _on_handler_error(self, error: BaseException) -> None:
            failed.append(error)

    async def story() -> None:
        caller: Any = Peer()
        header = RequestHeader(3, 1, 7, "client", False, 0)
        handler = make_handler(
            MetadataRequest, lambda _, __: MetadataResponse(brokers=(), topics=())
        )
        handler.serve(caller, header, body[:-1])
        while caller.held:
            await asyncio.sleep(0)

    asyncio.run(story())
    assert [type(error) for error in failed] == [MalformedMessageError]
