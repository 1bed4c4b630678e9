"""What a seed stands for: the cluster's shape, the weather, and the faults, all drawn beforehand.

A plan is data. So a failing one can be run again with fewer faults until none can be left out
(`tests.simulation.shrink`), and a mutant can be given a plan made by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final, NamedTuple

from snapshot.log_start import LogStartSettings
from snapshot.policy import SnapshotSettings
from tests.simulation.machine import Snapshots
from tests.simulation.network import NetworkProfile
from tests.simulation.world import MS, SECOND, stream

LEADER: Final = -1
"""As a fault's target: whoever leads when the fault strikes, else the node in `other`."""


class Fault(NamedTuple):
    """Something bad, at a time. What `amount` means depends on the kind; see `cluster.FAULTS`."""

    at_us: int
    kind: str
    target: int
    other: int
    for_us: int
    amount: int


NO_SNAPSHOTS: Final = Snapshots(
    policy=SnapshotSettings(max_bytes_between=1 << 40, max_interval_ms=0),
    log_start=LogStartSettings(),
)
"""Logs grow for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One schedule. Times in microseconds where the name does not say otherwise."""

    seed: int
    voters: int = 3
    observers: int = 0
    faults: tuple[Fault, ...] = ()
    storm_us: int = 8 * SECOND  # how long faults go on
    pause_us: int = 20 * MS  # between a client's operations, on average
    election_timeout_ms: int = 1000
    clock_ppm: tuple[int, ...] = ()  # by node; 1,000,000 is right
    network: NetworkProfile = field(default_factory=NetworkProfile)
    flush_us: tuple[int, int] = (100, 400)  # least, spread
    segment_bytes: int = 1 << 20
    ambush_within: int = 6  # effects: how soon
    ambush_on: str = ""  # the one rare effect to ambush, by name; else all of `node.RARE`
    ambush_one_in: int = 0  # a process dies soon after this share of rare effects
    wire: bool = False  # messages travel as Kafka's bytes
    fetch_version: int = 18
    snapshots: Snapshots = NO_SNAPSHOTS
    piece_bytes: int = 512  # of a checkpoint, per FetchSnapshot
    daring: bool = False  # the power fails between changes of the disk that belong together
    heal_all: bool = True  # or only a majority of the intact voters

    @property
    def nodes(self) -> int:
        return self.voters + self.observers


KINDS: Final[dict[str, int]] = {
    "kill": 10,
    "power": 14,
    "power in a write": 8,
    "kill all": 1,
    "power all": 2,
    "pause": 8,
    "cut": 10,
    "one-way": 8,
    "isolate": 10,
    "split": 5,
    "flap": 6,
    "reset": 8,
    "failed flush": 5,
    "disk full": 3,
    "slow disk": 6,
    "clock jump": 4,
    "lose disk": 5,
    "damage": 3,
    "garble": 10,
    "interrupt": 12,
    "snapshot storm": 4,
    "resign": 3,
    "shutdown": 3,
}
"""Kinds of fault and how often each is drawn, out of the sum."""


def draw(seed: int) -> Plan:
    """The plan of a seed."""
    random = stream(seed, "plan")
    voters = random.choice((1, 2, 3, 3, 3, 3, 3, 4, 5, 5))
    observers = random.choice((0, 0, 0, 1, 2))
    nodes = voters + observers
    storm_us = random.randrange(4, 14) * SECOND
    intensity = random.choice((0.3, 0.6, 1.0, 1.0, 2.0))  # faults per second
    count = int(storm_us / SECOND * intensity) + 1
    drawn = [_draw_fault(random, nodes, storm_us) for _ in range(count)]
    faults = sorted([*drawn, *_draw_strangers(seed, nodes, storm_us)])
    return Plan(
        seed=seed,
        voters=voters,
        observers=observers,
        faults=tuple(faults),
        storm_us=storm_us,
        pause_us=random.choice((4, 8, 15, 40)) * MS,
        election_timeout_ms=random.choice((500, 1000, 1000)),
        clock_ppm=tuple(
            1_000_000 + random.choice((0, 0, random.randrange(-100_000, 100_001)))
            for _ in range(nodes)
        ),
        network=NetworkProfile(
            least_us=random.choice((30, 200, 2000)),
            spread_us=random.choice((200, 1000, 10_000)),
            slow_one_in=random.choice((0, 20, 100)),
            slow_us=random.choice((20, 200)) * MS,
            lost_one_in=random.choice((0, 0, 0, 50, 500)),
        ),
        flush_us=random.choice(((80, 200), (100, 3000), (1000, 20_000))),
        segment_bytes=random.choice((1 << 10, 1 << 12, 1 << 14, 1 << 20)),
        ambush_one_in=random.choice((0, 0, 30, 100)),
        wire=random.random() < 0.125,
        fetch_version=random.choice((18, 18, 17, 12)),
        heal_all=random.random() < 0.7,
        **_draw_snapshots(seed),
    )


CALM_PAUSE_US: Final = 100 * MS
DENSE_ONE_IN: Final = 26


def draw_calm(seed: int) -> Plan:
    """The plan of a seed with all of its faults, and, mostly, a client that waits.

    What a client appends between two faults is most of what a schedule costs and least of what it
    finds: so twice as many schedules fit into the same time.
    """
    plan = draw(seed)
    return plan if seed % DENSE_ONE_IN == 0 else calmed(plan)


def calmed(plan: Plan) -> Plan:
    """The same with fewer operations between faults."""
    return replace(plan, pause_us=max(plan.pause_us, CALM_PAUSE_US))


def _draw_snapshots(seed: int) -> dict[str, Any]:
    """When checkpoints are taken, logs cut, and how small the pieces are; a stream of its own."""
    random = stream(seed, "snapshots")
    if random.random() < 0.25:
        return {}
    policy = SnapshotSettings(
        min_changed_ratio=random.choice((0.0, 0.5, 0.9)),
        max_bytes_between=random.choice((400, 2_000, 8_000)),
        max_interval_ms=random.choice((0, 500, 3000)),
    )
    log_start = LogStartSettings(
        live_ms=random.choice((300, 1000, 3000)),
        max_lag_ms=random.choice((500, 3000, 60_000)),
        max_retention_bytes=random.choice((None, None, 3_000, 30_000)),
    )
    return {
        "snapshots": Snapshots(policy=policy, log_start=log_start),
        "daring": random.random() < 0.4,
        "piece_bytes": random.choice((60, 100, 300, 1000, 8000)),
    }


def _draw_strangers(seed: int, nodes: int, storm_us: int) -> list[Fault]:
    """In a quarter of the schedules, somebody who is no member sends requests; its own stream."""
    random = stream(seed, "strangers")
    count = random.choice((0, 0, 0, 0, 0, 0, 1, 2))
    return [_draw_fault(random, nodes, storm_us)._replace(kind="stranger") for _ in range(count)]


def _draw_fault(random: Random, nodes: int, storm_us: int) -> Fault:
    kind = random.choices(tuple(KINDS), weights=tuple(KINDS.values()))[0]
    other = random.randrange(nodes)
    return Fault(
        at_us=random.randrange(100 * MS, storm_us),
        kind=kind,
        target=LEADER if random.random() < 0.5 else random.randrange(nodes),
        other=other,
        for_us=int(random.choice((0.05, 0.3, 1.0, 2.5, 5.0)) * (0.5 + random.random()) * SECOND),
        amount=random.randrange(1 << 16),
    )
