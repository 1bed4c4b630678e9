"""One schedule: a cluster is built from a plan, stormed upon, healed, and must move again.

First safety: while faults strike, the checker looks at every step. Then everything, or a majority
of the voters whose disks are intact, is healed, and a new append must be acknowledged within ten
election timeouts. At last every machine loses its power, and what its disk kept is read back by the
production code and compared with what was promised.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from raft.core.config import QuorumConfig
from raft.core.epoch_budget import BUDGET, MAX_EPOCH
from raft.core.events import Resign, Shutdown
from raft.core.quorum import Quorum
from raft.core.voters import VoterSet
from raft.segments.log import Log, LogConfig
from records.types import Epoch
from snapshot.host import MachineHost
from snapshot.store import SnapshotStore
from tests.raft.core.transcript import strangers_request
from tests.simulation.checks import Checker
from tests.simulation.client import Client
from tests.simulation.courier import DirectCourier, WireCourier
from tests.simulation.history import check_log
from tests.simulation.hosting import SmallBatches, WatchedMachine
from tests.simulation.machine import Machine, Shared
from tests.simulation.network import Network
from tests.simulation.node import RARE, Process
from tests.simulation.plan import LEADER, Fault, Plan
from tests.simulation.world import MS, SECOND, Trace, World, stream

INDEX_INTERVAL_BYTES: Final = 512
"""Less than production's: batches are tiny here, and each Fetch walks half of this in headers."""

CATCH_UP_US: Final = 60 * SECOND
"""Long enough for a checkpoint in pieces of some bytes; a cluster that is still costs little."""

STORM_PERIOD_US: Final = 10 * MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Production:
    """The classes under test; a mutant replaces one of them."""

    quorum: type[Quorum] = Quorum
    log: type[Log] = Log
    process: type[Process] = Process
    store: type[SnapshotStore] = SnapshotStore
    host: type[MachineHost] = SmallBatches
    state: type[WatchedMachine] = WatchedMachine


@dataclass(frozen=True, slots=True)
class Result:
    """What a green schedule has to tell."""

    events: int
    simulated_us: int
    committed: int
    acknowledged: int
    rare: Counter[str]


