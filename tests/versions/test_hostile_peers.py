"""Calls that only controllers and brokers make, made by a stranger: the cluster works on.

Each probe is sent to whole nodes as `esker start` runs them; afterwards topics can be created and
records written. Source: docs/design/hostile-input.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from coordinator.controller.client import error_codes
from diskless.produce.service import TOPIC_WAIT_S
from records.kafka_errors import ErrorCode
from records.rpc import batch_coordinator as coordinator
from records.rpc import objects, topics
from tests.versions.nodes import BROKER, BROKER_ID, FOLLOWER, LEADER, Nodes
from tests.versions.requests import set_up
from tests.versions.requests_clients import produce_records
from tests.versions.scene import STRANGER, Scene

pytestmark = pytest.mark.slow

HUGE = 2**31 - 1
MINE = UUID(int=99)
AGAIN = int(ErrorCode.COORDINATOR_NOT_AVAILABLE)

Story = Callable[[Nodes, Scene], Awaitable[None]]


def tell(home: Path, story: Story) -> None:
    async def main() -> None:
        async with Nodes(home) as nodes:
            await story(nodes, await set_up(nodes))
            assert not nodes.dead(), nodes.dead()

    asyncio.run(main())


async def ask_both(nodes: Nodes, request: Any) -> list[set[int]]:
    """Return the error codes of each node's answer."""
    return [error_codes(await nodes.ask(node, request, 0)) for node in (LEADER, FOLLOWER)]


async def assert_topics_can_be_created(nodes: Nodes, name: str) -> None:
    topic = topics.CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=1, replication_factor=1, assignments=(), configs=()
    )
    created = await nodes.ask(BROKER, topics.CreateTopicsRequest(topics=(topic,)), 7)
    assert error_codes(created) == {0}, created


async def assert_records_can_be_written(nodes: Nodes, scene: Scene) -> None:
    written = await nodes.ask(BROKER, produce_records(scene)[0], 9)
    assert error_codes(written) == {0}, written


def test_a_coordinator_call_with_an_invented_controller_epoch_stops_no_controller(
    tmp_path: Path,
) -> None:
    async def story(nodes: Nodes, scene: Scene) -> None:
        init = coordinator.InitDisklessTopicsRequest
        release = coordinator.ReleaseDisklessPartitionsRequest
        named = release.Topic.Partition(partition_index=1)
        for request in (
            init(
                controller_epoch=HUGE,
                topics=(init.Topic(topic_id=MINE, topic_name="mine", num_partitions=1),),
            ),
            coordinator.DeleteDisklessTopicsRequest(controller_epoch=HUGE, topic_ids=(MINE,)),
            release(
                controller_epoch=HUGE,
                topics=(release.Topic(topic_id=scene.topic_id, partitions=(named,)),),
            ),
        ):
            assert await ask_both(nodes, request) == [{AGAIN}, {AGAIN}], request
        await assert_topics_can_be_created(nodes, "afterwards")
        await assert_records_can_be_written(nodes, scene)

    tell(tmp_path, story)


def test_a_lease_request_with_an_invented_broker_epoch_gets_no_lease_and_fences_no_broker(
    tmp_path: Path,
) -> None:
    async def story(nodes: Nodes, scene: Scene) -> None:
        for broker_id, epoch in ((STRANGER + 1, 5), (BROKER_ID, 2**62), (BROKER_ID, 2**63 - 1)):
            request = objects.AcquireObjectLeaseRequest(
                coordinator_partition=0, broker_id=broker_id, broker_epoch=epoch, object_count=5
            )
            assert await ask_both(nodes, request) == [{AGAIN}, {AGAIN}], request
        await assert_records_can_be_written(nodes, scene)
        unknown, began = produce_records(scene)[2], asyncio.get_running_loop().time()
        answer = await nodes.ask(BROKER, unknown, 13)
        assert error_codes(answer) == {ErrorCode.UNKNOWN_TOPIC_ID}
        assert asyncio.get_running_loop().time() - began < TOPIC_WAIT_S / 2

    tell(tmp_path, story)
