"""Encoding of responses by handlers."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from diskless.apis import handler as serving
from diskless.apis.handler import LONG_PARTITIONS, RequestContext, make_handler
from raft.net.connection import Reply
from raft.net.handlers import payload
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
