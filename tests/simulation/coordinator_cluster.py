"""One schedule of batch coordinators: a quorum, brokers, their clients, and everybody's bad luck.

The quorum, its faults and its checker are `tests.simulation.cluster`'s; what is appended is what
coordinators decide. To its faults come those of brokers and of wall clocks.

Source: docs/design/batch-coordinator.md, docs/design/invariants.md.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final
from uuid import UUID

from coordinator.batch.cluster_view import StaticView, TopicConfig
from coordinator.batch.settings import CoordinatorSettings
from coordinator.batch.steady_clock import NO_STAMP
from coordinator.errors import CoordinatorError
from coordinator.features import Features
from coordinator.persistent_map import Map
from records.features import ESKER_VERSION
from records.rpc.batch_coordinator import (
    DeleteDisklessRecordsRequest,
    DeleteDisklessTopicsRequest,
    InitDisklessTopicsRequest,
    ListDisklessOffsetsRequest,
)
from snapshot.log_start import LogStartSettings
from snapshot.policy import SnapshotSettings
from tests.coordinator.batch.subjects import KEYS, START_MS
from tests.simulation.callers import Caller
from tests.simulation.cluster import Cluster, Production, Result
from tests.simulation.coordinator_model import CoordinatorModel, Place
from tests.simulation.coordinators import CoordinatingProcess, Estate, SeveralBatches
from tests.simulation.machine import Machine, Snapshots
from tests.simulation.network import Connection, Network
from tests.simulation.plan import LEADER, NO_SNAPSHOTS, Fault, Plan, draw
from tests.simulation.uploaders import Stream, Uploader, topic
from tests.simulation.world import MS, SECOND, Trace, World, stream

PARTITIONS: Final = 2
TOPICS: Final = 3
OLD: Final = frozenset({0, 1})
"""Producers as old as the cluster: state of them can have expired, they begin near the wrap."""

LATEST: Final = -1
"""ListOffsets' timestamp that asks for the high watermark."""

SETTLE_US: Final = 60 * SECOND

SETTINGS: Final = CoordinatorSettings(
    keys=KEYS,
    file_delete_delay_ms=800,
    lease_timeout_ms=3000,
    answer_retention_ms=1500,
    tombstone_retention_ms=1500,
    maintenance_limit=20,
)

