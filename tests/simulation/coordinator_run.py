"""Running schedules of batch coordinators: one, many, and what to say when one fails."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from tests.simulation.cluster import Result
from tests.simulation.coordinator_cluster import (
    RARE,
    CoordinatorPlan,
    draw_calm_coordinators,
    draw_coordinators,
    run_plan,
)
from tests.simulation.run import SHRINK_SECONDS, ScheduleFailed, Tally, quiet, uncollected
from tests.simulation.shrink import shrink

COMMAND: Final = "pytest tests/simulation/test_coordinators.py -k storm"

__all__ = ["COMMAND", "RARE", "run_calm", "run_many", "run_one"]


def run_many(seeds: Iterable[int], command: str) -> Tally:
    """Run the calm schedules of these seeds. Raises ScheduleFailed with `command` and the seed."""
    tally, began = Tally(), time.process_time()
    with quiet():
        for seed in seeds:
            with uncollected():
                tally.add(run_calm(seed, command))
    tally.seconds = time.process_time() - began
    return tally


def run_one(seed: int, command: str) -> Result:
    """One schedule. Raises ScheduleFailed."""
    return _run(draw_coordinators(seed), command)


def run_calm(seed: int, command: str) -> Result:
    """One schedule as `make test` runs it. Raises ScheduleFailed."""
    return _run(draw_calm_coordinators(seed), command)


def _run(plan: CoordinatorPlan, command: str) -> Result:
    try:
        return run_plan(plan)
    except Exception as error:
        small = _shrunk(plan, error)
        faults = "\n".join(f"    {fault}" for fault in small.faults)
        raise ScheduleFailed(
            f"{error}\nreproduce: {command} --seed {plan.seed:#x}\n"
            f"shrunk from {len(plan.faults)} faults to {len(small.faults)}:\n{faults}\n"
            f"  {replace(small, faults=())}"
        ) from error


def _shrunk(plan: CoordinatorPlan, error: Exception) -> CoordinatorPlan:
    """The smallest plan found that fails in the same way."""
    kind, began = _kind(error), time.monotonic()

    def fails(candidate: object) -> bool:
        if time.monotonic() - began > SHRINK_SECONDS:
            return False
        assert isinstance(candidate, CoordinatorPlan)
        try:
            run_plan(candidate)
        except Exception as other:
            return _kind(other) == kind
        return False

    small = shrink(plan, fails)
    assert isinstance(small, CoordinatorPlan)
    return small


def _kind(error: Exception) -> str:
    """Failures are the same if their words are, numbers aside."""
    words = "".join(c for c in str(error) if not c.isdigit())
    return f"{type(error).__name__} {words[-60:]}"
