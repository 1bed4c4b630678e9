"""`esker`, whose process stands still once it has written the answers to so many requests.

    python -m tests.spark_jobs.halting 3 spark retention apply PLAN --rows-per-request 1

For who wants to kill it in its middle, however busy the machine is.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable

from esker.cli import main
from spark_jobs.plans.apply import Journal


def halt_after(requests: int) -> None:
    """Make the journal suspend this process (SIGSTOP) after so many writes."""
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
