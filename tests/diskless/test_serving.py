"""Encoding of responses by handlers."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from diskless.apis import handler as serving
from diskless.apis.handler import LONG_PARTITIONS, RequestContext, make_handler
from raft.net.handlers import payload
from records.rpc.cluster import MetadataRequest, MetadataResponse
from tests.diskless.calling import call


@pytest.mark.parametrize("partitions", [1, LONG_PARTITIONS, LONG_PARTITIONS + 1])
def test_a_broker_encodes_a_response_with_very_many_partitions_in_a_thread(
    monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    """A hundred thousand partitions would block the loop for a tenth of a second."""
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
        ),
    )
    where: list[bool] = []

    def watched(header: Any, response: Any) -> Any:
        where.append(threading.current_thread() is threading.main_thread())
        return payload(header, response)

    async def answered(_: MetadataRequest, __: RequestContext) -> MetadataResponse:
        await asyncio.sleep(0)
        return answer

    async def story() -> None:
        handlers = {3: make_handler(MetadataRequest, answered, in_line=True)}
        assert await call(handlers, MetadataRequest(topics=None), MetadataResponse, 12) == answer

    monkeypatch.setattr(serving, "payload", watched)
    asyncio.run(story())
    assert where == [partitions <= LONG_PARTITIONS]
