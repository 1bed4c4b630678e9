"""The quorum keeps its promises under every fault we can think of.

`pytest tests/simulation -k storm --seed 0x2f1c` runs one schedule; `python -m tests.simulation
--seed 0x2f1c --trace` shows it; `python -m tests.simulation --soak` runs until told to stop.

Source: invariants 1-3 and 11 (docs/design/invariants.md).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.simulation.cluster import Cluster, Production
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.plan import Fault, Plan, draw
from tests.simulation.run import RARE, ScheduleFailed, digest, quiet, run_calm, run_many
from tests.simulation.shrink import shrink
from tests.simulation.snapshot_mutants import SNAPSHOT_MUTANTS
from tests.simulation.world import MS, SECOND

CHUNKS: Final = 2  # for workers to share; each large enough to see every rare thing
SCHEDULES: Final = 156  # the mutants that chance finds at all, it finds in the first 33
LEAST_EVENTS: Final = 220_000
MORE_SEEDS: Final = 60  # for a mutant whose pinned one no longer kills it
STORM: Final = "pytest tests/simulation -k storm"


@pytest.mark.timeout(900)  # about 9 s each on an idle core
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_quorum_loses_no_record_and_makes_progress_in_a_storm_of_faults(
    chunk: int, request: pytest.FixtureRequest
) -> None:
    """Safety at every step; progress within ten election timeouts once a majority is healed."""
    seed = request.config.getoption("seed", default=None)
    if seed is not None:
        if chunk == 0:
            run_calm(seed, STORM)
        return
    tally = run_many(range(chunk, SCHEDULES, CHUNKS), STORM)
    print(tally)
    assert tally.events >= LEAST_EVENTS // CHUNKS, "schedules became too short to mean much"
    never = [name for name in RARE if not tally.rare[name]]
    assert not never, f"never happened: {never}"


@pytest.mark.parametrize("mutant", MUTANTS + SNAPSHOT_MUTANTS, ids=lambda mutant: mutant.name)
def test_the_raft_simulation_finds_each_mutant_with_its_pinned_or_a_later_seed(
    mutant: Mutant,
) -> None:
    """By one pinned schedule, which the production code survives.

    Where a change of the core moved the schedule, one of the next seeds must do; then pin that one.
    """
    with quiet():
        mutant.run(mutant.pinned, Production())
        for seed in (mutant.pinned, *range(1, MORE_SEEDS)):
            try:
                mutant.run(seed, mutant.production)
            except AssertionError as error:
                print(
                    f"{mutant.name}: killed by seed {seed:#x} (pinned {mutant.pinned:#x}): {error}"
                )
                return
    pytest.fail(f"{mutant.name}: lives; look for a seed with python -m tests.simulation --mutants")


@pytest.mark.parametrize("seed", [3, 12, 29])
def test_two_raft_simulations_with_the_same_seed_have_the_same_trace(seed: int) -> None:
    plan = draw(seed)

    assert digest(plan) == digest(plan)


def test_a_simulated_schedule_does_not_depend_on_pythons_hash_seed() -> None:
    """Sets of strings and the like are walked in another order by another Python process."""
    digests = {
        subprocess.run(
            [sys.executable, "-m", "tests.simulation", "--seed", "7", "--digest"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }

    assert len(digests) == 1, digests


def test_raft_simulations_with_different_seeds_have_different_traces() -> None:
    assert digest(draw(1)) != digest(draw(2))


def test_a_failed_simulation_prints_its_seed_and_the_command_that_repeats_the_simulation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: Cluster) -> None:
        raise AssertionError("as asked")

    monkeypatch.setattr(Cluster, "run", fail)

    with pytest.raises(ScheduleFailed, match=r"-k storm --seed 0x2f1c") as caught:
        run_calm(0x2F1C, STORM)
    assert isinstance(caught.value.__cause__, AssertionError)


def test_shrinking_a_simulated_fault_plan_keeps_only_the_faults_that_cause_the_failure() -> None:
    faults = tuple(Fault(i * MS, "kill", 0, 0, SECOND, i) for i in range(16))
    needed = {faults[3], faults[11]}

    small = shrink(Plan(seed=0, faults=faults), lambda plan: needed <= set(plan.faults))

    assert set(small.faults) == needed
