"""Runs `esker` in a process that stops after it has written a given number of answers.

    python -m tests.spark_jobs.halting 3 spark retention apply PLAN --rows-per-request 1

Tests use it to kill the process at a known point, however busy the machine is.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable

from esker.cli import main
from spark_jobs.plans.apply import Journal


def halt_after(requests: int) -> None:
    """Patch the journal to stop after these requests."""
    write, written = Journal.write, 0

    def write_and_halt(journal: Journal, answers: Iterable[tuple[int, int, int]]) -> None:
        nonlocal written
        write(journal, answers)
        written += 1
        if written == requests:
            os.kill(os.getpid(), signal.SIGSTOP)

    Journal.write = write_and_halt  # type: ignore[method-assign]


if __name__ == "__main__":
    halt_after(int(sys.argv.pop(1)))
    main()
