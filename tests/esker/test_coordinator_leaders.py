"""A controller's calls do not wait for a coordinator that this node knows to be deposed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.controller.leader import ControllerConfig
from esker.server import controllers
from esker.server.controllers import ControllerNodeService, ControllerSettings
from tests.doubles.memory_log import MemoryLog
from tests.waiting import wait_until_async


class Standing:
    """A client of a coordinator that has stopped in the middle of an answer."""

    made: list[Standing]

    def __init__(self, *_: object, partition: int, **__: object) -> None:
        self.partition = partition
        self.led_by: list[int] = []
        self.made.append(self)

    async def call(self, _: object) -> None:
        await asyncio.Event().wait()

    def note_leader(self, node_id: int) -> None:
        self.led_by.append(node_id)

    async def close(self) -> None: ...


class Host:
    """A node with two logs, each led by somebody."""

    cluster_id, node_id = "cluster", 1

    def __init__(self) -> None:
        self.leaders: dict[int, int | None] = {0: None, 1: 2}
        loop = asyncio.get_running_loop()
        self.call_soon, self.call_later = loop.call_soon, loop.call_later

    def log(self, topic: str, partition: int) -> Any:
        assert topic == "__diskless-metadata"
        known = partition in self.leaders
        return SimpleNamespace(leader_id=self.leaders[partition]) if known else None

    def host(self, *_: object) -> None: ...


def test_a_coordinator_call_that_waits_at_a_hung_leader_is_repeated_at_the_new_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A coordinator's leader that stands still closes nothing: topics that are created would wait
    for the end of an attempt, seconds after others have elected another."""

    async def story() -> None:
        host: Any = Host()
        settings = ControllerSettings(
            controller=ControllerConfig(cluster_id="cluster", tick_interval_ms=1),
            endpoints={9: ("127.0.0.1", 9)},
        )
        node_service = ControllerNodeService(host, settings)
        events: Any = SimpleNamespace(on_applied=print, on_start=print, on_stop=print)
        node_service.begin_cluster(host, MemoryLog("__cluster_metadata-0"), events)
        for coordinator in (0, 1, 2):  # the last one's log has not begun here
            node_service._calls.log_starts(coordinator, [], print)
        await asyncio.sleep(0)
        first, second, third = Standing.made
        await wait_until_async(lambda: second.led_by, "the second is told of its leader")
        assert first.led_by == []
        host.leaders[0] = 3
        await wait_until_async(lambda: first.led_by, "the first is told of its leader")
        assert (set(first.led_by), set(second.led_by), third.led_by) == ({3}, {2}, [])
        await node_service.end("__cluster_metadata", 0)

    Standing.made = []
    monkeypatch.setattr(controllers, "CoordinatorClient", Standing)
    asyncio.run(story())
