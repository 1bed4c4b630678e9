"""A failing schedule made smaller: fewer faults, a shorter storm, then the same failure.

Faults are data and each concern draws from a stream of its own, so leaving a fault out changes what
follows only as far as it must. This is delta debugging (Zeller and Hildebrandt, 2002) on the list
of faults, with a limit on the number of runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tests.simulation.plan import Fault, Plan

MAX_RUNS: Final = 200


def shrink(plan: Plan, fails: Callable[[Plan], bool], *, max_runs: int = MAX_RUNS) -> Plan:
    """A plan with no more faults than `plan` that still fails, after at most `max_runs` runs."""
    runs = 0

    def still(candidate: Plan) -> bool:
        nonlocal runs
        runs += 1
        return runs <= max_runs and fails(candidate)

    faults, size = plan.faults, max(1, len(plan.faults) // 2)
    while faults:
        kept = _without_one_piece(plan, faults, size, still)
        if kept is not None:
            faults = kept
            size = max(1, min(size, len(faults) // 2))
        elif size == 1:
            break
        else:
            size //= 2
    smaller = replace(plan, faults=faults)
    for simple in ({"observers": 0}, {"clock_ppm": ()}, {"wire": False}, {"ambush_one_in": 0}):
        candidate = replace(smaller, **simple)  # type: ignore[arg-type]
        if candidate != smaller and still(candidate):
            smaller = candidate
    return smaller


def _without_one_piece(
    plan: Plan, faults: tuple[Fault, ...], size: int, still: Callable[[Plan], bool]
) -> tuple[Fault, ...] | None:
    """The faults without the first piece of `size` that is not needed for the failure."""
    for start in range(0, len(faults), size):
        kept = faults[:start] + faults[start + size :]
        if still(replace(plan, faults=kept)):
            return kept
    return None
