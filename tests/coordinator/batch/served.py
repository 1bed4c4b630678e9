"""Coordinators behind real sockets: nodes that answer DescribeQuorum and a coordinator's requests.

Leadership is what the test says, and the coordinators of all nodes may be one object: the service
and the client are what is tried here, not the quorum.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from coordinator.batch.interface import BatchCoordinator
from coordinator.batch.service import coordinator_handlers
from raft.net import Listener, ServerConnection, parse_request_header
from raft.net.connection import Answer
from raft.net.frames import Frame
from raft.net.handlers import payload
from records.codec import decode_message
from records.internal_topics import DISKLESS_METADATA
from records.rpc.cluster import ApiVersionsRequest, ApiVersionsResponse
from records.rpc.quorum import DescribeQuorumRequest, DescribeQuorumResponse

API_VERSIONS, DESCRIBE_QUORUM = 18, 55
NOT_LEADER_OR_FOLLOWER = 6

Before = Callable[["Node", ServerConnection, int, Frame], Answer | None]


class Node:
    """A node on loopback that answers that it leads, if `leads`."""

    def __init__(
        self, coordinator: BatchCoordinator | None, *, leads: bool = True, partition: int = 0
    ) -> None:
        self.leads = leads
        self.peers: list[Node] = [self]
        self.seen: list[int] = []  # api keys, in order
        self.before: Before | None = None  # may answer in place of the coordinator
        self._handlers = coordinator_handlers(
            lambda asked: coordinator if asked == partition else None
        )
        self._flexible: dict[int, int | None] = {API_VERSIONS: 3, DESCRIBE_QUORUM: 0}
        self._flexible |= dict.fromkeys(self._handlers, 0)
        self._listener = Listener(self._handle, name="test")

    async def start(self) -> Node:
        await self._listener.start("127.0.0.1", 0)
        return self

    async def stop(self) -> None:
        await self._listener.close()

    @property
    def address(self) -> tuple[str, int]:
        return ("127.0.0.1", self._listener.port)

    def _handle(self, connection: ServerConnection, frame: Frame) -> Answer:
        header = parse_request_header(frame, self._flexible)
        body = frame[header.body_at :]
        self.seen.append(header.api_key)
        if header.api_key == API_VERSIONS:
            decode_message(ApiVersionsRequest, body, header.api_version)
            api = ApiVersionsResponse.ApiVersion
            keys = [(API_VERSIONS, 0, 4), (DESCRIBE_QUORUM, 0, 2)]
            keys += [(key, served.lowest, served.highest) for key, served in self._handlers.items()]
            return payload(
                header,
                ApiVersionsResponse(
                    api_keys=tuple(
                        api(api_key=key, min_version=low, max_version=high)
                        for key, low, high in keys
                    )
                ),
            )
        if header.api_key == DESCRIBE_QUORUM:
            asked = decode_message(DescribeQuorumRequest, body, header.api_version)
            return payload(header, self._describe(asked))
        if self.before is not None:
            answer = self.before(self, connection, header.api_key, body)
            if answer is not None:
                return answer
        return self._handlers[header.api_key].serve(connection, header, body)

    def _describe(self, asked: DescribeQuorumRequest) -> DescribeQuorumResponse:
        assert asked.topics[0].topic_name == DISKLESS_METADATA
        topic = DescribeQuorumResponse.TopicData
        node = DescribeQuorumResponse.Node
        return DescribeQuorumResponse(
            topics=(
                topic(
                    topic_name=DISKLESS_METADATA,
                    partitions=(
                        topic.PartitionData(
                            partition_index=asked.topics[0].partitions[0].partition_index,
                            error_code=0 if self.leads else NOT_LEADER_OR_FOLLOWER,
                            leader_id=self.peers.index(self),
                            leader_epoch=1,
                            high_watermark=0,
                            current_voters=(),
                            observers=(),
                        ),
                    ),
                ),
            ),
            nodes=tuple(
                node(
                    node_id=number,
                    listeners=(
                        node.Listener(name="C", host=peer.address[0], port=peer.address[1]),
                    ),
                )
                for number, peer in enumerate(self.peers)
            ),
        )


async def nodes(*coordinators: BatchCoordinator | None) -> list[Node]:
    """Started nodes that know each other; the first leads."""
    started = [await Node(one, leads=not i).start() for i, one in enumerate(coordinators)]
    for node in started:
        node.peers = started
    return started


async def never() -> Any:
    """Wait for ever, in place of an answer."""
    await asyncio.get_running_loop().create_future()
