"""Batch coordinators on the simulated quorum keep their promises, whoever dies.

`pytest tests/simulation/test_coordinators.py -k storm --seed 0x2f1c` runs one schedule.

Source: invariants 4-8 and 11 (docs/design/invariants.md).
"""

from __future__ import annotations

from typing import Final

import pytest

from tests.simulation.coordinator_cluster import draw_coordinators, run_plan, with_clock_steps
from tests.simulation.coordinator_mutants import MUTANTS, Mutant
from tests.simulation.coordinator_run import COMMAND, RARE, run_calm, run_many
from tests.simulation.run import quiet
from tests.simulation.world import Trace

pytestmark = pytest.mark.slow

CHUNKS: Final = 2
SCHEDULES: Final = 64
LEAST_ACKNOWLEDGED: Final = 4_000
CLOCK_SCHEDULES: Final = 3
MORE_SEEDS: Final = 60  # for a mutant whose pinned one no longer kills it


@pytest.mark.timeout(900)  # about 9 s each on an idle core
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_coordinators_lose_no_batch_in_a_storm_of_faults(
    chunk: int, request: pytest.FixtureRequest
) -> None:
    seed = request.config.getoption("seed", default=None)
    if seed is not None:
        if chunk == 0:
            run_calm(seed, COMMAND)
        return
    tally = run_many(range(chunk, SCHEDULES, CHUNKS), COMMAND)
    print(tally)
    assert tally.acknowledged >= LEAST_ACKNOWLEDGED // CHUNKS, "schedules became too short"
    never = [name for name in RARE if not tally.rare[name]]
    assert not never, f"never happened: {never}"


@pytest.mark.parametrize("seed", range(CLOCK_SCHEDULES))
def test_retention_deletes_no_record_younger_than_retention_ms_while_wall_clocks_jump(
    seed: int,
) -> None:
    with quiet():
        run_plan(with_clock_steps(draw_coordinators(seed, sqlite=False)))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_coordinator_simulation_finds_each_mutant_with_its_recorded_seed_or_a_larger_seed(
    mutant: Mutant,
) -> None:
    """By one pinned schedule, which the production code survives.

    Where a change of the code moved the schedule, one of the next seeds must do; then pin that one.
    """
    with quiet():
        mutant.survive(mutant.pinned)
        for seed in (mutant.pinned, *range(1, MORE_SEEDS)):
            found = mutant.kill(seed)
            if found is not None:
                print(f"{mutant.name}: seed {seed:#x} (pinned {mutant.pinned:#x}): {found}")
                return
    pytest.fail(f"{mutant.name}: lives; look for a seed with python -m tests.simulation --mutants")


@pytest.mark.parametrize("sqlite", [False, True], ids=["memory", "sqlite"])
def test_two_coordinator_simulations_with_the_same_seed_have_the_same_trace(sqlite: bool) -> None:
    traces = [Trace(), Trace()]
    with quiet():
        for trace in traces:
            run_plan(draw_coordinators(4, sqlite=sqlite), trace=trace)

    assert traces[0].digest == traces[1].digest