RARE: Final = (
    "duplicates answered",
    "retries given the first answer",
    "commits answered by a later leader",
    "leases refused",
    "leases expired",
    "leases closed by a newer epoch",
    "leases forgotten",
    "commits refused: OPERATION_NOT_ATTEMPTED",
    "commits refused: STALE_BROKER_EPOCH",
    "states loaded",
    "leaders changed in mid-commit",
    "leader changes",
    "sequences wrapped",
    "batches refused: 45",
    "objects fenced",
    "objects listed for deletion",
    "orphans listed for deletion",
    "checkpoints taken",
    "reads answered",
)
"""What must have happened in any run worth its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorPlan(Plan):
    """A plan of the quorum, and of its brokers."""

    brokers: int = 3
    broker_pause_us: int = 20 * MS
    streams: int = 8
    sqlite: bool = False
    clock_errors_ms: tuple[int, ...] = ()  # of wall clocks, by node
    retention_ms: int | None = None  # if given, records and clocks begin at true time


KINDS: Final = {
    "restart broker": 3,
    "restart stalled broker": 3,
    "cut broker": 3,
    "stall broker": 8,
    "reset broker": 3,
    "set clock": 3,
}


def draw_coordinators(seed: int, *, sqlite: bool | None = None) -> CoordinatorPlan:
    """The plan of a seed; one in eight keeps its states in SQLite."""
    plan, random = draw(seed), stream(seed, "coordinators")
    storm_us = min(plan.storm_us, random.randrange(3, 8) * SECOND)
    faults = [fault for fault in plan.faults if fault.at_us < storm_us]
    for _ in range(1 + int(storm_us / SECOND * random.choice((0.5, 2.0)))):
        kind = random.choices(tuple(KINDS), weights=tuple(KINDS.values()))[0]
        for_us = int(random.choice((0.3, 1.0, 3.0)) * SECOND)
        at_us = random.randrange(SECOND, storm_us)
        faults.append(Fault(at_us, kind, LEADER, 0, for_us, random.randrange(1 << 16)))
    fields = {name: getattr(plan, name) for name in plan.__dataclass_fields__}
    snapshots = plan.snapshots
    if snapshots is not NO_SNAPSHOTS:  # records are larger here than a test client's
        snapshots = Snapshots(
            policy=SnapshotSettings(
                min_changed_ratio=random.choice((0.0, 0.5)),
                max_bytes_between=random.choice((4_000, 20_000, 60_000)),
                max_interval_ms=random.choice((0, 3000)),
            ),
            log_start=LogStartSettings(
                live_ms=random.choice((300, 1000, 3000)),
                max_lag_ms=random.choice((500, 3000)),
                max_retention_bytes=random.choice((None, 10_000, 100_000)),
            ),
        )
    fields |= {
        "faults": tuple(sorted(faults)),
        "storm_us": storm_us,
        "snapshots": snapshots,
        "piece_bytes": random.choice((1000, 8000, 100_000)),
    }
    return CoordinatorPlan(
        **fields,
        brokers=random.choice((2, 3, 4)),
        broker_pause_us=random.choice((15, 30, 60)) * MS,
        streams=random.choice((6, 12)),
        sqlite=random.random() < 0.125 if sqlite is None else sqlite,
        clock_errors_ms=tuple(
            random.choice((0, random.randrange(-100_000, 100_000))) for _ in range(plan.nodes)
        ),
    )


CALM_FACTOR: Final = 2


def draw_calm_coordinators(seed: int) -> CoordinatorPlan:
    """The plan of a seed with all of its faults, and brokers that upload half as often."""
    plan = draw_coordinators(seed)
    return replace(plan, broker_pause_us=CALM_FACTOR * plan.broker_pause_us)


class Callers:
    """All who ask; it takes the place of `tests.simulation.client.Client`."""

    def __init__(
        self,
        world: World,
        network: Network,
        machines: list[Machine],
        model: CoordinatorModel,
        plan: CoordinatorPlan,
        rare: Counter[str],
    ) -> None:
        self.world = world
        self.network = network
        self.model = model
        self.rare = rare
        self.brokers = plan.brokers
        self.pause_us = plan.broker_pause_us
        self.places: list[Place] = [
            (topic(t), p) for t in range(1, TOPICS + 1) for p in range(PARTITIONS)
        ]
        self.created: set[UUID] = set()
        self.deleted_topics: set[UUID] = set()
        self.stopped = False
        self.acknowledged_count = 0
        self.newest_acknowledged_us = -1
        self.history: list[Any] = []
        self._machines = machines
        random = stream(plan.seed, "streams")
        self.streams = [
            Stream(
                number // 2,
                random.choice(self.places),
                random.randrange(plan.brokers),
                old=number // 2 in OLD,
            )
            for number in range(plan.streams)
        ]
        taken: set[tuple[int, Place]] = set()
        self.streams = [
            s
            for s in self.streams
            if (s.producer_id, s.place) not in taken and not taken.add((s.producer_id, s.place))  # type: ignore[func-returns-value]
        ]
        self.now_ms: Callable[[], int] | None = None  # true time, for timestamps
        if plan.retention_ms is not None:
            self.now_ms = lambda: START_MS + world.now_us // MS
        for each in self.streams:
            each.now_ms = self.now_ms
        self.uploaders = [
            Uploader(self, index, stream(plan.seed, "broker", index))
            for index in range(plan.brokers)
        ]
        self.controller = ControllerCaller(self, stream(plan.seed, "controller"))

    def stop(self) -> None:
        """Nothing new; what is under way is to be finished."""
        self.stopped = True

    def settled(self) -> bool:
        """Everything that was sent has its answer."""
        return all(u.idle() for u in self.uploaders) and not any(s.unanswered for s in self.streams)

    def choose(self, random: Random) -> int:
        """A node that thinks it leads, mostly."""
        leaders = [
            m.node_id for m in self._machines if m.process is not None and m.process.lead_epoch
        ]
        if leaders and random.random() < 0.9:
            return random.choice(leaders)
        return random.choice(self._machines).node_id

    def seems_to_lead(self, connection: Connection | None) -> bool:
        """Is it a connection to one that thinks so?"""
        process = connection.server if connection is not None else None
        return process is not None and process.alive and process.lead_epoch is not None


class ControllerCaller(Caller):
    """The controller, and people: topics come and go, old records are deleted."""

    def __init__(self, callers: Callers, random: Random) -> None:
        super().__init__(callers, 100, random)
        self._epoch = 1
        self._doomed = random.random() < 0.5
        self.world.after(1, self._act)

    def _act(self) -> None:
        random, callers = self.random, self.callers
        self.world.after(20 * MS + int(random.random() * 200 * MS), self._act)
        missing = [t for t in range(1, TOPICS + 1) if topic(t) not in callers.created]
        if missing:
            self._create(missing)
        elif callers.stopped:
            return
        elif self._doomed and self.world.now_us > 5 * SECOND:
            self._delete(topic(TOPICS))
        elif random.random() < 0.5:
            self._delete_records(random.choice(callers.places))
        else:
            self._read(random.choice(callers.places))

    def _create(self, numbers: list[int]) -> None:
        request = InitDisklessTopicsRequest(
            controller_epoch=self._epoch,
            topics=tuple(
                InitDisklessTopicsRequest.Topic(
                    topic_id=topic(n), topic_name=f"topic-{n}", num_partitions=PARTITIONS
                )
                for n in numbers
            ),
        )

        def answered(answer: Any) -> None:
            if self._refused(answer):
                return
            for told in answer.responses:
                assert not told.error_code, f"{request}: {answer}"
                assert told.topic_id in self.callers.model.state.topics, f"{told}: not committed"
                self.callers.created.add(told.topic_id)

        self.call(request, answered)

    def _delete(self, topic_id: UUID) -> None:
        request = DeleteDisklessTopicsRequest(controller_epoch=self._epoch, topic_ids=(topic_id,))
        self.callers.deleted_topics.add(topic_id)

        def answered(answer: Any) -> None:
            if not self._refused(answer):
                self._doomed = False
                self.callers.rare["topics deleted"] += 1

        self.call(request, answered)

    def _delete_records(self, place: Place) -> None:
        model = self.callers.model
        end = model.ends[place]
        offset = -1 if self.random.random() < 0.3 else self.random.randrange(end + 1)
        partition = DeleteDisklessRecordsRequest.Topic.Partition(
            partition_index=place[1], offset=offset
        )
        wanted = DeleteDisklessRecordsRequest.Topic(topic_id=place[0], partitions=(partition,))
        self.call(DeleteDisklessRecordsRequest(topics=(wanted,)), self._heard)

    def _read(self, place: Place) -> None:
        """The high watermark: nobody who asks later may see less than who was told before."""
        model = self.callers.model
        floor = model.told[place]
        partition = ListDisklessOffsetsRequest.Topic.Partition(
            partition_index=place[1], timestamp=LATEST
        )
        wanted = ListDisklessOffsetsRequest.Topic(topic_id=place[0], partitions=(partition,))

        def answered(answer: Any) -> None:
            if self._refused(answer):
                return
            told = answer.responses[0].partitions[0]
            if told.error_code:
                assert place[0] in self.callers.deleted_topics, f"{place}: {told}"
                return
            assert floor <= told.offset <= model.ends[place], (
                f"{place} ends at {told.offset}, says a read; {floor} was told before it began,"
                f" {model.ends[place]} is committed: not linearizable"
            )
            model.told[place] = max(model.told[place], told.offset)
            self.callers.rare["reads answered"] += 1

        self.call(ListDisklessOffsetsRequest(topics=(wanted,)), answered)

    def _heard(self, answer: Any) -> None:
        self._refused(answer)

    def _refused(self, answer: Any) -> bool:
        """No answer: look for another leader."""
        if answer is None or isinstance(answer, CoordinatorError):
            self.hang_up()
            return True
        return False


class _Anywhere(dict[bytes, int]):
    """Batches may be equal: two brokers say of the same objects that they are gone."""

    def __contains__(self, _: object) -> bool:
        return False


class CoordinatorCluster(Cluster):
    """See the module."""

    plan: CoordinatorPlan

    def __init__(
        self,
        plan: CoordinatorPlan,
        production: Production | None = None,
        trace: Trace | None = None,
        directory: Path | None = None,
    ) -> None:
        """
        Args:  directory: for databases, if the plan has any.
        """
        assert (directory is not None) == plan.sqlite, f"{directory} for {plan}"
        view = StaticView(
            default_config=TopicConfig(
                retention_ms=plan.retention_ms,
                retention_bytes=2000 if plan.retention_ms is None else None,
            ),
            handed_out_ms=dict.fromkeys(OLD),
            finalized=Features(Map[str, int]().set(ESKER_VERSION, 2)),
        )
        estate = Estate(SETTINGS, view, None, directory, plan.clock_ppm)  # type: ignore[arg-type]
        production = replace(
            production or Production(host=SeveralBatches),
            process=partial(CoordinatingProcess, estate),  # type: ignore[arg-type]
        )
        super().__init__(plan, production, trace)
        self.client.stop()
        self.estate, rare = estate, self.checker.rare
        estate.machines = tuple(self.machines)
        model = estate.model = CoordinatorModel(self.world, SETTINGS, rare, OLD)
        self.checker.states = model  # type: ignore[assignment]
        self.checker.places = _Anywhere()
        for node, error_ms in enumerate(plan.clock_errors_ms, 1):
            estate.wall_step_ms[node] = error_ms
        if plan.retention_ms is not None:
            model.retention_us = plan.retention_ms * MS
            for machine in self.machines:
                self._show(machine, 0)
        self.callers = Callers(self.world, self.network, self.machines, model, plan, rare)
        self.client = self.callers  # type: ignore[assignment]

    def see_all_catch_up(self) -> None:
        """First everything that was sent gets its answer."""
        self.callers.stop()
        limit_us = self.world.now_us + SETTLE_US
        assert self.world.run(limit_us, self.callers.settled), "without an answer: " + ", ".join(
            f"{s.producer_id} {s.place} {[x.batch for x in s.unanswered]}"
            for s in self.callers.streams
            if s.unanswered
        )
        self.estate.model.over = True
        super().see_all_catch_up()

    # -- faults --------------------------------------------------------------------------------

    def _strike(self, fault: Fault) -> None:
        strike = _FAULTS.get(fault.kind)
        if strike is None:
            super()._strike(fault)
        else:
            self.world.note("storm", fault)
            strike(self, self.callers.uploaders[fault.amount % self.plan.brokers], fault)

    def _restart_broker(self, uploader: Uploader, _: Fault) -> None:
        uploader.restart()

    def _cut_broker(self, uploader: Uploader, fault: Fault) -> None:
        """One way or both, between a broker and a node."""
        here, there = uploader.node_id, self._target(fault).node_id
        ways = [(here, there), (there, here)][fault.amount // 16 % 3 :] or [(there, here)]
        self.network.cut.update(ways)
        self.world.after(fault.for_us, self._mend, ways)

    def _reset_broker(self, uploader: Uploader, fault: Fault) -> None:
        if fault.amount & 64:
            uploader.hang_up()
        elif uploader.connection is not None:
            uploader.connection.abort()

    def _stall_broker(self, uploader: Uploader, fault: Fault) -> None:
        """What it sends is lost, and sent again later: perhaps after a newer connection's."""
        if uploader.connection is not None:
            uploader.connection.forward.stall(fault.for_us)

    def _restart_stalled_broker(self, uploader: Uploader, fault: Fault) -> None:
        """What an old life had sent arrives in the next one's."""
        self._stall_broker(uploader, fault)
        self.world.after(100 * MS, uploader.restart)

    def _set_clock(self, _: Uploader, fault: Fault) -> None:
        """Somebody sets a node's wall clock."""
        node = self._target(fault).node_id
        step_ms = (fault.amount - (1 << 15)) * 4
        self.estate.wall_step_ms[node] = self.estate.wall_step_ms.get(node, 0) + step_ms

    def _step_clock(self, _: Uploader, fault: Fault) -> None:
        """A node's wall clock is hours wrong, and no two are wrong alike; or it is right again."""
        if self.estate.model.state.counters.steady_ms == NO_STAMP:
            return  # a new cluster believes the clock it begins with
        machine = self._target(fault)
        hours = fault.amount % 19 - 9
        minutes = 10 * machine.node_id if hours else 0
        self._show(machine, (hours * 60 + minutes) * 60_000)

    def _show(self, machine: Machine, error_ms: int) -> None:
        """Set a node's wall clock to true time and an error."""
        ahead_ms = machine.clock.now_ms() - self.world.now_us // MS
        self.estate.wall_step_ms[machine.node_id] = error_ms - ahead_ms


