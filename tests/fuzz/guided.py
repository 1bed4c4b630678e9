"""A small coverage-guided fuzzer: an input that reaches a new line of Esker joins the corpus.

    python -m tests.fuzz.guided segment --seconds 60

It traces every line (`sys.settrace`), so it takes a tenth of the inputs that the blind run takes,
and finds what needs several steps of damage. The inputs that it adds are printed as hex; some of
them are kept in `tests/fuzz/seeds/TARGET.txt`, one a line, and are samples of every run.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any, Final

from tests.fuzz.mutation import mutated
from tests.fuzz.targets import TARGETS, Target, feed, repaired, samples_of

ROOT: Final = Path(__file__).parents[2]
TRACED: Final = tuple(
    str(ROOT / room) + "/"
    for room in ("records", "raft", "snapshot", "diskless", "esker", "spark_jobs")
)
GENERATED: Final = "<"  # the name of a generated codec's file begins with it
MAX_SEED_BYTES: Final = 4_096

Line = tuple[str, int]


def lines_of(work: Callable[[], object]) -> set[Line]:
    """Run a function and return the lines of Esker that it reached."""
    reached: set[Line] = set()

    def in_frame(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            reached.add((frame.f_code.co_filename, frame.f_lineno))
        return in_frame

    def at_call(frame: FrameType, _: str, __: Any) -> Any:
        name = frame.f_code.co_filename
        return in_frame if name.startswith((GENERATED, *TRACED)) else None

    before = sys.gettrace()
    sys.settrace(at_call)
    try:
        work()
    finally:
        sys.settrace(before)
    return reached


def explore(
    target: Target, samples: list[bytes], rng: Random, seconds: float
) -> tuple[int, list[bytes]]:
    """Damage the corpus for some seconds; return how many inputs there were, and the new ones.

    Raises:  every error that the decoder may not raise, with the bytes as a note.
    """
    corpus = list(samples)
    known: set[Line] = set()
    for data in corpus:
        known |= lines_of(lambda data=data: feed(target, data))  # type: ignore[misc]
    count, added, until = 0, [], time.monotonic() + seconds
    while time.monotonic() < until:
        for data in repaired(target, mutated(rng.choice(corpus), rng, corpus)):
            count += 1
            try:
                reached = lines_of(lambda data=data: feed(target, data))  # type: ignore[misc]
            except BaseException as error:
                error.add_note(f"bytes: {data.hex()}")
                raise
            if not reached <= known and len(data) <= MAX_SEED_BYTES:
                corpus.append(data)
                added.append(data)
            known |= reached
    return count, added


def main() -> None:
    """Explore one target and print the inputs that reached new lines."""
    parser = argparse.ArgumentParser()
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    count, added = explore(
        TARGETS[options.target], samples_of(options.target), Random(options.seed), options.seconds
    )
    print(*(data.hex() for data in added), sep="\n")
    print(f"{options.target}: {count} inputs, {len(added)} reached new lines", file=sys.stderr)


if __name__ == "__main__":
    main()
