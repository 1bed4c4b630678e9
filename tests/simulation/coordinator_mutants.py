"""Deliberate bugs of batch coordinators, each found by a schedule; see `tests.simulation.mutants`.

What `tests.coordinator.batch.mutants` patches for its stories is patched here for as long as a
schedule runs. Each has weather that suits it.

Source: docs/design/state-machines.md#every-answer-waits,
docs/design/state-machines.md#a-new-leader-decides-nothing,
docs/design/batch-coordinator.md#object-leases, docs/design/state-machines.md#time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final
from unittest.mock import patch

from coordinator.batch.decide import Context
from coordinator.batch.leader import Leader
from coordinator.proposer import Proposer
from raft.core.quorum import Quorum
from snapshot.log_start import LogStartSettings
from snapshot.policy import SnapshotSettings
from tests.coordinator.batch import mutants
from tests.raft.core.mutants import with_part
from tests.simulation.cluster import Production
from tests.simulation.coordinator_cluster import (
    CoordinatorPlan,
    draw_coordinators,
    run_plan,
    with_clock_steps,
)
from tests.simulation.coordinators import SeveralBatches
from tests.simulation.machine import Snapshots
from tests.simulation.mutants import ReadAlone
from tests.simulation.plan import LEADER, Fault
from tests.simulation.world import MS, SECOND

Suited = Callable[[CoordinatorPlan], CoordinatorPlan]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A bug, faults that bring it out, and a schedule that kills it."""

    name: str
    patched: Callable[[], AbstractContextManager[Any]] = nullcontext
    quorum: type[Quorum] = Quorum
    pinned: int
    suited: Suited = lambda plan: plan

    def survive(self, seed: int, quorum: type[Quorum] = Quorum) -> None:
        """Run the production code in the same schedule."""
        production = Production(quorum=quorum, host=SeveralBatches)
        run_plan(self.suited(draw_coordinators(seed, sqlite=False)), production)

    def kill(self, seed: int) -> str | None:
        """Run the mutant; returns the failure that found it, or None."""
        try:
            with self.patched():
                self.survive(seed, self.quorum)
        except (AssertionError, KeyError) as error:
            return f"{type(error).__name__}: {error}"[:200]
        return None


@contextmanager
def delays_on_the_wall_clock() -> Iterator[None]:
    """A leader whose clock is ahead finds every mark old."""

    def context(self: Leader, now_ms: int) -> Context:
        return Context(now_ms, now_ms, 0, now_ms, self._view, self._settings)

    with patch.object(Leader, "_context", context):
        yield


@contextmanager
def answers_when_accepted() -> Iterator[None]:
    """An answer does not wait for the high watermark."""
    accepted = Proposer._accepted

    def hasty(self: Proposer, proposal: Any) -> None:
        if proposal is self._undetermined and proposal is not None:
            self._high_watermark = max(self._high_watermark, proposal.end_offset)
        accepted(self, proposal)

    with patch.object(Proposer, "_accepted", hasty):
        yield


def _leaders_die(plan: CoordinatorPlan) -> CoordinatorPlan:
    """Isolate, kill and pause leaders, one after the other."""
    kinds = ("isolate", "kill", "pause", "isolate", "power")
    faults = tuple(
        Fault(at, kinds[i % len(kinds)], LEADER, i, 1500 * MS, i)
        for i, at in enumerate(range(2 * SECOND, 7 * SECOND, 700 * MS))
    )
    return replace(
        plan,
        voters=3,
        observers=0,
        clock_ppm=(),
        faults=faults,
        storm_us=8 * SECOND,
        election_timeout_ms=500,
        broker_pause_us=15 * MS,
        ambush_one_in=0,
    )


def _cut_off(plan: CoordinatorPlan) -> CoordinatorPlan:
    """Cut leaders off, which go on getting requests after they were replaced."""
    faults = tuple(
        Fault(at, "isolate", LEADER, 0, 2500 * MS, 0)
        for at in range(2 * SECOND, 9 * SECOND, 1500 * MS)
    )
    return replace(_leaders_die(plan), voters=5, faults=faults, storm_us=10 * SECOND)


