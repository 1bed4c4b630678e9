"""Fresh schedules of the simulated quorum, and of batch coordinators on it, by the thousand.

    pytest -m soak tests/soak/test_simulation_soak.py
    ESKER_SOAK_SECONDS=3600 pytest -m soak -n 2 tests/soak/test_simulation_soak.py

At least 3,000 schedules with at least 10 million events, however long it takes, and as many more as
fit into the time. `python -m tests.simulation --soak` does the same until it is interrupted.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from typing import Final

import pytest

from tests.simulation.__main__ import COORDINATORS, QUORUM, Kind, hunt
from tests.simulation.run import Tally, quiet

WORKERS: Final = 2
SCHEDULES: Final = 3000
EVENTS: Final = 10_000_000
REPORT_SECONDS: Final = 30
KINDS: Final = {"quorum": QUORUM, "coordinators": COORDINATORS}


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("worker", range(WORKERS))
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_thousands_of_random_raft_simulations_break_no_invariant(kind: Kind, worker: int) -> None:
    """Each worker takes every other of the seeds from the start time on; progress is on stderr."""
    first = int(os.environ.get("ESKER_SOAK_SEED", time.time_ns() >> 10))
    at_least_seconds = float(os.environ.get("ESKER_SOAK_SECONDS", "0"))
    tally, began, reported = Tally(), time.monotonic(), time.monotonic()
    with quiet():
        for seed in itertools.count(first * WORKERS + worker, WORKERS):
            tally.add(kind.run_one(seed, kind.command))
            now = time.monotonic()
            tally.seconds = now - began
            if now - reported > REPORT_SECONDS:
                reported = now
                print(f"worker {worker}, seed {seed:#x}: {tally}", file=sys.__stderr__, flush=True)
            enough = tally.schedules * WORKERS >= SCHEDULES and tally.events * WORKERS >= EVENTS
            if enough and tally.seconds >= at_least_seconds:
                break
    print(tally)
    never = [name for name in kind.rare if not tally.rare[name]]
    assert not never, f"never happened: {never}"


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_the_simulation_finds_every_mutant_with_new_random_seeds(kind: Kind) -> None:
    """Prints how many schedules it took for each."""
    with quiet():
        assert hunt(kind, time.time_ns() >> 10, 2000) == 0
