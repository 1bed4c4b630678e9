"""How fast does one broker act for groups, and how fast does their log decide?

    .venv/bin/python -m bench.bench_groups [--tiny]

All in one process and in memory (`tests.doubles.memory_log`), so it says what the code costs, not
what a quorum
and a network add: a commit in a real cluster waits for about one flush and two round trips more.
Heartbeats never leave the broker. Commits go through the log's leader, one request at a time for
each group; the second figure has many members of one group, whose commits travel together.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from time import perf_counter

from coordinator.groups.machine import GroupMachine
from records.rpc.group_log import AcquireGroupOwnershipRequest
from tests.coordinator.groups.world import (
    Consumer,
    World,
    commit_request,
    load,
    records_of,
    stable,
)

HEARTBEATS = 20_000
COMMITS = 2_000
MEMBERS_COMMITS = 2_000
CHECKPOINT_GROUPS = 5_000
if "--tiny" in sys.argv:
    HEARTBEATS = COMMITS = MEMBERS_COMMITS = CHECKPOINT_GROUPS = 50


def rate(what: str, count: int, begun: float) -> None:
    """Print a line with the operations per second and the microseconds per operation."""
    seconds = perf_counter() - begun
    print(f"{what:<46} {count / seconds:>10,.0f} /s  {seconds / count * 1e6:>7.1f} us")


def heartbeats() -> None:
    """Measure and print the heartbeats per second of one member of a consumer group."""
    world = World()
    one = Consumer(world)
    stable(world, one)
    request = one.beat_request()
    begun = perf_counter()
    for _ in range(HEARTBEATS):
        world.send(request)
    rate("heartbeats", HEARTBEATS, begun)


def commits() -> None:
    """Measure and print offset commits per second, one at a time and many at a time."""
    world = World()
    world.commit(None, 1)
    begun = perf_counter()
    for offset in range(COMMITS):
        world.commit(None, offset)
    rate("commits of one offset, one after the other", COMMITS, begun)
    world.holds = lambda _broker, _call: not world.held
    begun = perf_counter()
    tickets = [
        world.send(commit_request(None, offset), version=9) for offset in range(MEMBERS_COMMITS)
    ]
    world.holds = lambda _broker, _call: False
    broker, call = world.held.pop()
    world.deliver(broker, call, world.brokers[broker])
    world.run()
    assert all(ticket in world.answers for ticket in tickets)
    rate("commits that wait for one another", MEMBERS_COMMITS, begun)


def checkpoint() -> None:
    """Measure and print the encoding and loading of a checkpoint of many consumer groups."""
    world = World()
    for index in range(CHECKPOINT_GROUPS):
        request = AcquireGroupOwnershipRequest(
            group_id=f"group-{index}", broker_id=1, broker_epoch=1, create=True
        )
        world.groups.ask(request, lambda _: None)
        if index % 5_000 == 4_999:
            world.run()
    world.run()
    begun = perf_counter()
    values = records_of(world.machine)
    rate("records of a checkpoint written", len(values), begun)
    machine = GroupMachine()
    begun = perf_counter()
    load(machine, world.machine.applied, values)
    rate("records of a checkpoint loaded", len(values), begun)


if __name__ == "__main__":
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    print(f"commit {commit}, Python {sys.version.split()[0]}, {platform.machine()}")
    heartbeats()
    commits()
    checkpoint()
