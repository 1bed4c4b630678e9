"""A refused request writes nothing: the ends of all logs are the same before and after.

Every api that a listener announces is asked in its newest version: what is realistic, and the same
with one field set to a value that nobody sends in good faith. An answer that carries errors and no
success is a refusal. The refused requests, and no others, are then sent to a second cluster, where
nothing else moves the logs' ends.

Source: docs/design/hostile-input.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final
from uuid import UUID

import pytest
from msgspec import structs

from coordinator.batch.decide import clock
from coordinator.batch.maintenance import MAINTENANCE_INTERVAL_S
from coordinator.controller.client import error_codes
from coordinator.groups.timers import TimerKey
from coordinator.groups.timers import Timers as GroupTimers
from diskless.produce import service as produce
from raft.net import NetError
from records.errors import RecordError
from records.kafka_errors import ErrorCode
from records.rpc.base import Request
from records.rpc.quorum import DescribeQuorumRequest
from records.schema import ArrayOf, Message, StructOf
from tests.versions import nodes as cluster
from tests.versions.nodes import FOLLOWER, LEADER, LISTENERS, MisreadError, Nodes
from tests.versions.requests import REALISTIC, set_up
from tests.versions.scene import BENCH, METADATA, Scene
from tests.versions.shapes import at_version
from tests.waiting import Deadline

pytestmark = pytest.mark.slow

SEED: Final = 20_261_123
LOGS: Final = (METADATA, "__diskless-metadata", "__consumer_offsets", BENCH)
PATIENCE_S: Final = 0.3  # of one request; one that waits is not refused

LEFT_OUT: Final = {
    52: "votes move leaders (tests/raft/driver/test_hostile_epochs.py)",
    53: "as 52",
    54: "as 52",
    1094: "an object's refused batches are recorded: a retry gets the same answer",
    1111: "a checkpoint is no record",
}
WRITTEN: Final = {int(ErrorCode.MEMBER_ID_REQUIRED), int(ErrorCode.REQUEST_TIMED_OUT)}
"""Codes that are no refusal: the client goes on with what was created, or cannot know whether
it was created (a topic whose creation takes longer than the request allows)."""

BY_TIME: Final = {"adopt", "session", "join", "sync"}
"""Timers of groups that write without a request: the scan for groups without a broker, every half
minute; sessions of members; and rebalances that members do not finish, as of six groups here."""

NUMBERS: Final = (-1, -(2**31), 2**31 - 1, 2**63 - 1, 32_768)
STRINGS: Final = ("", "no such name!", "x" * 300, "nobody")
BYTES: Final = (b"", b"\xff" * 61)


def spoilt(message: Any, random: Random) -> Iterator[Any]:
    """Yield copies of a message with one field, at any depth, set to a hostile value."""
    for field in message.schema().fields:
        value = getattr(message, field.name)
        if isinstance(field.type, StructOf) and value is not None:
            for inner in spoilt(value, random):
                yield structs.replace(message, **{field.name: inner})
        elif isinstance(field.type, ArrayOf):
            if value:
                yield structs.replace(message, **{field.name: ()})
                yield structs.replace(message, **{field.name: (*value, *value)})
                if isinstance(value[0], Message):
                    for inner in spoilt(value[0], random):
                        yield structs.replace(message, **{field.name: (inner, *value[1:])})
        else:
            hostile = _hostile(value, random)
            if hostile is not None:
                yield structs.replace(message, **{field.name: hostile})


def _hostile(value: object, random: Random) -> object:
    match value:
        case bool():
            return None
        case int():
            return random.choice(NUMBERS)
        case str():
            return random.choice(STRINGS)
        case bytes() | memoryview():
            return random.choice(BYTES)
        case UUID():
            return UUID(int=random.choice((0, 1, 2**128 - 1)))
        case _:
            return None


async def ends(nodes: Nodes) -> dict[str, int]:
    """Return the end of each log at its leader; each must have one."""
    found = await ends_of_led_logs(nodes)
    assert len(found) == len(LOGS), f"a log without a leader: {found}"
    return found


async def ends_of_led_logs(nodes: Nodes) -> dict[str, int]:
    """Return the end of each log that has a leader, at its leader."""
    topic = DescribeQuorumRequest.TopicData
    partitions = (topic.PartitionData(partition_index=0),)
    found = {}
    for name in LOGS:
        request = DescribeQuorumRequest(topics=(topic(topic_name=name, partitions=partitions),))
        for node in (LEADER, FOLLOWER):
            answer = (await nodes.ask(node, request, 2)).topics[0].partitions[0]
            if not answer.error_code:
                own = (v for v in answer.current_voters if v.replica_id == answer.leader_id)
                found[name] = next(own).log_end_offset
    return found


async def ends_of_idle_logs(nodes: Nodes) -> dict[str, int]:
    """Return the logs' ends once each has a leader and stands still for longer than maintenance."""
    found, deadline = await ends_of_led_logs(nodes), Deadline("the logs have leaders, stand still")
    still_s = 0.0
    while still_s < 2 * MAINTENANCE_INTERVAL_S:
        pause_s = deadline.pause_s(found)
        await asyncio.sleep(pause_s)
        before, found = found, await ends_of_led_logs(nodes)
        still_s = still_s + pause_s if found == before and len(found) == len(LOGS) else 0.0
    return found