class Cluster:
    """See the module. `run` is the whole story; tests may call its parts."""

    def __init__(
        self, plan: Plan, production: Production | None = None, trace: Trace | None = None
    ) -> None:
        production = production or Production()
        self.plan = plan
        self.world = World(trace)
        self.network = Network(self.world, stream(plan.seed, "network"), plan.network)
        self.checker = Checker(range(1, plan.voters + 1))
        self.random = stream(plan.seed, "faults")
        self.healed = False
        self.well: list[Machine] = []  # who was healed
        self.shared = Shared(
            self.world,
            self.network,
            self.checker,
            WireCourier(plan.fetch_version) if plan.wire else DirectCourier(),
            VoterSet.of_ids(*range(1, plan.voters + 1)),
            QuorumConfig(
                election_timeout_ms=plan.election_timeout_ms,
                fetch_timeout_ms=2 * plan.election_timeout_ms,
                election_backoff_max_ms=plan.election_timeout_ms,
                request_timeout_ms=2 * plan.election_timeout_ms,
            ),
            LogConfig(segment_bytes=plan.segment_bytes, index_interval_bytes=INDEX_INTERVAL_BYTES),
            production.quorum,
            production.log,
            production.process,
            self._died,
            production.store,
            production.host,
            production.state,
            plan.snapshots,
            plan.piece_bytes,
            plan.daring,
            plan.ambush_one_in,
            plan.ambush_within,
            tuple(effect for effect in RARE if plan.ambush_on in effect.__name__),
            lambda: self.healed,
        )
        self.machines = [self._machine(node_id) for node_id in range(1, plan.nodes + 1)]
        self.client = Client(
            self.world, stream(plan.seed, "client"), self.checker, self.machines, plan.pause_us
        )

    def _machine(self, node_id: int) -> Machine:
        plan, random = self.plan, stream(self.plan.seed, "machine", node_id)
        ppm = plan.clock_ppm[node_id - 1] if plan.clock_ppm else 1_000_000
        start_us = random.randrange(1000 * SECOND)
        machine = Machine(node_id, self.shared, random, clock_ppm=ppm, clock_start_us=start_us)
        machine.flush_least_us, machine.flush_spread_us = plan.flush_us
        return machine

    # -- the story ---------------------------------------------------------------------------------

    def run(self) -> Result:
        """All of it. Raises AssertionError where something is not as it must be."""
        self.start()
        self.world.run(self.plan.storm_us)
        self.heal()
        self.see_progress()
        self.see_all_catch_up()
        self.audit()
        return self.result()

    def run_storm(self) -> Result:
        """Safety only: for whoever is not meant to get up again."""
        self.start()
        self.world.run(self.plan.storm_us)
        self.healed = True
        self.audit()
        return self.result()

    def result(self) -> Result:
        """What is to be told of it so far."""
        return Result(
            self.world.events,
            self.world.now_us,
            self.checker.committed.end,
            self.client.acknowledged_count,
            self.checker.rare,
        )

    def start(self) -> None:
        """All nodes start within a second; faults wait for their time."""
        for machine in self.machines:
            self.world.after(int(self.random.random() * SECOND), machine.start)
        for fault in self.plan.faults:
            self.world.at(fault.at_us, self._strike, fault)

    def heal(self) -> None:
        """The storm is over for all, or for a majority of intact voters; the rest stays away."""
        self.healed = True
        self.network.cut.clear()
        well = list(self.machines)
        if not self.plan.heal_all:
            intact = [m for m in self.machines[: self.plan.voters] if self._intact(m)]
            well = self.random.sample(intact, self.checker.majority)
        self.world.note("storm", f"is over for {well}")
        self.well = well
        for machine in self.machines:
            machine.mend()
            machine.flush_least_us, machine.flush_spread_us = self.plan.flush_us
            if machine not in well:
                machine.power_off()
                self.network.powered[machine.node_id] = False
            elif machine.process is None:
                machine.start()
            elif machine.process.paused:
                machine.process.resume()
        # A flush that began on a slow disk is slow to its end: only then is the disk healed, too.
        self.world.run(max(machine.disk_works_until_us for machine in well))

    def see_progress(self) -> None:
        """A commit within ten election timeouts."""
        healed_us = self.world.now_us
        limit_us = 10 * self.plan.election_timeout_ms * MS
        moved = self.world.run(
            healed_us + limit_us, lambda: self.client.newest_acknowledged_us > healed_us
        )
        assert moved, f"no progress {limit_us // MS} ms after healing: " + ", ".join(
            f"{m} {m.process.quorum.role}" for m in self.machines if m.process
        )

    def see_all_catch_up(self) -> None:
        """Once clients are still, whoever was healed gets everything, by log or by snapshot."""
        self.client.stop()
        limit_us = self.world.now_us + CATCH_UP_US
        assert self.world.run(limit_us, self._all_caught_up), "left behind: " + ", ".join(
            f"{m} {m.process.quorum.log} {m.process.state and m.process.state.applied}"
            for m in self.well
            if m.process
        )
        for machine in self.well:
            assert machine.process is not None
            self.checker.states.look(machine.process)

    def _all_caught_up(self) -> bool:
        end = self.checker.committed.end
        return all(
            machine.process is not None
            and machine.process.state is not None
            and machine.process.state.applied.offset >= end
            and machine.process.host is not None
            and machine.process.host.ready
            for machine in self.well
        )

    def audit(self) -> None:
        """Read every disk after a loss of power, and the whole history once more."""
        for machine in self.machines:
            machine.mend()
            machine.power_off()
        for machine in self.machines:
            if machine.damaged:
                self.checker.wiped(machine.node_id)
                continue
            log = self.shared.log_class.open(
                machine.disk, machine.directory, self.shared.log_config
            )
            self.checker.recovered(
                machine.node_id, log.log_start_offset, machine.stored(log), lost_power=False
            )
        end = self.checker.committed.end
        chain = self.checker.committed.chains[end]
        ledgers = self.checker.ledgers
        holders = [v for v in self.checker.voters if ledgers[v].chains.get(end) == chain]
        lost = [v for v in self.checker.voters if not self.checker.intact.get(v, True)]
        assert len({*holders, *lost}) >= self.checker.majority, (
            f"only {holders} kept all {end} committed, {lost} had lost their disks (invariant 2)"
        )
        check_log(self.client.history)

    # -- lives -------------------------------------------------------------------------------------

    def _died(self, machine: Machine) -> None:
        """Whatever stopped it, somebody starts it again."""
        if not self.healed:
            delay_us = int(
                self.random.choice((0.02, 0.2, 1.0, 3.0)) * self.random.random() * SECOND
            )
            if machine.must_stay_down_us:
                delay_us, machine.must_stay_down_us = machine.must_stay_down_us, 0
            self.world.after(delay_us, machine.start)
        elif self.network.powered[machine.node_id]:
            self.world.after(10 * MS, machine.start)

    def _intact(self, machine: Machine) -> bool:
        return self.checker.intact.get(machine.node_id, True)

    # -- faults ------------------------------------------------------------------------------------

    def _target(self, fault: Fault) -> Machine:
        if fault.target == LEADER:
            for machine in self.machines:
                if machine.process is not None and machine.process.lead_epoch is not None:
                    return machine
            return self.machines[fault.other % len(self.machines)]
        return self.machines[fault.target % len(self.machines)]  # a plan may have been made smaller

    def _strike(self, fault: Fault) -> None:
        machine = self._target(fault)
        self.world.note("storm", f"{fault.kind} at {machine}: {fault}")
        FAULTS[fault.kind](self, machine, fault)

    def _kill(self, machine: Machine, fault: Fault) -> None:
        """Now, or at one of the next effects."""
        if fault.amount % 3:
            machine.killed_after = fault.amount % 7
        else:
            machine.kill()

    def _power(self, machine: Machine, fault: Fault) -> None:
        if fault.amount % 3:
            machine.power_after = fault.amount % 7
        else:
            machine.power_off()

    def _power_in_a_write(self, machine: Machine, fault: Fault) -> None:
        machine.disk.power_loss_at = machine.disk.steps + fault.amount % 12

    def _kill_all(self, _: Machine, __: Fault) -> None:
        for machine in self.machines:
            machine.kill()

    def _power_all(self, _: Machine, __: Fault) -> None:
        for machine in self.machines:
            machine.power_off()

    def _pause(self, machine: Machine, fault: Fault) -> None:
        process = machine.process
        if process is not None and not process.paused:
            process.pause()
            self.world.after(fault.for_us, self._resume, process)

    def _resume(self, process: Process) -> None:
        if process.alive and process.paused:
            process.resume()

    def _ways(self, machine: Machine, fault: Fault) -> list[tuple[int, int]]:
        """What a fault of the network cuts: pairs of (from, to)."""
        here = machine.node_id
        others = [m.node_id for m in self.machines if m is not machine]
        if not others:
            return []
        there = others[fault.amount % len(others)]
        match fault.kind:
            case "one-way":
                return [(here, there)] if fault.amount % 2 else [(there, here)]
            case "isolate":
                return [way for other in others for way in ((here, other), (other, here))]
            case "split":
                side = [n for n in others if fault.amount >> n & 1]
                rest = [here, *(n for n in others if n not in side)]
                return [way for a in side for b in rest for way in ((a, b), (b, a))]
            case _:
                return [(here, there), (there, here)]

    def _cut(self, machine: Machine, fault: Fault) -> None:
        ways = self._ways(machine, fault)
        self.network.cut.update(ways)
        self.world.after(fault.for_us, self._mend, ways)

    def _mend(self, ways: list[tuple[int, int]]) -> None:
        self.network.cut.difference_update(ways)

    def _flap(self, machine: Machine, fault: Fault) -> None:
        """Cut and mended over and over."""
        ways = self._ways(machine, fault)
        period_us = (20 + fault.amount % 400) * MS
        for start_us in range(0, fault.for_us, 2 * period_us):
            self.world.after(start_us, self._cut_again, ways)
            self.world.after(start_us + period_us, self._mend, ways)

    def _cut_again(self, ways: list[tuple[int, int]]) -> None:
        if not self.healed:
            self.network.cut.update(ways)

    def _reset(self, machine: Machine, _: Fault) -> None:
        """Something between the nodes drops all its connections."""
        for connection in list(self.network.connections):
            if machine.process in (connection.client, connection.server):
                connection.abort()

    def _fail_flush(self, machine: Machine, fault: Fault) -> None:
        machine.disk.fail_next("fdatasync", name=("", ".log", "quorum-state")[fault.amount % 3])

    def _fill_disk(self, machine: Machine, fault: Fault) -> None:
        disk = machine.disk
        disk.capacity_bytes = disk.used_bytes + fault.amount % 2000
        self.world.after(fault.for_us, self._empty_disk, machine)

    def _empty_disk(self, machine: Machine) -> None:
        machine.disk.capacity_bytes = None

    def _slow_disk(self, machine: Machine, fault: Fault) -> None:
        machine.flush_spread_us = fault.amount * 5 * SECOND >> 16
        self.world.after(fault.for_us, self._quick_disk, machine)

    def _quick_disk(self, machine: Machine) -> None:
        machine.flush_spread_us = self.plan.flush_us[1]

    def _jump(self, machine: Machine, fault: Fault) -> None:
        machine.clock.jump(fault.for_us)
        if machine.process is not None:
            machine.process.clock_jumped()

    def _lose_disk(self, machine: Machine, fault: Fault) -> None:
        if self._may_lose(machine):
            machine.must_stay_down_us = self._replacing_us(fault)
            machine.lose_disk()

    def _replacing_us(self, fault: Fault) -> int:
        """How long it takes to put in another disk.

        With three voters any time will do. With five, a vote that the lost disk had just given
        could be given again while its candidate still asks the others: so it takes a while.
        """
        longest_us = 3 * self.plan.election_timeout_ms * MS
        return longest_us if self.plan.voters > 3 else 10 * MS + fault.amount * longest_us >> 16

    def _may_lose(self, machine: Machine) -> bool:
        """If a majority of intact voters remains, as invariant 2 asks."""
        voter = machine.node_id <= self.plan.voters
        intact = sum(map(self._intact, self.machines[: self.plan.voters]))
        if voter and (not self._intact(machine) or intact <= self.checker.majority):
            return False
        return machine.process is not None  # else somebody is about to start it

    def _damage(self, machine: Machine, fault: Fault) -> None:
        """The process is killed, and a bit of what its disk had promised to keep is wrong."""
        process = machine.process
        if process is None or not self._may_lose(machine):
            return
        safe = process.log.recovery_point
        promised = [
            place
            for place in machine.batches_on_disk()
            if process.log.log_start_offset < place[1].header.end_offset <= safe
        ]
        if promised:
            self.checker.damaged(machine.node_id)
            machine.damaged = True
            machine.kill()
            machine.flip_a_bit(*promised[fault.amount % len(promised)], fault.amount)

    def _garble(self, machine: Machine, fault: Fault) -> None:
        """It answers FetchSnapshot with something else, for a while."""
        machine.garbles_until_us = self.world.now_us + fault.for_us

    def _storm(self, _: Machine, fault: Fault) -> None:
        """Everybody is asked for checkpoints, over and over."""
        for after_us in range(0, fault.for_us, STORM_PERIOD_US):
            self.world.after(after_us, self.ask_for_checkpoints)

    def ask_for_checkpoints(self) -> None:
        """Of everything applied by now, from every node that runs."""
        for machine in self.machines:
            process = machine.process
            if process is not None and process.host is not None and not process.paused:
                process.job(process.host.take_now, lambda _: None)

    def _interrupt(self, _: Machine, fault: Fault) -> None:
        """Wait for a download that has begun, and hit it or whoever serves it."""
        under_way = [machine for machine in self.machines if self._downloads(machine)]
        if not under_way:
            if self.world.now_us < fault.at_us + 2 * SECOND and not self.healed:
                self.world.after(5 * MS, self._interrupt, _, fault)
            return
        machine = under_way[0]
        assert machine.process is not None
        self.world.note("storm", f"interrupts {machine}")
        match fault.amount % 6:
            case 0:
                machine.kill()
            case 1:
                machine.power_off()
            case 2:
                self._reset(machine, fault)
            case 3:
                self._fill_disk(machine, fault)
            case 4:
                self._cut(machine, fault._replace(kind="isolate"))
            case _:
                assert machine.process.fetching is not None
                self.machines[machine.process.fetching.effect.leader_id - 1].kill()

    @staticmethod
    def _downloads(machine: Machine) -> bool:
        """Is it in the middle of a download?"""
        fetching = machine.process.fetching if machine.process is not None else None
        return (
            fetching is not None
            and fetching.download is not None
            and fetching.download.position > 0
        )

    def _stranger(self, machine: Machine, fault: Fault) -> None:
        """Somebody who is no member sends requests in a voter's name, with epochs near and far."""
        voters = [voter for voter in self.shared.voters if voter != machine.node_id]
        process = machine.process
        if process is None or not voters:
            return
        random = stream(self.plan.seed, "stranger", fault.amount)
        for _ in range(fault.amount % 300):
            if not process.alive:
                return
            kind = random.choice(("vote", "vote", "pre-vote", "begin", "end"))
            near = random.randrange(1, BUDGET) if kind in ("vote", "pre-vote") else 1 << 20
            ahead = random.choice((near, 1 << 20, MAX_EPOCH))
            epoch = Epoch(min(process.quorum.epoch + ahead, MAX_EPOCH))
            self.checker.rare["requests of strangers"] += 1
            process.deliver_strangers_request(
                strangers_request(kind, random.choice(voters), epoch, process.quorum)
            )

    def _resign(self, machine: Machine, _: Fault) -> None:
        if machine.process is not None:
            machine.process.handle(Resign())

    def _shut_down(self, machine: Machine, _: Fault) -> None:
        if machine.process is not None:
            machine.process.handle(Shutdown())


FAULTS: Final[dict[str, Callable[[Cluster, Machine, Fault], None]]] = {
    "kill": Cluster._kill,
    "power": Cluster._power,
    "power in a write": Cluster._power_in_a_write,
    "kill all": Cluster._kill_all,
    "power all": Cluster._power_all,
    "pause": Cluster._pause,
    "cut": Cluster._cut,
    "one-way": Cluster._cut,
    "isolate": Cluster._cut,
    "split": Cluster._cut,
    "flap": Cluster._flap,
    "reset": Cluster._reset,
    "failed flush": Cluster._fail_flush,
    "disk full": Cluster._fill_disk,
    "slow disk": Cluster._slow_disk,
    "clock jump": Cluster._jump,
    "lose disk": Cluster._lose_disk,
    "damage": Cluster._damage,
    "garble": Cluster._garble,
    "interrupt": Cluster._interrupt,
    "snapshot storm": Cluster._storm,
    "stranger": Cluster._stranger,
    "resign": Cluster._resign,
    "shutdown": Cluster._shut_down,
}
