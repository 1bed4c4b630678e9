"""Hypothesis plays the storm: short scripts, which it shrinks by itself.

A hundred times slower than drawing schedules from seeds, so it is not for volume: it is for the
script of five lines that it leaves when something breaks.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from raft.core.events import Resign
from snapshot.log_start import LogStartSettings
from snapshot.policy import SnapshotSettings
from tests.simulation.cluster import Cluster
from tests.simulation.machine import Machine, Snapshots
from tests.simulation.plan import Plan
from tests.simulation.run import quiet
from tests.simulation.world import MS, SECOND

pytestmark = pytest.mark.slow

NODES = st.integers(0, 2)
EAGER = Snapshots(
    policy=SnapshotSettings(min_changed_ratio=0.0, max_bytes_between=600, max_interval_ms=500),
    log_start=LogStartSettings(live_ms=500, max_lag_ms=500, max_retention_bytes=5_000),
)
"""Whoever is away for half a second comes back to a log that begins later."""


class Storm(RuleBasedStateMachine):
    """Three nodes; every rule is a fault, or lets time pass. The checker looks at every step."""

    @initialize(seed=st.integers(0, 1 << 16))
    def begin(self, seed: int) -> None:
        plan = Plan(
            seed=seed,
            pause_us=15 * MS,
            election_timeout_ms=500,
            segment_bytes=4096,
            snapshots=EAGER,
            piece_bytes=300,
        )
        with quiet():
            self.cluster = Cluster(plan)
            self.cluster.start()
            self.cluster.world.run(2 * SECOND)

    def machine(self, node: int) -> Machine:
        return self.cluster.machines[node]

    @rule(for_ms=st.sampled_from((1, 10, 100, 600, 1500)))
    def time_passes(self, for_ms: int) -> None:
        with quiet():
            self.cluster.world.run(self.cluster.world.now_us + for_ms * MS)

    @rule(node=NODES, after=st.integers(0, 5))
    def a_process_is_killed(self, node: int, after: int) -> None:
        self.machine(node).killed_after = after

    @rule(node=NODES, after=st.integers(0, 5))
    def the_power_fails(self, node: int, after: int) -> None:
        self.machine(node).power_after = after

    @rule()
    def the_power_fails_everywhere(self) -> None:
        for machine in self.cluster.machines:
            machine.power_off()

    @rule(one=NODES, other=NODES)
    def a_link_is_cut_one_way(self, one: int, other: int) -> None:
        self.cluster.network.cut.add((one + 1, other + 1))

    @precondition(lambda self: self.cluster.network.cut)
    @rule()
    def the_network_is_mended(self) -> None:
        self.cluster.network.cut.clear()

    @rule(node=NODES)
    def a_process_stops_or_goes_on(self, node: int) -> None:
        process = self.machine(node).process
        if process is not None:
            with quiet():
                (process.resume if process.paused else process.pause)()

    @rule(node=NODES, name=st.sampled_from((".log", "quorum-state", "recovery-point")))
    def a_flush_will_fail(self, node: int, name: str) -> None:
        self.machine(node).disk.fail_next("fdatasync", name=name)

    @rule(node=NODES)
    def a_leader_is_asked_to_resign(self, node: int) -> None:
        process = self.machine(node).process
        if process is not None:
            process.handle(Resign())

    @rule()
    def everybody_is_asked_for_a_checkpoint(self) -> None:
        with quiet():
            self.cluster.ask_for_checkpoints()

    @rule(node=NODES, steps=st.integers(0, 20))
    def the_power_fails_in_a_change_of_the_disk(self, node: int, steps: int) -> None:
        disk = self.machine(node).disk
        disk.power_loss_at = disk.steps + steps

    @rule(node=NODES, room=st.integers(0, 2000))
    def a_disk_is_full_or_not(self, node: int, room: int) -> None:
        disk = self.machine(node).disk
        disk.capacity_bytes = None if disk.capacity_bytes else disk.used_bytes + room

    def teardown(self) -> None:
        """However it was left, it gets up again and has lost nothing."""
        if hasattr(self, "cluster"):
            with quiet():
                self.cluster.heal()
                self.cluster.see_progress()
                self.cluster.see_all_catch_up()
                self.cluster.audit()


TestScripts = Storm.TestCase
TestScripts.settings = settings(
    max_examples=60,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