def _often_loaded(plan: CoordinatorPlan) -> CoordinatorPlan:
    """Kill leaders often; restarted ones load a checkpoint."""
    snapshots = Snapshots(
        policy=SnapshotSettings(min_changed_ratio=0.0, max_bytes_between=4000, max_interval_ms=500),
        log_start=LogStartSettings(live_ms=300, max_lag_ms=500, max_retention_bytes=10_000),
    )
    return replace(_leaders_die(plan), snapshots=snapshots, piece_bytes=100_000)


def _late(plan: CoordinatorPlan, kind: str) -> CoordinatorPlan:
    """Deliver requests late that brokers had given up, over and over."""
    faults = tuple(
        Fault(at, kind, LEADER, 0, 1500 * MS, number)
        for number, at in enumerate(range(2 * SECOND, 7 * SECOND, 400 * MS))
    )
    return replace(
        plan, voters=1, observers=0, faults=faults, storm_us=8 * SECOND, broker_pause_us=15 * MS
    )


def _impatient(plan: CoordinatorPlan) -> CoordinatorPlan:
    """Deliver commits late that were given up."""
    return _late(plan, "stall broker")


def _restarted(plan: CoordinatorPlan) -> CoordinatorPlan:
    """Deliver commits late of a broker's former process."""
    return _late(plan, "restart stalled broker")


def _wrong_clocks(plan: CoordinatorPlan) -> CoordinatorPlan:
    """Change leaders quickly, with wall clocks minutes apart."""
    faults = tuple(
        Fault(at, "resign", LEADER, 0, 0, 0) for at in range(3 * SECOND, 7 * SECOND, 500 * MS)
    )
    return replace(_leaders_die(plan), faults=faults, clock_errors_ms=(0, 200_000, 400_000))


MUTANTS: Final = (
    Mutant(
        name="a duplicate is answered at once",
        patched=mutants.MUTANTS["a_duplicate_is_answered_at_once"],
        pinned=1,
        suited=_leaders_die,
    ),
    Mutant(
        name="answers are given when accepted",
        patched=answers_when_accepted,
        pinned=1,
        suited=_leaders_die,
    ),
    Mutant(
        name="inherited state is used too early",
        patched=mutants.MUTANTS["inherited_state_is_used_too_early"],
        pinned=1,
        suited=_leaders_die,
    ),
    Mutant(
        name="a lower object id is accepted after a higher",
        patched=mutants.MUTANTS["a_lower_object_id_is_accepted_after_a_higher"],
        pinned=1,
        suited=_impatient,
    ),
    Mutant(
        name="delete without delay after a leader change with a jumped clock",
        patched=delays_on_the_wall_clock,
        pinned=2,
        suited=_wrong_clocks,
    ),
    Mutant(
        name="deletion goes by the wall clock",
        patched=mutants.MUTANTS["deletion_goes_by_the_wall_clock"],
        pinned=1,
        suited=with_clock_steps,
    ),
    Mutant(
        name="every wall clock is believed at the start",
        patched=mutants.MUTANTS["every_wall_clock_is_believed_at_the_start"],
        pinned=20,
        suited=with_clock_steps,
    ),
    Mutant(
        name="answers are not in the checkpoint",
        patched=mutants.MUTANTS["answers_are_not_in_the_checkpoint"],
        pinned=1,
        suited=_often_loaded,
    ),
    Mutant(
        name="a stale broker epoch commits",
        patched=mutants.MUTANTS["a_stale_broker_epoch_commits"],
        pinned=1,
        suited=_restarted,
    ),
    Mutant(
        name="offsets are read without the round",
        quorum=with_part(ReadAlone),
        pinned=1,
        suited=_cut_off,
    ),
    Mutant(
        name="the sequence does not wrap",
        patched=mutants.MUTANTS["the_sequence_does_not_wrap"],
        pinned=1,
    ),
)
"""Every bug that must be found."""