_FAULTS: Final = {
    "step clock": CoordinatorCluster._step_clock,
    "restart broker": CoordinatorCluster._restart_broker,
    "restart stalled broker": CoordinatorCluster._restart_stalled_broker,
    "stall broker": CoordinatorCluster._stall_broker,
    "cut broker": CoordinatorCluster._cut_broker,
    "reset broker": CoordinatorCluster._reset_broker,
    "set clock": CoordinatorCluster._set_clock,
}


def with_clock_steps(plan: CoordinatorPlan) -> CoordinatorPlan:
    """The same plan with an hour's retention, and wall clocks that jump by hours."""
    random = stream(plan.seed, "clock steps")
    steps = [
        Fault(
            at_us, "step clock", random.choice((LEADER, 0, 1, 2)), 0, 0, random.randrange(1 << 16)
        )
        for at_us in range(SECOND, plan.storm_us, 300 * MS)
    ]
    faults = [fault for fault in plan.faults if fault.kind != "set clock"]
    return replace(
        plan,
        faults=tuple(sorted((*faults, *steps))),
        clock_errors_ms=(),
        retention_ms=3_600_000,
    )


def run_plan(
    plan: CoordinatorPlan, production: Production | None = None, trace: Trace | None = None
) -> Result:
    """The whole story of a plan."""
    if not plan.sqlite:
        return CoordinatorCluster(plan, production, trace).run()
    shared_memory = Path("/dev/shm")
    where = shared_memory if shared_memory.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="esker-simulation-", dir=where) as directory:
        return CoordinatorCluster(plan, production, trace, Path(directory)).run()
