"""The simulation from a shell: replay, soak, hunt mutants.

python -m tests.simulation --seed 0x2f1c --trace    one schedule and its last steps
python -m tests.simulation --seed 0x2f1c --digest   the hash of all that happens in it
python -m tests.simulation --soak                   fresh seeds until interrupted
python -m tests.simulation --soak --schedules 3000 --events 10000000
python -m tests.simulation --mutants                fresh seeds for each mutant
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from typing import Final

from tests.simulation.cluster import Cluster
from tests.simulation.mutants import MUTANTS
from tests.simulation.plan import draw
from tests.simulation.run import RARE, ScheduleFailed, Tally, digest, quiet, run_one
from tests.simulation.snapshot_mutants import SNAPSHOT_MUTANTS
from tests.simulation.world import Trace

REPORT_SECONDS: Final = 10
COMMAND: Final = "python -m tests.simulation"


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
    options = parser.parse_args()
    with quiet():
        if options.soak:
            first = options.seed if options.seed is not None else time.time_ns() >> 10
            return soak(first, schedules=options.schedules, events=options.events)
        if options.mutants:
            return hunt(options.seed or 1, options.limit)
        if options.seed is None:
            parser.error("one of --seed, --soak, --mutants")
        if options.digest:
            print(digest(draw(options.seed)))
            return 0
        return show(options.seed, with_trace=options.trace)


def show(seed: int, *, with_trace: bool) -> int:
    """One schedule, told."""
    plan, trace = draw(seed), Trace()
    print(plan)
    try:
        result = Cluster(plan, trace=trace).run()
    except Exception as error:
        if with_trace:
            print(*trace.lines, sep="\n")
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    if with_trace:
        print(*trace.lines, sep="\n")
    print(result)
    return 0


def soak(first_seed: int, *, schedules: int, events: int) -> int:
    """Fresh seeds until interrupted, or until both numbers (if not 0) are reached."""
    tally, began = Tally(), time.monotonic()
    reported = began
    try:
        for seed in itertools.count(first_seed):
            tally.add(run_one(seed, COMMAND))
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
    never = [name for name in RARE if not tally.rare[name]]
    if never and tally.schedules >= 500:
        print(f"never happened: {never}", file=sys.stderr)
        return 1
    return 0


def hunt(first_seed: int, limit: int) -> int:
    """For each mutant, how many fresh seeds it takes to kill it."""
    survivors = 0
    for mutant in (*MUTANTS, *SNAPSHOT_MUTANTS):
        began = time.monotonic()
        for tried, seed in enumerate(range(first_seed, first_seed + limit), 1):
            try:
                mutant.run(seed, mutant.production)
            except AssertionError as error:
                print(
                    f"{mutant.name}: killed by seed {seed:#x}, the {tried}. tried,"
                    f" {time.monotonic() - began:.1f} s in all: {str(error)[:100]}",
                    flush=True,
                )
                break
        else:
            survivors += 1
            print(f"{mutant.name}: lives after {limit} seeds", flush=True)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
