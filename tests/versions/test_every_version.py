"""Whatever is announced is answered, at every version, and the connection lives. Invariant 10.

Two whole nodes are asked everything that they announce: clients' listener, the quorum's leader and
its follower; each api key at each version, with what is realistic and with what is merely possible.
An answer has to be there, to be read by us and by kio, and the next request comes over the same
connection. What an answer's version cannot carry must not be in it: an encoder that refuses has
ended whole nodes.

Source: KIP-35 (what is announced is served); docs/design/invariants.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
from msgspec import structs

from coordinator.controller.client import error_codes
from diskless.produce import service as produce
from raft.net import NetError
from records.errors import RecordError
from records.rpc import API
from records.rpc.base import Request
from tests.versions.nodes import BROKER, FOLLOWER, LEADER, LISTENERS, MisreadError, Nodes
from tests.versions.requests import REALISTIC, set_up
from tests.versions.scene import Scene
from tests.versions.shapes import at_version, bare, filled

pytestmark = pytest.mark.slow

PRODUCE = 0
WITHOUT_MESSAGES = {(BROKER, PRODUCE): range(3)}  # refused: tests/diskless/test_dispatch.py

SECURITY = {17: 1, 36: 2, 29: 3, 30: 3, 31: 3, 38: 3, 39: 2, 40: 2, 41: 3, 49: 1}
"""Requests that a cluster without security refuses: the last version by api key."""

REFUSED = {
    **{
        (key, version): "there is no security"
        for key, last in SECURITY.items()
        for version in range(last + 1)
    },
    **{(45, version): "no replica moves" for version in range(2)},
    (64, 0): "the broker that has just registered has a session",
    (65, 0): "there are no transactions",
    (11, 4): "who joins gets a member id first, and nobody is static yet",
    (60, 0): "nobody can ask a controller for controllers yet",
    (1107, 0): "only the controller takes partitions away from a coordinator",
    (1108, 0): "coordinators enforce retention by themselves unless a topic says otherwise",
    (1125, 0): "the request before it has removed the group",
    **{
        (key, version): "the cluster has no transactions"
        for key, versions in {24: 4, 25: 5, 26: 6, 28: 6}.items()
        for version in range(versions)
    },
    (1126, 0): "the cluster is below the level of transactions",
    (1127, 0): "the cluster is below the level of transactions",
    (1130, 0): "the cluster is below the level of transactions",
    **{(key, 0): "the cluster has no transaction log" for key in range(1140, 1147)},
}
"""Api key and version: where the realistic requests meet nothing but refusals."""


@dataclass
class Heard:
    """What one listener answered."""

    announced: dict[int, range]
    problems: list[str] = field(default_factory=list)
    codes: dict[tuple[int, int], set[int]] = field(default_factory=dict)  # by key and version


def requests_of(scene: Scene, key: int) -> Iterator[tuple[str, Request]]:
    """What is asked of a listener at a version, by what it is."""
    kind, version = API[key].request, scene.version
    possible = {
        "bare": bare(kind),
        "filled": filled(kind, version),
        "nulls": filled(kind, version, nulls=True),
    }
    for name, request in possible.items():
        if key == PRODUCE:  # acks=0 gets no answer
            request = structs.replace(request, acks=-1)  # type: ignore[type-var]
        yield name, at_version(request, version)
    if key in REALISTIC:
        for number, request in enumerate(REALISTIC[key](scene)):
            yield f"realistic {number}", at_version(request, version)


async def hear(nodes: Nodes, scene: Scene) -> Heard:
    """Ask one listener everything."""
    heard = Heard(await nodes.announced(scene.listener))
    for key, versions in heard.announced.items():
        for version in versions:
            if version in WITHOUT_MESSAGES.get((scene.listener, key), ()):
                continue
            here = replace(scene, version=version)
            for what, request in requests_of(here, key):
                title = f"{type(request).__name__} v{version} ({what})"
                try:
                    answer = await nodes.ask(scene.listener, request, version)
                except (NetError, RecordError, MisreadError) as error:
                    heard.problems.append(f"{title}: {error}")
                else:
                    if what not in ("bare", "filled", "nulls"):
                        heard.codes.setdefault((key, version), set()).update(error_codes(answer))
                if nodes.dead():
                    heard.problems.append(f"{title} ended a node: {nodes.dead()}")
                    return heard
    await nodes.announced(scene.listener)  # the last one's connection lives, too
    return heard


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Heard]:
    """All of them, by listener."""

    async def main() -> dict[str, Heard]:
        async with Nodes(tmp_path_factory.mktemp("nodes")) as nodes:
            scene = await set_up(nodes)
            return {one: await hear(nodes, replace(scene, listener=one)) for one in LISTENERS}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            produce, "TOPIC_WAIT_S", 0.01
        )  # how long topics by unknown ids are waited for
        return asyncio.run(main())


@pytest.mark.parametrize("listener", LISTENERS)
def test_a_broker_answers_every_announced_version_of_every_api(
    answers: dict[str, Heard], listener: str
) -> None:
    heard = answers[listener]
    assert not heard.problems, "\n".join(heard.problems)


@pytest.mark.parametrize("listener", LISTENERS)
def test_the_version_tests_have_a_realistic_request_for_every_announced_api(
    answers: dict[str, Heard], listener: str
) -> None:
    missing = {API[key].request.__name__ for key in answers[listener].announced} - {
        API[key].request.__name__ for key in REALISTIC
    }
    assert not missing, f"{missing}: say in tests/versions/requests.py what is really asked"


@pytest.mark.parametrize("listeners", [(BROKER,), (LEADER, FOLLOWER)])  # each leads some groups
def test_a_broker_accepts_a_realistic_request_at_each_api_version(
    answers: dict[str, Heard], listeners: tuple[str, ...]
) -> None:
    codes: dict[tuple[int, int], set[int]] = {}
    for listener in listeners:
        for case, some in answers[listener].codes.items():
            codes.setdefault(case, set()).update(some)
    refused = [
        f"{API[key].request.__name__} v{version}: {sorted(found)}"
        for (key, version), found in codes.items()
        if 0 not in found and (key, version) not in REFUSED
    ]
    assert not refused, "\n".join(refused)