async def is_refused(nodes: Nodes, listener: str, request: Request, version: int) -> bool:
    """Send a request; return whether its answer has errors only."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            answer = await nodes.ask(listener, request, version)
    except (NetError, RecordError, MisreadError):
        return False
    except (OverflowError, ValueError, TypeError):  # no field can carry that value
        return False
    except TimeoutError:
        nodes.forget(listener)
        return False
    codes = error_codes(answer)
    for codes_name in ("commit_errors", "key_error_codes"):
        codes |= set(getattr(answer, codes_name, ()))
    return bool(codes) and 0 not in codes and not codes & WRITTEN


def requests_of(scene: Scene, key: int, variants: int) -> list[Request]:
    """Return what a listener is asked of an api, at random: the same of the same listener."""
    random = Random(f"{SEED} {scene.listener} {key}")
    realistic = REALISTIC[key](scene)
    requests = [each for request in realistic for each in (request, *spoilt(request, random))]
    indexes = random.sample(range(len(requests)), min(variants, len(requests)))
    return [at_version(requests[index], scene.version) for index in indexes]


Asked = tuple[str, int, int, int]
"""A listener, an api key, its version, and the index of a request of `requests_of`."""


async def refused_ones(nodes: Nodes, variants: int) -> AsyncIterator[Asked]:
    """Ask each listener of everything that it announces; yield what it refuses."""
    scene = await set_up(nodes)
    for listener in LISTENERS:
        for key, versions in (await nodes.announced(listener)).items():
            if key not in REALISTIC or key in LEFT_OUT:
                continue
            here = replace(scene, listener=listener, version=versions[-1])
            for index, request in enumerate(requests_of(here, key, variants)):
                if await is_refused(nodes, listener, request, here.version):
                    yield listener, key, here.version, index
                assert not nodes.dead(), f"{request} ended a node: {nodes.dead()}"


@pytest.mark.timeout(1_800)  # the soak asks 2,600 requests of two clusters
@pytest.mark.parametrize(
    ("variants", "at_least"), [(5, 250), pytest.param(10_000, 1_500, marks=pytest.mark.soak)]
)
def test_a_node_writes_no_log_record_for_a_refused_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variants: int, at_least: int
) -> None:
    monkeypatch.setattr(produce, "TOPIC_WAIT_S", 0.01)
    monkeypatch.setitem(cluster.QUICK, "metadata.max.idle.interval.ms", "0")
    monkeypatch.setattr(clock, "STAMP_INTERVAL_MS", 2**40)  # or a stamp is counted
    set_timer = GroupTimers.set

    def set_unless_by_time(timers: GroupTimers, key: TimerKey, at_ms: int) -> None:
        if key.kind not in BY_TIME:
            set_timer(timers, key, at_ms)

    monkeypatch.setattr(GroupTimers, "set", set_unless_by_time)

    async def main() -> tuple[int, list[str]]:
        async with Nodes(tmp_path / "asked") as nodes:
            asked = [one async for one in refused_ones(nodes, variants)]
        count, faults = 0, []
        async with Nodes(tmp_path / "counted") as nodes:  # where nothing else is going on
            scene = await set_up(nodes)
            before = await ends_of_idle_logs(nodes)
            for listener, key, version, index in asked:
                here = replace(scene, listener=listener, version=version)
                request = requests_of(here, key, variants)[index]
                refused = await is_refused(nodes, listener, request, version)
                after = await ends(nodes)
                count += refused
                if not refused and after != before:
                    after = await ends_of_idle_logs(nodes)  # a topic is created, or dismantled
                if refused and after != before:
                    faults.append(f"{listener}: {before} -> {after} by {request}")
                before = after
            assert not nodes.dead(), nodes.dead()
        return count, faults

    count, faults = asyncio.run(main())
    print(f"seed {SEED}: {count} refusals")
    assert not faults, "\n".join(faults[:20])
    assert count >= at_least
