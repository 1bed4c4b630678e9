"""Rounds of the broker nemesis from a shell, and a table of the anomalies that they had.

python -m tests.nemesis --rounds 40                        random faults, four in a round
python -m tests.nemesis --rounds 1 --seed 7                the plan of one round again
python -m tests.nemesis --faults fail_power,fill_store     these faults in each round
python -m tests.nemesis --rewriting                        with merging and compaction all the time

Each round starts three quorum nodes and two brokers, lets clients work while the faults last, and
judges the history of the clients (docs/testing.md). The exit code is 1 if a round had an anomaly or
did not come to its end.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path
from random import Random, SystemRandom
from typing import Final

from tests import processes
from tests.nemesis.anomalies import AnomaliesError, Kind
from tests.nemesis.disks import Disks, NoMounts
from tests.nemesis.rounds import ALL_FAULTS, DISK_FAULTS, REWRITING_FAULTS, Round, run_round

HEADER: Final = (
    "round       seed  seconds    acked unknown   polled  ends commits  reads rebal  anomalies"
)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.nemesis",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=10, help="number of rounds; default: 10")
    parser.add_argument("--seed", type=int, help="seed of the first round; default: random")
    parser.add_argument("--length", type=int, default=4, help="faults in a round; default: 4")
    parser.add_argument("--faults", help="names of faults, in order; default: random ones")
    parser.add_argument(
        "--rewriting", action="store_true", help="merge and compact all the time, under faults, too"
    )
    parser.add_argument("--list", action="store_true", help="list the names of all faults")
    words = parser.parse_args()
    processes.forks_allowed = True
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # it tells of each connection
    if words.list:
        print("\n".join(ALL_FAULTS + REWRITING_FAULTS))
        return 0
    first = SystemRandom().randrange(1 << 31) if words.seed is None else words.seed
    names = words.faults.split(",") if words.faults else []
    if unknown := set(names) - {*ALL_FAULTS, *REWRITING_FAULTS}:
        parser.error(f"--faults: unknown: {', '.join(sorted(unknown))}; --list shows the names")
    print(HEADER, flush=True)
    rounds = []
    failed = 0
    for seed in range(first, first + words.rounds):
        number = seed - first + 1
        result = _run(number, seed, names, words.length, rewriting=words.rewriting)
        if result is None:
            failed += 1
        else:
            rounds.append(result)
    _summarize(rounds, failed)
    return 1 if failed or any(result.anomalies for result in rounds) else 0


def _run(number: int, seed: int, names: list[str], length: int, *, rewriting: bool) -> Round | None:
    """Run a round and print its row; keep its directory and print its output if it fails."""
    home = Path(tempfile.mkdtemp(prefix=f"nemesis-{seed}-"))
    log = home / "round.log"
    faults: list[str] = []
    disks = None
    result = None
    try:
        with log.open("w") as file, redirect_stdout(file):
            disks = _disks(home)
            possible = [one for one in ALL_FAULTS if disks is not None or one not in DISK_FAULTS]
            possible += REWRITING_FAULTS if rewriting else ()
            faults = names or Random(seed).sample(possible, length)
            if rewriting and not names and not set(faults) & set(REWRITING_FAULTS):
                faults[0] = REWRITING_FAULTS[seed % 2]
            result = run_round(home, seed, faults, disks=disks, rewriting=rewriting)
            print(result)
            print(f"{number:5} {_row(result)}", file=sys.__stdout__, flush=True)
            result.check()
    except AnomaliesError as error:
        print(f"{error}\n{' '.join(faults)}; kept: {home}", flush=True)
    except Exception:
        print(f"{number:5} {seed:10} did not end: {' '.join(faults)}; kept: {home}")
        print(log.read_text(), traceback.format_exc(), sep="\n", flush=True)
    else:
        if disks is not None:
            disks.close()
        shutil.rmtree(home, ignore_errors=True)
    finally:
        if disks is not None:
            disks.close()
    return result


def _disks(home: Path) -> Disks | None:
    try:
        return Disks(home / "disks")
    except NoMounts as error:
        print(f"no faults of disks: {error}")
        return None


def _row(result: Round) -> str:
    return (
        f"{result.seed:10} {result.seconds:8.1f} {result.acknowledged:8} {result.unknown:7} "
        f"{result.polled:8} {result.end_reads:5} {result.commits:7} {result.committed_reads:6} "
        f"{result.rebalances:5}  {len(result.anomalies):9}  {' '.join(result.faults)}"
    )


def _summarize(rounds: list[Round], failed: int) -> None:
    """Print what each kind of anomaly and each fault came to, and one line for all."""
    kinds = Counter(anomaly.kind for result in rounds for anomaly in result.anomalies)
    faults = Counter(fault for result in rounds for fault in result.faults)
    happened: Counter[str] = sum((result.happened for result in rounds), Counter())
    print("\nanomalies:")
    for kind in Kind:
        print(f"  {kind:24} {kinds[kind]:6}")
    print("faults: " + ", ".join(f"{name} {faults[name]}" for name in faults))
    print("told to clients: " + ", ".join(f"{name} {n}" for name, n in happened.most_common()))
    acknowledged = sum(result.acknowledged for result in rounds)
    polled = sum(result.polled for result in rounds)
    print(
        f"{len(rounds)} rounds, {sum(faults.values())} faults, {acknowledged} records "
        f"acknowledged, {polled} polled: {sum(kinds.values())} anomalies; "
        f"{failed} rounds did not end"
    )


if __name__ == "__main__":
    began = time.monotonic()
    code = main()
    print(f"{time.monotonic() - began:.0f} s")
    sys.exit(code)
