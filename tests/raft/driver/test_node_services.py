"""Services are notified of their groups' start and end, and their requests are served."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from esker.server.node_services import JoinedServices
from raft.driver import Node
from raft.net.handlers import Served, payload
from raft.net.rpc import open_rpc
from records.rpc.batch_coordinator import DeleteDisklessTopicsRequest, DeleteDisklessTopicsResponse
from tests.ports import free_ports
from tests.raft.driver.test_node import config_of, leading_log, log_dir

__all__ = ["log_dir"]  # a fixture

KEY = 1095


class Recorder:
    """Services that record the calls of their node."""

    def __init__(self, host, story: list[tuple], *, serves: bool) -> None:
        self.host = host
        self.story = story
        self.handlers = {KEY: Served(0, 0, self.serve)} if serves else {}

    def serve(self, connection, header, body):  # noqa: ARG002
        return payload(header, DeleteDisklessTopicsResponse(throttle_time_ms=7, responses=()))

    def begin(self, log, topic: str, partition: int, directory: Path) -> None:
        assert self.host.log(topic, partition) is log
        assert directory.name == f"{topic}-{partition}"
        self.story.append(("begin", topic, log.leading_epoch))

    async def end(self, topic: str, partition: int) -> None:
        log = self.host.log(topic, partition)
        assert log.read(log.start_offset, 1_000) is not None  # not closed yet
        self.story.append(("end", topic, log.leading_epoch))


def test_every_node_service_is_notified_of_the_start_and_end_of_each_raft_group(
    log_dir: Path,
) -> None:
    story: list[tuple] = []

    async def told() -> None:
        (port,) = free_ports(1)

        def node_service(host: object) -> JoinedServices:
            return JoinedServices(
                [Recorder(host, story, serves=serves) for serves in (True, False)]
            )

        node = Node(replace(config_of(log_dir, port), node_service=node_service))
        await node.start()
        await leading_log(node)
        async with await open_rpc("127.0.0.1", port) as rpc:
            request = DeleteDisklessTopicsRequest(controller_epoch=1, topic_ids=())
            answer = await rpc.call(request, DeleteDisklessTopicsResponse)
            assert answer.throttle_time_ms == 7
        await node.stop()

    asyncio.run(told())
    for topic in ("__cluster_metadata", "esker-bench-log"):
        assert story.count(("begin", topic, None)) == 2  # before it lives
        assert [what for what, name, _ in story if name == topic] == ["begin"] * 2 + ["end"] * 2
