"""The simulation from a shell: replay, soak, hunt mutants.

python -m tests.simulation --seed 0x2f1c --trace    one schedule and its last steps
python -m tests.simulation --seed 0x2f1c --calm     as `make test` runs it
python -m tests.simulation --seed 0x2f1c --digest   the hash of all that happens in it
python -m tests.simulation --soak                   fresh seeds until interrupted
python -m tests.simulation --soak --schedules 3000 --events 10000000
python -m tests.simulation --mutants                fresh seeds for each mutant
python -m tests.simulation --coordinators --soak    of batch coordinators; all of the above
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from tests.simulation import coordinator_run
from tests.simulation.cluster import Cluster, Result
from tests.simulation.coordinator_cluster import (
    draw_calm_coordinators,
    draw_coordinators,
    run_plan,
)
from tests.simulation.coordinator_mutants import MUTANTS as COORDINATOR_MUTANTS
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.plan import draw, draw_calm
from tests.simulation.run import RARE, ScheduleFailed, Tally, quiet, run_calm, run_one
from tests.simulation.snapshot_mutants import SNAPSHOT_MUTANTS
from tests.simulation.world import Trace

REPORT_SECONDS: Final = 10
COMMAND: Final = "python -m tests.simulation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What is simulated."""

    command: str
    draw: Callable[[int], Any]
    run: Callable[[Any, Trace], Result]
    run_one: Callable[[int, str], Result]
    rare: Sequence[str]
    mutants: Sequence[tuple[str, Callable[[int], str | None]]]


def _kill(mutant: Mutant, seed: int) -> str | None:
    """How a mutant was found, if it was."""
    try:
        mutant.run(seed, mutant.production)
    except AssertionError as error:
        return str(error)
    return None


QUORUM: Final = Kind(
    command=COMMAND,
    draw=draw,
    run=lambda plan, trace: Cluster(plan, trace=trace).run(),
    run_one=run_one,
    rare=RARE,
    mutants=[(mutant.name, partial(_kill, mutant)) for mutant in (*MUTANTS, *SNAPSHOT_MUTANTS)],
)
CALM: Final = replace(QUORUM, command=f"{COMMAND} --calm", draw=draw_calm, run_one=run_calm)
COORDINATORS: Final = Kind(
    command=f"{COMMAND} --coordinators",
    draw=draw_coordinators,
    run=lambda plan, trace: run_plan(plan, trace=trace),
    run_one=coordinator_run.run_one,
    rare=coordinator_run.RARE,
    mutants=[(mutant.name, mutant.kill) for mutant in COORDINATOR_MUTANTS],
)
CALM_COORDINATORS: Final = replace(
    COORDINATORS,
    command=f"{COORDINATORS.command} --calm",
    draw=draw_calm_coordinators,
    run_one=coordinator_run.run_calm,
)
KINDS: Final = {
    (False, False): QUORUM,
    (False, True): CALM,
    (True, False): COORDINATORS,
    (True, True): CALM_COORDINATORS,
}
"""By whether batch coordinators run on the quorum, and whether clients are calm."""


def main() -> int:
    """0 if all went well, 1 if a schedule failed, a rarity never happened or a mutant lived."""
    parser = argparse.ArgumentParser(
        prog=COMMAND, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=lambda text: int(text, 0), help="the schedule, or the first")
    parser.add_argument("--trace", action="store_true", help="print the last steps of the schedule")
    parser.add_argument("--digest", action="store_true", help="print the hash of its steps")
    parser.add_argument("--soak", action="store_true", help="schedule after schedule")
    parser.add_argument("--schedules", type=int, default=0, help="stop a soak after so many")
    parser.add_argument("--events", type=int, default=0, help="and not before so many events")
    parser.add_argument("--mutants", action="store_true", help="fresh seeds for each mutant")
    parser.add_argument("--limit", type=int, default=1000, help="seeds to try for each mutant")
    parser.add_argument("--coordinators", action="store_true", help="batch coordinators on it")
    parser.add_argument("--calm", action="store_true", help="as `make test` runs it")
    options = parser.parse_args()
    kind = KINDS[options.coordinators, options.calm]
    with quiet():
        if options.soak:
            first = options.seed if options.seed is not None else time.time_ns() >> 10
            return soak(kind, first, schedules=options.schedules, events=options.events)
        if options.mutants:
            return hunt(kind, options.seed or 1, options.limit)
        if options.seed is None:
            parser.error("one of --seed, --soak, --mutants")
        if options.digest:
            trace = Trace()
            try:
                kind.run(kind.draw(options.seed), trace)
            except AssertionError as error:
                trace.note(str(error))
            print(trace.digest)
            return 0
        return show(kind, options.seed, with_trace=options.trace)


def show(kind: Kind, seed: int, *, with_trace: bool) -> int:
    """One schedule, told."""
    plan, trace = kind.draw(seed), Trace()
    print(plan)
    try:
        result = kind.run(plan, trace)
    except Exception as error:
        if with_trace:
            print(*trace.lines, sep="\n")
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    if with_trace:
        print(*trace.lines, sep="\n")
    print(result)
    return 0


def soak(kind: Kind, first_seed: int, *, schedules: int, events: int) -> int:
    """Fresh seeds until interrupted, or until both numbers (if not 0) are reached."""
    tally, began = Tally(), time.monotonic()
    reported = began
    try:
        for seed in itertools.count(first_seed):
            tally.add(kind.run_one(seed, kind.command))
            now = time.monotonic()
            tally.seconds = now - began
            if now - reported > REPORT_SECONDS:
                reported = now
                print(
                    f"seed={seed:#x} schedules={tally.schedules} events={tally.events}"
                    f" seeds/s={tally.schedules / tally.seconds:.1f}"
                    f" events/s={tally.events / tally.seconds:.0f}",
                    flush=True,
                )
            if schedules and tally.schedules >= schedules and tally.events >= events:
                break
    except KeyboardInterrupt:
        pass
    except ScheduleFailed as failure:
        print(failure, file=sys.stderr)
        return 1
    print(tally)
    never = [name for name in kind.rare if not tally.rare[name]]
    if never and tally.schedules >= 500:
        print(f"never happened: {never}", file=sys.stderr)
        return 1
    return 0


def hunt(kind: Kind, first_seed: int, limit: int) -> int:
    """For each mutant, how many fresh seeds it takes to kill it."""
    survivors = 0
    for name, kill in kind.mutants:
        began = time.monotonic()
        for tried, seed in enumerate(range(first_seed, first_seed + limit), 1):
            found = kill(seed)
            if found is not None:
                print(
                    f"{name}: killed by seed {seed:#x}, the {tried}. tried,"
                    f" {time.monotonic() - began:.1f} s in all: {found[:100]}",
                    flush=True,
                )
                break
        else:
            survivors += 1
            print(f"{name}: lives after {limit} seeds", flush=True)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
