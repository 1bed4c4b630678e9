"""A broker answers at every version, too, what it cannot know, or who else has to be asked.

Such errors are made elsewhere than answers, and have to fit the same versions. Two brokers, of
which each has some of the groups; and one that reaches nobody.

Source: invariant 10 (docs/design/invariants.md).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from coordinator.controller.client import error_codes
from diskless import broker as broker_module
from diskless.apis import auto_creation
from diskless.produce import service as produce
from raft.net import NetError, connect
from records.errors import RecordError
from tests.diskless import cluster_world
from tests.diskless.broker_world import running_broker
from tests.diskless.cluster_world import ClusterWorld
from tests.versions.nodes import BROKER, MisreadError, exchange
from tests.versions.requests import REALISTIC
from tests.versions.scene import Scene
from tests.versions.shapes import at_version
from tests.versions.test_every_version import WITHOUT_MESSAGES

pytestmark = pytest.mark.slow

QUICK: dict[str, Any] = {"group_initial_rebalance_delay_ms": 0, "offsets_commit_timeout_ms": 1}
JOIN = (11, 2)  # of a group that is there elsewhere; here it would wait for its members
ELSEWHERE = {55}  # DescribeQuorum: this world has no quorum; test_every_version.py
OTHER_BROKER = 2  # has half of the groups


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for who is not there."""
    monkeypatch.setattr(cluster_world, "UNREACHABLE_S", 0.001)
    monkeypatch.setattr(produce, "TOPIC_WAIT_S", 0.001)
    monkeypatch.setattr(auto_creation, "WAIT_S", 0.001)
    monkeypatch.setattr(broker_module, "LEAVE_S", 0.1)
    monkeypatch.setattr(broker_module, "WRITE_S", 0.1)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("cut_off", [False, True])
def test_a_broker_without_a_quorum_answers_every_version_of_every_api(cut_off: bool) -> None:
    problems: list[str] = []
    codes: set[int] = set()

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, c: problems.append(str(c)))
        async with (
            ClusterWorld(brokers=(OTHER_BROKER,)) as world,
            running_broker(world, **QUICK) as broker,
        ):
            topic = await world.create("t", 2)
            scene = Scene(listener=BROKER, version=0, leader_epoch=0, topic_id=topic.topic_id)
            world.controller_away = world.groups_away = world.leaders[0].away = cut_off
            connection = await connect("127.0.0.1", broker.listeners["PLAIN"].port)
            for key, served in broker.dispatchers["PLAIN"].served.items():
                for version in range(served.lowest, served.highest + 1):
                    if key in ELSEWHERE or version in WITHOUT_MESSAGES.get((BROKER, key), ()):
                        continue
                    for number, asked in enumerate(REALISTIC[key](replace(scene, version=version))):
                        if (key, number) == JOIN:
                            continue
                        request = at_version(asked, version)
                        try:
                            answer = await exchange(connection, request, version)
                            codes.update(error_codes(answer))
                        except (NetError, RecordError, MisreadError) as error:
                            problems.append(f"{type(asked).__name__} v{version} {number}: {error}")
            connection.close()
            world.controller_away = world.groups_away = world.leaders[0].away = False

    asyncio.run(main())
    assert not problems, "\n".join(problems)
    assert ({15, 16} if cut_off else {16}) <= codes
